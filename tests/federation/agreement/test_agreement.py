"""The agreement: a round trip for any values, a digest of the values alone, and every wrong field by name."""

from __future__ import annotations

import tempfile
import tomllib
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fedhip.core.exact.columns import Survey
from fedhip.core.exact.fixedpoint import GridStatistics
from fedhip.data import Window
from fedhip.errors import GridOverflowError
from fedhip.features.lifts.kinds import LANDMARKS
from fedhip.features.reference import BackboneReference
from fedhip.federation.agreement.agreement import (
    COLUMNS,
    HEADS,
    LIFTS,
    PRIORS,
    Agreement,
)
from fedhip.federation.agreement.backbone import backbone_reference
from fedhip.federation.agreement.limits import least_threshold, rows_that_fit
from fedhip.federation.agreement.names import same_class
from fedhip.federation.errors import (
    FederationError,
    SetupError,
)
from fedhip.federation.sums.table import sums_follow
from fedhip.utils.candidates import CANDIDATES
from fedhip.utils.toml import write_toml

BACKBONE = BackboneReference("fedhip-vit", "ab" * 32, "float32", pooling="mean")
GOOD: dict[str, Any] = {
    "name": "study",
    "sites": ("a", "b", "c", "d"),
    "classes": ("cat", "dog", "Ärger"),
    "width": 1280,
    "backbone": BACKBONE,
    "encoder_digest": "0f" * 32,
    "fraction_bits": 32,
    "quorum": 3,
    "threshold": 3,
    "max_rows": 100_000,
}
AGREEMENT = Agreement(**GOOD)
#: What a file of before there was a choice means.
OLD = replace(AGREEMENT, columns="plain", standardize=False, intercept=False)

class_names = st.lists(
    st.text(st.characters(categories=["L", "M", "N", "P", "S"]), min_size=1, max_size=9).filter(str.isprintable),
    min_size=2,
    max_size=5,
    unique_by=same_class,
)


NAMES = tuple(map("+".join, CANDIDATES))
chosen_among = st.sets(st.sampled_from(NAMES)).map(lambda some: tuple(n for n in NAMES if n in {*some, "global"}))


@st.composite
def agreements(draw: st.DrawFn) -> Agreement:
    sites = draw(st.integers(2, 9))
    secure = draw(st.booleans())
    dishonest = draw(st.none() | st.integers(0, sites - 1)) if secure else None
    threshold = draw(st.integers(least_threshold(sites, dishonest) if secure else 1, sites))
    bits, largest = draw(st.integers(0, 32)), draw(st.floats(1e-300, 16.0))
    windows = st.none() | st.builds(Window, st.floats(-1e6, 0), st.integers(1, 65535))
    named = st.builds(BackboneReference, st.just("x y"), st.none() | st.text("ab"), st.just("bfloat16"), window=windows)
    backbone = draw(st.none() | named)
    head: Any = draw(st.sampled_from(HEADS))
    alpha: Any = "loo" if head == "lda" else draw(st.just("loo") | st.floats(0, 1e30))
    beta: Any = (
        draw(st.sampled_from(["auto", "gcv"]) | st.floats(0, 1e30) | st.integers(0, 9))
        if head in ("ridge", "auto")
        else "auto"
    )
    lift: Any = draw(st.sampled_from(LIFTS))
    lifted: Any = {"lift": lift}
    if lift != "none":
        lifted |= {"lift_width": draw(st.integers(1, 5000)), "lift_seed": draw(st.integers(0, 2**63 - 1))}
    if lift not in ("none", "relu"):
        lifted["lift_bandwidth"] = draw(st.floats(1e-3, 1e3))
    width, standardize, intercept = draw(st.integers(1, 5000)), draw(st.booleans()), draw(st.booleans())
    units: Any = {"columns": draw(st.sampled_from([c for c in COLUMNS if c != "sum" or lift not in LANDMARKS]))}
    if units["columns"] == "given":
        width = draw(st.integers(1, 9))
        offsets = (
            st.floats(-1e19, 1e19) | st.integers(-9, 9) if standardize or intercept else st.sampled_from([0, -0.0])
        )
        units["column_offsets"] = tuple(draw(st.lists(offsets, min_size=width, max_size=width)))
        units["column_exponents"] = tuple(draw(st.lists(st.integers(-200, 200), min_size=width, max_size=width)))
    return Agreement(
        **lifted,
        **units,
        standardize=standardize,
        intercept=intercept,
        name="study-1.2_x",
        sites=tuple(f"s{i}" for i in range(sites)),
        classes=tuple(draw(class_names)),
        width=width,
        backbone=backbone,
        encoder_digest=None if backbone is None else draw(st.none() | st.just("0" * 64)),
        largest_feature=largest,
        head=head,
        candidates=draw(chosen_among) if head == "auto" else None,
        gradient_rounds=draw(st.none() | st.integers(1, 100)) if head == "logistic" else None,
        prior=draw(st.sampled_from(PRIORS)),
        alpha=alpha,
        beta=beta,
        seed=draw(st.integers(0, 2**63 - 1)),
        fraction_bits=bits,
        only_local_classes=draw(st.booleans()),
        secure_sum=secure,
        quorum=draw(st.integers(max(threshold, 2 if secure else 1), sites)),
        threshold=threshold,
        dishonest_sites=dishonest,
        deadline=draw(st.floats(0.001, 1e6)),
        max_rows=draw(st.integers(1, 100_000)),
    )


