"""What the paper says. Figures without a table are marked so: they are claims of its text."""

from __future__ import annotations

from dataclasses import dataclass

README = "README"
"""Of github.com/zhaoyue-zephyrus/AVION, the published code: its main results."""
NOTE = (
    "README: main results in that of the published code, github.com/zhaoyue-zephyrus/AVION. "
    "Table 1: EgoVLP is a TimeSformer-B on 32 A100 (22 GB, 16 clips a GPU), AVION a ViT-B on 8 "
    "A5000 (19 GB, 256 clips a GPU). Table 2a: LaViLa is a TimeSformer-B on 32 V100. Table 3: "
    "ViT-B, 800 epochs, both on the same 4 A5000. 18 hours are a claim of the text (arXiv "
    "2309.16669), whose tables were not at hand; 130 GPU-hours of table 1 are 16 hours on 8 GPUs. "
    "6.7× is told at second hand, beside 11.8× in GPU-hours, which is that of EgoVLP to AVION as "
    "whole systems; of what exactly is not known here."
)


@dataclass(frozen=True)
class Published:
    """A figure before and after, or only a ratio; `source` says where it stands."""

    what: str
    before: str
    after: str
    ratio: float | None
    source: str


MEMORY = Published("memory, times less, of whole systems", "", "", 6.7, "second hand")
MEMORY_A_CLIP = Published(
    "GB of a GPU a clip, EgoVLP and AVION", "1.38", "0.074", (22 / 16) / (19 / 256),
    f"{README}, table 1",
)  # fmt: skip
GPU_HOURS = Published(
    "GPU-hours, EgoVLP and AVION", "1536", "130", 1536 / 130, f"{README}, table 1"
)
LAVILA_HOURS = Published(
    "GPU-hours, LaViLa and AVION", "1824", "260", 1824 / 260, f"{README}, table 2a"
)
VIDEOMAE_HOURS = Published(
    "GPU-hours, VideoMAE pretraining", "995", "583", 995 / 583, f"{README}, table 3"
)
HOURS_OF_A_DAY = Published("hours, 4 M pairs on 8 A5000", "", "18", None, "text")

ALL = (MEMORY, MEMORY_A_CLIP, GPU_HOURS, LAVILA_HOURS, VIDEOMAE_HOURS, HOURS_OF_A_DAY)
VIDEOMAE_STEP = 583 / 995
"""Of a VideoMAE step after to before, if loading and computing both count as GPU-hours do."""
