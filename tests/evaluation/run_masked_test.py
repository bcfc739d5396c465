"""The mean reconstruction error over clips, with a task that knows each clip's error."""

from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from torch import nn

from matinee.data.batch import Batch
from matinee.errors import MatineeError
from matinee.evaluation.run_masked import run_masked
from matinee.tasks.base import Outcome

ERRORS = torch.tensor([0.5, 4.0, 1.0, 2.0, 8.0])


class Task(nn.Module):
    """A clip's pixels are its error."""

    def forward(self, batch):
        assert not self.training and not torch.is_grad_enabled()
        return Outcome(batch.video.flatten()[batch.valid].sum())


def make_loader(valid):
    batches = []
    for rows in ([0, 1], [2, 3], [4]):
        held = torch.tensor([valid[i] for i in rows])
        video = ERRORS[rows][:, None, None, None, None]
        number = torch.tensor(rows)
        names, texts = tuple(f"s{i}" for i in rows), ("",) * len(rows)
        batches.append(Batch(video, -number, held, number, names, int(held.sum()), texts, number))

    class Loader(SimpleNamespace):
        def __iter__(self):
            return iter(batches)

    return Loader(pack=SimpleNamespace(path=Path("some.pack")), num_items=5)


def test_every_clip_that_could_be_read_weighs_the_same():
    """However they fall into batches; the task is in the mode it was in."""
    task, done = Task().train(), []
    found = run_masked(task, make_loader([True] * 5), on_batch=done.append)
    assert found.metrics == {"loss": pytest.approx(3.1), "samples": 5, "skipped": 0}
    assert found.predictions == [] and done == [2, 4, 5] and task.training
    found = run_masked(task, make_loader([True, True, False, True, False]))
    assert found.metrics == {"loss": pytest.approx(6.5 / 3), "samples": 3, "skipped": 2}


def test_a_stop_is_obeyed_and_nothing_read_is_an_error():
    task = Task().train()
    assert run_masked(task, make_loader([True] * 5), should_stop=lambda: True) is None
    assert task.training
    with pytest.raises(MatineeError, match=r"some\.pack: none of 5 clips could be read"):
        run_masked(task, make_loader([False] * 5))
