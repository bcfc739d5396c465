"""Every optimizer against its published rule, written down here for one tensor in float64."""

import copy
import datetime
import io
import math

import pytest
import timm
import torch
from torch import distributed as dist
from torch import nn
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_model_state_dict,
    get_optimizer_state_dict,
    set_optimizer_state_dict,
)
from torch.distributed.fsdp import fully_shard
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.distributed.tensor import DTensor
from torch.nn.utils import clip_grad

from matinee.models.joint import JointModel
from matinee.training.config import OptimConfig
from matinee.training.optim.build import build_optimizer, optimizer_class
from matinee.training.optim.clip import clip_gradients
from matinee.training.optim.groups import parameter_groups

NAMES = ["sgd", "adam", "adamw", "lion", "lamb", "lars", "muon"]
RATES = [0.03, 0.1, 0.02, 0.05]
MOMENTUM, BETA1, BETA2, DECAY = 0.9, 0.8, 0.95, 0.05
WORLD = 2


def settings(name, **changed):
    return OptimConfig(
        name=name, momentum=MOMENTUM, betas=(BETA1, BETA2), weight_decay=DECAY, **changed
    )


def small_vit():
    torch.manual_seed(0)
    vit = timm.create_model(
        "vit_tiny_patch16_224", img_size=16, patch_size=8, embed_dim=8, depth=2, num_heads=2,
        num_classes=5,
    )  # fmt: skip
    return JointModel(vit, frames=2).double()


def set_rate(optimizer, lr):
    """As the loop does before each step."""
    for group in optimizer.param_groups:
        group["lr"] = lr * group["lr_scale"]


def published(name, w, g, s, *, lr, decay, adapt, matrix):
    """The tensor after one step; `s` is its memory."""
    s["t"] = s.get("t", 0) + 1
    m, v = s.get("m", torch.zeros_like(w)), s.get("v", torch.zeros_like(w))
    if name == "muon":
        name = "muon" if matrix else "adamw"
    if name == "sgd":  # arXiv 1706.02677, equations 9 and 10: the rate outside the momentum
        s["m"] = MOMENTUM * m + g + decay * w
        return w - lr * s["m"]
    if name == "lars":  # arXiv 1708.03888, algorithm 1, with SGD's rate outside the momentum
        local = 0.001 * w.norm() / (g.norm() + decay * w.norm()) if adapt else 1.0
        s["m"] = MOMENTUM * m + local * (g + decay * w)
        return w - lr * s["m"]
    if name == "lion":  # arXiv 2302.06675, algorithm 2
        s["m"] = BETA2 * m + (1 - BETA2) * g
        return w - lr * (torch.sign(BETA1 * m + (1 - BETA1) * g) + decay * w)
    if name == "muon":  # arXiv 2502.16982, equations 1 and 4; Nesterov as in §2.1's reference
        s["m"] = MOMENTUM * m + (1 - MOMENTUM) * g
        step = orthogonal((1 - MOMENTUM) * g + MOMENTUM * s["m"])
        return w - lr * (0.2 * math.sqrt(max(step.shape)) * step + decay * w)
    if name == "adam":  # arXiv 1412.6980, algorithm 1, of the loss with its L2 term
        g = g + decay * w
    s["m"], s["v"] = BETA1 * m + (1 - BETA1) * g, BETA2 * v + (1 - BETA2) * g**2
    mean, square = s["m"] / (1 - BETA1 ** s["t"]), s["v"] / (1 - BETA2 ** s["t"])
    if name == "adam":
        return w - lr * mean / (square.sqrt() + 1e-8)
    if name == "adamw":  # arXiv 1711.05101, algorithm 2, as its code and torch have it: lr · decay
        return w - lr * (mean / (square.sqrt() + 1e-8) + decay * w)
    step = mean / (square.sqrt() + 1e-6) + decay * w  # lamb: arXiv 1904.00962, algorithm 2
    return w - lr * (w.norm() / step.norm() if adapt else 1.0) * step


