"""Inflation: the kernels of a 2-D CNN become 3-D ones, and pretrained image weights carry over.

# Note [Inflation]
An I3D is a ResNet of 1 × k × k convolutions in which one convolution of a block also spans three
frames. Everything else treats a frame like an image: a 1 × k × k convolution or pooling of a clip
is the k × k one of its frames, and batch normalisation over [B, T, H, W] is the one over
[B·T, H, W]. So all of that stays the 2-D network's own code on one batch of frames
[B·T, C, H, W], as in a TSM (Note [Temporal shift]), and only the inflated convolutions see
[B, C, T, H, W]. In channels_last memory the two are views of the same numbers: nothing is copied.

Time is padded with zeros and has no stride; the stem stays 1 × 7 × 7, the shortcuts and
squeeze-and-excitation look at a frame each.

  3x3x3   the block's first convolution wider than 1 × 1 becomes 3 × k × k: the middle one of a
          bottleneck, the first of a basic block, the depthwise one of a mobile block.
  3x1x1   the block's first 1 × 1 convolution becomes 3 × 1 × 1. Basic blocks have none.

Source: I3D, arXiv 1705.07750; Non-local, arXiv 1711.07971, §4; arXiv 1910.00932.
"""

from __future__ import annotations

import math
from collections import Counter
from typing import Literal, cast

from torch import Tensor, nn
from torch.nn import functional as F

from matinee.errors import ConfigError
from matinee.models.blocks import block_names
from matinee.models.frames import FrameModel

Kernel = Literal["3x3x3", "3x1x1"]
Init = Literal["center", "average"]

TAPS = 3  # frames that an inflated convolution spans
ASIDE = {"downsample", "shortcut", "drop_path", "se", "attn"}  # not on the residual branch itself


