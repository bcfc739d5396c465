"""Checkpoints: what is saved, what stays, what happens when a save fails."""

import errno
import os
import resource
import shutil
import threading
from collections import OrderedDict

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from saves import assert_holds, everything, names, saved, state

from matinee.errors import ConfigError, MatineeError
from matinee.training.state import checkpoint_file
from matinee.training.state.checkpoints import Checkpoints
from matinee.training.state.snapshot import Snapshot

# What is saved


def test_a_state_is_read_back_as_it_was_saved(tmp_path):
    """A network's own state and one like an optimizer's: types, strides, order, versions."""
    network = torch.nn.Sequential(torch.nn.Conv2d(3, 4, 3), torch.nn.BatchNorm2d(4))
    network.to(memory_format=torch.channels_last)
    moments = {"step": torch.tensor(3.0), "exp_avg": torch.randn_like(network[0].weight)}
    group = {"lr": 0.1, "betas": (0.9, 0.999), "fused": None, "amsgrad": False, "params": [0, 1]}
    whole = {
        "state": {
            "model": network.state_dict(),
            "optimizer": {"state": {0: moments, 1: {}}, "param_groups": [group]},
            "best": (3, 0.5),
            "loss": None,
            "numbers": [1, 2.5, True, "text", torch.tensor(7), torch.zeros(0)],
            "half": torch.randn(5).bfloat16(),
            "view": torch.arange(1000)[10:20],
            "spread": torch.ones(1).expand(4),
        },
        "vocabulary": {"classes": ["a", "b"]},
    }
    with Checkpoints(tmp_path) as checkpoints:
        checkpoints.begin(0)
        checkpoints.save(whole, 1)
    found, notes = checkpoints.load()
    assert notes == [] and checkpoints.step() == 1

    def compare(a, b):
        assert type(a) is type(b)
        if isinstance(a, torch.Tensor):
            assert a.dtype == b.dtype and torch.equal(a, b)
        elif isinstance(a, dict):
            assert list(a) == list(b)
            for key in a:
                compare(a[key], b[key])
        elif isinstance(a, (list, tuple)):
            assert len(a) == len(b)
            for one, other in zip(a, b, strict=True):
                compare(one, other)
        else:
            assert a == b

    compare(found, whole)
    model = found["state"]["model"]
    assert isinstance(model, OrderedDict) and model._metadata == network.state_dict()._metadata
    assert model["0.weight"].stride() == network[0].weight.stride() != (27, 9, 3, 1)
    assert found["state"]["view"].untyped_storage().nbytes() == 80  # not the whole 8,000


def test_tied_weights_are_saved_once_and_stay_tied(tmp_path):
    one = torch.randn(100_000)
    held = {"state": {"step": 1, "a": one, "b": one}, "vocabulary": {}}
    checkpoints = saved(tmp_path)
    checkpoints.save(held, 1, wait=True)
    assert checkpoints.file(1).stat().st_size < 500_000
    found, _ = checkpoints.load()
    assert found["state"]["a"].data_ptr() == found["state"]["b"].data_ptr()
    assert torch.equal(found["state"]["a"], one)


@pytest.fixture
def gate(monkeypatch):
    """Writes wait until it is set; `log` has their begins and ends."""
    opened, log, save = threading.Event(), [], torch.save

    def slow(value, file):
        log.append(("begin", value["state"]["step"]))
        assert opened.wait(20)
        save(value, file)
        log.append(("end", value["state"]["step"]))

    monkeypatch.setattr(checkpoint_file.torch, "save", slow)
    opened.log = log
    yield opened
    opened.set()


def test_training_goes_on_while_a_save_is_written_and_cannot_change_it(tmp_path, gate):
    """Tensors, lists and dicts are overwritten before a byte is on disk."""
    checkpoints = saved(tmp_path)
    held = state(3)
    held["state"]["order"] = [1, 2]
    checkpoints.save(held, 3)
    assert checkpoints.steps() == [] and not checkpoints.last_file.exists()  # it did not wait
    held["state"]["model"]["weight"].fill_(-1.0)
    held["state"]["model"]["other"] = 1
    held["state"]["order"].append(3)
    gate.set()
    checkpoints.close()
    found, _ = checkpoints.load()
    assert_holds(found, 3)
    assert list(found["state"]["model"]) == ["weight"] and found["state"]["order"] == [1, 2]