def orthogonal(m):
    """Five Newton-Schulz iterations of degree five, in float64."""
    x = m / m.norm()
    for _ in range(5):
        a = x @ x.T
        x = 3.4445 * x - 4.7750 * a @ x + 2.0315 * a @ a @ x
    return x


@pytest.mark.parametrize("name", NAMES)
def test_updates_follow_the_published_rule(name):
    """Four steps of a ViT at four rates, with momentum and decay; blocks learn at half the rate of
    the next, the classifier three times as fast; norms, biases and positions are neither decayed
    nor adapted. Muon's iteration is in bfloat16: good to two per cent."""
    model = small_vit()
    optimizer = build_optimizer(model, settings(name, layer_decay=0.5, head_lr=3.0))
    wanted = {n: p.detach().clone() for n, p in model.named_parameters()}
    start, memory = copy.deepcopy(wanted), {n: {} for n in wanted}
    for lr in RATES:
        for n, p in model.named_parameters():
            p.grad = torch.randn_like(p)
            depth = 1 if ".blocks.1." in n else 2 if ".blocks.0." in n else 0
            if any(word in n for word in ("patch_embed", "pos_embed", "cls_token", "temporal")):
                depth = 3
            scale = 0.5**depth * (3 if ".head." in n else 1)
            weight = n.endswith("weight") and "norm" not in n
            wanted[n] = published(
                name, wanted[n], p.grad, memory[n], lr=lr * scale, decay=DECAY if weight else 0.0,
                adapt=weight, matrix=weight and ".blocks." in n,
            )  # fmt: skip
        set_rate(optimizer, lr)
        optimizer.step()
    for n, p in model.named_parameters():
        if name == "muon" and ".blocks." in n and p.ndim > 1:
            error = (p.detach() - wanted[n]).norm() / (wanted[n] - start[n]).norm()
            assert error < 0.02, n
        else:
            torch.testing.assert_close(p.detach(), wanted[n], rtol=1e-9, atol=1e-12, msg=n)


@pytest.mark.parametrize("name", ["sgd", "adam", "adamw"])
def test_one_kernel_computes_what_many_do(name):
    """Fused and plain updates of torch, float64."""
    results = []
    for fused in (True, False):
        model = small_vit()
        optimizer = build_optimizer(model, settings(name), fused=fused)
        assert bool(optimizer.defaults["fused"]) == fused
        for step in range(3):
            torch.manual_seed(step)
            for p in model.parameters():
                p.grad = torch.randn_like(p)
            optimizer.step()
        results.append(model.state_dict())
    for key, value in results[0].items():
        torch.testing.assert_close(value, results[1][key], rtol=1e-9, atol=1e-12)


@pytest.mark.skipif(not hasattr(torch.optim, "Muon"), reason="torch has it since 2.9")
def test_a_muon_step_is_torchs():
    """Of a matrix and of the flattened kernels of a convolution, float32 at four rates."""
    torch.manual_seed(0)
    net = nn.Sequential(nn.Conv2d(4, 24, 3), nn.Linear(16, 48))
    flat = [nn.Parameter(module.weight.detach().flatten(1).clone()) for module in net]
    before = [p.detach().clone() for p in flat]
    ours = build_optimizer(net, settings("muon"))
    torchs = torch.optim.Muon(
        flat, weight_decay=DECAY, momentum=MOMENTUM, adjust_lr_fn="match_rms_adamw"
    )
    for lr in RATES:
        for module, weight in zip(net, flat, strict=True):
            weight.grad = torch.randn_like(weight)
            module.weight.grad = weight.grad.view_as(module.weight).clone()
        set_rate(ours, lr)
        torchs.param_groups[0]["lr"] = lr
        ours.step()
        torchs.step()
    for module, weight, old in zip(net, flat, before, strict=True):
        moved = (weight - old).norm()
        assert (module.weight.flatten(1) - weight).norm() < 0.01 * moved


