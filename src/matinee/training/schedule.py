"""The learning rate as a pure function of the step, so that there is no state to restore."""

from __future__ import annotations

import math

from matinee.training.config import OptimConfig


def learning_rate(config: OptimConfig, step: int, steps_per_epoch: int) -> float:
    """Rate of step number `step` (from 0): linear warm-up, then the schedule.

    Source: warm-up, arXiv 1706.02677, §2.2; cosine, SGDR, arXiv 1608.03983, §3.
    """
    total = config.epochs * steps_per_epoch
    warmup = min(config.warmup_epochs * steps_per_epoch, total)
    if step < warmup:
        return config.lr * (step + 1) / warmup if warmup > 1 else config.lr
    if config.schedule == "constant":
        return config.lr
    if config.schedule == "step":
        epoch = step // steps_per_epoch
        drops = sum(epoch >= part * config.epochs for part in (0.4, 0.8))
        return config.lr * 0.1**drops
    done = (step - warmup) / max(1.0, total - warmup)
    return config.lr * 0.5 * (1 + math.cos(math.pi * done))