@given(agreements())
def test_what_is_written_is_read(agreement: Agreement) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "federation.toml")
        path.write_text(agreement.to_text(), encoding="utf-8", newline="")
        again = Agreement.read(path)
    assert again == agreement
    assert again.digest() == agreement.digest()


texts = st.text(st.characters(exclude_categories=["Cs"]))
values = st.one_of(
    texts, st.integers(-(2**63), 2**63 - 1), st.floats(allow_nan=False), st.booleans(), st.lists(texts, max_size=3)
)
tables = st.recursive(
    st.dictionaries(texts, values, max_size=3), lambda inner: st.dictionaries(texts, values | inner, max_size=3)
)


@given(tables, texts)
def test_any_nested_tables_are_what_tomllib_reads(content: dict[str, Any], heading: str) -> None:
    assert tomllib.loads(write_toml(content, heading)) == content


def test_the_digest_is_of_the_values_and_not_of_the_file(tmp_path: Path) -> None:
    lines = AGREEMENT.to_text().splitlines()
    start = lines.index("[round]")
    shuffled = ["[round]", *reversed(lines[start + 1 :]), "# a comment", *lines[:start]]
    text = "\n".join(shuffled).replace("deadline = 600.0", "deadline = 600").replace("16.0", "1.6e1")
    text = text.replace('sites = ["a", "b", "c", "d"]', 'sites = [ "d",\n"c", "b", "a" ]')
    assert text.count("e1") >= 1
    (tmp_path / "f.toml").write_text(text)
    assert Agreement.read(tmp_path / "f.toml").digest() == AGREEMENT.digest()
    # Fixed: a site of another version must find the same.
    assert AGREEMENT.digest() == "1dfc3872ea777c39b06e91f99686ee90c430c383307e15cb093f32897e203ebb"
    assert OLD.digest() == "a694fee666d09f8c51790ea0da1956bc3dfe358e81cb5781012ac2328b97cdcf"


#: As the version before wrote it.
OLD_FILE = """\
[federation]
schema = 1
name = "study"
sites = ["a", "b", "c", "d"]

[classes]
names = ["cat", "dog", "Ärger"]

[features]
width = 1280
largest_feature = 16.0
lift = "none"
encoder_digest = "0f0f0f0f0f0f0f0f0f0f0f0f0f0f0f0f0f0f0f0f0f0f0f0f0f0f0f0f0f0f0f0f"

[features.backbone]
name = "fedhip-vit"
identity = "abababababababababababababababababababababababababababababababab"
precision = "float32"
pooling = "mean"
mask_ratio = 0.0
mask_seed = 0

[round]
alpha = "loo"
beta = "auto"
seed = 0
fraction_bits = 32
only_local_classes = false
secure_sum = true
quorum = 3
threshold = 3
deadline = 600.0
max_rows = 100000
"""


