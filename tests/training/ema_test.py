"""Averages of weights against a loop in float64 and against torch's `AveragedModel`."""

import copy
import datetime
import io

import pytest
import torch
from torch import distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

from matinee.training.optim.ema import Ema

WORLD = 2


class Net(nn.Module):
    """Weights, batch statistics, a frozen layer, a scalar and a table that checkpoints lack."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.first, self.norm, self.last = nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 2)
        self.frozen = nn.Linear(2, 2).requires_grad_(False)
        self.scale = nn.Parameter(torch.tensor(0.5))
        self.register_buffer("table", torch.ones(2), persistent=False)
        self.register_buffer("calls", torch.tensor(0))

    def forward(self, x):
        self.calls += 1
        return self.frozen(self.last(self.norm(self.first(x)))) * self.scale + self.table


def advance(model, step):
    """A step of plain descent on a batch that its number makes."""
    torch.manual_seed(100 + step)
    model.zero_grad()
    model(torch.randn(6, 3)).square().mean().backward()
    with torch.no_grad():
        for p in model.parameters():
            if p.grad is not None:
                p.add_(p.grad, alpha=-0.1)


def copied(model):
    return {name: tensor.clone() for name, tensor in model.state_dict().items()}


NAMES = [
    "first.weight", "first.bias", "norm.weight", "norm.bias", "norm.running_mean",
    "norm.running_var", "last.weight", "last.bias", "scale",
]  # fmt: skip


@pytest.mark.parametrize("decay", [0.3, 0.999])
def test_averages_follow_the_formula(decay):
    """Twenty steps, their decays at first (1 + n) / (10 + n); frozen weights, whole numbers and
    tables are not held."""
    model = Net()
    ema = Ema(model, decay)
    wanted = {name: value.double() for name, value in copied(model).items()}
    for step in range(20):
        advance(model, step)
        ema.update(model, step)
        stays = min(decay, (1 + step) / (10 + step))
        for name, value in model.state_dict().items():
            wanted[name] = stays * wanted[name] + (1 - stays) * value.double()
    held = ema.state_dict()
    assert sorted(held) == sorted(NAMES)
    for name, value in held.items():
        assert value.dtype == torch.float32
        torch.testing.assert_close(value.double(), wanted[name], rtol=1e-5, atol=1e-7)


def test_after_the_warm_up_averages_are_torchs():
    """From update 1,000 on, with a decay of 0.9."""
    model = Net()
    ema = Ema(model, 0.9)
    theirs = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.9), use_buffers=True)
    theirs.n_averaged += 1  # it would take the first update's weights as they are
    for step in range(8):
        advance(model, step)
        ema.update(model, 1000 + step)
        theirs.update_parameters(model)
    other = theirs.module.state_dict()
    for name, value in ema.state_dict().items():
        torch.testing.assert_close(value, other[name], rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("broken", [False, True])
def test_averages_are_in_the_model_only_within(broken):
    """Then model and averages are what they were, bit for bit, also after an error; the parameters
    are the same objects, so that optimizers keep them."""
    model = Net()
    ema = Ema(model, 0.9)
    for step in range(3):
        advance(model, step)
        ema.update(model, step)
    weights, averages = copied(model), copy.deepcopy(ema.state_dict())
    objects = [id(p) for p in model.parameters()]
    try:
        with ema.applied(model):
            for name, value in model.state_dict().items():
                assert torch.equal(value, averages.get(name, weights[name])), name
            assert not torch.equal(model.first.weight, weights["first.weight"])
            model.eval()(torch.ones(1, 3))
            if broken:
                raise RuntimeError("evaluation failed")
    except RuntimeError:
        assert broken
    weights["calls"] += 1
    assert all(torch.equal(value, weights[name]) for name, value in model.state_dict().items())
    assert all(torch.equal(value, averages[name]) for name, value in ema.state_dict().items())
    assert [id(p) for p in model.parameters()] == objects


def test_saved_averages_go_on_bit_for_bit():
    """Through a file; and averages of another model are refused by name."""
    model = Net()
    ema = Ema(model, 0.95)
    for step in range(3):
        advance(model, step)
        ema.update(model, step)
    file = io.BytesIO()
    torch.save(ema.state_dict(), file)
    file.seek(0)
    resumed = Ema(model, 0.95)
    resumed.load_state_dict(torch.load(file, weights_only=True))
    for step in range(3, 6):
        advance(model, step)
        ema.update(model, step)
        resumed.update(model, step)
    for name, value in ema.state_dict().items():
        assert torch.equal(value, resumed.state_dict()[name])
    with pytest.raises(KeyError, match=r"0\.bias"):
        resumed.load_state_dict(Ema(nn.Sequential(nn.Linear(2, 2)), 0.9).state_dict())


def test_nothing_waits_for_the_device(monkeypatch):
    """No value leaves its tensor."""
    model = Net()
    ema = Ema(model, 0.9)
    advance(model, 0)
    for name in ("item", "cpu", "numpy", "tolist", "__bool__", "__float__", "__int__"):
        monkeypatch.setattr(torch.Tensor, name, None)
    ema.update(model, 0)
    with ema.applied(model):
        pass


def evaluate(model):
    """A forward pass as FSDP leaves it: the root's weights stay whole."""
    with torch.no_grad():
        return model.eval()(torch.ones(1, 3))


def on_rank(rank, folder):
    """Averages over divided weights, an evaluation with them, and a step with the true ones."""
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo", init_method=f"file://{folder}/store", rank=rank, world_size=WORLD,
        timeout=datetime.timedelta(seconds=60),
    )  # fmt: skip
    results = []
    for divide in (False, True):
        model = Net()
        if divide:
            fully_shard(model.first)
            fully_shard(model, ignored_params={model.scale, *model.frozen.parameters()})
        ema = Ema(model, 0.9)
        for step in range(3):
            advance(model, step)
            ema.update(model, step)
        plain = evaluate(model)
        with ema.applied(model):
            averaged = evaluate(model)
        again = evaluate(model)
        found = {name: whole(value) for name, value in ema.state_dict().items()}
        other = Ema(model, 0.9)
        other.load_state_dict({name: value + 1 for name, value in found.items()})
        loaded = {name: whole(value) - 1 for name, value in other.state_dict().items()}
        results.append([{"plain": plain, "averaged": averaged, "again": again}, found, loaded])
    if rank == 0:
        torch.save(results, f"{folder}/results.pt")
    dist.destroy_process_group()


def whole(value):
    return value.full_tensor() if hasattr(value, "full_tensor") else value.clone()


def test_divided_averages_are_those_of_whole_weights(tmp_path):
    """FSDP2 on two ranks: averages, outputs with and without them, and averages loaded whole."""
    processes = torch.multiprocessing.spawn(on_rank, (str(tmp_path),), nprocs=WORLD, join=False)
    if not processes.join(timeout=120) and not processes.join(timeout=120):
        for process in processes.processes:
            process.kill()
        raise TimeoutError("ranks that hang")
    one, two = torch.load(tmp_path / "results.pt", weights_only=True)
    for alone, divided in zip(one, two, strict=True):
        assert alone.keys() == divided.keys()
        for name, value in alone.items():
            torch.testing.assert_close(divided[name], value, rtol=1e-5, atol=1e-6)
    for outputs in (one[0], two[0]):
        assert torch.equal(outputs["plain"], outputs["again"])
        assert not torch.allclose(outputs["plain"], outputs["averaged"], rtol=1e-3)
