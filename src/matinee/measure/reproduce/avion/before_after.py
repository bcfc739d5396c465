"""The parts of the page about loaders and whole steps."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from matinee.measure.arms import Turns, take_turns
from matinee.measure.draw.figures import Bars, Series, Stacks
from matinee.measure.reproduce.avion import published
from matinee.measure.reproduce.avion.footage import Footage
from matinee.measure.reproduce.avion.options import Options
from matinee.measure.reproduce.avion.steps import (
    AFTER,
    AFTER_APART,
    Loaders,
    StepArm,
    Work,
    contrastive_work,
    masked_work,
    mean_spans,
    measure_loaders,
    step_arms,
)
from matinee.measure.result import Part, Table

Tell = Callable[[str], None]


def loaders_part(options: Options, footage: Footage, tell: Tell) -> tuple[Part, dict[str, Any]]:
    """Clips a second of whole loaders, with the clips of VideoMAE's pretraining."""
    spec = masked_work(options).spec
    loaders = Loaders(footage, spec, 2 * options.batch, options.workers)
    minutes = footage.long_chunk.times * options.scale.seconds / 60
    videos = {
        f"original, {footage.original.height} lines": footage.original,
        f"copy, {footage.copy.height} lines": footage.copy,
        f"{minutes:.1f} min file, {footage.chunk.height} lines": footage.long_chunk,
    }
    turns = measure_loaders(
        loaders, videos, options.scale.rounds,
        lambda done, total: tell(f"loaders, turn {done} of {total}"),
    )  # fmt: skip
    names = list(turns.values)
    befores = [name for name in names if name not in (AFTER, AFTER_APART)]
    table = Table(
        ("loader", "clips/s", "matinee is faster by", "device apart by"),
        [
            (
                name, str(turns.spread(name)),
                f"{turns.ratio(AFTER, name).median:.1f}×" if name in befores else "",
                f"{turns.ratio(AFTER_APART, name).median:.1f}×" if name in befores else "",
            )
            for name in names
        ],
        heading=f"Clips of {spec.frames} frames at {spec.size}², {options.workers} workers each",
        note="Medians with quartiles. matinee: a batch arrives as normalised float32, converted by "
        "the CPU on the cores that decode, as the device here is the CPU. Device apart: a device "
        "whose work costs these cores nothing (torch's meta device), as a GPU's does.",
    )  # fmt: skip
    plot = Bars(
        "Clips a second of each loader.", names, "clips/s",
        [
            Series(
                "clips/s", [], [turns.spread(n).median for n in names],
                [turns.spread(n).low for n in names], [turns.spread(n).high for n in names],
            )
        ],
    )  # fmt: skip
    text = (
        "Before: torch's DataLoader, decord for whole frames, PIL for crops, float32 from workers. "
        "It reads the original, or a copy that was shrunk once as VideoMAE's instructions say, or "
        "a long file as LaViLa stores Ego4D. After: matinee's loader from its layered pack. All "
        "draw their clips from one set of plans, the first anew in each turn. The original is the "
        "footage scaled to its size, 16 by 9."
    )
    return Part("loaders", "Whole loaders", text, (table,), {"rates": plot}), {
        "clips_a_second": {name: turns.spread(name).to_dict() for name in names},
        "times_faster": {n: turns.ratio(AFTER, n).to_dict() for n in befores},
        "times_faster_device_apart": {n: turns.ratio(AFTER_APART, n).to_dict() for n in befores},
    }


def masked_part(options: Options, footage: Footage, tell: Tell) -> tuple[Part, dict[str, Any]]:
    """VideoMAE pretraining."""
    videos = {
        f"original, {footage.original.height} lines": footage.original,
        f"copy, {footage.copy.height} lines": footage.copy,
    }
    work = masked_work(options)
    arms, turns = _steps(options, footage, work, videos, recompute=False, tell=tell)
    text = (
        f"{options.backbone}, {work.spec.frames} frames of {work.spec.size}², batch {work.batch}, "
        "90 % of the patches hidden. Seconds of a whole step: waiting for the batch, forward, "
        "backward, update; decoding runs beside on the same cores. "
        f"AVION's VideoMAE step is {published.VIDEOMAE_STEP:.2f} of VideoMAE's (995 → 583 "
        "GPU-hours)."
    )
    return _part("videomae", "VideoMAE step", text, arms, turns, "+ bf16")


def contrastive_part(options: Options, footage: Footage, tell: Tell) -> tuple[Part, dict[str, Any]]:
    """Pretraining with captions."""
    minutes = footage.long_chunk.times * options.scale.seconds / 60
    videos = {f"{minutes:.1f} min file, {footage.chunk.height} lines": footage.long_chunk}
    work = contrastive_work(options)
    arms, turns = _steps(options, footage, work, videos, recompute=True, tell=tell)
    text = (
        f"{options.backbone} and a text transformer of 4 layers, {work.spec.frames} frames of "
        f"{work.spec.size}², batch {work.batch}. Recomputing blocks costs time and saves memory, "
        "with which AVION made batches 16 times as large; at this batch it can only cost. The text "
        "tower's attention is the same in all arms."
    )
    return _part("contrastive", "Contrastive step", text, arms, turns, "+ bf16")


def _steps(
    options: Options,
    footage: Footage,
    work: Work,
    videos: dict[str, Any],
    *,
    recompute: bool,
    tell: Tell,
) -> tuple[dict[str, StepArm], Turns]:
    tell(f"{work.name} steps")
    loaders = Loaders(footage, work.spec, work.batch, options.workers)
    arms = step_arms(work, loaders, videos, recompute=recompute)
    turns = take_turns(
        arms, options.scale.rounds, warm_up=0,
        on_turn=lambda done, total: tell(f"{work.name} steps, turn {done} of {total}"),
    )  # fmt: skip
    return arms, turns


def _part(
    name: str, heading: str, text: str, arms: dict[str, StepArm], turns: Turns, last: str
) -> tuple[Part, dict[str, Any]]:
    """The levers one below the other; `last` is what counts as after."""
    names = list(arms)
    befores = [n for n in names if n.startswith("before")]
    base = befores[-1]
    rows = []
    for i, arm in enumerate(names):
        spread = turns.spread(arm)
        lever = "" if i < len(befores) else f"{turns.ratio(names[i - 1], arm).median:.2f}×"
        share = "" if arm == base else f"{turns.ratio(arm, base).median:.2f}"
        waited = mean_spans(arms[arm]).get("data_wait", 0.0)
        rows.append((arm, str(spread), f"{waited:.2f}", lever, share))
    table = Table(
        ("way", "s a step", "of which waiting for data", "this lever", f"of “{base}”"),
        rows,
        heading="Seconds a step, each lever added to those above",
        note="Medians with quartiles. bf16 is autocast on this CPU's own units, where it has them; "
        "the row above it is all that matinee brings in float32.",
    )  # fmt: skip
    plot = Stacks(
        "Seconds of a step, by what they went to.", names,
        [{k: v for k, v in mean_spans(arm).items() if v > 0} for arm in arms.values()],
        "s a step", {},
    )  # fmt: skip
    return Part(name, heading, text, (table,), {"steps": plot}), {
        "seconds_a_step": {n: turns.spread(n).to_dict() for n in names},
        "spans": {n: mean_spans(arm) for n, arm in arms.items()},
        "after": last,
        "after_over_before": {n: turns.ratio(last, n).to_dict() for n in befores},
        "fp32_over_before": {n: turns.ratio("+ SDPA", n).to_dict() for n in befores},
    }
