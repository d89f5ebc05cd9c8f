"""What was stored, and what it means that something is the same.

The same bits, wherever the project promises them: sums and their digests, the settings of a run, its partition, how
often each answer was right, the labels that are predicted, agreements, rosters, parcels, fingerprints, and of every
file which keys and tensors it has, in which order, shape and type. What linear algebra in floating point gives (models,
scores, probabilities) may differ in the last bits between processors and libraries, so it is compared to one part in
10⁹, as `fedhip verify` does, and to one in 10⁶ what the logistic head finds by iteration. Where Nyström's roots have
gone into a sum, that sum may differ in its last bits too.

On the machine that made the files everything is the same to the last bit: FEDHIP_SAME_BITS=1 asks for that.
"""

from __future__ import annotations

import json
import math
import os
import re
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import safe_open

from fedhip.cli.main import main

FILES = Path(__file__).parent / "files"
COMMANDS: dict[str, Any] = json.loads((FILES / "commands.json").read_text())
#: Where they were made.
FOLDER: str = COMMANDS["folder"]

SAME_BITS = bool(os.environ.get("FEDHIP_SAME_BITS"))
#: Relative: what is solved, and what is found step by step until a step changes little; absolute near 0.
TOLERANCE, ITERATED, NEAR_ZERO = (0.0, 0.0, 0.0) if SAME_BITS else (1e-9, 1e-6, 1e-12)

#: Fields that may differ, by file: times, versions, and hashes of what holds any.
_CHAIN = {"time", "results", "details", "partition", "previous", "hash", *(() if SAME_BITS else ("models",))}
MAY_DIFFER: dict[str, set[str]] = {
    # Bytes of a run: those of the survey and of what β is chosen by were not counted when the files were made.
    "results.json": {"fedhip", "seconds", "upload_bytes_per_client", "download_bytes_per_client"},
    "partition.json": {"numpy", "sha256"},
    "ledger.jsonl": _CHAIN,
    "receipts": _CHAIN | {"run"},
    "safetensors": {"digest"},
    "audit": {"seconds"},
}
#: Keys that are newer than the files: what prediction sets are made by.
NEWER = {"misses", "miss_scale", "global_misses"}
#: Keys of files that are no more: ridges were compared with LDA at the end of a run, which now chooses.
GONE = {"recommend", "recommendation"}
#: Since these files were made, estimates of the heads beyond the ridge are nested: chosen without the rows they are of.
NESTED_SINCE = ("lda", "logistic")
#: Files to which later versions add fields, anywhere; what was there is there, in its order.
ADDED_TO = {"results.json"}
#: Files that may differ: pages, whose drawings are another library's.
NOT_COMPARED = {"report.html"}
#: Runs whose sums depend on roots that libraries round differently.
ROUNDED_SUMS = () if SAME_BITS else ("nystroem",)
_DIGEST_OF_SUM = re.compile(r"\d+-[0-9a-f]{64}")


def moved(words: list[str], folder: Path) -> list[str]:
    """A stored command, on a copy of the files in this folder.

    When they were stored, a run that named no head was of ridges: it says so now, as its stored configuration does.
    """
    ridges = words[0] == "run" and not {"--head", "--methods"} & {*words}
    named = [*words, "--methods", "local,global,fedhip"] if ridges else words
    return [word.replace(FOLDER, str(folder)) for word in named]


def run_command(words: list[str]) -> None:
    assert main(words) == 0


def tolerance_of(name: object) -> float:
    """Of results of this name, or in this folder."""
    return ITERATED if "logistic" in str(name) else TOLERANCE


def differences(
    found: Any, expected: Any, may_differ: Collection[str] = (), at: str = "", tolerance: float = TOLERANCE
) -> Iterator[str]:
    """Where two contents of JSON differ, the order of their keys included."""
    if type(found) is not type(expected):
        yield f"{at}: {found!r} and not {expected!r}"
    elif isinstance(expected, dict):
        added = at.partition("[")[0] in ADDED_TO
        kept = [key for key in found if key in expected or not (added or key in NEWER)]
        if [key for key in kept if key not in GONE] != [key for key in expected if key not in GONE]:
            yield f"{at}: keys {list(found)} and not {list(expected)}"
        for key in (key for key in expected if key in found and key not in may_differ):
            yield from differences(found[key], expected[key], may_differ, f"{at}.{key}", tolerance)
    elif isinstance(expected, list):
        if len(found) != len(expected):
            yield f"{at}: {len(found)} and not {len(expected)}"
        for place, pair in enumerate(zip(found, expected, strict=False)):
            yield from differences(*pair, may_differ, f"{at}[{place}]", tolerance)
    elif isinstance(expected, float):
        if not math.isclose(found, expected, rel_tol=tolerance, abs_tol=NEAR_ZERO):
            yield f"{at}: {found!r} and not {expected!r}"
    elif found != expected:
        yield f"{at}: {found!r} and not {expected!r}"


