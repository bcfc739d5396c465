"""What reading clips took: sums that every decoding job sends along with its result.

# Note [What a clip costs]
A job is timed where it is done, with the clock that all processes of a machine share
(CLOCK_MONOTONIC), so that its times can be set against those of the loader:

    submitted ──queued── begin ──read, decode, scale── end ──hand-off── collected

Reading, decoding and scaling take turns within a job; what `busy_s` holds beyond them is planning
packets and parsing tables. Before and after it a job waits. It waits long in the queue where
decoders are too few or too slow, and long to be collected where they are ahead of the training
loop, which collects when it asks for a batch. Neither is work, and neither adds to a step.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

from matinee.media.work import Stretch, Work


@dataclass
class DecodeCost:
    """Sums over decoding jobs; two of them add up. Seconds are those of all decoders together."""

    clips: int = 0
    """Decoded; several crops of the same frames are one."""
    bytes: int = 0
    """Read from storage or its cache: videos and their packet tables."""
    read_s: float = 0.0
    """Waiting for storage: files, range requests, the cache of remote packs."""
    decode_s: float = 0.0
    """Checking and feeding packets, receiving frames."""
    scale_s: float = 0.0
    """Cropping, scaling and writing into the batch."""
    packets: int = 0
    """Fed to decoders. 0 where a GPU decodes, which does not tell."""
    frames_decoded: int = 0
    """Received from decoders. 0 where a GPU decodes."""
    frames_used: int = 0
    """Different frames that clips are made of."""
    busy_s: float = 0.0
    """Whole jobs."""
    queued_s: float = 0.0
    """From being submitted until a decoder began. See Note [What a clip costs]."""
    handoff_s: float = 0.0
    """From the end of a job until the loader collected it: long where decoders are ahead."""

    def __add__(self, other: DecodeCost) -> DecodeCost:
        total = DecodeCost(**vars(self))
        total.add(other)
        return total

    def add(self, other: DecodeCost) -> None:
        """As `+`, in place."""
        mine = vars(self)
        for name, value in vars(other).items():
            mine[name] += value

    def to_dict(self) -> dict[str, float]:
        return asdict(self)


class Decoded(NamedTuple):
    """What became of one job.

    `failure` says why the clip could not be read, None if it was. `cost` is without what only the
    loader knows. `begin` and `end` are seconds of CLOCK_MONOTONIC; `decoder` is who did it: process
    and thread, as the system numbers them. `stretches` are there if the job asked for them.
    """

    failure: str | None
    cost: DecodeCost
    begin: float
    end: float
    decoder: tuple[int, int]
    stretches: tuple[Stretch, ...] = ()

    def packed(self) -> tuple[Any, ...]:
        """As plain values, which travel between processes in a tenth of the time of classes."""
        stretches = tuple(tuple(stretch) for stretch in self.stretches)
        return (self.failure, tuple(vars(self.cost).values()), *self[2:5], stretches)

    @staticmethod
    def unpacked(values: tuple[Any, ...]) -> Decoded:
        """From what `packed` gave."""
        failure, cost, begin, end, decoder, stretches = values
        return Decoded(
            failure, DecodeCost(*cost), begin, end, decoder, tuple(Stretch(*s) for s in stretches)
        )

    def seen(self, submitted: float, collected: float) -> DecodeCost:
        """The cost, with how long the job waited before and after, given when that was."""
        self.cost.queued_s = self.begin - submitted
        self.cost.handoff_s = collected - self.end
        return self.cost


def cost_of(work: Work, *, clips: int, busy_s: float) -> DecodeCost:
    """Of a job that did this work."""
    seconds = work.seconds
    return DecodeCost(
        clips, work.bytes, seconds["read"], seconds["decode"], seconds["scale"], work.packets,
        work.frames_decoded, work.frames_used, busy_s,
    )  # fmt: skip
