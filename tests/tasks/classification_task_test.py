"""The classification loss against torch's own losses in float64."""

from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from matinee.data.batch import Batch
from matinee.data.mix import plan_mix
from matinee.errors import ConfigError
from matinee.tasks.classification import ClassificationTask
from matinee.tasks.config import ClassificationConfig

CLIPS, CLASSES = 6, 4
VALID = torch.tensor([True, True, False, True, True, True])
LABELS = torch.tensor([0, 3, 1, 2, 3, 1])
SEVERAL = torch.tensor(
    [[1, 0, 0, 1], [0, 1, 0, 0], [1, 1, 1, 1], [0, 0, 1, 0], [0, 1, 1, 0], [1, 0, 0, 0]]
).float()


class Last(nn.Module):
    """Logits by a linear layer; keeps what it was given and what it said."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layer = nn.Linear(3 * 2 * 4 * 6, CLASSES)

    def forward(self, video_BCTHW):
        self.video = video_BCTHW.detach()
        logits = self.layer(video_BCTHW.flatten(1))
        self.logits = logits.detach().double()
        return logits


def make_batch(target=LABELS, *, valid=VALID, first_seed=7) -> Batch:
    generator = torch.Generator().manual_seed(1)
    return Batch(
        video=torch.randn(CLIPS, 3, 2, 4, 6, generator=generator),
        target=target,
        valid=valid,
        index=torch.arange(CLIPS),
        samples=tuple("abcdef"),
        num_valid=int(valid.sum()),
        texts=("",) * CLIPS,
        seeds=torch.arange(first_seed, first_seed + CLIPS),
    )


def make_task(**settings) -> ClassificationTask:
    return ClassificationTask(Last(), ClassificationConfig(**settings))


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_the_loss_is_torchs_cross_entropy_over_the_valid_clips(smoothing):
    task = make_task(label_smoothing=smoothing)
    outcome = task(make_batch())
    logits = task.model.logits
    wanted = F.cross_entropy(
        logits[VALID], LABELS[VALID], label_smoothing=smoothing, reduction="sum"
    )
    assert outcome.loss.item() == pytest.approx(float(wanted), rel=1e-6)
    right = (logits.argmax(1) == LABELS)[VALID].sum()
    assert int(outcome.sums["top1"]) == int(right)


@pytest.mark.parametrize("smoothing", [0.0, 0.2])
def test_several_labels_are_each_a_question_of_yes_or_no(smoothing):
    """Smoothed towards not knowing, ½."""
    task = make_task(labels="multi", label_smoothing=smoothing)
    outcome = task(make_batch(SEVERAL))
    logits = task.model.logits
    targets = SEVERAL.double() * (1 - smoothing) + smoothing / 2
    each = F.binary_cross_entropy_with_logits(logits, targets, reduction="none").mean(1)
    assert outcome.loss.item() == pytest.approx(float(each[VALID].sum()), rel=1e-6)
    best = logits.argmax(1).tolist()
    right = sum(bool(SEVERAL[i, k]) for i, k in enumerate(best) if VALID[i])
    assert int(outcome.sums["top1"]) == right


@pytest.mark.parametrize("labels", ["single", "multi"])
@pytest.mark.parametrize(
    "settings", [{"mixup": 0.8}, {"cutmix": 1.0}, {"mixup": 0.8, "cutmix": 1.0}]
)
@pytest.mark.parametrize("seed", [7, 8])
def test_mixed_clips_have_mixed_targets(labels, settings, seed):
    """torch's cross-entropy with probabilities as targets, made by a loop from whose pixels the
    network saw. The third clip is invalid, so that the fourth is mixed with nobody."""
    task = make_task(labels=labels, label_smoothing=0.1, **settings)
    batch = make_batch(SEVERAL if labels == "multi" else LABELS, first_seed=seed)
    outcome = task(batch)
    pairs = plan_mix(batch.seeds.tolist(), **({"mixup": 0.0, "cutmix": 0.0} | settings))
    own = SEVERAL if labels == "multi" else torch.eye(CLASSES)[LABELS]
    targets = torch.zeros(CLIPS, CLASSES, dtype=torch.float64)
    for i in range(CLIPS):
        pair, j = pairs[i // 2], i ^ 1
        if not (VALID[i] and VALID[j]):
            keep = 1.0
        elif pair.box is None:
            keep = pair.keep
        else:
            keep = float((task.model.video[i] == batch.video[i]).float().mean())
            pixels = task.model.video[i], batch.video[i], batch.video[j]
            assert all((pixels[0] == pixels[1]) | (pixels[0] == pixels[2]) for pixels in [
                [t.flatten()[k] for t in pixels] for k in range(0, 144, 7)
            ])  # fmt: skip
        targets[i] = keep * own[i].double() + (1 - keep) * own[j].double()
    logits = task.model.logits
    if labels == "single":
        each = F.cross_entropy(logits, targets, label_smoothing=0.1, reduction="none")
    else:
        smooth = targets * 0.9 + 0.05
        each = F.binary_cross_entropy_with_logits(logits, smooth, reduction="none").mean(1)
    assert outcome.loss.item() == pytest.approx(float(each[VALID].sum()), rel=1e-5)


def test_mixed_clips_count_by_the_label_with_the_larger_part():
    """Clips of one label each: the network names it, or the partner's."""
    task = make_task(mixup=0.8)
    task(batch := make_batch(first_seed=9))
    pairs = plan_mix(batch.seeds.tolist(), mixup=0.8, cutmix=0)
    larger = [
        int(LABELS[i ^ 1] if i // 2 != 1 and pairs[i // 2].keep < 0.5 else LABELS[i])
        for i in range(CLIPS)
    ]
    assert larger != LABELS.tolist()  # so that the two can be told apart
    wanted = sum(int(task.model.logits[i].argmax()) == larger[i] for i in range(CLIPS) if VALID[i])
    assert int(task(batch).sums["top1"]) == wanted
    always = nn.Sequential(nn.Flatten(), Constant(torch.eye(CLASSES)[larger]))
    assert int(ClassificationTask(always, task.config)(batch).sums["top1"]) == 5


@pytest.mark.parametrize("settings", [{}, {"mixup": 0.8}, {"cutmix": 1.0}])
def test_micro_batches_of_pairs_add_up_to_one_batch(settings):
    """Loss, hits and gradient of 1×6 and 3×2, in float64."""
    found = []
    for size in (6, 2):
        task = make_task(label_smoothing=0.1, **settings).double()
        batch = make_batch()
        loss, hits = torch.zeros((), dtype=torch.float64), 0
        for rows in (slice(begin, begin + size) for begin in range(0, CLIPS, size)):
            part = replace(
                batch, video=batch.video[rows].double(), target=batch.target[rows],
                valid=batch.valid[rows], seeds=batch.seeds[rows], samples=batch.samples[rows],
            )  # fmt: skip
            outcome = task(part)
            outcome.loss.backward()
            loss, hits = loss + outcome.loss.detach(), hits + int(outcome.sums["top1"])
        found.append((loss, task.model.layer.weight.grad, torch.tensor(hits)))
    for whole, split in zip(*found, strict=True):
        torch.testing.assert_close(whole, split, rtol=1e-12, atol=1e-12)


def test_an_odd_batch_cannot_be_mixed():
    """But be trained on without mixing, and be evaluated."""
    odd = replace(make_batch(), seeds=torch.arange(5))
    with pytest.raises(ConfigError, match=r"a batch of 5 has no such pairs"):
        make_task(cutmix=1.0)(odd)
    make_task()(odd)
    make_task(cutmix=1.0).eval()(odd)


class Constant(nn.Module):
    def __init__(self, logits) -> None:
        super().__init__()
        self.logits = logits

    def forward(self, x):
        return self.logits + 0 * x.sum()


@pytest.mark.parametrize("settings", [{}, {"mixup": 0.8}, {"cutmix": 1.0}])
@pytest.mark.parametrize("seed", range(4))
def test_what_an_invalid_clip_holds_changes_nothing(settings, seed):
    """Neither loss nor gradient, as anchor or as partner."""
    found = []
    for noise in (0.0, 5.0):
        task = make_task(**settings)
        batch = make_batch(first_seed=seed)
        batch.video[2] += noise
        outcome = task(replace(batch, target=LABELS + (noise > 0) * (~VALID).int()))
        outcome.loss.backward()
        found.append((outcome.loss.detach(), task.model.layer.weight.grad, outcome.sums["top1"]))
    for before, after in zip(*found, strict=True):
        assert torch.equal(before, after)


def test_evaluation_mixes_nothing():
    task = make_task(mixup=0.8, cutmix=1.0).eval()
    batch = make_batch()
    outcome = task(batch)
    assert torch.equal(task.model.video, batch.video)
    wanted = F.cross_entropy(task.model.logits[VALID], LABELS[VALID], reduction="sum")
    assert outcome.loss.item() == pytest.approx(float(wanted), rel=1e-6)


def test_the_mixture_follows_from_the_batchs_seed():
    """Not from torch's or numpy's generators."""
    task = make_task(mixup=0.8, cutmix=1.0)
    seen = []
    for state, seed in ((0, 7), (1, 7), (1, 8)):
        torch.manual_seed(state)
        task(make_batch(first_seed=seed))
        seen.append(task.model.video)
    assert torch.equal(seen[0], seen[1]) and not torch.equal(seen[1], seen[2])


def test_probabilities_sum_to_one_unless_there_are_several_labels():
    logits = torch.randn(3, CLASSES, dtype=torch.float64)
    single = make_task().probabilities(logits)
    torch.testing.assert_close(single, logits.exp() / logits.exp().sum(1, keepdim=True))
    several = make_task(labels="multi").probabilities(logits)
    torch.testing.assert_close(several, 1 / (1 + (-logits).exp()))
