"""A clip as patches of one or several frames (tubelets), and their embedding in a timm ViT.

# Note [Tubelets]
A tubelet of two frames has a kernel [D, 3, 2, p, p]. Half the image network's kernel in each of
both frames makes two equal frames one image (ViViT, arXiv 2103.15691, §3.4, "filter inflation").
As patches do not overlap, the convolution is a matrix product, and is computed as one: a masked
autoencoder so embeds only the patches it sees, and 3-D convolutions are slow on many devices.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from matinee.errors import ConfigError


def patchify(video_BCTHW: Tensor, tubelet: int, patch: tuple[int, int]) -> Tensor:
    """Pixels by patch, frame after frame and row after row: [B, T'·N, C, tubelet·p·p]."""
    batch, channels, frames, height, width = video_BCTHW.shape
    (down, across), steps = patch, frames // tubelet
    cut = video_BCTHW.reshape(
        batch, channels, steps, tubelet, height // down, down, width // across, across
    )
    pixels = tubelet * down * across
    return cut.permute(0, 2, 4, 6, 1, 3, 5, 7).reshape(batch, -1, channels, pixels)


def unpatchify(
    patches_BNCP: Tensor, tubelet: int, patch: tuple[int, int], size: tuple[int, int]
) -> Tensor:
    """The video [B, C, T, H, W] of `size` (H, W) that `patchify` cut."""
    batch, tokens, channels, _ = patches_BNCP.shape
    down, across = patch
    rows, columns = size[0] // down, size[1] // across
    steps = tokens // (rows * columns)
    cut = patches_BNCP.reshape(batch, steps, rows, columns, channels, tubelet, down, across)
    return cut.permute(0, 4, 1, 5, 2, 6, 3, 7).reshape(batch, channels, steps * tubelet, *size)


def embed_patches(vit: Any, patches_BNCP: Tensor) -> Tensor:
    """The ViT's embedding of any choice of patches: [B, N, D]."""
    kernel = vit.patch_embed.proj
    x = F.linear(patches_BNCP.flatten(2), kernel.weight.flatten(1), kernel.bias)
    embedded: Tensor = vit.patch_embed.norm(x)
    return embedded


def make_tubelets(vit: Any, tubelet: int, frames: int) -> None:
    """Give the kernel of a ViT's patches `tubelet` frames, in place; it keeps its name.

    Raises:
        ConfigError: the tubelet does not divide the frames.
    """
    _check_tubelet(tubelet, frames)
    if tubelet == 1:
        return
    old = vit.patch_embed.proj
    size = (tubelet, *old.kernel_size)
    new = nn.Conv3d(
        old.in_channels,
        old.out_channels,
        size,
        stride=size,
        bias=old.bias is not None,
        device=old.weight.device,
        dtype=old.weight.dtype,
    )
    with torch.no_grad():
        new.weight.copy_(inflate(old.weight, tubelet))
        if new.bias is not None:
            new.bias.copy_(old.bias)
    vit.patch_embed.proj = new


def resize_patches(vit: Any, tubelet: int, frames: int, size: int) -> None:
    """Let a ViT cut clips of `frames` frames of `size` pixels; its kernel stays.

    Raises:
        ConfigError: tubelets or patches do not fill such clips.
    """
    _check_tubelet(tubelet, frames)
    embed = vit.patch_embed
    if any(size % side for side in embed.patch_size):
        raise ConfigError(
            f"clips of {size} pixels are no multiple of the {embed.patch_size[0]} pixels of a "
            "patch: choose a size that is"
        )
    embed.set_input_size((size, size))


def _check_tubelet(tubelet: int, frames: int) -> None:
    if tubelet < 1 or frames < 1 or frames % tubelet:
        raise ConfigError(
            f"{frames} frames cannot be cut into tubelets of {tubelet}: take a number of frames "
            "that the tubelet divides"
        )


def inflate(kernel_DCHW: Tensor, tubelet: int) -> Tensor:
    """[D, C, tubelet, H, W]: the image's kernel in every frame, divided by their number."""
    return (kernel_DCHW / tubelet)[:, :, None].repeat(1, 1, tubelet, 1, 1)


def check_size(vit: Any, video_BCTHW: Tensor) -> None:
    """Refuse pictures of another size than the ViT's.

    Raises:
        ValueError: H, W differ.
    """
    given, own = tuple(video_BCTHW.shape[-2:]), tuple(vit.patch_embed.img_size)
    if given != own:
        raise ValueError(
            f"a clip of {given[0]}×{given[1]} pixels for a network made for {own[0]}×{own[1]}"
        )
