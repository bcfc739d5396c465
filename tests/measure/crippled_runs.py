"""Small runs, one stage of which can be slowed down on purpose; as a script, on several ranks.

`crippled_runs.py JOBS OUT`: JOBS is JSON, a list of {"config", "slow": "network" or "rank"}; rank 0
writes the verdicts to OUT.
"""

import json
import sys
import time
from contextlib import contextmanager
from pathlib import Path
from unittest import mock

import torch
import torch.distributed as dist

from matinee.data import transfer
from matinee.data.clips import ClipSpec
from matinee.measure.diagnose import diagnose as diagnosing
from matinee.measure.diagnose.readings import Reading
from matinee.measure.diagnose.stand import Stand
from matinee.models.config import ModelConfig
from matinee.tasks.classification import ClassificationTask
from matinee.training.config import DataConfig, OptimConfig, RunConfig, TrainConfig
from matinee.training.parallel import wrap

DELAY_S = 0.12
COPY_DELAY_S = 0.3  # decoders, which share cores with training, may hold it up by less


def small_config(pack, seed: int, *, size: int = 32, **data):
    """Two clips of two frames through a network of half a million weights."""
    return TrainConfig(
        data=DataConfig(path=str(pack), **({"workers": 1, "mode": "threads"} | data)),
        run=RunConfig(out="unused", seed=seed, device="cpu"),
        model=ModelConfig(backbone="test_resnet", dropout=0.0),
        clip=ClipSpec(frames=2, size=size),
        optim=OptimConfig(name="sgd", lr=0.01, batch_size=2, epochs=2),
    )


def verdict_on(config: TrainConfig):
    """What `matinee diagnose` finds in few rounds; None on ranks other than 0."""
    # Steps in bf16 and the loader alone have no part in a verdict.
    with (
        mock.patch.object(diagnosing, "_WORTH_TRYING", float("inf")),
        mock.patch.object(Stand, "fetch", lambda self: Reading((1.0,))),
    ):
        found = diagnosing.diagnose(config, rounds=3, steps=2)
    return None if found is None else found.to_dict()


@contextmanager
def slow_copy():
    """Taking a batch to the device takes longer."""
    begin = transfer._OnHost.begin

    def late(self, make):
        time.sleep(COPY_DELAY_S)
        return begin(self, make)

    transfer._OnHost.begin = late
    try:
        yield
    finally:
        transfer._OnHost.begin = begin


@contextmanager
def slow_network():
    """Gradients of a bucket travel longer."""

    def late_hook(_, bucket):
        time.sleep(DELAY_S)
        work = dist.all_reduce(bucket.buffer().div_(dist.get_world_size()), async_op=True)
        return work.get_future().then(lambda done: done.value()[0])

    add_hook = wrap.add_hook
    wrap.add_hook = lambda module, config: module.register_comm_hook(None, late_hook)
    try:
        yield
    finally:
        wrap.add_hook = add_hook


@contextmanager
def slow_rank(rank: int):
    """The forward pass of one rank takes longer."""
    compute = ClassificationTask.compute

    def late(self, part):
        if dist.get_rank() == rank:
            time.sleep(DELAY_S)
        return compute(self, part)

    ClassificationTask.compute = late
    try:
        yield
    finally:
        ClassificationTask.compute = compute


if __name__ == "__main__":
    torch.set_num_threads(1)
    found = []
    for job in json.loads(Path(sys.argv[1]).read_text()):
        config = TrainConfig.from_json(json.dumps(job["config"]))
        slow = slow_network() if job["slow"] == "network" else slow_rank(1)
        with slow:
            found.append(verdict_on(config))
    if found[0] is not None:
        Path(sys.argv[2]).write_text(json.dumps(found))
