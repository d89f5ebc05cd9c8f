"""How many problems a test draws."""

from __future__ import annotations

from hypothesis import settings

#: Of so many problems of the day, `make test` draws one; `make test-all` draws all of them.
ONE_OF = 3


def examples(number: int) -> settings:
    """For a test with another number of problems than the profile's."""
    quick = settings.get_current_profile_name() == "quick"
    return settings(max_examples=max(2, number // ONE_OF) if quick else number)
