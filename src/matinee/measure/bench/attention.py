"""Memory and time of joint attention against tokens: explicit matrix, fused, blocks recomputed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from matinee.errors import ConfigError
from matinee.extras import require
from matinee.measure import machine
from matinee.measure.arms import Spread, take_turns
from matinee.measure.bench.fits import Growth, growth
from matinee.measure.draw.figures import Lines, Series
from matinee.measure.result import Part, Result, Table
from matinee.training.precision import pick_device

MIB = 2**20
_TOKENS = (196, 392, 784, 1568)
_FULL = (197, 392, 784, 1568, 3136, 6272)
_PART_OF_MEMORY = 0.7  # of what is free, that a measurement may take


@dataclass(frozen=True)
class Options:
    """Memory and time of attention in a ViT-B on one clip, against its tokens, float32, forward
    and backward: with an explicit matrix, with scaled_dot_product_attention (SDPA), and with SDPA
    and blocks computed anew in the backward pass. Each measurement has a process of its own.
    Tokens: 196 is a picture of 224² at patch 16, 1568 a VideoMAE clip of 16 frames in tubelets of
    2, 3136 a clip of 16 frames singly, 6272 one of 32.
    """

    out: Path = Path("bench/attention")
    """Folder for attention.json, plots and page."""
    tokens: tuple[int, ...] = ()
    """Lengths of the sequence; without, four from 196 to 1568."""
    blocks: int = 2
    """Transformer blocks (attention and MLP) one behind the other, in the part that trains them."""
    width: int = 768
    """Of a token; ViT-B's."""
    heads: int = 12
    """Of attention; ViT-B's."""
    rounds: int = 2
    """Processes for each measurement."""
    device: str = "auto"
    """auto, cpu or cuda."""
    full: bool = False
    """From 197 to 6272 tokens (without --tokens), at least four blocks and three rounds: what does
    not fit into memory is left out, and said."""

    def __post_init__(self) -> None:
        if self.rounds < 1:
            raise ConfigError(f"--rounds {self.rounds}: at least 1")
        if self.blocks < 2:
            raise ConfigError(
                f"--blocks {self.blocks}: at least 2, for one block computed anew saves nothing"
            )
        if self.width < 1 or self.heads < 1 or self.width % self.heads:
            raise ConfigError(f"--width {self.width} --heads {self.heads}: heads divide the width")
        if self.tokens and (min(self.tokens) < 1 or len(set(self.tokens)) < 2):
            given = " ".join(map(str, self.tokens))
            raise ConfigError(f"--tokens {given}: two different lengths or more, each at least 1")

    @property
    def lengths(self) -> tuple[int, ...]:
        """Rising."""
        return tuple(sorted(set(self.tokens or (_FULL if self.full else _TOKENS))))

    @property
    def turns(self) -> int:
        return max(3, self.rounds) if self.full else self.rounds

    @property
    def depth(self) -> int:
        return max(4, self.blocks) if self.full else self.blocks


@dataclass(frozen=True)
class Curve:
    """One kind: peak bytes and seconds by tokens."""

    kind: str
    tokens: tuple[int, ...]
    peaks: list[Spread]
    seconds: list[Spread]

    def growth(self, what: str) -> Growth | None:
        """How `peaks` or `seconds` grow; None of a single length."""
        values = [max(spread.median, 1e-9) for spread in getattr(self, what)]
        return growth(self.tokens, values) if len(self.tokens) > 1 else None


def measure(options: Options, *, on_step: Callable[[int, int, str], None]) -> Result:
    """Measure every kind at every length, in turns.

    Raises:
        ConfigError: not even the shortest sequence fits into memory.
        MissingExtra: timm is not installed.
    """
    require("timm", "train")
    from matinee.measure.bench.attention_probe import KINDS, Probe, Probed, Probes

    device = pick_device(options.device)
    free = machine.free_bytes(device)
    wanted = [
        Probe(kind, blocks, tokens, options.width, options.heads)
        for tokens in options.lengths for blocks in (0, options.depth) for kind in KINDS
        if blocks or kind != "recomputed"
    ]  # fmt: skip
    probes = [p for p in wanted if p.likely_bytes <= _PART_OF_MEMORY * free]
    left_out = [p for p in wanted if p not in probes]
    found: dict[Probe, list[Probed]] = {probe: [] for probe in probes}
    if not probes:
        raise ConfigError(
            f"{options.lengths[0]} tokens need about {wanted[0].likely_bytes / MIB:.0f} MiB, and "
            f"{free / MIB:.0f} MiB are free: take fewer --tokens"
        )
    with Probes(device) as run:

        def arm(probe: Probe) -> Callable[[], float]:
            def once() -> float:
                found[probe].append(run(probe))
                return found[probe][-1].seconds

            return once

        # A round is long, and each measurement warms itself up.
        take_turns(
            {str(p): arm(p) for p in probes}, options.turns, warm_up=0,
            on_turn=lambda done, all_: on_step(done, all_, "processes"),
        )  # fmt: skip
    parts = []
    data: dict[str, Any] = {
        "device": device.type, "rounds": options.turns, "width": options.width,
        "heads": options.heads, "dtype": "float32", "threads": 1,
        "left_out": [
            {"kind": p.kind, "blocks": p.blocks, "tokens": p.tokens, "needs": p.likely_bytes}
            for p in left_out
        ],
    }  # fmt: skip
    for blocks, name in ((0, "layer"), (options.depth, "blocks")):
        curves = []
        for kind in KINDS:
            mine = [p for p in probes if p.blocks == blocks and p.kind == kind]
            if mine:
                curves.append(
                    Curve(
                        kind, tuple(p.tokens for p in mine),
                        [Spread.of([float(f.peak_bytes) for f in found[p]]) for p in mine],
                        [Spread.of([f.seconds for f in found[p]]) for p in mine],
                    )
                )  # fmt: skip
        missing = [f"{p.kind} at {p.tokens} tokens" for p in left_out if p.blocks == blocks]
        parts.append(_part(name, blocks, curves, missing, device, free))
        data[name] = {
            curve.kind: {"what": KINDS[curve.kind], **_curve_data(curve)}  # type: ignore[index]
            for curve in curves
        }
        data[name]["blocks"] = blocks
    lead = (
        "Forward and backward pass of one clip, float32, by its number of tokens; memory above "
        "what was there before, each measurement in a process of its own."
    )
    return Result("attention", "Memory and time of attention", lead, parts, data)


