"""The diagnosis of a run from its log, without running anything.

# Note [Diagnosis from a log]
Each row of metrics.jsonl is one sample: the seconds of its spans over its steps. What a log cannot
tell is what a step would be without a stage; where decoding and training share cores, decoding also
slows down what counts as compute. `matinee diagnose RECIPE` measures that.

With several ranks a step is that of the median rank, as far as its own work goes. What the slowest
one takes longer is `stragglers`, and `communication` is the "comm" of the rank that waited least.
Ranks that are slow in turn, each in another step, do not show in sums over steps: they count as
communication.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

from matinee.data.decode_cost import DecodeCost
from matinee.errors import ConfigError, MatineeError
from matinee.measure.diagnose.facts import Facts, Loading, Stored
from matinee.measure.diagnose.gather import stored_of
from matinee.measure.diagnose.span_stages import Split, stages_of_spans
from matinee.measure.diagnose.suggest import suggest
from matinee.measure.diagnose.verdict import Diagnosis, Stages, StepTimes, typical
from matinee.training.config import TrainConfig
from matinee.training.spent import OWN
from matinee.training.state.runfolder import RunFolder

_FEW = 4  # rows, from which a verdict hardly follows
_BESIDE = ("save", "validate")
Row = Mapping[str, Any]


def diagnose_run(folder: str | Path) -> Diagnosis:
    """What held a run up, from its folder.

    Raises:
        ConfigError: no run there, or none whose log tells where its time went.
    """
    run = RunFolder(folder)
    config = run.config()
    rows = [row for row in run.rows() if row.get("kind") == "train"]
    if not rows:
        raise ConfigError(f"{run.path} has no row of training yet in {run.metrics_file.name}")
    timed = [row for row in rows if isinstance(row.get("spans"), dict) and row["spans"]]
    if not timed:
        raise ConfigError(f"{run.path} was trained with --speed.no-spans: its log holds no times")
    windows = _windows(timed)
    used = windows[1:] if len(windows) > 1 else windows
    split, notes = _split([row for row, _ in used], run)
    samples = [row_stages(row, steps, split) for row, steps in used]
    seconds = [sum(sample.values()) for sample in samples]
    clips = round(sum(row["clips"] for row, _ in used) / sum(steps for _, steps in used))
    notes += _limits(used, len(windows))
    facts = _facts(config, [row for row, _ in used], sum(n for _, n in used), typical(samples))
    return Diagnosis.of(
        str(run.path), StepTimes.of(seconds, clips), samples, changes=suggest(facts),
        notes=notes, details=_details(used, facts),
    )  # fmt: skip


def _windows(rows: Sequence[Row]) -> list[tuple[Row, int]]:
    """Rows with the steps that their spans are of.

    Rows of older runs do not hold that number: it is the distance to the row before.
    """
    found: list[tuple[Row, int]] = []
    before = 0
    for row in rows:
        steps = row["window"]["steps"] if "window" in row else row["step"] - before
        before = row["step"]
        if steps > 0 and row.get("clips"):
            found.append((row, steps))
    if not found:
        raise ConfigError("no row of the log holds a whole step")
    return found


def row_stages(row: Row, steps: int, split: Split) -> Stages:
    """Seconds a step of each stage, from one row. See Note [Diagnosis from a log]."""
    over = row.get("ranks")
    spans = {name: s for name, s in row["spans"].items() if name not in _BESIDE}
    stragglers = 0.0
    if over:
        spans = {name: over[name]["median"] for name in over if name not in (OWN, *_BESIDE)}
        if "comm" in over:
            spans["comm"] = over["comm"]["least"]
        stragglers = over[OWN]["greatest"] - over[OWN]["median"]
    stages = stages_of_spans(spans, split)
    if over:
        stages["stragglers"] = stragglers
    elif row.get("world", 1) == 1:
        stages.pop("communication", None)  # microseconds that one rank takes to find no other
    took = _seconds(row)
    if took is not None:
        saved = sum(row["spans"].get(name, 0.0) for name in _BESIDE)
        stages["other"] = max(0.0, took - saved - sum(stages.values()))
    return {name: seconds / steps for name, seconds in stages.items()}


def _seconds(row: Row) -> float | None:
    """Of a row's window, on rank 0; None if it does not tell."""
    if "window" in row:
        return float(row["window"]["seconds"])
    speed = row.get("clips_per_s")
    return row["clips"] / speed if speed else None


