"""Ranks share an epoch's order: who reads a clip changes nothing about which step it is in."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from matinee.data.clips import ClipSpec
from matinee.data.epochs import EpochLoader, _share
from matinee.data.image_loader import ImageLoader
from matinee.errors import ConfigError
from matinee.evaluation.ranks import merge_rows
from matinee.pack.images.image_set import ImageSet
from matinee.pack.images.writer import write_images


@pytest.fixture(scope="module")
def images(tmp_path_factory):
    """61 images of 16² in two classes."""
    from PIL import Image

    root = tmp_path_factory.mktemp("images")
    for number in range(61):
        folder = root / "pictures" / ("even", "odd")[number % 2]
        folder.mkdir(parents=True, exist_ok=True)
        picture = np.full((16, 16, 3), number, np.uint8)
        Image.fromarray(picture).save(folder / f"{number}.png")
    write_images(root / "some.images", root / "pictures", val_fraction=0)
    return ImageSet(root / "some.images")


def make(images, **settings) -> ImageLoader:
    return ImageLoader(images, clip=ClipSpec(frames=1, size=16, crop="pad"), seed=3, **settings)


def micro_batches(images, steps, *, world, parts, size, **settings):
    """By step and number: the samples of each micro-batch, in the order of their numbers."""
    loaders = [
        make(images, batch_size=size, group=parts, rank=r, world=world, **settings)
        for r in range(world)
    ]
    found = []
    for _ in range(steps):
        taken = [[next(iter(loader)) for _ in range(parts)] for loader in loaders]
        found.append([taken[r][p] for p in range(parts) for r in range(world)])
    return found, loaders


class Numbers(EpochLoader):
    """Only the order of items."""

    def _next(self):
        raise NotImplementedError

    def close(self) -> None:
        pass


@given(
    st.sampled_from([1, 2, 3, 8]), st.sampled_from([1, 2, 3]), st.integers(0, 2**20),
    st.integers(1, 3),
)  # fmt: skip
def test_one_two_three_and_eight_ranks_take_the_same_items(images, world, repeats, seed, parts):
    """Items of each step at a global batch of 24, over three epochs, against one rank's; what is
    left over at an epoch's end is left over for all alike."""
    if 24 % (world * parts):
        parts = 1

    def loaders(world, parts):
        return [
            Numbers(
                images, split=None, clip=ClipSpec(), batch_size=24 // world // parts, views=None,
                repeats=repeats, group=parts, seed=seed, classes=None, targets=None, device="cpu",
                rank=rank, world=world,
            )
            for rank in range(world)
        ]  # fmt: skip

    one = loaders(1, 1)[0]
    many = loaders(world, parts)
    assert all(len(loader) == len(one) * parts for loader in many)
    for epoch in range(3):
        for step in range(len(one)):
            taken = [
                loader._items(epoch, step * parts + part)
                for part in range(parts)
                for loader in many
            ]
            assert np.array_equal(np.concatenate(taken), one._items(epoch, step))
        seen = np.concatenate([one._items(epoch, step) for step in range(len(one))])
        assert len(set(seen.tolist())) == len(seen) == 61 * repeats // 24 * 24


@given(st.integers(1, 61), st.sampled_from([1, 2, 3, 8]), st.integers(1, 4))
def test_every_sample_counts_once_in_an_evaluation_on_any_number_of_ranks(
    images, kept, world, views
):
    """Of shares of what is left of the set, merged: each sample's own value, once."""
    rows = np.sort(np.random.default_rng(kept).permutation(61)[:kept])
    shares = [_share(rows, rank, world) for rank in range(world)]
    assert len({len(share) for share in shares}) == 1
    parts = [(share, share[:, None] * 10 + np.arange(views)) for share in shares]
    index, values = merge_rows(parts, rows)
    assert np.array_equal(index, rows)
    assert np.array_equal(values, rows[:, None] * 10 + np.arange(views))


@given(st.sampled_from([(1, 1), (1, 4), (2, 2), (4, 1), (2, 1), (8, 1)]), st.integers(1, 9))
def test_every_split_of_a_step_reads_the_same_items_in_the_same_order(images, split, steps):
    """Against one process that takes 8 at a time, over the ends of epochs."""
    world, parts = split
    found, _ = micro_batches(images, steps, world=world, parts=parts, size=8 // world // parts)
    reference, _ = micro_batches(images, steps, world=1, parts=1, size=8)
    for ours, (theirs,) in zip(found, reference, strict=True):
        assert tuple(name for batch in ours for name in batch.samples) == theirs.samples
        assert np.array_equal(np.concatenate([b.seeds for b in ours]), theirs.seeds)
        assert np.array_equal(np.concatenate([b.video for b in ours]), theirs.video)


def test_a_position_saved_on_four_ranks_goes_on_on_two(images):
    """And on one; each step once, none left out."""
    whole, _ = micro_batches(images, 6, world=1, parts=1, size=8)
    _, loaders = micro_batches(images, 4, world=4, parts=1, size=2)
    states = [loader.state_dict() for loader in loaders]
    assert all(state == states[0] for state in states)
    for world in (1, 2):
        for rank in range(world):
            with make(images, batch_size=8 // world, rank=rank, world=world) as loader:
                loader.load_state_dict(states[0])
                each = 8 // world
                for step in (4, 5):
                    own = whole[step][0].samples[rank * each : (rank + 1) * each]
                    assert next(iter(loader)).samples == own


@pytest.mark.parametrize("world", [2, 3, 4, 8])
def test_shares_of_an_evaluation_are_equally_long_and_cover_all(images, world):
    """With all views of each sample; only repeats beyond the last."""
    loaders = [
        make(images, batch_size=7, views=(1, 3), rank=rank, world=world) for rank in range(world)
    ]
    assert len({len(loader) for loader in loaders}) == 1
    seen = np.concatenate([loader.samples for loader in loaders])
    assert set(seen.tolist()) == set(range(61)) and len(seen) - 61 < world
    for loader in loaders:
        assert np.array_equal(loader.all_samples, np.arange(61))
        rows = np.concatenate([batch.index for batch in loader])
        assert np.array_equal(rows, loader.samples.repeat(3))


def test_items_that_belong_together_stay_together(images):
    """Runs of consecutive items, in random order."""
    settings = {
        "split": None, "clip": ClipSpec(), "views": None, "repeats": 1, "group": 1, "seed": 0,
        "classes": None, "targets": None, "device": "cpu", "together": 2,
    }  # fmt: skip
    loader = Numbers(images, batch_size=8, **settings)
    items = np.concatenate([loader._items(0, number) for number in range(len(loader))])
    pairs = items.reshape(-1, 2)
    assert np.array_equal(pairs[:, 0] + 1, pairs[:, 1]) and (pairs[:, 0] % 2 == 0).all()
    assert not np.array_equal(np.sort(pairs[:, 0]), pairs[:, 0])
    assert set(loader._rows(pairs[:, 0])) == set(loader._rows(pairs[:, 1]))
    with pytest.raises(ConfigError, match="batches of 7 clips cannot hold 2 crops"):
        Numbers(images, batch_size=7, **settings)
