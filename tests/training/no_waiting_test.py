"""Between log lines the host asks the device for nothing. See Note [No waiting] in step.py.

A CPU answers at once, so what is counted is the asking: operations whose result the host needs
(`.item()`, `bool(tensor)`, sizes that depend on values), from the first step to the next log line.
"""

from dataclasses import replace

import pytest
import torch
from relabel import relabelled
from torch.utils._python_dispatch import TorchDispatchMode
from world_size_test import TASKS, settings

from matinee.training.loop import train
from matinee.training.session import Session
from matinee.training.step import StepRunner

ASKS = {"aten::_local_scalar_dense", "aten::nonzero", "aten::masked_select", "aten::unique"}


class Asked(TorchDispatchMode):
    """Notes questions about floating-point and boolean values; whole numbers such as the clips'
    seeds live on the host.
    """

    def __init__(self):
        super().__init__()
        self.names, self.allowed = [], True

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        name = func._schema.name
        if not self.allowed:
            whole = isinstance(args[0], torch.Tensor) and args[0].dtype == torch.int64
            if name in ASKS and not whole:
                self.names.append(name)
            if name == "aten::index" and any(
                i is not None and i.dtype == torch.bool for i in args[1]
            ):
                self.names.append("aten::index by a mask")
        return func(*args, **(kwargs or {}))


@pytest.fixture
def asked(monkeypatch):
    """Counts inside steps and what the loop does after them, but not while batches are read."""
    mode = Asked()
    step, done = StepRunner.__call__, Session.done

    def reading(batches):
        for batch in batches:
            mode.allowed = False
            yield batch
            mode.allowed = True

    def counted_step(self, batches, **more):
        mode.allowed = True
        try:
            with mode:
                return step(self, reading(batches), **more)
        finally:
            mode.allowed = True

    def counted_done(self, *args):
        mode.allowed = False
        try:
            with mode:
                done(self, *args)
        finally:
            mode.allowed = True

    monkeypatch.setattr(StepRunner, "__call__", counted_step)
    monkeypatch.setattr(Session, "done", counted_done)
    return mode


@pytest.fixture(scope="module")
def actions(clips_pack, tmp_path_factory):
    return relabelled(
        clips_pack,
        tmp_path_factory.mktemp("waiting") / "actions.pack",
        verb=[["cut", "put", "take"][i % 3] for i in range(18)],
        noun=[["egg", "ham"][i // 2 % 2] for i in range(18)],
        text=[f"clip number {i}" for i in range(18)],
    )


@pytest.mark.parametrize("kind", TASKS)
def test_no_step_asks_the_device(actions, tmp_path, asked, kind):
    config = settings(actions, tmp_path / "run", kind, 2, clip_norm=1.0)
    config = replace(config, run=replace(config.run, log_every=1000))
    train(config)
    assert asked.names == []


def test_a_question_would_be_seen(actions, tmp_path, asked, monkeypatch):
    """Such as a loss that is read in each step."""
    from matinee.tasks.classification import ClassificationTask

    forward = ClassificationTask.forward

    def curious(self, batch):
        outcome = forward(self, batch)
        assert float(outcome.loss.detach()) == outcome.loss.item()
        return outcome

    monkeypatch.setattr(ClassificationTask, "forward", curious)
    config = settings(actions, tmp_path / "run", "classes", 1)
    train(config)
    assert asked.names


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an NVIDIA GPU")
@pytest.mark.parametrize("kind", TASKS)
def test_no_step_waits_for_a_gpu(actions, tmp_path, monkeypatch, kind):
    """CUDA itself says so, in its debug mode; the first steps may allocate and load kernels."""
    step, waited = StepRunner.__call__, []

    def watched(self, batches, *, number, **more):
        mode = "error" if number >= 2 else "default"

        def reading():
            for batch in batches:
                torch.cuda.set_sync_debug_mode(mode)
                yield batch
                torch.cuda.set_sync_debug_mode("default")

        try:
            return step(self, reading(), number=number, **more)
        except RuntimeError as error:
            waited.append(str(error))
            raise
        finally:
            torch.cuda.set_sync_debug_mode("default")

    monkeypatch.setattr(StepRunner, "__call__", watched)
    config = settings(actions, tmp_path / "run", kind, 2, clip_norm=1.0, epochs=3)
    config = replace(config, run=replace(config.run, log_every=1000, device="cuda"))
    train(config)
    assert not waited
