"""What is known of a run when changes to it are looked for: plain values, whatever their source."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from matinee.data.decode_cost import DecodeCost
from matinee.measure.diagnose.verdict import Stages
from matinee.measure.plan.batch import BatchPlan
from matinee.training.config import TrainConfig


@dataclass(frozen=True)
class Stored:
    """The videos of a pack: its profile by fields of pack.json (None: indexed files), the picture
    stored in pixels, and whether it lies elsewhere, with a cache here.
    """

    path: str
    profile: Mapping[str, object] | None
    width: int
    height: int
    codec: str = "h264"
    remote: bool = False
    cached: bool = False
    video_frames: int = 300
    """Of a typical video; uniform clips spread over so many."""


@dataclass(frozen=True)
class Loading:
    """Who loads, and at what cost: `cost` of `steps` steps on one rank, by `decoders` decoders."""

    decoders: int
    mode: str
    cost: DecodeCost
    steps: int

    def per_clip(self, seconds: float) -> float:
        """Of a sum in `cost`."""
        return seconds / max(1, self.cost.clips)

    @property
    def work_s(self) -> float:
        """Seconds a clip that a decoder is busy, but not waiting for storage."""
        return self.per_clip(max(0.0, self.cost.busy_s - self.cost.read_s))

    @property
    def read_s(self) -> float:
        """Seconds a clip that a decoder waits for storage."""
        return self.per_clip(self.cost.read_s)

    def to_dict(self) -> dict[str, float | str]:
        """Means of a clip, and decoded clips a step."""
        cost = self.cost
        times = ("read_s", "decode_s", "scale_s", "busy_s", "queued_s", "handoff_s")
        counts = ("bytes", "packets", "frames_decoded", "frames_used")
        return {
            "decoders": self.decoders, "mode": self.mode,
            "clips_a_step": cost.clips / max(1, self.steps),
            **{f"{name[:-2]}_ms": 1000 * self.per_clip(getattr(cost, name)) for name in times},
            **{name: self.per_clip(getattr(cost, name)) for name in counts},
        }  # fmt: skip

    @property
    def rest_share(self) -> float:
        """Part of a decoder's time that is not waiting for storage."""
        busy = self.cost.busy_s
        return max(0.0, busy - self.cost.read_s) / busy if busy > 0 else 1.0


@dataclass(frozen=True)
class Facts:
    """Of one diagnosis.

    `stages`: seconds a step; `precision` as used; `idle_cores`: of this rank's share of its
    machine while it trained; `room`: how the batch would best pass through this device's memory
    (None: not asked, or nothing to gain); `bf16_s`: what a step on data that are there saves in
    bf16, measured (None: it was not); `gradient_bytes`: that a step averages over ranks; `ranks_s`:
    seconds that each rank's own work takes a step, and `hosts` their machines.
    """

    config: TrainConfig
    stages: Stages
    device: str = "cpu"
    precision: str = "fp32"
    world: int = 1
    loading: Loading | None = None
    stored: Stored | None = None
    idle_cores: float = 0.0
    room: BatchPlan | None = None
    bf16_s: float | None = None
    gradient_bytes: int = 0
    ranks_s: Sequence[float] = ()
    hosts: Sequence[str] = ()

    @property
    def step_s(self) -> float:
        return sum(self.stages.values())

    def stage(self, name: str) -> float:
        return max(0.0, self.stages.get(name, 0.0))

    @property
    def waiting(self) -> float:
        """Seconds a step that training waits for clips."""
        return self.stage("storage") + self.stage("decode") + self.stage("data")

    @property
    def shares_cores(self) -> bool:
        """Training computes on the cores that decode."""
        return self.device == "cpu" and self.idle_cores < 0.5

    def saved_by_loading(self, factor: float, *, of: str) -> float:
        """Seconds a step that are saved if decoders need `factor` times as long for a clip.

        `of`: the stage that may shrink. Where decoders hold training up, their pace is the step's,
        and the step follows them until something else holds it up. Where they share cores with
        training, waiting shrinks in proportion.
        """
        factor = min(max(factor, 0.0), 1.0)
        wait = self.stage(of) + self.stage("data")
        if self.shares_cores:
            return wait * (1 - factor)
        return min(wait, self.step_s * (1 - factor))
