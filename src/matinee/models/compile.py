"""torch.compile for each kind of network, in place: no key of the state dict changes."""

from __future__ import annotations

import torch
from torch import nn

from matinee.models.dual import DualEncoder
from matinee.models.text import SentenceText

RECOMPILATIONS = 64
"""Of one network before PyTorch would go on uncompiled: modes, last batches and stages count."""


def compile_model(model: nn.Module, mode: str) -> None:
    """Compile a network when it is first called, and again for clips of another shape.

    Of a dual encoder both towers are, but for a sentence encoder, which is never trained.

    Args:
        mode: as `torch.compile` takes it.
    """
    config = torch._dynamo.config
    config.recompile_limit = max(config.recompile_limit, RECOMPILATIONS)
    towers = [model.video, model.text] if isinstance(model, DualEncoder) else [model]
    for tower in towers:
        if not isinstance(tower, SentenceText):
            tower.compile(mode=mode)
