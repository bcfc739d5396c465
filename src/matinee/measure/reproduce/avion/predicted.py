"""What the planner predicts at the size that was published, on the cards that were used."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from matinee.measure.plan.assumptions import Assumptions
from matinee.measure.plan.batch import BatchPlan
from matinee.measure.plan.cards import Fleet, read_cards
from matinee.measure.plan.data_side import typical_footage
from matinee.measure.plan.memory import Memory, predict_memory
from matinee.measure.plan.published import (
    AVION_FACTS,
    VIDEOMAE,
    avion_hours,
    avion_plan,
    busy_without,
)
from matinee.measure.plan.whole import Plan, Wish, plan_run
from matinee.measure.result import Part, Table
from matinee.recipes import RECIPES

GB = 1e9
KINETICS_CLIPS, KINETICS_HOURS = 239_781, 667
"""Kinetics-400's training videos as PaddlePaddle's TSM has them, of ten seconds each."""


@dataclass(frozen=True)
class Row:
    """What was published (None: nothing), what is predicted, and what that takes for granted."""

    what: str
    published: float | None
    predicted: float
    unit: str
    taken: str

    @property
    def off(self) -> str:
        """By which part the prediction misses."""
        return "" if self.published is None else f"{self.predicted / self.published - 1:+.0%}"


def predicted_part(tell: Callable[[str], None]) -> tuple[Part, dict[str, Any]]:
    """The part of the page, and its numbers."""
    tell("the planner at the published size: contrastive")
    pairs = avion_plan()
    kept = _without_recompute(pairs)
    tell("the planner at the published size: VideoMAE")
    masked = videomae_plan()
    hours = avion_hours(pairs)
    memory = pairs.batch.memory
    rows = [
        Row(
            "contrastive, 8 A5000", 18.0, hours, "h",
            "5 epochs of 4.0 M clips, 256 on each GPU, fp16; copies to the GPU not done ahead, as "
            "in the published code",
        ),
        Row(
            "the same in GPU-hours", 130, 8 * hours, "GPU-h", "",
        ),
        Row("the same, copies done ahead", None, pairs.hours, "h", "as matinee does"),
        Row(
            "memory, 256 clips, recomputed", 19,
            memory.total / GB, "GB", "with what CUDA and its allocator take",
        ),
        Row(
            "memory, not recomputed", None, kept.total / GB, "GB",
            "does not fit the card's 24 GB",
        ),
        Row(
            "VideoMAE, 4 A5000", 583, masked.gpu_hours,
            "GPU-h", "800 epochs of 239,781 videos, a clip of each, 64 on each GPU, fp16; a loader "
            f"that keeps up; devices busy {masked.wish.take.busy:.2f} of the time, the median of "
            "four published runs without this one",
        ),
    ]  # fmt: skip
    table = Table(
        ("what", "published", "predicted", "off by"),
        [
            (
                row.what, "" if row.published is None else f"{row.published:g} {row.unit}",
                f"{row.predicted:.3g} {row.unit}",
                row.off,
            )
            for row in rows
        ],
        heading="AVION's runs, predicted without a GPU",
        note="Taken for granted. " + " ".join(
            f"{row.what[0].upper()}{row.what[1:]}: {row.taken}." for row in rows if row.taken
        ),
    )  # fmt: skip
    facts = Table(
        ("number", "value", "source"),
        [(f.name, f"{f.value:g} {f.unit}".strip(), f.source) for f in AVION_FACTS],
        heading="What goes in",
        note="And the planner's assumptions, which `matinee plan` prints with their sources.",
    )
    text = (
        "No A5000 is here. `matinee plan` counts the operations and the memory of the published "
        "networks without running them, and takes rates from the card's data sheet."
    )
    return Part("published-size", "Predicted at the published size", text, (table, facts)), {
        "rows": [vars(row) for row in rows]
    }


def _without_recompute(plan: Plan) -> Memory:
    wish = plan.wish
    config = replace(wish.config, speed=replace(wish.config.speed, recompute=0))
    return predict_memory(
        config, micro_batch=plan.batch.micro_batch, world=wish.fleet.count, precision="fp16",
        classes=1,
    )  # fmt: skip


def videomae_plan() -> Plan:
    """AVION's VideoMAE: `videomae_kinetics` on four A5000, 64 clips on each.

    This run is one of those that `Assumptions.busy` is the median of: it is left out here.
    """
    config = RECIPES["videomae_kinetics"]("", "")
    config = replace(config, speed=replace(config.speed, precision="fp16"))
    footage = typical_footage(
        KINETICS_CLIPS, KINETICS_HOURS, fps=30, profile="layered", height=288, stride=4
    )
    memory = predict_memory(config, micro_batch=64, world=4, precision="fp16", classes=1)
    batch = BatchPlan(64, 1, 0, "ddp", memory, 0.0, "As published.")
    facts = {fact.name: fact.value for fact in AVION_FACTS}
    busy = busy_without(VIDEOMAE)
    take = replace(Assumptions(), attention_efficiency=facts["attention"], busy=busy)
    fleet = Fleet(read_cards()["A5000"], 4, 4)
    return plan_run(Wish(config, fleet, footage, take, classes=1, batch=batch))
