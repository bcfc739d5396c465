"""How training speeds up with GPUs: compute, loader, all-reduce and the slowest rank.

# Note [Scaling model]
A step of n ranks takes

    slowest(n) · max(compute, loader) + exposed all-reduce

`compute` is a rank's own step (forward, backward, update). The loader works ahead, so the slower of
both sets the pace. The all-reduce of gradients runs beside the backward pass in buckets; what is
left when that ends is waited for (Note [All-reduce]). The slowest of n ranks makes all wait
(Note [The slowest of n]). Not in it: that communication takes memory bandwidth and multiprocessors
from the backward pass beside it, congestion of the network, start-up, evaluation and checkpoints.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import ceil

from matinee.errors import ConfigError
from matinee.measure.plan.collective import Network, Way, all_reduce, exposed_seconds
from matinee.measure.plan.jitter import Jitter


@dataclass(frozen=True)
class Job:
    """What a rank does a step.

    `clip_seconds` of its device for each clip, of which `backward` is the share of the last
    micro-batch's backward pass (gradients travel beside it); `fixed_seconds` whatever the batch
    (the update of weights), `least_seconds` what a step's operations take to start, however few
    clips it has. `loader_rate`: clips a second that a machine's loader delivers (None:
    enough). `storage_rate`: clips a second that all machines together can read (None: enough).
    """

    clips: int
    clip_seconds: float
    fixed_seconds: float
    backward: float
    gradient_bytes: float
    bucket_bytes: float
    loader_rate: float | None = None
    storage_rate: float | None = None
    least_seconds: float = 0.0

    def __post_init__(self) -> None:
        if self.clips < 1 or self.clip_seconds <= 0 or self.bucket_bytes <= 0:
            raise ConfigError(
                f"a step of {self.clips} clips of {self.clip_seconds} s, in buckets of "
                f"{self.bucket_bytes} bytes: each must be positive"
            )


@dataclass(frozen=True)
class Point:
    """A step of `ranks`, in seconds: `compute` of one rank, what it waits longer for the loader
    (`loader`), for the slowest rank (`straggler`) and for gradients (`exposed`, of the `reduce`
    that they take in all, by `way`).

    `efficiency`: clips a second of each rank, against a rank alone.
    """

    ranks: int
    clips: int
    compute: float
    loader: float
    straggler: float
    exposed: float
    reduce: float
    way: Way
    rate: float
    efficiency: float

    @property
    def step(self) -> float:
        return self.compute + self.loader + self.straggler + self.exposed


def predict_step(job: Job, network: Network, jitter: Jitter, ranks: int) -> Point:
    """A step of `ranks`, each with the job's clips. See Note [Scaling model]."""
    alone = _step(job, network, jitter, 1)
    point = _step(job, network, jitter, ranks)
    per_rank = (point.clips / ranks) / point.step
    return replace(point, efficiency=per_rank / (job.clips / alone.step))


def _step(job: Job, network: Network, jitter: Jitter, ranks: int) -> Point:
    compute = max(job.clips * job.clip_seconds, job.least_seconds) + job.fixed_seconds
    clips = job.clips * ranks
    loading = 0.0
    if job.loader_rate is not None:
        loading = job.clips * min(ranks, network.per_node) / job.loader_rate
    if job.storage_rate is not None:
        loading = max(loading, clips / job.storage_rate)
    pace = max(compute, loading)
    straggler = pace * (jitter.slowest(ranks) - 1)
    buckets = max(1, ceil(job.gradient_bytes / job.bucket_bytes))
    seconds, way = all_reduce(ranks, job.gradient_bytes / buckets, network)
    exposed = exposed_seconds(job.backward * compute, buckets, seconds)
    step = pace + straggler + exposed
    return Point(
        ranks, clips, compute, pace - compute, straggler, exposed, buckets * seconds, way,
        clips / step, 1.0,
    )  # fmt: skip


def same_batch_per_gpu(
    job: Job, network: Network, jitter: Jitter, counts: Sequence[int]
) -> list[Point]:
    """More ranks, larger global batch (weak scaling)."""
    return [predict_step(job, network, jitter, ranks) for ranks in counts]


def same_global_batch(
    job: Job, network: Network, jitter: Jitter, counts: Sequence[int], batch: int
) -> list[Point]:
    """More ranks share one global batch (strong scaling), where each gets as many clips.

    Efficiency is against one rank that does the whole batch.
    """
    alone = _step(replace(job, clips=batch), network, jitter, 1)
    points = []
    for ranks in counts:
        if batch % ranks:
            continue
        point = _step(replace(job, clips=batch // ranks), network, jitter, ranks)
        points.append(replace(point, efficiency=point.rate / ranks / alone.rate))
    return points


def counts_to(most: int) -> list[int]:
    """1, 2, 4 … and `most`."""
    counts = [1]
    while 2 * counts[-1] < most:
        counts.append(2 * counts[-1])
    return counts if most == 1 else [*counts, most]
