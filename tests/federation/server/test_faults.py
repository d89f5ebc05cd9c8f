"""Sites that are late, broken, doubled or lying: left out by name, and the round goes on while the quorum holds."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, RecordDict

from fedhip.federation.errors import RoundError
from fedhip.federation.status_codes import ServerCode, SiteCode
from fedhip.federation.sums.vector import Layout, Vector
from fedhip.federation.transport.wire import from_records, to_records
from fedhip.runs import Run
from tests.federation.grid import array_record
from tests.federation.samples import CLASSES, FOUR, ONE_SUM, WIDTH, Trial, sum_of

pytestmark = pytest.mark.usefixtures("sums_only")

STEPS = ("hello", "keys", "share", "mask", "unmask", "personalize")
SIZE = Layout(WIDTH, len(CLASSES)).size
THREE = ("a", "b", "d")


def inside(step: str) -> tuple[str, ...]:
    """Who is in the sum if c is left out in this step."""
    return FOUR if step in ("unmask", "personalize") else THREE


def header(**fields: object) -> Callable[[RecordDict], RecordDict]:
    def change(records: RecordDict) -> RecordDict:
        cast(ConfigRecord, records["fedhip"]).update(fields)  # type: ignore[arg-type]
        return records

    return change


def body(**fields: object) -> Callable[[RecordDict], RecordDict]:
    def change(records: RecordDict) -> RecordDict:
        cast(ConfigRecord, records["body"]).update(fields)  # type: ignore[arg-type]
        return records

    return change


def vector(values: np.ndarray) -> Callable[[RecordDict], RecordDict]:
    def change(records: RecordDict) -> RecordDict:
        letter = from_records(records)
        return to_records(letter.reply(letter.body, {"vector": values}))

    return change


def nothing(_: RecordDict) -> RecordDict:
    return RecordDict()


def truncated(records: RecordDict) -> RecordDict:
    array = cast(ArrayRecord, records["arrays"])["vector"]
    array.data = array.data[:-5]
    return records


def pickled(records: RecordDict) -> RecordDict:
    records["arrays"] = array_record(vector=np.zeros(SIZE, np.uint64))
    return records


@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize(
    ("kind", "code"), [("late", ServerCode.LATE), ("gone", ServerCode.GONE), ("raises", ServerCode.CRASHED)]
)
@pytest.mark.sampled(3)
def test_late_gone_and_broken_sites(tmp_path: Path, step: str, kind: str, code: ServerCode) -> None:
    trial = Trial.make(tmp_path, quorum=3, threshold=3, **ONE_SUM)
    trial.fault(kind, "c", step)
    assert trial.run().total() == sum_of(inside(step), trial.agreement)
    assert trial.codes()["c"] == code
    assert any(line.get("site") == "c" and line["step"] == step for line in trial.events())
    # What an app breaks off with is the site's own affair.
    assert "patient" not in (trial.folder / "state" / "progress.jsonl").read_text()


@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize(
    "change",
    [nothing, header(session=b"x" * 32), header(agreement="0" * 64), header(step="agree"), header(protocol=2.0)],
    ids=["nothing", "session", "agreement", "step", "protocol"],
)
@pytest.mark.sampled(3)
def test_an_answer_that_is_none(tmp_path: Path, step: str, change: Callable[[RecordDict], RecordDict]) -> None:
    trial = Trial.make(tmp_path, quorum=3, threshold=3, **ONE_SUM)
    trial.fault("changed", "c", step, change)
    assert trial.run().total() == sum_of(inside(step), trial.agreement)
    assert trial.codes() == {"c": ServerCode.GARBAGE}


@pytest.mark.parametrize(
    ("step", "change"),
    [
        ("hello", body(site=7)),
        ("hello", body(encoder="perhaps")),
        ("keys", body(keys=b"")),
        ("keys", body(keys=b"\1" * 10_000)),
        ("share", body(shares=[b"", b"", b""])),
        ("share", body(**{"shares-of": ["a", "b", "c"]})),
        ("mask", vector(np.zeros(SIZE - 1, np.uint64))),  # another m
        ("mask", vector(np.zeros(SIZE + 1, np.uint64))),  # another d
        ("mask", vector(np.zeros(1 << 20, np.uint64))),  # oversized
        ("mask", vector(np.zeros(SIZE, np.uint8))),
        ("mask", truncated),
        ("mask", pickled),
        ("unmask", body(shares=b"\0" * 100)),
        ("personalize", body(told="yes")),
        ("personalize", body(told=True, test=-1)),
        ("personalize", body(told=True, test=3, local=0.5, fedhip=7.0, **{"global": 0.5})),
    ],
)
@pytest.mark.sampled(3)
def test_garbage_in_an_answer(tmp_path: Path, step: str, change: Callable[[RecordDict], RecordDict]) -> None:
    trial = Trial.make(tmp_path, quorum=3, threshold=3, **ONE_SUM)
    trial.fault("changed", "c", step, change)
    assert trial.run().total() == sum_of(inside(step), trial.agreement)
    assert trial.codes() == {"c": ServerCode.GARBAGE}


@pytest.mark.parametrize("bit", [20, 40, 62])
def test_a_plain_vector_that_no_rows_have(tmp_path: Path, bit: int) -> None:
    trial = Trial.make(tmp_path, quorum=3, threshold=3, secure_sum=False, **ONE_SUM)
    for site in FOUR:
        trial.policy(site, "require_secure_sum = false")
    wrong = np.ones(SIZE, np.uint64) << np.uint64(bit)  # semi-definite, but of too many rows
    trial.fault("changed", "c", "mask", vector(wrong))
    assert trial.run().total() == sum_of(THREE, trial.agreement)
    assert trial.codes() == {"c": ServerCode.GARBAGE}


def test_wrong_numbers_under_a_mask_spoil_the_sum_and_nothing_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trial = Trial.make(tmp_path, **ONE_SUM)
    more = np.arange(SIZE, dtype=np.uint64) << np.uint64(50)
    trial.lie(monkeypatch, "c", lambda vector: np.add(vector, more, out=vector))
    with pytest.raises(RoundError, match="under its mask"):
        trial.run()
    assert not trial.result.exists()


def plus(place: int, number: int) -> Callable[[Vector], None]:
    """The site adds something to its vector that its rows do not say."""

    def change(vector: Vector) -> None:
        vector[[place]] += np.uint64(number % (1 << 64))

    return change


def test_a_masked_vector_that_the_site_did_not_sign(tmp_path: Path) -> None:
    """Whoever stands between the site and the server app changes it; the site is left out, and the sum is right."""
    trial = Trial.make(tmp_path, quorum=3, threshold=3, **ONE_SUM)

    def change(records: RecordDict) -> RecordDict:
        letter = from_records(records)
        return to_records(letter.reply(letter.body, {"vector": letter.array("vector") + np.uint64(1)}))

    trial.fault("changed", "c", "mask", change)
    assert trial.run().results["sites"] == ["a", "b", "d"]
    assert trial.codes() == {"c": "garbage"}
    assert any("signature was not made with the key" in line["text"] for line in trial.events())


@pytest.mark.parametrize(
    ("number", "change", "message"),
    [
        (1, plus(-1, 1 << 40), "the survey is of"),
        (1, plus(-1, -(1 << 10)), "the survey is of"),
        (1, plus(0, 1 << 40), "more values than there are rows"),
        (1, plus(5 * WIDTH * 4, -100), "fewer than none"),
        (1, plus((5 * 4 + 1) * WIDTH, 1 << 40), "squares of a column are smaller than its sum allows"),
        (2, plus(-1, -100), "class counts"),
        (2, plus(0, -(1 << 50)), "not positive semi-definite"),
        (3, plus(0, 1 << 40), "more rows right than there are"),
        (3, plus(-1, -(1 << 40)), "fewer than none"),
    ],
)
@pytest.mark.sampled(3)
def test_wrong_numbers_under_a_mask_in_any_of_three_sums(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int, change: Callable[[Vector], None], message: str
) -> None:
    trial = Trial.make(tmp_path)
    trial.lie(monkeypatch, "c", change, round=number)
    with pytest.raises(RoundError, match=rf"under its mask: .*{message}.*Nobody can say which; nothing was written"):
        trial.run()
    assert not trial.result.exists()
    assert trial.events()[-1]["step"] == "failed"


@pytest.mark.parametrize("place", [0, -1])
def test_a_plain_survey_that_no_rows_have(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: int) -> None:
    trial = Trial.make(tmp_path, quorum=3, threshold=3, secure_sum=False)
    for site in FOUR:
        trial.policy(site, "require_secure_sum = false")
    trial.lie(monkeypatch, "c", plus(place, 1 << 40))
    assert trial.run().total() == sum_of(THREE, trial.agreement)
    assert trial.codes() == {"c": ServerCode.GARBAGE}


def require_same(answers: tuple[Message, Message]) -> None:
    """Both messages were answered, and alike: whoever asks twice learns nothing more."""
    before, after = (from_records(message.content) for message in answers)
    assert before.code is after.code is SiteCode.OK
    assert (before.body, before.arrays.keys()) == (after.body, after.arrays.keys())
    assert all((before.arrays[name] == after.arrays[name]).all() for name in before.arrays)


@pytest.mark.parametrize("kind", ["away", "unheard"])
@pytest.mark.parametrize("step", STEPS)
@pytest.mark.sampled(3)
def test_a_network_that_breaks_for_less_than_the_deadline(tmp_path: Path, step: str, kind: str) -> None:
    """It takes the question or the answer with it, of every site: nobody is left out, and nothing else is summed."""
    trial = Trial.make(tmp_path, **ONE_SUM)
    for site in FOUR:
        trial.fault(kind, site, step)
    assert trial.run().total() == sum_of(FOUR, trial.agreement)
    assert trial.codes() == {}
    assert [asked for _, asked in trial.grid.asked].count(step) == 8
    assert trial.grid.clock.now <= 60
    assert Run.open(trial.result).results["without_model"] == []


@pytest.mark.parametrize("kind", ["away", "unheard"])
@pytest.mark.parametrize("number", [1, 2, 3])
@pytest.mark.parametrize("step", ["keys", "share", "mask", "unmask"])
@pytest.mark.sampled(3)
def test_a_network_that_breaks_in_any_of_three_sums(tmp_path: Path, step: str, number: int, kind: str) -> None:
    trial = Trial.make(tmp_path)
    for site in "bc":
        trial.fault(kind, site, step, round=number)
    assert trial.run().total() == sum_of(FOUR, trial.agreement)
    assert trial.codes() == {}


def test_a_network_that_breaks_before_plain_vectors(tmp_path: Path) -> None:
    trial = Trial.make(tmp_path, secure_sum=False, **ONE_SUM)
    for site in FOUR:
        trial.policy(site, "require_secure_sum = false")
        trial.fault("unheard", site, "mask")
    assert trial.run().total() == sum_of(FOUR, trial.agreement)
    assert trial.codes() == {}


def test_a_network_that_breaks_for_longer(tmp_path: Path) -> None:
    trial = Trial.make(tmp_path, quorum=3, threshold=3, **ONE_SUM)
    trial.fault("away", "c", "mask", seconds=1000.0)
    assert trial.run().total() == sum_of(THREE, trial.agreement)
    assert trial.codes() == {"c": ServerCode.GONE}


@pytest.mark.parametrize("settings", [ONE_SUM, {}, {"head": "lda", "prior": "client"}], ids=["one", "three", "lda"])
@pytest.mark.parametrize("kind", ["away", "lost"])
@pytest.mark.sampled(3)
def test_a_finished_round_hands_its_sum_out_until_all_have_it(
    tmp_path: Path, kind: str, settings: dict[str, Any]
) -> None:
    """Two of four get no answer through: the round is run again for these two alone, and about the same sum."""
    trial = Trial.make(tmp_path, **settings)
    for site in "bc":
        trial.fault(kind, site, "personalize", seconds=1000.0)
    first = trial.run()
    assert first.results["without_model"] == ["b", "c"]
    assert "without a model yet: b, c; start the round again" in trial.events()[-1]["text"]
    trial.again()
    trial.grid.dead = {trial.node("c")}
    assert trial.run().results["without_model"] == ["c"]
    assert set(trial.grid.asked) == {(trial.node("b"), "personalize")}
    trial.again()
    last = trial.run()
    assert set(trial.grid.asked) == {(trial.node("c"), "personalize")}
    assert last.results["without_model"] == []
    assert (last.total(), last.results["beta"]) == (first.total(), first.results["beta"])
    assert not [check for check in last.verify() if check.problem]
    with pytest.raises(RoundError, match="this round is finished"):
        trial.run()


@pytest.mark.parametrize("number", [1, 2, 3])
@pytest.mark.parametrize("step", ["keys", "share", "mask", "unmask"])
@pytest.mark.sampled(3)
def test_a_message_that_comes_twice_in_any_of_three_sums(tmp_path: Path, step: str, number: int) -> None:
    trial = Trial.make(tmp_path)
    trial.fault("twice", "c", step, round=number)
    assert trial.run().total() == sum_of(FOUR, trial.agreement)
    require_same(*trial.grid.doubled)


@pytest.mark.parametrize("kind", ["twice", "at-once"])
@pytest.mark.parametrize("step", STEPS)
@pytest.mark.sampled(3)
def test_a_message_that_comes_twice(tmp_path: Path, step: str, kind: str) -> None:
    """One answer, and for the other the very same, to the bit; the sum is what it was."""
    trial = Trial.make(tmp_path, **ONE_SUM)
    trial.fault(kind, "c", step)
    assert trial.run().total() == sum_of(FOUR, trial.agreement)
    require_same(*trial.grid.doubled)


@pytest.mark.parametrize("step", STEPS)
def test_a_question_of_another_session(tmp_path: Path, step: str) -> None:
    trial = Trial.make(tmp_path, quorum=3, threshold=3, **ONE_SUM)
    trial.fault("asked", "c", step, header(session=b"x" * 32))
    assert trial.run().total() == sum_of(inside(step), trial.agreement)
    assert trial.codes() == {"c": ServerCode.GARBAGE if step == "hello" else SiteCode.SESSION}


def test_a_message_from_yesterday(tmp_path: Path) -> None:
    """The question of an earlier session, word for word, gets nothing."""
    trial = Trial.make(tmp_path, quorum=3, threshold=3, **ONE_SUM)
    kept: list[RecordDict] = []

    def keep(records: RecordDict) -> RecordDict:
        kept.append(to_records(from_records(records)))
        return kept[0]

    trial.fault("asked", "c", "mask", keep)
    trial.fault("late", "a", "mask")
    trial.fault("late", "b", "mask")
    with pytest.raises(RoundError):
        trial.run()
    trial.again()
    trial.fault("asked", "c", "mask", lambda _: kept[0])
    assert trial.run().total() == sum_of(THREE, trial.agreement)
    assert trial.codes() == {"c": SiteCode.SESSION}


@pytest.mark.parametrize("step", ["hello", "keys", "share", "mask"])
def test_a_lost_quorum_says_why_and_the_next_round_works(tmp_path: Path, step: str) -> None:
    trial = Trial.make(tmp_path, quorum=3, threshold=3, **ONE_SUM)
    trial.fault("silent", "b", step)
    trial.fault("raises", "c", step)
    with pytest.raises(RoundError, match=rf"after {step} 2 of 4 sites .*the quorum is 3.*b: .*, c: crashed"):
        trial.run()
    assert not trial.result.exists()
    assert not (trial.folder / "state" / "checkpoint").exists()
    assert {path.name for path in (trial.folder / "state").iterdir()} == {"nodes.json", "progress.jsonl"}
    assert trial.events()[-1]["step"] == "failed"
    trial.again()
    assert trial.run().total() == sum_of(FOUR, trial.agreement)


@pytest.mark.parametrize("step", ["agree", "unmask"])
def test_too_few_are_left_to_take_the_masks_off_and_go_on_when_they_are_back(tmp_path: Path, step: str) -> None:
    trial = Trial.make(tmp_path, quorum=3, threshold=3, **ONE_SUM)
    trial.fault("silent", "d", "mask")
    for site in "bc":
        trial.fault("lost", site, step)
    with pytest.raises(RoundError, match=r"could not be taken off.*goes on from here"):
        trial.run()
    assert not trial.result.exists()
    trial.again()
    assert trial.run().total() == sum_of(("a", "b", "c"), trial.agreement)


def test_a_site_that_never_came(tmp_path: Path) -> None:
    trial = Trial.make(tmp_path, quorum=3, threshold=3, **ONE_SUM)
    del trial.grid.nodes[trial.node("c")]
    assert trial.run().total() == sum_of(THREE, trial.agreement)
    assert trial.codes() == {"c": ServerCode.NEVER_CAME}
    assert trial.grid.clock.now >= trial.agreement.deadline


def test_a_site_that_says_it_is_another(tmp_path: Path) -> None:
    """The node of c has the folder of b: a name alone is not believed, and b's signature is for b."""
    trial = Trial.make(tmp_path, quorum=3, threshold=3, **ONE_SUM)
    folder = trial.folder / "stolen"
    shutil.copytree(trial.site_folder("b"), folder)
    trial.grid.nodes[trial.node("c")].node_config["site-folder"] = str(folder)
    trial.fault("changed", "c", "hello", body(site="c"))
    assert trial.run().total() == sum_of(THREE, trial.agreement)
    assert trial.codes() == {"c": ServerCode.SIGNATURE}


