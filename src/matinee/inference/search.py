"""Find the clips that a sentence describes, with a contrastive run.

# Note [Kept vectors]
Embedding the clips of a pack takes as long as evaluating on it; a sentence takes milliseconds. The
clips' vectors are therefore kept beside the run, one file for each pack, split and views. The file
says what it was made from: the weights of the video tower, the tables of the pack, how clips are
cut out. When any of that differs, the vectors are made anew.
"""

from __future__ import annotations

import hashlib
import io
import json
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import torch

from matinee.errors import ConfigError
from matinee.evaluation.embeddings import ClipVectors, embed_texts
from matinee.files import write_whole
from matinee.inference.embed import Progress, autocast_of, clip_vectors
from matinee.inference.load import LoadedRun, load_run
from matinee.models.dual import DualEncoder
from matinee.pack.open import DataSet, open_data
from matinee.tasks.contrastive import ContrastiveTask
from matinee.training.precision import pick_precision


@dataclass(frozen=True)
class Hit:
    """A clip that was found; `rank` counts from 1, `similarity` is a cosine."""

    rank: int
    similarity: float
    sample: str
    index: int
    label: str | None
    texts: tuple[str, ...]


@dataclass(frozen=True)
class Found:
    """The nearest clips, best first, among `candidates`; `skipped` could not be read.

    `kept`: the clips' vectors were there already. `cut_to`: the text was longer than so many
    tokens, and cut to them.
    """

    text: str
    hits: tuple[Hit, ...]
    candidates: int
    skipped: int
    kept: bool
    cut_to: int | None


def search(
    run: str | Path | LoadedRun,
    data: str | Path | DataSet,
    text: str,
    *,
    top: int = 12,
    split: str | None = None,
    views: tuple[int, int] = (1, 1),
    batch_size: int | None = None,
    workers: int | None = None,
    mask_errors: bool = False,
    device: str = "auto",
    say: Callable[[str], None] | None = None,
    on_progress: Progress | None = None,
) -> Found:
    """The `top` clips of a pack that are nearest to a text. See Note [Kept vectors].

    Args:
        data: any pack; it needs no captions.
        split: as `Pack.select` takes it; all samples when None.
        mask_errors: leave out and count clips that cannot be read, instead of stopping. Vectors
            are then not kept: the next search tries again.
        say: told whether the clips' vectors were there, and where they are kept.

    Raises:
        ConfigError: an empty text, no such run or split, a run that is not contrastive.
        PackError: no such pack.
        ClipError: a clip cannot be read.
    """
    say = say or (lambda _: None)
    if not text.strip():
        raise ConfigError(f"the text {text!r} is empty: describe what to find")
    if top < 1:
        raise ConfigError(f"top {top}: at least 1")
    loaded = run if isinstance(run, LoadedRun) else load_run(run, device=device)
    task = loaded.task
    if not isinstance(task, ContrastiveTask):
        raise ConfigError(
            f"{loaded.folder.path} is a run of {task.kind}: finding clips by text needs a "
            "contrastive run"
        )
    pack = open_data(data) if isinstance(data, (str, Path)) else data
    file = _file(loaded, pack, split, views)
    key = _key(loaded, task.model, pack, split, views)
    clips = _read(file, key, pack, say)
    kept = clips is not None
    if clips is None:
        clips = clip_vectors(
            loaded, pack, split=split, views=views, batch_size=batch_size, workers=workers,
            mask_errors=mask_errors, on_progress=on_progress,
        )  # fmt: skip
        _keep(file, key, clips, say)
    vectors, cut = embed_texts(task, [text], autocast_of(loaded))
    similarity = clips.vectors @ vectors[0]
    best = np.argsort(-similarity, kind="stable")[:top]
    labels = pack.samples.column("label")
    hits = tuple(
        Hit(
            rank=rank,
            similarity=float(similarity[place]),
            sample=clips.samples[place],
            index=int(clips.index[place]),
            label=labels[int(clips.index[place])].as_py(),
            texts=pack.captions(int(clips.index[place])),
        )
        for rank, place in enumerate(best.tolist(), 1)
    )
    cut_to = task.model.text.context if cut else None
    return Found(text, hits, len(clips.index), len(clips.skipped), kept, cut_to)


def _file(run: LoadedRun, pack: DataSet, split: str | None, views: tuple[int, int]) -> Path:
    name = f"{pack.name}-{split or 'all'}"
    plain = "".join(c if c.isalnum() or c in "=,.-" else "_" for c in name)
    return run.folder.path / f"vectors-{plain}-{views[0]}x{views[1]}.npz"


def _key(
    run: LoadedRun, model: DualEncoder, pack: DataSet, split: str | None, views: tuple[int, int]
) -> str:
    """What the vectors of clips follow from."""
    weights = hashlib.sha256()
    for name, tensor in model.state_dict().items():
        if name.startswith("video"):
            plain = tensor.detach().cpu().contiguous().flatten().view(torch.uint8)
            weights.update(name.encode() + b"\0")
            weights.update(plain.numpy())
    return json.dumps(
        {
            "weights": weights.hexdigest(),
            "pack": pack.digest(),
            "split": split,
            "views": views,
            "clip": asdict(run.config.clip),
            "normalisation": asdict(run.normalisation),
            "precision": pick_precision(run.config.speed.precision, run.device)[0],
        }
    )


def _read(file: Path, key: str, pack: DataSet, say: Callable[[str], None]) -> ClipVectors | None:
    """The kept vectors, or None if there are none of this key."""
    if not file.exists():
        return None
    try:
        with np.load(file, allow_pickle=False) as held:
            same = str(held["key"]) == key
            index, vectors = held["index"], held["vectors"]
        whole = index.ndim == 1 and vectors.ndim == 2 and len(index) == len(vectors)
        whole = whole and index.dtype == np.int64 and vectors.dtype == np.float32
        if not whole or not len(index) or index.min() < 0 or (same and index.max() >= len(pack)):
            raise ValueError("arrays that do not fit each other")
    except Exception as error:  # zip, NumPy and system errors have no common base
        say(f"{file} is damaged ({type(error).__name__}): the clips are embedded anew")
        return None
    if not same:
        say(f"{file} is of other weights or another pack: the clips are embedded anew")
        return None
    say(f"vectors of {len(index)} clips from {file}")
    names = pack.samples.column("sample")
    samples = tuple(names[row].as_py() for row in index.tolist())
    return ClipVectors(index, samples, vectors, ())


def _keep(file: Path, key: str, clips: ClipVectors, say: Callable[[str], None]) -> None:
    if clips.skipped:
        say(f"vectors are not kept, since {len(clips.skipped)} clips could not be read")
        return
    buffer = io.BytesIO()
    np.savez(buffer, key=np.array(key), index=clips.index, vectors=clips.vectors)
    try:
        write_whole(file, buffer.getbuffer())
    except OSError as error:  # the answer does not depend on it
        say(f"vectors cannot be kept in {file}: {error.strerror}")
        return
    say(
        f"vectors of {len(clips.index)} clips kept in {file}: the next search embeds the text alone"
    )