class InflatedConv(nn.Conv3d):
    """A 2-D convolution that spans three frames; parameters keep its names, with a time axis."""

    def __init__(self, conv: nn.Conv2d, frames: int, init: Init = "center") -> None:
        height, width = conv.kernel_size
        super().__init__(
            conv.in_channels,
            conv.out_channels,
            (TAPS, height, width),
            stride=(1, conv.stride[0], conv.stride[1]),
            padding=(TAPS // 2, *cast(tuple[int, int], conv.padding)),
            dilation=(1, conv.dilation[0], conv.dilation[1]),
            groups=conv.groups,
            bias=conv.bias is not None,
            device=conv.weight.device,
            dtype=conv.weight.dtype,
        )
        self.frames = frames
        # TensorFlow's padding depends on the size of the picture; timm's subclass computes it.
        self.pads_like_tensorflow = type(conv) is not nn.Conv2d
        image = conv.weight.detach()
        self.weight = nn.Parameter(inflate_kernel(image, init), conv.weight.requires_grad)
        self.bias = conv.bias

    def forward(self, x: Tensor) -> Tensor:
        """[B·T, C, H, W], frames of a clip adjacent → [B·T, K, h, w]."""
        if self.pads_like_tensorflow:
            x = _pad_like_tensorflow(x, self)
        clips = x.view(-1, self.frames, *x.shape[1:]).transpose(1, 2)  # [B, C, T, H, W]
        out = super().forward(clips)
        return out.transpose(1, 2).flatten(0, 1)


def inflate_kernel(weight_KCHW: Tensor, init: Init) -> Tensor:
    """An image kernel [K, C, h, w] over three frames [K, C, 3, h, w].

    center: the image kernel on the present frame, zeros beside it, so that the network begins as
    the image network. average: a third of it on each frame; a still video then gives the image
    network's activations, but for the clip's ends, where zeros follow.
    """
    if init == "average":
        return (weight_KCHW / TAPS).unsqueeze(2).repeat(1, 1, TAPS, 1, 1)
    return F.pad(weight_KCHW.unsqueeze(2), (0, 0, 0, 0, TAPS // 2, TAPS // 2))


def inflate(
    backbone: nn.Module, frames: int, *, kernel: Kernel, every: int = 1, init: Init = "center"
) -> list[str]:
    """Let one convolution of each residual block span three frames, in place.

    Load image weights first: they are what gets inflated. The network then takes frames of clips
    of T = `frames`, [B·T, 3, H, W]; see Note [Inflation].

    Args:
        backbone: a timm CNN: ResNet, ResNeXt, RegNet, EfficientNet, MobileNet, … A residual block
            is what Note [Blocks] says.
        frames: T.
        kernel: which convolution; blocks without such a one stay as they are.
        every: 2: every second block of a stage, from its first.
        init: see `inflate_kernel`.

    Returns:
        Names of the inflated convolutions.

    Raises:
        ConfigError: the network has no such convolution, or one of a kind that cannot be inflated.
    """
    found = []
    seen: Counter[str] = Counter()
    for name in block_names(backbone):
        path = _choose(backbone.get_submodule(name), kernel)
        if path is None:
            continue
        stage = name.rpartition(".")[0]
        if seen[stage] % every == 0:
            found.append(f"{name}.{path}")
        seen[stage] += 1
    if not found:
        raise ConfigError(_why_not(backbone, kernel))
    convs = {name: cast(nn.Conv2d, backbone.get_submodule(name)) for name in found}
    for name, conv in convs.items():
        kind = type(conv).__name__
        if kind not in ("Conv2d", "Conv2dSame"):
            raise ConfigError(
                f"{name} of {type(backbone).__name__} is a {kind}, which would lose its meaning "
                "with a time axis: choose a network of plain convolutions such as resnet50"
            )
    for name, conv in convs.items():
        parent, _, own = name.rpartition(".")
        setattr(backbone.get_submodule(parent), own, InflatedConv(conv, frames, init))
    return found


class InflatedModel(FrameModel):
    """An inflated network (I3D): features of all frames are averaged, then classified once.

    `dropout` is drawn for the averaged features of a clip, so the backbone must have none.

    Raises:
        ConfigError: a network that classifies feature maps.
    Source: Non-local, arXiv 1711.07971, §4.1.
    """

    def __init__(
        self,
        backbone: nn.Module,
        frames: int,
        dropout: float = 0.0,
        *,
        partial_bn: bool = False,
        fixed_size: int | None = None,
    ) -> None:
        super().__init__(backbone, frames, partial_bn=partial_bn, fixed_size=fixed_size)
        assert not getattr(backbone, "drop_rate", 0), "dropout belongs after the average"
        classifier = self.backbone.get_classifier()
        if not isinstance(classifier, nn.Linear | nn.Identity):
            raise ConfigError(
                f"the classifier of this {type(backbone).__name__} is a "
                f"{type(classifier).__name__}, which cannot follow an average over time: choose a "
                "network with a linear one such as resnet50"
            )
        self.dropout = nn.Dropout(dropout)

    def forward(self, video_BCTHW: Tensor, *, features: bool = False) -> Tensor:
        """Float [B, 3, T, H, W] → logits [B, K], or pooled features [B, D]."""
        pooled = super().forward(video_BCTHW, features=True)
        if features:
            return pooled
        logits: Tensor = self.backbone.get_classifier()(self.dropout(pooled))
        return logits


def _choose(block: nn.Module, kernel: Kernel) -> str | None:
    """Path of the convolution within a block that gets the time axis, if it has one."""
    for path, module in block.named_modules():
        if not ASIDE.isdisjoint(path.split(".")):
            continue
        if isinstance(module, nn.Conv2d):
            pointwise = max(module.kernel_size) == 1
            if pointwise == (kernel == "3x1x1"):
                return str(path)
    return None


def _why_not(backbone: nn.Module, kernel: Kernel) -> str:
    kind = type(backbone).__name__
    if kernel == "3x1x1" and any(
        _choose(backbone.get_submodule(n), "3x3x3") for n in block_names(backbone)
    ):
        return (
            f"the blocks of this {kind} have no 1×1 convolution to become 3×1×1: choose "
            "--model.temporal.kernel 3x3x3, or a network of bottlenecks such as resnet50"
        )
    return (
        f"{kind} has no residual blocks with {'1×1' if kernel == '3x1x1' else 'wide'} convolutions "
        "to inflate: choose a CNN such as resnet50, resnext50_32x4d or efficientnet_b0"
    )


def _pad_like_tensorflow(x: Tensor, conv: InflatedConv) -> Tensor:
    """Zeros around [N, C, H, W] so that its size is divided by the stride, rounded up."""
    pads: list[int] = []
    for axis in (2, 1):  # width first, as F.pad takes them
        size, stride = x.shape[1 + axis], conv.stride[axis]
        reach = conv.dilation[axis] * (conv.kernel_size[axis] - 1) + 1
        total = max((math.ceil(size / stride) - 1) * stride + reach - size, 0)
        pads += [total // 2, total - total // 2]
    return F.pad(x, pads)
