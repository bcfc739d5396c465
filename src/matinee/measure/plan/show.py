"""A plan as tables and plots."""

from __future__ import annotations

from dataclasses import asdict, replace
from typing import Any

from matinee.measure.draw.figures import Lines, Series, Stacks
from matinee.measure.plan.cards import Card, as_dict
from matinee.measure.plan.scaling import (
    Point,
    counts_to,
    same_batch_per_gpu,
    same_global_batch,
)
from matinee.measure.plan.step_time import forwards_of
from matinee.measure.plan.whole import Plan, sensitivity, waiting
from matinee.measure.result import Part, Result, Table

MOST = 10_000  # GPUs that scaling is shown for
COLOURS = {
    "products": "#0072b2", "attention": "#56b4e9", "elementwise": "#009e73",
    "starting operations": "#b07a00", "pixels": "#8fbc8f", "idle": "#a0a4ab", "update": "#b5608f",
    "compute": "#0072b2", "loader": "#e69f00", "slowest rank": "#cc79a7", "gradients": "#d55e00",
}  # fmt: skip


def plan_result(plan: Plan) -> Result:
    """The whole plan: memory, step, data, hours, scaling, and what is taken for granted."""
    wish = plan.wish
    per_gpu = _scaling(plan)
    shared = _sharing(plan)
    effects = sensitivity(plan)
    return Result(
        "plan", f"Plan: {wish.config.model.backbone} on {wish.fleet}",
        f"{_hours(plan.hours)} ({plan.gpu_hours:,.0f} GPU-hours{_money(plan)}) for "
        f"{wish.config.optim.epochs} epochs of {wish.footage.samples:,} samples in batches of "
        f"{wish.config.optim.batch_size:,}; what binds is {plan.binds}.\n\n"
        "Start-up, evaluation and checkpoints are not counted. Nothing was run: every figure "
        "follows from the assumptions at the end, and is worth what they are.",
        (
            _memory(plan), _step(plan), _data(plan), _cost(plan, effects),
            _scaling_part(plan, per_gpu, shared), _assumptions(plan),
        ),
        _numbers(plan, per_gpu, shared, effects),
    )  # fmt: skip


def _memory(plan: Plan) -> Part:
    batch, card = plan.batch, plan.wish.fleet.card
    memory = batch.memory.to_dict()
    names = [n for n, value in memory.items() if isinstance(value, int) and n != "saved"]
    rows = [[name, _bytes(int(memory[name]))] for name in names if memory[name]]
    rows.append([f"of {card.name}", _bytes(card.memory)])
    flags = (
        f"--optim.accumulate {batch.parts} --speed.recompute {batch.recompute} "
        f"--parallel.strategy {batch.strategy}"
    )
    return Part(
        "memory", "Memory of a GPU",
        f"{batch.reason}\n\n{batch.micro_batch} clips at a time, {batch.parts} "
        f"part{'s' if batch.parts > 1 else ''} a step on each GPU: {flags}",
        [Table(["", "memory"], rows, note=f"Fullest in the {memory['moment']} pass.")],
    )  # fmt: skip