def _split(rows: Sequence[Row], run: RunFolder) -> tuple[Split, list[str]]:
    """How these rows tell storage from decode, and what to say of it."""
    total = _cost(rows)
    if total is not None:
        return total, []
    if any("window" in row for row in rows):  # rows of today, without a loader that decodes
        return "memory", [
            "nothing was decoded, for all data lay in memory: waiting for data is making batches "
            "of it, and counts as h2d"
        ]
    return None, [
        f"the log of {run.path} is older than sums of what decoders did: data cannot be told apart "
        "into storage and decode; `matinee diagnose RECIPE` measures it"
    ]


def _cost(rows: Sequence[Row]) -> DecodeCost | None:
    """The sums of all rows, None without any."""
    names = [field.name for field in fields(DecodeCost)]
    held = [row["loader"] for row in rows if "loader" in row]
    if not held:
        return None
    try:
        costs = [DecodeCost(**{name: each[name] for name in names}) for each in held]
    except (KeyError, TypeError) as error:
        raise ConfigError(f"the log's sums of decoders are damaged: {error!r}") from None
    return sum(costs, DecodeCost())


def _limits(used: Sequence[tuple[Row, int]], windows: int) -> list[str]:
    notes = []
    if len(used) < windows:
        notes.append("the first row is left out: it holds the start of decoders and kernels")
    most = max(steps for _, steps in used)
    if most > 1:
        notes.append(
            f"p50 and p99 are over rows, each the mean of up to {most} steps: single slow steps do "
            "not show"
        )
    if len(used) < _FEW:
        notes.append(f"only {len(used)} rows: log more often (--run.log-every) or train longer")
    if any("ranks" in row for row, _ in used):
        notes.append(
            "ranks that are slow in turn do not show in sums over steps: they count as "
            "communication"
        )
    elif any(row.get("world", 1) > 1 for row, _ in used):
        notes.append("the log holds times of rank 0 alone: stragglers count as communication")
    return notes


def _facts(config: TrainConfig, rows: Sequence[Row], steps: int, stages: Stages) -> Facts:
    """What is known for looking for changes; not what only a measurement tells."""
    cost, loading = _cost(rows), None  # of all ranks
    last = rows[-1]
    world = int(last.get("world", 1))
    if cost is not None and cost.clips:
        decoders = int(next(row["loader"]["decoders"] for row in rows if "loader" in row))
        loading = Loading(max(1, decoders // world), config.data.mode, cost, steps * world)
    return Facts(
        config, stages, device="cuda" if "memory_gib" in last else "cpu",
        precision="fp16" if "loss_scale" in last else config.speed.precision,
        world=world, loading=loading, stored=_stored(config),
        ranks_s=_rank_seconds(last, world),
    )  # fmt: skip


def _rank_seconds(row: Row, world: int) -> tuple[float, ...]:
    """Seconds a step of each rank's own work; a row names the slowest, others get the median."""
    if "ranks" not in row:
        return ()
    own, steps = row["ranks"][OWN], row["window"]["steps"]
    seconds = [own["median"] / steps] * world
    seconds[int(own["slowest"])] = own["greatest"] / steps
    return tuple(seconds)


def _stored(config: TrainConfig) -> Stored | None:
    """How the pack's videos are stored, if it still lies where it was."""
    try:
        return stored_of(config.data.open())
    except (MatineeError, OSError):
        return None


def _details(used: Sequence[tuple[Row, int]], facts: Facts) -> dict[str, Any]:
    """Figures beside the stages."""
    rows = [row for row, _ in used]
    details: dict[str, Any] = {"rows": len(rows), "steps": sum(steps for _, steps in used)}
    if facts.loading is not None:
        details["loading"] = facts.loading.to_dict()
    if "ranks" in rows[-1]:
        details["ranks"] = rows[-1]["ranks"]
    return details
