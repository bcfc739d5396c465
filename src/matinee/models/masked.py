"""VideoMAE: a ViT sees a tenth of a clip's patches, a light decoder draws the others.

# Note [Masked autoencoding]
The encoder gets the visible tokens only; the decoder gets its output and, for every token to
reconstruct, one learned mask token, both with fixed positions. The target of a token is the pixels
of its patch, each colour by the patch's own mean and deviation. Dual masking leaves part of the
tokens out of the decoder too; those that it reconstructs although the encoder saw them weigh
nothing, as in the published code, so that all clips of a batch have as many tokens.

All clips have as many visible tokens, so that those of a batch are one tensor. Who makes masks
knows how many: told so, nothing waits for the device; otherwise the counts are read and checked.

Keys are those of the published weights, except that attention has timm's `qkv.bias` for `q_bias`
and `v_bias` (a bias of the keys shifts all scores of a query alike: softmax ignores it).

Source: VideoMAE, arXiv 2203.12602, §3; VideoMAE V2, arXiv 2303.16727, §3.2; MAE, arXiv 2111.06377.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from matinee.errors import ConfigError, first_line
from matinee.extras import require
from matinee.models.joint import fix_positions, force_fused, use_fused_attention
from matinee.models.patches import (
    check_size,
    embed_patches,
    make_tubelets,
    patchify,
    resize_patches,
    unpatchify,
)
from matinee.models.positions import sine_table

EPSILON = 1e-6  # of a patch's deviation, as published


def plain_encoder(
    name: str, *, size: int | tuple[int, int], patch: int | None = None, drop_path: float = 0.0
) -> nn.Module:
    """A timm ViT as the encoder wants it: no class token, a norm at the end, no classifier.

    `patch`: pixels of a patch each way, the network's own when None.

    Raises:
        ConfigError: `name` is no ViT, or one that cannot do without its class token.
    """
    settings: dict[str, Any] = {} if patch is None else {"patch_size": patch}
    settings |= {
        "img_size": size,
        "dynamic_img_size": False,
        "num_classes": 0,
        "drop_path_rate": drop_path,
    }
    settings |= {"class_token": False, "global_pool": "avg", "fc_norm": False}
    try:
        vit: nn.Module = require("timm", "train").create_model(name, **settings)
    except (TypeError, AssertionError) as error:
        raise ConfigError(
            f"{name} cannot be made without a class token ({first_line(error)}): take a plain ViT "
            "such as vit_base_patch16_224"
        ) from None
    return vit


class Decoder(nn.Module):
    """Transformer blocks, a norm, and a linear layer to the pixels of a patch."""

    def __init__(self, width: int, depth: int, heads: int, pixels: int) -> None:
        super().__init__()
        block = require("timm.models.vision_transformer", "train").Block
        norm = partial(nn.LayerNorm, eps=1e-6)
        self.blocks = nn.Sequential(
            *(block(width, heads, qkv_bias=True, norm_layer=norm) for _ in range(depth))
        )
        force_fused(self.blocks)
        self.norm = norm(width)
        self.head = nn.Linear(width, pixels)

    def forward(self, x_BND: Tensor, wanted: int) -> Tensor:
        """The last `wanted` tokens' pixels [B, wanted, pixels]."""
        pixels: Tensor = self.head(self.norm(self.blocks(x_BND)[:, -wanted:]))
        return pixels


