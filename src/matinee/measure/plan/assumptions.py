"""What a plan takes for granted: every number with its reason, each can be changed.

# Note [Assumptions]
Each value has a source of its own and is not fitted to the times that `published.py` predicts. The
model's form did see them: `busy` and the tail of slow GPUs (`slowest`) came in after operations
alone gave AVION 12.7 h (18 were published) and an even spread gave 1,536 V100s 12.2 minutes (14.2).
Their values were then taken from other runs and from another study, and `published_scaling.py`
writes what comes out without them. So the agreement is weaker evidence than a blind prediction.
"""

from __future__ import annotations

import typing
from dataclasses import dataclass, fields
from typing import Annotated, Any

import tyro

from matinee.errors import ConfigError

Help = tyro.conf.arg


@dataclass(frozen=True)
class Assumptions:
    """What the plan takes for granted; change one with --assume.NAME VALUE."""

    matmul_efficiency: Annotated[float, Help(help=(
        "part of a card's peak rate that matrix products and convolutions reach, for cards whose "
        "own was not measured (`reaches` in the table of cards): GPT training gets 0.72 of an A100 "
        "(FlashAttention-2, arXiv 2307.08691), the best shapes alone 0.80 to 0.87 "
        "(stas00/ml-engineering, MAMF table)"
    ))] = 0.7  # fmt: skip
    attention_efficiency: Annotated[float, Help(help=(
        "part of the rate of products that fused attention reaches: FlashAttention-2 gets 0.5 to "
        "0.73 of an A100's peak, its first version 0.25 to 0.4 (arXiv 2307.08691), products 0.8 to "
        "0.87"
    ))] = 0.7  # fmt: skip
    bandwidth_efficiency: Annotated[float, Help(help=(
        "part of the memory's rate that operations reach which are not fused: fitted, with the "
        "rate of products, to what timm published of 14 networks in training on an RTX 3090 "
        "(6 % rms; benchmarks/published_scaling.py); plain copies reach 0.86"
    ))] = 0.58  # fmt: skip
    kernel_us: Annotated[float, Help(help=(
        "microseconds that Python and PyTorch need to start an operation: the least a step takes "
        "where operations are small; compiled networks have fewer"
    ))] = 6.0  # fmt: skip
    busy: Annotated[float, Help(help=(
        "part of the time that devices work at this pace in training: the median of five published "
        "runs, 0.51 to 0.72 (benchmarks/published_scaling.py); AVION's 18 hours are not among "
        "them, and its VideoMAE, which is, is predicted with the median of the other four; 1 is "
        "what operations alone would take"
    ))] = 0.61  # fmt: skip
    link_efficiency: Annotated[float, Help(help=(
        "part of a link's stated rate that an all-reduce gets: NCCL's own model has 0.92 for its "
        "protocol alone (src/graph/tuning.cc); headers and switches take more"
    ))] = 0.8  # fmt: skip
    nvlink_us: Annotated[float, Help(help=(
        "microseconds of one hop over NVLink: NCCL's tuning model, ring, protocol Simple"
    ))] = 3.4  # fmt: skip
    pcie_us: Annotated[float, Help(help=(
        "microseconds of one hop over PCIe: NCCL's tuning model, ring, protocol Simple"
    ))] = 5.7  # fmt: skip
    network_us: Annotated[float, Help(help=(
        "microseconds of one hop between machines: the tuning model of NCCL 2.7 to 2.17 (but for "
        "2.12), ring, protocol Simple; from 2.18 on it has 14.0"
    ))] = 9.6  # fmt: skip
    network_gb_s: Annotated[float, Help(help=(
        "10^9 bytes a second between machines, each direction, all adapters of a machine together: "
        "one port of 200 Gbit/s"
    ))] = 25.0  # fmt: skip
    jitter: Annotated[float, Help(help=(
        "standard deviation of the speed of like GPUs: they differ by 8 % from fastest to slowest "
        "but for outliers (arXiv 2208.11035), the whiskers of a box plot, 5.4 deviations"
    ))] = 0.015  # fmt: skip
    slowest: Annotated[float, Help(help=(
        "the slowest of a large machine's GPUs takes this many times the median's time "
        "(arXiv 2208.11035: outliers up to 1.5 times)"
    ))] = 1.5  # fmt: skip
    slowest_of: Annotated[float, Help(help=(
        "of how many GPUs that one is the slowest: Summit has 27,648, nearly all of those measured"
    ))] = 27648.0  # fmt: skip
    read_ahead: Annotated[float, Help(help=(
        "part of the decoding cores' time that reaches the step: the rest waits for slots or "
        "shares its core with the training process (loader_scale: two processes 1.86 times one)"
    ))] = 0.9  # fmt: skip

    def __post_init__(self) -> None:
        for f in fields(self):
            value = getattr(self, f.name)
            flag = f"--assume.{f.name.replace('_', '-')} {value}"
            if not value > 0 and f.name not in ("jitter", "kernel_us"):
                raise ConfigError(f"{flag}: must be positive")
            if not 0 <= value < 1e9:
                raise ConfigError(f"{flag}: a number of 0 or more")
            if (f.name.endswith("efficiency") or f.name in ("read_ahead", "busy")) and value > 1:
                raise ConfigError(f"{flag}: a part, at most 1")
        if self.slowest < 1 or self.slowest_of < 2:
            raise ConfigError(
                f"--assume.slowest {self.slowest} --assume.slowest-of {self.slowest_of}: the "
                "slowest takes at least the median's time (1), of at least 2"
            )

    def rows(self) -> list[tuple[str, float, str]]:
        """Name, value and reason of each."""
        hints = typing.get_type_hints(type(self), include_extras=True)
        return [(f.name, getattr(self, f.name), _reason(hints[f.name])) for f in fields(self)]


def _reason(hint: Any) -> str:
    return str(typing.get_args(hint)[1].help)