def _step(plan: Plan) -> Part:
    stage, take = plan.last, plan.wish.take
    work, done, point = stage.work, stage.computation, stage.point
    card, parts = plan.wish.fleet.card, plan.batch.parts
    tera = parts * work.flops() / 1e12
    reached = f"{card.reaches or take.matmul_efficiency:g} of the peak"
    rows: list[tuple[str, float, str]] = [
        ("products", done.products, f"{tera:,.1f} TFLOP with attention; {reached}"),
        ("attention", done.attention, f"fused, {take.attention_efficiency:g} of that rate"),
        ("elementwise", done.elementwise,
         f"{parts * work.traffic() / 1e9:,.0f} GB of traffic in all; "
         f"{take.bandwidth_efficiency:g} of {card.memory_rate / 1e9:,.0f} GB/s"),
        ("starting operations", done.start,
         f"{parts * work.kernels():,} of {take.kernel_us:g} µs, where they take longer than that"),
        ("pixels", done.pixels, "I420 to normalised floats"),
        ("idle", done.idle, f"loops keep devices at {take.busy:g} of that pace (--assume.busy)"),
        ("update", done.update, f"{work.parameters / 1e6:,.1f} M weights, "
         f"{plan.wish.config.optim.name}"
         + (f", shared by {point.ranks:,} ranks" if done.shared and point.ranks > 1 else "")),
        ("waiting for the loader", point.loader, _who_waits(plan)),
        ("the slowest rank", point.straggler, f"of {point.ranks:,}: {plan.wish.spread()}"),
        ("gradients" if plan.batch.strategy == "ddp" else "gradients, weights", point.exposed,
         f"left of {_ms(point.reduce)} beside passes ({point.way})"),
    ]  # fmt: skip
    table = [[name, _ms(value), why] for name, value, why in rows]
    table.append(["step", _ms(point.step), f"{point.clips:,} clips, {point.rate:,.0f} a second"])
    shown = {n: 1000 * v for n, v, _ in rows[:7]} | {
        "loader": 1000 * point.loader, "slowest rank": 1000 * point.straggler,
        "gradients": 1000 * point.exposed,
    }  # fmt: skip
    precision = f"{plan.wish.precision}, {card.name}"
    stages = "" if len(plan.stages) == 1 else " This is the last stage, with whole clips."
    if plan.wish.precision == "fp32" and card.fp16:
        stages += f" {card.name} has units for fp16: see --speed.precision fp16."
    return Part(
        "step", "A step",
        f"{precision}; {plan.binds} binds.{stages}",
        [Table(["", "time", "from"], table)],
        {"parts": Stacks("What a step is made of, in milliseconds.", [str(plan.wish.fleet)],
                         [shown], "ms", COLOURS)},
    )  # fmt: skip


def _who_waits(plan: Plan) -> str:
    waits = sorted(waiting(plan).items(), key=lambda item: -item[1])
    return ", ".join(f"{name} alone {_ms(seconds)}" for name, seconds in waits)


def _data(plan: Plan) -> Part:
    wish, needs = plan.wish, plan.needs
    footage, rate = wish.footage, plan.last.point.rate
    nodes = wish.fleet.nodes
    profile = footage.profile
    needed = plan.cores_needed
    enough = ""
    if wish.cores is not None:
        enough = f"; {wish.cores:g} are there: " + (
            "enough" if wish.cores >= needed else f"{needed / wish.cores:.1f} times too few"
        )
    rows = [
        ["decoding", f"{needs.ms_per_clip:.1f} ms a clip",
         f"one core of {needs.machine}; {profile.name} profile, stride {profile.stride}, "
         f"{footage.width}×{footage.height} (pack/cost.py)"],
        ["cores for decoding", f"{needed:.1f}" + (" of each machine" if nodes > 1 else ""),
         f"at the full pace of the GPUs, {wish.take.read_ahead:g} of their time{enough}"],
        ["a frame", f"{needs.bytes_per_frame / 1e3:.2f} KB",
         "measured in the pack" if footage.bytes_per_frame else "cost model of packs; footage "
         "differs by a factor of two and more: matinee pack --for-clip measures yours"],
        ["the pack", "unknown" if needs.stored is None else _decimal(needs.stored),
         "give --hours" if footage.hours is None
         else f"{footage.hours:,.1f} h at {footage.fps:g} frames/s"],
        ["reading", f"{_decimal(rate * needs.bytes_per_clip)}/s",
         f"{needs.bytes_per_clip / 1e3:,.0f} KB a clip"
         + (f", {_decimal(rate * needs.bytes_per_clip / nodes)}/s of each machine"
            if nodes > 1 else "") + "; from a disk, or as network traffic"],
        ["to each GPU", f"{_decimal(rate / wish.fleet.count * needs.sent_per_clip)}/s",
         f"I420; its link gives {wish.fleet.card.host_rate / 1e9:g} GB/s"],
    ]  # fmt: skip
    return Part("data", "Cores, storage, bandwidth", f"Samples: {footage.source}.",
                [Table(["", "needed", "from"], rows)])  # fmt: skip


