"""Memory a clip: what a network keeps for its backward pass, counted while it runs."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.multiprocessing.reductions import StorageWeakRef

from matinee.measure.bench.fits import growth
from matinee.measure.draw.figures import Lines, Series
from matinee.measure.reproduce.avion.before import set_attention
from matinee.measure.reproduce.avion.options import Options
from matinee.measure.result import Part, Table
from matinee.models.blocks import find_blocks
from matinee.models.build import build_video_model
from matinee.models.config import Joint, ModelConfig
from matinee.models.recompute import recompute_blocks
from matinee.training.precision import autocast

MIB = 2**20
WAYS = {
    "explicit": "explicit attention", "fused": "SDPA", "recomputed": "SDPA, blocks recomputed",
}  # fmt: skip
PRECISIONS = ("fp32", "bf16")


@dataclass(frozen=True)
class Kept:
    """Bytes of a clip: `saved` for the backward pass by the forward pass of the whole network, and
    `block`, what the backward pass keeps besides while it computes one block anew (else 0).
    """

    saved: int
    block: int

    @property
    def total(self) -> int:
        return self.saved + self.block


@dataclass(frozen=True)
class Line:
    """Least squares of y over x: y = start + slope · x; `unexplained` is the largest deviation as a
    part of the largest y, `exponent` the slope of log y over log x over the last two points.
    """

    start: float
    slope: float
    unexplained: float
    exponent: float

    @staticmethod
    def fit(x: list[int], y: list[int]) -> Line:
        """Through at least two points."""
        slope, start = (float(v) for v in np.polyfit(x, y, 1))
        off = max(abs(start + slope * a - b) for a, b in zip(x, y, strict=True))
        return Line(start, slope, off / max(y), growth(x, y).last)


class Counter:
    """Adds up the bytes of storages that a forward pass saves for its backward pass, each once.

    Nothing is kept, so that counting takes little memory however much a step would: there is no
    backward pass afterwards. Parameters and what else is given as `beside` do not count.
    """

    def __init__(self, beside: Iterable[Tensor]) -> None:
        self.bytes = 0
        # A weak reference keeps the address from being used again.
        self._seen = {ref.cdata: ref for ref in map(_reference, beside)}

    @contextmanager
    def counting(self) -> Iterator[None]:
        with torch.autograd.graph.saved_tensors_hooks(self._pack, _refuse):
            yield

    def _pack(self, tensor: Tensor) -> None:
        reference = _reference(tensor)
        if reference.cdata not in self._seen:
            self._seen[reference.cdata] = reference
            self.bytes += tensor.untyped_storage().nbytes()


def _reference(tensor: Tensor) -> Any:
    return StorageWeakRef(tensor.untyped_storage())  # type: ignore[no-untyped-call]


def _refuse(_: None) -> Tensor:
    raise AssertionError("counted activations are not kept: no backward pass is possible")


def kept(network: nn.Module, x: Tensor, *, precision: str, beside: Iterable[Tensor] = ()) -> int:
    """Bytes that the forward pass of `network` on `x` keeps, beside parameters and `x` itself."""
    counter = Counter([x, *network.parameters(), *network.buffers(), *beside])
    with counter.counting(), autocast(precision, x.device):
        network(x)
    return counter.bytes


def build(backbone: str, frames: int, *, size: int, way: str) -> nn.Module:
    """A ViT with joint attention over all frames, in training, computed one of `WAYS`."""
    model = ModelConfig(backbone=backbone, temporal=Joint(), dropout=0.0)
    network, _, _ = build_video_model(model, num_classes=0, frames=frames, size=size)
    set_attention(network, explicit=way == "explicit")
    if way == "recomputed":
        recompute_blocks(network, 1)
    return network.train()


def kept_of_clip(
    backbone: str, frames: int, *, size: int, way: str, precision: str, whole: bool = True
) -> Kept:
    """Of one clip of `frames` frames; what does not grow with clips (half-precision copies of the
    weights) is not counted.

    Args:
        whole: run all blocks; else one and two, and add what the second keeps for each of the
            others, which are alike.
    """
    if whole:
        return _kept_of_clip(build(backbone, frames, size=size, way=way), size, precision)
    counts = []
    for blocks in (1, 2):
        network: Any = build(backbone, frames, size=size, way=way)
        depth = len(network.backbone.blocks)
        network.backbone.blocks = network.backbone.blocks[:blocks]
        counts.append(_kept_of_clip(network, size, precision))
    one, two = counts
    return Kept(one.saved + (depth - 1) * (two.saved - one.saved), one.block)


def _kept_of_clip(network: Any, size: int, precision: str) -> Kept:
    frames, tokens = network.frames, num_tokens(network)
    saved = kept(network, torch.zeros(1, 3, frames, size, size), precision=precision)
    network.resize(1, size)
    saved -= _constant(network, torch.zeros(1, 3, 1, size, size), precision)
    again = find_blocks(network)[0]
    if "forward" not in vars(again):
        return Kept(saved, 0)
    del again.forward  # what recomputes: the class's own is there again
    inner, short = (
        torch.zeros(1, n, network.num_features, requires_grad=True) for n in (tokens, 1)
    )
    block = kept(again, inner, precision=precision)
    return Kept(saved, block - _constant(again, short, precision))


def _constant(network: nn.Module, x: Tensor, precision: str) -> int:
    """Bytes kept whatever the number and length of inputs, from one small input `x` and two."""
    if precision == "fp32":
        return 0
    one, two = (
        kept(network, x.detach().repeat_interleave(n, 0).requires_grad_(x.requires_grad),
            precision=precision)
        for n in (1, 2)
    )  # fmt: skip
    return 2 * one - two


def num_tokens(network: Any) -> int:
    """Of a clip, class tokens included."""
    patches = network.steps * network.backbone.patch_embed.num_patches
    return int(patches + network.prefix_copies * network.backbone.num_prefix_tokens)


def measure_memory(options: Options, tell: Callable[[str], None]) -> tuple[Part, dict[str, Any]]:
    """The part of the page, and its numbers."""
    scale, name, last = options.scale, options.memory_backbone, options.frames
    rows: dict[str, dict[str, Kept]] = {}
    for precision in PRECISIONS:
        for way, shown in WAYS.items():
            tell(f"memory: {last} frames, {shown}, {precision}")
            rows.setdefault(way, {})[precision] = kept_of_clip(
                name, last, size=scale.size, way=way, precision=precision,
                whole=not options.quick,
            )  # fmt: skip
    steps = scale.tokens
    tokens = [
        num_tokens(build(name, frames, size=scale.size, way="fused")) for frames in [*steps, last]
    ]
    curves: dict[str, list[int]] = {}
    for way, shown in WAYS.items():
        for frames in steps:
            tell(f"memory: {frames} frames, {shown}")
            found = kept_of_clip(
                name, frames, size=scale.size, way=way, precision="fp32", whole=not options.quick
            )
            curves.setdefault(way, []).append(found.total)
        curves.setdefault(way, []).append(rows[way]["fp32"].total)
    fits = {way: Line.fit(tokens, values) for way, values in curves.items()}
    return _part(options, rows, tokens, curves, fits), {
        "backbone": name, "frames": last, "size": scale.size, "tokens": tokens,
        "bytes_a_clip": {
            way: {p: {"saved": k.saved, "block": k.block} for p, k in by.items()}
            for way, by in rows.items()
        },
        "bytes_over_tokens": curves,
        "fits": {way: vars(line) for way, line in fits.items()},
        "times_less": {
            way: {p: rows["explicit"][p].total / by[p].total for p in PRECISIONS}
            for way, by in rows.items()
        },
    }  # fmt: skip


def _part(
    options: Options,
    rows: dict[str, dict[str, Kept]],
    tokens: list[int],
    curves: dict[str, list[int]],
    fits: dict[str, Line],
) -> Part:
    base = rows["explicit"]
    table = Table(
        ("way", "fp32, MiB", "less by", "bf16, MiB", "less by"),
        [
            (
                WAYS[way],
                *(
                    cell
                    for p in PRECISIONS
                    for cell in (f"{by[p].total / MIB:,.0f}", f"{base[p].total / by[p].total:.1f}×")
                ),
            )
            for way, by in rows.items()
        ],
        heading=f"{options.memory_backbone}, {options.frames} frames of {options.scale.size}²: "
        "activations kept for a clip",
        note="Where blocks are recomputed: their inputs, and one block's activations besides, "
        "which the backward pass keeps while it is there. bf16: autocast, without the weights' "
        "copies.",
    )
    growth = Table(
        ("way", "KiB a token", "exponent at the end", "largest deviation from a line"),
        [
            (
                WAYS[way], f"{line.slope / 1024:.1f}", f"{line.exponent:.3f}",
                f"{100 * line.unexplained:.2f} %",
            )
            for way, line in fits.items()
        ],
        heading=f"Against tokens, {tokens[0]:,} to {tokens[-1]:,}: a straight line fitted",
        note="An exponent of 1 is linear, 2 quadratic: the slope of log(bytes) over log(tokens) "
        "between the last two points.",
    )  # fmt: skip
    plot = Lines(
        "Activations kept for a clip against its tokens, fp32.", "tokens", "MiB",
        [Series(WAYS[way], tokens, [v / MIB for v in curves[way]]) for way in WAYS],
        x_log=True, y_log=True, x_ticks=tokens,
    )  # fmt: skip
    text = (
        "Explicit attention keeps a matrix of tokens × tokens for each head; "
        "scaled_dot_product_attention keeps the output and a number a row. Bytes are counted by "
        "hooks on what autograd saves in a real forward pass of "
        + ("one block and of two, which stand for all" if options.quick else "the whole network")
        + ", each storage once, parameters and input left out."
    )
    return Part("memory", "Memory a clip", text, (table, growth), {"tokens": plot})
