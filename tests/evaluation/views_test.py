"""Views averaged over samples, against loops; the network says what it is shown."""

from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pyarrow as pa
import pytest
import torch
from torch import nn

from matinee.data.batch import Batch
from matinee.errors import ConfigError, MatineeError
from matinee.evaluation.views import parse_views, run_views
from matinee.pack.reading.selection import SampleTable
from matinee.tasks.classification import ClassificationTask
from matinee.tasks.config import ClassificationConfig

CLASSES = 3
ROWS = np.array([1, 2, 5, 6, 8])  # of the pack that are evaluated
VIEWS = 4
LOGITS = torch.randn(len(ROWS), VIEWS, CLASSES, generator=torch.Generator().manual_seed(0))
INVALID = {(0, 1), (3, 0), (3, 1), (3, 2), (3, 3)}  # place, view


def make_loader(targets, invalid=INVALID, *, views=(2, 2)):
    """Batches of three items in order; a clip's pixels are its logits."""
    items = [(place, view) for place in range(len(ROWS)) for view in range(VIEWS)]
    batches = []
    for start in range(0, len(items), 3):
        part = items[start : start + 3]
        rows = ROWS[[place for place, _ in part]]
        valid = [item not in invalid for item in part]
        batches.append(
            Batch(
                video=torch.stack([LOGITS[item] for item in part])[:, :, None, None, None],
                target=torch.from_numpy(targets[rows]),
                valid=torch.tensor(valid),
                index=torch.from_numpy(rows),
                samples=tuple(f"clip {row}" for row in rows),
                num_valid=sum(valid),
                texts=("",) * len(part),
                seeds=torch.zeros(len(part), dtype=torch.int64),
            )
        )
    pack = SampleTable()
    pack.path = Path("some.pack")
    pack.samples = pa.table({"sample": [f"clip {row}" for row in range(10)]})

    class Loader(SimpleNamespace):
        def __iter__(self):
            return iter(batches)

    return Loader(
        pack=pack, samples=ROWS, all_samples=ROWS, targets=targets, views=views,
        num_items=len(items),
    )  # fmt: skip


def make_task(labels="single") -> ClassificationTask:
    return ClassificationTask(nn.Flatten(), ClassificationConfig(labels=labels))


LABELS = np.array([9, 0, 2, 9, 9, 1, 1, 9, -1, 9])  # the last row evaluated has none


@pytest.mark.parametrize("average", ["probabilities", "logits"])
@pytest.mark.parametrize("labels", ["single", "multi"])
def test_the_views_that_could_be_read_are_averaged(labels, average):
    """One clip lacks a view, one all, one has no label."""
    targets = LABELS
    if labels == "multi":
        targets = np.eye(10, dtype=np.float32)[np.where(LABELS < 0, 9, LABELS)][:, :3]
    found = run_views(make_task(labels), make_loader(targets), average=average)
    normalise = torch.sigmoid if labels == "multi" else lambda x: x.softmax(-1)
    for place, row in enumerate((0, 1, 2)):
        seen = [LOGITS[row, v].double() for v in range(VIEWS) if (row, v) not in INVALID]
        if average == "logits":
            wanted = normalise(sum(seen) / len(seen))
        else:
            wanted = sum(normalise(s) for s in seen) / len(seen)
        assert found.probabilities[place] == pytest.approx(wanted.numpy(), abs=1e-12)
    assert found.index.tolist() == [1, 2, 5]
    assert found.samples == ("clip 1", "clip 2", "clip 5")
    assert found.skipped == ("clip 6", "clip 8")
    assert np.array_equal(found.targets, targets[[1, 2, 5]])


def test_a_sample_whose_views_lie_in_two_batches_is_one_sample():
    found = run_views(make_task(), make_loader(LABELS, set()))
    assert found.index.tolist() == [1, 2, 5, 6] and found.skipped == ("clip 8",)
    wanted = LOGITS.double().softmax(-1).mean(1)[:4]
    assert found.probabilities == pytest.approx(wanted.numpy(), abs=1e-12)


def test_progress_is_told_and_a_stop_is_obeyed():
    """Between two batches; the task is in the mode it was in."""
    task, done = make_task().train(), []
    assert run_views(task, make_loader(LABELS), on_batch=done.append) is not None
    assert done == [3, 6, 9, 12, 15, 18, 20] and task.training
    done.clear()
    stopped = run_views(
        task, make_loader(LABELS), on_batch=done.append, should_stop=lambda: len(done) == 2
    )
    assert stopped is None and done == [3, 6] and task.training


def test_nothing_to_evaluate_is_an_error():
    with pytest.raises(
        MatineeError, match=r"some.pack: none of 5 samples could be eval.* 4 could be read"
    ):
        run_views(make_task(), make_loader(np.full(10, -1)))
    everything = {(place, view) for place in range(5) for view in range(VIEWS)}
    with pytest.raises(MatineeError, match="none of 5 samples"):
        run_views(make_task(), make_loader(LABELS, everything))


def test_a_loader_for_training_is_refused():
    with pytest.raises(ConfigError, match="views="):
        run_views(make_task(), make_loader(LABELS, views=None))


def test_views_are_read_from_words():
    assert parse_views("3x1") == (3, 1) and parse_views("10X3") == (10, 3)
    for bad in ("3", "0x1", "3x", "x1", "axb", "3x1x1", "²x1", "-3x1", ""):
        with pytest.raises(ConfigError, match="TEMPORALxSPATIAL"):
            parse_views(bad)