def _cost(plan: Plan, effects: list[tuple[str, float, float]]) -> Part:
    steps = sum(stage.steps for stage in plan.stages)
    rows = [
        ["steps", f"{steps:,}", "an incomplete last batch of an epoch is dropped"],
        ["training", _hours(plan.hours), f"{plan.last.point.step:.3f} s a step"
         + (" in the last stage" if len(plan.stages) > 1 else "")],
        ["GPU-hours", f"{plan.gpu_hours:,.1f}", str(plan.wish.fleet)],
    ]  # fmt: skip
    if plan.money is not None:
        rows.append(["money", f"{plan.money:,.2f}", f"{plan.wish.price:g} for a GPU and hour"])
    told = [[name, _hours(low), _hours(high)] for name, low, high in effects[:6]]
    most = f"The hours depend most on {effects[0][0]}." if effects else ""
    return Part(
        "cost", "Hours and money", most,
        [Table(["", "", "from"], rows),
         Table(["assumption", "10 % less", "10 % more"], told, "If a number were different",
               f"Against {_hours(plan.hours)}; parts of a whole end at 1.")],
    )  # fmt: skip


def _scaling(plan: Plan) -> list[Point]:
    wish = plan.wish
    return same_batch_per_gpu(plan.last.job, wish.network(), wish.spread(), counts_to(MOST))


def _sharing(plan: Plan) -> list[Point]:
    wish, batch = plan.wish, plan.last.stage.batch_size
    counts = [n for n in counts_to(min(MOST, batch)) if batch % n == 0]
    return same_global_batch(plan.last.job, wish.network(), wish.spread(), counts, batch)


def _scaling_part(plan: Plan, per_gpu: list[Point], shared: list[Point]) -> Part:
    clips = plan.last.job.clips
    names = ("GPUs", "clips/s", "of ideal", "step", "loader", "slowest", "left", "all-reduce")

    def rows(points: list[Point]) -> list[list[str]]:
        return [
            [f"{p.ranks:,}", f"{p.rate:,.0f}", f"{p.efficiency:.2f}", _s(p.step), _s(p.loader),
             _s(p.straggler), _s(p.exposed), p.way]
            for p in points
        ]  # fmt: skip

    counts = [p.ranks for p in per_gpu]
    ticks = [n for n in (1, 8, 64, 512, 4096) if n <= counts[-1]]
    alone = per_gpu[0].rate
    speed = Lines(
        "Clips a second against GPUs, with the same batch on each and with one batch for all.",
        "GPUs", "clips/s",
        [Series(f"{clips} clips a GPU", counts, [p.rate for p in per_gpu]),
         Series(f"{shared[0].clips:,} clips in all", [p.ranks for p in shared],
                [p.rate for p in shared]),
         Series("ideal", counts, [alone * n for n in counts], style="dashed")],
        x_log=True, y_log=True, x_ticks=ticks,
    )  # fmt: skip
    efficiency = Lines(
        "Efficiency against GPUs.", "GPUs", "clips/s of a GPU, of one alone",
        [Series(f"{clips} clips a GPU", counts, [p.efficiency for p in per_gpu]),
         Series(f"{shared[0].clips:,} clips in all", [p.ranks for p in shared],
                [p.efficiency for p in shared])],
        x_log=True, x_ticks=ticks,
    )  # fmt: skip
    anew = ""
    if forwards_of(plan.wish.config, plan.batch.parts) > 1:
        anew = (
            " Each is embedded twice, also where one holds all clips of a GPU, which need it once."
        )
    chosen = [p for p in per_gpu if p.ranks in (1, 8, 64, 512, 4096, MOST)]
    stacks = Stacks(
        "What a step is made of as GPUs are added, in milliseconds.",
        [f"{p.ranks:,}" for p in chosen],
        [{"compute": 1e3 * p.compute, "loader": 1e3 * p.loader, "slowest rank": 1e3 * p.straggler,
          "gradients": 1e3 * p.exposed} for p in chosen],
        "ms", COLOURS,
    )  # fmt: skip
    return Part(
        "scaling", "More GPUs",
        f"Machines of {plan.wish.fleet.per_node}; the all-reduce takes the shortest way. Large "
        "batches may train worse: this is about speed alone. Seconds: of a step, and of it waiting "
        "for the loader, for the slowest rank and for gradients (and weights) left beside passes.",
        [Table(names, rows(per_gpu), f"The same {clips} clips on each GPU"),
         Table(names, rows(shared), f"The same {shared[0].clips:,} clips in all",
               f"In micro-batches of at most {plan.batch.micro_batch} clips.{anew}")],
        {"speed": speed, "efficiency": efficiency, "parts": stacks},
    )  # fmt: skip


