"""A diagnosis as tables, plots and a page."""

from __future__ import annotations

from matinee.measure.diagnose.changes import Change
from matinee.measure.diagnose.verdict import STAGES, Diagnosis
from matinee.measure.draw.figures import Stacks
from matinee.measure.result import Part, Result, Table

COLOURS = {
    "storage": "#cc79a7", "decode": "#e69f00", "h2d": "#f0e442", "data": "#e69f00",
    "compute": "#56b4e9", "communication": "#d55e00", "optimizer": "#009e73",
    "stragglers": "#8c6d31", "other": "#a0a4ab",
}  # fmt: skip
MEANING = {
    "storage": "waiting for bytes of clips",
    "decode": "waiting for decoders (on a CPU also the cores they take)",
    "h2d": "taking batches to the device",
    "data": "waiting for data, not told apart further",
    "compute": "forward and backward pass",
    "communication": "ranks send each other gradients, as far as it is not hidden",
    "optimizer": "limit of the gradient and update",
    "stragglers": "waiting for the slowest rank",
    "other": "the rest",
}


def result_of(diagnosis: Diagnosis, name: str = "diagnose") -> Result:
    """For `write_result` and `show_result`."""
    step, shown = diagnosis.step, diagnosis.stages
    lead = (
        f"The verdict is {diagnosis.verdict}.\n\nA step of {step.clips} clips took "
        f"{milliseconds(step.p50)} (p50) and {milliseconds(step.p99)} (p99), of {step.count} "
        f"measured: {step.clips_per_s:.3g} clips/s."
    )
    total = sum(shown.values()) or 1.0
    rows = [
        [stage, milliseconds(shown[stage]), f"{shown[stage] / total:.0%}", MEANING[stage]]
        for stage in STAGES
        if stage in shown
    ]
    unit, unit_name = (1.0, "seconds") if total >= 1 else (1000.0, "milliseconds")
    figure = Stacks(
        "One step, put together of what each stage costs it: "
        + ", ".join(f"{s} {shown[s] / total:.0%}" for s in STAGES if shown.get(s, 0) > 0),
        ["one step"], [{s: unit * shown[s] for s in STAGES if s in shown}], unit_name, COLOURS,
    )  # fmt: skip
    parts = [
        Part(
            "step", "Where a step goes", str(diagnosis.verdict),
            [Table(["stage", "a step", "share", "what it is"], rows)], {"stages": figure},
        )
    ]  # fmt: skip
    parts += _loader(diagnosis) + _changes(diagnosis) + _tried(diagnosis)
    if diagnosis.notes:
        parts.append(Part("notes", "Notes", "\n\n".join(sentence(n) for n in diagnosis.notes)))
    return Result(
        name, f"What holds up {diagnosis.what}", lead, parts, diagnosis.to_dict()
    )  # fmt: skip


def milliseconds(seconds: float) -> str:
    """Three digits; seconds from one on."""
    return f"{seconds:.3g} s" if abs(seconds) >= 0.9995 else f"{1000 * seconds:.3g} ms"


def sentence(text: str) -> str:
    return f"{text[0].upper()}{text[1:]}."


def _loader(diagnosis: Diagnosis) -> list[Part]:
    loader = diagnosis.details.get("loading")
    if not loader:
        return []
    rows = [
        ["decoders", f"{loader['decoders']} ({loader['mode']})"],
        ["waits for a decoder", f"{loader['queued_ms']:.3g} ms"],
        ["read from storage", f"{loader['bytes'] / 1000:.3g} KB in {loader['read_ms']:.3g} ms"],
        ["decode", f"{loader['decode_ms']:.3g} ms"],
        ["crop, scale, write", f"{loader['scale_ms']:.3g} ms"],
        ["decoder busy", f"{loader['busy_ms']:.3g} ms"],
        ["hand-off", f"{loader['handoff_ms']:.3g} ms"],
        ["frames decoded / used",
         f"{loader['frames_decoded']:.3g} / {loader['frames_used']:.3g}"],
        ["packets fed", f"{loader['packets']:.3g}"],
    ]  # fmt: skip
    arms = diagnosis.details.get("arms_s", {})
    text = ""
    if "loader" in arms:
        pace = diagnosis.step.clips / arms["loader"]["median"]
        text = f"The loader alone gives {pace:.3g} clips/s"
        text += f", training takes {diagnosis.step.clips_per_s:.3g}."
    return [Part("loader", "Loading a clip", text, [Table(["", "a clip"], rows)])]


def _changes(diagnosis: Diagnosis) -> list[Part]:
    heading = "What to change"
    if not diagnosis.changes:
        return [Part("changes", heading, "Nothing is known that would save a hundredth of a step.")]
    rows = [
        [f"{number}", change.what, saving(change, diagnosis), change.basis, change.how]
        for number, change in enumerate(diagnosis.changes, 1)
    ]
    learns = any(change.learns for change in diagnosis.changes)
    note = "Expected savings are those of each change alone; they do not add up."
    note += " * changes what is learned." if learns else ""
    why = "\n\n".join(
        f"{number}. {change.why}." for number, change in enumerate(diagnosis.changes, 1)
    )
    table = Table(["", "change", "saves a step", "basis", "how"], rows, note=note)
    return [Part("changes", heading, "", [table]), Part("why", "Why", why)]


def saving(change: Change, diagnosis: Diagnosis) -> str:
    """Expected seconds and part of a step."""
    mark = " *" if change.learns else ""
    if change.saves is None:
        return f"try it{mark}"
    part = change.saves / (sum(diagnosis.stages.values()) or 1.0)
    return f"{milliseconds(change.saves)} ({part:.0%}){mark}"


def _tried(diagnosis: Diagnosis) -> list[Part]:
    tried = diagnosis.details.get("tried")
    if not tried:
        return []
    rows = [
        [t["what"], _or(t["expected_s"]), _or(t["measured_s"]),
         t["note"] or f"{milliseconds(t['low_s'])} … {milliseconds(t['high_s'])}"]
        for t in tried
    ]  # fmt: skip
    text = "Each took turns with the recipe as it is; a negative saving is a loss."
    return [
        Part("tried", "Tried", text, [Table(["change", "expected", "measured", "quartiles"], rows)])
    ]


def _or(seconds: float | None) -> str:
    return "unknown" if seconds is None else milliseconds(seconds)
