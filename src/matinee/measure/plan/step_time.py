"""How long a step takes on a card: a roofline over each operation, and what runs beside it.

# Note [Roofline]
An operation takes as long as its arithmetic at the rate that the card reaches, or as its traffic at
the rate that its memory reaches, whichever is longer. Where the sum is shorter than starting all
operations takes the host, the host sets the pace. torch.compile fuses operations, and takes less.
Source: Williams et al., doi 10.1145/1498765.1498785.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from matinee.measure.plan.assumptions import Assumptions
from matinee.measure.plan.cards import Card, Precision
from matinee.measure.plan.work import Operation, Work
from matinee.tasks.config import ContrastiveConfig
from matinee.training.config import TrainConfig

# Bytes that are read and written for each weight in an update: gradient, weight and states read,
# weight and states written, four bytes each. LAMB and LARS read weight and step again for norms.
# Of Muon without the products of its orthogonal steps.
UPDATE_BYTES = {
    "sgd": 20, "adam": 28, "adamw": 28, "lion": 20, "lamb": 44, "lars": 28, "muon": 24,
}  # fmt: skip
CLIP_BYTES = 12  # the norm reads gradients; scaling reads and writes them
EMA_BYTES = 12
# Bytes of device memory for a pixel of a clip from I420 to normalised floats: read, converted,
# normalised, in about four passes over three floats.
PIXEL_BYTES = 100


@dataclass(frozen=True)
class Computation:
    """Seconds of a device for a step of one rank: what its micro-batches and its update take.

    `start`: what the host needs longer to start operations than the device to do them. `idle`: what
    training loops lose beyond all that. `shared`: what of the update ranks divide (zero1, fsdp), if
    one did it all; `update` has the rank's share of it. `forward` and `backward`: of one
    micro-batch's passes, which weights and gradients travel beside.
    """

    products: float
    attention: float
    elementwise: float
    start: float
    pixels: float
    idle: float
    update: float
    shared: float
    forward: float
    backward: float

    @property
    def passes(self) -> float:
        """Of forward and backward passes alone, without a pause."""
        return self.products + self.attention + self.elementwise + self.start

    @property
    def batches(self) -> float:
        """Without the update."""
        return self.passes + self.pixels + self.idle

    @property
    def total(self) -> float:
        return self.batches + self.update


def forwards_of(config: TrainConfig, parts: int) -> int:
    """Forward passes of each of `parts` micro-batches: a feature cache (contrastive, several
    parts) makes every part's twice.
    """
    return 2 if isinstance(config.task, ContrastiveConfig) and parts > 1 else 1


def compute_seconds(
    work: Work, config: TrainConfig, card: Card, precision: Precision, take: Assumptions,
    parts: int, world: int = 1,
) -> Computation:  # fmt: skip
    """A step of `parts` micro-batches on one of `world` ranks; see Note [Roofline].

    Raises:
        ConfigError: the card has no units for the precision.
    """
    forwards = forwards_of(config, parts)
    kinds = {"product": 0.0, "attention": 0.0, "other": 0.0}
    spans = []
    for times, operations in ((forwards, work.forward), (1, work.backward)):
        seconds = _by_kind(operations, config, card, precision, take)
        started = sum(operations.values()) * take.kernel_us * 1e-6
        spans.append((times, max(sum(seconds.values()), started), started))
        for kind, value in seconds.items():
            kinds[kind] += parts * times * value
    device = sum(kinds.values())
    whole = parts * sum(times * longest for times, longest, _ in spans)
    rate = card.memory_rate * take.bandwidth_efficiency
    clip = config.clip
    pixels = parts * work.clips * clip.frames * clip.size**2 * PIXEL_BYTES / rate
    slack = 1 / take.busy
    each, shared = (traffic / rate for traffic in update_bytes(work, config))
    return Computation(
        kinds["product"], kinds["attention"], kinds["other"], whole - device, pixels,
        (slack - 1) * (whole + pixels), each + shared / world, shared,
        slack * spans[0][1], slack * spans[1][1],
    )  # fmt: skip


def _by_kind(
    operations: Mapping[Operation, int], config: TrainConfig, card: Card, precision: Precision,
    take: Assumptions,
) -> dict[str, float]:  # fmt: skip
    memory = card.memory_rate * take.bandwidth_efficiency
    wide = card.tf32 if config.speed.tf32 and card.tf32 else card.fp32
    half = card.rate(precision) if precision in ("bf16", "fp16") else 0.0
    seconds = {"product": 0.0, "attention": 0.0, "other": 0.0}
    for operation, number in operations.items():
        part = take.matmul_efficiency
        if operation.half and card.reaches is not None:
            part = card.reaches
        if operation.kind == "attention":
            part *= take.attention_efficiency
        arithmetic = operation.flops / ((half if operation.half else wide) * part)
        seconds[operation.kind] += number * max(arithmetic, operation.traffic / memory)
    return seconds


def update_bytes(work: Work, config: TrainConfig) -> tuple[float, float]:
    """Traffic of an update of all weights, with clipping and the moving average: what each rank
    does of all weights, and what ranks divide among them.

    zero1 divides the optimizer's part, fsdp all of it.
    """
    optim, strategy = config.optim, config.parallel.strategy
    beside = CLIP_BYTES * (optim.clip_norm is not None or optim.clip_value is not None)
    beside += EMA_BYTES * (optim.ema is not None)
    whole = UPDATE_BYTES[optim.name]
    each, shared = {
        "ddp": (whole + beside, 0), "zero1": (beside, whole), "fsdp": (0, whole + beside),
    }[strategy]  # fmt: skip
    return float(work.parameters * each), float(work.parameters * shared)
