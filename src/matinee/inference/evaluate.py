"""Evaluate a run on a split of a pack, with several views of each sample."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from matinee.data.loader import ClipLoader
from matinee.errors import ConfigError
from matinee.evaluation.views import run_views
from matinee.files import write_whole
from matinee.inference.load import LoadedRun, load_run
from matinee.pack.reader import Pack
from matinee.tasks.classification import ClassificationTask
from matinee.training.precision import autocast, pick_precision
from matinee.training.setup import choose_splits


def evaluate(
    run: str | Path | LoadedRun,
    *,
    data: str | Path | None = None,
    split: str | None = None,
    views: tuple[int, int] = (1, 1),
    batch_size: int | None = None,
    workers: int | None = None,
    mask_errors: bool = False,
    device: str = "auto",
    on_progress: Callable[[int, int], None] | None = None,
) -> dict[str, Any]:
    """Metrics and predictions of a run's newest checkpoint.

    Args:
        data: a pack; the run's own when None.
        split: as `Pack.select` takes it; the run's validation split when None.
        views: (temporal, spatial); probabilities are averaged.
        mask_errors: skip and count clips that cannot be read, instead of stopping.
        on_progress: called with (clips done, clips in all).

    Returns:
        run, step, data, split, views, top1, top5, macro_f1, per_class, confusion, classes, samples,
        skipped, predictions. Also written to `<run>/eval-[<data>-]<split>-<views>.json`.

    Raises:
        ConfigError: no such run, pack or split, or labels the run was not trained on.
        ClipError: a clip cannot be read.
    """
    loaded = run if isinstance(run, LoadedRun) else load_run(run, device=device)
    config = loaded.config
    path = Path(data) if data is not None else Path(config.data.path)
    pack = Pack(path)
    if split is None:
        split = choose_splits(pack, config).val
        if split is None:
            raise ConfigError(f"{path} has no val or test split: say which samples with --split")
    precision, _ = pick_precision(config.run.precision, loaded.device)
    task = ClassificationTask(loaded.model)
    with ClipLoader(
        pack, split=split, clip=config.clip, views=views, classes=loaded.classes,
        batch_size=config.optim.batch_size if batch_size is None else batch_size,
        workers=workers, mode=config.data.mode,
        on_error="mask" if mask_errors else "raise", device=loaded.device,
        mean=loaded.normalisation.mean, std=loaded.normalisation.std,
    ) as loader:  # fmt: skip
        total = loader.num_items
        result = run_views(
            task, loader, lambda: autocast(precision, loaded.device),
            on_batch=(lambda done: on_progress(done, total)) if on_progress else None,
        )  # fmt: skip
    assert result is not None
    report = {
        "run": str(loaded.folder.path),
        "step": loaded.step,
        "data": str(path),
        "split": split,
        "views": f"{views[0]}x{views[1]}",
        **result.metrics(),
        "classes": list(loaded.classes),
        "predictions": result.predictions(),
    }
    where = split if data is None else f"{path.name}-{split}"
    name = "".join(c if c.isalnum() or c in "=,.-" else "_" for c in where)
    file = loaded.folder.path / f"eval-{name}-{report['views']}.json"
    write_whole(file, (json.dumps(report, indent=1) + "\n").encode())
    return report
