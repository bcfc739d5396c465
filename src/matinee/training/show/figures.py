"""Numbers as a terminal shows them: as short as they can be read."""

from __future__ import annotations


def figure(value: float) -> str:
    """Four digits: 0.4123, 12.35, 1.235e-05."""
    return f"{value:#.4g}".rstrip(".")


def rate(value: float) -> str:
    """1,234 or, below ten, 3.1."""
    return f"{value:,.0f}" if value >= 10 else f"{value:.1f}"


def duration(seconds: float) -> str:
    """42 s, 3 min 05 s, 2 h 14 min, 3 d 04 h."""
    whole = max(0, round(seconds))
    for size, unit, small, smaller in (
        (86400, "d", 3600, "h"), (3600, "h", 60, "min"), (60, "min", 1, "s")
    ):  # fmt: skip
        if whole >= size:
            return f"{whole // size} {unit} {whole % size // small:02d} {smaller}"
    return f"{whole} s"


def age(seconds: float) -> str:
    """12 s ago, 3 min ago, 2 h ago."""
    parts = duration(seconds).split()
    return f"{parts[0]} {parts[1]} ago"
