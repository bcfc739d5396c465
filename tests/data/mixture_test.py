"""Several packs as one: who gives how much, in which order, and that resuming is exact."""

from collections import Counter
from fractions import Fraction

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from matinee.data.clips import ClipSpec
from matinee.data.loader import ClipLoader
from matinee.data.order import mixed_order, shares
from matinee.errors import ConfigError
from matinee.pack.annotations import read_class_folders
from matinee.pack.mixture import Mixture, split_mixture
from matinee.pack.open import open_data
from matinee.pack.profiles import make_profile
from matinee.pack.reading.reader import Pack
from matinee.pack.writing.writer import write_pack

SPEC = ClipSpec(frames=2, size=32, flip="horizontal", brightness=0.3)


@pytest.fixture(scope="module")
def other_pack(film, tmp_path_factory):
    """Four films in classes "right" and "up", of another size and frame rate."""
    root = tmp_path_factory.mktemp("other")
    for number, label in enumerate(("right", "up")):
        for i in range(2):
            film(root / "films" / label / f"{i}.mp4", frames=24, size=(48, 80), fps=15,
                 seed=2 * number + i)  # fmt: skip
    annotations = read_class_folders(root / "films", val_fraction=0)
    write_pack(root / "other.pack", annotations, make_profile("layered", crf=20), workers=1)
    return root / "other.pack"


@pytest.fixture(scope="module")
def packs(clips_pack, other_pack):
    return Pack(clips_pack), Pack(other_pack)


def make(packs, weights, **more):
    settings = {"split": "train", "clip": SPEC, "batch_size": 4, "seed": 3, "workers": 1,
                "mode": "threads"} | more  # fmt: skip
    return ClipLoader(Mixture(packs, weights), **settings)


def batches(loader, count):
    found = []
    while len(found) < count:
        for batch in loader:
            found.append(batch)
            if len(found) == count:
                break
    return found


sizes = st.lists(st.integers(1, 30), min_size=2, max_size=4)


@given(st.integers(0, 5000), st.lists(st.floats(0.01, 100), min_size=1, max_size=6))
def test_shares_add_up_and_are_the_exact_part_rounded(count, weights):
    """By exact fractions."""
    found, total = shares(count, weights), sum(map(Fraction, weights))
    assert sum(found) == count
    for share, weight in zip(found, weights, strict=True):
        assert abs(share - count * Fraction(weight) / total) < 1


@given(sizes, st.data(), st.integers(0, 2**31))
def test_each_pack_is_gone_through_again_and_again_without_replacement(held, data, seed):
    """Over many epochs: the stream of each pack is permutation after permutation, wherever epochs
    end, with the same number of each in every epoch; and no item twice in an epoch."""
    given_ = [data.draw(st.integers(1, 40)) for _ in held]
    orders = [mixed_order(held, given_, seed=seed, epoch=epoch) for epoch in range(5)]
    total, first = sum(held), 0
    for order in orders:
        assert len(set(order.tolist())) == len(order) == sum(given_)
    for size, count in zip(held, given_, strict=True):
        streams = []
        for order in orders:
            places = order % total
            own = places[(places >= first) & (places < first + size)] - first
            assert len(own) == count
            streams += own.tolist()
        for start in range(0, len(streams) - size + 1, size):
            assert sorted(streams[start : start + size]) == list(range(size))
        first += size


def test_packs_come_in_random_turns():
    """No run of one pack that a fair draw would not give; another order in each epoch."""
    first, second = (mixed_order([500, 500], [500, 500], seed=0, epoch=e) for e in (0, 1))
    turns = np.count_nonzero(np.diff(first >= 500))
    assert 430 < turns < 570
    assert not np.array_equal(first, second)


def test_weights_decide_how_many_clips_each_pack_gives(packs):
    """12 + 4 training samples in an epoch of 16, three to one and one to three."""
    for weights, expected in (((3, 1), (12, 4)), ((1, 3), (4, 12)), (None, (12, 4))):
        with make(packs, weights) as loader:
            names = Counter(name.split("/")[0] for b in loader for name in b.samples)
        assert (names["clips"], names["other"]) == expected


def test_a_sample_that_comes_again_in_an_epoch_is_another_clip(packs):
    """4 samples give 12 clips: other frames or crops each time."""
    with make(packs, (1, 3), batch_size=16) as loader:
        (batch,) = list(loader)
    rows = [i for i, name in enumerate(batch.samples) if name.startswith("other/")]
    assert len({batch.video[i].numpy().tobytes() for i in rows}) == len(rows) == 12
    assert len(set(batch.seeds.tolist())) == 16