def test_a_file_of_before_there_was_a_choice_means_what_it_meant(tmp_path: Path) -> None:
    path = tmp_path / "federation.toml"
    path.write_text(OLD_FILE, encoding="utf-8")
    read = Agreement.read(path)
    assert (read.columns, read.standardize, read.intercept) == ("plain", False, False)
    assert read == OLD
    assert read.digest() == "a694fee666d09f8c51790ea0da1956bc3dfe358e81cb5781012ac2328b97cdcf"
    assert tomllib.loads(read.to_text()) == tomllib.loads(OLD_FILE)
    assert not read.surveys_columns
    lifted = {"lift": "nystroem", "lift_width": 9, "lift_seed": 0, "lift_bandwidth": 1.0}
    other = replace(OLD, head="logistic", prior="client", **lifted)  # type: ignore[arg-type]
    assert other.digest() == "75df27d0c4b2872935254ea5999cada4b5300cb8381ed5959ba330c9d0f392aa"


def test_what_is_agreed_on_columns_is_written(tmp_path: Path) -> None:
    path = tmp_path / "federation.toml"
    path.write_text(AGREEMENT.to_text(), encoding="utf-8")
    assert tomllib.loads(AGREEMENT.to_text())["features"]["columns"] == "sum"
    assert {"standardize", "intercept"} <= tomllib.loads(AGREEMENT.to_text())["round"].keys()
    assert (AGREEMENT.surveys_columns, AGREEMENT.chooses_beta, sums_follow(AGREEMENT)) == (True, True, True)
    one = replace(AGREEMENT, columns="plain", beta="gcv")
    assert (one.surveys_columns, one.chooses_beta, sums_follow(one)) == (False, False, False)
    assert not replace(AGREEMENT, head="lda").chooses_beta


GIVEN: dict[str, Any] = {"columns": "given", "width": 3, "column_offsets": (0, 1.5, -2), "column_exponents": (0, -3, 9)}


def test_units_of_columns_are_digested_by_their_values() -> None:
    given_units = replace(AGREEMENT, **GIVEN)
    as_floats = replace(given_units, column_offsets=(-0.0, 1.5, -2.0))
    assert as_floats == given_units
    assert as_floats.digest() == given_units.digest()
    assert replace(given_units, column_offsets=(0.0, 1.5, -3.0)).digest() != given_units.digest()
    assert replace(given_units, column_exponents=(0, -3, 8)).digest() != given_units.digest()


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"columns": "some"}, "columns is 'some'; give sum, given or plain"),
        ({"columns": ["sum"]}, "columns is"),
        ({"columns": "plain"}, "columns is 'plain', and column_offsets is given; it belongs to columns = 'given'"),
        ({"column_exponents": None}, "column_exponents is missing; it belongs to columns = 'given'"),
        ({"column_offsets": (0.0, 1.0)}, "column_offsets has 2 numbers, and features are 3 wide; give one for each"),
        ({"column_exponents": (0,) * 4}, "column_exponents has 4 numbers, and features are 3 wide"),
        ({"column_offsets": 5}, "column_offsets is 5, and features are 3 wide"),
        ({"column_offsets": "abc"}, "column_offsets is 'abc'"),
        ({"column_offsets": (0.0, float("nan"), 0.0)}, "a number of column_offsets is nan; give a finite number"),
        ({"column_offsets": (0.0, float("-inf"), 0.0)}, "a number of column_offsets is -inf"),
        ({"column_offsets": (0.0, True, 0.0)}, "a number of column_offsets is True"),
        ({"column_offsets": (0.0, "1", 0.0)}, "a number of column_offsets is '1'"),
        ({"column_offsets": (0.0, 10**400, 0.0)}, "a number of column_offsets is 1000"),
        ({"column_exponents": (0, 1.0, 0)}, "a number of column_exponents is 1.0; give a whole number from -200 to"),
        ({"column_exponents": (0, 201, 0)}, "a number of column_exponents is 201"),
        ({"standardize": False, "intercept": False}, "column_offsets are not all 0, and the ridge has no intercept"),
        ({"standardize": 1}, "standardize is 1; give true or false"),
        ({"intercept": "no"}, "intercept is 'no'; give true or false"),
        (
            {"columns": "sum", "column_offsets": None, "column_exponents": None, "lift": "nystroem", "lift_width": 9,
             "lift_seed": 0, "lift_bandwidth": 1.0},
            "the first sum of the lift 'nystroem' is of products",
        ),
    ],
)  # fmt: skip
def test_units_of_columns_that_are_none(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(SetupError) as error:
        replace(AGREEMENT, **{**GIVEN, **fields})
    assert message in str(error.value)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("column_offsets = [0.0, 1.5, -2.0]", "column_offsets = 7", "column_offsets is 7"),
        ("column_offsets = [0.0, 1.5, -2.0]", "column_offsets = [nan, 0.0, 0.0]", "column_offsets is nan"),
        ("column_exponents = [0, -3, 9]", "column_exponents = [0, -3]", "column_exponents has 2 numbers"),
        ("column_exponents = [0, -3, 9]", "column_exponents = [0, -3, 0.5]", "column_exponents is 0.5"),
        ('columns = "given"\n', "", "columns is 'plain', and column_offsets is given"),
    ],
)
def test_damaged_units_are_refused_by_name(tmp_path: Path, old: str, new: str, message: str) -> None:
    path, text = tmp_path / "federation.toml", replace(AGREEMENT, **GIVEN).to_text()
    assert old in text
    path.write_text(text.replace(old, new, 1), encoding="utf-8")
    with pytest.raises(SetupError) as error:
        Agreement.read(path)
    assert message in str(error.value)
    assert str(path) in str(error.value)


