"""A run, planned: memory, time, cores, storage and money, before anything is rented."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, fields, replace
from typing import Literal

from matinee.errors import ConfigError
from matinee.measure.plan.assumptions import Assumptions
from matinee.measure.plan.batch import BatchPlan, fit_batch
from matinee.measure.plan.cards import Fleet
from matinee.measure.plan.collective import Link, Network
from matinee.measure.plan.data_side import DataNeeds, Footage, data_needs
from matinee.measure.plan.jitter import Jitter, Tailed
from matinee.measure.plan.scaling import Exchange, Job, Point, predict_step
from matinee.measure.plan.step_time import Computation, compute_seconds, forwards_of
from matinee.measure.plan.work import Work, count_work
from matinee.training.config import TrainConfig
from matinee.training.precision import Precision
from matinee.training.setup import stages_of
from matinee.training.stages import Stage, Timeline

Binding = Literal["compute", "loader", "storage", "copies to the device", "communication",
                  "stragglers"]  # fmt: skip
COMPRESSED = {"none": 1.0, "bf16": 0.5, "fp16": 0.5, "powersgd": 1.0}
"""Bytes of gradients by hook; PowerSGD's depend on shapes and are counted as without it."""


@dataclass(frozen=True)
class Wish:
    """What is to be planned.

    `cores`: for decoding, of each machine; None: as many as it takes. `disk_rate`: bytes a second
    that all machines together get from where the pack lies; None: enough. `price`: of a GPU for an
    hour. `batch`: how the global batch is cut; None: as memory allows. `links`: between GPUs of a
    machine, as measured; None: as the card's data sheet and the assumptions have it.
    """

    config: TrainConfig
    fleet: Fleet
    footage: Footage
    take: Assumptions = field(default_factory=Assumptions)
    jitter: Jitter | None = None
    classes: int = 400
    cores: float | None = None
    disk_rate: float | None = None
    price: float | None = None
    batch: BatchPlan | None = None
    links: Link | None = None

    @property
    def precision(self) -> Precision:
        """Of autocast: "auto" is bf16 where the card has units for it, as in training."""
        wanted = self.config.speed.precision
        if wanted == "auto":
            return "bf16" if self.fleet.card.bf16 else "fp32"
        return wanted

    def spread(self) -> Jitter:
        """How unequal ranks are."""
        take = self.take
        return self.jitter or Tailed(take.jitter, take.slowest, take.slowest_of)

    def network(self) -> Network:
        network = network_of(self.fleet, self.take)
        return network if self.links is None else replace(network, inside=self.links)


@dataclass(frozen=True)
class StagePlan:
    """A stage of the run, `steps` long: what is computed and how long a step takes."""

    stage: Stage
    steps: int
    work: Work
    computation: Computation
    job: Job
    point: Point

    @property
    def seconds(self) -> float:
        return self.steps * self.point.step


@dataclass(frozen=True)
class Plan:
    """The plan of a wish; `stages` in order, the last with whole clips."""

    wish: Wish
    batch: BatchPlan
    needs: DataNeeds
    stages: tuple[StagePlan, ...]

    @property
    def last(self) -> StagePlan:
        return self.stages[-1]

    @property
    def hours(self) -> float:
        """Of training alone."""
        return sum(stage.seconds for stage in self.stages) / 3600

    @property
    def gpu_hours(self) -> float:
        return self.hours * self.wish.fleet.count

    @property
    def money(self) -> float | None:
        return None if self.wish.price is None else self.gpu_hours * self.wish.price

    @property
    def cores_needed(self) -> float:
        """To decode, of each machine: as fast as its devices could go without a pause."""
        job = replace(self.last.job, loader_rate=None, storage_rate=None)
        wish = self.wish
        free = predict_step(job, wish.network(), wish.spread(), wish.fleet.count)
        rate = free.rate / wish.take.busy / wish.fleet.nodes
        return self.needs.cores(rate, wish.take.read_ahead)

    @property
    def binds(self) -> Binding:
        """What a step's time is of most; what it waits for counts where it outlasts computing."""
        point, waits = self.last.point, waiting(self)
        if point.loader > 0:
            return max(waits, key=waits.__getitem__)
        largest = max(point.compute, point.exposed, point.straggler)
        if largest == point.compute:
            return "compute"
        return "communication" if largest == point.exposed else "stragglers"


