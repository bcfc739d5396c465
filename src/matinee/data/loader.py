"""`ClipLoader`: batches of clips on the device, in an order that depends on the seed alone.

# Note [Exact data]
What a clip is (frames, crop, flip, colours) follows from (seed, epoch, sample); which clips make a
batch follows from (seed, epoch). Workers hold no state. So the number and kind of workers changes
nothing, and the position (epoch, batches taken) is all there is to save.

Everything the main process does (plan, submit, collect, send) happens inside `__next__`; there is
no helper thread that a busy training loop could starve. Workers decode ahead by `prefetch` batches,
and to a GPU the next batch is sent ahead; the position is that of the batches handed out.
"""

from __future__ import annotations

import logging
import os
import time
from collections import deque
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from matinee.data.assemble import assemble
from matinee.data.backends import Backend, start_backend
from matinee.data.batch import Batch
from matinee.data.clips import (
    ClipPlan,
    ClipSpec,
    View,
    check_clip_spec,
    check_clips,
    check_crops,
    plan_evaluation_clip,
    plan_training_clip,
)
from matinee.data.decode_cost import DecodeCost
from matinee.data.decoders import Cores, Decoders, Mode, plan_decoders, rank_cores
from matinee.data.device import IMAGENET_MEAN, IMAGENET_STD
from matinee.data.epochs import EpochLoader
from matinee.data.flights import CostSums, Flight, TracedJob
from matinee.data.mix import take_turns
from matinee.data.nvdec import why_not
from matinee.data.random import Rewound
from matinee.data.transfer import Sent, make_transfer, send
from matinee.data.turns import short_turns
from matinee.errors import ClipError, ConfigError, WorkerDied
from matinee.pack.mixture import Mixture
from matinee.pack.reading.reader import Pack
from matinee.spans import Spans
from matinee.workers import JobTooLarge

log = logging.getLogger("matinee.data")


