"""The site's policy: safe where it is silent, strict where it speaks."""

from __future__ import annotations

import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedhip.federation.agreement.agreement import Agreement
from fedhip.federation.agreement.names import class_positions, same_class
from fedhip.federation.agreement.policy import Policy
from fedhip.federation.errors import PolicyError
from fedhip.federation.status_codes import SiteRefusalError

AGREEMENT = Agreement(
    name="study",
    sites=("a", "b", "c", "d"),
    classes=("benign", "malignant", "caf\u00e9"),
    width=4,
    fraction_bits=32,
    quorum=3,
    threshold=3,
    max_rows=1000,
)
texts = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=8)
mappings = st.lists(st.tuples(texts, texts), max_size=4, unique_by=lambda pair: same_class(pair[0])).map(dict)


values: dict[str, Any] = {
    **{name: st.booleans() for name in ("require_secure_sum", "allow_few_rows", "tell_accuracy", "allow_leavers")},
    **{name: st.integers(2, 99) for name in ("minimum_cohort", "minimum_difference", "smallest_class")},
    "allow_other_sums": st.booleans(),
    "dishonest_sites": st.integers(0, 99),
    "class_names": mappings,
}


@given(st.builds(Policy, **values))
def test_what_is_written_is_read(policy: Policy) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "site.toml")
        path.write_text(policy.to_text(), encoding="utf-8", newline="")
        assert Policy.read(path) == policy


def test_an_empty_file_has_the_safe_values(tmp_path: Path) -> None:
    (tmp_path / "site.toml").write_text("")
    policy = Policy.read(tmp_path / "site.toml")
    assert policy == Policy(
        require_secure_sum=True,
        minimum_cohort=3,
        dishonest_sites=1,
        tell_accuracy=False,
        allow_other_sums=False,
        allow_leavers=False,
        class_names={},
    )


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("require_secure_sums = false", "there is no 'require_secure_sums'; did you mean 'require_secure_sum'?"),
        ("minimum = 2", "there is no 'minimum'; did you mean 'minimum_cohort'?"),
        ('require_secure_sum = "no"', "require_secure_sum is 'no'; give true or false"),
        ("tell_accuracy = 0", "tell_accuracy is 0"),
        ("allow_other_sums = []", "allow_other_sums is []"),
        ("minimum_cohort = 1", "minimum_cohort is 1; give a whole number of at least 2"),
        ("dishonest_sites = -1", "dishonest_sites is -1; give a whole number of at least 0"),
        ("minimum_cohort = true", "minimum_cohort is True"),
        ("minimum_cohort = 3.0", "minimum_cohort is 3.0"),
        ('class_names = "x"', "class_names is 'x'; give a table"),
        ("[class_names]\nx = 1", "maps 'x' to 1; give the agreed name"),
        ('[class_names]\nx = ""', "maps 'x' to ''"),
        ('[class_names]\n"caf\u00e9" = "a"\n"cafe\u0301" = "b"', "twice, in two spellings"),
        ("tell_accuracy = maybe", "is not a TOML file"),
    ],
)
def test_a_wrong_value_is_named(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "site.toml").write_text(text, encoding="utf-8")
    with pytest.raises(PolicyError) as error:
        Policy.read(tmp_path / "site.toml")
    assert message in str(error.value)
    assert "site.toml" in str(error.value)


def test_a_missing_file_is_not_taken_for_an_empty_one(tmp_path: Path) -> None:
    with pytest.raises(PolicyError, match="there is no file"):
        Policy.read(tmp_path / "site.toml")


def test_an_agreement_that_the_site_does_not_permit() -> None:
    Policy().require_agreement(AGREEMENT)
    plain = replace(AGREEMENT, secure_sum=False)
    with pytest.raises(PolicyError, match="secure_sum = false, and this site requires the secure sum"):
        Policy().require_agreement(plain)
    Policy(require_secure_sum=False, minimum_cohort=9).require_agreement(plain)
    with pytest.raises(PolicyError, match="minimum_cohort is 5, and the federation has 4 sites"):
        Policy(minimum_cohort=5).require_agreement(AGREEMENT)
    with pytest.raises(PolicyError, match="maps 'x' to 'bening', which is no agreed class"):
        Policy(class_names={"x": "bening"}).require_agreement(AGREEMENT)


def test_classes_by_the_sites_own_names() -> None:
    policy = Policy(class_names={"gutartig": "benign", "b\u00f6sartig": "malignant", "benign": "malignant"})
    assert class_positions(["malignant", "benign"], AGREEMENT.classes, Policy().class_names) == (1, 0)
    # Two names of the site may be one agreed class, and the site's mapping comes before the agreed names.
    assert class_positions(["gutartig", "benign", "bo\u0308sartig"], AGREEMENT.classes, policy.class_names) == (0, 1, 1)
    assert class_positions(["cafe\u0301"], AGREEMENT.classes, policy.class_names) == (2,)
    with pytest.raises(
        SiteRefusalError, match=r"class 'malign' is none of the 3 agreed ones; did you mean 'malignant'"
    ):
        class_positions(["benign", "malign"], AGREEMENT.classes, Policy().class_names)
    with pytest.raises(SiteRefusalError, match="there are benign, malignant"):
        class_positions(["zzz"], AGREEMENT.classes, Policy().class_names)