class MaskedAutoencoder(nn.Module):
    """Encoder on visible tubelets, decoder to the hidden ones' pixels. Starts from scratch.

    `mean` and `std` are those of the input's normalisation, which the targets are free of.
    `frames` is T, `num_features` the encoder's width. See Note [Masked autoencoding].
    """

    encoder: Any
    table: Tensor
    decoder_table: Tensor
    mean: Tensor
    std: Tensor

    def __init__(
        self,
        encoder: nn.Module,
        *,
        frames: int,
        mean: Sequence[float],
        std: Sequence[float],
        tubelet: int = 2,
        decoder_depth: int = 4,
        decoder_width: int = 384,
        decoder_heads: int = 6,
        normalise_targets: bool = True,
    ) -> None:
        """Take over `encoder`, made by `plain_encoder` or like it.

        Raises:
            ConfigError: another kind of network, or a tubelet that does not divide the frames.
        """
        super().__init__()
        use_fused_attention(encoder)
        make_tubelets(encoder, tubelet, frames)
        fix_positions(encoder)
        self.encoder, self.frames, self.tubelet = encoder, frames, tubelet
        self.normalise_targets = normalise_targets
        self.encoder.head = nn.Identity()
        if isinstance(self.encoder.norm, nn.Identity):
            raise ConfigError(
                "the encoder has no norm at its end: create the ViT with fc_norm=False"
            )
        self.num_features = width = int(self.encoder.num_features)
        self.patch = self.encoder.patch_embed.patch_size
        pixels = tubelet * self.patch[0] * self.patch[1] * 3

        self.encoder_to_decoder = nn.Linear(width, decoder_width, bias=False)
        self.mask_token = nn.Parameter(torch.zeros(1, 1, decoder_width))
        self.decoder = Decoder(decoder_width, decoder_depth, decoder_heads, pixels)
        self._keep("table", sine_table(self.tokens, width))
        self._keep("decoder_table", sine_table(self.tokens, decoder_width))
        self._keep("mean", torch.tensor(mean)[:, None])  # [3, 1]
        self._keep("std", torch.tensor(std)[:, None])
        self._initialise()

    @property
    def tokens(self) -> int:
        """N, of a clip."""
        return self.frames // self.tubelet * int(self.encoder.patch_embed.num_patches)

    def resize(self, frames: int, size: int) -> None:
        """Take clips of `frames` frames of `size` pixels from now on, with the same parameters.

        Raises:
            ConfigError: tubelets or patches do not fill such clips.
        """
        resize_patches(self.encoder, self.tubelet, frames, size)
        self.frames = frames
        if self.table.shape[1] != self.tokens:
            for name in ("table", "decoder_table"):
                old: Tensor = getattr(self, name)
                setattr(self, name, sine_table(self.tokens, old.shape[2]).to(old))

    def _keep(self, name: str, value: Tensor) -> None:
        self.register_buffer(name, value, persistent=False)

    def _initialise(self) -> None:
        """Xavier for matrices as published, and a fresh patch kernel whose frames differ."""
        nn.init.trunc_normal_(self.mask_token, std=0.02)
        self.encoder.patch_embed.proj.reset_parameters()
        for module in self.modules():
            if isinstance(module, nn.Linear):
                nn.init.xavier_uniform_(module.weight)
                if module.bias is not None:
                    nn.init.zeros_(module.bias)

    def forward(
        self,
        video_BCTHW: Tensor,
        mask_BN: Tensor,
        decode_BN: Tensor | None = None,
        *,
        counts: tuple[int, int] | None = None,
    ) -> tuple[Tensor, Tensor]:
        """Loss of each clip [B], and prediction [B, M, tubelet·p·p·3].

        Float [B, 3, T, H, W]; bool [B, N], True: hidden from the encoder. The M tokens predicted
        are those of `decode_BN` (default: the hidden ones), in ascending order; pixels run over
        frame, row, column, colour. The loss is the mean squared error over tokens that are hidden
        and decoded. `counts`: how many tokens of each clip are visible and how many predicted,
        where that is known.

        Raises:
            ValueError: a clip of another length or size, or masks of another shape, or with other
                counts in different clips.
        """
        patches = self._patches(video_BCTHW)
        decode_BN = mask_BN if decode_BN is None else decode_BN
        seen, asked = counts or (None, None)
        visible = _places(~mask_BN, self.tokens, "visible", seen)
        wanted = _places(decode_BN, self.tokens, "decoded", asked)
        prediction = self._decode(self._encode(patches, visible), visible, wanted)
        error = (prediction - self._targets(_take(patches, wanted))).square().mean(dim=2)  # [B, M]
        counted = mask_BN.gather(1, wanted)
        return (error * counted).sum(dim=1) / counted.sum(dim=1), prediction

    def encode(self, video_BCTHW: Tensor, mask_BN: Tensor | None = None) -> Tensor:
        """The encoder's output for visible tokens (default: all) [B, V, D], in ascending order."""
        patches = self._patches(video_BCTHW)
        if mask_BN is None:
            mask_BN = patches.new_zeros(patches.shape[:2], dtype=torch.bool)
        return self._encode(patches, _places(~mask_BN, self.tokens, "visible"))

    @torch.no_grad()
    def reconstruct(self, video_BCTHW: Tensor, mask_BN: Tensor) -> Tensor:
        """The clip [B, 3, T, H, W], its hidden patches replaced by predicted ones.

        With normalised targets, a prediction gets the true patch's mean and deviation, as in the
        papers' pictures: it shows structure, not brightness.
        """
        patches = self._patches(video_BCTHW)
        hidden = _places(mask_BN, self.tokens, "hidden")
        _, prediction = self(video_BCTHW, mask_BN)
        pixels = prediction.unflatten(2, (-1, 3)).transpose(2, 3).to(patches.dtype)  # [B, M, 3, P]
        if self.normalise_targets:
            middle, spread = _statistics(self._unit(_take(patches, hidden)))
            pixels = pixels * spread + middle
        drawn = (pixels - self.mean) / self.std
        places = hidden[:, :, None, None].expand_as(drawn)
        size = (video_BCTHW.shape[3], video_BCTHW.shape[4])
        return unpatchify(patches.scatter(1, places, drawn), self.tubelet, self.patch, size)

    def _patches(self, video_BCTHW: Tensor) -> Tensor:
        if video_BCTHW.shape[2] != self.frames:
            raise ValueError(
                f"a clip of {video_BCTHW.shape[2]} frames for a network made for {self.frames}"
            )
        check_size(self.encoder, video_BCTHW)
        return patchify(video_BCTHW, self.tubelet, self.patch)

    def _encode(self, patches_BNCP: Tensor, visible_BV: Tensor) -> Tensor:
        x = embed_patches(self.encoder, _take(patches_BNCP, visible_BV))
        out: Tensor = self.encoder.norm(self.encoder.blocks(x + self.table[0, visible_BV]))
        return out

    def _decode(self, x_BVD: Tensor, visible_BV: Tensor, wanted_BM: Tensor) -> Tensor:
        seen = self.encoder_to_decoder(x_BVD) + self.decoder_table[0, visible_BV]
        asked = self.mask_token + self.decoder_table[0, wanted_BM]
        pixels: Tensor = self.decoder(torch.cat([seen, asked], dim=1), wanted_BM.shape[1])
        return pixels

    def _unit(self, patches_BNCP: Tensor) -> Tensor:
        """Normalised pixels to 0–1."""
        return patches_BNCP * self.std + self.mean

    def _targets(self, patches_BMCP: Tensor) -> Tensor:
        pixels = self._unit(patches_BMCP)
        if self.normalise_targets:
            middle, spread = _statistics(pixels)
            pixels = (pixels - middle) / spread
        return pixels.transpose(2, 3).flatten(2)  # [B, M, P·3]


