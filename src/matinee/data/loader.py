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
from collections import deque
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray

from matinee.data.backends import Backend, Processes, Threads
from matinee.data.batch import Batch
from matinee.data.clips import (
    ClipPlan,
    ClipSpec,
    View,
    check_clip_spec,
    check_crops,
    plan_evaluation_clip,
    plan_training_clip,
)
from matinee.data.decode_job import ClipJob
from matinee.data.device import (
    IMAGENET_MEAN,
    IMAGENET_STD,
    after,
    color_change,
    to_video,
    ycbcr_to_rgb,
)
from matinee.data.epochs import EpochLoader
from matinee.data.mix import take_turns
from matinee.data.random import generator
from matinee.data.transfer import Sent, make_transfer, send
from matinee.errors import ClipError, ConfigError
from matinee.media.decode import frame_bytes
from matinee.pack.clip import Located
from matinee.pack.reader import Pack
from matinee.spans import Spans

log = logging.getLogger("matinee.data")


@dataclass
class _Flight:
    """A batch being decoded: `left` decoded clips are still to come; `sent` once it is complete and
    on its way to the device.
    """

    slot: int
    epoch: int
    items: NDArray[np.int64]
    plans: list[ClipPlan]
    chunks: dict[int, Located] = field(default_factory=dict)  # row → where its first frame lies
    left: int = 0
    failures: dict[int, str] = field(default_factory=dict)
    sent: Sent | None = None


