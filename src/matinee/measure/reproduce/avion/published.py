"""What the paper says. Figures without a table are marked so: they are claims of its text."""

from __future__ import annotations

from dataclasses import dataclass

README = "github.com/zhaoyue-zephyrus/AVION, README, main results"


@dataclass(frozen=True)
class Published:
    """A figure before and after, or only a ratio; `source` says where it stands."""

    what: str
    before: str
    after: str
    ratio: float
    source: str


GPU_HOURS = Published(
    "Contrastive pretraining on Ego4D, GPU-hours: EgoVLP (TimeSformer-B, 32 A100) against AVION "
    "(ViT-B, 8 A5000)", "1536", "130", 1536 / 130, f"{README}, table 1"
)  # fmt: skip
MEMORY_A_CLIP = Published(
    "Memory of a GPU a clip of its batch, GB: EgoVLP (22 GB, batch 16) against AVION (19 GB, "
    "batch 256)", "1.38", "0.074", (22 / 16) / (19 / 256), f"{README}, table 1"
)  # fmt: skip
LAVILA_HOURS = Published(
    "The same with LaViLa's captions, GPU-hours: LaViLa (TimeSformer-B, 32 V100) against AVION",
    "1824", "260", 1824 / 260, f"{README}, table 2a",
)  # fmt: skip
VIDEOMAE_HOURS = Published(
    "VideoMAE pretraining, ViT-B, 800 epochs, GPU-hours on the same 4 A5000", "995", "583",
    995 / 583, f"{README}, table 3",
)  # fmt: skip
MEMORY = Published(
    "Memory, as the paper sums it up", "", "", 6.7,
    "arXiv 2309.16669; the table behind this figure was not at hand",
)  # fmt: skip
HOURS_OF_A_DAY = Published(
    "Contrastive pretraining on 4 M pairs, hours on 8 A5000", "", "18", 0,
    "arXiv 2309.16669; table 1 of the README has 130 GPU-hours, 16 on 8 GPUs",
)  # fmt: skip

ALL = (MEMORY, MEMORY_A_CLIP, GPU_HOURS, LAVILA_HOURS, VIDEOMAE_HOURS, HOURS_OF_A_DAY)
VIDEOMAE_STEP = 583 / 995
"""Of a VideoMAE step after to before, if loading and computing both count as GPU-hours do."""
