"""`matinee demo`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import tyro

from matinee.cli.common import counting, err, out, parse
from matinee.demo.pretraining import run_pretraining_demo
from matinee.demo.retrieval import run_retrieval_demo
from matinee.demo.run import run_demo
from matinee.demo.view import DemoView
from matinee.training.show.progress import Progress
from matinee.training.show.terminal import show_on


@dataclass(frozen=True)
class DemoCommand:
    """Write videos, pack them, train, evaluate, report: the whole, small.

    Everything lands in one folder; nothing needs the network. Minutes on two cores.
    """

    what: Annotated[Literal["motion", "retrieval", "pretraining"], tyro.conf.Positional] = "motion"
    """motion: with and without temporal shift; retrieval: captions find clips (needs the extra
    [text]); pretraining: masked pretraining against none, with a tenth of the labels, three seeds
    (the longest)."""
    out: Path = Path("demo")
    """Folder for all of it; an earlier demo of the same kind there is replaced."""
    seed: int = 0
    """Of the videos, the initial weights and the order; of pretraining, the first of three."""


class TerminalView(DemoView):
    def say(self, text: str) -> None:
        out.print(text)

    def counting(self, name: str, unit: str) -> AbstractContextManager[Callable[..., None]]:
        return counting(f"   {name}", unit)

    def training(self, name: str) -> Progress:
        return show_on(err, f"   {name}")


def main(args: Sequence[str]) -> int:
    command = parse(DemoCommand, args, "demo")
    view, folder, seed = TerminalView(), command.out, command.seed
    match command.what:
        case "motion":
            found = run_demo(folder, view, seed=seed)
            said = (
                f"with temporal shift {found['tsm_top1']:.3f} top-1, without "
                f"{found['tsn_top1']:.3f} (chance {found['chance']:g})"
            )
        case "retrieval":
            found = run_retrieval_demo(folder, view, seed=seed)
            said = (
                f"captions never seen find their clip first in {found['t2v_r1']:.3f} of cases, "
                f"among {found['candidates']} (chance {found['chance']:.3f})"
            )
        case "pretraining":
            found = run_pretraining_demo(folder, view, seeds=range(seed, seed + 3))
            said = (
                f"top-1 with pretraining {found['pretrained_mean']:.3f} ± "
                f"{found['pretrained_spread']:.3f}, without {found['scratch_mean']:.3f} ± "
                f"{found['scratch_spread']:.3f} (three seeds, chance {found['chance']:g})"
            )
    out.print(
        f"done in {found['seconds']:.0f} s: {said}. Open {folder}/report.html; next, your own "
        "clips: matinee pack CLIPS --out my.pack"
    )
    return 0
