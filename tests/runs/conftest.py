"""What tests of run folders share."""

import pytest


@pytest.fixture(autouse=True)
def draw_reports_only_where_they_are_tested(request: pytest.FixtureRequest) -> None:
    if request.path.parent.name != "report":
        request.getfixturevalue("no_report")
