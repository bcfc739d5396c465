"""The mean reconstruction error over samples, with a network that knows each clip's error."""

from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pyarrow as pa
import pytest
import torch
from torch import nn

from matinee.data.batch import Batch
from matinee.errors import MatineeError
from matinee.evaluation.run_masked import run_masked
from matinee.pack.reading.selection import SampleTable

ERRORS = np.array([[0.5, 4.0], [1.0, 2.0], [8.0, 0.25], [3.0, 5.0], [7.0, 6.0]])  # sample, view
VIEWS = ERRORS.shape[1]


class Model(nn.Module):
    """A clip's pixels are its error; its mask is its seed, which multiplies it."""

    def forward(self, video, hidden, decoded):
        assert not self.training and not torch.is_grad_enabled() and decoded is None
        return video.flatten() * hidden, None


class Task(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.model = Model()

    def masks(self, seeds, device):
        return seeds, None


def make_loader(invalid=()):
    """Batches of three; each item's seed is 1 + its number."""
    items = [(row, view) for row in range(len(ERRORS)) for view in range(VIEWS)]
    batches = []
    for start in range(0, len(items), 3):
        part = items[start : start + 3]
        valid = torch.tensor([item not in invalid for item in part])
        batches.append(
            Batch(
                video=torch.tensor([ERRORS[item] for item in part])[:, None, None, None, None],
                target=torch.full((len(part),), -1),
                valid=valid,
                index=torch.tensor([row for row, _ in part]),
                samples=tuple(f"s{row}" for row, _ in part),
                num_valid=int(valid.sum()),
                texts=("",) * len(part),
                seeds=torch.arange(start, start + len(part)) + 1,
            )
        )
    pack = SampleTable()
    pack.path = Path("some.pack")
    pack.samples = pa.table({"sample": [f"s{row}" for row in range(len(ERRORS))]})
    rows = np.arange(len(ERRORS))

    class Loader(SimpleNamespace):
        def __iter__(self):
            return iter(batches)

    return Loader(pack=pack, samples=rows, all_samples=rows, views=(VIEWS, 1))


WEIGHED = ERRORS * (1 + np.arange(ERRORS.size)).reshape(ERRORS.shape)


def test_views_are_averaged_and_samples_counted():
    """However they fall into batches; the task is in the mode it was in."""
    task, done = Task().train(), []
    found = run_masked(task, make_loader(), on_batch=done.append)
    assert found.metrics == {"loss": pytest.approx(WEIGHED.mean()), "samples": 5, "skipped": 0}
    assert found.predictions == [] and done == [3, 6, 9, 10] and task.training


def test_every_sample_that_could_be_read_weighs_the_same():
    """One lacks a view and one both."""
    found = run_masked(Task(), make_loader({(1, 0), (3, 0), (3, 1)}))
    wanted = np.mean([WEIGHED[0].mean(), WEIGHED[1, 1], WEIGHED[2].mean(), WEIGHED[4].mean()])
    assert found.metrics == {"loss": pytest.approx(wanted), "samples": 4, "skipped": 1}


def test_a_stop_is_obeyed_and_nothing_read_is_an_error():
    task = Task().train()
    assert run_masked(task, make_loader(), should_stop=lambda: True) is None
    assert task.training
    everything = {(row, view) for row in range(5) for view in range(VIEWS)}
    with pytest.raises(MatineeError, match=r"some\.pack: none of 5 samples could be read"):
        run_masked(task, make_loader(everything))
    assert task.training