def waiting(plan: Plan) -> dict[Binding, float]:
    """Seconds a step that the loader, storage and copies need of their own, beside computing."""
    wish, job = plan.wish, plan.last.job
    group = min(wish.fleet.count, wish.fleet.per_node)
    waits: dict[Binding, float] = {"copies to the device": job.clips / _copied(wish, plan.needs)}
    if wish.cores is not None:
        rate = plan.needs.clips_per_second(wish.cores, wish.take.read_ahead)
        waits["loader"] = job.clips * group / rate
    if job.storage_rate is not None:
        waits["storage"] = job.clips * wish.fleet.count / job.storage_rate
    return waits


def plan_run(wish: Wish, *, on_step: Callable[[int, int, str], None] | None = None) -> Plan:
    """Plan a run.

    Args:
        on_step: told what is done, of how much, and what comes.

    Raises:
        ConfigError: it does not fit in any way, or settings contradict each other.
    """
    told = on_step or (lambda done, total, note: None)
    config, fleet = wish.config, wish.fleet
    fleet.card.rate(wish.precision)  # refuses a format that the card has no units for
    stages = stages_of(config)
    per_sample = config.data.repeats * config.data.clips * config.data.crops
    timeline = Timeline(stages, wish.footage.samples * per_sample)
    total = len(stages) + 1
    told(0, total, "memory")
    batch = wish.batch or fit_batch(
        config,
        fleet.card.memory,
        fleet.count,
        precision=wish.precision,
        classes=wish.classes,
        on_try=lambda what: told(0, total, what),
    )
    needs = data_needs(config, wish.footage)
    planned, start = [], 0
    for number, stage in enumerate(stages):
        told(1 + number, total, f"operations of {stage.frames} × {stage.size}²")
        steps = (stage.until - start) * timeline.steps(start)
        start = stage.until
        planned.append(_plan_stage(wish, batch, stage, steps))
    told(total, total, "done")
    return Plan(wish, batch, needs, tuple(planned))


def _plan_stage(wish: Wish, batch: BatchPlan, stage: Stage, steps: int) -> StagePlan:
    fleet, take = wish.fleet, wish.take
    ranks, parts = fleet.count, batch.parts
    micro, left = divmod(stage.batch_size, parts * ranks)
    if left or not micro:
        raise ConfigError(
            f"a batch of {stage.batch_size} clips cannot be cut into {parts} parts on {ranks} "
            f"GPUs: choose a multiple of {parts * ranks} with --optim.batch-size"
        )
    config = replace(
        wish.config,
        clip=replace(wish.config.clip, frames=stage.frames, size=stage.size),
        speed=replace(wish.config.speed, recompute=batch.recompute, stages=()),
        parallel=replace(wish.config.parallel, strategy=batch.strategy),
    )
    work = count_work(config, micro_batch=micro, precision=wish.precision, classes=wish.classes)
    computation = compute_seconds(work, config, fleet.card, wish.precision, take, parts, ranks)
    clips = micro * parts
    needs = data_needs(config, wish.footage)  # of the stage's clips: shorter ones need less
    rates = [_copied(wish, needs) * min(ranks, fleet.per_node)]
    if wish.cores is not None:
        rates.append(needs.clips_per_second(wish.cores, take.read_ahead))
    sent, exchanges = exchanged(config, work, computation, wish.precision, parts)
    job = Job(
        clips, computation.batches / clips, computation.update - computation.shared / ranks,
        computation.backward / computation.total, work.gradient_bytes * sent,
        config.parallel.bucket_mb * 2**20 * sent, min(rates),
        None if wish.disk_rate is None else wish.disk_rate / needs.bytes_per_clip,
        work.kernels() * take.kernel_us * 1e-6, computation.shared, parts, exchanges,
    )  # fmt: skip
    point = predict_step(job, wish.network(), wish.spread(), ranks)
    return StagePlan(stage, steps, work, computation, job, point)