def test_a_hello_signed_for_another_node(tmp_path: Path) -> None:
    trial = Trial.make(tmp_path, quorum=3, threshold=3, **ONE_SUM)
    context = trial.grid.nodes[trial.node("c")]
    context.node_id = 999
    assert trial.run().total() == sum_of(THREE, trial.agreement)
    assert trial.codes() == {"c": ServerCode.SIGNATURE}


def test_the_same_site_twice(tmp_path: Path) -> None:
    """A second node with c's key and folder: c takes part once."""
    trial = Trial.make(tmp_path, **ONE_SUM)
    shutil.copytree(trial.site_folder("c"), trial.folder / "twin")
    config = {"site-folder": str(trial.folder / "twin"), "data": str(trial.data("c"))}
    trial.grid.nodes[500] = Context(7, 500, config, RecordDict(), {})  # type: ignore[arg-type]
    nodes = trial.folder / "state" / "nodes.json"
    nodes.write_text(json.dumps({**json.loads(nodes.read_text()), "500": "c"}))
    assert trial.run().total() == sum_of(FOUR, trial.agreement)
    assert trial.codes() == {}
    assert any("connected twice" in line["text"] for line in trial.events())


def test_a_node_that_nobody_registered_is_not_asked(tmp_path: Path) -> None:
    trial = Trial.make(tmp_path, **ONE_SUM)
    trial.grid.nodes[500] = trial.grid.nodes[trial.node("a")]
    trial.run()
    assert 500 not in {node for node, _ in trial.grid.asked}