OTHERS: dict[str, Any] = {
    "name": "study2",
    "sites": ("a", "b", "c", "e"),
    "classes": ("dog", "cat", "Ärger"),
    "width": 1281,
    "backbone": replace(BACKBONE, identity="cd" * 32),
    "encoder_digest": "1f" * 32,
    "columns": "plain",
    "standardize": False,
    "intercept": False,
    "largest_feature": 15.0,
    "head": "lda",
    "prior": "client",
    "alpha": 0.5,
    "beta": 1.0,
    "seed": 1,
    "fraction_bits": 30,
    "only_local_classes": True,
    "secure_sum": False,
    "quorum": 4,
    "deadline": 601.0,
    "max_rows": 99_999,
}


def test_another_window_is_another_agreement() -> None:
    """And none is the agreement that it was before there were windows."""
    windows = (None, Window(0, 4095), Window(0, 4094), Window(1, 4095))
    found = [replace(AGREEMENT, backbone=replace(BACKBONE, window=window)).digest() for window in windows]
    assert found[0] == AGREEMENT.digest()
    assert len(set(found)) == 4


@pytest.mark.parametrize("field", [*OTHERS, "threshold"])
def test_any_value_changes_the_digest(field: str) -> None:
    four = replace(AGREEMENT, quorum=4)
    other = replace(four, threshold=4) if field == "threshold" else replace(AGREEMENT, **{field: OTHERS[field]})
    assert other.digest() != (four if field == "threshold" else AGREEMENT).digest()


def test_an_agreement_on_a_ridge_is_what_it_was_before_there_were_other_heads() -> None:
    assert replace(AGREEMENT, head="ridge").digest() == AGREEMENT.digest()
    assert "head" not in AGREEMENT.to_text()
    assert "prior" not in AGREEMENT.to_text()
    assert "gradient_rounds" not in replace(AGREEMENT, head="lda").to_text()


def test_candidates_are_agreed_on_and_digested() -> None:
    every, fewer = (replace(AGREEMENT, head="auto", candidates=names) for names in (NAMES, NAMES[:3]))
    assert 'candidates = ["ridge", "global", "lda"' in every.to_text()
    assert every.digest() != fewer.digest()
    assert every.methods == ("local", "global", "fedhip", "auto")