def assert_same_content(
    found: str,
    expected: str,
    name: str,
    folder: Path | None = None,
    tolerance: float = TOLERANCE,
    also: Collection[str] = (),
) -> None:
    """Two texts of JSON, or of a line each, are the same but for what may differ in files of this name."""
    here = found if folder is None else found.replace(str(folder), FOLDER)
    own, other = (text.splitlines() if name == "ledger.jsonl" else [text] for text in (here, expected))
    may_differ = {*MAY_DIFFER.get(name, ()), *also}
    assert_no_difference([*map(json.loads, own)], [*map(json.loads, other)], may_differ, name, tolerance)


def assert_no_difference(found: Any, expected: Any, may_differ: Collection[str], at: str, tolerance: float) -> None:
    if lines := [*differences(found, expected, may_differ, at, tolerance)]:
        raise AssertionError("\n".join(lines[:20]))


def assert_same_run(found: Path, expected: Path, folder: Path, without: Collection[str] = ()) -> None:
    """Two run folders, file by file; `folder` is where the files are of which one was made."""
    names = [_names(path).difference(without) for path in (found, expected)]
    assert names[0] - NOT_COMPARED == names[1]
    rounded, tolerance = expected.name in ROUNDED_SUMS, tolerance_of(expected)
    also = {"loo_chosen", "chosen"} if {*NESTED_SINCE} & {*expected.parts} else set[str]()
    for name in sorted(names[1]):
        own, other = found / name, expected / name
        if name.endswith(".safetensors"):
            exact = name.startswith(("statistics", "total")) and not rounded
            if exact or SAME_BITS:
                assert own.read_bytes() == other.read_bytes(), name
            else:
                assert_same_tensors(own, other, rounded, tolerance)
        elif name.endswith(".toml"):
            mine, theirs = (
                [line for line in path.read_text().splitlines() if line.partition(" = ")[0] not in GONE]
                for path in (own, other)
            )
            assert [line.replace(str(folder), FOLDER) for line in mine] == theirs, name
        else:
            here, there = (path.read_text() for path in (own, other))
            if rounded:
                here, there = (_DIGEST_OF_SUM.sub("digest", text) for text in (here, there))
            kind = "receipts" if name.startswith("receipts") else name
            assert_same_content(here, there, kind, folder, tolerance, also)


def assert_same_tensors(found: Path, expected: Path, rounded: bool = False, tolerance: float = TOLERANCE) -> None:
    """The same tensors and the same that is said of them; numbers as close as linear algebra is."""
    told, tensors = [], []
    for path in (found, expected):
        with safe_open(path, framework="numpy") as file:
            told.append({key: _content(text, rounded) for key, text in sorted((file.metadata() or {}).items())})
            tensors.append({name: file.get_tensor(name) for name in file.keys()})  # noqa: SIM118
    assert_no_difference(told[0], told[1], MAY_DIFFER["safetensors"], expected.name, tolerance)
    assert tensors[0].keys() == tensors[1].keys()
    for name, other in tensors[1].items():
        own = tensors[0][name]
        assert (own.dtype, own.shape) == (other.dtype, other.shape), name
        finite = np.isfinite(other)
        np.testing.assert_array_equal(own[~finite], other[~finite])
        scale = float(np.abs(other[finite]).max(initial=0.0))
        limit = tolerance * scale + (rounded and other.dtype.kind in "iu")
        np.testing.assert_allclose(own[finite], other[finite], rtol=0.0, atol=limit, err_msg=f"{expected}: {name}")


def _content(text: str, rounded: bool) -> Any:
    """What a text of a file's metadata holds: JSON, or words."""
    text = _DIGEST_OF_SUM.sub("digest", text) if rounded else text
    try:
        return json.loads(text)
    except ValueError:
        return text


def _names(folder: Path) -> set[str]:
    return {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}
