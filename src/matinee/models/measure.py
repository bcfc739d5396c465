"""What a network costs: parameters, and multiply-adds of one clip."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from matinee.models.base import VideoModel


@dataclass(frozen=True)
class ModelCost:
    """Parameters, and floating point operations of the forward pass of one clip.

    Papers print multiply-adds (GMAC), often under the name of FLOPs; a multiply-add is two floating
    point operations. Convolutions, matrix products and attention are counted; normalisation,
    activations and pooling, some hundredths of the whole, are not.
    """

    parameters: int
    flops: int

    @property
    def gflops(self) -> float:
        """10⁹ floating point operations."""
        return self.flops / 1e9

    @property
    def gmac(self) -> float:
        """10⁹ multiply-adds."""
        return self.flops / 2e9


def dry_run(model: nn.Module, *shape: int) -> None:
    """A forward pass in evaluation mode with shapes alone; the model is left as it was.

    Parameters, buffers and the input are stood in for by tensors without storage.
    """
    stand_ins = {
        name: torch.empty_like(tensor, device="meta")
        for name, tensor in (*model.named_parameters(), *model.named_buffers())
    }
    modes = [(module, module.training) for module in model.modules()]
    model.eval()
    try:
        with torch.no_grad():
            torch.func.functional_call(model, stand_ins, (torch.empty(shape, device="meta"),))
    finally:
        for module, training in modes:
            module.training = training


def model_cost(model: VideoModel, size: int) -> ModelCost:
    """Cost of a network for one clip of its own number of frames, `size` × `size` pixels.

    Nothing is computed (see `dry_run`); on tensors without storage, attention is also made of the
    matrix products that are counted. Modes are as in evaluation, so no patch is dropped.
    """
    with FlopCounterMode(display=False) as counter:
        dry_run(model, 1, 3, model.frames, size, size)
    return ModelCost(
        parameters=sum(parameter.numel() for parameter in model.parameters()),
        flops=counter.get_total_flops(),
    )
