"""Temporal shift and temporal pooling: a 2-D CNN sees neighbouring frames without parameters.

# Note [Temporal shift]
Features of all frames travel as one batch [B·T, C, H, W]. Before a residual block, an eighth of
the channels moves one frame forward in time and another eighth one frame back; frames beyond the
ends are zero. No parameters, no multiplications.

Placement. *Residual*: the first convolution of the residual branch sees the shifted features, the
shortcut keeps the unshifted ones. *In-place*: the whole block, shortcut included, sees shifted
features, so what was moved is lost to this frame.

Causal: only the forward move, for live video. A frame then depends on itself and on earlier
frames; see `matinee.models.live`.

Keys of the state dict. Residual placement wraps a convolution, `layer1.0.conv1.weight` becomes
`layer1.0.conv1.conv.weight`; in-place wraps a block, `layer1.0.conv1.weight` becomes
`layer1.0.block.conv1.weight`. Pooling changes no key.

Order. Pooling changes how many frames later modules see, so it comes first: image weights,
`add_temporal_pooling`, `add_temporal_shift`, then `matinee.models.non_local.add_non_local`.

Source: TSM, arXiv 1811.08383, §3 and §4.

# Note [Gradient of a shift]
The gradient of a shift is the shift in the other direction, so it costs as much: one copy of the
features. Left to autograd, each assignment to a slice becomes an operation of its own that fills,
copies and adds whole feature maps again; a training step of a ResNet-50 then took 1.3 times as long
on a CPU in float32, 1.4 times in bfloat16.
"""

from __future__ import annotations

from typing import Any, Literal, cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from matinee.errors import ConfigError, first_line
from matinee.extras import require
from matinee.models.blocks import block_names
from matinee.models.measure import dry_run
from matinee.models.shifted_conv import can_read_shifted, shifted_pointwise

Placement = Literal["residual", "in-place"]

DEEP_STAGE = 23
"""Blocks in a stage from which on only every second block is shifted (ResNet-101 and deeper)."""


