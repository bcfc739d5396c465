"""The README of an exported model: what it is, from what, how good where, how to use it."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from matinee import __version__
from matinee.errors import MatineeError
from matinee.inference.graphs import CHECKED, TOLERANCE, Written
from matinee.inference.load import LoadedRun
from matinee.pack.open import open_data
from matinee.tasks.config import ClassificationConfig, ContrastiveConfig, SentenceTextConfig
from matinee.training.setup import choose_splits

_SHOWN = 40  # classes that are named
_NO_METRICS = ("step", "samples", "skipped", "epoch", "cut", "captions")

_TASKS = {
    "classification": "It names the class of a clip.",
    "contrastive": "It and a text tower turn clips and sentences into unit vectors; a clip lies "
    "near what is said about it. The parameters are those of both towers.",
    "masked": "It was trained to reconstruct hidden parts of clips; its encoder is meant for "
    "fine-tuning.",
}

_LOAD = """```python
import json
from dataclasses import replace
from pathlib import Path

from matinee.tasks.build import build_task
from matinee.tasks.vocabulary import Vocabulary
from matinee.training.config import TrainConfig

config = TrainConfig.from_json(Path("config.json").read_text())
vocabulary = Vocabulary.from_dict(json.loads(Path("vocabulary.json").read_text()))
built = build_task(
    config.task,
    replace(config.model, pretrained="model.safetensors"),
    frames=config.clip.frames,
    size=config.clip.size,
    vocabulary=vocabulary,
)
network = built.task.model.eval()
```