class ClipLoader(EpochLoader):
    """Iterate over batches of clips of a pack.

    `for batch in loader` goes to the end of the current epoch; the next `for` is the next epoch. A
    loop that was left early continues where it stopped. Use as a context manager, or `close()`.

    Args:
        pack: an open pack, or a mixture of several. See Note [Mixtures].
        split: which samples, as `Pack.select` takes it: "train", "person=0,1", None for all.
        clip: frames, size, crop and augmentation.
        batch_size: clips a batch.
        views: None for training (random clips, shuffled, incomplete last batch dropped); (temporal,
            spatial) for evaluation: every view of every sample once, in order, nothing dropped.
            Several ranks have equally many batches, for which the last shares begin again with the
            first samples: of clips of the same `index` and view count one, as `matinee eval` does.
        repeats: different clips of each sample in one training epoch, anywhere in its order.
        clips: different clips of each sample (other frames, other crops) that are in one batch, as
            contrastive learning on video compares them (arXiv 2104.14558, §3).
        crops: clips of the same frames, decoded once, that training crops, mirrors, colours and
            blanks each in its own way (repeated augmentation, arXiv 1901.09335; VideoMAE's
            `num_sample`); they are in one batch. Clips of two samples take turns there. See
            Note [Mixing in pairs].
        group: batches that belong together (gradient accumulation); a training epoch has whole
            groups only.
        seed: of order and augmentation.
        classes: label order of `target`; the pack's own when None.
        targets: what `target` holds instead of the label: a row for each row of the pack, int64
            [N] or float32 [N, K].
        workers: decoders in all; one a core that this rank may use, but at most 16, when None.
        mode: "processes" (default; a training loop cannot slow them), "threads" (simple), or
            "nvdec": a GPU decodes (extra [gpu-decode]), and where it cannot, a warning says so and
            processes do.
        threads: decoders of each process; chosen when None. See Note [Processes and threads].
        device: where batches arrive.
        on_error: "raise" (default) stops at a clip that cannot be read; "mask" marks it invalid,
            counts and logs it. Never is another clip put in its place.
        prefetch: batches decoded ahead.
        pinned: decode into page-locked memory, from which a GPU copies by itself.
        side_stream: copy the next batch to a GPU while this one is worked on. See
            Note [Copies ahead].
        rank, world: which rank this is, of how many.
        local_world: ranks that share this machine's cores; as torchrun's LOCAL_WORLD_SIZE says when
            None.

    In a process forked from the one that began to iterate, the loader begins anew at its position,
    and torch computes with one thread there.

    `spans`, if set, measures "h2d": what this thread spends on sending batches to the device.
    `take_costs()` tells what the decoders did. See Note [What a clip costs].

    Raises:
        ConfigError: an empty selection, fewer clips than a batch, a label not in `classes`, clips
            and crops that do not divide the batch, a spec for images.
        ClipError: while iterating: a clip cannot be read, with sample, file and reason.
        WorkerDied: while iterating: a worker was killed.
    """

    pack: Pack | Mixture

    def __init__(
        self,
        pack: Pack | Mixture,
        *,
        split: str | None = None,
        clip: ClipSpec | None = None,
        batch_size: int = 8,
        views: tuple[int, int] | None = None,
        repeats: int = 1,
        clips: int = 1,
        crops: int = 1,
        group: int = 1,
        seed: int = 0,
        classes: tuple[str, ...] | None = None,
        targets: NDArray[Any] | None = None,
        workers: int | None = None,
        mode: Mode = "processes",
        threads: int | None = None,
        device: str | torch.device = "cpu",
        on_error: Literal["raise", "mask"] = "raise",
        prefetch: int = 2,
        pinned: bool = True,
        side_stream: bool = True,
        mean: tuple[float, float, float] = IMAGENET_MEAN,
        std: tuple[float, float, float] = IMAGENET_STD,
        rank: int = 0,
        world: int = 1,
        local_world: int | None = None,
    ) -> None:
        if prefetch < 1:
            raise ConfigError(f"prefetch {prefetch}: at least 1")
        cores = rank_cores(local_world)
        self.decoders = plan_decoders(cores, mode=mode, workers=workers, threads=threads)
        if on_error not in ("raise", "mask"):
            raise ConfigError(f"on_error {on_error!r}: raise or mask")
        clip = clip or ClipSpec()
        check_crops(crops, views)
        check_clips(clips, views)
        if views is None:
            check_clip_spec(clip)
        super().__init__(
            pack, split=split, clip=clip, batch_size=batch_size, views=views,
            repeats=repeats, group=group, seed=seed, classes=classes, targets=targets,
            device=device, rank=rank, world=world, together=clips * crops,
        )  # fmt: skip
        if self.decoders.nvdec:
            self.decoders = self._without_nvdec(cores, workers) or self.decoders
        self.mode, self.workers = self.decoders.mode, self.decoders.count
        self.on_error, self.crops = on_error, crops
        self._mean, self._std = mean, std
        self.spans: Spans | None = None
        self._prefetch = prefetch
        self._transfer = make_transfer(self.device, pinned=pinned, side_stream=side_stream)
        self._random, self._looks = Rewound(), Rewound()
        self._backend: Backend | None = None
        self._owner = os.getpid()  # of the backend
        self._flights: deque[Flight] = deque()
        self._free: list[int] = []
        self._read: deque[tuple[int, Sent]] = deque()  # slots that the device may still be reading
        self._costs = CostSums()
        self._numbers: dict[int, tuple[Flight, list[int]]] = {}  # job number → (batch, rows)
        self._next_number = 0
        self._planned = (0, 0)  # (epoch, batch) to be planned next

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue at a saved position; what was decoded ahead is dropped."""
        super().load_state_dict(state)
        try:
            self._drain()
        except WorkerDied:  # its clips are dropped anyway; others are started for the next batch
            self.close()
        except BaseException:
            self.close()
            raise
        self._planned = (self.epoch, self.position)

    def _next(self) -> Batch:
        try:
            with short_turns:  # a busy thread would hold every call up; see Note [Turns]
                return self._take()
        except BaseException:
            # What was decoded ahead is dropped; the next call starts again at this very batch.
            self.close()
            raise

    def _take(self) -> Batch:
        if self._flights and (self._flights[0].epoch, self._flights[0].batch) != (
            self.epoch, self.position,
        ):  # fmt: skip
            self.close()  # an interrupt came between a batch and its being counted
        backend = self._start()
        self._planned = max(self._planned, (self.epoch, self.position))
        self._refill(backend)
        flight = self._flights[0]
        while flight.left:
            self._collect(backend)
        self._report(flight)
        with self._span():
            batch = self._send(flight, backend).hand_out()
        self._flights.popleft()
        self._refill(backend)  # now, so that workers have work during the step
        if self._transfer.ahead and self._flights:
            self._collect(backend, block=False)
            if not self._flights[0].left:
                with self._span():
                    self._send(self._flights[0], backend)
        return batch

    def _refill(self, backend: Backend) -> None:
        """Let workers decode up to `prefetch` batches, as long as there are free slots."""
        while len(self._flights) < self._prefetch and self._may_plan():
            if not self._flights and not self._free and self._read:
                self._read[0][1].wait()
            while self._read and self._read[0][1].done():
                self._free.append(self._read.popleft()[0])
            if not self._free:
                return
            self._submit(backend, self._free.pop())

    def _send(self, flight: Flight, backend: Backend) -> Sent:
        """Begin to take a complete batch to the device, unless that was done ahead."""
        if flight.sent is None:
            memory = backend.memory[flight.slot]
            flight.sent = self._transfer.begin(lambda: self._make(flight, memory))
            self._read.append((flight.slot, flight.sent))
        return flight.sent

    def _span(self) -> AbstractContextManager[None]:
        return self.spans("h2d") if self.spans is not None else nullcontext()

    def _may_plan(self) -> bool:
        """Training runs on into the next epoch; an evaluation ends."""
        return self.views is None or self._planned[0] == self.epoch

    def plan(self, epoch: int, item: int) -> ClipPlan:
        """The clip that item number `item` (0 … num_items - 1) gets in an epoch."""
        sample = self._row(item)
        info = self.pack.info(sample)
        again, place = divmod(item, self.num_items)  # of a mixture, within this epoch
        copy, crop = divmod(place % self._per_sample, self.crops)
        try:
            if self.views is None:
                copy += again * (self._per_sample // self.crops)
                rng = self._random.at(self.seed, epoch, sample, f"clip{copy}")
                look = None
                if self.crops > 1:  # the frames are common to all crops
                    look = self._looks.at(self.seed, epoch, sample, f"clip{copy}.{crop}")
                return plan_training_clip(info, self.clip, rng, look)
            temporal, spatial = self.views
            view = View(copy // spatial, temporal, copy % spatial, spatial)
            return plan_evaluation_clip(info, self.clip, view)
        except ConfigError as error:
            raise ConfigError(f"sample {info.id!r}: {error}") from None

    def _submit(self, backend: Backend, slot: int) -> None:
        epoch, batch = self._planned
        items = take_turns(self._items(epoch, batch), self.together)
        plans = [self.plan(epoch, item) for item in items.tolist()]
        flight = Flight(slot, epoch, batch, items, plans)
        size, traced = (self.clip.size, self.clip.size), self._costs.on_job is not None
        jobs = []
        for rows, job in flight.jobs(self.crops, size, self.pack.locate, traced=traced):
            jobs.append((self._next_number, job))
            self._numbers[self._next_number] = (flight, rows)
            self._next_number += 1
        # A few messages for each decoder, so that none has much to do when others have nothing.
        together = max(1, len(jobs) // (4 * self.workers))
        flight.submitted = time.monotonic()
        try:
            for start in range(0, len(jobs), together):
                backend.submit(jobs[start : start + together])
        except JobTooLarge as error:
            raise ConfigError(
                f"clips of {self.clip.decoded_frames} frames are too long for decoding processes "
                f"({error}): use mode 'threads'"
            ) from None
        self._flights.append(flight)
        self._planned = (epoch, batch + 1) if batch + 1 < len(self) else (epoch + 1, 0)

    def _collect(self, backend: Backend, *, block: bool = True) -> None:
        try:
            finished = backend.wait(block=block)
        except WorkerDied as error:
            raise WorkerDied(f"{error}{self._tell_lost(backend)}") from None
        for number, decoded in finished:
            flight, rows = self._numbers.pop(number)
            flight.left -= 1
            self._costs.add(flight, rows, decoded)
            if decoded.failure is not None:
                flight.failures.update(dict.fromkeys(rows, decoded.failure))

    def take_costs(self) -> DecodeCost:
        """What decoding jobs took that were collected since the last call."""
        return self._costs.take()

    def trace_jobs(self, tell: Callable[[TracedJob], None] | None) -> None:
        """Tell of each job that begins from now on, with times; None ends it."""
        self._costs.on_job = tell

    def _tell_lost(self, backend: Backend) -> str:
        """Which clips a worker was on when it died."""
        clips = []
        for flight, rows in (self._numbers[n] for n in backend.lost if n in self._numbers):
            clips.append(f"{flight.plans[rows[0]].sample!r} in {flight.chunks[rows[0]].file}")
        return f", while it read sample {', '.join(clips)}" if clips else ""

    def _report(self, flight: Flight) -> None:
        for row, reason in sorted(flight.failures.items()):
            error = ClipError(flight.plans[row].sample, flight.chunks[row].file, reason)
            if self.on_error == "raise":
                raise error
            self.failed.append(error)
            log.warning("clip masked (%d so far): %s", len(self.failed), error)

    def _make(self, flight: Flight, memory: NDArray[np.uint8] | Tensor) -> Batch:
        """The batch of what lies in its slot; a GPU gets work for it, and is not waited for."""
        count = len(flight.plans)
        formats = [self.pack.formats[flight.chunks[row].codec] for row in range(count)]
        valid = [row not in flight.failures for row in range(count)]
        rows = self._rows(flight.items)
        return Batch(
            video=assemble(
                memory, flight.plans, formats, self.clip, device=self.device, mean=self._mean,
                std=self._std,
            ),
            target=self._target(rows, [plan.flip for plan in flight.plans]),
            valid=send(torch.tensor(valid), self.device),
            index=torch.from_numpy(rows),
            samples=tuple(plan.sample for plan in flight.plans),
            num_valid=sum(valid),
            texts=tuple(self._caption(flight.epoch, item) for item in flight.items.tolist()),
            seeds=self._seeds(flight.epoch, flight.items),
        )  # fmt: skip

    def _caption(self, epoch: int, item: int) -> str:
        """One of the sample's captions, in training another in each epoch; "" without any."""
        captions = self.pack.captions(self._row(item))
        if len(captions) < 2 or self.views is not None:
            return captions[0] if captions else ""
        rng = self._random.at(self.seed, epoch, item, "caption")
        return captions[int(rng.integers(len(captions)))]

    def _without_nvdec(self, cores: Cores, workers: int | None) -> Decoders | None:
        """Who decodes instead of a GPU that cannot; None if it can. See Note [GPU decoding]."""
        info = self.pack.info(int(self.samples[0]))
        chunk = self.pack.locate(info.video, [info.first_frame])[0].chunk
        reason = why_not(self.device, self.pack.formats, chunk)
        if reason is None:
            return None
        instead = plan_decoders(cores, workers=workers)
        log.warning("the GPU's decoder cannot be used: %s; instead: %s", reason, instead)
        return replace(instead, reason=f"{instead.reason}; NVDEC cannot be used: {reason}")

    def explain(self) -> str:
        return str(self.decoders)

    def _start(self) -> Backend:
        if self._owner != os.getpid():  # forked: workers and their answers are the parent's
            self._forget()
            # So are torch's threads: work that is given to them here would never be done.
            torch.set_num_threads(1)
        if self._backend is None:
            slots = self._prefetch + self._transfer.spare
            shape = (slots, self.batch_size, self.clip.decoded_frames)
            self._backend = start_backend(
                self.decoders, self.pack.formats, shape, (self.clip.size, self.clip.size),
                self.device,
            )  # fmt: skip
            self._owner = os.getpid()
            if isinstance(self._backend.memory, np.ndarray):
                self._transfer.attach(self._backend.memory)
            self._free = list(range(slots))
        return self._backend

    def _drain(self) -> None:
        """Wait for what is being decoded and forget it."""
        if self._owner != os.getpid():  # forked: the answers are for the parent
            self._forget()
            return
        while self._numbers and self._backend is not None:
            self._collect(self._backend)
        self._free.extend(flight.slot for flight in self._flights if flight.sent is None)
        self._flights.clear()

    def close(self) -> None:
        """End the workers and free the batch memory."""
        backend = self._backend
        self._forget()  # first: an interrupt below leaves nothing that could be used again
        if backend is not None and self._owner == os.getpid():
            try:
                backend.close()
            finally:
                self._transfer.close()

    def _forget(self) -> None:
        self._backend = None
        self._flights.clear()
        self._read.clear()
        self._numbers.clear()
        self._planned = (self.epoch, self.position)
