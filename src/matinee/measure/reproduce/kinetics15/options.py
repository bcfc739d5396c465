"""How large the reproduction of "Training Kinetics in 15 minutes" is."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from matinee.errors import ConfigError


@dataclass(frozen=True)
class Options:
    """Training Kinetics in 15 minutes (arXiv 1910.00932): what a 2-D network with temporal shift
    saves against 3-D ones, and how far training scales.

    Four parts: what a clip costs and how many are trained a second, of TSM, I3D 3×3×3 and 3×1×1 on
    one ResNet-50 (and TSN, TSM without its shift: the bound); real ranks of small networks on this
    machine; what the planner predicts for Summit's GPUs; and accuracy against the number of ranks,
    simulated by accumulation on the demo's moving shapes, with the learning rate growing with the
    batch and warming up, until it breaks.
    """

    out: Path = Path("reproduced/kinetics15")
    """Folder of the page, its JSON and its plots."""
    quick: bool = False
    """About a minute and a half on two quiet cores: clips of 112², one turn, two ranks at most, two
    simulated worlds, one seed."""
    size: int | None = None
    """Pixels of a clip each way, of the speeds; 224, or 112 with --quick."""
    batch: int = 1
    """Clips of a step, of the speeds."""
    rounds: int | None = None
    """Turns of each network that count; 3, or 1 with --quick."""
    ranks: tuple[int, ...] | None = None
    """Real ranks that train; 1 2 4, or 1 2 with --quick."""
    worlds: tuple[int, ...] | None = None
    """Simulated ranks; 1 4 8 16 32, or 1 32 with --quick."""
    seeds: int | None = None
    """Runs for each of them; 2, or 1 with --quick."""
    epochs: int | None = None
    """Of each run; 16, or 12 with --quick."""

    def __post_init__(self) -> None:
        for name in ("size", "rounds", "seeds", "epochs"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ConfigError(f"--{name} {value}: at least 1")
        if self.batch < 1:
            raise ConfigError(f"--batch {self.batch}: at least 1")
        if self.size is not None and self.size < 32:
            raise ConfigError(f"--size {self.size}: at least 32 pixels")
        for name in ("ranks", "worlds"):
            given = getattr(self, name)
            if given is not None and (not given or min(given) < 1 or len(set(given)) < len(given)):
                listed = " ".join(map(str, given))
                raise ConfigError(f"--{name} {listed}: different numbers, each at least 1")

    @property
    def scale(self) -> Scale:
        """The sizes, with what was left open filled in."""
        quick = self.quick
        return Scale(
            size=self.size or (112 if quick else 224),
            batch=self.batch,
            rounds=self.rounds or (1 if quick else 3),
            ranks=tuple(sorted({1, *(self.ranks or ((1, 2) if quick else (1, 2, 4)))})),
            turns=2 if quick else 4,
            worlds=tuple(sorted({1, *(self.worlds or ((1, 32) if quick else (1, 4, 8, 16, 32)))})),
            seeds=self.seeds or (1 if quick else 2),
            epochs=self.epochs or (12 if quick else 16),
            videos=8,
        )


@dataclass(frozen=True)
class Scale:
    """Sizes of a run. `turns` of the real ranks; `videos` to train on, half as many to test."""

    size: int
    batch: int
    rounds: int
    ranks: tuple[int, ...]
    turns: int
    worlds: tuple[int, ...]
    seeds: int
    epochs: int
    videos: int
