"""Captioned shapes: what is held out, and that files say and show what was planned."""

import csv
from collections import Counter
from itertools import product

import av
import numpy as np
import pytest

from matinee.demo.combinations import split_combinations, write_combinations
from matinee.demo.shapes import CLASSES, COLOURS, SHAPES, plan_segment


@pytest.mark.parametrize("held_out", [1, 64, 120])
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_held_out_combinations_are_new_but_their_words_are_not(held_out, seed):
    train, test = split_combinations(held_out, seed=seed)
    assert len(test) == held_out and len(train) + len(test) == 6 * 4 * 8
    assert set(train) | set(test) == set(product(COLOURS, SHAPES, CLASSES))
    said = {word for combination in train for word in combination}
    assert said == {*COLOURS, *SHAPES, *CLASSES}


def test_another_seed_holds_out_others():
    assert split_combinations(64, seed=0) == split_combinations(64, seed=0)
    assert set(split_combinations(64, seed=0)[1]) != set(split_combinations(64, seed=1)[1])


@pytest.mark.parametrize(
    ("held_out", "words"), [(0, "between 1 and 191"), (192, "between"), (190, "out of training")]
)
def test_a_split_that_teaches_too_little_is_refused(held_out, words):
    with pytest.raises(ValueError, match=words):
        split_combinations(held_out)


def test_a_given_shape_and_colour_change_nothing_else():
    """Whatever is drawn besides comes from the generator as before."""
    free = plan_segment("opening", np.random.default_rng(3), fps=12)
    told = plan_segment("opening", np.random.default_rng(3), fps=12, shape="diamond", colour="pink")
    assert (told.shape, told.colour) == ("diamond", "pink")
    assert told.text == "a pink diamond opens from small to large"
    for name in ("frames", "radius", "centre", "travel", "growth", "heading"):
        assert getattr(told, name) == getattr(free, name)
    assert np.array_equal(told.waves, free.waves)


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    """Few and small: all but ten of the combinations are held out."""
    folder = tmp_path_factory.mktemp("combinations")
    seen = []
    labels = write_combinations(
        folder, copies=2, held_out=150, size=(16, 16), fps=2, seed=4,
        on_progress=lambda done, count: seen.append((done, count)),
    )  # fmt: skip
    return folder, list(csv.DictReader(labels.open())), seen


def test_each_combination_is_written_as_often_as_it_should(written):
    _, rows, seen = written
    train, test = split_combinations(150, seed=4)
    counts = Counter((row["split"], row["text"]) for row in rows)
    assert len(counts) == len(train) + len(test)
    for split, wanted, copies in (("train", train, 2), ("test", test, 1)):
        for colour, shape, motion in wanted:
            segment = plan_segment(
                motion, np.random.default_rng(0), fps=2, shape=shape, colour=colour
            )
            assert counts[split, segment.text] == copies
            assert motion in {row["label"] for row in rows if row["text"] == segment.text}
    assert seen == [(i, len(seen)) for i in range(1, len(seen) + 1)]
    assert len(seen) == len({row["path"] for row in rows}) == 3 + 5


def test_the_rows_tile_the_videos(written):
    folder, rows, _ = written
    for path in {row["path"] for row in rows}:
        own = [row for row in rows if row["path"] == path]
        assert len({row["split"] for row in own}) == 1
        ends = [float(row["end"]) for row in own]
        assert [float(row["start"]) for row in own] == [0.0, *ends[:-1]]
        with av.open(str(folder / path)) as file:
            frames = sum(1 for _ in file.decode(video=0))
        assert frames == round(ends[-1] * 2)


def test_copies_of_a_combination_differ(written, tmp_path):
    """In length, place or background: no two training clips are the same pixels."""
    folder, rows, _ = written
    first = {}
    for path in sorted({row["path"] for row in rows if row["split"] == "train"}):
        with av.open(str(folder / path)) as file:
            pictures = [frame.to_ndarray(format="rgb24") for frame in file.decode(video=0)]
        for row in rows:
            if row["path"] == path:
                first.setdefault(row["text"], []).append(pictures[round(float(row["start"]) * 2)])
    for one, other in first.values():
        assert np.abs(one.astype(int) - other.astype(int)).mean() > 3


@pytest.mark.parametrize(
    ("settings", "words"), [({"copies": 0}, "copies=0"), ({"size": (16, 17)}, "even height")]
)
def test_sizes_that_cannot_be_written_are_refused(tmp_path, settings, words):
    with pytest.raises(ValueError, match=words):
        write_combinations(tmp_path / "new", **{"copies": 1, **settings})
    assert not (tmp_path / "new").exists()
