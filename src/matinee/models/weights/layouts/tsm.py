"""TSM and TSN: torchvision's ResNets, or a MobileNetV2, below `base_model.`.

A shifted convolution is called `….conv1.net.`, a shifted block or pooled stage `….net.`; a block
followed by a non-local one `….block.`, whose 1×1×1 convolutions are 1×1 ones here. The classifier
is `new_fc`, without dropout `base_model.fc` (or `.classifier`).

Source: TSM, arXiv 1811.08383; the repository mit-han-lab/temporal-shift-module.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence

from torch import Tensor

from matinee.models.weights.layouts.base import Entry, Layout, rename

_RULES = [
    (r"\.net\.", "."),
    (r"\.block\.", "."),
    (r"\.nl\.(g|phi)\.0\.", r".nl.\1."),
    (r"\.nl\.W\.0\.", ".nl.out."),
    (r"\.nl\.W\.1\.", ".nl.norm."),
    (r"^(new_fc|base_model\.fc|base_model\.classifier)\.", "classifier."),
]

# MobileNetV2's blocks in each of timm's stages, and what a block's modules are called there.
_STAGES = (1, 2, 3, 4, 3, 3, 1)
_FIRST = {0: "conv_dw", 1: "bn1", 3: "conv_pw", 4: "bn2"}  # the only block without expansion
_OTHER = {0: "conv_pw", 1: "bn1", 3: "conv_dw", 4: "bn2", 6: "conv_pwl", 7: "bn3"}


def _recognises(state: Mapping[str, Tensor]) -> bool:
    return any(key.startswith("base_model.") for key in state)


def _entries(state: Mapping[str, Tensor], known: Sequence[str]) -> Iterator[Entry]:
    for key, value in state.items():
        name = rename(key, _RULES)
        tensor = value.squeeze(2) if ".nl." in name and value.ndim == 5 else value
        if name.startswith("base_model."):
            name = f"backbone.{_mobilenet(name.removeprefix('base_model.'))}"
        yield name, tensor, key


def _mobilenet(name: str) -> str:
    """`features.3.conv.0.weight` as `blocks.1.1.conv_pw.weight`; other names as they are."""
    found = re.fullmatch(r"features\.(\d+)\.(?:conv\.)?(\d+)\.(\w+)", name)
    if not found:
        return name
    block, module, leaf = int(found[1]), int(found[2]), found[3]
    if block in (0, sum(_STAGES) + 1) and module in (0, 1):
        end = ("conv_stem", "bn1") if block == 0 else ("conv_head", "bn2")
        return f"{end[module]}.{leaf}"
    modules = _FIRST if block == 1 else _OTHER
    stage, within = 0, block - 1
    while stage < len(_STAGES) and within >= _STAGES[stage]:
        within -= _STAGES[stage]
        stage += 1
    if stage == len(_STAGES) or module not in modules:
        return name
    return f"blocks.{stage}.{within}.{modules[module]}.{leaf}"


TSM = Layout("TSM", _recognises, _entries)