def _part(
    name: str, blocks: int, curves: Sequence[Curve], missing: Sequence[str],
    device: torch.device, free: int,
) -> Part:  # fmt: skip
    what = f"{blocks} blocks of ViT, trained" if blocks else "One attention layer, frozen weights"
    clock = "seconds" if device.type == "cuda" else "seconds of one core"
    text = ""
    if missing:
        text = f"Left out, for {free / 2**30:.1f} GiB are free: {', '.join(missing)}."
    names = {"explicit": "explicit matrix", "fused": "SDPA", "recomputed": "SDPA, recomputed"}
    about = "of attention against tokens, explicit and fused, both axes logarithmic."
    ticks = curves[0].tokens if curves else ()
    plots = {
        plot: Lines(
            f"{word} {about}", "tokens", axis,
            [_series(c, names[c.kind], field, scale) for c in curves],
            x_log=True, y_log=True, x_ticks=max((c.tokens for c in curves), key=len, default=ticks),
        )
        for plot, word, axis, field, scale in (
            ("memory", "Peak memory", "peak memory, MiB", "peaks", 1 / MIB),
            ("time", "Time", clock, "seconds", 1.0),
        )
    }  # fmt: skip
    tables = [
        _sizes(curves, names, "MiB"), _sizes(curves, names, clock), _exponents(curves, names)
    ]  # fmt: skip
    text = f"{_saved(curves, names)}\n\n{text}".strip()
    return Part(name, what, text, tables, plots)


def _saved(curves: Sequence[Curve], names: dict[str, str]) -> str:
    """How much less memory than the explicit matrix the others take, where both were measured."""
    explicit = next((c for c in curves if c.kind == "explicit"), None)
    if explicit is None:
        return ""
    tokens, peak = explicit.tokens[-1], explicit.peaks[-1].median
    said = [
        f"{names[c.kind]} {peak / c.peaks[c.tokens.index(tokens)].median:.1f} times less"
        for c in curves if c is not explicit and tokens in c.tokens
    ]  # fmt: skip
    if not said:
        return ""
    return f"At {tokens} tokens the explicit matrix takes {peak / MIB:.0f} MiB, {', '.join(said)}."


def _series(curve: Curve, name: str, field: str, scale: float) -> Series:
    spreads: list[Spread] = getattr(curve, field)
    grown = curve.growth(field)
    label = f"{name}: tokens^{grown.last:.2f}" if grown else name
    return Series(
        label, curve.tokens, [scale * s.median for s in spreads],
        [scale * s.low for s in spreads], [scale * s.high for s in spreads],
    )  # fmt: skip


def _sizes(curves: Sequence[Curve], names: dict[str, str], what: str) -> Table:
    """Peak memory or time, a column a kind."""
    rows = []
    for tokens in sorted({t for c in curves for t in c.tokens}):
        row = [f"{tokens}"]
        for curve in curves:
            if tokens not in curve.tokens:
                row.append("left out")
                continue
            at = curve.tokens.index(tokens)
            mib = f"{curve.peaks[at].median / MIB:.4g}"
            row.append(mib if what == "MiB" else str(curve.seconds[at]))
        rows.append(row)
    heading = "Peak memory, MiB" if what == "MiB" else f"Time, {what}"
    note = "" if what == "MiB" else "Median with quartiles of the processes."
    return Table(["tokens", *(names[c.kind] for c in curves)], rows, heading, note)


def _exponents(curves: Sequence[Curve], names: dict[str, str]) -> Table:
    rows = []
    for curve in curves:
        memory, seconds = curve.growth("peaks"), curve.growth("seconds")
        if memory is None or seconds is None:
            continue
        per_token = (curve.peaks[-1].median - curve.peaks[-2].median) / (
            curve.tokens[-1] - curve.tokens[-2]
        )
        rows.append([
            names[curve.kind], f"{memory.last:.2f}", f"{memory.fit:.2f}", f"{seconds.last:.2f}",
            f"{seconds.fit:.2f}", f"{per_token / 1024:.4g} KiB",
        ])  # fmt: skip
    columns = ["", "memory", "all", "time", "all", "a further token"]
    note = (
        "Exponents: 1 is linear in tokens, 2 quadratic. Between the two longest sequences, where "
        "constant parts weigh least, and fitted over all (least squares of logarithms). The last "
        "column is what one token more takes there."
    )
    return Table(columns, rows, "How they grow", note)


def _curve_data(curve: Curve) -> dict[str, Any]:
    grown = {"bytes": curve.growth("peaks"), "seconds": curve.growth("seconds")}
    return {
        "measured": [
            {"tokens": t, "bytes": peak.to_dict(), "seconds": seconds.to_dict()}
            for t, peak, seconds in zip(curve.tokens, curve.peaks, curve.seconds, strict=True)
        ],
        "exponent": {
            name: {"last_doubling": g.last, "fit": g.fit} for name, g in grown.items() if g
        },
    }