def _assumptions(plan: Plan) -> Part:
    rows = [
        [f"--assume.{name.replace('_', '-')}", f"{value:g}", why]
        for name, value, why in plan.wish.take.rows()
    ]
    return Part(
        "assumptions", "What is taken for granted", "Each can be changed.",
        [Table(["", "", "because"], rows), *card_tables([plan.wish.fleet.card])],
    )  # fmt: skip


def card_tables(cards: list[Card]) -> list[Table]:
    """Cards as their makers state them, and where."""

    def tera(rate: float) -> str:
        return f"{rate / 1e12:g}" if rate else "none"

    rows = [
        [c.name, tera(c.fp32), tera(c.tf32), tera(c.fp16), tera(c.bf16), f"{c.memory / 2**30:g}",
         f"{c.memory_rate / 1e9:g}", f"{c.link} {c.link_rate / 1e9:g}", f"{c.host_rate / 1e9:g}",
         f"{c.reaches:g}" if c.reaches else ""]
        for c in cards
    ]  # fmt: skip
    return [
        Table(["card", "fp32", "tf32", "fp16", "bf16", "GiB", "GB/s", "link", "host", "reaches"],
              rows, "Cards", "Rates in TFLOPS, dense; link and host in GB/s, one direction; "
              "reaches: the part of its half-precision peak that was found. --cards FILE changes "
              "them or adds others."),
        Table(["card", "source"], [[c.name, c.source] for c in cards]),
    ]  # fmt: skip


def _numbers(
    plan: Plan, per_gpu: list[Point], shared: list[Point], effects: list[tuple[str, float, float]]
) -> dict[str, Any]:
    wish, batch = plan.wish, plan.batch
    return {
        "gpus": {"card": as_dict(wish.fleet.card), "count": wish.fleet.count,
                 "per_node": wish.fleet.per_node},
        "precision": wish.precision,
        "batch": {"micro_batch": batch.micro_batch, "parts": batch.parts,
                  "recompute": batch.recompute, "strategy": batch.strategy,
                  "reason": batch.reason},
        "memory_bytes": batch.memory.to_dict(),
        "stages": [
            {"frames": s.stage.frames, "size": s.stage.size, "batch": s.stage.batch_size,
             "steps": s.steps, "hours": s.seconds / 3600, "flops": s.work.flops(),
             "traffic_bytes": s.work.traffic(), "parameters": s.work.parameters,
             "seconds": asdict(s.computation), "step": asdict(s.point)}
            for s in plan.stages
        ],
        "binds": plan.binds,
        "footage": asdict(replace(wish.footage)),
        "data": asdict(plan.needs) | {"cores_needed": plan.cores_needed},
        "hours": plan.hours, "gpu_hours": plan.gpu_hours, "money": plan.money,
        "sensitivity": [
            {"assumption": n, "hours_10_percent_less": a, "hours_10_percent_more": b}
            for n, a, b in effects
        ],
        "scaling": {"same_batch_per_gpu": [asdict(p) for p in per_gpu],
                    "same_global_batch": [asdict(p) for p in shared]},
        "assumptions": [{"name": n, "value": v, "why": w} for n, v, w in wish.take.rows()],
        "jitter": str(wish.spread()),
    }  # fmt: skip


def _ms(seconds: float) -> str:
    return f"{seconds:,.2f} s" if seconds >= 10 else f"{1000 * seconds:,.1f} ms"


def _s(seconds: float) -> str:
    return f"{seconds:.3f}"


def _hours(hours: float) -> str:
    if hours < 1:
        return f"{60 * hours:.2f} minutes"
    return f"{hours:,.2f} h" if hours < 72 else f"{hours / 24:,.1f} days"


def _money(plan: Plan) -> str:
    return "" if plan.money is None else f", {plan.money:,.2f} in money"


def _bytes(number: int) -> str:
    return f"{number / 2**30:.2f} GiB" if number >= 2**30 else f"{number / 2**20:.1f} MiB"


def _decimal(number: float) -> str:
    for unit, size in (("TB", 1e12), ("GB", 1e9), ("MB", 1e6)):
        if number >= size:
            return f"{number / size:,.2f} {unit}"
    return f"{number / 1e3:,.1f} KB"
