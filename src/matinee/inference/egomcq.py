"""EgoMCQ with a contrastive run: which of five clips does a sentence describe?"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np

from matinee.errors import ConfigError
from matinee.evaluation.egomcq import Candidate, egomcq_accuracy, read_egomcq
from matinee.evaluation.embeddings import embed_texts
from matinee.files import write_whole
from matinee.inference.embed import autocast_of, clip_vectors
from matinee.inference.load import LoadedRun, load_run
from matinee.pack.open import DataSet, open_data
from matinee.tasks.contrastive import ContrastiveTask


def egomcq(
    run: str | Path | LoadedRun,
    questions: str | Path,
    data: str | Path,
    *,
    views: tuple[int, int] = (1, 1),
    batch_size: int | None = None,
    workers: int | None = None,
    device: str = "auto",
    on_progress: Callable[[int, int], None] | None = None,
) -> dict[str, Any]:
    """Accuracy among clips of different videos (inter) and of one video (intra).

    Args:
        questions: the published egomcq.json.
        data: a pack whose samples are the clips: the same start and end, to 10 ms, of a video whose
            file is called as the question says.

    Returns:
        run, step, data, inter_video, intra_video, how many questions of each, and `cut`, how many
        sentences were longer than the context. Also written to `<run>/egomcq-<data>.json`.

    Raises:
        ConfigError: a run that is not contrastive, or clips that the pack lacks.
        AnnotationError: a damaged file of questions.
        ClipError: a clip cannot be read.
    """
    loaded = run if isinstance(run, LoadedRun) else load_run(run, device=device)
    if not isinstance(loaded.task, ContrastiveTask):
        raise ConfigError(
            f"{loaded.folder.path} is a run of {loaded.task.kind}: EgoMCQ compares sentences with "
            "clips and needs a contrastive run"
        )
    asked = read_egomcq(Path(questions))
    pack = open_data(data)
    rows = _rows(pack, [c for question in asked for c in question.candidates])
    clips = clip_vectors(
        loaded, pack, split=None, views=views, batch_size=batch_size, workers=workers,
        on_progress=on_progress,
    )  # fmt: skip
    texts, cut = embed_texts(loaded.task, [q.text for q in asked], autocast_of(loaded))
    places = np.searchsorted(clips.index, rows)
    vectors_QCE = clips.vectors[places].reshape(len(asked), -1, clips.vectors.shape[1])
    report = {
        "run": str(loaded.folder.path),
        "step": loaded.step,
        "data": str(pack.path),
        **egomcq_accuracy(
            np.einsum("qce,qe->qc", vectors_QCE, texts),
            np.array([q.answer for q in asked]),
            np.array([q.type for q in asked]),
        ),
        "cut": cut,
    }
    file = loaded.folder.path / f"egomcq-{pack.path.name}.json"
    write_whole(file, (json.dumps(report, indent=1) + "\n").encode())
    return report


def _rows(pack: DataSet, wanted: list[Candidate]) -> np.ndarray:
    """Row of the pack of each clip, int64 [N].

    Raises:
        ConfigError: with how many are missing and the first.
    """
    if "video" not in pack.samples.column_names:
        raise ConfigError(f"{pack.path} is an image set: EgoMCQ needs a pack of its clips")
    columns = (pack.samples.column(name).to_pylist() for name in ("video", "start_s", "end_s"))
    place = {
        (PurePosixPath(video).stem, _hundredths(start), _hundredths(end)): row
        for row, (video, start, end) in enumerate(zip(*columns, strict=True))
    }
    keys = [(c.video, _hundredths(c.start), _hundredths(c.end)) for c in wanted]
    missing = [c for c, key in zip(wanted, keys, strict=True) if key not in place]
    if missing:
        first = missing[0]
        raise ConfigError(
            f"{pack.path} lacks {len(missing)} of {len(wanted)} clips of the questions, the first "
            f"is {first.video} from {first.start} to {first.end} s: pack them with columns start "
            "and end"
        )
    return np.array([place[key] for key in keys], dtype=np.int64)


def _hundredths(seconds: float | None) -> int:
    return -1 if seconds is None else round(100 * seconds)
