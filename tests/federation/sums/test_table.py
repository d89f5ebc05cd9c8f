"""The table of sums: every row is what it says, and no sum comes out of turn."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedhip.data.tables import Column, Description
from fedhip.federation.agreement.agreement import Agreement
from fedhip.federation.agreement.init import draft
from fedhip.federation.site.inputs import make_vector
from fedhip.federation.sums.kind import SiteInputs, SumKind
from fedhip.federation.sums.table import KINDS, PLAIN, TABLE, may_follow, sums_of
from fedhip.federation.sums.traffic import takes_lift, tried_kinds
from fedhip.federation.sums.vector import Vector
from tests.federation.samples import CLASSES, FOUR, WIDTH, Trial

SETTINGS: list[dict[str, Any]] = [
    {"head": head, "prior": prior, "columns": columns, "few_rows": few_rows, **more}
    for head, more in (
        ("ridge", {}),
        ("ridge", {"beta": 1.0}),
        ("lda", {}),
        ("logistic", {"gradient_rounds": 3}),
        ("auto", {}),
        ("auto", {"beta": "gcv"}),
        ("auto", {"lift": "none"}),
    )
    for prior in ("none", "client")
    for columns in ("sum", "plain")
    for few_rows in (False, True)
]
TABLE_OF_ROWS = Description(
    (Column("age", "number"), Column("sex", "category", ("f", "m")), Column("dose", "number", fill=1.0, missing=True)),
    labels=("class",),
)
SETTINGS += [{**SETTINGS[number], "veto_share": 0.3} for number in (0, 4, 9, 13, 17, 24)]
SETTINGS += [{**SETTINGS[number], "table": TABLE_OF_ROWS} for number in (0, 1, 6)]


def agreement(settings: dict[str, Any]) -> Agreement:
    return draft(name="x", sites=FOUR, classes=CLASSES, width=WIDTH, **settings)


def written_out(done: list[str], agreed: Agreement) -> dict[str, bool]:
    """Whose turn it is, in words of each sum's own, without the table's columns `stage` and `needs`."""
    gradients, head = done.count("gradient"), agreed.head
    summed, fitted = "statistics" in done, "scale" in done or "prior" in done
    ready = summed and ("beta" in done or not agreed.chooses_beta)
    first = summed and not fitted and "temperature" not in done and gradients == 0
    filled = agreed.table is None or "fills" in done
    turns = {
        "census": False,  # it is the first, and not asked for by name
        "fills": done == ["census"] and agreed.table is not None,
        "moments": agreed.surveys_columns and not summed and "moments" not in done and filled,
        "products": agreed.wide is not None and "moments" in done and "products" not in done and not summed,
        "statistics": not summed and ("moments" in done) == agreed.surveys_columns and filled,
        "veto": agreed.veto_share is not None
        and summed
        and not fitted
        and "choice-means" not in done
        and "veto" not in done,
        "beta": agreed.chooses_beta and summed and not fitted and "beta" not in done and "choice-means" not in done,
        "temperature": first and (head == "logistic" or (head == "lda" and agreed.prior == "client")),
        "gradient": "temperature" in done and not fitted and gradients < (agreed.gradient_rounds or 0),
        "penalty": "penalty" not in done and not fitted and gradients >= 2,
        "scale": False,
        "prior": False,
        **{name: False for name in KINDS if name.startswith(("choice-", "wide-"))},
    }
    order = ["choice-means", "choice-members", "choice-scales", "choice-priors", "choice-shares"]
    if agreed.prior == "none":
        order = [name for name in order if name not in ("choice-scales", "choice-priors")]
    if "products" in done and not summed:  # one after the other; the features alone may follow any
        left = [name for name in map("wide-{}".format, ("statistics", "beta", *order)) if name not in done]
        turns |= {"products": False, **dict.fromkeys(left[:1], True)}
    if head == "auto":
        left = [name for name in order if name not in done]
        turns[left[0] if left else "scale"] = bool(left) and ready
    elif agreed.prior == "client":
        turns["scale"] = not fitted and "temperature" in done and (head == "lda" or gradients > 0)
        turns["prior"] = "prior" not in done and (ready if head == "ridge" else "scale" in done)
    return turns


@given(st.data())
def test_whose_turn_it_is(data: st.DataObject) -> None:
    """Along any way that the table allows, from the first sum on."""
    agreed = agreement(data.draw(st.sampled_from(SETTINGS)))
    done = [next(iter(sums_of(agreed))).name]
    while True:
        turns = {kind.name: may_follow(kind.name, done, agreed) for kind in TABLE}
        assert turns == written_out(done, agreed)
        if not any(turns.values()):
            break
        done.append(data.draw(st.sampled_from([name for name, its in turns.items() if its])))
    assert not may_follow("rows", done, agreed)


@pytest.mark.parametrize(
    "settings",
    [
        {"prior": "client"},
        {"head": "lda", "prior": "client", "few_rows": False},
        {"head": "logistic", "prior": "client", "gradient_rounds": 2},
        {"lift": "nystroem", "lift_width": 5, "lift_seed": 1, "lift_bandwidth": 1.0},
        {"head": "auto", "few_rows": False},
        {"head": "auto", "few_rows": False, "competing_width": 5},
    ],
    ids=["ridge", "lda", "logistic", "lift", "auto", "lift that competes"],
)
@pytest.mark.sampled(3)
def test_every_sum_of_a_round_is_a_row_of_the_table(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sums_only: None, settings: dict[str, Any]
) -> None:
    """As many as the row says, and as long; what sites give passes the server's checks, or the round would stop."""
    given: dict[tuple[str, str], list[int]] = defaultdict(list)

    def counted(kind: SumKind, inputs: SiteInputs) -> Vector:
        vector = make_vector(kind, inputs)
        given[inputs.rows.site, kind.name].append(len(vector))
        return vector

    monkeypatch.setattr("fedhip.federation.site.site.make_vector", counted)
    trial = Trial.make(tmp_path, **settings)
    made = list(dict.fromkeys(record["ask"] for record in trial.run().results["sums"]))
    # Of fewer rows than it is wide a lift does not compete; of 5 columns beside 6, one of the two is left out or none.
    left_out = set(PLAIN.all) if takes_lift(made) else set()
    if trial.agreement.wide is not None and "competing_width" not in settings:
        left_out = set(tried_kinds(trial.agreement))
    expected = {
        (site, kind.name): [kind.length(trial.agreement)] * count
        for kind, count in sums_of(trial.agreement).items()
        for site in FOUR
        if kind not in left_out
    }
    assert given == expected
    assert made == [kind.name for kind in sums_of(trial.agreement) if kind.is_kept and kind not in left_out]


def test_what_can_go_wrong_in_a_row() -> None:
    assert len(KINDS) == len(TABLE)
    for kind in TABLE:
        assert set(kind.needs) <= KINDS.keys()
        assert all(TABLE.index(KINDS[name]) < TABLE.index(kind) for name in kind.needs)
        assert kind.is_kept or kind.shared_as  # what is neither kept nor shared is for nobody
