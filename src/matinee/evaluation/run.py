"""Evaluate a task on a loader's samples: each kind of task measures what it is for."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path

from matinee.data.epochs import EpochLoader
from matinee.errors import ConfigError
from matinee.evaluation.means import Autocast
from matinee.evaluation.results import Evaluated, evaluate_scores, measured_on_first
from matinee.evaluation.run_masked import run_masked
from matinee.evaluation.run_retrieval import run_retrieval
from matinee.evaluation.views import Average, run_views
from matinee.tasks.base import Task
from matinee.tasks.classification import ClassificationTask
from matinee.tasks.contrastive import ContrastiveTask
from matinee.tasks.masked import MaskedTask
from matinee.tasks.vocabulary import Vocabulary


def evaluate_task(
    task: Task,
    loader: EpochLoader,
    vocabulary: Vocabulary,
    autocast: Autocast = nullcontext,
    *,
    average: Average = "probabilities",
    sentences: Path | None = None,
    on_batch: Callable[[int], None] | None = None,
    should_stop: Callable[[], bool] | None = None,
) -> Evaluated | None:
    """Metrics and predictions; None when `should_stop` said so between two batches.

    On several ranks a collective: the loader of each was made with its rank, and every rank gets
    the metrics that one process would, rank 0 the predictions as well. See Note [Shares].

    Args:
        loader: made with `views`, over which each sample's outputs are averaged.
        average: of classification: what is, see `run_views`.
        sentences: of retrieval: a table of the benchmark's, see Note [Sentences of MIR].
        on_batch: called with the number of clips done so far, on this rank.
        should_stop: must say the same on all ranks.

    Raises:
        ConfigError: `average` or `sentences` for a task that has no use for it.
        MatineeError: not one sample could be read.
    """
    if average == "logits" and not isinstance(task, ClassificationTask):
        raise ConfigError(
            f"--average logits is for classification: a run of {task.kind} gives no logits"
        )
    if sentences is not None and not isinstance(task, ContrastiveTask):
        raise ConfigError(f"--sentences is for retrieval: this is a run of {task.kind}")
    match task:
        case ClassificationTask():
            scores = run_views(
                task, loader, autocast, average=average, on_batch=on_batch, should_stop=should_stop
            )
            if scores is None:
                return None
            found, config = scores, task.config
            return measured_on_first(lambda: evaluate_scores(found, vocabulary, config))
        case ContrastiveTask():
            return run_retrieval(
                task, loader, autocast,
                sentences=sentences, on_batch=on_batch, should_stop=should_stop,
            )  # fmt: skip
        case MaskedTask():
            return run_masked(task, loader, autocast, on_batch=on_batch, should_stop=should_stop)
    raise AssertionError(f"no evaluation of {task.kind}")
