"""Mixup and CutMix against loops over clips, frames and pixels, and against Beta itself."""

import numpy as np
import pytest
import torch
from scipy import stats

from matinee.data.mix import MixPlan, mix, plan_mix

VALID = torch.tensor([True, True, False, True, True])


def plans(count: int, **settings) -> list[MixPlan]:
    made = [plan_mix(seed, 5, **settings) for seed in range(count)]
    assert all(plan is not None for plan in made)
    return made


@pytest.fixture
def video_BCTHW():
    return torch.randn(5, 3, 4, 6, 10, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize("valid", [VALID, torch.ones(5, dtype=torch.bool)])
def test_mixup_blends_every_pixel_alike(video_BCTHW, valid):
    plan = MixPlan((3, 2, 0, 1, 4), 0.3, None)
    mixed, partner, keep = mix(video_BCTHW, plan, valid)
    assert partner.tolist() == [3, 2, 0, 1, 4]
    for i, j in enumerate(plan.partner):
        own = 0.3 if valid[j] else 1.0
        wanted = own * video_BCTHW[i].double() + (1 - own) * video_BCTHW[j].double()
        torch.testing.assert_close(mixed[i].double(), wanted, rtol=0, atol=1e-6)
        assert float(keep[i]) == pytest.approx(own)


@pytest.mark.parametrize("seed", range(8))
def test_a_pasted_box_is_the_same_in_all_frames_and_its_part_of_pixels_is_the_labels(seed):
    """Clip i shows nothing but i: whose a pixel is can be read from it."""
    number = torch.arange(5.0).view(5, 1, 1, 1, 1)
    video = number.expand(5, 3, 4, 6, 10).contiguous()
    plan = plan_mix(seed, 5, mixup=0, cutmix=1.0)
    mixed, partner, keep = mix(video, plan, VALID)
    assert torch.equal(video, number.expand_as(video))  # the input is left alone
    for i, j in enumerate(partner.tolist()):
        picture = mixed[i, 0, 0]
        assert torch.equal(mixed[i], picture.expand_as(mixed[i]))
        pasted = (picture != i).nonzero().tolist()
        assert all(picture[y, x] == j for y, x in pasted)
        if i != j:
            assert float(keep[i]) == pytest.approx(1 - len(pasted) / 60)
            assert bool(VALID[j]) or not pasted
        if pasted:  # a box: all of its rows and columns
            rows, columns = (sorted(set(place)) for place in zip(*pasted, strict=True))
            assert len(pasted) == len(rows) * len(columns)
            assert rows[-1] - rows[0] + 1 == len(rows)
            assert columns[-1] - columns[0] + 1 == len(columns)


def test_weights_of_mixup_follow_beta():
    """Moments by their formulas, and the whole distribution by Kolmogorov and Smirnov."""
    keep = np.array([plan.keep for plan in plans(2000, mixup=0.8, cutmix=0)])
    assert keep.mean() == pytest.approx(0.5, abs=0.03)
    assert keep.var() == pytest.approx(1 / (4 * (2 * 0.8 + 1)), rel=0.06)
    assert stats.kstest(keep, stats.beta(0.8, 0.8).cdf).pvalue > 0.01


def test_boxes_of_cutmix_have_the_drawn_area_unless_the_border_cuts_them():
    """And their middles are even over the picture."""
    made = plans(2000, mixup=0, cutmix=1.0)
    inside = 0
    for plan in made:
        top, bottom, left, right = plan.box
        assert 0 <= top <= bottom <= 1 and 0 <= left <= right <= 1
        area = (bottom - top) * (right - left)
        assert area <= 1 - plan.keep + 1e-9
        if min(top, left) > 0 and max(bottom, right) < 1:
            assert area == pytest.approx(1 - plan.keep)
            inside += 1
    assert inside > 100
    keep = [plan.keep for plan in made]
    assert stats.kstest(keep, stats.uniform.cdf).pvalue > 0.01  # Beta(1, 1)
    # Of narrow boxes the middle can be told; its column is as likely everywhere.
    middles = [
        (p.box[2] + p.box[3]) / 2 for p in made if p.box[2] > 0 and p.box[3] < 1 and p.keep > 0.99
    ]
    assert stats.kstest(middles, stats.uniform.cdf).pvalue > 0.01


def test_partners_are_even_and_everyone_is_one():
    made = plans(1000, mixup=0.8, cutmix=1.0)
    assert all(sorted(plan.partner) == list(range(5)) for plan in made)
    counts = np.zeros((5, 5))
    for plan in made:
        counts[np.arange(5), plan.partner] += 1
    assert stats.chisquare(counts.ravel()).pvalue > 0.01


def test_with_both_one_is_taken_at_even_odds():
    """Each with its own a: of Mixup's weights those near ½ are then rare."""
    made = plans(2000, mixup=0.1, cutmix=50.0)
    cut = [plan for plan in made if plan.box is not None]
    assert stats.binomtest(len(cut), 2000, 0.5).pvalue > 0.01
    assert all(0.2 < plan.keep < 0.8 for plan in cut)
    blended = [plan.keep for plan in made if plan.box is None]
    assert stats.kstest(blended, stats.beta(0.1, 0.1).cdf).pvalue > 0.01


def test_a_plan_depends_on_its_seed_alone():
    np.random.seed(0)
    torch.manual_seed(0)
    before = np.random.get_state()[1].copy(), torch.get_rng_state()
    first = plan_mix(3, 5, mixup=0.8, cutmix=1.0)
    assert np.array_equal(np.random.get_state()[1], before[0])
    assert torch.equal(torch.get_rng_state(), before[1])
    np.random.seed(1)
    assert plan_mix(3, 5, mixup=0.8, cutmix=1.0) == first
    assert len({plan_mix(seed, 5, mixup=0.8, cutmix=1.0) for seed in range(50)}) == 50


def test_without_either_nothing_is_mixed():
    assert plan_mix(0, 5, mixup=0, cutmix=0) is None
