"""Numbers, sizes and durations as people read them. What is missing is a dash, and never NaN."""

from __future__ import annotations

import math

NOTHING = "–"


def number(value: object) -> float | None:
    """The value as a finite number, or None."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        return None
    return float(value)


def percent(value: float | None) -> str:
    """0.7062 as 70.6%."""
    return NOTHING if value is None else f"{100 * value:.1f}%"


def points(value: float | None) -> str:
    """A difference of two accuracies in percentage points, with its sign: +9.4, −2.1, 0.0."""
    if value is None:
        return NOTHING
    text = f"{round(100 * abs(value), 6):.1f}"  # a difference of means and a mean of differences print alike
    return text if float(text) == 0 else ("+" if value > 0 else "−") + text


def weight(value: float | None) -> str:
    """An α or a β to three digits."""
    if value is None:
        return NOTHING
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


def decimal(value: float | None) -> str:
    """A share as 0.71."""
    return NOTHING if value is None else f"{value:.2f}"


def chance(value: float | None) -> str:
    """A p-value: 0.03, <0.001."""
    if value is None:
        return NOTHING
    return "<0.001" if value < 0.001 else f"{value:.3f}" if value < 0.01 else f"{value:.2f}"


def whole(value: float | None) -> str:
    """A count with commas."""
    return NOTHING if value is None else f"{value:,.0f}"


def size(value: float | None) -> str:
    """Bytes as 6.6 MB: thousands, not 1024s."""
    if value is None:
        return NOTHING
    for unit, power in (("TB", 1e12), ("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if value >= power:
            return f"{value / power:.1f} {unit}"
    return f"{value:,.0f} bytes" if value else "nothing"


def duration(value: float | None) -> str:
    """Seconds as 0.04 s, 3.2 s, 2 min 5 s or 1 h 12 min."""
    if value is None:
        return NOTHING
    if value < 60:
        return f"{value:.1f} s" if value >= 1 else f"{value:.2g} s"
    minutes, seconds = divmod(round(value), 60)
    if minutes < 60:
        return f"{minutes} min {seconds} s"
    return f"{minutes // 60} h {minutes % 60} min"


def count(value: int, one: str, many: str | None = None) -> str:
    """`1 client`, `1,000 clients`."""
    return f"{value:,} {one if value == 1 else many or one + 's'}"


def listed(parts: list[str]) -> str:
    """`a`, `a and b`, `a, b and c`."""
    return parts[0] if len(parts) == 1 else f"{', '.join(parts[:-1])} and {parts[-1]}" if parts else ""
