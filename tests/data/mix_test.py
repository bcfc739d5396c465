"""Mixup and CutMix in pairs, against loops over clips and pixels, and against Beta itself."""

import numpy as np
import pytest
import torch
from scipy import stats
from timm.data import mixup as timm_mixup
from timm.data.mixup import Mixup

from matinee.data.mix import PairMix, check_pairs, mix, plan_mix, swap_neighbours
from matinee.errors import ConfigError

VALID = torch.tensor([True, True, False, True, True, True])
ALL = torch.ones(6, dtype=torch.bool)
BOTH = {"mixup": 0.8, "cutmix": 1.0}


def plans(count: int, **settings) -> list[PairMix]:
    return list(plan_mix(range(2 * count), **settings))


@pytest.fixture
def video_BCTHW():
    generator = torch.Generator().manual_seed(0)
    return torch.randn(6, 3, 4, 6, 10, generator=generator, dtype=torch.float64)


@pytest.mark.parametrize("valid", [VALID, ALL])
def test_each_pair_is_mixed_as_its_own_numbers_say(video_BCTHW, valid):
    """Blend, paste, blend: pixel by pixel, in float64; both clips of a pair keep the same part."""
    pairs = (PairMix(0.3, None), PairMix(0.5, (0.2, 0.7, 0.1, 0.6)), PairMix(0.9, None))
    before = video_BCTHW.clone()
    mixed, keep = mix(video_BCTHW, pairs, valid)
    assert torch.equal(video_BCTHW, before)  # the input is left alone
    rows, columns = range(1, 4), range(1, 6)  # 0.2 and 0.7 of 6, 0.1 and 0.6 of 10
    for i in range(6):
        own, other, pair = before[i].numpy(), before[i ^ 1].numpy(), pairs[i // 2]
        wanted = own.copy()
        part = 1.0
        if valid[i] and valid[i ^ 1] and pair.box is None:
            wanted, part = pair.keep * own + (1 - pair.keep) * other, pair.keep
        elif valid[i] and valid[i ^ 1]:
            for y in rows:
                for x in columns:
                    wanted[:, :, y, x] = other[:, :, y, x]
            part = 1 - len(rows) * len(columns) / 60
        np.testing.assert_allclose(mixed[i].numpy(), wanted, rtol=0, atol=1e-14)
        assert float(keep[i]) == pytest.approx(part, abs=1e-15)


@pytest.mark.parametrize("seed", range(8))
def test_a_pasted_box_is_the_same_in_all_frames_and_its_part_of_pixels_is_the_labels(seed):
    """Clip i shows nothing but i: whose a pixel is can be read from it, exactly."""
    video = torch.arange(6.0).view(6, 1, 1, 1, 1).expand(6, 3, 4, 6, 10).contiguous()
    mixed, keep = mix(video, plan_mix(range(seed, seed + 6), mixup=0, cutmix=1.0), VALID)
    for i in range(6):
        picture = mixed[i, 0, 0]
        assert torch.equal(mixed[i], picture.expand_as(mixed[i]))
        pasted = (picture != i).nonzero().tolist()
        assert all(picture[y, x] == i ^ 1 for y, x in pasted)
        assert float(keep[i]) == pytest.approx(1 - len(pasted) / 60)
        assert i not in (2, 3) or not pasted  # clip 2 is invalid
        if pasted:  # a box: all of its rows and columns
            rows, columns = (sorted(set(place)) for place in zip(*pasted, strict=True))
            assert len(pasted) == len(rows) * len(columns)
            assert rows[-1] - rows[0] + 1 == len(rows)
            assert columns[-1] - columns[0] + 1 == len(columns)


@pytest.mark.parametrize("size", [2, 4])
@pytest.mark.parametrize("settings", [{"mixup": 0.8, "cutmix": 0}, {"mixup": 0, "cutmix": 1}, BOTH])
def test_any_split_into_even_batches_gives_the_same_clips(settings, size):
    """1×8 and 4×2, 2×4: bit for bit, weights and swapped neighbours too; one clip is invalid."""
    video = torch.randn(8, 3, 2, 6, 10, generator=torch.Generator().manual_seed(1))
    seeds = np.random.default_rng(0).integers(2**62, size=8)
    valid = torch.arange(8) != 5

    def mixed(rows: slice) -> tuple[torch.Tensor, ...]:
        pairs = plan_mix(seeds[rows], **settings)
        return (*mix(video[rows], pairs, valid[rows]), swap_neighbours(video[rows]))

    parts = [mixed(slice(begin, begin + size)) for begin in range(0, 8, size)]
    for whole, split in zip(mixed(slice(0, 8)), zip(*parts, strict=True), strict=True):
        assert torch.equal(whole, torch.cat(split))


def test_neighbours_change_places():
    assert swap_neighbours(torch.arange(12).view(6, 2))[:, 0].tolist() == [2, 0, 6, 4, 10, 8]


@pytest.mark.parametrize(("clips", "crops"), [(5, 1), (1, 1), (6, 2), (2, 2), (12, 4)])
def test_batches_that_are_not_made_of_pairs_are_refused(clips, crops):
    """With the settings that decide how many there are."""
    with pytest.raises(ConfigError, match=rf"a batch of {clips} .*a multiple of {2 * crops}"):
        check_pairs(clips, crops=crops)


def test_an_odd_batch_is_refused():
    check_pairs(8, crops=4)
    with pytest.raises(ConfigError, match=r"--optim\.accumulate"):
        plan_mix(range(5), **BOTH)


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


def test_with_both_each_pair_takes_one_at_even_odds():
    """Each with its own a: of Mixup's weights those near ½ are then rare."""
    made = plans(2000, mixup=0.1, cutmix=50.0)
    cut = [plan for plan in made if plan.box is not None]
    assert stats.binomtest(len(cut), 2000, 0.5).pvalue > 0.01
    assert all(0.2 < plan.keep < 0.8 for plan in cut)
    blended = [plan.keep for plan in made if plan.box is None]
    assert stats.kstest(blended, stats.beta(0.1, 0.1).cdf).pvalue > 0.01


def test_pairs_are_mixed_and_cut_as_often_as_asked():
    """And what is left alone keeps its label whole."""
    made = plans(2000, **BOTH, probability=0.3, cutmix_share=0.8)
    mixed = [plan for plan in made if plan != PairMix(1.0, None)]
    assert stats.binomtest(len(mixed), 2000, 0.3).pvalue > 0.01
    assert stats.binomtest(sum(p.box is not None for p in mixed), len(mixed), 0.8).pvalue > 0.01
    video = torch.randn(2, 3, 2, 6, 10)
    same, keep = mix(video, [PairMix(1.0, None)], ALL[:2])
    assert torch.equal(same, video) and keep.tolist() == [1, 1]


@pytest.mark.parametrize("box", [None, (0.2, 0.7, 0.1, 0.6)])
def test_a_pair_is_mixed_as_timm_does(monkeypatch, box):
    """Pictures and targets, with the same weight and box."""
    monkeypatch.setattr(Mixup, "_params_per_batch", lambda self: (0.3, box is not None))
    rows = (1, 4, 1, 6)
    monkeypatch.setattr(
        timm_mixup, "cutmix_bbox_and_lam", lambda shape, lam, **_: (rows, 1 - 3 * 5 / 60)
    )
    video = torch.randn(2, 3, 1, 6, 10, generator=torch.Generator().manual_seed(0))
    theirs, soft = Mixup(label_smoothing=0, num_classes=2)(video[:, :, 0].clone(), torch.arange(2))
    ours, keep = mix(video, [PairMix(0.3, box)], ALL[:2])
    torch.testing.assert_close(ours[:, :, 0], theirs, atol=1e-6, rtol=0)
    torch.testing.assert_close(soft.diag(), keep, atol=1e-6, rtol=0)


def test_a_pairs_plan_depends_on_its_first_clips_seed_alone():
    np.random.seed(0)
    torch.manual_seed(0)
    before = np.random.get_state()[1].copy(), torch.get_rng_state()
    first = plan_mix([3, 8, 5, 1], **BOTH)
    assert np.array_equal(np.random.get_state()[1], before[0])
    assert torch.equal(torch.get_rng_state(), before[1])
    np.random.seed(1)
    assert plan_mix([5, 7], **BOTH) == first[1:]
    assert len(set(plans(50, **BOTH))) == 50