def test_the_number_of_gradients_is_agreed_on_and_digested() -> None:
    usual, more = (replace(AGREEMENT, head="logistic", gradient_rounds=number) for number in (None, 9))
    assert usual.gradient_rounds == 5
    assert "gradient_rounds = 5" in usual.to_text()
    assert usual.digest() == replace(usual, gradient_rounds=5).digest() != more.digest()


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"head": "svm"}, "head is 'svm'; give ridge, lda, logistic or auto"),
        ({"head": ["lda"]}, "head is"),
        ({"prior": "site"}, "prior is 'site'; give none or client"),
        ({"prior": True}, "prior is True; give none or client"),
        ({"gradient_rounds": 5}, "the head is 'ridge', which has no gradients"),
        ({"head": "lda", "gradient_rounds": 5}, "the head is 'lda', which has no gradients"),
        ({"head": "logistic", "gradient_rounds": 0}, "gradient_rounds is 0; give a whole number from 1 to 100"),
        ({"head": "logistic", "gradient_rounds": 2.0}, "gradient_rounds is 2.0"),
        ({"head": "lda", "alpha": 1.0}, "alpha is 1.0, and the head 'lda' has no α"),
        ({"head": "logistic", "beta": 1.0}, "beta is 1.0, and the head 'logistic' has no β"),
        ({"candidates": NAMES}, "candidates are given, and the head is 'ridge', which chooses nothing"),
        ({"head": "auto"}, "candidates is None, and the head 'auto' chooses among some"),
        ({"head": "auto", "candidates": ()}, "the head 'auto' chooses among some"),
        ({"head": "auto", "candidates": "global"}, "candidates is 'global'"),
        ({"head": "auto", "candidates": ("global", "svm")}, "'svm', which this fedhip does not know"),
        ({"head": "auto", "candidates": ("global", "lda+global")}, "'lda\\+global', which this fedhip does not know"),
        ({"head": "auto", "candidates": ("lda", "global")}, "not from the simplest"),
        ({"head": "auto", "candidates": ("global", "global")}, "a name twice"),
        ({"head": "auto", "candidates": ("ridge", "alone")}, "none that a site without rows could have"),
        ({"head": "auto", "candidates": ("global", 3)}, "candidates has 3"),
    ],
)
def test_heads_that_are_none_and_what_does_not_belong_to_one(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(SetupError, match=message):
        replace(AGREEMENT, **fields)


def test_a_path_of_weights_is_left_out() -> None:
    """It means nothing elsewhere, and says how somebody's disk is laid out."""
    reference = backbone_reference(replace(BACKBONE, weights="/home/anna/encoder.safetensors").to_dict())
    assert reference == BACKBONE
    assert backbone_reference(BackboneReference("pixels", None, "float32").to_dict()).identity is None


WRONG: list[tuple[str, Any, str]] = [
    ("name", "a b", "name is 'a b'"),
    ("name", "", "name is ''"),
    ("name", "x" * 65, "name is 'xxx"),
    ("sites", ("a",), "at least two"),
    ("sites", ("a", "b", "a", "c"), "'a' is there twice"),
    ("sites", ("a", "B", "b", "c"), "'B' and 'b' differ only in case"),
    ("sites", ("a", "b", "B", "c"), "'b' and 'B' differ only in case"),
    ("sites", ("a", "b/..", "c", "d"), "cannot be called 'b/..'"),
    ("sites", ("a", "é", "c", "d"), "cannot be called 'é'"),
    ("sites", ("a", "b\n", "c", "d"), "cannot be called 'b\\n'"),
    ("sites", ("a", "-b", "c", "d"), "cannot be called '-b'"),
    ("sites", ("a", 3, "c", "d"), "cannot be called 3"),
    ("classes", ("cat",), "give at least two"),
    ("classes", ("cat", ""), "cannot be called ''"),
    ("classes", ("cat", " dog"), "cannot be called ' dog'"),
    ("classes", ("cat", "d\x00g"), "cannot be called 'd\\x00g'"),
    ("classes", ("cat", "d\udcffg"), "cannot be called"),
    ("classes", ("cat", "dog", "cat"), "'cat' is there twice"),
    ("classes", ("caf\u00e9", "cafe\u0301"), "is there twice"),
    ("classes", ("cat", 7), "cannot be called 7"),
    ("width", 0, "width is 0; give a whole number from 1"),
    ("width", 3.0, "width is 3.0"),
    ("width", True, "width is True"),
    ("backbone", {"name": "x"}, "backbone is"),
    ("encoder_digest", "abc", "encoder_digest is 'abc'; give a SHA-256"),
    ("encoder_digest", int("1" * 64), "encoder_digest is 111"),
    ("encoder_digest", "0F" * 32, "encoder_digest is"),
    ("largest_feature", 0.0, "largest_feature is 0.0; give a finite number above 0"),
    ("largest_feature", float("nan"), "largest_feature is nan"),
    ("largest_feature", float("inf"), "largest_feature is inf"),
    ("largest_feature", -1, "largest_feature is -1"),
    ("largest_feature", 10**400, "largest_feature is"),
    ("lift", "rff", "lift is 'rff'; give none, relu, fourier, nystroem or nystroem-axes"),
    ("alpha", -0.1, "alpha is -0.1; give 'loo' or a finite number of at least 0"),
    ("alpha", "auto", "alpha is 'auto'; give 'loo' or"),
    ("alpha", True, "alpha is True"),
    ("beta", "loo", "beta is 'loo'; give 'auto' or 'gcv' or a finite number of at least 0"),
    ("beta", float("nan"), "beta is nan"),
    ("seed", -1, "seed is -1; give a whole number of at least 0"),
    ("seed", 2**63, "seed is 9223372036854775808"),
    ("fraction_bits", 63, "fraction_bits is 63; give a whole number from 0 to 62"),
    ("only_local_classes", 1, "only_local_classes is 1; give true or false"),
    ("secure_sum", "yes", "secure_sum is 'yes'; give true or false"),
    ("quorum", 5, "quorum is 5, and there are 4 sites; give a whole number from 2 to 4"),
    ("quorum", 1, "quorum is 1"),
    ("quorum", 2, "quorum is 2: with fewer than 3 of 4 sites a dishonest server with a few of them could read another"),
    ("dishonest_sites", 2, "quorum is 3: with fewer than 4 of 4 sites a dishonest server with 2 of them"),
    ("dishonest_sites", 4, "dishonest_sites is 4, and there are 4 sites; give a whole number from 0 to 3"),
    ("encoder_size", 0, "encoder_size is 0; give a whole number from 1 to 17179869184"),
    ("dishonest_sites", True, "dishonest_sites is True"),
    ("threshold", 4, "threshold is 4, and the quorum is 3 of 4 sites; give a whole number from 3 to 3"),
    ("threshold", 2, "threshold is 2"),
    ("deadline", 0, "deadline is 0; give a finite number above 0"),
    ("max_rows", 0, "max_rows is 0; give a whole number of at least 1"),
]


@pytest.mark.parametrize(("field", "value", "message"), WRONG)
def test_a_wrong_field_is_named_with_value_and_remedy(field: str, value: Any, message: str) -> None:
    with pytest.raises(FederationError) as error:
        replace(AGREEMENT, **{field: value})
    assert message in str(error.value)
    assert "; " in str(error.value)
    assert len(str(error.value)) < 300
    str(error.value).encode()


def test_an_encoder_needs_its_backbone() -> None:
    with pytest.raises(SetupError, match="without a backbone"):
        replace(AGREEMENT, backbone=None)


def test_without_masks_any_quorum_will_do() -> None:
    plain = replace(AGREEMENT, secure_sum=False, quorum=1, threshold=1)
    assert "the server sees the statistics of each site" in plain.warnings[0]
    with pytest.raises(SetupError, match="threshold is 2, and the quorum is 1"):
        replace(AGREEMENT, secure_sum=False, quorum=1, threshold=2)


def test_two_sites_are_warned() -> None:
    assert AGREEMENT.warnings == ()
    two = replace(AGREEMENT, sites=("a", "b"), quorum=2, threshold=2)
    assert "each can infer the other's" in two.warnings[0]
    three = replace(AGREEMENT, sites=("a", "b", "c"), quorum=2, threshold=2, dishonest_sites=0)
    assert "quorum is 2 of 3" in three.warnings[0]
    assert "single out rows" in replace(AGREEMENT, head="logistic").warnings[0]
    assert replace(AGREEMENT, head="lda").warnings == ()


@pytest.mark.parametrize(("sites", "threshold"), [(2, 2), (3, 3), (4, 3), (8, 6), (50, 34)])
def test_the_usual_threshold_is_more_than_two_thirds(sites: int, threshold: int) -> None:
    assert least_threshold(sites) == threshold
    assert 3 * threshold > 2 * sites >= 3 * (threshold - 1)


@pytest.mark.parametrize("sites", range(2, 12))
def test_the_least_threshold_against_so_many(sites: int) -> None:
    for dishonest in range(sites):
        least = least_threshold(sites, dishonest)
        assert 2 * least > sites + dishonest >= 2 * (least - 1)
    assert least_threshold(sites) >= least_threshold(sites, 1)


def test_dishonest_sites_without_masks() -> None:
    with pytest.raises(SetupError, match="there is no secure sum; leave it out"):
        replace(AGREEMENT, secure_sum=False, dishonest_sites=1)


@pytest.mark.parametrize("bits", [0, 1, 7, 28, 31, 32, 40, 41, 61, 62])
@pytest.mark.parametrize("largest", [0.01, 0.9999, 1.0, 3.7, 16.0])
def test_as_many_rows_as_are_said_to_fit_do_fit(bits: int, largest: float) -> None:
    """By the grid itself: a column of `largest` and its class sums, n times one row."""
    room = rows_that_fit(largest, bits)
    try:
        one = GridStatistics.from_data([[largest, -largest]], [0], 1, fraction_bits=bits)
    except GridOverflowError:
        assert room <= 1  # floats keep a little more distance from the limit
        return
    entry = max(int(one.gram.abs().max()), int(one.cross.abs().max()))
    assert room * entry < 2**63
    assert entry <= 1 or (room + 1) * entry >= 2**63


def test_rows_beyond_the_grid_are_refused_with_what_fits() -> None:
    room = rows_that_fit(16.0, 32) // 4
    assert room == 2**21 - 1
    plain = replace(AGREEMENT, columns="plain", max_rows=room)
    with pytest.raises(SetupError, match=rf"max_rows={room} or fraction_bits=31 fits"):
        replace(plain, max_rows=room + 1)
    assert replace(plain, max_rows=room + 1, fraction_bits=31).fraction_bits == 31
    with pytest.raises(SetupError, match=r"; fraction_bits=4 fits"):
        replace(plain, max_rows=100_000, largest_feature=1e6, fraction_bits=62)
    with pytest.raises(SetupError, match="rescale the features"):
        replace(plain, max_rows=100_000, largest_feature=1e30, fraction_bits=62)


def test_a_survey_of_as_many_rows_as_agreed_cannot_wrap() -> None:
    """The largest numbers that a survey of a row can have, as often as the agreement allows."""
    room = (2**33 - 1) // 4
    assert replace(AGREEMENT, max_rows=room).max_rows == room
    with pytest.raises(SetupError, match=f"a survey of 4 sites has room for {room} each"):
        replace(AGREEMENT, max_rows=room + 1)
    largest = max(int(np.abs(Survey.of([[x]]).table).max()) for x in (256.0, 255.9999999999, 65535.99999, -(2.0**63)))
    assert largest == 2**30
    assert 4 * room * largest < 2**63


def test_masked_sums_cannot_wrap_at_the_bound() -> None:
    """The worst data that the agreement allows, summed as under masks, modulo 2^64."""
    rows, sites = 1000, 4
    bits = max(b for b in range(63) if rows_that_fit(16.0, b) // sites >= rows)
    agreement = replace(AGREEMENT, columns="plain", fraction_bits=bits, max_rows=rows)
    site = GridStatistics.from_data(torch.full((rows, 2), 16.0), [0] * rows, 1, fraction_bits=agreement.fraction_bits)
    assert int(site.gram.max()) * sites == int((site.gram * sites).max()) < 2**63


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("quorum = 3\n", "", "[round] quorum is missing"),
        ("quorum", "quorrum", "[round]: there is no 'quorrum'; did you mean 'quorum'?"),
        ("[round]", "[rounds]", "there is no 'rounds'; did you mean 'round'?"),
        ("[classes]", "[[classes]]", "[classes] is"),
        ('names = ["cat", "dog", "Ärger"]', 'names = "cat"', "classes is 'cat'; give a list of names"),
        ("seed = 0", "seed = 1979-05-27", "seed is datetime.date"),
        ("threshold = 3", "threshold = 4", "threshold is 4, and the quorum is 3"),
        ("[classes]", "[classes", "is not a TOML file"),
        ('precision = "float32"', 'precision = "load"', "backbone: precision is 'load'; use one of"),
        ('precision = "float32"', "precision = 32", "backbone: precision is 32; give text"),
        ('precision = "float32"\n', "", "backbone: precision is missing"),
        ("mask_seed", "weights_url", "backbone: there is no 'weights_url'"),
        ("mask_ratio = 0.0", "mask_ratio = -1", "backbone: mask_ratio is -1"),
        ("mask_ratio = 0.0", "window = 5", "backbone: window is 5; give two numbers, [LOW, HIGH]"),
        ("mask_ratio = 0.0", "window = [5]", "backbone: window is [5]; give two numbers"),
        ("mask_ratio = 0.0", "window = [true, 5]", "give two numbers, [LOW, HIGH]"),
        ("mask_ratio = 0.0", "window = [5, 0]", "backbone: a window from 5 to 0 is empty"),
        ("mask_ratio = 0.0", "window = [0, nan]", "backbone: a window from 0 to nan has no end"),
    ],
)
def test_a_damaged_file_is_refused_by_name(tmp_path: Path, old: str, new: str, message: str) -> None:
    path = tmp_path / "federation.toml"
    text = AGREEMENT.to_text()
    assert old in text
    path.write_text(text.replace(old, new, 1), encoding="utf-8")
    with pytest.raises(SetupError) as error:
        Agreement.read(path)
    assert message in str(error.value)
    assert str(path) in str(error.value)


