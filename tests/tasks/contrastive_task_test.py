"""Contrastive steps against one graph over all clips, written down from the formulas."""

import pytest
import torch
import torch.nn.functional as F
from steps import plain_step
from torch import nn

from matinee.data.batch import Batch
from matinee.models.base import VideoModel
from matinee.models.dual import DualEncoder
from matinee.models.text import ClipText
from matinee.tasks.config import ContrastiveConfig
from matinee.tasks.contrastive import ContrastiveTask

CLIPS = 8
VALID = torch.tensor([True, True, False, True, True, True, False, True])
TEXTS = ("a red circle", "a dog runs", "", "rain " * 90, "two birds", "a dog runs", "x", "night")
VERBS, NOUNS = 3, 4
SETS = torch.zeros(CLIPS, VERBS + NOUNS)
MEMBERS = [({0}, {0}), ({0, 1}, {1}), ({2}, {3}), ({1}, {1, 2}), ({2}, {3}), ({0, 1}, {1}),
           ({1}, {2}), ({2}, {0, 3})]  # fmt: skip
for row, (verbs, nouns) in enumerate(MEMBERS):
    SETS[row, list(verbs)] = 1
    SETS[row, [VERBS + noun for noun in nouns]] = 1

LOSSES = {
    "info-nce": {},
    "frozen temperature": {"learn_temperature": False},
    "max-margin": {"loss": "max-margin", "margin": 0.3},
    "graded": {"loss": "max-margin", "margin": 0.3, "graded": True},
}


class Pooled(VideoModel):
    """Mean over frames and pixels, then two layers."""

    frames, num_features = 2, 12

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(12, 16), nn.GELU(), nn.Linear(16, 12))

    def embed(self, video_BCTHW):
        return self.layers(video_BCTHW.flatten(1))

    def forward(self, video_BCTHW):
        raise AssertionError("a dual encoder has no classes")


@pytest.fixture(scope="module")
def text():
    """Its table of 49,408 words takes long to fill: once is enough."""
    torch.manual_seed(1)
    return ClipText(width=8, heads=2, layers=1)


def make_task(text, dtype, **settings) -> ContrastiveTask:
    torch.manual_seed(0)
    config = ContrastiveConfig(embed_dim=6, **settings)
    model = DualEncoder(
        Pooled(), text, embed_dim=6, temperature=config.temperature,
        learn_temperature=config.learn_temperature,
    )  # fmt: skip
    model.to(dtype).requires_grad_().zero_grad()
    return ContrastiveTask(model, config, verbs=VERBS)


def make_batch(rows: slice, dtype) -> Batch:
    video = torch.randn(CLIPS, 3, 2, 1, 2, generator=torch.Generator().manual_seed(2))
    return Batch(
        video=video[rows].to(dtype),
        target=SETS[rows].to(dtype),
        valid=VALID[rows],
        index=torch.arange(CLIPS)[rows],
        samples=tuple("abcdefgh")[rows],
        num_valid=int(VALID[rows].sum()),
        texts=TEXTS[rows],
        seeds=torch.arange(CLIPS)[rows],
    )


def run_step(task, parts, dtype):
    size = CLIPS // parts
    batches = iter([make_batch(slice(i, i + size), dtype) for i in range(0, CLIPS, size)])
    return task.gradients(
        plain_step(task.compute, clips=CLIPS, parts=parts, next_batch=lambda: next(batches))
    )


def wanted_loss(task, dtype):
    """Over the valid clips alone, one graph; hinges by a loop over pairs."""
    batch, config = make_batch(slice(0, CLIPS), dtype), task.config
    tokens = task.model.text.tokenize(batch.texts).ids
    video, words = task.model.embed_video(batch.video), task.model.embed_text(tokens)
    kept = VALID.nonzero()[:, 0].tolist()
    similarity = (video @ words.T)[kept][:, kept]
    if config.loss == "info-nce":
        logits = similarity * task.model.logit_scale.exp()
        target = torch.arange(len(kept))
        rows = F.cross_entropy(logits, target, reduction="sum")
        columns = F.cross_entropy(logits.T, target, reduction="sum")
        return (rows + columns) / 2, similarity
    total = torch.zeros((), dtype=dtype)
    for i in range(len(kept)):
        for j in range(len(kept)):
            if i != j:
                gap = config.margin
                if config.graded:
                    gap = gap * (1 - relevancy(kept[i], kept[j]))
                own = similarity[i, i]
                total = total + F.relu(gap - own + similarity[i, j])
                total = total + F.relu(gap - own + similarity[j, i])
    return total / (2 * (len(kept) - 1)), similarity


