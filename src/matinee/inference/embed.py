"""Vectors of clips and captions, from any run, as tables for other programs."""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray
from torch import Tensor

from matinee.data.batch import Batch
from matinee.data.open_loader import open_loader
from matinee.errors import ConfigError
from matinee.evaluation.arrays import unit_rows
from matinee.evaluation.embeddings import ClipVectors, embed_clips, embed_texts
from matinee.evaluation.means import Autocast
from matinee.evaluation.ranks import rank, world_size
from matinee.files import write_whole
from matinee.inference.load import LoadedRun, load_run
from matinee.models.base import VideoModel
from matinee.pack.open import DataSet, open_data
from matinee.tasks.base import Task
from matinee.tasks.contrastive import ContrastiveTask
from matinee.tasks.masked import MaskedTask
from matinee.training.precision import autocast, pick_precision

FORMATS = (".parquet", ".npy")

Progress = Callable[[int, int], None]
"""Called with (clips done, clips in all)."""


@dataclass(frozen=True)
class Row:
    """Which sample a vector is of: of its clip, or of one of its captions (`text`)."""

    sample: str
    index: int
    kind: str
    text: str | None


@dataclass(frozen=True)
class Embeddings:
    """vectors: float32 [N, D], one for each of `rows`: first the clips, then the captions.

    about: run, step, task, features (what a vector is), data, split, views, skipped (samples that
    could not be read), cut (captions longer than the text tower's context).
    """

    rows: tuple[Row, ...]
    vectors: NDArray[np.float32]
    about: dict[str, Any]


def embed(
    run: str | Path | LoadedRun,
    *,
    data: str | Path | None = None,
    split: str | None = None,
    views: tuple[int, int] = (1, 1),
    batch_size: int | None = None,
    workers: int | None = None,
    mask_errors: bool = False,
    device: str = "auto",
    on_progress: Progress | None = None,
) -> Embeddings:
    """Vectors of the samples of a data set, means over views.

    Contrastive runs give unit vectors in the space that clips and captions share, of both;
    classification the pooled features before the classifier; a masked autoencoder the mean of its
    encoder's tokens, none of them hidden.

    Args:
        data: a pack or image set; the run's own when None.
        split: as `Pack.select` takes it; all samples when None.
        mask_errors: leave out and count samples that cannot be read, instead of stopping.

    Raises:
        ConfigError: no such run, pack or split.
        ClipError: a clip cannot be read.
    """
    loaded = run if isinstance(run, LoadedRun) else load_run(run, device=device)
    pack = open_data(data if data is not None else loaded.config.data.path)
    clips = clip_vectors(
        loaded, pack, split=split, views=views, batch_size=batch_size, workers=workers,
        mask_errors=mask_errors, on_progress=on_progress,
    )  # fmt: skip
    places = clips.index.tolist()
    pairs = list(zip(clips.samples, places, strict=True))
    rows = [Row(sample, index, "clip", None) for sample, index in pairs]
    vectors, cut = clips.vectors, 0
    if isinstance(loaded.task, ContrastiveTask):
        said = [
            Row(sample, index, "text", text)
            for sample, index in pairs
            for text in pack.captions(index)
        ]
        if said:
            texts = [row.text or "" for row in said]
            of_texts, cut = embed_texts(loaded.task, texts, autocast_of(loaded))
            rows, vectors = rows + said, np.concatenate([vectors, of_texts])
    about = {
        "run": str(loaded.folder.path),
        "step": loaded.step,
        "task": loaded.task.kind,
        "features": _WORDS[loaded.task.kind],
        "data": str(pack.path),
        "split": split,
        "views": f"{views[0]}x{views[1]}",
        "skipped": len(clips.skipped),
        "cut": cut,
    }
    return Embeddings(tuple(rows), vectors, about)


_WORDS = {
    "classification": "pooled features before the classifier",
    "contrastive": "unit vectors in the space of clips and captions",
    "masked": "mean of the encoder's tokens",
}


