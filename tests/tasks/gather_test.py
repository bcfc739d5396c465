"""Two processes with half the clips each get the gradient of one process with all."""

from pathlib import Path

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing
import torch.nn.functional as F
from steps import plain_step
from torch import nn

from matinee.tasks.feature_cache import cached_backward
from matinee.tasks.gather import gather_with_gradient, own_rows
from matinee.tasks.losses import info_nce, max_margin

WORLD, EACH = 2, 4
VALID = torch.tensor([True, True, False, True, True, True, True, False])
CASES = ["global", "local", "global masked", "local masked", "global margin", "local margin",
         "local cached"]  # fmt: skip


class Pair(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.video = nn.Linear(6, 3, dtype=torch.float64)
        self.text = nn.Linear(5, 3, dtype=torch.float64)
        self.scale = nn.Parameter(torch.tensor(4.0, dtype=torch.float64))

    def forward(self, part):
        video, text = part
        return F.normalize(self.video(video), dim=1), F.normalize(self.text(text), dim=1)

    def loss(self, video, text, valid, rows, case):
        if "margin" in case:
            return max_margin(video, text, None, valid, margin=0.7, rows=rows)
        return info_nce(video, text, self.scale, valid, rows=rows)


def inputs():
    generator = torch.Generator().manual_seed(1)
    rows = WORLD * EACH
    return [torch.randn(rows, width, generator=generator).double() for width in (6, 5)]


def gradients(model: Pair) -> list[torch.Tensor]:
    return [torch.zeros_like(p) if p.grad is None else p.grad for p in model.parameters()]


def one_process(case: str) -> list[torch.Tensor]:
    model = Pair()
    valid = VALID if "masked" in case else torch.ones_like(VALID)
    each = model.loss(*model(inputs()), valid, slice(None), case)
    (each.sum() / valid.sum()).backward()
    return gradients(model)


def on_rank(rank: int, folder: str) -> None:
    """What a rank does with its half, and the average that DistributedDataParallel would make."""
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo", init_method=f"file://{folder}/store", rank=rank, world_size=WORLD
    )
    mine = slice(rank * EACH, (rank + 1) * EACH)
    results = {}
    for case in CASES:
        model = Pair()
        part = [x[mine] for x in inputs()]
        valid = gather_with_gradient(
            (VALID if "masked" in case else torch.ones_like(VALID))[mine].clone()
        )
        rows = own_rows(part[0]) if "local" in case else slice(None)

        def loss(video, text, model=model, valid=valid, rows=rows, case=case):
            everything = (gather_with_gradient(video), gather_with_gradient(text))
            each = model.loss(*everything, valid, rows, case)
            return each.sum() / (valid.sum() / WORLD if "local" in case else valid.sum())

        if "cached" in case:
            halves = list(zip(*(x.split(EACH // 2) for x in part), strict=True))
            cached_backward(halves, loss, own=model.scale, model=model, step=plain_step(model))
        else:
            loss(*model(part)).backward()
        results[case] = gradients(model)
        for gradient in results[case]:
            dist.all_reduce(gradient)
            gradient.div_(WORLD)
    results["order"] = gather_with_gradient(torch.full((1, 2), rank))
    torch.save(results, f"{folder}/{rank}.pt")
    dist.destroy_process_group()


@pytest.fixture(scope="module")
def ranks(tmp_path_factory):
    folder: Path = tmp_path_factory.mktemp("ranks")
    torch.multiprocessing.spawn(on_rank, (str(folder),), nprocs=WORLD)
    return [torch.load(folder / f"{rank}.pt") for rank in range(WORLD)]


@pytest.mark.parametrize("case", CASES)
def test_averaged_gradients_equal_those_of_one_process(ranks, case):
    """For both towers and the temperature, float64."""
    wanted = one_process(case)
    learned = wanted[1:] if "margin" in case else wanted  # the temperature comes first
    assert all(float(g.abs().max()) > 1e-3 for g in learned)
    for rank in ranks:
        for ours, one in zip(rank[case], wanted, strict=True):
            torch.testing.assert_close(ours, one, rtol=1e-9, atol=1e-12)


def test_rows_come_in_the_order_of_ranks(ranks):
    for rank in ranks:
        assert rank["order"].tolist() == [[0, 0], [1, 1]]


def test_without_processes_nothing_is_gathered():
    x = torch.randn(3, 2)
    assert gather_with_gradient(x) is x and own_rows(x) == slice(0, 3)
