"""Evaluate a run on a split of a pack, with several views of each sample."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from matinee.data.open_loader import open_loader
from matinee.errors import ConfigError
from matinee.evaluation.ranks import rank, world_size
from matinee.evaluation.run import evaluate_task
from matinee.evaluation.views import Average, parse_views
from matinee.inference.load import LoadedRun, load_run
from matinee.inference.reports import write_report
from matinee.pack.open import open_data
from matinee.tasks.config import ClassificationConfig
from matinee.tasks.vocabulary import make_targets
from matinee.training.precision import autocast, pick_precision
from matinee.training.setup import choose_splits


def evaluate(
    run: str | Path | LoadedRun,
    *,
    data: str | Path | None = None,
    split: str | None = None,
    views: tuple[int, int] | None = None,
    average: Average = "probabilities",
    sentences: str | Path | None = None,
    batch_size: int | None = None,
    workers: int | None = None,
    mask_errors: bool = False,
    device: str = "auto",
    on_progress: Callable[[int, int], None] | None = None,
) -> dict[str, Any]:
    """Metrics and predictions of a run.

    In a process group a collective: each rank reads a share of the samples, all get the metrics,
    rank 0 the predictions as well.

    Args:
        run: its folder, of which the newest checkpoint is taken, or a run that is loaded.
        data: a pack; the run's own when None.
        split: as `Pack.select` takes it; the run's validation split when None.
        views: (temporal, spatial), which are averaged; as the run's recipe says when None.
        average: what classification averages: probabilities or logits. Retrieval averages the unit
            vectors of clips, a masked autoencoder its errors.
        sentences: for EK-100 MIR, the benchmark's own table of them instead of the pack's captions.
        mask_errors: skip and count clips that cannot be read, instead of stopping.
        on_progress: called with (clips done, clips in all), on several ranks those of each.

    Returns:
        run, step, notes, task, data, split, views, samples, skipped, predictions, and the task's
        metrics: of classification top1, top5, macro_f1, weighted_f1, ece, per_class, confusion,
        classes. Also written to
        `<run>/eval-[<data>-]<split>-<views>[-logits][-sentences][-best].json`.

    Raises:
        ConfigError: no such run, pack or split; labels the run was not trained on, or no captions
            for a run of clips and captions; an argument that the task has no use for.
        ClipError: a clip cannot be read.
    """
    loaded = run if isinstance(run, LoadedRun) else load_run(run, device=device)
    config = loaded.config
    pack = open_data(data if data is not None else config.data.path)
    if split is None:
        split = choose_splits(pack, config).val
        if split is None:
            raise ConfigError(
                f"{pack.path} has no val or test split: say which samples with --split"
            )
    precision, _ = pick_precision(config.speed.precision, loaded.device)
    if views is None:
        views = parse_views(config.run.views)
    task, vocabulary = loaded.task, loaded.vocabulary
    targets = None
    if isinstance(config.task, ClassificationConfig):
        targets = make_targets(pack.samples, config.task, vocabulary, pack.select(split))
    with open_loader(
        pack, split=split, clip=config.clip, views=views, classes=vocabulary.classes,
        targets=targets, seed=config.run.seed,
        batch_size=config.optim.batch_size if batch_size is None else batch_size,
        workers=workers, mode=config.data.mode,
        on_error="mask" if mask_errors else "raise", device=loaded.device,
        mean=loaded.normalisation.mean, std=loaded.normalisation.std,
        rank=rank(), world=world_size(),
    ) as loader:  # fmt: skip
        total = loader.num_items
        result = evaluate_task(
            task, loader, vocabulary, lambda: autocast(precision, loaded.device), average=average,
            sentences=None if sentences is None else Path(sentences),
            on_batch=(lambda done: on_progress(done, total)) if on_progress else None,
        )  # fmt: skip
    assert result is not None
    report = {
        "run": str(loaded.folder.path),
        "step": loaded.step,
        "notes": list(loaded.notes),
        "task": task.kind,
        "data": str(pack.path),
        "split": split,
        "views": f"{views[0]}x{views[1]}",
        "average": average,
        **result.metrics,
        "predictions": result.predictions,
    }
    where = (split,) if data is None else (pack.name, split)
    how = [report["views"]]
    how += ["logits"] if average == "logits" else []
    how += ["sentences"] if sentences is not None else []
    write_report(loaded, ["eval", *where, *how], report)
    return report
