"""How weights move: settings of optimizer, learning rate, clipping and averages."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields
from typing import Literal

from matinee.errors import ConfigError


@dataclass(frozen=True)
class OptimConfig:
    """How weights move."""

    name: Literal["sgd", "adam", "adamw", "lion", "lamb", "lars", "muon"] = "sgd"
    """adam: decay through the gradient (arXiv 1412.6980); adamw: apart from it (1711.05101); lion:
    2302.06675; lamb, lars: rates by layer for large batches (1904.00962; 1708.03888 with its trust
    coefficient of 0.001, so that lr is rather 1 to 30); muon:
    orthogonal steps of hidden matrices, as long as AdamW's and so with AdamW's rate and decay
    (2502.16982), AdamW for the rest."""
    lr: float = 0.01
    """Peak learning rate."""
    base_batch: int | None = None
    """The batch size that `lr` and `min_lr` are given for: they grow with the batch as `lr_scaling`
    says. None: they stay as they are."""
    lr_scaling: Literal["linear", "sqrt"] = "linear"
    """linear: in proportion to the batch, for SGD (arXiv 1706.02677, §2.1); sqrt: with its square
    root, for Adam's kin (arXiv 2205.10287)."""
    batch_size: int = 16
    """Clips a step (the global batch)."""
    accumulate: int = 1
    """Each rank passes its share of the batch in this many parts, to save memory; the gradient
    stays the same, but for batch statistics and dropout."""
    epochs: int = 50
    warmup_epochs: float = 1.0
    """Linear from 0 to lr."""
    schedule: Literal["cosine", "step", "one-cycle", "constant"] = "cosine"
    """cosine: down to min_lr at the end; step: divided by 10 at each of `drops`; one-cycle: up for
    `rise` of the epochs from lr / 25 and down for the rest, with momentum (or the first beta)
    falling to `base_momentum` and rising against it (arXiv 1708.07120)."""
    min_lr: float = 0.0
    """Of cosine and one-cycle, at the end."""
    rise: float = 0.3
    """Of one-cycle: which part of all epochs the rate rises, instead of a warm-up."""
    base_momentum: float = 0.85
    """Of one-cycle: the momentum (or first beta) at the peak of the rate, where large steps need
    less of it (arXiv 1803.09820, §4.3)."""
    drops: tuple[float, ...] = (0.4, 0.8)
    """Of step, as parts of the epochs (TSM: 20 and 40 of 50)."""
    momentum: float = 0.9
    """Of SGD and LARS (Nesterov off, as in TSM), and of Muon's matrices (Nesterov; 0.95 in
    arXiv 2502.16982)."""
    betas: tuple[float, float] = (0.9, 0.999)
    """Of Adam, AdamW, LAMB and of AdamW beside Muon: how slowly the means of gradients and of their
    squares change. Of Lion: which part of the mean is in the step, and how slowly it changes
    (0.9 and 0.99 in its paper)."""
    weight_decay: float = 1e-4
    """Not on biases, norms, positions and special tokens."""
    layer_decay: float = 1.0
    """ViTs: each block learns at this times the rate of the next one (BEiT, arXiv 2106.08254);
    patches and positions as one block before the first."""
    head_lr: float = 1.0
    """The classifier's learning rate, in multiples of all others' (TSM's code: 5)."""
    clip_norm: float | None = 20.0
    """Largest gradient norm (TSM: 20); None for no limit."""
    clip_value: float | None = None
    """Largest absolute value of a gradient's element, cut before the norm is; None for no limit."""
    ema: float | None = None
    """Evaluate, keep as best and export a moving average of the weights, of which this part stays
    in each step, such as 0.9999; None: the weights themselves."""
    noise_scale: bool = False
    """Log the gradient noise scale: about the batch size beyond which larger ones stop paying
    (arXiv 1812.06162, appendix A), from the first micro-batch of each rank and the whole
    batch; needs two or more on each rank."""

    def __post_init__(self) -> None:
        for setting in fields(self):
            value = getattr(self, setting.name)
            for number in value if isinstance(value, tuple) else (value,):
                if isinstance(number, float) and not math.isfinite(number):
                    flag = f"--optim.{setting.name.replace('_', '-')}"
                    raise ConfigError(f"{flag} {number}: must be a finite number")
        checks = [
            (self.lr > 0, f"--optim.lr {self.lr}: must be positive"),
            (
                self.base_batch is None or self.base_batch >= 1,
                f"--optim.base-batch {self.base_batch}: at least 1, or None",
            ),
            (self.batch_size >= 1, f"--optim.batch-size {self.batch_size}: at least 1"),
            (
                self.accumulate >= 1 and self.batch_size % max(1, self.accumulate) == 0,
                f"--optim.accumulate {self.accumulate} does not divide the batch size "
                f"{self.batch_size}",
            ),
            (self.epochs >= 1, f"--optim.epochs {self.epochs}: at least 1"),
            (self.warmup_epochs >= 0, f"--optim.warmup-epochs {self.warmup_epochs}: 0 or more"),
            (
                0 <= self.min_lr <= self.lr,
                f"--optim.min-lr {self.min_lr}: from 0 to --optim.lr {self.lr}",
            ),
            (
                all(0 < drop < 1 for drop in self.drops),
                f"--optim.drops {self.drops}: parts of the epochs, between 0 and 1",
            ),
            (self.weight_decay >= 0, f"--optim.weight-decay {self.weight_decay}: 0 or more"),
            (0 <= self.momentum < 1, f"--optim.momentum {self.momentum}: in [0, 1)"),
            (
                len(self.betas) == 2 and all(0 <= beta < 1 for beta in self.betas),
                f"--optim.betas {self.betas}: two numbers in [0, 1)",
            ),
            (
                0 <= self.base_momentum < 1,
                f"--optim.base-momentum {self.base_momentum}: in [0, 1)",
            ),
            (
                self.schedule != "one-cycle" or self.base_momentum <= self.usual_momentum,
                f"--optim.base-momentum {self.base_momentum}: at most the momentum (or first beta) "
                f"{self.usual_momentum} of {self.name}, which one-cycle falls from: lower it, or "
                "raise --optim.momentum (--optim.betas)",
            ),
            (0 < self.layer_decay <= 1, f"--optim.layer-decay {self.layer_decay}: in (0, 1]"),
            (self.head_lr > 0, f"--optim.head-lr {self.head_lr}: must be positive"),
            (
                self.clip_norm is None or self.clip_norm > 0,
                f"--optim.clip-norm {self.clip_norm}: positive or None",
            ),
            (
                self.clip_value is None or self.clip_value > 0,
                f"--optim.clip-value {self.clip_value}: positive or None",
            ),
            (0 < self.rise < 1, f"--optim.rise {self.rise}: between 0 and 1"),
            (self.ema is None or 0 < self.ema < 1, f"--optim.ema {self.ema}: between 0 and 1"),
        ]
        for holds, message in checks:
            if not holds:
                raise ConfigError(message)

    @property
    def usual_momentum(self) -> float:
        """What one-cycle's momentum begins and ends with: `momentum`, or the first of `betas`."""
        return self.momentum if self.name in ("sgd", "lars", "muon") else self.betas[0]
