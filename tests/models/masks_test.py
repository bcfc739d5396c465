"""Masks by property: exact counts, tubes, dependence on the clip's seed alone, evenness."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from matinee.errors import ConfigError
from matinee.models.masks import running_cell_mask, tube_mask

SEEDS = st.lists(st.integers(0, 2**63 - 1), min_size=1, max_size=5)


@given(seeds=SEEDS, steps=st.integers(1, 8), patches=st.integers(2, 200), data=st.data())
def test_every_clip_hides_exactly_the_asked_share_in_tubes(seeds, steps, patches, data):
    hidden = data.draw(st.integers(1, patches - 1))
    mask = tube_mask(steps, patches, hidden / patches, seeds=seeds)
    assert mask.shape == (len(seeds), steps * patches) and mask.dtype == torch.bool
    frames = mask.view(len(seeds), steps, patches)
    assert (frames.sum(dim=2) == hidden).all()
    assert (frames == frames[:, :1]).all()


def test_the_papers_ratio_hides_176_of_196_patches():
    """⌊0.9 · 196⌋, as published; decimals that floats fall short of are not rounded down."""
    assert tube_mask(1, 196, 0.9, seeds=[1]).sum() == 176
    assert tube_mask(1, 100, 0.29, seeds=[1]).sum() == 29


@given(seeds=SEEDS, place=st.integers(0, 4), others=SEEDS)
def test_a_clips_masks_depend_on_its_seed_alone(seeds, place, others):
    """Alone, among others, from a list or a tensor, and on another call: the same."""
    place %= len(seeds)
    for make in (lambda s: tube_mask(4, 64, 0.75, seeds=s), lambda s: cells(4, (8, 8), seeds=s)):
        alone = make([seeds[place]])[0]
        assert torch.equal(make(seeds)[place], alone)
        assert torch.equal(make([*others, seeds[place], *others])[len(others)], alone)
        assert torch.equal(make(torch.tensor(seeds))[place], alone)


def cells(*args, **kwargs):
    return running_cell_mask(*args, **kwargs)


@pytest.mark.parametrize("first", [0, 2**62, 0x1E3779B97F4A7C15])
def test_hidden_patches_are_even_and_independent_over_neighbouring_seeds(first):
    """How often each patch, each pair, and each patch of two successive seeds is hidden."""
    clips, patches, hidden = 8000, 16, 8
    mask = tube_mask(1, patches, 0.5, seeds=range(first, first + clips)).double()
    single = mask.mean(dim=0)
    assert (single - 0.5).abs().max() < 5 * 0.5 / math.sqrt(clips)
    pairs = (mask.T @ mask / clips).numpy()
    wanted = hidden / patches * (hidden - 1) / (patches - 1)
    np.fill_diagonal(pairs, wanted)
    assert np.abs(pairs - wanted).max() < 5 * math.sqrt(wanted * (1 - wanted) / clips)
    following = (mask[1:].T @ mask[:-1] / (clips - 1) - 0.25).abs().max()
    assert following < 5 * math.sqrt(0.25 * 0.75 / clips)


def test_keys_are_splitmix64_of_the_seed_and_the_patch():
    """Against Python's unbounded integers."""
    top = 2**64 - 1

    def mix(z):
        z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9 & top
        z = (z ^ (z >> 27)) * 0x94D049BB133111EB & top
        return z ^ (z >> 31)

    for seed in (0, 1, 12345678901234567, 2**63 - 1):
        keys = [mix(mix(seed) + n * 0x9E3779B97F4A7C15 & top) for n in range(1, 50)]
        signed = [key - 2**64 if key > top // 2 else key for key in keys]
        smallest = sorted(range(49), key=signed.__getitem__)[:20]
        mask = tube_mask(1, 49, 20 / 49, seeds=[seed])[0]
        assert set(mask.nonzero().flatten().tolist()) == set(smallest)


@given(
    seeds=SEEDS,
    steps=st.integers(4, 9),
    half=st.tuples(st.integers(1, 5), st.integers(1, 5)),
    quarters=st.integers(1, 3),
)
def test_every_cell_reconstructs_its_share_and_runs_on(seeds, steps, half, quarters):
    """In each 2×2 cell of each tubelet; within four tubelets every patch as often."""
    rows, columns = 2 * half[0], 2 * half[1]
    mask = running_cell_mask(steps, (rows, columns), quarters / 4, seeds=seeds)
    grid = mask.view(len(seeds), steps, half[0], 2, half[1], 2).permute(0, 1, 2, 4, 3, 5)
    cell = grid.reshape(len(seeds), steps, -1, 4)
    assert (cell.sum(dim=3) == quarters).all()
    assert (cell == cell[:, :, :1]).all()
    assert (cell[:, :4].sum(dim=1) == quarters).all()
    moved = cell[:, 1:] == cell[:, :-1].roll(-1, dims=3)
    assert moved.all()


def test_running_cells_start_anywhere_as_often():
    starts = running_cell_mask(4, (2, 2), 0.25, seeds=range(8000))[:, :4].double().mean(dim=0)
    assert (starts - 0.25).abs().max() < 5 * math.sqrt(0.25 * 0.75 / 8000)


def test_odd_grids_work_when_four_tubelets_make_counts_even():
    mask = running_cell_mask(8, (7, 7), 0.5, seeds=range(20))
    assert (mask.sum(dim=1) == 8 * 49 // 2).all()


@pytest.mark.parametrize(("ratio", "hidden"), [(1.0, 16), (1.5, 24), (0.05, 0), (0.0, 0)])
def test_a_ratio_that_leaves_nothing_to_see_or_to_hide_is_refused(ratio, hidden):
    with pytest.raises(ConfigError, match=f"mask ratio of {ratio} hides {hidden} of the 16"):
        tube_mask(8, 16, ratio, seeds=[0])


@pytest.mark.parametrize(
    ("steps", "grid", "ratio", "words"),
    [
        (8, (14, 14), 0.6, "decode ratio of 0.6: cells"),
        (8, (14, 14), 0.0, "decode ratio of 0.0: cells"),
        (6, (7, 7), 0.5, "7×7 patches in 6 tubelets"),
        (2, (4, 4), 0.5, "2 tubelets .* never reconstructed.* at least 3 tubelets"),
    ],
)
def test_cells_that_cannot_run_are_refused(steps, grid, ratio, words):
    with pytest.raises(ConfigError, match=words):
        running_cell_mask(steps, grid, ratio, seeds=[0])


@given(seeds=SEEDS, ratio=st.sampled_from([0.25, 0.5, 0.75]), steps=st.integers(4, 8))
def test_every_clip_reconstructs_some_hidden_token_under_both_masks(seeds, ratio, steps):
    hidden = tube_mask(steps, 16, 1 / 16, seeds=seeds)
    decoded = running_cell_mask(steps, (4, 4), ratio, seeds=seeds)
    assert (hidden & decoded).any(dim=1).all()


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")
def test_the_gpu_makes_the_masks_of_the_cpu():
    seeds = torch.arange(50) * 12345678901
    for make in (
        lambda d: tube_mask(8, 196, 0.9, seeds=seeds, device=d),
        lambda d: running_cell_mask(8, (14, 14), seeds=seeds, device=d),
    ):
        assert torch.equal(make("cuda").cpu(), make("cpu"))
