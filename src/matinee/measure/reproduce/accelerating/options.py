"""How large the reproduction of the review of accelerating training is."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from matinee.errors import ConfigError
from matinee.measure.reproduce.accelerating.sizes import FULL, QUICK, SMALL, Size


@dataclass(frozen=True)
class Options:
    """Gradient accumulation (GA), mixed precision (AMP) and pinned memory (PM), each alone, in
    pairs and together, for ResNet-50, ViT and EfficientNet on CIFAR-10 and CIFAR-100: time, peak
    memory, test accuracy and macro F1 (arXiv 2312.10024).

    By default on a part of the pictures with networks that a CPU trains in half a minute: what the
    levers do to time and memory shows, what networks can learn does not. Give one data set or both;
    what is not given is marked as not run. Finished runs are kept in --out, and the same command
    goes on with those that are missing.

    matinee reproduce accelerating --cifar10 cifar10_png/ --cifar100 cifar100_png/
    """

    cifar10: Path | None = None
    """A folder or archive (.tar, .tar.gz, .tgz) of pictures as train/CLASS/NAME.png and
    test/CLASS/NAME.png, or an image set that matinee pack made of one. The package cifar2png
    writes such folders of both sets; nothing is downloaded here."""
    cifar100: Path | None = None
    """As --cifar10, of the 100 classes."""
    out: Path = Path("reproduced/accelerating")
    """Folder of the page, the JSON, the plots, and the finished runs."""
    networks: tuple[Literal["resnet50", "vit", "efficientnet"], ...] = (
        "resnet50",
        "vit",
        "efficientnet",
    )
    """Which of the three."""
    seeds: int = 2
    """How many runs each cell has (--quick: 1)."""
    epochs: int | None = None
    """Of each run. Default: 3 (--quick: 2, --full: 30, as the paper's code has it)."""
    full: bool = False
    """All pictures, and the networks of the recipes (ResNet-50, ViT-B/4, EfficientNet-B0) at 32²:
    hours on a GPU, weeks on a CPU."""
    quick: bool = False
    """A sixth of the default's pictures and one seed: to try the command."""

    @property
    def size(self) -> Size:
        """As the options say.

        Raises:
            ConfigError: they contradict each other, or name no network.
        """
        if self.full and self.quick:
            raise ConfigError("--full and --quick contradict each other: choose one")
        if not self.networks:
            raise ConfigError("--networks: at least one of resnet50, vit, efficientnet")
        return FULL if self.full else QUICK if self.quick else SMALL
