"""Numbers as a page writes them."""

from __future__ import annotations

ABSENT = "–"


def percent(part: float | None) -> str:
    return ABSENT if part is None else f"{100 * part:.1f} %"


def rate(value: float | None) -> str:
    return ABSENT if value is None else f"{value:,.1f}" if value < 100 else f"{value:,.0f}"


def duration(value: float) -> str:
    """3.42 s, 65.1 s, 12 min 05 s, 3 h 02 min."""
    if value < 120:
        return f"{value:.2f} s" if value < 10 else f"{value:.1f} s"
    minutes, rest = divmod(round(value), 60)
    if minutes < 120:
        return f"{minutes} min {rest:02d} s"
    return f"{minutes // 60} h {minutes % 60:02d} min"
