"""A run as files for others: safetensors or ONNX, with a model card."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from torch import nn

from matinee import __version__
from matinee.errors import ConfigError
from matinee.extras import require
from matinee.inference.graphs import Written, graphs_of, write_graph
from matinee.inference.load import LoadedRun, load_run
from matinee.inference.model_card import model_card
from matinee.models.weights import Traits
from matinee.tasks.config import ContrastiveConfig, SentenceTextConfig
from matinee.training.config import TrainConfig

Target = Literal["safetensors", "onnx"]


@dataclass(frozen=True)
class Exported:
    """What was written to `folder`; `graphs` with their measured differences, of ONNX."""

    folder: Path
    files: tuple[str, ...]
    graphs: tuple[Written, ...]


def export(run: str | Path | LoadedRun, out: str | Path, *, to: Target) -> Exported:
    """Write a run's newest weights to a folder, whole or not at all.

    safetensors: model.safetensors, named as in this project, which `--model.pretrained` takes.
    onnx: model.onnx, or video.onnx and text.onnx, or encoder.onnx, for any batch size, each
    compared with the network (Note [Checked graphs]). With both config.json, vocabulary.json and
    README.md, the model card.

    Args:
        run: its folder, or a run loaded on the CPU.

    Raises:
        ConfigError: no such run, a folder that is not empty, a network that cannot be exported.
        MatineeError: an ONNX graph does not compute what the network does.
        MissingExtra: a package is not installed.
    """
    out = Path(out).resolve()
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise ConfigError(f"{out} exists already: choose another --out")
    loaded = run if isinstance(run, LoadedRun) else load_run(run, device="cpu")
    assert loaded.device.type == "cpu", "graphs are traced and compared on the CPU"
    with _made_whole(out) as folder:
        graphs: tuple[Written, ...] = ()
        if to == "onnx":
            graphs = tuple(
                write_graph(graph, folder, _metadata(loaded)) for graph in graphs_of(loaded)
            )
        else:
            _write_tensors(loaded, folder / "model.safetensors")
        config = published_config(loaded.config).to_json()
        (folder / "config.json").write_text(config + "\n")
        vocabulary = json.dumps(loaded.vocabulary.to_dict(), indent=1)
        (folder / "vocabulary.json").write_text(vocabulary + "\n")
        (folder / "README.md").write_text(model_card(loaded, graphs), encoding="utf-8")
        files = tuple(sorted(path.name for path in folder.iterdir()))
    return Exported(out, files, graphs)


def published_config(config: TrainConfig) -> TrainConfig:
    """A run's config with names instead of paths, which are nobody else's business."""
    task = config.task
    if isinstance(task, ContrastiveConfig) and isinstance(task.text, SentenceTextConfig):
        task = replace(task, text=replace(task.text, folder=Path(task.text.folder).name))
    return replace(
        config,
        data=replace(config.data, path=Path(config.data.path).name),
        run=replace(config.run, out=Path(config.run.out).name),
        model=replace(config.model, pretrained=Path(config.model.pretrained).name),
        task=task,
    )


def _write_tensors(run: LoadedRun, file: Path) -> None:
    save: Any = require("safetensors.torch", "train").save_file
    model = run.task.model
    # Copies, since safetensors refuses tensors that share memory.
    tensors = {
        name: value.detach().cpu().contiguous().clone()
        for name, value in model.state_dict().items()
    }
    save(tensors, str(file), metadata=_metadata(run) | _traits(model).as_metadata())


def _metadata(run: LoadedRun) -> dict[str, str]:
    return {
        "format": "pt",
        "matinee": __version__,
        "task": run.task.kind,
        "step": str(run.step),
        "mean": json.dumps(run.normalisation.mean),
        "std": json.dumps(run.normalisation.std),
    }


def _traits(model: nn.Module) -> Traits:
    """What the names of the tensors do not show, so that loading them can warn."""
    kinds = {type(module).__name__ for module in model.modules()} & {"GELU", "QuickGELU"}
    return Traits(activation=kinds.pop() if len(kinds) == 1 else None)


@contextmanager
def _made_whole(out: Path) -> Iterator[Path]:
    """A folder aside, renamed to `out` at the end and gone if anything fails."""
    out.parent.mkdir(parents=True, exist_ok=True)
    aside = out.with_name(f".{out.name}.making")
    shutil.rmtree(aside, ignore_errors=True)
    aside.mkdir()
    try:
        yield aside
        aside.replace(out)
    finally:
        shutil.rmtree(aside, ignore_errors=True)
