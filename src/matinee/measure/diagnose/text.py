"""A diagnosis as plain text, for `print` and logs."""

from __future__ import annotations

from collections.abc import Sequence

from matinee.measure.diagnose.show import MEANING, milliseconds, saving, sentence
from matinee.measure.diagnose.verdict import STAGES, Diagnosis


def as_text(diagnosis: Diagnosis) -> str:
    """Stages, verdict, what to change, notes."""
    step, stages = diagnosis.step, diagnosis.stages
    total = sum(stages.values()) or 1.0
    clips = f" of {step.clips} clips, {step.clips_per_s:.3g} clips/s" if step.clips else ""
    lines = [
        f"{diagnosis.what}: a step{clips}: p50 {milliseconds(step.p50)}, p99 "
        f"{milliseconds(step.p99)}, of {step.count}",
        "",
        *_aligned([
            (stage, milliseconds(stages[stage]), f"{stages[stage] / total:.0%}", MEANING[stage])
            for stage in STAGES if stage in stages
        ]),
        "",
        f"Verdict: {diagnosis.verdict}.",
    ]  # fmt: skip
    if diagnosis.changes:
        changes = [
            (f"{number}.", change.what, saving(change, diagnosis), change.how)
            for number, change in enumerate(diagnosis.changes, 1)
        ]
        lines += ["", "What to change (saves a step):", *_aligned(changes)]
    if diagnosis.notes:
        lines += ["", *(sentence(note) for note in diagnosis.notes)]
    return "\n".join(lines)


def _aligned(rows: Sequence[Sequence[str]]) -> list[str]:
    """Columns side by side, none behind the last."""
    wide = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))] if rows else []
    return [
        "  " + "  ".join(cell.ljust(width) for cell, width in zip(row, wide, strict=True)).rstrip()
        for row in rows
    ]
