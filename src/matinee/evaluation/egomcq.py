"""EgoMCQ: one sentence, five clips, which one does it describe?"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from matinee.errors import AnnotationError, ConfigError
from matinee.evaluation.arrays import refuse_nan

CHOICES = 5
INTER, INTRA = 1, 2
"""Types of question in the file: clips of different videos (inter), clips of one video (intra).

The evaluation code that was published with the file prints the two names the other way round; the
accuracies in papers are by these meanings, the intra-video one being the lower.
"""


@dataclass(frozen=True)
class Candidate:
    """A clip to choose from: `start` and `end` are seconds of the video."""

    video: str
    start: float
    end: float


@dataclass(frozen=True)
class Question:
    """`candidates[answer]` is the clip that `text` describes; `type` is INTER or INTRA."""

    text: str
    candidates: tuple[Candidate, ...]
    answer: int
    type: int


def egomcq_accuracy(
    similarity_QC: NDArray[Any], answers: NDArray[np.int64], types: NDArray[np.int64]
) -> dict[str, Any]:
    """`inter_video` and `intra_video` accuracy (None without such questions) and `…_questions`.

    Args:
        similarity_QC: of each text [Q] and its five clips. answers: 0 … 4 [Q].
        types: INTER or INTRA [Q].

    The right clip must be strictly the most similar: a tie is a miss.

    Raises:
        ConfigError: other shapes, answers or types; a NaN.
    Source: Lin et al., arXiv 2206.01670, on EgoMCQ.
    """
    questions = len(answers)
    if similarity_QC.shape != (questions, CHOICES) or types.shape != (questions,):
        raise ConfigError(
            f"similarity of shape {similarity_QC.shape}, {questions} answers and {len(types)} "
            f"types: [questions, {CHOICES}] and one of each a question were expected"
        )
    if questions and not 0 <= answers.min() <= answers.max() < CHOICES:
        raise ConfigError(f"answers must lie in 0 … {CHOICES - 1}")
    if not np.isin(types, (INTER, INTRA)).all():
        raise ConfigError(f"types must be {INTER} (inter-video) or {INTRA} (intra-video)")
    refuse_nan(similarity_QC, "similarities")
    right = similarity_QC[np.arange(questions), answers]
    correct = (similarity_QC >= right[:, None]).sum(axis=1) == 1
    metrics: dict[str, Any] = {}
    for name, kind in (("inter", INTER), ("intra", INTRA)):
        of_kind = types == kind
        metrics[f"{name}_video"] = float(correct[of_kind].mean()) if of_kind.any() else None
        metrics[f"{name}_questions"] = int(of_kind.sum())
    return metrics


def read_egomcq(path: Path) -> tuple[Question, ...]:
    """Questions of the published `egomcq.json`, in the order of their numbers.

    An object of "0", "1", …: each has `query` with `clip_text`; `choices`, an object of "0" … "4"
    with `video_uid`, `clip_start`, `clip_end` (seconds; below zero counts as zero); `answer`, the
    number of the right choice; `types`, 1 or 2.

    Raises:
        AnnotationError: naming the question: anything of another form.
    """
    try:
        content = json.loads(
            path.read_text(encoding="utf-8"),
            object_pairs_hook=_no_key_twice,
            parse_constant=_finite,
        )
    except OSError as error:
        raise AnnotationError(f"{path} cannot be read: {error.strerror}") from None
    except (ValueError, RecursionError) as error:
        raise AnnotationError(f"{path} is not sound JSON: {error}") from None
    if not isinstance(content, dict) or not content:
        raise AnnotationError(f'{path} holds no questions: an object of "0", "1", … was expected')
    questions = []
    for number in range(len(content)):
        where = f"{path}, question {number}"
        if str(number) not in content:
            raise AnnotationError(f"{where}: missing, though the file has {len(content)} entries")
        questions.append(_question(where, content[str(number)]))
    return tuple(questions)


def _no_key_twice(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        names = [name for name, _ in pairs]
        raise ValueError(f"the key {next(n for n in names if names.count(n) > 1)!r} stands twice")
    return found


def _finite(constant: str) -> float:
    raise ValueError(f"{constant} is no number")


def _question(where: str, entry: Any) -> Question:
    query, choices = _field(where, entry, "query", dict), _field(where, entry, "choices", dict)
    if set(choices) != {str(i) for i in range(CHOICES)}:
        raise AnnotationError(f'{where}: choices must be "0" … "{CHOICES - 1}"')
    answer, kind = _field(where, entry, "answer", int), _field(where, entry, "types", int)
    if not 0 <= answer < CHOICES:
        raise AnnotationError(f"{where}: answer {answer} is none of the {CHOICES} choices")
    if kind not in (INTER, INTRA):
        raise AnnotationError(f"{where}: types {kind} is neither {INTER} nor {INTRA}")
    text = _field(f"{where}, query", query, "clip_text", str)
    if not text.strip():
        raise AnnotationError(f"{where}: the query's clip_text is blank")
    candidates = tuple(_candidate(f"{where}, choice {i}", choices[str(i)]) for i in range(CHOICES))
    return Question(text, candidates, answer, kind)


def _candidate(where: str, entry: Any) -> Candidate:
    video = _field(where, entry, "video_uid", str)
    if not video:
        raise AnnotationError(f"{where}: video_uid is blank")
    start, end = (_seconds(where, entry, name) for name in ("clip_start", "clip_end"))
    if end < start:
        raise AnnotationError(f"{where}: clip_end {end:g} s lies before clip_start {start:g} s")
    return Candidate(video, max(start, 0.0), max(end, 0.0))


def _seconds(where: str, entry: Any, name: str) -> float:
    given = _field(where, entry, name, (int, float, str))
    try:
        seconds = float(given)
    except (ValueError, OverflowError):
        seconds = math.nan
    if not math.isfinite(seconds):
        raise AnnotationError(f"{where}: {name} {str(given)[:40]!r} is no number of seconds")
    return seconds


def _field(where: str, entry: Any, name: str, kind: type | tuple[type, ...]) -> Any:
    if not isinstance(entry, dict) or name not in entry:
        raise AnnotationError(f"{where}: no field {name!r}")
    if not isinstance(entry[name], kind) or isinstance(entry[name], bool):
        raise AnnotationError(f"{where}: {name} is {type(entry[name]).__name__}, not as published")
    return entry[name]
