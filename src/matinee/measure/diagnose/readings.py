"""From what arms measured in a round to what each stage costs a step.

# Note [Arms of a diagnosis]
The same steps are made in several ways, which take turns (see Note [Interleaving]):

- `whole`: as training does;
- `synthetic`: on batches that are on the device already; nothing is decoded meanwhile;
- `alone` (several ranks, DDP): the same, each rank for itself;
- `loader`: batches are fetched and dropped.

What a stage costs is what a step would save without it. Data: whole − synthetic. Of that the span
`h2d` is what taking batches to the device costs (on a CPU the training process makes floats of
pictures). While training waits for decoders (`data_wait`), these read for one part of their time
and decode for the rest, and the waiting is divided so. What is left, positive where decoders and
training share cores, is decoding's. Communication: synthetic − the slowest rank's alone, for of
what ranks send each other only that counts which their own work does not hide. Stragglers: the
slowest rank's alone − the median rank's (of an even number the faster one of the two in the
middle). The median rank's time is divided as its spans say; what they leave is `other`. So stages
add up to the whole step, round by round.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from matinee.data.decode_cost import DecodeCost
from matinee.measure.diagnose.verdict import Stages

LOADING = ("data_wait", "h2d")
JOINING = "comm"
_UPDATE = "optimizer"


@dataclass(frozen=True)
class Reading:
    """One arm's turn on one rank: seconds of each of its steps, of spans in all of them, what
    loading cost meanwhile, and how many cores of this machine's had nothing to do.
    """

    steps: tuple[float, ...]
    spans: Mapping[str, float] = field(default_factory=dict)
    cost: DecodeCost = field(default_factory=DecodeCost)
    idle_cores: float = 0.0

    @property
    def step_s(self) -> float:
        """The mean: steps that wait pay for those that did not have to."""
        return sum(self.steps) / len(self.steps)

    def span(self, *names: str) -> float:
        """Seconds a step."""
        return sum(self.spans.get(name, 0.0) for name in names) / len(self.steps)


Round = Mapping[str, Sequence[Reading]]
"""Arm → the reading of each rank."""


def stages_of(arms: Round, *, decoded: bool = True) -> Stages:
    """Seconds a step of each stage; see Note [Arms of a diagnosis].

    Args:
        arms: whole, synthetic, and with several ranks alone if it could be measured.
        decoded: False for data that nobody decodes, such as image sets: all loading is `h2d`.
    """
    whole = max(reading.step_s for reading in arms["whole"])
    synthetic = max(reading.step_s for reading in arms["synthetic"])
    # Without `alone`, ranks waited for each other all the time: stragglers cannot be told.
    own = arms.get("alone", arms["synthetic"])
    order = sorted(own, key=lambda reading: reading.step_s)
    median, slowest = order[(len(order) - 1) // 2], order[-1]
    slowest_s = slowest.step_s if "alone" in arms else median.step_s
    stages = _loading(arms, whole - synthetic, decoded=decoded) | _working(median)
    if len(order) > 1:
        stages["other"] -= median.span(JOINING)
        stages["communication"] = synthetic - slowest_s + median.span(JOINING)
        stages["stragglers"] = slowest_s - median.step_s
    return stages


def loading_cost(arms: Round, rank: int) -> DecodeCost:
    """What decoders did while a rank trained; where all clips had been decoded before, what they
    did for the loader alone.
    """
    cost = arms["whole"][rank].cost
    return cost if cost.clips or "loader" not in arms else arms["loader"][rank].cost


def _loading(arms: Round, data: float, *, decoded: bool) -> Stages:
    """`data` seconds, divided as on the rank that waited longest: all others waited for it."""
    if not decoded:
        return {"storage": 0.0, "decode": 0.0, "h2d": data}
    ranks = arms["whole"]
    slowest = max(ranks, key=lambda reading: reading.span(*LOADING))
    cost, conversion = loading_cost(arms, ranks.index(slowest)), slowest.span("h2d")
    reading = cost.read_s / cost.busy_s if cost.busy_s > 0 else 0.0
    storage = slowest.span("data_wait") * min(reading, 1.0)
    return {"storage": storage, "decode": data - conversion - storage, "h2d": conversion}


def _working(rank: Reading) -> Stages:
    """A step's time on data that are there, by its spans."""
    names = set(rank.spans) - {*LOADING, JOINING, _UPDATE}
    compute, update = rank.span(*names), rank.span(_UPDATE)
    left = rank.step_s - compute - update
    return {"compute": compute, "optimizer": update, "other": left}
