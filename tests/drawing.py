"""How many problems a test draws."""

from __future__ import annotations

from hypothesis import settings

#: Of so many problems of the day, `make test` draws one; `make test-all` draws all of them.
ONE_OF = 3


def one_of() -> int:
    """Of so many problems this run of the tests draws one."""
    return ONE_OF if settings.get_current_profile_name() == "quick" else 1


def examples(number: int) -> settings:
    """For a test with another number of problems than the profile's."""
    return settings(max_examples=max(2, number // one_of()))