def exchanged(
    config: TrainConfig, work: Work, done: Computation, precision: Precision, parts: int
) -> tuple[float, tuple[Exchange, ...]]:
    """All-reduces of the float32 gradients that travel beside the last backward pass, and what else
    travels. See Note [What else travels].

    An all-reduce is a scatter and a gather. fsdp scatters float32 gradients and gathers weights for
    each pass, in bfloat16 if that is computed in; zero1 gathers float32 weights after the update.
    Source: ZeRO, arXiv 1910.02054, §7.
    """
    parallel, whole = config.parallel, float(work.gradient_bytes)
    forward, backward = done.forward / done.total, done.backward / done.total
    if parallel.strategy == "fsdp":
        width = 0.5 if precision == "bf16" else 1.0
        gathered = whole * width
        sent = 0.5 + 0.5 * width
        earlier = (
            Exchange("before the last", 1, backward, gathered, 0.5) if parallel.no_sync
            else Exchange("before the last", 1, backward, whole * sent)
        )  # fmt: skip
        passes = forwards_of(config, parts)
        return sent, (Exchange("each", passes, forward, gathered, 0.5), earlier)
    sent = COMPRESSED[parallel.hook]
    more: list[Exchange] = []
    if not parallel.no_sync:
        more.append(Exchange("before the last", 1, backward, whole * sent))
    if parallel.strategy == "zero1":
        more.append(Exchange("step", 1, 0.0, whole, 0.5))
    return sent, tuple(more)


def _copied(wish: Wish, needs: DataNeeds) -> float:
    """Clips a second that reach a card from its host."""
    return wish.fleet.card.host_rate * wish.take.link_efficiency / needs.sent_per_clip


def network_of(fleet: Fleet, take: Assumptions) -> Network:
    """The links of a fleet, with what they reach."""
    hop = take.nvlink_us if fleet.card.link == "nvlink" else take.pcie_us
    return Network(
        fleet.per_node,
        Link(hop * 1e-6, fleet.card.link_rate * take.link_efficiency),
        Link(take.network_us * 1e-6, 1e9 * take.network_gb_s * take.link_efficiency),
    )


def sensitivity(plan: Plan, by: float = 0.1) -> list[tuple[str, float, float]]:
    """Hours if a number were smaller or larger by a part, for each that matters; largest effect
    first.
    """
    rows: list[tuple[str, float, float]] = []
    for name, *pair in variations(plan.wish, by):
        low, high = (plan_run(replace(wish, batch=plan.batch)).hours for wish in pair)
        rows.append((name, low, high))

    def effect(row: tuple[str, float, float]) -> float:
        return max(abs(hours - plan.hours) for hours in row[1:])

    return sorted((row for row in rows if effect(row) > 0), key=effect, reverse=True)


def variations(wish: Wish, by: float) -> list[tuple[str, Wish, Wish]]:
    """Each number that is taken for granted, smaller and larger by a part."""
    found = []
    for f in fields(wish.take):
        value = getattr(wish.take, f.name)
        most = (
            1.0
            if f.name.endswith("efficiency") or f.name in ("busy", "read_ahead")
            else value * (1 + by)
        )
        least = {"slowest": 1.0, "slowest_of": 2.0}.get(f.name, 0.0)  # as Assumptions has them
        pair = [max(value * (1 - by), least), min(value * (1 + by), most)]
        low, high = (replace(wish, take=replace(wish.take, **{f.name: x})) for x in pair)
        found.append((f.name, low, high))
    card = wish.fleet.card
    if card.reaches is not None:
        low, high = (
            replace(wish, fleet=replace(wish.fleet, card=replace(card, reaches=card.reaches * x)))
            for x in (1 - by, 1 + by)
        )
        found.append((f"{card.name}: reaches", low, high))
    return found
