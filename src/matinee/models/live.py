"""Live video: a causal temporal-shift network fed frame by frame, each frame computed once.

# Note [Live]
A causal shift takes an eighth of the previous frame's channels. Kept from the last step, they make
one step of one frame compute what the offline network computes for that frame of a whole clip.
Both do the same arithmetic on the same numbers; libraries pick convolution kernels by batch size,
though, so a batch of B·T frames and T batches of B frames can differ in the last bits of a float.

Source: TSM, arXiv 1811.08383, §3.3 and §4 (online, uni-directional).
"""

from __future__ import annotations

import copy
import itertools
from collections import deque

import torch
from torch import Tensor, nn

from matinee.errors import ConfigError
from matinee.models.shift import TemporalModule, TemporalShift


class LiveModel:
    """Frame-by-frame prediction on B streams at once.

    The network is copied in evaluation mode with its tensors shared, and only the copy holds
    cached features: `backbone` itself can go on training. There is no training mode.

    Args:
        backbone: image network with `add_temporal_shift(..., causal=True)`, [N, 3, H, W] → [N, K].
        window: frames over which `average` runs; None: as many as the network was made for, so
            that after them it is the clip's prediction.

    Raises:
        ConfigError: a network that is not causal, or has no temporal shift; a window below 1.
    """

    def __init__(self, backbone: nn.Module, *, window: int | None = None) -> None:
        self._network = _causal_copy(backbone)
        shifts = _shifts(self._network)
        self.window = next(iter(shifts.values())).frames if window is None else window
        if self.window < 1:
            raise ConfigError(f"an average over {self.window} frames: at least 1")
        self._caches = {name: _CachedShift(shift.divisor) for name, shift in shifts.items()}
        for name, cache in self._caches.items():
            self._network.set_submodule(name, cache)
        self._recent: deque[Tensor] = deque(maxlen=self.window)
        self._shape: torch.Size | None = None

    @torch.inference_mode()
    def step(self, frames_B3HW: Tensor) -> Tensor:
        """The next frame of every stream → logits [B, K] of this frame.

        Raises:
            ValueError: another shape than the last frame's without `reset` between.
        """
        if self._shape not in (None, frames_B3HW.shape):
            raise ValueError(
                f"a frame of shape {list(frames_B3HW.shape)} after frames of shape "
                f"{list(self._shape)}: call reset() between streams"
            )
        self._shape = frames_B3HW.shape
        logits: Tensor = self._network(frames_B3HW.contiguous(memory_format=torch.channels_last))
        self._recent.append(logits)
        return logits

    def average(self) -> Tensor:
        """Logits [B, K] averaged over the last `window` frames: a label that does not flicker.

        Raises:
            ValueError: no frame was seen since the start or `reset`.
        """
        if not self._recent:
            raise ValueError("no frame seen yet: call step() first")
        return torch.stack(tuple(self._recent)).mean(dim=0)

    def reset(self) -> None:
        """Forget the streams: the next frame is a first frame."""
        for cache in self._caches.values():
            cache.previous = None
        self._recent.clear()
        self._shape = None


@torch.inference_mode()
def causal_logits(backbone: nn.Module, video_BCTHW: Tensor) -> Tensor:
    """The offline counterpart: logits [B, T, K] after each frame of whole clips, in one pass.

    T may differ from the number of frames the network was made for.

    Raises:
        ConfigError: as for `LiveModel`.
    """
    network = _causal_copy(backbone)
    clips, _, frames, _, _ = video_BCTHW.shape
    for shift in _shifts(network).values():
        shift.frames = frames
    images = video_BCTHW.transpose(1, 2).flatten(0, 1)  # [B·T, 3, H, W]
    logits: Tensor = network(images.contiguous(memory_format=torch.channels_last))
    return logits.view(clips, frames, -1)


class _CachedShift(nn.Module):
    """Causal shift of one frame [B, C, H, W]; the moved channels come from the last call."""

    def __init__(self, divisor: int) -> None:
        super().__init__()
        self.divisor = divisor
        self.previous: Tensor | None = None  # no buffer: never saved

    def forward(self, x: Tensor) -> Tensor:
        fold = x.shape[1] // self.divisor
        out = x.clone(memory_format=torch.preserve_format)
        out[:, :fold] = 0 if self.previous is None else self.previous
        self.previous = x[:, :fold].clone()  # cloned: a view would keep all of x alive
        return out


def _shifts(network: nn.Module) -> dict[str, TemporalShift]:
    return {name: m for name, m in network.named_modules() if isinstance(m, TemporalShift)}


def _causal_copy(backbone: nn.Module) -> nn.Module:
    """A copy in evaluation mode that shares parameters and buffers."""
    if not _shifts(backbone):
        raise ConfigError(
            f"{type(backbone).__name__} has no temporal shift: live prediction needs a network "
            "trained with a causal one"
        )
    for name, module in backbone.named_modules():
        causal = isinstance(module, TemporalShift) and module.causal
        if isinstance(module, TemporalModule) and not causal:
            raise ConfigError(
                f"{name} ({type(module).__name__}) looks at later frames: live prediction needs a "
                "network with causal shift and neither temporal pooling nor non-local blocks"
            )
    tensors = itertools.chain(backbone.parameters(), backbone.buffers())
    network = copy.deepcopy(backbone, {id(tensor): tensor for tensor in tensors})
    return network.eval()
