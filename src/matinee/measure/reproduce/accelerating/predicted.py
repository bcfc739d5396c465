"""What the planner predicts at the published size, on the card that was most likely used.

# Note [Which card]
Neither the paper nor its code names a GPU. The read-me and the notebooks are of Google Colab, with
`gpuClass: standard`, which was a Tesla T4; so a T4 is taken.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from matinee.measure.plan.assumptions import Assumptions
from matinee.measure.plan.cards import Card, read_cards
from matinee.measure.plan.memory import predict_memory
from matinee.measure.plan.step_time import compute_seconds
from matinee.measure.plan.work import count_work
from matinee.measure.reproduce.accelerating.sizes import (
    FULL,
    NAMES,
    PIXELS,
    RECIPES,
    network_config,
)
from matinee.measure.result import Part, Table
from matinee.training.precision import Precision

CARD = "T4"  # see Note [Which card]
PICTURES = 50_000
"""Of training, in both data sets."""
PARTS = 4
"""Micro-batches of a step with GA, as the ablation has them."""
CELLS: dict[str, tuple[int, Precision]] = {
    "none": (1, "fp32"), "GA": (PARTS, "fp32"), "AMP": (1, "fp16"), "GA+AMP": (PARTS, "fp16"),
}  # fmt: skip
PUBLISHED_MINUTES = (46, 18)
"""Of the ResNet50, all techniques on: CIFAR-10 and CIFAR-100, the same work but for 90 outputs."""


@dataclass(frozen=True)
class Predicted:
    """A cell of a network: minutes of all epochs, bytes at the fullest moment, and minutes that
    copies of pictures take by the link's rate.
    """

    network: str
    cell: str
    minutes: float
    memory: int
    copies: float


def predicted_part(tell: Callable[[float, str], None]) -> tuple[Part, list[dict[str, Any]]]:
    """The part of the page, and its numbers.

    `tell` hears which part of the whole is done, and what comes.
    """
    card, rows = read_cards()[CARD], []
    for number, network in enumerate(RECIPES):
        for place, cell in enumerate(CELLS):
            part = (number + place / len(CELLS)) / len(RECIPES)
            tell(part, f"the planner at the published size: {NAMES[network]}, {cell}")
            rows.append(_predict(network, cell, card))
    return _part(rows), [vars(row) for row in rows]


def _predict(network: str, cell: str, card: Card) -> Predicted:
    parts, precision = CELLS[cell]
    config = network_config(network, FULL, "")
    batch = config.optim.batch_size
    config = replace(
        config, optim=replace(config.optim, accumulate=parts, epochs=FULL.epochs),
        speed=replace(config.speed, precision=precision),
    )  # fmt: skip
    take = Assumptions()
    work = count_work(config, micro_batch=batch // parts, precision=precision, classes=10)
    seconds = compute_seconds(work, config, card, precision, take, parts).total
    memory = predict_memory(config, micro_batch=batch // parts, precision=precision, classes=10)
    steps = FULL.epochs * (PICTURES // batch)
    copied = batch * PIXELS**2 * 3 / (card.host_rate * take.link_efficiency)
    return Predicted(network, cell, steps * seconds / 60, memory.total, steps * copied / 60)


def _part(rows: list[Predicted]) -> Part:
    none = {row.network: row for row in rows if row.cell == "none"}
    table = Table(
        ("network, levers", "minutes", "times as fast", "memory, GB", "all copies take"),
        [
            (
                f"{NAMES[row.network]}, {row.cell}", f"{row.minutes:.0f}",
                f"{none[row.network].minutes / row.minutes:.2f}", f"{row.memory / 1e9:.1f}",
                f"{60 * row.copies:.1f} s",
            )
            for row in rows
        ],
        heading=f"{FULL.epochs} epochs of {PICTURES:,} pictures on a {CARD}, predicted",
        note=f"Batches of 128, GA in {PARTS} micro-batches, AMP in fp16. Taken for granted: what "
        "`matinee plan` prints with its sources; a loader that keeps up; memory with what CUDA "
        "takes for itself. Copies of pictures, at the rate that an all-reduce has on the link: "
        "pinned memory can spare no more than what pageable memory's slower rate adds to that.",
    )  # fmt: skip
    found = next(row.minutes for row in rows if (row.network, row.cell) == ("resnet50", "AMP"))
    first, second = PUBLISHED_MINUTES
    text = (
        f"Neither the paper nor its code names a GPU; its notebooks are of Google Colab, whose "
        f"standard one was a {CARD}. The ResNet-50 is the one network that was published as it is "
        f"here: 3×3 stem, 32², batches of 128, {FULL.epochs} epochs, fp16. It was published with "
        f"{first} minutes on CIFAR-10 and {second} on CIFAR-100, for the same work; predicted are "
        f"{found:.0f}. ViT and EfficientNet were published with pretrained weights and other "
        "settings, so that nothing stands beside theirs."
    )
    return Part("predicted", "Predicted at the published size", text, [table])