def test_a_save_waits_for_the_one_before(tmp_path, gate):
    """One is written at a time, and none of them holds the numbers of the next."""
    checkpoints = saved(tmp_path)
    weight = torch.empty(1000)
    held = {"state": {"model": {"weight": weight}}, "vocabulary": {}}
    threading.Timer(0.2, gate.set).start()
    for step in range(1, 6):
        weight.copy_(torch.arange(1000.0) * step)  # as an optimizer does, in place
        held["state"]["step"] = step
        checkpoints.save(held, step)
        assert set(range(1, step)) <= set(checkpoints.steps())
    checkpoints.wait()
    assert gate.log == [(what, step) for step in range(1, 6) for what in ("begin", "end")]
    for step in range(1, 6):
        assert_holds(checkpoint_file.read_checkpoint(checkpoints.file(step)), step)
    stats = checkpoints.stats
    assert stats.step == 5 and stats.written_s > 0 and stats.copied_s > 0


def test_the_memory_of_a_copy_serves_the_next(tmp_path):
    """Where a tensor of the same name has the same shape, type and strides."""
    snapshot = Snapshot()
    held = {"same": torch.zeros(4, 5), "longer": torch.zeros(3), "laid": torch.zeros(4, 5)}
    first = snapshot.take(held)
    places = {name: value.data_ptr() for name, value in first.items()}
    held = {"laid": torch.ones(5, 4).T, "same": torch.ones(4, 5), "longer": torch.ones(7)}
    second = snapshot.take(held)
    assert second["same"].data_ptr() == places["same"] and second["laid"].stride() == (1, 4)
    assert {"longer", "laid"} == {n for n in held if second[n].data_ptr() != places[n]}
    assert all(torch.equal(second[name], held[name]) for name in held)


def test_what_could_not_be_read_again_is_not_written(tmp_path):
    """The place in the state is named; numpy's float64 passes for a float until it is read."""
    checkpoints = saved(tmp_path, 1)
    for value in (np.float64(0.5), {1, 2}, object(), np.zeros(3)):
        held = state(2)
        held["state"]["best"] = [1, {"value": value}]
        with pytest.raises(TypeError, match=r"state\.state\.best\.1\.value of a checkpoint is a"):
            checkpoints.save(held, 2)
    assert checkpoints.steps() == [1]


def test_links_are_relative(tmp_path):
    """A run that is moved keeps its last.pt and best.pt."""
    checkpoints = saved(tmp_path / "run", 1)
    checkpoints.save(state(2), 2, best=True, wait=True)
    checkpoints.save(state(3), 3, wait=True)
    shutil.move(tmp_path / "run", tmp_path / "moved")
    for name, step in (("last", 3), ("best", 2)):
        found = torch.load(tmp_path / "moved" / f"{name}.pt", weights_only=True)
        assert_holds(found, step)


# What stays


@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.lists(st.tuples(st.integers(1, 12), st.booleans()), min_size=1, max_size=10),
    st.integers(1, 3),
    st.booleans(),
)
def test_the_newest_and_the_best_stay(tmp_path_factory, monkeypatch, saves, keep, ascending):
    """Against a list of the saves in order. Going back to an earlier step forgets the later ones,
    the best among them."""
    monkeypatch.setattr(os, "fsync", lambda handle: None)
    if ascending:
        saves = [(number + 1, best) for number, (_, best) in enumerate(saves)]
    folder = tmp_path_factory.mktemp("run")
    written: list[int] = []
    best_step = None
    with Checkpoints(folder, keep=keep) as checkpoints:
        checkpoints.begin(0)
        for step, best in saves:
            checkpoints.save(state(step), step, best=best, wait=True)
            written = [other for other in written if other < step] + [step]
            if best:
                best_step = step
            elif best_step is not None and best_step > step:
                best_step = None
            wanted = {*written[-keep:], *([] if best_step is None else [best_step])}
            assert names(checkpoints.folder) == {f"step-{held:08d}.pt" for held in wanted}
            written = [other for other in written if other in wanted]
            assert_holds(checkpoints.load()[0], step)
            if best_step is not None:
                assert_holds(checkpoints.load("best")[0], best_step)
            else:
                assert not os.path.lexists(checkpoints.best_file)
    assert names(folder) <= {"checkpoints", "last.pt", "best.pt"}


def test_steps_of_nine_digits_come_after_those_of_eight(tmp_path):
    checkpoints = saved(tmp_path, 99_999_999, 100_000_000, keep=1)
    assert checkpoints.steps() == [100_000_000] and checkpoints.step() == 100_000_000


