"""A timm ViT in which all patches of all frames attend to each other.

# Note [Joint attention]
Every frame (or tubelet of two frames) is cut into patches as the image network does; the T'·N
patches of a clip form one sequence. Each patch gets the image network's position embedding and its
frame's temporal embedding, which starts at zero.

Softmax over T' equal copies of the keys gives what one copy gives, so a clip of equal frames has
the image network's features, if *every* token comes T' times. A class token that comes once weighs
1/T' of what it did in the image network. By default there is therefore one per frame
(`class_token="frame"`), all from the same parameter, and the features are their mean: T' more
tokens among T'·N, and no mask that would keep attention from its fast kernels. Networks published
with one class token for the whole clip (AVION) are reproduced by `class_token="clip"`. The
parameters are the same.

Source: joint space-time attention, TimeSformer arXiv 2102.05095 §3, ViViT arXiv 2103.15691 §3.3;
one class token and zero temporal embedding, AVION arXiv 2309.16669.
"""

from __future__ import annotations

from typing import Any, Literal

import torch
from torch import Tensor, nn

from matinee.errors import ConfigError
from matinee.extras import require
from matinee.models.base import VideoModel
from matinee.models.patches import (
    check_size,
    embed_patches,
    make_tubelets,
    patchify,
    resize_patches,
)
from matinee.models.positions import interpolate_space, interpolate_time, sine_table


class JointModel(VideoModel):
    """A timm ViT with joint space-time attention; keys of timm under `backbone.`.

    Pooling, norms and classifier are the backbone's (class token, mean or attention pooling). Drop
    path and dropout are set when the backbone is created, and so is its input size. In training,
    `patch_dropout` leaves out that part of the patches, other ones in each clip (arXiv 2212.00794);
    class tokens stay. Nothing is rescaled, since attention and pooling are means already: the mean
    over the patches left has the mean over all as its expectation.

    See Note [Joint attention], and Note [Tubelets] in patches.py.
    """

    backbone: Any
    temporal_embed: nn.Parameter | None
    """[1, T', D]; None with sine-cosine positions, which tell frames apart themselves."""
    table: Tensor

    def __init__(
        self,
        backbone: nn.Module,
        *,
        frames: int,
        tubelet: int = 1,
        positions: Literal["learned", "sine"] = "learned",
        class_token: Literal["frame", "clip"] = "frame",
        patch_dropout: float = 0.0,
    ) -> None:
        """Take over `backbone`, which is changed and of no other use afterwards.

        Raises:
            ConfigError: `backbone` is no plain ViT, its pooling is unknown, the tubelet does not
                divide the frames, or sine-cosine positions meet a class token.
        """
        super().__init__()
        use_fused_attention(backbone)
        make_tubelets(backbone, tubelet, frames)
        self.backbone, self.frames, self.tubelet = backbone, frames, tubelet
        if self.backbone.global_pool not in ("token", "avg", "map"):
            raise ConfigError(
                f"pooling {self.backbone.global_pool!r} of the ViT has no meaning for clips: "
                "create it with global_pool token, avg or map"
            )
        self.num_features = int(self.backbone.num_features)
        self.patch_dropout, self.class_token = patch_dropout, class_token
        self.grid: tuple[int, int] = self.backbone.patch_embed.grid_size  # of `pos_embed`
        if positions == "sine":
            fix_positions(self.backbone)
            self.temporal_embed = None
            tokens = self.steps * self.backbone.patch_embed.num_patches
            self.register_buffer("table", sine_table(tokens, self.num_features), persistent=False)
        else:
            self.temporal_embed = nn.Parameter(torch.zeros(1, self.steps, self.num_features))

    @property
    def steps(self) -> int:
        """T': frames, or tubelets of two."""
        return self.frames // self.tubelet

    @property
    def prefix_copies(self) -> int:
        """How many of each class token there are."""
        return self.steps if self.class_token == "frame" else 1

    def resize(self, frames: int, size: int) -> None:
        """Take clips of `frames` frames of `size` pixels from now on, with the same parameters.

        Learned positions are interpolated whenever they are used; the fixed table is another one.

        Raises:
            ConfigError: tubelets or patches do not fill such clips.
        """
        resize_patches(self.backbone, self.tubelet, frames, size)
        self.frames = frames
        tokens = self.steps * self.backbone.patch_embed.num_patches
        if self.temporal_embed is None and self.table.shape[1] != tokens:
            self.table = sine_table(tokens, self.num_features).to(self.table)

    def forward(self, video_BCTHW: Tensor, *, features: bool = False) -> Tensor:
        """Float [B, 3, T, H, W] → logits [B, K], or features [B, D], pooled and normalised, before
        any dropout.
        """
        pooled = self._pooled(video_BCTHW)
        if features:
            return pooled
        logits: Tensor = self.backbone.head(self.backbone.head_drop(pooled))
        return logits

    def _pooled(self, video_BCTHW: Tensor) -> Tensor:
        vit = self.backbone
        x = vit.norm(self.tokens(video_BCTHW))
        prefix = self.prefix_copies * vit.num_prefix_tokens
        if vit.global_pool == "token":
            x = x[:, :prefix].unflatten(1, (self.prefix_copies, -1))[:, :, 0].mean(dim=1)
        else:
            x = x if vit.pool_include_prefix else x[:, prefix:]
            x = x.mean(dim=1) if vit.attn_pool is None else vit.attn_pool(x)
        pooled: Tensor = vit.fc_norm(x)
        return pooled

    def tokens(self, video_BCTHW: Tensor) -> Tensor:
        """The last block's output [B, prefix + T'·N, D]: class and register tokens first."""
        self.check_frames(video_BCTHW)
        check_size(self.backbone, video_BCTHW)
        vit = self.backbone
        patches = patchify(video_BCTHW, self.tubelet, vit.patch_embed.patch_size)
        prefix, x = self._add_positions(embed_patches(vit, patches))
        if self.training and self.patch_dropout:
            x = drop_tokens(x, self.patch_dropout)
        if prefix is not None:
            x = torch.cat([prefix.expand(x.shape[0], -1, -1), x], dim=1)
        out: Tensor = vit.blocks(vit.norm_pre(vit.pos_drop(x)))
        return out

    def _add_positions(self, patches_BND: Tensor) -> tuple[Tensor | None, Tensor]:
        """Class and register tokens [1, copies·P, D] (or None) and patches, all with positions."""
        if self.temporal_embed is None:
            return None, patches_BND + self.table
        vit = self.backbone
        time = interpolate_time(self.temporal_embed, self.steps)[:, :, None]  # [1, T', 1, D]
        own = [token for token in (vit.cls_token, vit.reg_token) if token is not None]
        prefix = torch.cat(own, dim=1) if own else None  # [1, P, D]
        space = vit.pos_embed
        if space is not None and prefix is not None and not vit.no_embed_class:
            prefix = prefix + space[:, : prefix.shape[1]]
            space = space[:, prefix.shape[1] :]
        if space is not None:
            space = interpolate_space(space, vit.patch_embed.grid_size, 0, self.grid)
        places = time if space is None else space[:, None] + time
        batch, _, width = patches_BND.shape
        patches = patches_BND.view(batch, self.steps, -1, width) + places
        if prefix is not None and self.class_token == "frame":
            prefix = (prefix[:, None] + time).flatten(1, 2)
        return prefix, patches.flatten(1, 2)


