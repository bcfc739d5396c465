"""How training speeds up with GPUs: compute, loader, all-reduce and the slowest rank.

# Note [Scaling model]
A step of n ranks takes

    slowest(n) · max(compute, loader) + exposed all-reduce

`compute` is a rank's own step (forward, backward, update). The loader works ahead, so the slower of
both sets the pace. The all-reduce of gradients runs beside the backward pass in buckets; what is
left when that ends is waited for (Note [All-reduce]). The slowest of n ranks makes all wait
(Note [The slowest of n]). Not in it: that communication takes memory bandwidth and multiprocessors
from the backward pass beside it, congestion of the network, start-up, evaluation and checkpoints.

# Note [What else travels]
Gradients that are averaged after each micro-batch, weights that fsdp gathers before each pass, and
those that zero1 sends when they are updated are `Exchange`s. Each hides behind a pass of its own
micro-batch as the all-reduce hides behind the last backward pass, or, with zero1, behind nothing. A
gather or a scatter takes half of an all-reduce of as many bytes. Not in it: that fsdp sends whole
blocks (here: buckets), zero1 each weight by itself; weights that are not trained; contrastive
training with several micro-batches embeds each twice, also on ranks that need only one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import ceil
from typing import Literal

from matinee.errors import ConfigError
from matinee.measure.plan.collective import Network, Way, all_reduce, exposed_seconds
from matinee.measure.plan.jitter import Jitter


@dataclass(frozen=True)
class Exchange:
    """What ranks send each other `times` in each micro-batch (`when`: in each, in those before the
    last) or once a step, beside `beside` of a rank's step (0: beside nothing).

    `size`: bytes, in pieces as gradients are; each takes `share` of its all-reduce. See Note [What
    else travels].
    """

    when: Literal["each", "before the last", "step"]
    times: int
    beside: float
    size: float
    share: float = 1.0

    def count(self, parts: int) -> int:
        """Times in a step of `parts` micro-batches."""
        return self.times * {"each": parts, "before the last": parts - 1, "step": 1}[self.when]


@dataclass(frozen=True)
class Job:
    """What a rank does a step.

    `clip_seconds` of its device for each clip, of which `backward` is the share of the last
    micro-batch's backward pass (gradients travel beside it); `fixed_seconds` whatever the batch
    (the update of weights), `shared_seconds` what ranks divide among them (its part that zero1 and
    fsdp divide), `least_seconds` what a step's operations take to start, however few clips it has.
    `parts`: micro-batches of a step; `exchanges`: what travels besides the gradients of the last
    one. `loader_rate`: clips a second that a machine's loader delivers (None: enough).
    `storage_rate`: clips a second that all machines together can read (None: enough).
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
    shared_seconds: float = 0.0
    parts: int = 1
    exchanges: tuple[Exchange, ...] = ()

    def __post_init__(self) -> None:
        if min(self.clips, self.parts) < 1 or self.clip_seconds <= 0 or self.bucket_bytes <= 0:
            raise ConfigError(
                f"a step of {self.clips} clips of {self.clip_seconds} s, in buckets of "
                f"{self.bucket_bytes} bytes: each must be positive"
            )

    def with_clips(self, clips: int) -> Job:
        """The same rank with so many clips, in micro-batches no larger than now.

        Fewer micro-batches have more of the step in the last one.
        """
        parts = max(1, ceil(clips * self.parts / self.clips))
        more = self.parts / parts
        return replace(
            self, clips=clips, parts=parts, backward=self.backward * more,
            exchanges=tuple(replace(e, beside=e.beside * more) for e in self.exchanges),
        )  # fmt: skip


@dataclass(frozen=True)
class Point:
    """A step of `ranks`, in seconds: `compute` of one rank, what it waits longer for the loader
    (`loader`), for the slowest rank (`straggler`) and for gradients and weights on their way
    (`exposed`, of the `reduce` that they take in all, gradients by `way`).

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
    compute += job.shared_seconds / ranks
    clips = job.clips * ranks
    loading = 0.0
    if job.loader_rate is not None:
        loading = job.clips * min(ranks, network.per_node) / job.loader_rate
    if job.storage_rate is not None:
        loading = max(loading, clips / job.storage_rate)
    pace = max(compute, loading)
    straggler = pace * (jitter.slowest(ranks) - 1)
    gradients = Exchange("step", 1, job.backward, job.gradient_bytes)
    exposed = reduce = 0.0
    for exchange in (gradients, *job.exchanges):
        buckets = max(1, ceil(exchange.size / job.bucket_bytes))
        each = exchange.share * all_reduce(ranks, exchange.size / buckets, network)[0]
        times = exchange.count(job.parts)
        exposed += times * exposed_seconds(exchange.beside * compute, buckets, each)
        reduce += times * buckets * each
    buckets = max(1, ceil(job.gradient_bytes / job.bucket_bytes))
    way = all_reduce(ranks, job.gradient_bytes / buckets, network)[1]
    step = pace + straggler + exposed
    return Point(
        ranks, clips, compute, pace - compute, straggler, exposed, reduce, way, clips / step, 1.0
    )


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
    alone = _step(job.with_clips(batch), network, jitter, 1)
    points = []
    for ranks in counts:
        if batch % ranks:
            continue
        point = _step(job.with_clips(batch // ranks), network, jitter, ranks)
        points.append(replace(point, efficiency=point.rate / ranks / alone.rate))
    return points


def counts_to(most: int) -> list[int]:
    """1, 2, 4 … and `most`."""
    counts = [1]
    while 2 * counts[-1] < most:
        counts.append(2 * counts[-1])
    return counts if most == 1 else [*counts, most]
