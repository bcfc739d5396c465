"""What the paper and its code say, and what these numbers are."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from matinee.measure.bench.ablation_tables import Row
from matinee.measure.result import Part, Table


@dataclass(frozen=True)
class Published:
    """A line of the tables in the read-me of the paper's code, all levers on: accuracies in
    percent, None where the table has none; `hours` of training.
    """

    data: str
    network: str
    name: str
    train: float | None
    test: float | None
    f1: float | None
    hours: float


SOURCE = "github.com/SahilNokhwal/annt, Readme.md, revision 63bdb94"
# Where the tables give one accuracy for both, it stands under test.
PUBLISHED = (
    Published("cifar10", "efficientnet", "EfficientNet-B0, CIFAR-10", None, 96, 96, 1.0),
    Published("cifar10", "vit", "ViT, CIFAR-10", None, 97, 97, 2.0),
    Published("cifar10", "resnet50", "ResNet50, CIFAR-10", None, 92, 92, 46 / 60),
    Published("cifar100", "efficientnet", "EfficientNet-B0, CIFAR-100", 81, 90, None, 1.1),
    Published("cifar100", "resnet50", "ResNet50, CIFAR-100", None, 75.2, None, 18 / 60),
    Published("cifar100", "vit", "ViT, CIFAR-100", 84, None, None, 2.5),
)
_TEXT = (
    f"Published figures are of runs with all three techniques ({SOURCE}). The read-me tells no "
    "times without them and no figures of one technique, so no gain can be read from it; the paper "
    "claims up to 70 % less training time. What the code measured:",
    "Pinned memory was on in both arms, so it made no difference between them.",
    "The tuned ResNet50 computes in fp16 without a scaled loss, in which small gradients vanish. "
    "Here it is bf16, or fp16 with a scaled loss.",
    "The tuned ResNet50 adds up two batches of 128 before an update, so it makes half the updates "
    "with twice the batch: another training, not the same one faster. EfficientNet's step that "
    "would accumulate is replaced by one that does not. Here the global batch stays and "
    "micro-batches are a part of it: accumulation saves memory, not arithmetic.",
    "Only the ResNet50 without techniques limits its gradients (to 0.01).",
    "The ResNet50's F1 is micro-averaged, which for single labels is the accuracy once more. Here "
    "F1 is the mean over classes.",
    "EfficientNet's 90 % on CIFAR-100, above the 81 % beside it, is the accuracy on 10,000 "
    "pictures drawn from the training set.",
    "ViT and EfficientNet began with pretrained weights; here all begin from scratch.",
)


def published(rows: Mapping[tuple[str, str], Sequence[Row]]) -> tuple[Part, list[dict[str, Any]]]:
    """The part about published figures, beside the same cell here; and its numbers."""
    cells, data = [], []
    for line in PUBLISHED:
        own = rows.get((line.data, line.network))
        # Without a GPU the fullest cell is that of the levers which can show.
        fullest = (
            next((row for row in reversed(own) if row.top1 is not None), None) if own else None
        )
        here = "not run"
        if fullest is not None and fullest.top1 is not None:
            here = f"{100 * fullest.top1.median:.1f} ({fullest.cell})"
        cells.append(
            [
                line.name,
                *(
                    "–" if held is None else f"{held:g}"
                    for held in (line.train, line.test, line.f1)
                ),
                f"{60 * line.hours:.0f} min" if line.hours < 1 else f"{line.hours:g} h",
                here,
            ]
        )
        data.append({**asdict(line), "source": SOURCE})
    columns = ["", "train, %", "test, %", "F1, %", "time", "here, %"]
    shown = Table(columns, cells, "As published, all techniques on")
    return Part("published", "The published figures", "\n\n".join(_TEXT), [shown]), data