def _places(wanted_BN: Tensor, tokens: int, what: str, count: int | None = None) -> Tensor:
    """Numbers of the true entries, in ascending order: int64 [B, count]. A given count is trusted.

    Raises:
        ValueError: no [B, N], other counts in different clips, or none.
    """
    if wanted_BN.shape[1:] != (tokens,):
        raise ValueError(f"a mask of shape {list(wanted_BN.shape)} for clips of {tokens} tokens")
    if count is None:
        counts = set(wanted_BN.sum(dim=1).tolist())
        if len(counts) != 1 or 0 in counts:
            raise ValueError(
                f"clips of one batch have {sorted(counts)} {what} tokens: all need as many, at "
                "least 1"
            )
        count = counts.pop()
    return (~wanted_BN).to(torch.uint8).argsort(dim=1, stable=True)[:, :count]


def _take(patches_BNCP: Tensor, places_BM: Tensor) -> Tensor:
    """Patches [B, M, C, P] of the places."""
    places = places_BM[:, :, None, None].expand(-1, -1, *patches_BNCP.shape[2:])
    return patches_BNCP.gather(1, places)


def _statistics(pixels_BMCP: Tensor) -> tuple[Tensor, Tensor]:
    """Mean and deviation (with n - 1) of each patch and colour, [B, M, C, 1] both."""
    spread = pixels_BMCP.var(dim=3, keepdim=True).sqrt() + EPSILON
    return pixels_BMCP.mean(dim=3, keepdim=True), spread