def use_fused_attention(vit: nn.Module) -> None:
    """Make every attention layer of a plain timm ViT call `scaled_dot_product_attention`.

    timm's setting (TIMM_FUSED_ATTN) would otherwise choose the explicit matrix, whose memory grows
    with the square of the tokens.

    Raises:
        ConfigError: another network, whose tokens or attention would be mistaken.
    """
    plain = require("timm.models.vision_transformer", "train").VisionTransformer
    embed = require("timm.layers", "train").PatchEmbed
    if type(vit) is not plain or type(vit.patch_embed) is not embed or vit.dynamic_img_size:
        raise ConfigError(
            f"joint attention needs a plain ViT of timm with a fixed input size, such as "
            f"vit_base_patch16_224 or vit_base_patch16_clip_224; {type(vit).__name__} is none"
        )
    force_fused(vit)


def force_fused(network: nn.Module) -> None:
    """Switch timm's attention layers, wherever they are in `network`."""
    module: Any
    for module in network.modules():
        if hasattr(module, "fused_attn"):
            module.fused_attn = True


def fix_positions(vit: Any) -> None:
    """Take the learned position embedding out, for a fixed table instead.

    Raises:
        ConfigError: the ViT has class or register tokens, for which the table has no place.
    """
    if vit.num_prefix_tokens:
        raise ConfigError(
            f"sine-cosine positions with {vit.num_prefix_tokens} class or register tokens: create "
            "the ViT with class_token=False and global_pool avg"
        )
    vit.pos_embed = None


def drop_tokens(x_BND: Tensor, part: float) -> Tensor:
    """A random choice of tokens, as many in every clip and at least one, in their order."""
    batch, tokens, width = x_BND.shape
    kept = max(1, round(tokens * (1 - part)))
    order = torch.rand(batch, tokens, device=x_BND.device).argsort(dim=1)
    choice = order[:, :kept].sort(dim=1).values
    return x_BND.gather(1, choice[:, :, None].expand(-1, -1, width))
