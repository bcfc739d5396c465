"""Settings of several processes that train one model."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

import tyro

from matinee.errors import ConfigError


@dataclass(frozen=True)
class ParallelConfig:
    """How ranks share the work. The global batch is `optim.batch_size` whatever their number."""

    strategy: Literal["ddp", "zero1", "fsdp"] = "ddp"
    """ddp: each rank holds all, gradients are averaged while the backward pass runs; zero1:
    optimizer state is divided among ranks (arXiv 1910.02054, stage 1); fsdp: weights and gradients
    too (FSDP2), for networks that do not fit."""
    bucket_mb: float = 25.0
    """Gradients travel in pieces of this many MiB: smaller ones start earlier, larger ones use the
    network better."""
    hook: Literal["none", "bf16", "fp16", "powersgd"] = "none"
    """Compress gradients on their way (ddp, zero1): to half, or to low rank (PowerSGD,
    arXiv 1905.13727), for slow networks; no longer bit for bit reproducible from one process."""
    powersgd_rank: int = 2
    """Of powersgd: columns kept of each gradient matrix; the first 1,000 steps go uncompressed."""
    no_sync: bool = True
    """With accumulation, average gradients after the last part alone (False: after each)."""
    sync_bn: bool = False
    """Batch normalisation over the micro-batches of all ranks instead of each rank's own."""
    simulate_world: Annotated[int | None, tyro.conf.arg(aliases=["--simulate-world"])] = None
    """Do what this many ranks would do: the same samples, order, learning rates and updates, in
    micro-batches of a rank's size, by accumulation. Activations are normalised in those
    micro-batches, as on real ranks; running statistics of batch normalisation are moved by one
    micro-batch after the other, where real ranks average them."""
    timeout_s: float = 600.0
    """A rank that keeps the others waiting this long is named, and ends the run."""

    def __post_init__(self) -> None:
        checks = [
            (self.bucket_mb > 0, f"--parallel.bucket-mb {self.bucket_mb}: must be positive"),
            (self.powersgd_rank >= 1, f"--parallel.powersgd-rank {self.powersgd_rank}: at least 1"),
            (
                self.simulate_world is None or self.simulate_world >= 1,
                f"--parallel.simulate-world {self.simulate_world}: at least 1",
            ),
            (self.timeout_s > 0, f"--parallel.timeout-s {self.timeout_s}: must be positive"),
            (
                self.hook == "none" or self.strategy != "fsdp",
                f"--parallel.hook {self.hook} is for ddp and zero1, not fsdp",
            ),
        ]
        for holds, message in checks:
            if not holds:
                raise ConfigError(message)