`matinee train … --model.pretrained model.safetensors` starts a run from these weights.
"""


def model_card(run: LoadedRun, graphs: Sequence[Written]) -> str:
    """Markdown; `graphs` of an ONNX export, none for safetensors."""
    parts = [
        f"# {run.folder.path.resolve().name}",
        _what(run),
        f"## Input\n\n{_input(run, graphs)}",
        f"## How to load\n\n{_onnx(run, graphs) if graphs else _safetensors(run)}",
        f"## Training data\n\n{_data(run)}",
        f"## Results\n\n{_results(run)}",
        f"## Limits\n\n{_limits(run)}",
        f"## Licence\n\n{_licence(run)}",
    ]
    return "\n\n".join(part.strip() for part in parts) + "\n"


def _what(run: LoadedRun) -> str:
    model, task = run.config.model, run.task
    numbers = sum(p.numel() for p in task.model.parameters())
    said = (
        f"{model.backbone} as a video network ({model.temporal.kind}), {numbers / 1e6:.2f} M "
        f"parameters, trained for {run.step:,} steps with matinee {__version__}. "
        f"{_TASKS[task.kind]}"
    )
    said += "".join(f" {note[0].upper()}{note[1:]}." for note in run.notes)
    classes = run.vocabulary.classes
    if classes:
        named = ", ".join(f"`{name}`" for name in classes[:_SHOWN])
        more = ", … (all in vocabulary.json)" if len(classes) > _SHOWN else ""
        said += f"\n\nIts {len(classes)} classes, in the order of its outputs: {named}{more}."
    config = run.config.task
    if isinstance(config, ClassificationConfig):
        several = config.labels == "multi"
        said += (
            " Outputs are logits: the logistic function of each is the probability of its label."
            if several
            else " Outputs are logits: their softmax gives probabilities."
        )
    return said


def _input(run: LoadedRun, graphs: Sequence[Written]) -> str:
    clip, norm = run.config.clip, run.normalisation
    mean, std = (", ".join(f"{v:g}" for v in values) for values in (norm.mean, norm.std))
    apart = f"{clip.stride} apart" if clip.fps is None else f"{clip.fps:g} a second"
    how = (
        f"{clip.frames} frames, {apart}"
        if clip.sampling == "dense"
        else f"{clip.frames} frames, one from the middle of each of {clip.frames} equal parts of "
        "the sample"
    )
    lines = [
        f"- Clips: float32 `[batch, 3, {clip.frames}, {clip.size}, {clip.size}]`: RGB, frames, "
        "height, width; any batch size.",
        f"- Frames: {how}.",
        f"- Picture: the central square, {clip.center_scale:g} of the short side wide, scaled to "
        f"{clip.size} × {clip.size}.",
        f"- Colours: RGB between 0 and 1, minus the mean ({mean}), divided by the deviation "
        f"({std}).",
    ]
    if clip.grayscale == 1:
        lines.append("- Without colour: R, G and B are all 0.299 R + 0.587 G + 0.114 B.")
    if clip.modality == "difference":
        lines.append(
            "- Differences: each frame is what remains when the normalised frame before it is "
            f"subtracted, so {clip.frames + 1} frames are read."
        )
    if any(written.graph.name == "text" for written in graphs):
        lines.append(
            "- Texts: token ids of CLIP's vocabulary, int64 `[batch, 77]`: start of text, the "
            "words, end of text, zeros."
        )
    return "\n".join(lines)


def _safetensors(run: LoadedRun) -> str:
    task = run.config.task
    if isinstance(task, ContrastiveConfig) and isinstance(task.text, SentenceTextConfig):
        return (
            f"{_LOAD}\nThe weights of the sentence encoder are not in the file: put the folder "
            f"`{Path(task.text.folder).name}` it was trained with here."
        )
    return _LOAD


def _onnx(run: LoadedRun, graphs: Sequence[Written]) -> str:
    clip = run.config.clip
    code = ["import numpy as np", "import onnxruntime", ""]
    for written in graphs:
        graph, file = written.graph, written.file.name
        if graph.input == "ids":
            code += [
                "import open_clip",
                "",
                'ids = open_clip.SimpleTokenizer(context_length=77)(["what is looked for"])',
                "ids = ids.numpy()",
            ]
        else:
            shape = f"(1, 3, {clip.frames}, {clip.size}, {clip.size})"
            code.append(f"video = np.zeros({shape}, np.float32)  # normalised as above")
        code += [
            f'session = onnxruntime.InferenceSession("{file}")',
            f'({graph.name}_{graph.output},) = session.run(None, {{"{graph.input}": '
            f"{graph.input}}})",
            "",
        ]
    rows = [
        f"| {w.file.name} | `{w.graph.input}`: {w.graph.shape} | `{w.graph.output}`: "
        f"{w.graph.gives} | {w.opset} | {w.difference:.1e} |"
        for w in graphs
    ]
    table = "| graph | input | output | opset | difference |\n| --- | --- | --- | --- | --- |\n"
    return (
        "```python\n" + "\n".join(code).strip() + "\n```\n\n" + table + "\n".join(rows) + "\n\n"
        "Difference: the largest between onnxruntime and the network itself in PyTorch, as a part "
        f"of the network's largest output, on random input in batches of "
        f"{' and '.join(map(str, CHECKED))}; up to {TOLERANCE:.0e} is accepted."
    )


def _data(run: LoadedRun) -> str:
    path = Path(run.config.data.path)
    try:
        pack = open_data(run.config.data.path)
        splits = choose_splits(pack, run.config)
    except (MatineeError, OSError):
        return f"`{path.name}`, which was not at hand when this was written: no counts."
    counts = ", ".join(f"{n:,} in {name or 'no split'}" for name, n in pack.splits().items())
    return (
        f"`{path.name}`: {len(pack):,} samples ({counts}); {splits.note}. "
        f"{len(pack.select(splits.train)):,} samples were trained on."
    )


def _results(run: LoadedRun) -> str:
    lines = []
    for pattern in ("eval-*.json", "zero-shot-*.json"):
        for file in sorted(run.folder.path.glob(pattern)):
            try:
                report = json.loads(file.read_text())
                lines.append(_result(run, report, file.name))
            except (ValueError, OSError, KeyError, TypeError, AttributeError):
                lines.append(f"- `{file.name}` cannot be read.")
    validations = [row for row in run.folder.rows() if row.get("kind") == "val"]
    if validations:
        last = validations[-1]
        said = _numbers(last)
        lines.append(
            f"- Validation during training, at step {last['step']:,} (`metrics.jsonl`, one view a "
            f"sample): {said}{_stale(run, last)}."
        )
    return "\n".join(lines) or "It was never evaluated."


def _result(run: LoadedRun, report: dict[str, Any], source: str) -> str:
    kind = "Zero-shot, by" if report.get("zero_shot") else "By"
    return (
        f"- {kind} `{source}`: {_numbers(report)}. Measured on split {report['split']} of "
        f"`{Path(report['data']).name}`, {report['samples']:,} samples, {report['skipped']:,} "
        f"skipped, {report['views']} views{_stale(run, report)}."
    )


def _numbers(report: dict[str, Any]) -> str:
    named = [
        f"{name} {value:.3f}"
        for name, value in report.items()
        if isinstance(value, float) and math.isfinite(value) and name not in _NO_METRICS
    ]
    return ", ".join(named)


def _stale(run: LoadedRun, report: dict[str, Any]) -> str:
    """A warning where a number is of other weights than these."""
    step = int(report["step"])
    return "" if step == run.step else f"; of step {step:,}, so of other weights than these"


def _limits(run: LoadedRun) -> str:
    clip = run.config.clip
    lines = [
        "- The results hold for the data they were measured on. Other cameras, places, people and "
        "frame rates can give worse ones: evaluate it on your own data first.",
        f"- It sees {clip.frames} frames of {clip.size} × {clip.size} pixels, and no sound.",
    ]
    if run.task.kind == "classification":
        lines.append(
            "- It names one of its classes whatever it is shown, also when none of them is there."
        )
    if run.task.kind == "contrastive":
        lines.append(
            "- Similarities order clips and texts; they are no probabilities, and words that the "
            "captions of its training data lack mean little to it."
        )
    return "\n".join(lines)


def _licence(run: LoadedRun) -> str:
    start = run.config.model.pretrained
    came = (
        "" if start == "none" else f" and from the weights it started with (`{Path(start).name}`)"
    )
    return (
        "Not stated: whoever publishes these weights says it here. It can follow from the licence "
        f"of the training data{came}."
    )
