"""From the spans of a loop and what its decoders did to the stages of a step."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from matinee.data.decode_cost import DecodeCost
from matinee.measure.diagnose.verdict import Stages

_NAMED = {"h2d": "h2d", "comm": "communication", "optimizer": "optimizer", "": "other"}
_BESIDE = frozenset(("save", "validate"))
Split = DecodeCost | Literal["memory"] | None
"""How waiting for data is told apart: by what decoders did; all data lies in memory, so that it is
making batches of it; or not at all."""


def stages_of_spans(spans: Mapping[str, float], split: Split) -> Stages:
    """Seconds of each stage, of spans that do not overlap.

    "data_wait" is storage and decode, in the proportion in which decoders read and did the rest of
    their work meanwhile; `data` where that is not known. "h2d", "comm" and "optimizer" are what
    they say, "" (time in no span) is `other`; "save" and "validate" belong to no step. All other
    spans are `compute`: what is computed has many names.
    """
    stages: Stages = {}

    def add(stage: str, seconds: float) -> None:
        stages[stage] = stages.get(stage, 0.0) + seconds

    for name, seconds in spans.items():
        if name in _BESIDE:
            continue
        if name != "data_wait":
            add(_NAMED.get(name, "compute"), seconds)
        elif split == "memory":
            add("h2d", seconds)
        elif split is None or split.busy_s <= 0:
            add("data", seconds)
        else:
            read = min(1.0, split.read_s / split.busy_s)
            add("storage", seconds * read)
            add("decode", seconds * (1 - read))
    return stages
