"""EgoMCQ with a contrastive run: which of five clips does a sentence describe?"""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from matinee.errors import ConfigError, MatineeError
from matinee.evaluation.egomcq import Candidate, egomcq_accuracy, read_egomcq
from matinee.evaluation.embeddings import embed_texts
from matinee.inference.embed import autocast_of, clip_vectors
from matinee.inference.load import LoadedRun, load_run
from matinee.inference.reports import write_report
from matinee.pack.open import DataSet, open_data
from matinee.tasks.contrastive import ContrastiveTask

_ASKED = "asked by EgoMCQ"


def egomcq(
    run: str | Path | LoadedRun,
    questions: str | Path,
    data: str | Path,
    *,
    split: str | None = None,
    views: tuple[int, int] = (1, 1),
    batch_size: int | None = None,
    workers: int | None = None,
    mask_errors: bool = False,
    device: str = "auto",
    on_progress: Callable[[int, int], None] | None = None,
) -> dict[str, Any]:
    """Accuracy among clips of different videos (inter) and of one video (intra).

    Only the clips of the questions are read.

    Args:
        questions: the published egomcq.json.
        data: a pack whose samples are the clips: the same start and end, to 10 ms, of a video whose
            file is called as the question says.
        split: where the clips are looked for, as `Pack.select` takes it; in all samples when None.
        mask_errors: leave out and count questions with a clip that cannot be read, instead of
            stopping.

    Returns:
        run, step, notes, data, split, views, inter_video, intra_video, how many questions of each,
        `skipped` clips, `left_out` questions, and `cut`, how many sentences were longer than the
        context. Also written to `<run>/egomcq-<data>[-<split>]-<views>[-best].json`.

    Raises:
        ConfigError: a run that is not contrastive, or clips that the pack lacks.
        AnnotationError: a damaged file of questions.
        ClipError: a clip cannot be read.
        MatineeError: not one question has all its clips.
    """
    loaded = run if isinstance(run, LoadedRun) else load_run(run, device=device)
    if not isinstance(loaded.task, ContrastiveTask):
        raise ConfigError(
            f"{loaded.folder.path} is a run of {loaded.task.kind}: EgoMCQ compares sentences with "
            "clips and needs a contrastive run"
        )
    asked = read_egomcq(Path(questions))
    pack = open_data(data)
    wanted = _rows(pack, [c for question in asked for c in question.candidates], split)
    clips = clip_vectors(
        loaded, _with_asked(pack, wanted), split=f"{_ASKED}=yes", views=views,
        batch_size=batch_size, workers=workers, mask_errors=mask_errors, on_progress=on_progress,
    )  # fmt: skip
    rows_QC = wanted.reshape(len(asked), -1)
    whole = np.asarray(np.isin(rows_QC, clips.index).all(axis=1))
    if not whole.any():
        raise MatineeError(f"{pack.path}: no question has all its clips: {len(clips.skipped)} gone")
    kept = [question for question, read in zip(asked, whole, strict=True) if read]
    texts, cut = embed_texts(loaded.task, [q.text for q in kept], autocast_of(loaded))
    vectors_QCE = clips.vectors[np.searchsorted(clips.index, rows_QC[whole])]
    report = {
        "run": str(loaded.folder.path),
        "step": loaded.step,
        "notes": list(loaded.notes),
        "data": str(pack.path),
        "split": split,
        "views": f"{views[0]}x{views[1]}",
        **egomcq_accuracy(
            np.einsum("qce,qe->qc", vectors_QCE, texts),
            np.array([q.answer for q in kept]),
            np.array([q.type for q in kept]),
        ),
        "skipped": len(clips.skipped),
        "left_out": len(asked) - len(kept),
        "cut": cut,
    }
    where = (pack.name,) if split is None else (pack.name, split)
    write_report(loaded, ["egomcq", *where, f"{views[0]}x{views[1]}"], report)
    return report


def _rows(pack: DataSet, wanted: list[Candidate], split: str | None) -> NDArray[np.int64]:
    """Row of the pack of each clip, int64 [N].

    Raises:
        ConfigError: with how many are missing and the first.
    """
    if "video" not in pack.samples.column_names:
        raise ConfigError(f"{pack.path} is an image set: EgoMCQ needs a pack of its clips")
    names, starts, ends = (
        pack.samples.column(name).to_pylist() for name in ("video", "start_s", "end_s")
    )
    place = {
        (PurePosixPath(names[row]).stem, _hundredths(starts[row]), _hundredths(ends[row])): row
        for row in pack.select(split).tolist()
    }
    keys = [(c.video, _hundredths(c.start), _hundredths(c.end)) for c in wanted]
    missing = [c for c, key in zip(wanted, keys, strict=True) if key not in place]
    if missing:
        first = missing[0]
        where = "" if split is None else f" in --split {split}"
        raise ConfigError(
            f"{pack.path} lacks{where} {len(missing)} of {len(wanted)} clips of the questions, the "
            f"first is {first.video} from {first.start} to {first.end} s: pack them with columns "
            "start and end"
        )
    return np.array([place[key] for key in keys], dtype=np.int64)


def _with_asked(pack: DataSet, rows: NDArray[np.int64]) -> DataSet:
    """The pack with a column that selects the rows: most packs hold far more clips."""
    marks = np.zeros(len(pack), dtype=bool)
    marks[rows] = True
    chosen = copy.copy(pack)
    column = pa.array(["yes" if mark else "no" for mark in marks.tolist()])
    chosen.samples = pack.samples.append_column(_ASKED, column)
    return chosen


def _hundredths(seconds: float | None) -> int:
    return -1 if seconds is None else round(100 * seconds)