def relevancy(i, j) -> float:
    iou = [len(a & b) / len(a | b) for a, b in zip(MEMBERS[i], MEMBERS[j], strict=True)]
    return sum(iou) / 2


@pytest.mark.parametrize("name", LOSSES)
@pytest.mark.parametrize("parts", [1, 2, 4])
@pytest.mark.parametrize(("dtype", "limit"), [(torch.float32, 1e-5), (torch.float64, 1e-9)])
def test_a_step_in_parts_has_the_gradient_of_one_batch(text, name, parts, dtype, limit):
    """Of every parameter, invalid clips among them; the third part is half invalid."""
    task = make_task(text, dtype, **LOSSES[name])
    loss, similarity = wanted_loss(task, dtype)
    (loss / CLIPS).backward()
    wanted = {k: p.grad.clone() for k, p in task.named_parameters() if p.grad is not None}
    task.zero_grad()
    outcome = run_step(task, parts, dtype)
    assert not outcome.loss.requires_grad
    assert outcome.loss.item() == pytest.approx(loss.item(), rel=limit)
    found = {k: p.grad for k, p in task.named_parameters() if p.grad is not None}
    assert set(found) >= set(wanted) and any("embedding" in name for name in found)
    for key, gradient in found.items():
        if key not in wanted:  # the temperature, of a loss without
            assert not gradient.any()
            continue
        if float(wanted[key].norm()) < 1e-12:
            assert float(gradient.norm()) < limit, key
        else:
            assert float((gradient - wanted[key]).norm() / wanted[key].norm()) < limit, key
    nearest = similarity.argmax(dim=1) == torch.arange(6)
    assert int(outcome.sums["top1"]) == int(nearest.sum())
    assert int(outcome.sums["cut"]) == 1
    assert outcome.clips == 6 and outcome.samples == tuple("abcdefgh")


def test_parts_that_each_had_their_own_loss_would_differ(text):
    """Or the test above could not tell cached features from plain accumulation."""
    task = make_task(text, torch.float64)
    run_step(task, 1, torch.float64)
    whole = task.model.video_projection.grad.clone()
    task.zero_grad()
    for start in range(0, CLIPS, 2):
        outcome = task(make_batch(slice(start, start + 2), torch.float64))
        (outcome.loss / CLIPS).backward()
    assert float((task.model.video_projection.grad - whole).norm() / whole.norm()) > 0.1


def test_what_an_invalid_clip_shows_and_says_changes_nothing(text):
    task = make_task(text, torch.float64)
    found = []
    for change in (False, True):
        batch = make_batch(slice(0, CLIPS), torch.float64)
        if change:
            batch.video[~VALID] += 1
            texts = [t if VALID[i] else "something else" for i, t in enumerate(TEXTS)]
            batch = Batch(**{**vars(batch), "texts": tuple(texts)})
        task.zero_grad()
        task(batch).loss.backward()
        found.append([p.grad.clone() for p in task.parameters()])
    for before, after in zip(*found, strict=True):
        torch.testing.assert_close(before, after, rtol=1e-12, atol=1e-15)


def test_relevancy_is_the_mean_iou_of_verbs_and_nouns(text):
    task = make_task(text, torch.float32)
    found = task.relevancy(SETS)
    for i in range(CLIPS):
        for j in range(CLIPS):
            assert float(found[i, j]) == pytest.approx(relevancy(i, j), abs=1e-6)
    assert torch.equal(found.diagonal(), torch.ones(CLIPS))


def test_the_temperature_stays_within_clips_limit(text):
    """It is a parameter, so a step can push it beyond; the next loss brings it back."""
    task = make_task(text, torch.float32, temperature=0.01)
    with torch.no_grad():
        task.model.logit_scale += 1
    run_step(task, 2, torch.float32)
    assert float(task.model.logit_scale.exp().detach()) == pytest.approx(100, rel=1e-5)