def test_foreign_files_are_left_alone(tmp_path):
    """In the folder of the checkpoints and beside it, whatever they are."""
    checkpoints = saved(tmp_path, 1, keep=1)
    foreign = [
        "notes.txt",
        "step-5.pt",
        "step-000000005.pt",
        "model.pt.tmp",
        "step-00000009.pt.bak",
    ]
    for name in foreign:
        (checkpoints.folder / name).write_text("mine")
        (tmp_path / name).write_text("mine")
    checkpoints.begin(1)
    checkpoints.save(state(2), 2, wait=True)
    assert checkpoints.load()[1] == [] and checkpoints.step() == 2
    assert names(checkpoints.folder) == {"step-00000002.pt", *foreign}
    assert names(tmp_path) == {"checkpoints", "last.pt", *foreign}


def test_what_dead_processes_left_is_removed_by_the_next_training_alone(tmp_path):
    checkpoints = saved(tmp_path, 1)
    left = [
        checkpoints.folder / "step-00000002.pt.123.tmp",
        tmp_path / "last.pt.123.tmp",
        tmp_path / "best.pt.77.tmp",
    ]
    left[0].write_bytes(b"PK")
    left[1].symlink_to("checkpoints/step-00000002.pt")
    left[2].symlink_to("checkpoints/step-00000001.pt")
    before = everything(tmp_path)
    assert_holds(checkpoints.load()[0], 1)
    assert everything(tmp_path) == before
    checkpoints.begin(1)
    assert not any(os.path.lexists(path) for path in left)


# When a save fails


def full(monkeypatch):
    """The disk is full, which some file systems only tell when the file is flushed."""

    def fsync(handle):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", fsync)


@pytest.mark.parametrize("call", ["save", "wait", "close", "with"])
def test_a_failed_save_is_told_by_the_next_call(tmp_path, monkeypatch, call):
    checkpoints = saved(tmp_path, 1)
    full(monkeypatch)
    checkpoints.save(state(2), 2)
    with pytest.raises(MatineeError, match="No space left on device") as error:
        if call == "save":
            checkpoints.save(state(3), 3)
        elif call == "with":
            with checkpoints:
                pass
        else:
            getattr(checkpoints, call)()
    told = str(error.value)
    assert told.startswith(f"{checkpoints.file(2)}: ")
    assert "step 2 could not be saved; that of step 1 is untouched" in told
    assert "make room" in told and "--resume" in told
    monkeypatch.undo()
    assert names(checkpoints.folder) == {"step-00000001.pt"} and checkpoints.load()[1] == []
    checkpoints.save(state(2), 2, wait=True)  # there is room again
    assert_holds(checkpoints.load()[0], 2)


def test_a_write_cut_short_is_told_with_its_reason(tmp_path):
    """By the system's limit on the size of a file: torch's own error has no reason."""
    checkpoints = saved(tmp_path, 1)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, hard))
    try:
        with pytest.raises(MatineeError, match=r"step-00000002\.pt: File too large"):
            checkpoints.save(state(2, numbers=100_000), 2, wait=True)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert names(checkpoints.folder) == {"step-00000001.pt"}
    assert_holds(checkpoints.load()[0], 1)


def test_the_error_of_the_training_is_not_hidden_by_that_of_a_save(tmp_path, monkeypatch):
    checkpoints = saved(tmp_path, 1)
    full(monkeypatch)
    with pytest.raises(KeyError, match="first") as error, checkpoints:
        checkpoints.save(state(2), 2)
        raise KeyError("first")
    assert any("No space left on device" in note for note in error.value.__notes__)


def test_a_file_system_without_symbolic_links_is_refused_before_training(tmp_path, monkeypatch):
    def symlink(*args, **kwargs):
        raise PermissionError(errno.EPERM, os.strerror(errno.EPERM))

    monkeypatch.setattr(os, "symlink", symlink)
    with pytest.raises(ConfigError, match=r"--run\.out .*run: .*no symbolic links"):
        Checkpoints(tmp_path / "run").begin(0)


def test_at_least_one_must_stay(tmp_path):
    with pytest.raises(ConfigError, match="keep: 0"):
        Checkpoints(tmp_path, keep=0)


@pytest.mark.gpu
def test_a_gpu_state_is_copied_before_it_changes(tmp_path):
    """The copy is complete when `save` returns, whatever the stream does next."""
    if not torch.cuda.is_available():
        pytest.skip("no GPU")
    checkpoints = saved(tmp_path)
    weight = torch.zeros(20_000_000, device="cuda")
    for step in range(1, 4):
        weight.fill_(step)
        checkpoints.save({"state": {"step": step, "w": weight}, "vocabulary": {}}, step)
        weight.fill_(-1)
    checkpoints.close()
    for step in range(1, 4):
        found = checkpoint_file.read_checkpoint(checkpoints.file(step))["state"]["w"]
        assert found.device.type == "cpu" and bool((found == step).all())