@pytest.mark.parametrize("content", [None, "{", "[]", '{"x": "a"}'])
def test_no_list_of_nodes(tmp_path: Path, content: str | None) -> None:
    trial = Trial.make(tmp_path, **ONE_SUM)
    nodes = trial.folder / "state" / "nodes.json"
    nodes.unlink()
    if content is not None:
        nodes.write_text(content)
    with pytest.raises(RoundError, match=r"nodes\.json"):
        trial.run()


def test_another_agreement_at_a_site_and_another_roster(tmp_path: Path) -> None:
    trial = Trial.make(tmp_path, quorum=2, threshold=2, secure_sum=False, **ONE_SUM)
    for site in FOUR:
        trial.policy(site, "require_secure_sum = false")
    toml = trial.site_folder("b") / "federation.toml"
    toml.write_text(toml.read_text().replace("seed = 0", "seed = 1"))
    roster = trial.site_folder("c") / "roster.json"
    content = json.loads(roster.read_text())
    other = Trial.make(tmp_path / "other", ("a", "b"), **ONE_SUM)
    stranger = json.loads((other.folder / "roster.json").read_text())["sites"]["a"]
    content["sites"]["d"] = stranger
    roster.write_text(json.dumps(content))
    assert trial.run().total() == sum_of(("a", "d"), trial.agreement)
    assert trial.codes() == {"b": SiteCode.AGREEMENT, "c": SiteCode.ROSTER}


def test_a_lying_dealer_is_named(tmp_path: Path) -> None:
    """Shares that open to nothing: those who cannot open them stay out, or the dealer does."""
    trial = Trial.make(tmp_path, quorum=3, threshold=3, **ONE_SUM)

    def spoil(records: RecordDict) -> RecordDict:
        fields = cast(ConfigRecord, records["body"])
        fields["shares"] = [bytes(len(share)) for share in cast(list[bytes], fields["shares"])]
        return records

    trial.fault("changed", "c", "share", spoil)
    assert trial.run().total() == sum_of(THREE, trial.agreement)
    assert set(trial.codes()) == {"c"}
