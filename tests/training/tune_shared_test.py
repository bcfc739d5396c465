"""A search that is stopped, killed, or shared by processes has the trials of one that was not."""

import multiprocessing
import os
import signal
import sqlite3
from functools import partial
from pathlib import Path

import pytest
from small_search import LR, Lying, config

from matinee.training.search import tune as tune_module
from matinee.training.search.locks import Locks
from matinee.training.search.tune import Unseen, tune
from matinee.training.show.progress import Silent
from matinee.training.state.runfolder import RunFolder

pytest.importorskip("optuna")


def scores(result):
    return {trial.number: trial.value for trial in result.study.trials}


@pytest.fixture
def lying(monkeypatch):
    def use(score, **more):
        lie = Lying(score, **more)
        monkeypatch.setattr(tune_module, "train", lie)
        return lie

    return use


class StopIn(Unseen):
    """Sends this process a signal after a step of one trial."""

    def __init__(self, number, step, sent):
        self.number, self.step, self.sent = number, step, sent

    def trial(self, number, values):
        view = self

        class Stopping(Silent):
            def step(self, step):
                if (number, step) == (view.number, view.step):
                    os.kill(os.getpid(), view.sent)

        return Stopping()


def test_a_stopped_trial_goes_on_where_it_was(clips_pack, tmp_path):
    """In its second epoch; the search ends as one that was never stopped."""
    whole = tune(config(clips_pack, tmp_path / "whole"), search=LR, trials=3)
    settings = config(clips_pack, tmp_path / "search")
    found = tune(settings, search=LR, trials=3, view=StopIn(1, 4, signal.SIGINT))
    assert found.stopped == "SIGINT" and found.waiting == 2
    assert [trial.state for trial in found.study.trials] == ["complete", "waiting"]
    found = tune(settings, search=LR, trials=3)
    assert scores(found) == scores(whole) and not found.stopped and not found.waiting
    assert [t.values for t in found.study.trials] == [t.values for t in whole.study.trials]
    assert [t.curve for t in found.study.trials] == [t.curve for t in whole.study.trials]
    steps = [row["step"] for row in RunFolder(tmp_path / "search" / "trial-0001").rows()]
    assert steps == sorted(steps)  # one run, gone on with


def dying(made, *, resume, progress, trial):
    """Instead of a training: a score that follows from the rate; one trial ends its process."""
    run = Path(made.run.out)
    with run.with_suffix(".calls").open("a") as calls:
        calls.write("x")
    if run.name == f"trial-{trial:04d}":
        os.kill(os.getpid(), signal.SIGKILL)
    return Lying(lambda made, epoch: made.optim.lr)(made, resume=resume, progress=progress)


def work(settings, trials, dies):
    tune_module.train = partial(dying, trial=dies)
    tune(settings, search=LR, trials=trials, prune=False)


@pytest.fixture(scope="module")
def start():
    """Starts a search in a process of its own; ends all that are left."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["matinee.training.search.tune", "optuna", "timm"])
    started = []

    def begin(settings, *, trials, dies=-1):
        process = context.Process(target=work, args=(settings, trials, dies))
        process.start()
        started.append(process)
        return process

    yield begin
    for process in started:
        process.kill()
        process.join(10)


def test_a_killed_search_goes_on_to_as_many_trials(clips_pack, tmp_path, start, lying):
    """SIGKILL in the third of four: that it is dead is known at once, and it is tried again."""
    lying(lambda made, epoch: made.optim.lr)
    settings = config(clips_pack, tmp_path / "search")
    killed = start(settings, trials=4, dies=2)
    killed.join(120)
    assert killed.exitcode == -signal.SIGKILL
    found = tune(settings, search=LR, trials=4)
    assert [trial.number for trial in found.study.trials] == [0, 1, 2, 3]
    assert len(found.study.complete) == 4
    assert len({trial.values["optim.lr"] for trial in found.study.trials}) == 4


def test_a_trial_that_kills_its_process_twice_is_given_up(clips_pack, tmp_path, start, lying):
    lying(lambda made, epoch: made.optim.lr)
    settings = config(clips_pack, tmp_path / "search")
    for _ in range(2):
        killed = start(settings, trials=2, dies=1)
        killed.join(120)
        assert killed.exitcode == -signal.SIGKILL
    found = tune(settings, search=LR, trials=2)
    assert [trial.state for trial in found.study.trials] == ["complete", "failed"]
    assert "process ended" in found.study.trials[1].reason
    assert (tmp_path / "search" / "trial-0001.calls").read_text() == "xx"


def test_two_processes_share_a_search(clips_pack, tmp_path, start):
    """Eight trials in all, each once, though both begin in an empty folder."""
    settings = config(clips_pack, tmp_path / "search")
    both = [start(settings, trials=8) for _ in range(2)]
    for process in both:
        process.join(120)
        assert process.exitcode == 0
    found = tune(settings, search=LR, trials=8).study
    assert [trial.number for trial in found.trials] == list(range(8))
    assert len(found.complete) == 8
    assert len({trial.values["optim.lr"] for trial in found.trials}) == 8
    calls = sorted((tmp_path / "search").glob("*.calls"))
    assert [call.read_text() for call in calls] == ["x"] * 8
    with sqlite3.connect(tmp_path / "search" / "study.db") as database:
        assert database.execute("select count(*) from trials").fetchone() == (8,)


def hold(path, ready, done):
    locks = Locks(path)
    assert locks.hold(3)
    ready.set()
    done.wait(60)


def test_a_lock_is_held_by_one_process_until_it_ends(tmp_path):
    context = multiprocessing.get_context("forkserver")
    ready, done = context.Event(), context.Event()
    other = context.Process(target=hold, args=(tmp_path / "lock", ready, done))
    other.start()
    try:
        assert ready.wait(60)
        locks = Locks(tmp_path / "lock")
        assert not locks.hold(3) and locks.hold(4)
        other.kill()
        other.join(60)
        assert locks.hold(3)
    finally:
        other.kill()
