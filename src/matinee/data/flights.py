"""Batches that are being decoded, and what their decoding took."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from matinee.data.clips import ClipPlan
from matinee.data.decode_cost import DecodeCost, Decoded
from matinee.data.decode_job import ClipJob
from matinee.data.transfer import Sent
from matinee.pack.reading.clip import ClipPart, Located


@dataclass
class Flight:
    """A batch being decoded: `left` decoded clips are still to come; `sent` once it is complete and
    on its way to the device.
    """

    slot: int
    epoch: int
    batch: int
    items: NDArray[np.int64]
    plans: list[ClipPlan]
    chunks: dict[int, Located] = field(default_factory=dict)  # row → where its first frame lies
    left: int = 0
    failures: dict[int, str] = field(default_factory=dict)
    sent: Sent | None = None
    submitted: float = 0.0
    """Seconds of CLOCK_MONOTONIC."""

    def jobs(
        self,
        crops: int,
        size: tuple[int, int],
        locate: Callable[[str, Sequence[int]], tuple[ClipPart, ...]],
        *,
        traced: bool,
    ) -> list[tuple[list[int], ClipJob]]:
        """Clips to decode, `crops` items of each: the rows that each fills, and its job."""
        clips: dict[int, list[int]] = {}  # number of a clip to decode → rows of its crops
        for row, item in enumerate(self.items.tolist()):
            clips.setdefault(item // crops, []).append(row)
        jobs = []
        for rows in clips.values():
            first = self.plans[rows[0]]
            parts = locate(first.video, first.frames)
            self.chunks.update(dict.fromkeys(rows, parts[0].chunk))
            boxes = tuple((row, self.plans[row].box) for row in rows)
            jobs.append((rows, ClipJob(self.slot, parts, boxes, size, traced)))
        self.left = len(jobs)
        return jobs


@dataclass(frozen=True)
class TracedJob:
    """A decoding job as a trace shows it: of which batch and rows, when, by whom."""

    epoch: int
    batch: int
    rows: tuple[int, ...]
    samples: tuple[str, ...]
    submitted: float
    decoded: Decoded
    collected: float


class CostSums:
    """Adds up what jobs took as they are collected; `on_job`, if set, is told of each."""

    def __init__(self) -> None:
        self.on_job: Callable[[TracedJob], None] | None = None
        self._total = DecodeCost()

    def add(self, flight: Flight, rows: Sequence[int], decoded: Decoded) -> None:
        """A job of a batch that was collected just now."""
        now = time.monotonic()
        self._total.add(decoded.seen(flight.submitted, now))
        if self.on_job is not None:
            samples = tuple(dict.fromkeys(flight.plans[row].sample for row in rows))
            self.on_job(
                TracedJob(
                    flight.epoch, flight.batch, tuple(rows), samples, flight.submitted, decoded, now
                )
            )

    def take(self) -> DecodeCost:
        """Since the last call."""
        taken, self._total = self._total, DecodeCost()
        return taken
