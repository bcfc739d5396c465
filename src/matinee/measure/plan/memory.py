"""How much memory a rank needs for a training step, found without the device and without weights.

# Note [Predicted memory]
The step is run on fake tensors (activations.py), once for one micro-batch a step, with two for
several. To that come: what several ranks change (strategy and compression of gradients), what a
step of many micro-batches keeps (contrastive training), the batch that is sent ahead to a GPU, and
a reserve for what no tensor accounts for.

Not counted, since it cannot be known beforehand: what `torch.compile` fuses away, workspaces that
cuDNN chooses for convolutions beyond the reserve, an image set that lies on the device, and the
loader's batch memory on the host.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace

from matinee.errors import ConfigError
from matinee.measure.plan.activations import (
    Footprint,
    LossFootprint,
    loss_footprint,
    step_footprint,
)
from matinee.measure.plan.fake import Device
from matinee.measure.plan.live import Kind, Phase
from matinee.tasks.config import ContrastiveConfig
from matinee.training.config import TrainConfig
from matinee.training.precision import Precision

FLOAT = 4
MIB = 2**20
AHEAD = 2
"""Batches that NVDEC decodes ahead, and one that is being read (the loader's `prefetch`)."""


@dataclass(frozen=True)
class Reserve:
    """Assumed bytes of a GPU that no tensor accounts for; not measured, but stated.

    `context`: what a process takes before its first tensor, with its libraries' kernels (781 MB
    in pytorch/pytorch issue 34323; newer versions load kernels when they are first called).
    `workspaces` of cuBLAS (32 MiB on Hopper, 8 MiB before) and cuDNN. `communicator`: NCCL's
    buffers, 4 MiB (NCCL_BUFFSIZE) for two directions of 32 channels. `rounding`: part of all
    tensors' bytes that the caching allocator loses between blocks.
    """

    context: int = 768 * MIB
    workspaces: int = 128 * MIB
    communicator: int = 256 * MIB
    rounding: float = 0.05

    def of(self, tensors: int, world: int) -> int:
        """Bytes of the reserve beside so many bytes of tensors."""
        ranks = self.communicator if world > 1 else 0
        return self.context + self.workspaces + ranks + round(self.rounding * tensors)


RESERVE = Reserve()


@dataclass(frozen=True)
class Memory:
    """Bytes of one rank at the moment of a training step when most are in use.

    The fields from `parameters` to `reserve` add up to `total`. `saved` stands beside them.
    """

    parameters: int
    """Weights that this rank holds (with fsdp: its share)."""
    buffers: int
    """Running statistics, fixed tables."""
    gradients: int
    """Of weights; where ranks average them, the buckets that they lie in."""
    optimizer: int
    """Momentum and second moments that this rank holds (zero1, fsdp: its share), and the moving
    average of the weights."""
    activations: int
    """Saved for the backward pass at that moment, of one micro-batch; under autocast with the
    copies of weights in half precision."""
    transient: int
    """Everything else that operations hold at that moment, such as a block that is computed
    anew."""
    inputs: int
    """The micro-batch as float32, and what was sent ahead or is kept beside it."""
    communication: int
    """What ranks need to exchange weights and gradients, beside the buckets."""
    reserve: int
    """What no tensor accounts for: see `Reserve`. 0 on a CPU."""
    total: int
    saved: int
    """Saved for the backward pass when a micro-batch's forward pass ends, the most there is."""
    moment: Phase
    """When most memory is in use."""

    def to_dict(self) -> dict[str, int | str]:
        return asdict(self)


def parts_of(config: TrainConfig, micro_batch: int, world: int) -> int:
    """Micro-batches in which each rank passes its share of the global batch."""
    return max(1, math.ceil(config.optim.batch_size / (micro_batch * world)))


def predict_memory(
    config: TrainConfig,
    *,
    micro_batch: int,
    world: int = 1,
    device: Device = "cuda",
    precision: Precision = "bf16",
    classes: int = 400,
    reserve: Reserve = RESERVE,
) -> Memory:
    """Memory of a rank that trains `config` with `micro_batch` clips at a time.

    See Note [Predicted memory]. `optim.accumulate` is of no account: parts are as many as reach
    the global batch. Clips are those of the last stage.

    Args:
        world: ranks; they share the batch, and what `parallel.strategy` says.
        precision: of autocast; "auto" must have been decided.
        classes: of the data, for classification.

    Raises:
        ConfigError: settings that do not fit each other, or a batch of no clips.
    """
    for name, value in (("micro_batch", micro_batch), ("world", world), ("classes", classes)):
        if value < 1:
            raise ConfigError(f"memory of a step with {name} {value}: at least 1")
    if device not in ("cuda", "cpu") or precision not in ("fp32", "bf16", "fp16"):
        raise ConfigError(
            f"memory of a step on {device!r} in {precision!r}: cuda or cpu; fp32, bf16 or fp16"
        )
    if config.parallel.strategy == "fsdp" and world > 1 and precision == "fp16":
        raise ConfigError("--speed.precision fp16 with --parallel.strategy fsdp: use bf16")
    parts = parts_of(config, micro_batch, world)
    foot = step_footprint(
        _what_counts(config), micro_batch=micro_batch, parts=min(parts, 2), world=world,
        device=device, precision=precision, classes=classes,
    )  # fmt: skip
    moments = {phase: peak.kinds.copy() for phase, peak in foot.peaks.items()}
    saved = foot.saved
    task = config.task
    if isinstance(task, ContrastiveConfig):
        simulated = micro_batch * min(parts, 2)
        own = micro_batch * parts
        before = loss_footprint(task, simulated, simulated)
        whole = loss_footprint(task, own, own * world)
        if parts == 1:
            saved += whole.saved - before.saved
        _keep_parts(moments, foot, before, whole, config, micro_batch, parts, world)
    for phase, kinds in moments.items():
        _share(kinds, foot, config, world, precision, phase)
        if device == "cuda":
            kinds["inputs"] += _sent_ahead(config, micro_batch)
    moment, kinds = max(moments.items(), key=lambda item: item[1].total())
    kept = reserve.of(kinds.total(), world) if device == "cuda" else 0
    return Memory(
        **{name: kinds[name] for name in _KINDS}, reserve=kept, total=kinds.total() + kept,
        saved=saved, moment=moment,
    )  # fmt: skip


_KINDS: tuple[Kind, ...] = (
    "parameters", "buffers", "gradients", "optimizer", "activations", "transient", "inputs",
    "communication",
)  # fmt: skip


def _what_counts(config: TrainConfig) -> TrainConfig:
    """The config with what is of no account for a step made equal, so that a step is run once."""
    return replace(
        config,
        optim=replace(config.optim, batch_size=1, accumulate=1),
        run=replace(config.run, out=""),
        data=replace(config.data, path=""),
    )


def _keep_parts(
    moments: dict[Phase, Counter[Kind]],
    foot: Footprint,
    before: LossFootprint,
    whole: LossFootprint,
    config: TrainConfig,
    micro_batch: int,
    parts: int,
    world: int,
) -> None:
    """What a contrastive step of so many parts and ranks has beyond the one that was run."""
    assert isinstance(config.task, ContrastiveConfig)
    more = parts - min(parts, 2)
    # Of clips and of captions: kept, put together, and their gradient.
    features = 2 * 3 * more * micro_batch * config.task.embed_dim * FLOAT
    gathered = 2 * 2 * micro_batch * parts * (world - 1) * config.task.embed_dim * FLOAT
    at_loss = foot.at_loss.copy()
    at_loss["activations"] -= min(before.saved, at_loss["activations"])
    at_loss["transient"] += whole.peak
    if at_loss.total() > moments["forward"].total():
        moments["forward"] = at_loss
    for phase in ("forward", "backward"):
        moments[phase]["inputs"] += more * batch_bytes(config, micro_batch)
        moments[phase]["transient"] += features + gathered


def batch_bytes(config: TrainConfig, clips: int) -> int:
    """A batch on the device: float32 [B, 3, T, H, W]."""
    clip = config.clip
    return clips * 3 * clip.frames * clip.size**2 * FLOAT


def _sent_ahead(config: TrainConfig, clips: int) -> int:
    """The next batch on a GPU: as it was decoded (12 bits a pixel, RGB for NVDEC) and as float32.

    Without a stream of its own it comes between steps, when activations are gone.
    """
    if not config.speed.side_stream:
        return 0
    pixels = clips * config.clip.decoded_frames * config.clip.size**2
    decoded = 3 * pixels * (AHEAD + 1) if config.data.mode == "nvdec" else pixels * 3 // 2
    return decoded + batch_bytes(config, clips)


def _share(
    kinds: Counter[Kind],
    foot: Footprint,
    config: TrainConfig,
    world: int,
    precision: Precision,
    phase: Phase,
) -> None:
    """What ranks share, and what they need to exchange it. See `ParallelConfig`."""
    parallel = config.parallel
    if world == 1:
        return
    whole = sum(foot.state)
    numbers = [math.prod(shape) for shape in foot.shapes]
    if parallel.strategy == "fsdp":
        slices = [_slice(shape, world) for shape in foot.shapes]
        kinds["optimizer"] = sum(
            math.ceil(state * part / max(1, number))
            for state, part, number in zip(foot.state, slices, numbers, strict=True)
        ) + math.ceil(foot.average / world)
        frozen = foot.units_total - sum(numbers)
        kinds["parameters"] = FLOAT * (sum(slices) + math.ceil(frozen / world))
        if phase == "optimizer":
            kinds["gradients"] = FLOAT * sum(slices)
            kinds["transient"] //= world
        else:
            width = 2 if precision == "bf16" else FLOAT
            kinds["communication"] += _gathered(foot.units, width, phase)
        return
    if parallel.strategy == "zero1":
        share = _fullest(numbers, foot.state, world)
        kinds["optimizer"] = share + foot.average
        if phase == "optimizer" and whole:
            kinds["transient"] = kinds["transient"] * share // whole
    if phase == "backward":
        kinds["communication"] += {
            "none": 0, "bf16": 2, "fp16": 2, "powersgd": FLOAT,
        }[parallel.hook] * sum(numbers)  # fmt: skip
    elif parallel.hook == "powersgd":  # what was lost by rounding is kept for the next step
        kinds["communication"] += FLOAT * sum(numbers)


def _slice(shape: Sequence[int], world: int) -> int:
    """Numbers of a weight that the first rank holds with FSDP2, which divides the first dimension.

    A scalar is not divided.
    """
    if not shape:
        return 1
    return math.ceil(shape[0] / world) * math.prod(shape[1:])


def _fullest(numbers: Sequence[int], state: Sequence[int], world: int) -> int:
    """Optimizer state of the fullest rank when whole weights, largest first, go to the emptiest
    one, as ZeroRedundancyOptimizer hands them out.
    """
    filled, shares = [0] * world, [0] * world
    for number, size in sorted(zip(numbers, state, strict=True), reverse=True):
        rank = filled.index(min(filled))
        filled[rank] += number
        shares[rank] += size
    return max(shares)


def _gathered(units: Sequence[int], width: int, phase: Phase) -> int:
    """Bytes of whole weights and gradients that a rank has at a time with FSDP2, at most.

    The weights outside of blocks all along. A forward pass is fullest at its end, when no block is
    gathered. A backward pass is fullest at its beginning: there are, as large as the largest block,
    gathered weights, the buffer for the block after it, and gradients. The buffer that gradients
    are sent from comes when the block's activations are gone. Measured, this is 5 to 11 % too much
    for small networks that have most of their weights in one block.
    """
    *blocks, outside = units
    largest = max(blocks, default=0) if phase == "backward" else 0
    return width * (outside + 3 * largest)
