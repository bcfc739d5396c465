"""What was published, each with its source. Nothing here was measured.

The abstract is what could be read of arXiv 1910.00932; figures that only its own tables hold are
left out rather than guessed.
"""

from __future__ import annotations

from dataclasses import dataclass

PAPER = "Training Kinetics in 15 Minutes, arXiv 1910.00932"
ABSTRACT = f"{PAPER}, abstract"


@dataclass(frozen=True)
class Said:
    """A published figure as it is shown."""

    what: str
    value: str
    source: str


SPEED = (
    Said("throughput of TSM against the I3Ds before it", "1.8×", ABSTRACT),
    Said("training of TSM against two 3-D networks", "1.6× and 2.9× faster", ABSTRACT),
    Said(
        "TSM ResNet-50, 8 frames of 224²", "32.88 GMAC, 23.87 M parameters",
        "mmaction2, configs/recognition/tsm/README.md (FLOPs there are multiply-adds)",
    ),
    Said(
        "top-1 on Kinetics-400 over 10 clips", "TSM, 8 frames: 74.1 %; I3D, 32 frames: 73.3 %",
        "TSM's published code, README.md, beside Non-local's I3D (arXiv 1711.07971)",
    ),
)  # fmt: skip
SCALING = (
    Said("1 node of 6 V100s", "49 h 55 m", ABSTRACT),
    Said("1,536 V100s (256 nodes)", "14 m 13 s, 12,288 clips a step, top-1 74.0 %", ABSTRACT),
)
ONE_NODE_S = 49 * 3600 + 55 * 60
PUBLISHED_RANKS, PUBLISHED_S = 1536, 14 * 60 + 13
NODE = 6  # V100s of a node of Summit

TARGETS = {"i3d_333": 1.6, "i3d_311": 1.2}
"""How many times as fast as these TSM is wanted to train here."""


def published_efficiency() -> float:
    """Of 256 nodes against one: clips a second of each."""
    return ONE_NODE_S / PUBLISHED_S / (PUBLISHED_RANKS / NODE)
