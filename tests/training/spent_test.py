"""Where ranks spend a step: who is slow, and who waits for whom."""

import json
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
import torch.distributed as dist
from torch import nn

from matinee.spans import Spans
from matinee.tasks.base import Outcome, Task
from matinee.training.parallel.config import ParallelConfig
from matinee.training.parallel.ranks import Ranks
from matinee.training.parallel.wrap import wrap
from matinee.training.spent import over_ranks
from matinee.training.step import StepRunner

WORLD, STEPS, SLEEP_S = 2, 4, 0.15


def test_each_span_is_told_over_ranks_and_the_slowest_named():
    spans = [
        {"forward": 1.0, "backward": 2.0, "comm": 3.0, "save": 50.0},
        {"forward": 4.0, "backward": 2.5, "comm": 0.5},
        {"forward": 1.5, "backward": 2.0, "comm": 3.5},
    ]
    found = over_ranks(spans)
    assert found["forward"] == {"least": 1.0, "median": 1.5, "greatest": 4.0, "slowest": 1}
    assert found["comm"]["slowest"] == 2 and found["comm"]["least"] == 0.5
    # Without waiting, saving and validating.
    assert found["own"] == {"least": 3.0, "median": 3.5, "greatest": 6.5, "slowest": 1}
    assert found["save"] == {"least": 0.0, "median": 0.0, "greatest": 50.0, "slowest": 0}


class SlowTask(Task):
    """Sleeps in a forward pass, or in the backward pass of its first layer, on one rank."""

    kind, headline = "slow", "loss"

    def __init__(self, where: str, rank: int) -> None:
        super().__init__()
        self.model = nn.Sequential(nn.Linear(64, 64), nn.Linear(64, 64))
        self.where = where if rank == WORLD - 1 else ""

    def forward(self, batch):
        hidden = self.model[0](batch.video)
        if self.where == "forward":
            time.sleep(SLEEP_S)
        if self.where == "backward":
            hidden.register_hook(lambda gradient: time.sleep(SLEEP_S))
        return Outcome(self.model[1](hidden).sum())


def on_rank(rank, folder):
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo", init_method=f"file://{folder}/meet", rank=rank, world_size=WORLD
    )
    ranks = Ranks(rank, WORLD, WORLD, torch.device("cpu"))
    batch = SimpleNamespace(video=torch.ones(2, 64), num_valid=2, samples=("a", "b"))
    told = {}
    for where in ("forward", "backward"):
        task = SlowTask(where, rank)
        wrapped = wrap(task, ParallelConfig(), ranks, parts=1, bf16=False)
        optimizer = torch.optim.SGD(task.parameters(), lr=0.01)
        spans = Spans()
        runner = StepRunner(task, optimizer, wrapped, ranks, parts=1, seed=0, spans=spans)
        for number in range(STEPS + 1):
            if number == 1:
                spans.take()
            runner(iter([batch]), clips=2 * WORLD, number=number, lr=0.01)
        told[where] = over_ranks(ranks.everyone(spans.take()))
    if rank == 0:
        (Path(folder) / "told.json").write_text(json.dumps(told))
    dist.barrier()
    dist.destroy_process_group()


@pytest.fixture(scope="module")
def told(tmp_path_factory):
    folder = tmp_path_factory.mktemp("ranks")
    processes = torch.multiprocessing.spawn(on_rank, (str(folder),), nprocs=WORLD, join=False)
    deadline = time.monotonic() + 120
    while not processes.join(1):
        assert time.monotonic() < deadline
    return json.loads((folder / "told.json").read_text())


@pytest.mark.parametrize("where", ["forward", "backward"])
def test_a_slow_rank_is_slow_by_itself_and_the_other_waits_for_it(told, where):
    """DistributedDataParallel waits inside of the backward pass; that counts as "comm"."""
    slept, found = STEPS * SLEEP_S, told[where]
    assert found["own"]["slowest"] == WORLD - 1
    assert found[where]["greatest"] > slept and found[where]["slowest"] == WORLD - 1
    assert found["own"]["greatest"] - found["own"]["least"] > 0.7 * slept
    assert found["comm"]["slowest"] == 0 and found["comm"]["greatest"] > 0.7 * slept
    assert found["backward"]["least"] < 0.3 * slept
