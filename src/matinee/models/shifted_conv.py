"""A 1×1 convolution of features that are shifted in time, without moving them.

# Note [Shift without a copy]
Residual placement shifts what a block's first convolution reads. In a bottleneck that is a 1×1
convolution: a product of a matrix whose rows are the positions of all frames, one frame after the
other, and whose columns are channels. To shift some channels by a frame is to read their columns
H·W rows further on. So the product is cut by columns into three, for channels that stay, that come
from the next frame and from the previous one, and each reads its rows where they lie. Nothing is
copied in either pass, and nothing but the input is kept for the backward pass.

Seconds of a training step of a ResNet-50 (a clip of 8 × 224², Xeon with AMX), without a shift, with
this one, with copies: float32 2.33, 2.35, 2.55 on one core and 1.00, 1.05, 1.10 on two; bfloat16
1.06, 1.05, 1.13 and 0.54, 0.58, 0.64. `matinee reproduce kinetics15` measures the first two.

Sums are rounded to the number format three times instead of once.

Elsewhere features are copied: for other convolutions; where channels are not innermost; on GPUs,
where neither way was measured against the other; and under torch.compile, which makes the copy a
part of its kernels.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable


def can_read_shifted(conv: nn.Module, x: Tensor) -> bool:
    """Whether `shifted_pointwise` computes this convolution of `x`, and should."""
    return (
        type(conv) is nn.Conv2d
        and conv.kernel_size == conv.stride == (1, 1)
        and conv.padding == (0, 0)
        and conv.groups == 1
        and conv.bias is None
        and x.device.type == "cpu"
        and x.is_contiguous(memory_format=torch.channels_last)
        and not conv._forward_hooks
        and not conv._forward_pre_hooks  # such as those of torch.nn.utils.prune
        and not torch.compiler.is_compiling()
    )


def shifted_pointwise(
    x: Tensor, weight: Tensor, frames: int, fold: int, *, causal: bool = False
) -> Tensor:
    """`F.conv2d(temporal_shift(x), weight)`, up to rounding; see Note [Shift without a copy].

    Args:
        x: [B·T, C, H, W], channels innermost, frames of a clip adjacent.
        weight: [O, C, 1, 1].
        frames: T.
        fold: channels that move each way, C // divisor.
        causal: nothing comes from the next frame.

    Returns:
        [B·T, O, H, W], channels innermost; under autocast in its number format.
    """
    if torch.is_autocast_enabled("cpu"):
        kind = torch.get_autocast_dtype("cpu")
        x, weight = x.to(kind), weight.to(kind)
    with torch.autocast("cpu", enabled=False):
        out: Tensor = _ShiftedProduct.apply(x, weight, frames, fold, causal)
    return out


class _Move(NamedTuple):
    """Channels `columns` of a clip's rows `reads` count for its rows `counts`; those of the rows
    `unread` count for none.
    """

    columns: slice
    counts: slice
    reads: slice
    unread: slice


def _moves(picture: int, rows: int, fold: int, causal: bool) -> list[_Move]:
    """Of clips of so many rows, `picture` = H·W of them a frame."""
    early, late = slice(0, rows - picture), slice(picture, rows)
    first, last = slice(0, picture), slice(rows - picture, rows)
    if causal:
        return [_Move(slice(0, fold), late, early, last)]
    return [
        _Move(slice(0, fold), early, late, first),
        _Move(slice(fold, 2 * fold), late, early, last),
    ]


class _ShiftedProduct(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: Tensor, frames: int, fold: int, causal: bool
    ) -> Tensor:
        ctx.save_for_backward(x, weight)
        ctx.how = frames, fold, causal
        rows, columns = _clips(x, frames), weight.flatten(1)  # [B, T·H·W, C], [O, C]
        moves = _moves(x.shape[2] * x.shape[3], rows.shape[1], fold, causal)
        still = slice(len(moves) * fold, None)
        out = rows.new_empty(*rows.shape[:2], len(columns))
        torch.mm(rows.flatten(0, 1)[:, still], columns[:, still].t(), out=out.flatten(0, 1))
        for move in moves:
            moved = columns[:, move.columns].t()
            for clip, to in zip(rows, out, strict=True):
                to[move.counts].addmm_(clip[move.reads, move.columns], moved)
        return _pictures(out, x)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        x, weight = ctx.saved_tensors
        frames, fold, causal = ctx.how
        rows, columns = _clips(x, frames), weight.flatten(1)
        grads = _clips(grad, frames)  # [B, T·H·W, O]
        moves = _moves(x.shape[2] * x.shape[3], rows.shape[1], fold, causal)
        still = slice(len(moves) * fold, None)
        of_x = of_weight = None
        if ctx.needs_input_grad[0]:
            of_x = torch.empty_like(rows)
            flat = of_x.flatten(0, 1)
            torch.mm(grads.flatten(0, 1), columns[:, still], out=flat[:, still])
            for move in moves:
                of_x[:, move.unread, move.columns] = 0
                for clip, to in zip(grads, of_x, strict=True):
                    target = to[move.reads, move.columns]
                    torch.mm(clip[move.counts], columns[:, move.columns], out=target)
            of_x = _pictures(of_x, x)
        if ctx.needs_input_grad[1]:
            of_weight = torch.zeros_like(weight)  # with its strides, as DDP's buckets have them
            target = of_weight.flatten(1)
            all_grads, all_rows = grads.flatten(0, 1), rows.flatten(0, 1)
            torch.mm(all_grads.t(), all_rows[:, still], out=target[:, still])
            for move in moves:
                for clip, source in zip(grads, rows, strict=True):
                    part = source[move.reads, move.columns]
                    target[:, move.columns].addmm_(clip[move.counts].t(), part)
        return of_x, of_weight, None, None, None


def _clips(x: Tensor, frames: int) -> Tensor:
    """[B·T, C, H, W] with channels innermost → [B, T·H·W, C]: a view where they are."""
    return x.permute(0, 2, 3, 1).reshape(-1, frames * x.shape[2] * x.shape[3], x.shape[1])


def _pictures(rows: Tensor, like: Tensor) -> Tensor:
    """[B, T·H·W, C] → [B·T, C, H, W] of `like`, a view with channels innermost."""
    return rows.view(len(like), *like.shape[2:], rows.shape[2]).permute(0, 3, 1, 2)