def test_pixels_targets_and_samples_are_those_of_the_packs_alone(packs):
    """Every evaluated clip of the mixture against a loader of its own pack."""
    classes = ("left", "right", "up")
    shared = {"views": (1, 1), "batch_size": 5, "split": None}
    with make(packs, None, **shared) as loader:
        assert loader.classes == classes
        mixed = list(loader)
    names = [name for b in mixed for name in b.samples]
    videos = torch.cat([b.video for b in mixed])
    targets = torch.cat([b.target for b in mixed]).tolist()
    at = 0
    for pack, name in zip(packs, ("clips", "other"), strict=True):
        with ClipLoader(pack, clip=SPEC, classes=classes, workers=1, mode="threads",
                        **shared) as loader:  # fmt: skip
            for batch in loader:
                for row in range(len(batch)):
                    assert names[at] == f"{name}/{batch.samples[row]}"
                    assert torch.equal(videos[at], batch.video[row])
                    assert targets[at] == int(batch.target[row])
                    at += 1
    assert at == len(names)


@pytest.mark.parametrize("stop", [1, 3, 4, 7])
def test_a_mixture_resumes_exactly(packs, stop):
    """In the middle and at the ends of epochs; byte for byte."""
    with make(packs, (1, 2)) as loader:
        reference = batches(loader, 9)
    with make(packs, (1, 2)) as loader:
        batches(loader, stop)
        state = loader.state_dict()
    with make(packs, (1, 2)) as loader:
        loader.load_state_dict(state)
        for ours, theirs in zip(batches(loader, 9 - stop), reference[stop:], strict=True):
            assert ours.samples == theirs.samples and torch.equal(ours.video, theirs.video)
    with make(packs, (1, 3)) as other, pytest.raises(ConfigError, match="other samples"):
        other.load_state_dict(state)


@pytest.mark.parametrize("world", [2, 4])
def test_ranks_share_a_mixture_as_they_share_a_pack(packs, world):
    """The same steps as one rank takes, over the ends of epochs."""
    with make(packs, (2, 1)) as loader:
        reference = batches(loader, 6)
    ranks = [make(packs, (2, 1), batch_size=4 // world, rank=r, world=world) for r in range(world)]
    parts = [batches(loader, 6) for loader in ranks]
    for step, whole in enumerate(reference):
        assert sum((part[step].samples for part in parts), ()) == whole.samples
        assert torch.equal(torch.cat([part[step].video for part in parts]), whole.video)
    for loader in ranks:
        loader.close()


def test_a_mixture_opens_by_its_name(clips_pack, other_pack):
    """As --data gives it, with and without weights."""
    mixture = open_data(f"{clips_pack}:2,{other_pack}:0.5")
    assert isinstance(mixture, Mixture) and mixture.weights == (2.0, 0.5)
    assert len(mixture) == 22 and mixture.classes == ("left", "right", "up")
    plain = open_data(f"{clips_pack},{other_pack}")
    assert isinstance(plain, Mixture) and plain.weights is None
    assert isinstance(open_data(clips_pack), Pack)
    assert mixture.splits() == {"train": 16, "val": 6}


def test_names_with_commas_and_addresses_with_ports_are_understood(tmp_path):
    """A path that exists is one data set, whatever is in its name."""
    odd = tmp_path / "a,b.pack"
    odd.mkdir()
    assert split_mixture(str(odd)) is None and split_mixture("plain.pack") is None
    assert split_mixture("http://host:80/a.pack:2, s3://bucket/b:1") == (
        ["http://host:80/a.pack", "s3://bucket/b"], [2.0, 1.0],
    )  # fmt: skip


@pytest.mark.parametrize(
    ("text", "words"),
    [("a:1,b", "'b' has no weight"), ("a,,b", "an empty name")],
)
def test_half_given_mixtures_are_refused(text, words):
    """With the text."""
    with pytest.raises(ConfigError, match=words):
        split_mixture(text)


def test_mixtures_that_cannot_be_are_refused(packs):
    """Weights that are not one a pack or not positive; a pack that gives nothing."""
    for weights, words in (((1,), "1 weights for 2"), ((1, 0), "weight 0"), ((1, -2), "-2")):
        with pytest.raises(ConfigError, match=words):
            Mixture(packs, weights)
    with pytest.raises(ConfigError, match=r"other, one of .*has no such sample"):
        make(packs, (1, 1), split="val", batch_size=2)
    with pytest.raises(ConfigError, match="too small a weight"):
        make(packs, (1, 1e-6))


def test_packs_of_one_name_stay_apart(packs):
    """Their samples get numbered names."""
    twice = Mixture([packs[1], packs[1]])
    assert twice.names == ("other", "other-2")
    assert len(set(twice.samples.column("sample").to_pylist())) == 8
