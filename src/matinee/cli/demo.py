"""`matinee demo`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path

from matinee.cli.common import counting, err, out, parse
from matinee.demo.run import run_demo
from matinee.demo.view import DemoView
from matinee.training.progress import Progress, Terminal


@dataclass(frozen=True)
class DemoCommand:
    """Write videos, pack them, train with and without temporal shift, evaluate, report.

    Everything lands in one folder; nothing needs the network. A few minutes on two cores.
    """

    out: Path = Path("demo")
    """Folder for all of it; an earlier demo there is replaced."""
    seed: int = 0
    """Of the videos, the initial weights and the order."""


class TerminalView(DemoView):
    def say(self, text: str) -> None:
        out.print(text)

    def counting(self, name: str, unit: str) -> AbstractContextManager[Callable[..., None]]:
        return counting(f"   {name}", unit)

    def training(self, name: str) -> Progress:
        return Terminal(err, f"   {name}")


def main(args: Sequence[str]) -> int:
    command = parse(DemoCommand, args, "demo")
    result = run_demo(command.out, TerminalView(), seed=command.seed)
    out.print(
        f"done in {result['seconds']:.0f} s: with temporal shift {result['tsm_top1']:.3f} top-1, "
        f"without {result['tsn_top1']:.3f} (chance {result['chance']:g}). "
        f"Open {command.out}/report.html; next, your own clips: "
        "matinee pack CLIPS --out my.pack"
    )
    return 0
