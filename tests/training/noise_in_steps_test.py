"""The noise scale that a run logs, against gradients taken by hand."""

from contextlib import nullcontext

import pytest
import torch
import torch.nn.functional as F

from matinee.data.batch import Batch
from matinee.tasks.classification import ClassificationTask
from matinee.training.config import OptimConfig
from matinee.training.optim.build import build_optimizer
from matinee.training.optim.noise import NoiseScale
from matinee.training.parallel.ranks import Ranks
from matinee.training.parallel.wrap import Wrapped
from matinee.training.step import StepRunner

PARTS, MICRO, STEPS = 4, 3, 6


def batches():
    generator = torch.Generator().manual_seed(1)
    for number in range(STEPS * PARTS):
        yield Batch(
            video=torch.randn(MICRO, 3, 1, 2, 2, generator=generator, dtype=torch.float64),
            target=torch.randint(3, (MICRO,), generator=generator),
            valid=torch.ones(MICRO, dtype=torch.bool), index=torch.arange(MICRO),
            samples=tuple("abc"), num_valid=MICRO, texts=("",) * MICRO,
            seeds=torch.arange(MICRO) + number,
        )  # fmt: skip


def network():
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(12, 3)).double()


@pytest.mark.parametrize("clip_norm", [None, 0.1])
def test_small_and_big_gradients_are_those_of_the_first_part_and_the_whole(clip_norm):
    """Before the limit of the norm; the formula of arXiv 1812.06162, appendix A, by hand."""
    net, config = network(), OptimConfig(lr=0.05)
    task, alone = ClassificationTask(net), Ranks(0, 1, 1, torch.device("cpu"))
    noise = NoiseScale(0.5)
    runner = StepRunner(
        task, build_optimizer(net, config), Wrapped(task.compute, lambda _: nullcontext()), alone,
        parts=PARTS, seed=0, clip_norm=clip_norm, noise=noise,
    )  # fmt: skip
    stream, by_hand = batches(), list(batches())
    traces, signals = [], []
    for step in range(STEPS):
        own = by_hand[step * PARTS : (step + 1) * PARTS]
        squares = []
        for some in (own[:1], own):
            clips = torch.cat([b.video for b in some])
            loss = F.cross_entropy(net(clips), torch.cat([b.target for b in some]))
            gradient = torch.autograd.grad(loss, list(net.parameters()))
            squares.append(sum(float((g**2).sum()) for g in gradient))
        small, big = squares
        b, n = MICRO, MICRO * PARTS
        signals.append((n * big - b * small) / (n - b))
        traces.append((small - big) / (1 / b - 1 / n))
        runner(stream, clips=n, number=step, lr=0.05)
    weights = [0.5 ** (STEPS - 1 - i) for i in range(STEPS)]
    trace = sum(w * t for w, t in zip(weights, traces, strict=True))
    signal = sum(w * s for w, s in zip(weights, signals, strict=True))
    assert float(noise.value()) == pytest.approx(trace / signal, rel=1e-5)
