"""State dicts with the names and shapes that each project publishes, filled with random numbers.

Written from the projects' own model code, not from this package's tables. Sizes are parameters, so
that tests can be quick; those of ViT-B/16 and ResNet-50 are here as published.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import torch

Shapes = dict[str, tuple[int, ...]]


@dataclass(frozen=True)
class Vit:
    """A vision transformer's sizes; heads are width // 64 in CLIP, given here."""

    width: int = 32
    layers: int = 2
    heads: int = 2
    patch: int = 8
    image: int = 32
    embed: int = 12

    @property
    def patches(self) -> int:
        return (self.image // self.patch) ** 2


@dataclass(frozen=True)
class Text:
    width: int = 16
    layers: int = 2
    heads: int = 2
    context: int = 77
    vocabulary: int = 49408


VIT_B16 = Vit(width=768, layers=12, heads=12, patch=16, image=224, embed=512)
TEXT_B16 = Text(width=512, layers=12, heads=8)


def fill(shapes: Shapes, *, seed: int = 0, device: str = "cpu") -> dict[str, torch.Tensor]:
    """Small random numbers; norms near one, variances positive."""
    generator = None if device == "meta" else torch.Generator().manual_seed(seed)
    state = {}
    for key, shape in shapes.items():
        if key.endswith("num_batches_tracked"):
            state[key] = torch.zeros(shape, dtype=torch.int64, device=device)
            continue
        value = torch.randn(shape, generator=generator, device=device)
        fan_in = max(torch.Size(shape[1:]).numel(), 1)
        if key.endswith("running_var"):
            value = 1 + value.abs()
        elif len(shape) > 1:
            value = value / fan_in**0.5
        else:
            value = value * 0.1 + (1.0 if key.endswith(".weight") else 0.0)
        state[key] = value
    return state


def _pair(name: str, *weight: int) -> Shapes:
    """A layer's weight and bias."""
    return {f"{name}.weight": weight, f"{name}.bias": weight[:1]}


def _clip_blocks(prefix: str, width: int, layers: int, *, flash: bool = False) -> Shapes:
    shapes: Shapes = {}
    for i in range(layers):
        block = f"{prefix}transformer.resblocks.{i}"
        shapes |= _pair(f"{block}.ln_1", width)
        if flash:
            shapes |= _pair(f"{block}.attn.Wqkv", 3 * width, width)
        else:
            shapes[f"{block}.attn.in_proj_weight"] = (3 * width, width)
            shapes[f"{block}.attn.in_proj_bias"] = (3 * width,)
        shapes |= _pair(f"{block}.attn.out_proj", width, width)
        shapes |= _pair(f"{block}.ln_2", width)
        first, second = ("fc1", "fc2") if flash else ("c_fc", "c_proj")
        shapes |= _pair(f"{block}.mlp.{first}", 4 * width, width)
        shapes |= _pair(f"{block}.mlp.{second}", width, 4 * width)
    return shapes


def _clip_text(prefix: str, text: Text, embed: int) -> Shapes:
    return {
        f"{prefix}positional_embedding": (text.context, text.width),
        f"{prefix}text_projection": (text.width, embed),
        **_clip_blocks(prefix, text.width, text.layers),
        f"{prefix}token_embedding.weight": (text.vocabulary, text.width),
        **_pair(f"{prefix}ln_final", text.width),
    }


def clip(vit: Vit = Vit(), text: Text = Text(), *, text_prefix: str = "") -> Shapes:
    """openai/CLIP clip/model.py and open_clip's CLIP (with "text.": its CustomTextCLIP)."""
    return {
        **_clip_text(text_prefix, text, vit.embed),
        "logit_scale": (),
        "visual.class_embedding": (vit.width,),
        "visual.positional_embedding": (vit.patches + 1, vit.width),
        "visual.proj": (vit.width, vit.embed),
        "visual.conv1.weight": (vit.width, 3, vit.patch, vit.patch),
        **_pair("visual.ln_pre", vit.width),
        **_clip_blocks("visual.", vit.width, vit.layers),
        **_pair("visual.ln_post", vit.width),
    }


SETTINGS = ("input_resolution", "context_length", "vocab_size")


def openai(state: dict[str, torch.Tensor], vit: Vit = Vit()) -> dict[str, torch.Tensor]:
    """As OpenAI's archives give it: half precision, and three integers among the weights."""
    half = {key: value.half() for key, value in state.items()}
    numbers = zip(SETTINGS, (vit.image, 77, 49408), strict=True)
    return {**half, **{key: torch.tensor(number) for key, number in numbers}}


def avion(
    vit: Vit = Vit(), text: Text = Text(), *, frames: int = 4, classes: int | None = None
) -> Shapes:
    """AVION's CLIP, trained with use_fast_conv1 and use_flash_attn; fine-tuned with `classes`."""
    shapes: Shapes = {
        "visual.class_embedding": (vit.width,),
        "visual.positional_embedding": (vit.patches + 1, vit.width),
        "visual.temporal_embedding": (frames, vit.width),
        "visual.conv1.weight": (vit.width, 3 * vit.patch**2),
        **_pair("visual.ln_pre", vit.width),
        **_clip_blocks("visual.", vit.width, vit.layers, flash=True),
        **_pair("visual.ln_post", vit.width),
    }
    if classes is None:
        shapes |= {
            "logit_scale": (),
            "visual.image_projection": (vit.width, vit.embed),
            **_clip_text("textual.", text, vit.embed),
        }
    else:
        shapes |= _pair("fc_cls", classes, vit.width)
    return _wrapped(shapes)


def lavila(vit: Vit = Vit(), text: Text = Text(), *, frames: int = 4) -> Shapes:
    """LaViLa's CLIP_OPENAI_TIMESFORMER_*: a TimeSformer with CLIP's norm before the blocks."""
    shapes: Shapes = {
        "positional_embedding": (text.context, text.width),
        "image_projection": (vit.width, vit.embed),
        "text_projection": (text.width, vit.embed),
        "logit_scale": (),
        "visual.cls_token": (1, 1, vit.width),
        "visual.pos_embed": (1, vit.patches + 1, vit.width),
        "visual.temporal_embed": (1, frames, vit.width),
        "visual.patch_embed.proj.weight": (vit.width, 3, vit.patch, vit.patch),
        **_pair("visual.ln_pre", vit.width),
    }
    for i in range(vit.layers):
        block = f"visual.blocks.{i}"
        shapes |= _pair(f"{block}.norm1", vit.width)
        for attention in ("attn", "timeattn"):
            shapes |= _pair(f"{block}.{attention}.qkv", 3 * vit.width, vit.width)
            shapes |= _pair(f"{block}.{attention}.proj", vit.width, vit.width)
        shapes |= _pair(f"{block}.norm2", vit.width)
        shapes |= _pair(f"{block}.mlp.fc1", 4 * vit.width, vit.width)
        shapes |= _pair(f"{block}.mlp.fc2", vit.width, 4 * vit.width)
        shapes |= _pair(f"{block}.norm3", vit.width)
    shapes |= _pair("visual.norm", vit.width)
    shapes |= _clip_blocks("", text.width, text.layers)
    shapes |= {"token_embedding.weight": (text.vocabulary, text.width)}
    return _wrapped(shapes | _pair("ln_final", text.width))


def _mae_blocks(prefix: str, width: int, layers: int, *, flash: bool = False) -> Shapes:
    shapes: Shapes = {}
    for i in range(layers):
        block = f"{prefix}blocks.{i}"
        shapes |= _pair(f"{block}.norm1", width)
        if flash:
            shapes |= _pair(f"{block}.attn.Wqkv", 3 * width, width)
            shapes |= _pair(f"{block}.attn.out_proj", width, width)
        else:
            shapes[f"{block}.attn.q_bias"] = (width,)
            shapes[f"{block}.attn.v_bias"] = (width,)
            shapes[f"{block}.attn.qkv.weight"] = (3 * width, width)
            shapes |= _pair(f"{block}.attn.proj", width, width)
        shapes |= _pair(f"{block}.norm2", width)
        shapes |= _pair(f"{block}.mlp.fc1", 4 * width, width)
        shapes |= _pair(f"{block}.mlp.fc2", width, 4 * width)
    return shapes


def videomae_pretrain(
    vit: Vit = Vit(), *, decoder_width: int = 24, decoder_layers: int = 2
) -> Shapes:
    """VideoMAE's PretrainVisionTransformer, V1 and V2 alike; tubelets of two frames."""
    pixels = 3 * 2 * vit.patch**2
    return {
        "mask_token": (1, 1, decoder_width),
        "encoder.patch_embed.proj.weight": (vit.width, 3, 2, vit.patch, vit.patch),
        "encoder.patch_embed.proj.bias": (vit.width,),
        **_mae_blocks("encoder.", vit.width, vit.layers),
        **_pair("encoder.norm", vit.width),
        **_mae_blocks("decoder.", decoder_width, decoder_layers),
        **_pair("decoder.norm", decoder_width),
        **_pair("decoder.head", pixels, decoder_width),
        "encoder_to_decoder.weight": (decoder_width, vit.width),
    }


def videomae_finetune(vit: Vit = Vit(), *, classes: int = 5, avion: bool = False) -> Shapes:
    """VideoMAE's VisionTransformer with mean pooling; `avion`: AVION's fast layers."""
    kernel = (3, 2, vit.patch, vit.patch)
    return {
        "patch_embed.proj.weight": (
            (vit.width, torch.Size(kernel).numel()) if avion else (vit.width, *kernel)
        ),
        "patch_embed.proj.bias": (vit.width,),
        **_mae_blocks("", vit.width, vit.layers, flash=avion),
        **_pair("fc_norm", vit.width),
        **_pair("head", classes, vit.width),
    }


def _conv_bn(conv: str, bn: str, out: int, into: int, kernel: int) -> Shapes:
    statistics: Shapes = {f"{bn}.running_mean": (out,), f"{bn}.running_var": (out,)}
    return {
        f"{conv}.weight": (out, into, kernel, kernel),
        **_pair(bn, out),
        **statistics,
        f"{bn}.num_batches_tracked": (),
    }


def resnet(layers: Iterable[int] = (3, 4, 6, 3), *, classes: int = 1000) -> Shapes:
    """torchvision's bottleneck ResNet; the default is ResNet-50."""
    shapes = _conv_bn("conv1", "bn1", 64, 3, 7)
    into = 64
    for stage, blocks in enumerate(layers):
        inner = 64 * 2**stage
        for i in range(blocks):
            block = f"layer{stage + 1}.{i}"
            shapes |= _conv_bn(f"{block}.conv1", f"{block}.bn1", inner, into, 1)
            shapes |= _conv_bn(f"{block}.conv2", f"{block}.bn2", inner, inner, 3)
            shapes |= _conv_bn(f"{block}.conv3", f"{block}.bn3", 4 * inner, inner, 1)
            if i == 0:
                shapes |= _conv_bn(
                    f"{block}.downsample.0", f"{block}.downsample.1", 4 * inner, into, 1
                )
            into = 4 * inner
    return shapes | _pair("fc", classes, into)


NON_LOCAL = ("layer2.0", "layer2.2", "layer3.0", "layer3.2", "layer3.4")


def tsm(
    state: dict[str, torch.Tensor], *, shift: bool = True, non_local: bool = False
) -> dict[str, torch.Tensor]:
    """TSM's names of torchvision's ResNet, as saved from DataParallel."""
    out = {}
    for name, value in state.items():
        key, first, rest = name, *_split(name)
        if shift and first and rest.startswith("conv1."):
            key = f"{first}.{rest.replace('conv1.', 'conv1.net.')}"
        if non_local and first in NON_LOCAL:
            key = key.replace(f"{first}.", f"{first}.block.", 1)
        out[f"base_model.{key}"] = value
    if non_local:
        shapes: Shapes = {}
        for i, block in enumerate(NON_LOCAL):
            wide = 512 if i < 2 else 1024
            for conv in ("g.0", "W.0", "theta", "phi.0"):
                sizes = (wide, wide // 2) if conv == "W.0" else (wide // 2, wide)
                shapes |= {
                    f"base_model.{block}.nl.{conv}.weight": (*sizes, 1, 1, 1),
                    f"base_model.{block}.nl.{conv}.bias": sizes[:1],
                }
            norm = f"base_model.{block}.nl.W.1"
            shapes |= {
                **_pair(norm, wide),
                f"{norm}.running_mean": (wide,),
                f"{norm}.running_var": (wide,),
                f"{norm}.num_batches_tracked": (),
            }
        out |= fill(shapes, seed=1)
    head = {"base_model.fc.weight": "new_fc.weight", "base_model.fc.bias": "new_fc.bias"}
    return {f"module.{head.get(key, key)}": value for key, value in out.items()}


def _split(name: str) -> tuple[str, str]:
    """`layer1.0` and `conv1.weight`; nothing and the whole for other names."""
    words = name.split(".")
    if not words[0].startswith("layer"):
        return "", name
    return ".".join(words[:2]), ".".join(words[2:])


def tsm_mobilenet(state: dict[str, torch.Tensor], *, shift: bool = True) -> dict[str, torch.Tensor]:
    """TSM's names of a MobileNetV2 given in torchvision's, which nests what TSM's lists flat."""
    inner = {"0.0": 0, "0.1": 1, "1.0": 3, "1.1": 4, "2": 6, "3": 7}
    first = {"0.0": 0, "0.1": 1, "1": 3, "2": 4}
    residual = (3, 5, 6, 8, 9, 10, 12, 13, 15, 16)  # stride 1, as many channels out as in
    out = {}
    for name, value in state.items():
        words = name.split(".")
        block = int(words[1]) if words[0] == "features" else -1
        key = f"base_model.{name}"
        if words[0] == "classifier":
            key = f"new_fc.{words[-1]}"
        elif 1 <= block <= 17:
            place = (first if block == 1 else inner)[".".join(words[3:-1])]
            net = ".net" if shift and place == 0 and block in residual else ""
            key = f"base_model.features.{block}.conv.{place}{net}.{words[-1]}"
        out[f"module.{key}"] = value
    return out


def _wrapped(shapes: Shapes) -> Shapes:
    """As saved from DistributedDataParallel."""
    return {f"module.{key}": shape for key, shape in shapes.items()}