def test_a_muon_step_is_nearly_orthogonal_and_as_long_as_adamws():
    """Singular values near 0.2 √max(A, B) times the rate, so that elements are near 0.2 of it, as
    AdamW's are where gradients change (arXiv 2502.16982, §2.2); without decay."""
    torch.manual_seed(0)
    net = nn.Sequential(nn.Conv2d(4, 24, 3), nn.Linear(16, 48))
    before = [module.weight.detach().flatten(1).clone() for module in net]
    optimizer = build_optimizer(net, OptimConfig(name="muon", lr=0.1, weight_decay=0.0))
    for module in net:
        module.weight.grad = torch.randn_like(module.weight)
    optimizer.step()
    for module, old in zip(net, before, strict=True):
        step = (module.weight.detach().flatten(1) - old) / 0.1
        values = torch.linalg.svdvals(step) / (0.2 * math.sqrt(max(step.shape)))
        assert values.min() > 0.6 and values.max() < 1.3
        assert float(step.square().mean().sqrt()) == pytest.approx(0.2, rel=0.2)


@pytest.mark.parametrize("name", NAMES)
def test_biases_and_norms_are_not_decayed(name):
    """One update with zero gradient moves decayed weights only."""
    net = nn.Sequential(nn.Linear(3, 3), nn.LayerNorm(3))
    optimizer = build_optimizer(net, OptimConfig(name=name, lr=0.1, weight_decay=0.5))
    before = [p.detach().clone() for p in net.parameters()]
    for p in net.parameters():
        p.grad = torch.zeros_like(p)
    optimizer.step()
    moved = [not torch.equal(p, old) for p, old in zip(net.parameters(), before, strict=True)]
    assert moved == [True, False, False, False]


@pytest.mark.parametrize("name", ["lamb", "lars"])
def test_weights_get_their_own_rates_without_decay_too(name):
    """A hundred times the weight, a hundred times the step."""
    steps = []
    for size in (1, 100):
        net = nn.Linear(4, 4, bias=False).double()
        nn.init.eye_(net.weight).data.mul_(size)
        before = net.weight.detach().clone()
        optimizer = build_optimizer(net, OptimConfig(name=name, weight_decay=0.0))
        net.weight.grad = torch.arange(16.0, dtype=torch.float64).view(4, 4)
        optimizer.step()
        steps.append(net.weight.detach() - before)
    torch.testing.assert_close(steps[1], 100 * steps[0], rtol=1e-6, atol=0)


@pytest.mark.parametrize("name", NAMES)
def test_a_saved_optimizer_goes_on_bit_for_bit(name):
    """Through a file read without pickled code, float32."""
    model = small_vit().float()
    optimizer = build_optimizer(model, settings(name))
    torch.manual_seed(1)
    gradients = [[torch.randn_like(p) for p in model.parameters()] for _ in range(6)]

    def step(net, own, number):
        for p, gradient in zip(net.parameters(), gradients[number], strict=True):
            p.grad = gradient.clone()
        set_rate(own, RATES[number % 4])
        own.step()

    for number in range(3):
        step(model, optimizer, number)
    file = io.BytesIO()
    torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, file)
    file.seek(0)
    saved = torch.load(file, weights_only=True)
    other = small_vit().float()
    resumed = build_optimizer(other, settings(name))
    other.load_state_dict(saved["model"])
    resumed.load_state_dict(saved["optimizer"])
    for number in range(3, 6):
        step(model, optimizer, number)
        step(other, resumed, number)
    for one, two in zip(model.parameters(), other.parameters(), strict=True):
        assert torch.equal(one, two)


class Net(nn.Sequential):
    """Matrices, a norm, and a scalar, which FSDP cannot divide."""

    def __init__(self):
        torch.manual_seed(0)
        super().__init__(nn.Linear(6, 8), nn.LayerNorm(8), nn.GELU(), nn.Linear(8, 4))
        self.scale = nn.Parameter(torch.tensor(0.7))
        self.double()

    def forward(self, x):
        return super().forward(x) * self.scale


def clipped(model, step):
    """The norm of the gradients of a batch that its number makes; then they are clipped."""
    made = torch.Generator().manual_seed(step)
    x = torch.randn(5, 6, generator=made, dtype=torch.float64)
    wanted = torch.randn(5, 4, generator=made, dtype=torch.float64)
    (model(x) - wanted).square().mean().backward()
    return float(clip_gradients(model.parameters(), 0.1, 0.05))