def temporal_shift(x: Tensor, frames: int, divisor: int = 8, *, causal: bool = False) -> Tensor:
    """Shift `C // divisor` channels one frame forward and, unless causal, as many one frame back.

    Args:
        x: [B·T, C, H, W], frames of a clip adjacent.
        frames: T.
        divisor: d.
        causal: nothing comes from the next frame.

    Returns:
        A new tensor like `x`. Channels 0 … C/d - 1 hold the next frame's, C/d … 2C/d - 1 the
        previous frame's features; causal: channels 0 … C/d - 1 hold the previous frame's.
    """
    shifted: Tensor = _Shift.apply(x, frames, x.shape[1] // divisor, causal, False)
    return shifted


class _Shift(torch.autograd.Function):
    """A shift of `fold` channels each way, or its transpose; each is the other's gradient.

    See Note [Gradient of a shift].
    """

    @staticmethod
    def forward(x: Tensor, frames: int, fold: int, causal: bool, transposed: bool) -> Tensor:
        clips = x.view(-1, frames, *x.shape[1:])  # [B, T, C, H, W]
        shifted = torch.empty_like(x)
        out = shifted.view_as(clips)
        directions = (False,) if causal else (True, False)
        still = slice(len(directions) * fold, None)
        out[:, :, still] = clips[:, :, still]
        for group, from_next in enumerate(directions):
            moved = slice(group * fold, (group + 1) * fold)
            if from_next != transposed:
                out[:, :-1, moved] = clips[:, 1:, moved]
                out[:, -1, moved] = 0
            else:
                out[:, 1:, moved] = clips[:, :-1, moved]
                out[:, 0, moved] = 0
        return shifted

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        _, *ctx.how, transposed = inputs
        ctx.transposed = transposed

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        return _Shift.apply(grad, *ctx.how, not ctx.transposed), None, None, None, None


class TemporalModule(nn.Module):
    """A module that mixes the frames of a clip; its input [B·T, C, H, W] has T = `frames`."""

    def __init__(self, frames: int) -> None:
        super().__init__()
        self.frames = frames

    def extra_repr(self) -> str:
        return f"frames={self.frames}"


class TemporalShift(TemporalModule):
    """`temporal_shift` as a module."""

    def __init__(self, frames: int, divisor: int = 8, *, causal: bool = False) -> None:
        super().__init__(frames)
        self.divisor, self.causal = divisor, causal

    def forward(self, x: Tensor) -> Tensor:
        return temporal_shift(x, self.frames, self.divisor, causal=self.causal)

    def extra_repr(self) -> str:
        return f"{super().extra_repr()}, divisor={self.divisor}, causal={self.causal}"


class TemporalPool(TemporalModule):
    """Maximum over three neighbouring frames, every second one kept: T becomes ⌈T / 2⌉."""

    @property
    def frames_out(self) -> int:
        return (self.frames + 1) // 2

    def forward(self, x: Tensor) -> Tensor:
        """[B·T, C, H, W] → [B·⌈T/2⌉, C, H, W]."""
        clips = x.view(-1, self.frames, *x.shape[1:]).transpose(1, 2)  # [B, C, T, H, W]
        pooled = F.max_pool3d(clips, (3, 1, 1), stride=(2, 1, 1), padding=(1, 0, 0))
        return pooled.transpose(1, 2).flatten(0, 1)


class ShiftedConv(nn.Module):
    """A convolution whose input is shifted in time first (residual placement)."""

    def __init__(self, conv: nn.Module, shift: nn.Module) -> None:
        super().__init__()
        self.conv, self.shift = conv, shift

    def forward(self, x: Tensor) -> Tensor:
        """By Note [Shift without a copy] where that goes, else `copied`."""
        shift = self.shift
        if type(shift) is TemporalShift and can_read_shifted(self.conv, x):
            fold = x.shape[1] // shift.divisor
            weight = cast(Tensor, self.conv.weight)
            return shifted_pointwise(x, weight, shift.frames, fold, causal=shift.causal)
        return self.copied(x)

    def copied(self, x: Tensor) -> Tensor:
        """The convolution of a shifted copy."""
        out: Tensor = self.conv(self.shift(x))
        return out


class ShiftedBlock(nn.Module):
    """A residual block whose input, shortcut included, is shifted in time first (in-place)."""

    def __init__(self, block: nn.Module, shift: nn.Module) -> None:
        super().__init__()
        self.block, self.shift = block, shift

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.block(self.shift(x))
        return out


def add_temporal_shift(
    model: nn.Module,
    frames: int,
    divisor: int = 8,
    *,
    placement: Placement = "residual",
    every: int | None = None,
    causal: bool = False,
) -> list[str]:
    """Put a shift into the residual blocks of a timm CNN, changing `model`.

    Residual blocks are those of Note [Blocks]; those without a shortcut (`has_skip` False) are left
    alone.

    Args:
        model: the image network; pooling, if any, already added.
        frames: T at its input.
        divisor: 1/divisor of the channels moves each way.
        placement: see Note [Temporal shift].
        every: shift the first of each stage's blocks and every n-th after it. None, the published
            rule: every block, but with residual placement every second block of a network with a
            stage of 23 blocks or more.
        causal: forward moves only.

    Returns:
        Names of the modules that were wrapped: convolutions (residual) or blocks (in-place).

    Raises:
        ConfigError: the network has no such blocks, or too few channels; `every` below 1.
        ValueError: the network is shifted already.
    """
    if every is not None and every < 1:
        raise ConfigError(f"a shift in every {every}-th block: at least 1")
    if any(isinstance(module, TemporalShift) for module in model.modules()):
        raise ValueError("the network is shifted already")
    stages = _residual_stages(model)
    if not stages:
        raise ConfigError(
            f"{type(model).__name__} has no residual blocks with convolutions to shift: choose a "
            "CNN such as resnet50, or a recipe without the shift (tsn)"
        )
    if every is None:
        deep = max(map(len, stages)) >= DEEP_STAGE
        every = 2 if deep and placement == "residual" else 1
    seen = frames_seen(model, frames)
    wrapped = []
    for name, path in (block for stage in stages for block in stage[::every]):
        conv = model.get_submodule(path)
        if not isinstance(conv, nn.Conv2d):
            raise ConfigError(
                f"blocks of {type(model).__name__} share a convolution ({path}), which cannot be "
                "shifted for each: choose a CNN such as resnet50"
            )
        if conv.in_channels < divisor:
            raise ConfigError(
                f"{path} of {type(model).__name__} has {conv.in_channels} channels: none to shift"
            )
        shift = TemporalShift(seen[name], divisor, causal=causal)
        if placement == "residual":
            model.set_submodule(path, ShiftedConv(conv, shift))
        else:
            model.set_submodule(name, ShiftedBlock(model.get_submodule(name), shift))
        wrapped.append(path if placement == "residual" else name)
    return wrapped


def check_shift(model: nn.Module, frames: int, size: int) -> None:
    """Refuse a shifted network that hands its shifts anything but [B·T, C, H, W].

    Some networks have their channels last between blocks: there, rows of the picture would move.
    Others look into the convolutions that were wrapped. Nothing is computed but shapes.

    Args:
        frames, size: of a clip; pictures are square.

    Raises:
        ConfigError: such a network, by its name.
    """
    wrong: list[str] = []

    def look(shift: nn.Module, args: tuple[Tensor]) -> None:
        if args[0].ndim != 4 or args[0].shape[2] != args[0].shape[3]:
            wrong.append(str(list(args[0].shape)))

    shifts = [module for module in model.modules() if isinstance(module, TemporalShift)]
    hooks = [shift.register_forward_pre_hook(look) for shift in shifts]
    try:
        dry_run(model, frames, 3, size, size)
    except Exception as error:  # whatever a network's own code raises
        reason = f"its blocks cannot be wrapped ({first_line(error)})"
    else:
        reason = f"its features are not [N, C, H, W] but {wrong[0]}" if wrong else ""
    finally:
        for hook in hooks:
            hook.remove()
    if reason:
        raise ConfigError(
            f"{type(model).__name__} cannot be shifted in time so: {reason}; choose another "
            "--model.temporal.placement, or a network such as resnet50"
        )


def add_temporal_pooling(model: nn.Module, frames: int) -> None:
    """Halve the frames of a timm ResNet before its second stage, changing `model`.

    The network's output then has ⌈T/2⌉ rows a clip. An odd T keeps its first and last frame.

    Raises:
        ConfigError: not a ResNet, or a single frame.
        ValueError: shift, pooling or non-local blocks are there already: pooling comes first.
    """
    first = resnet_stages(model, "temporal pooling")[0]
    if frames < 2:
        raise ConfigError(f"temporal pooling over {frames} frame: give at least 2 frames")
    if any(isinstance(module, TemporalModule) for module in model.modules()):
        raise ValueError("temporal pooling is added before shift and non-local blocks")
    first.append(TemporalPool(frames))  # at the end of stage 1, where it renames nothing


def frames_seen(model: nn.Module, frames: int) -> dict[str, int]:
    """Frames that each module's input has, by name, when the network's has `frames`.

    Raises:
        ValueError: pooling was added for another number of frames.
    """
    seen = {}
    for name, module in model.named_modules():  # a ResNet registers its modules as it runs them
        seen[name] = frames
        if isinstance(module, TemporalPool):
            if module.frames != frames:
                raise ValueError(f"pooling was added for {module.frames} frames, not {frames}")
            frames = module.frames_out
    return seen


def resnet_stages(model: nn.Module, what: str) -> list[nn.Sequential]:
    """The four stages of a timm ResNet (ResNeXt, SE-ResNet, …).

    Raises:
        ConfigError: another network; `what` says what needs a ResNet.
    """
    if not isinstance(model, require("timm.models.resnet", "train").ResNet):
        raise ConfigError(
            f"{what} is defined for ResNets and {type(model).__name__} is none: "
            "choose one such as resnet50, or leave it out"
        )
    return [model.get_submodule(f"layer{i}") for i in range(1, 5)]


def _residual_stages(model: nn.Module) -> list[list[tuple[str, str]]]:
    """Names of the residual blocks with a shortcut and of their first convolutions, by stage."""
    stages: dict[str, list[tuple[str, str]]] = {}
    for name in block_names(model):
        block = model.get_submodule(name)
        path = _first_conv(block)
        if path is None or getattr(block, "has_skip", True) is False:
            continue
        stage = name.removesuffix(".block").rpartition(".")[0]  # .block: a non-local wrapper
        stages.setdefault(stage, []).append((name, f"{name}.{path}"))
    return list(stages.values())


def _first_conv(block: nn.Module) -> str | None:
    path: str
    for path, module in block.named_modules():
        if path.split(".")[0] in ("downsample", "shortcut", "drop_path", "se"):
            continue
        if isinstance(module, nn.Conv2d):
            return path
    return None
