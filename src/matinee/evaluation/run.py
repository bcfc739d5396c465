"""Evaluate a task on a loader's samples: each kind of task measures what it is for."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext

from matinee.data.epochs import EpochLoader
from matinee.evaluation.results import Evaluated, evaluate_scores
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
    autocast: Callable[[], AbstractContextManager[object]] = nullcontext,
    *,
    average: Average = "probabilities",
    on_batch: Callable[[int], None] | None = None,
    should_stop: Callable[[], bool] | None = None,
) -> Evaluated | None:
    """Metrics and predictions; None when `should_stop` said so between two batches.

    Args:
        loader: made with `views`; classification averages over them, as `average` says.
        on_batch: called with the number of clips done so far.

    Raises:
        MatineeError: not one sample could be read.
    """
    match task:
        case ClassificationTask():
            scores = run_views(
                task, loader, autocast, average=average, on_batch=on_batch, should_stop=should_stop
            )
            return None if scores is None else evaluate_scores(scores, vocabulary, task.config)
        case ContrastiveTask():
            return run_retrieval(task, loader, autocast, on_batch=on_batch, should_stop=should_stop)
        case MaskedTask():
            return run_masked(task, loader, autocast, on_batch=on_batch, should_stop=should_stop)
    raise AssertionError(f"no evaluation of {task.kind}")