def test_errors_name_the_file(tmp_path: Path) -> None:
    path = tmp_path / "federation.toml"
    for old, new, message in (
        ("schema = 1", "schema = 2", "has schema 2, and this fedhip reads 1"),
        ("schema = 1", "schema = true", "has schema True"),
        ('"dog"', '"cat"', "'cat' is there twice"),
        ('"b"', '"a"', "'a' is there twice"),
    ):
        path.write_text(AGREEMENT.to_text().replace(old, new, 1), encoding="utf-8")
        with pytest.raises(SetupError, match=rf"federation\.toml.*{message}"):
            Agreement.read(path)


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(SetupError, match=r"there is no file .*from the coordinator"):
        Agreement.read(tmp_path / "federation.toml")
    with pytest.raises(SetupError, match="is a folder; give the file in it"):
        Agreement.read(tmp_path)
    for raw in (b"\xff\xfe", b"#" * (9 << 20)):
        (tmp_path / "f.toml").write_bytes(raw)
        with pytest.raises(SetupError, match=r"f\.toml is"):
            Agreement.read(tmp_path / "f.toml")


def test_sites_and_rosters_that_nobody_agreed_on(tmp_path: Path) -> None:
    from fedhip.federation.agreement.credentials import make_site_key
    from fedhip.federation.agreement.roster import Roster

    assert AGREEMENT.require_site("b") == "b"
    with pytest.raises(SetupError, match="no site 'bb'; did you mean 'b'"):
        AGREEMENT.require_site("bb")
    keys = {name: make_site_key(tmp_path / name) for name in "abcde"}
    four = {name: keys[name] for name in "abcd"}
    AGREEMENT.require_roster(Roster("study", four))
    for roster, message in (
        (Roster("other", four), "the federation 'other'"),
        (Roster("study", keys), "a site 'e' that nobody agreed on"),
        (Roster("study", {name: keys[name] for name in "abc"}), "no key of the site 'd'"),
    ):
        with pytest.raises(SetupError, match=message):
            AGREEMENT.require_roster(roster)