class ClipLoader(EpochLoader):
    """Iterate over batches of clips of a pack.

    `for batch in loader` goes to the end of the current epoch; the next `for` is the next epoch. A
    loop that was left early continues where it stopped. Use as a context manager, or `close()`.

    Args:
        pack: an open pack.
        split: which samples, as `Pack.select` takes it: "train", "person=0,1", None for all.
        clip: frames, size, crop and augmentation.
        batch_size: clips a batch.
        views: None for training (random clips, shuffled, incomplete last batch dropped); (temporal,
            spatial) for evaluation: every view of every sample once, in order, nothing dropped.
        repeats: different clips of each sample in one training epoch.
        crops: clips of the same frames, decoded once, that training crops, mirrors, colours and
            blanks each in its own way (repeated augmentation, arXiv 1901.09335); they are in one
            batch, where two such clips take turns. See Note [Mixing in pairs].
        group: batches that belong together (gradient accumulation); a training epoch has whole
            groups only.
        seed: of order and augmentation.
        classes: label order of `target`; the pack's own when None.
        targets: what `target` holds instead of the label: a row for each row of the pack, int64
            [N] or float32 [N, K].
        workers: decoders; all usable cores but at most 16 when None.
        mode: "processes" (default; a training loop cannot slow them) or "threads" (simple).
        device: where batches arrive.
        on_error: "raise" (default) stops at a clip that cannot be read; "mask" marks it invalid,
            counts and logs it. Never is another clip put in its place.
        prefetch: batches decoded ahead.
        pinned: decode into page-locked memory, from which a GPU copies by itself.
        side_stream: copy the next batch to a GPU while this one is worked on. See
            Note [Copies ahead].
        rank, world: which rank this is, of how many.

    `spans`, if set, measures "h2d": what this thread spends on sending batches to the device.

    Raises:
        ConfigError: an empty selection, fewer clips than a batch, a label not in `classes`, crops
            that do not divide the batch, a spec for images.
        ClipError: while iterating: a clip cannot be read, with sample, file and reason.
        WorkerDied: while iterating: a worker was killed.
    """

    pack: Pack

    def __init__(
        self,
        pack: Pack,
        *,
        split: str | None = None,
        clip: ClipSpec | None = None,
        batch_size: int = 8,
        views: tuple[int, int] | None = None,
        repeats: int = 1,
        crops: int = 1,
        group: int = 1,
        seed: int = 0,
        classes: tuple[str, ...] | None = None,
        targets: NDArray[Any] | None = None,
        workers: int | None = None,
        mode: Literal["processes", "threads"] = "processes",
        device: str | torch.device = "cpu",
        on_error: Literal["raise", "mask"] = "raise",
        prefetch: int = 2,
        pinned: bool = True,
        side_stream: bool = True,
        mean: tuple[float, float, float] = IMAGENET_MEAN,
        std: tuple[float, float, float] = IMAGENET_STD,
        rank: int = 0,
        world: int = 1,
    ) -> None:
        for name, value in (("workers", workers), ("prefetch", prefetch)):
            if value is not None and value < 1:
                raise ConfigError(f"{name} {value}: at least 1")
        if mode not in ("processes", "threads"):
            raise ConfigError(f"mode {mode!r}: processes or threads")
        if on_error not in ("raise", "mask"):
            raise ConfigError(f"on_error {on_error!r}: raise or mask")
        clip = clip or ClipSpec()
        check_crops(crops, views)
        if views is None:
            check_clip_spec(clip)
        super().__init__(
            pack, split=split, clip=clip, batch_size=batch_size, views=views,
            repeats=repeats, group=group, seed=seed, classes=classes, targets=targets,
            device=device, rank=rank, world=world, together=crops,
        )  # fmt: skip
        self.mode, self.on_error = mode, on_error
        self.workers = default_workers() if workers is None else workers
        self._mean, self._std = mean, std
        self.spans: Spans | None = None
        self._prefetch = prefetch
        self._transfer = make_transfer(self.device, pinned=pinned, side_stream=side_stream)
        self._backend: Backend | None = None
        self._flights: deque[_Flight] = deque()
        self._free: list[int] = []
        self._read: deque[tuple[int, Sent]] = deque()  # slots that the device may still be reading
        self._numbers: dict[int, tuple[_Flight, list[int]]] = {}  # job number → (batch, rows)
        self._next_number = 0
        self._planned = (0, 0)  # (epoch, batch) to be planned next

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue at a saved position; what was decoded ahead is dropped."""
        super().load_state_dict(state)
        self._drain()
        self._planned = (self.epoch, self.position)

    def _next(self) -> Batch:
        try:
            return self._take()
        except BaseException:
            # What was decoded ahead is dropped; the next call starts again at this very batch.
            self.close()
            raise

    def _take(self) -> Batch:
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

    def _send(self, flight: _Flight, backend: Backend) -> Sent:
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
        sample = int(self.samples[item // self._per_sample])
        info = self.pack.info(sample)
        copy, crop = divmod(item % self._per_sample, self.together)
        try:
            if self.views is None:
                rng = generator(self.seed, epoch, sample, f"clip{copy}")
                look = None
                if self.together > 1:  # the frames are common to all crops
                    look = generator(self.seed, epoch, sample, f"clip{copy}.{crop}")
                return plan_training_clip(info, self.clip, rng, look)
            temporal, spatial = self.views
            view = View(copy // spatial, temporal, copy % spatial, spatial)
            return plan_evaluation_clip(info, self.clip, view)
        except ConfigError as error:
            raise ConfigError(f"sample {info.id!r}: {error}") from None

    def _submit(self, backend: Backend, slot: int) -> None:
        epoch, batch = self._planned
        items = take_turns(self._items(epoch, batch), self.together)
        flight = _Flight(slot, epoch, items, [self.plan(epoch, item) for item in items.tolist()])
        clips: dict[int, list[int]] = {}  # number of a clip to decode → rows of its crops
        for row, item in enumerate(items.tolist()):
            clips.setdefault(item // self.together, []).append(row)
        for rows in clips.values():
            first = flight.plans[rows[0]]
            parts = self.pack.locate(first.video, first.frames)
            flight.chunks.update(dict.fromkeys(rows, parts[0].chunk))
            self._numbers[self._next_number] = (flight, rows)
            crops = tuple((row, flight.plans[row].box) for row in rows)
            size = (self.clip.size, self.clip.size)
            backend.submit(self._next_number, ClipJob(flight.slot, parts, crops, size))
            self._next_number += 1
        flight.left = len(clips)
        self._flights.append(flight)
        self._planned = (epoch, batch + 1) if batch + 1 < len(self) else (epoch + 1, 0)

    def _collect(self, backend: Backend, *, block: bool = True) -> None:
        for number, failure in backend.wait(block=block):
            flight, rows = self._numbers.pop(number)
            flight.left -= 1
            if failure is not None:
                flight.failures.update(dict.fromkeys(rows, failure))

    def _report(self, flight: _Flight) -> None:
        for row, reason in sorted(flight.failures.items()):
            error = ClipError(flight.plans[row].sample, flight.chunks[row].file, reason)
            if self.on_error == "raise":
                raise error
            self.failed.append(error)
            log.warning("clip masked (%d so far): %s", len(self.failed), error)

    def _make(self, flight: _Flight, memory: NDArray[np.uint8]) -> Batch:
        """The batch of what lies in its slot; a GPU gets work for it, and is not waited for."""
        count = len(flight.plans)
        formats = (self.pack.formats[flight.chunks[row].codec] for row in range(count))
        affine = [
            after(ycbcr_to_rgb(fmt.matrix, fmt.full_range), color_change(plan.color))
            for plan, fmt in zip(flight.plans, formats, strict=True)
        ]
        flips = [plan.flip for plan in flight.plans]
        valid = [row not in flight.failures for row in range(count)]
        i420 = torch.from_numpy(memory[:count])
        video = to_video(
            i420.to(self.device, non_blocking=self.device.type == "cuda"),
            send(torch.from_numpy(np.stack(affine).astype(np.float32)), self.device),
            send(torch.tensor(flips), self.device) if any(flips) else None,
            size=(self.clip.size, self.clip.size),
            mean=self._mean,
            std=self._std,
        )
        if self.clip.modality == "difference":
            video = video[:, :, 1:] - video[:, :, :-1]
        for row, plan in enumerate(flight.plans):
            if plan.erase is not None:  # after normalisation 0 is the mean colour
                top, bottom, left, right = (round(part * self.clip.size) for part in plan.erase)
                video[row, :, :, top:bottom, left:right] = 0
        rows = self._rows(flight.items)
        return Batch(
            video=video,
            target=self._target(rows, flips),
            valid=send(torch.tensor(valid), self.device),
            index=torch.from_numpy(rows),
            samples=tuple(plan.sample for plan in flight.plans),
            num_valid=sum(valid),
            texts=tuple(self._caption(flight.epoch, item) for item in flight.items.tolist()),
            seeds=self._seeds(flight.epoch, flight.items),
        )

    def _caption(self, epoch: int, item: int) -> str:
        """One of the sample's captions, in training another in each epoch; "" without any."""
        captions = self.pack.captions(int(self.samples[item // self._per_sample]))
        if len(captions) < 2 or self.views is not None:
            return captions[0] if captions else ""
        rng = generator(self.seed, epoch, item, "caption")
        return captions[int(rng.integers(len(captions)))]

    def _start(self) -> Backend:
        if self._backend is None:
            pixels = frame_bytes((self.clip.size, self.clip.size))
            slots = self._prefetch + self._transfer.spare
            shape = (slots, self.batch_size, self.clip.decoded_frames, pixels)
            make = Processes if self.mode == "processes" else Threads
            self._backend = make(self.workers, self.pack.formats, shape)
            self._transfer.attach(self._backend.memory)
            self._free = list(range(slots))
        return self._backend

    def _drain(self) -> None:
        """Wait for what is being decoded and forget it."""
        while self._numbers and self._backend is not None:
            self._collect(self._backend)
        self._free.extend(flight.slot for flight in self._flights if flight.sent is None)
        self._flights.clear()

    def close(self) -> None:
        """End the workers and free the batch memory."""
        if self._backend is not None:
            self._backend.close()
            self._transfer.close()
        self._backend = None
        self._flights.clear()
        self._read.clear()
        self._numbers.clear()
        self._planned = (self.epoch, self.position)


def default_workers() -> int:
    """All cores this process may use, at most 16."""
    return min(len(os.sched_getaffinity(0)), 16)
