"""`Watch`: where the time goes in anyone's own PyTorch loop.

# Note [Watching a loop]
A step goes from asking for a batch to asking for the next. The first steps are left out, and what
lies between two loops (validation, saving) belongs to no step. On a GPU times are the device's, and
nobody waits for it; see Note [Time on the device]. What is in no span is `other`; without any span
but waiting for data it is `compute`, for there is nothing else to tell it from.

A verdict needs rounds whose means can be drawn anew: steps that follow each other are put together
to at most 40 of them, for a loader that is too slow makes every n-th step wait, and no other.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack
from pathlib import Path
from time import monotonic
from types import TracebackType
from typing import Any, NamedTuple, Self, TypeVar

import torch

from matinee.data.decode_cost import DecodeCost
from matinee.data.epochs import EpochLoader
from matinee.data.loader import ClipLoader
from matinee.errors import ConfigError, MatineeError
from matinee.measure.diagnose.facts import Loading
from matinee.measure.diagnose.span_stages import Split, stages_of_spans
from matinee.measure.diagnose.trace import Trace, write_trace
from matinee.measure.diagnose.verdict import Diagnosis, Stages, StepTimes
from matinee.measure.diagnose.watch_changes import Watched, suggest_watched
from matinee.training.device_spans import spans_on

T = TypeVar("T")
_KEPT = 10_000  # steps; older ones are forgotten
_UNREAD = 64  # steps whose events on a GPU are read later
_ROUNDS = 40


class Watch:
    """Times a loop and says what holds it up.

        with matinee.Watch() as watch:
            for batch in watch(loader):
                with watch.span("h2d"):
                    ...
                with watch.span("forward"):
                    ...
        print(watch.diagnosis())

    Spans named "h2d", "comm" and "optimizer" are stages of their own, all others are compute; they
    may lie within each other, and each second counts for the innermost. `watch(loader)` gives the
    loader's batches and takes any iterable. Of a `ClipLoader`, reading and decoding are told apart
    and "h2d" is measured without a span; of other loaders waiting for data stays one.

    Args:
        device: whose time counts; the current GPU if torch has used one by the time the watch
            begins, else the CPU.
        warm_up: steps of each loop that are left out.
        trace: a file for ui.perfetto.dev, written at the end, of the last steps if there are many.
            See Note [Traces].

    Raises:
        ConfigError: `warm_up` below 0.
    """

    def __init__(
        self,
        *,
        device: str | torch.device | None = None,
        warm_up: int = 3,
        trace: str | Path | None = None,
    ) -> None:
        if warm_up < 0:
            raise ConfigError(f"warm_up {warm_up}: 0 or more steps that are left out")
        self.warm_up = warm_up
        self._wanted, self._trace_file = device, trace
        self._device = torch.device("cpu")
        self._spans = spans_on(self._device, on=False)
        self._entered = False
        self._unread: deque[tuple[Callable[[], dict[str, float]], _Loop, DecodeCost]] = deque()
        self._steps: deque[_Step] = deque(maxlen=_KEPT)
        self._trace = Trace()
        self._numbers = 0

    def __enter__(self) -> Self:
        if self._wanted is not None:
            self._device = torch.device(self._wanted)
        elif _gpu_is_used():
            self._device = torch.device("cuda", torch.cuda.current_device())
        self._spans = spans_on(self._device)
        self._entered = True
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None
    ) -> None:
        self._entered = False
        self._read(0)
        if self._trace_file is not None and kind is None:
            write_trace(self._trace_file, [self._trace])

    def span(self, name: str) -> AbstractContextManager[None]:
        """Around a part of a step. See the class for names."""
        return self._spans(name)

    def __call__(self, loader: Iterable[T]) -> Iterator[T]:
        """The loader's batches, each the begin of a step.

        Raises:
            MatineeError: outside the `with` block.
        """
        if not self._entered:
            raise MatineeError("watch(loader) is for inside of `with matinee.Watch() as watch:`")
        return self._loop(loader)

    def _loop(self, loader: Iterable[T]) -> Iterator[T]:
        loop = _Loop(loader)
        with ExitStack() as stack:
            if isinstance(loader, ClipLoader):
                before, loader.spans = loader.spans, self._spans
                stack.callback(lambda: setattr(loader, "spans", before))
                loader.take_costs()
            if self._trace_file is not None:
                own = loader if isinstance(loader, EpochLoader) else None
                stack.enter_context(self._trace.follow(self._spans, own))
            self._spans.cut()  # what lies before belongs to no step
            batches = iter(loader)
            try:
                while True:
                    begin = monotonic()
                    with self._spans("data_wait"):
                        try:
                            batch = next(batches)
                        except StopIteration:
                            break
                    try:
                        yield batch
                    finally:  # also where the loop is left early
                        del batch
                        self._end_step(loop, loader, begin)
            finally:
                self._read(0)

    def _end_step(self, loop: _Loop, loader: object, begin: float) -> None:
        cut = self._spans.cut()
        loop.steps += 1
        cost = loader.take_costs() if isinstance(loader, ClipLoader) else DecodeCost()
        if loop.steps > self.warm_up:
            self._unread.append((cut, loop, cost))
            self._read(_UNREAD)
        if self._trace_file is not None:
            self._trace.step(f"step {self._numbers}", begin, monotonic(), step=self._numbers)
        self._numbers += 1

    def _read(self, leave: int) -> None:
        """Read all but the last `leave` steps. On a CPU nothing is waited for, and old steps of a
        GPU are past.
        """
        while len(self._unread) > leave:
            cut, loop, cost = self._unread.popleft()
            self._steps.append(_Step(cut(), loop, cost))

    def diagnosis(self) -> Diagnosis:
        """What was found so far; printed, it is a table, a verdict and what to change.

        Raises:
            ConfigError: there were no steps but those that are left out.
        """
        self._read(0)
        if not self._steps:
            raise ConfigError(
                f"{self._numbers} steps were watched, and the first {self.warm_up} of each loop "
                "are left out: watch more steps, or say warm_up=0"
            )
        spanned = any(set(step.spans) - {"", "data_wait", "h2d"} for step in self._steps)
        costs: dict[_Loop, DecodeCost] = {}
        for step in self._steps:
            costs.setdefault(step.loop, DecodeCost()).add(step.cost)
        splits = {loop: loop.split(cost) for loop, cost in costs.items()}
        samples = [_stages(step.spans, splits[step.loop], spanned) for step in self._steps]
        seconds = [sum(step.spans.values()) for step in self._steps]
        loops = list(costs)
        watched = Watched(
            device=self._device.type, spanned=spanned, cost=sum(costs.values(), DecodeCost()),
            mode=loops[0].mode, loaders=tuple(dict.fromkeys(loop.kind for loop in loops)),
            workers=max(loop.workers for loop in loops), wall_s=sum(seconds), steps=len(seconds),
        )  # fmt: skip
        times = StepTimes.of(seconds, max(loop.batch_size for loop in loops))
        rounds = _rounds(samples)
        return Diagnosis.of(
            f"a loop of your own on {self._device}", times, rounds,
            changes=suggest_watched(watched, rounds), notes=self._notes(watched, splits),
            details={"device": str(self._device), "warm_up": self.warm_up} | _loading(watched),
        )  # fmt: skip

    def to_dict(self) -> dict[str, Any]:
        """The diagnosis as JSON can hold it."""
        return self.diagnosis().to_dict()

    def _notes(self, watched: Watched, loops: Mapping[_Loop, Split]) -> list[str]:
        notes = []
        if self.warm_up:
            notes.append(f"the first {self.warm_up} steps of each loop are left out")
        for kind in dict.fromkeys(loop.kind for loop in loops if loop.other):
            notes.append(
                f"waiting for data of {kind} cannot be told apart further, into storage and "
                "decoding; of a matinee.ClipLoader it can"
            )
        if any(split is None and not loop.other for loop, split in loops.items()):
            notes.append("no clip was decoded in these steps: all had been before")
        if not watched.spanned:
            notes.append(
                "no spans: all that is not waiting for data counts as compute; put parts of the "
                'step in watch.span("h2d"), "forward", "backward", "comm", "optimizer"'
            )
        if self._device.type == "cpu" and _gpu_is_used():
            notes.append(
                "times are those of the host, though a GPU was used: say Watch(device='cuda')"
            )
        if self._device.type == "cpu" and watched.cost.clips:
            notes.append("where decoders share cores with training, compute holds what they take")
        if len(self._steps) == _KEPT:
            notes.append(f"of the last {_KEPT:,} steps")
        return notes


class _Loop:
    """One `watch(loader)`, and its `steps` so far."""

    def __init__(self, loader: object) -> None:
        own = loader if isinstance(loader, EpochLoader) else None
        self.kind, self.other = type(loader).__name__, own is None
        self.memory = own is not None and not isinstance(own, ClipLoader)
        self.mode = own.mode if own is not None else ""
        # As torch's DataLoader calls them; other loaders may have neither, or something else.
        workers = own.workers if own is not None else getattr(loader, "num_workers", 0)
        size = getattr(loader, "batch_size", 0)
        self.workers = workers if isinstance(workers, int) else 0
        self.batch_size = size if isinstance(size, int) else 0
        self.steps = 0

    def split(self, cost: DecodeCost) -> Split:
        """Given what its decoders did in the steps that are looked at."""
        if self.memory:
            return "memory"
        return cost if cost.busy_s > 0 else None


class _Step(NamedTuple):
    """Seconds of its spans, and what decoders did meanwhile: nothing without a ClipLoader."""

    spans: Mapping[str, float]
    loop: _Loop
    cost: DecodeCost


def _loading(watched: Watched) -> dict[str, Any]:
    """Figures of what decoders did, as `matinee diagnose` has them."""
    if not watched.cost.clips:
        return {}
    loading = Loading(watched.workers, watched.mode, watched.cost, watched.steps)
    return {"loading": loading.to_dict()}


def _gpu_is_used() -> bool:
    return bool(torch.cuda.is_initialized())  # type: ignore[no-untyped-call]


def _stages(spans: Mapping[str, float], split: Split, spanned: bool) -> Stages:
    stages = stages_of_spans(spans, split)
    if not spanned:
        stages["compute"] = stages.pop("other", 0.0)
    return stages


def _rounds(samples: Sequence[Stages]) -> list[Stages]:
    """Means over steps that follow each other. See Note [Watching a loop]."""
    names = sorted({name for sample in samples for name in sample})
    count = min(len(samples), max(10, min(_ROUNDS, len(samples) // 8)))
    rounds = []
    for number in range(count):
        first, end = (len(samples) * i // count for i in (number, number + 1))
        some = samples[first:end]
        rounds.append({n: sum(s.get(n, 0.0) for s in some) / len(some) for n in names})
    return rounds
