"""Learning rate and momentum as pure functions of progress, so that there is no state to restore.

Progress counts epochs, not steps: epochs may have different numbers of steps.
"""

from __future__ import annotations

import math

from matinee.training.optim.config import OptimConfig

START_DIVISOR = 25.0
"""One-cycle begins at the peak rate divided by this, as torch's `OneCycleLR` does."""
_ROUNDING = 1e-9
"""Epochs; far less than a step, and more than the error of a sum of parts of epochs."""


def learning_rate(
    config: OptimConfig, epoch: float, steps_per_epoch: int, batch_size: int
) -> float:
    """Rate of the step before which `epoch` epochs are done (3.25: a quarter of the fourth).

    The first step of a warm-up has one step's part of the peak, its last step the peak itself.

    Args:
        steps_per_epoch: of the epoch in which the step lies.
        batch_size: items of this step, on all ranks.

    Source: warm-up, arXiv 1706.02677, §2.2; cosine, SGDR, arXiv 1608.03983, §3; one-cycle,
    arXiv 1708.07120, §4, with cosines.
    """
    growth = growth_of_rate(config, batch_size)
    peak, end = config.lr * growth, config.min_lr * growth
    if config.schedule == "one-cycle":
        start = peak / START_DIVISOR
        return _cycle(config, epoch, low=start, high=peak, end=end)
    warmup = min(config.warmup_epochs, config.epochs)
    if epoch + _ROUNDING < warmup:
        return peak * min(1.0, (epoch + 1 / steps_per_epoch) / warmup)
    if config.schedule == "constant":
        return peak
    if config.schedule == "step":
        passed = sum(epoch + _ROUNDING >= part * config.epochs for part in config.drops)
        return peak * 0.1**passed
    return _cosine(peak, end, (epoch - warmup) / max(config.epochs - warmup, _ROUNDING))


def momentum(config: OptimConfig, epoch: float) -> float | None:
    """Momentum (of Adam's kin the first beta) after `epoch` epochs; None: it stays as it is.

    Under one-cycle it falls from its own value to `base_momentum` while the rate rises, and rises
    back while the rate falls.

    Source: arXiv 1708.07120, §4; arXiv 1803.09820, §4.3.
    """
    if config.schedule != "one-cycle":
        return None
    usual = config.usual_momentum
    return _cycle(config, epoch, low=usual, high=config.base_momentum, end=usual)


def growth_of_rate(config: OptimConfig, batch_size: int) -> float:
    """By how much the rates of `config` grow for a batch of this size."""
    if config.base_batch is None:
        return 1.0
    ratio = batch_size / config.base_batch
    return math.sqrt(ratio) if config.lr_scaling == "sqrt" else ratio


def describe(config: OptimConfig) -> str:
    """A sentence on optimizer, rate and schedule, and where the rate comes from."""
    growth = growth_of_rate(config, config.batch_size)
    peak = f"{config.lr * growth:.3g}"
    if config.base_batch is not None:
        ratio = f"batch {config.batch_size} / {config.base_batch}"
        peak += f" = {config.lr:g} × {ratio if config.lr_scaling == 'linear' else f'√({ratio})'}"
    parts = [f"{config.name}, learning rate {peak}, {_curve(config, growth)}"]
    parts += [
        f"{words} {value:g}"
        for words, value in (
            ("each block times", config.layer_decay),
            ("the classifier times", config.head_lr),
        )
        if value != 1
    ]
    if config.ema is not None:
        parts.append(f"weights averaged with decay {config.ema:g}")
    return "; ".join(parts)


def _curve(config: OptimConfig, growth: float) -> str:
    end = config.min_lr * growth
    if config.schedule == "one-cycle":
        return f"one-cycle: up for {config.rise:g} of {config.epochs} epochs, then to {end:.3g}"
    length = f"{config.warmup_epochs:g} epoch{'' if config.warmup_epochs == 1 else 's'}"
    warmup = f" after {length} of warm-up" if config.warmup_epochs else ""
    if config.schedule == "step":
        drops = ", ".join(f"{part * config.epochs:g}" for part in config.drops)
        return f"step{warmup}: a tenth after {drops} epochs" if drops else f"constant{warmup}"
    if config.schedule == "cosine":
        return f"cosine{warmup} to {end:.3g}"
    return f"constant{warmup}"


def _cycle(config: OptimConfig, epoch: float, *, low: float, high: float, end: float) -> float:
    """From `low` to `high` for a part `rise` of the epochs, then to `end`."""
    top = config.rise * config.epochs
    if epoch < top:
        return _cosine(low, high, epoch / top)
    return _cosine(high, end, (epoch - top) / (config.epochs - top))


def _cosine(start: float, end: float, done: float) -> float:
    """Half a cosine wave from `start` to `end`; `done` counts from 0 to 1."""
    return end + (start - end) * 0.5 * (1 + math.cos(math.pi * min(1.0, done)))
