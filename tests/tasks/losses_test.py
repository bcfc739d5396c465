"""Contrastive losses against open_clip's, torch's and plain loops."""

import math

import open_clip
import pytest
import torch
import torch.nn.functional as F

from matinee.tasks.losses import info_nce, max_margin


def unit(rows: int, seed: int, dtype=torch.float64) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return F.normalize(torch.randn(rows, 5, generator=generator, dtype=dtype), dim=1)


VIDEO, TEXT = unit(6, 0), unit(6, 1)
VALID = torch.tensor([True, False, True, True, False, True])
RELEVANCY = torch.rand(6, 6, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
RELEVANCY.fill_diagonal_(1)  # not symmetric: video i, text j


def looped_info_nce(scale: float) -> list[float]:
    """By exp and log alone, over the valid clips."""
    rows = [i for i in range(6) if VALID[i]]
    s = [[scale * float(VIDEO[i] @ TEXT[j]) for j in range(6)] for i in range(6)]
    values = [0.0] * 6
    for i in rows:
        to_text = -math.log(math.exp(s[i][i]) / sum(math.exp(s[i][j]) for j in rows))
        to_video = -math.log(math.exp(s[i][i]) / sum(math.exp(s[j][i]) for j in rows))
        values[i] = (to_text + to_video) / 2
    return values


def looped_max_margin(margin: float, graded: bool) -> list[float]:
    rows = [i for i in range(6) if VALID[i]]
    s = [[float(VIDEO[i] @ TEXT[j]) for j in range(6)] for i in range(6)]
    values = [0.0] * 6
    for i in rows:
        terms = []
        for j in rows:
            if j != i:
                text_j = margin * (1 - float(RELEVANCY[i, j]) if graded else 1)
                video_j = margin * (1 - float(RELEVANCY[j, i]) if graded else 1)
                terms += [max(0, text_j - s[i][i] + s[i][j]), max(0, video_j - s[i][i] + s[j][i])]
        values[i] = sum(terms) / len(terms)
    return values


def test_info_nce_is_open_clips_loss():
    ours = info_nce(VIDEO, TEXT, torch.tensor(14.0, dtype=torch.float64)).mean()
    wanted = open_clip.ClipLoss()(VIDEO, TEXT, torch.tensor(14.0, dtype=torch.float64))
    torch.testing.assert_close(ours, wanted, rtol=1e-12, atol=0)


def test_info_nce_leaves_invalid_clips_out_on_both_sides():
    ours = info_nce(VIDEO, TEXT, 3.0, VALID)
    assert ours.tolist() == pytest.approx(looped_info_nce(3.0), rel=1e-12, abs=0)


def test_max_margin_is_the_mean_hinge_over_all_wrong_pairs():
    """torch's own margin_ranking_loss on every pair that is none, in both directions."""
    s = VIDEO @ TEXT.T
    off = ~torch.eye(6, dtype=torch.bool)
    own = s.diagonal()[:, None].expand(6, 6)
    wrong = torch.cat([s[off], s.T[off]])
    wanted = F.margin_ranking_loss(
        torch.cat([own[off], own[off]]), wrong, torch.ones_like(wrong), margin=0.2
    )
    torch.testing.assert_close(max_margin(VIDEO, TEXT).mean(), wanted, rtol=1e-12, atol=0)


@pytest.mark.parametrize("graded", [False, True])
def test_max_margin_leaves_invalid_clips_out_and_grades_margins(graded):
    ours = max_margin(VIDEO, TEXT, RELEVANCY if graded else None, VALID, margin=0.7)
    assert ours.tolist() == pytest.approx(looped_max_margin(0.7, graded), rel=1e-12, abs=0)


def test_an_equally_relevant_pair_may_be_as_similar_as_the_own_one():
    """Two clips with one caption, margin 0 between them: nothing to push apart."""
    same = unit(1, 3).expand(2, 5)
    assert max_margin(same, same, torch.ones(2, 2)).tolist() == [0, 0]
    assert max_margin(same, same).tolist() == pytest.approx([0.2, 0.2])


@pytest.mark.parametrize(
    "loss",
    [
        lambda *a, **k: info_nce(a[0], a[1], 5.0, *a[2:], **k),
        lambda *a, **k: max_margin(a[0], a[1], RELEVANCY, *a[2:], **k),
    ],
)
def test_losses_of_some_rows_are_those_of_the_whole(loss):
    for valid in (None, VALID):
        whole = loss(VIDEO, TEXT, valid)
        parts = [loss(VIDEO, TEXT, valid, rows=slice(i, i + 2)) for i in (0, 2, 4)]
        torch.testing.assert_close(torch.cat(parts), whole, rtol=1e-12, atol=0)


@pytest.mark.parametrize("count", [0, 1])
def test_without_negatives_loss_and_gradient_are_zero(count):
    """No valid clip, or a single one: nothing to learn, and no NaN on the way."""
    video, text = VIDEO.clone().requires_grad_(), TEXT.clone().requires_grad_()
    scale = torch.tensor(100.0, dtype=torch.float64, requires_grad=True)
    valid = torch.arange(6) < count
    with torch.autograd.set_detect_anomaly(True):
        each = info_nce(video, text, scale, valid) + max_margin(video, text, None, valid)
        total = each.sum()
        total.backward()
    assert float(total.detach()) == 0
    for tensor in (video, text, scale):
        assert torch.equal(tensor.grad, torch.zeros_like(tensor))


def test_gradients_are_right_numerically():
    """Central differences, with invalid clips and at a margin where no hinge is at its corner."""
    video, text = VIDEO.clone().requires_grad_(), TEXT.clone().requires_grad_()
    scale = torch.tensor(3.0, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda v, t, s: info_nce(v, t, s, VALID), (video, text, scale))
    assert torch.autograd.gradcheck(
        lambda v, t: max_margin(v, t, RELEVANCY, VALID, margin=0.7), (video, text)
    )


def test_similarities_stay_float32_under_autocast():
    """bfloat16 similarities times 100 would be off by tenths."""
    video, text = unit(64, 4, torch.float32), unit(64, 5, torch.float32)
    with torch.autocast("cpu", torch.bfloat16):
        ours = info_nce(video, text, 100.0)
    wanted = info_nce(video.double(), text.double(), 100.0)
    assert ours.dtype == torch.float32
    torch.testing.assert_close(ours.double(), wanted, rtol=1e-4, atol=1e-4)