def clip_vectors(
    run: LoadedRun,
    pack: DataSet,
    *,
    split: str | None,
    views: tuple[int, int],
    batch_size: int | None = None,
    workers: int | None = None,
    mask_errors: bool = False,
    on_progress: Progress | None = None,
) -> ClipVectors:
    """Vectors of samples in table order; contrastive ones of length one.

    Raises:
        ConfigError: no such split.
        ClipError: a clip cannot be read.
    """
    config = run.config
    with open_loader(
        pack, split=split, clip=config.clip, views=views, classes=run.vocabulary.classes,
        targets=np.full(len(pack), -1, dtype=np.int64), seed=config.run.seed,
        batch_size=config.optim.batch_size if batch_size is None else batch_size,
        workers=workers, mode=config.data.mode, on_error="mask" if mask_errors else "raise",
        device=run.device, mean=run.normalisation.mean, std=run.normalisation.std,
        rank=rank(), world=world_size(),
    ) as loader:  # fmt: skip
        total = loader.num_items
        found = embed_clips(
            features_of(run.task), loader, autocast_of(run),
            on_batch=(lambda done: on_progress(done, total)) if on_progress else None,
        )  # fmt: skip
    assert found is not None
    if not isinstance(run.task, ContrastiveTask):
        return found
    unit = unit_rows(found.vectors).astype(np.float32)
    return ClipVectors(found.index, found.samples, unit, found.skipped)


def features_of(task: Task) -> Callable[[Batch], Tensor]:
    """What gives a task's vectors [B, D] of the clips of a batch."""
    if isinstance(task, ContrastiveTask):
        dual = task.model
        return lambda batch: dual.embed_video(batch.video)
    if isinstance(task, MaskedTask):
        autoencoder = task.model
        return lambda batch: autoencoder.encode(batch.video).mean(dim=1)
    model = task.model
    assert isinstance(model, VideoModel)
    return lambda batch: model.embed(batch.video)


def autocast_of(run: LoadedRun) -> Autocast:
    """The number format that a run's forward passes have here."""
    precision, _ = pick_precision(run.config.speed.precision, run.device)
    return lambda: autocast(precision, run.device)


def check_format(file: Path) -> None:
    """Refuse a name that is neither .parquet nor .npy, before anything is computed.

    Raises:
        ConfigError: another name, or no folder to write to.
    """
    if file.suffix not in FORMATS:
        raise ConfigError(f"{file}: vectors are written as {' or '.join(FORMATS)}")
    if not file.parent.is_dir():
        raise ConfigError(f"{file}: there is no folder {file.parent}")


def write_embeddings(file: Path, found: Embeddings) -> None:
    """Write a parquet table (sample, index, kind, text, vector), or an array float32 [N, D] with
    the other columns in a .json beside it.

    Raises:
        ConfigError: another file name.
    """
    check_format(file)
    buffer = io.BytesIO()
    if file.suffix == ".parquet":
        pq.write_table(_table(found), buffer)
        write_whole(file, buffer.getbuffer())
        return
    np.save(buffer, found.vectors, allow_pickle=False)
    write_whole(file, buffer.getbuffer())
    columns = {name: _column(found.rows, name) for name in ("sample", "index", "kind", "text")}
    beside = found.about | {"shape": list(found.vectors.shape), **columns}
    write_whole(file.with_suffix(".json"), (json.dumps(beside, indent=1) + "\n").encode())


def _table(found: Embeddings) -> pa.Table:
    flat = pa.array(found.vectors.reshape(-1), pa.float32())
    columns = {
        "sample": pa.array(_column(found.rows, "sample"), pa.string()),
        "index": pa.array(_column(found.rows, "index"), pa.int64()),
        "kind": pa.array(_column(found.rows, "kind"), pa.string()),
        "text": pa.array(_column(found.rows, "text"), pa.string()),
        "vector": pa.FixedSizeListArray.from_arrays(flat, found.vectors.shape[1]),
    }
    return pa.table(columns).replace_schema_metadata({"matinee": json.dumps(found.about)})


def _column(rows: Sequence[Row], name: str) -> list[Any]:
    return [getattr(row, name) for row in rows]
