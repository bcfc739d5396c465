"""What each rank of a test runs: a list of trainings, one after the other, from a JSON file.

A job: config (of `TrainConfig.to_dict`), resume; stop_at (a step after which rank 1 gets SIGTERM,
rank 0 if it is alone), kill_at (a step after which the last rank is killed, once); double (weights
and clips in float64), samples (a folder for what each rank read, a line a step), powersgd_start
(the step it begins with).
"""

import json
import os
import signal
import sys
from dataclasses import replace
from pathlib import Path

import torch

from matinee.data.loader import ClipLoader
from matinee.training import session, setup
from matinee.training.config import TrainConfig
from matinee.training.loop import train
from matinee.training.parallel import hooks

RANK, WORLD = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))


def run(job: dict) -> dict:
    """One training; what `train` returned."""
    undo = [(session.Session, "done", session.Session.done)]
    original = session.Session.done

    def done(self, stepped, clips):
        original(self, stepped, clips)
        if job.get("samples"):
            file = Path(job["samples"]) / f"{WORLD}-{RANK}.txt"
            with file.open("a") as out:
                out.write(json.dumps(stepped.samples) + "\n")
        if self.state.step == job.get("stop_at") and min(1, WORLD - 1) == RANK:
            os.kill(os.getpid(), signal.SIGTERM)
        first = os.environ.get("TORCHELASTIC_RESTART_COUNT") == "0"
        if self.state.step == job.get("kill_at") and RANK == WORLD - 1 and first:
            os.kill(os.getpid(), signal.SIGKILL)

    session.Session.done = done
    if job.get("powersgd_start"):
        undo.append((hooks, "POWERSGD_START", hooks.POWERSGD_START))
        hooks.POWERSGD_START = job["powersgd_start"]
    if job.get("double"):
        place, following = setup.place, ClipLoader._next
        undo += [(setup, "place", place), (ClipLoader, "_next", following)]

        def place_double(task, device, **more):
            place(task, device, **more)
            task.double()

        def next_double(self):
            batch = following(self)
            return replace(batch, video=batch.video.double())

        setup.place, ClipLoader._next = place_double, next_double
    try:
        config = TrainConfig.from_json(json.dumps(job["config"]))
        result = train(config, resume=job.get("resume", False))
    finally:
        for owner, name, value in undo:
            setattr(owner, name, value)
    return {"steps": result.steps, "stopped": result.stopped, "val": result.val}


if __name__ == "__main__":
    torch.set_num_threads(1)
    for one in json.loads(Path(sys.argv[1]).read_text()):
        run(one)