def advance(model, optimizer, steps):
    for step in steps:
        clipped(model, step)
        set_rate(optimizer, 0.01)
        optimizer.step()
        optimizer.zero_grad()


def whole_gradient(p):
    return p.grad.full_tensor() if isinstance(p.grad, DTensor) else p.grad


def on_rank(rank, folder):
    """Two ranks with the same batch: FSDP2 and ZeRO-1 must do what one process does."""
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo", init_method=f"file://{folder}/store", rank=rank, world_size=WORLD,
        timeout=datetime.timedelta(seconds=60),
    )  # fmt: skip
    # One kernel for many gradients, as on a GPU: it takes no mixture of whole and divided ones.
    clip_grad._has_foreach_support = lambda tensors, device: True
    whole = StateDictOptions(full_state_dict=True)
    results = {}
    for name in NAMES:
        alone = Net()
        advance(alone, build_optimizer(alone, settings(name)), range(3))
        divided = Net()
        fully_shard(divided[0])
        fully_shard(divided, ignored_params={divided.scale})
        optimizer = build_optimizer(divided, settings(name))
        advance(divided, optimizer, range(3))
        weights = copy.deepcopy(get_model_state_dict(divided, options=whole))
        state = copy.deepcopy(get_optimizer_state_dict(divided, optimizer, options=whole))
        advance(divided, optimizer, range(3, 5))
        later = get_model_state_dict(divided, options=whole)
        resumed = Net()
        resumed.load_state_dict(weights)
        single = build_optimizer(resumed, settings(name))
        set_optimizer_state_dict(resumed, single, state, options=whole)
        advance(resumed, single, range(3, 5))
        shared = Net()
        kind, own = optimizer_class(settings(name))
        zero = ZeroRedundancyOptimizer(
            parameter_groups(shared, settings(name)), optimizer_class=kind, **own
        )
        advance(shared, zero, range(3))
        results[name] = {
            "alone": alone.state_dict(), "fsdp": weights, "zero": shared.state_dict(),
            "later": later, "resumed": resumed.state_dict(),
        }  # fmt: skip
    clips = []
    for net in (Net(), Net()):
        if clips:  # a scalar and a norm stay whole
            fully_shard(net, ignored_params={net.scale, *net[1].parameters()})
        norm = clipped(net, 0)
        clips.append((norm, {n: whole_gradient(p) for n, p in net.named_parameters()}))
    results["clipped"] = clips
    if rank == 0:
        torch.save(results, f"{folder}/results.pt")
    dist.destroy_process_group()


@pytest.fixture(scope="module")
def ranks(tmp_path_factory):
    folder = tmp_path_factory.mktemp("ranks")
    processes = torch.multiprocessing.spawn(on_rank, (str(folder),), nprocs=WORLD, join=False)
    if not processes.join(timeout=180) and not processes.join(timeout=180):
        for process in processes.processes:
            process.kill()
        raise TimeoutError("ranks that hang")
    return torch.load(folder / "results.pt", weights_only=True)


@pytest.mark.parametrize("name", NAMES)
def test_divided_weights_and_states_move_as_whole_ones(ranks, name):
    """Three steps by FSDP2 and by ZeRO-1 on two ranks, and two more in one process from FSDP's
    state. Muon's bfloat16 products round differently over two ranks."""
    found, near = ranks[name], {"rtol": 0, "atol": 2e-3 if name == "muon" else 1e-8}
    for key, value in found["alone"].items():
        assert torch.equal(found["zero"][key], value)
        torch.testing.assert_close(found["fsdp"][key], value, **near)
        torch.testing.assert_close(found["resumed"][key], found["later"][key], **near)


def test_divided_and_whole_gradients_are_clipped_together(ranks):
    """By value and norm, as in one process; the norm before is that of all of them."""
    (one, gradients), (two, divided) = ranks["clipped"]
    assert two == pytest.approx(one, rel=1e-12) and one > 0.1
    for name, gradient in gradients.items():
        torch.testing.assert_close(divided[name], gradient, rtol=1e-9, atol=1e-12)
