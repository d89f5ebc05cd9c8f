"""The nearest of the known names, or none."""

from __future__ import annotations

import pytest

from fedhip.utils.nearest import did_you_mean, nearest


@pytest.mark.parametrize(
    ("name", "text"),
    [("fedagv", "; did you mean 'fedavg'?"), ("ditoo", "; did you mean 'ditto'?"), ("xyz", "; there are two")],
)
def test_one_is_named(name: str, text: str) -> None:
    assert did_you_mean(name, {"fedavg": 1, "ditto": 2}, "; there are two") == text


def test_nothing_is_said_of_names_that_are_not_alike() -> None:
    assert did_you_mean("xyz", ["fedavg"]) == ""
    assert did_you_mean("fedavg", []) == ""


def test_several_are_listed_the_most_like_first() -> None:
    assert nearest("site-4", ["north", "site-14", "site-40", "site-44", "sites"], 3) == [
        "site-44",
        "site-40",
        "site-14",
    ]
