"""The learning rate as a pure function of the step, so that there is no state to restore."""

from __future__ import annotations

import math

from matinee.training.optim.config import OptimConfig


def learning_rate(config: OptimConfig, step: int, steps_per_epoch: int) -> float:
    """Rate of step number `step` (from 0): linear warm-up, then the schedule.

    Source: warm-up, arXiv 1706.02677, §2.2; cosine, SGDR, arXiv 1608.03983, §3.
    """
    total = config.epochs * steps_per_epoch
    warmup = min(config.warmup_epochs * steps_per_epoch, total)
    peak, end = config.lr * _growth(config), config.min_lr * _growth(config)
    if step < warmup:
        return peak * (step + 1) / warmup if warmup > 1 else peak
    if config.schedule == "constant":
        return peak
    if config.schedule == "step":
        epoch = step // steps_per_epoch
        passed = sum(epoch >= part * config.epochs for part in config.drops)
        return peak * 0.1**passed
    done = (step - warmup) / max(1.0, total - warmup)
    return end + (peak - end) * 0.5 * (1 + math.cos(math.pi * done))


def describe(config: OptimConfig) -> str:
    """A sentence on optimizer and rate, and where the rate comes from."""
    peak = f"{config.lr * _growth(config):.3g}"
    if config.base_batch is not None:
        peak += f" = {config.lr:g} × batch {config.batch_size} / {config.base_batch}"
    scales = [
        f"{words} {value:g}"
        for words, value in (
            ("each block times", config.layer_decay),
            ("the classifier times", config.head_lr),
        )
        if value != 1
    ]
    return "; ".join([f"{config.name}, learning rate {peak}, {config.schedule}", *scales])


def _growth(config: OptimConfig) -> float:
    """By how much the rates grow with the batch."""
    return config.batch_size / config.base_batch if config.base_batch is not None else 1.0
