"""Which way of showing a run fits where it is shown."""

from __future__ import annotations

from typing import Literal

from rich.console import Console

from matinee.training.show.live import LiveView
from matinee.training.show.plain import PlainLines
from matinee.training.show.progress import Progress, Silent


def show_on(
    console: Console, name: str = "train", how: Literal["auto", "plain", "none"] = "auto"
) -> Progress:
    """auto: a live view on a terminal, else plain lines."""
    if how == "none":
        return Silent()
    live = how == "auto" and console.is_terminal and not console.is_dumb_terminal
    return LiveView(console, name) if live else PlainLines(console, name)
