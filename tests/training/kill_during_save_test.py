"""A training that is killed (kill -9) at any moment of a save leaves a run that can be read.

A process of its own imports torch once and forks one child a trial, which saves as fast as it can.
"""

import json
import os
import random
import select
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

from matinee.training.state.runfolder import RunFolder

SIZES = [1_500_001, 500_003, 17]  # of a training's tensors, in numbers: 8 MB
SMALL = [1_003, 19]

NURSERY = """
import json, os, signal, sys, threading, torch
from pathlib import Path
from matinee.training.state.runfolder import RunFolder

torch.set_num_threads(1)
EVENTS = {"open", "os.rename", "os.remove", "os.symlink"}


def train(folder, sizes, steps, wait, flush, fatal):
    '''Saves every step, each second as the best, and keeps one more; writes the step of each
    completed save to `done`.

    flush: wait for the disk, which takes most of the time and matters to power cuts alone.
    fatal: the how many-th thing done to files in the last save ends the process before it is done.
    '''
    if not flush:
        os.fsync = lambda handle: None
    model = {str(n): torch.empty(n) for n in sizes}
    starts = {str(n): torch.arange(n) % 1009 for n in sizes}
    run = RunFolder(folder, keep=1)
    run.checkpoints.begin(0)
    done = os.open(folder + "/done", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    tell = lambda step: os.write(done, b"%d\\n" % step)
    left = [None]

    def watch(event, args):
        in_save = left[0] is not None and threading.current_thread().name == "checkpoint"
        if in_save and event in EVENTS:
            left[0] -= 1
            if left[0] == 0:
                os.kill(os.getpid(), signal.SIGKILL)

    sys.addaudithook(watch)
    for step in range(1, steps + 1):
        for n in model:
            torch.add(starts[n], step, out=model[n])
        state = {"state": {"step": step, "model": model}, "vocabulary": {}}
        run.log(kind="train", step=step, loss=float(step))
        if step == steps:
            left[0] = fatal
        run.checkpoints.save(state, step, best=step % 2 == 1, wait=wait)
        if wait:
            tell(step)
        elif step > 1:
            tell(step - 1)
    run.checkpoints.close()
    tell(steps)


for line in sys.stdin:
    order = json.loads(line)
    child = os.fork()
    if not child:
        try:
            train(**order)
            os._exit(0)
        finally:
            os._exit(1)
    print(child, flush=True)
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
"""


class Nursery:
    """Starts trainings quickly, one at a time."""

    def __init__(self) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", NURSERY],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            bufsize=0,  # what `select` sees is then all there is
            start_new_session=True,
        )

    def start(self, folder: Path, sizes: list[int], *, wait=True, flush=False, **more) -> int:
        folder.mkdir()
        order = {"folder": str(folder), "sizes": sizes, "wait": wait, "flush": flush, **more}
        self.process.stdin.write(json.dumps(order).encode() + b"\n")
        return self._number()

    def end(self) -> int:
        """Exit status of the training, negative for a signal."""
        return self._number()

    def _number(self) -> int:
        ready, _, _ = select.select([self.process.stdout], [], [], 60)
        assert ready, "the training hangs"
        return int(self.process.stdout.readline())


@pytest.fixture(scope="module")
def nursery():
    held = Nursery()
    yield held
    os.killpg(held.process.pid, signal.SIGKILL)  # and a training that a failed test left
    held.process.communicate()


def completed(folder: Path) -> int:
    """The last step whose save was completed; 0 before."""
    file = folder / "done"
    lines = file.read_bytes().split(b"\n")[:-1] if file.exists() else []
    return int(lines[-1]) if lines else 0


def assert_whole(found: dict, sizes: list[int]) -> None:
    """The numbers are those of its step."""
    state = found["state"]
    assert len(state["model"]) == len(sizes)
    for size in sizes:
        wanted = (torch.arange(size) % 1009 + state["step"]).float()
        assert torch.equal(state["model"][str(size)], wanted)


def assert_readable(folder: Path, sizes: list[int]) -> None:
    """What is read is no older than the last completed save. Resuming leaves no litter, and both
    links lead to what they promise."""
    done = completed(folder)
    run = RunFolder(folder, keep=1)
    found, notes = run.checkpoints.load()
    step = found["state"]["step"]
    assert notes == [] and run.checkpoint_step() == step
    assert done <= step <= done + 2
    assert_whole(found, sizes)
    rows = [row["step"] for row in run.rows()]
    assert rows == list(range(1, len(rows) + 1)) and len(rows) >= step
    best = step - 1 + step % 2
    run.resume(step, validated=True, best=best)
    assert [row["step"] for row in run.rows()] == list(range(1, step + 1))
    assert not list(folder.rglob("*.tmp"))
    held = torch.load(run.checkpoint_file, weights_only=True)
    assert held["state"]["step"] == step
    found, _ = run.checkpoints.load("best")
    assert found["state"]["step"] == best
    assert_whole(found, sizes)
    assert len(list(run.checkpoints.folder.iterdir())) <= 4  # the one before, its best, two more


@pytest.mark.parametrize("trial", range(20))
def test_a_run_killed_at_a_random_moment_is_readable(nursery, tmp_path, trial):
    folder = tmp_path / "run"
    rng = random.Random(trial)
    child = nursery.start(
        folder, SIZES, steps=10_000, wait=trial % 2 == 0, flush=trial % 4 < 2, fatal=None
    )
    first = rng.randrange(3)
    deadline = time.monotonic() + 60
    while completed(folder) < first:
        assert time.monotonic() < deadline
        time.sleep(0.001)
    time.sleep(rng.uniform(0.0, 0.1))
    os.kill(child, signal.SIGKILL)
    assert nursery.end() == -signal.SIGKILL
    if completed(folder) == 0 and RunFolder(folder).checkpoint_step() is None:
        return  # before the first was written
    assert_readable(folder, SIZES)


def test_a_run_killed_before_any_step_of_a_save_is_readable(nursery, tmp_path):
    """Before each time a save opens, renames, links or removes a file, the best one's and the
    pruning's among them."""
    ends = []
    for fatal in range(1, 100):
        folder = tmp_path / f"{fatal}"
        nursery.start(folder, SMALL, steps=3, fatal=fatal)
        ends.append(nursery.end())
        assert_readable(folder, SMALL)
        if ends[-1] == 0:
            break
    assert ends[:-1] == [-signal.SIGKILL] * (len(ends) - 1) and len(ends) > 8, ends
