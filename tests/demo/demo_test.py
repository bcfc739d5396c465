"""The demo's videos and its run, at a small size."""

import csv
import json
from contextlib import contextmanager
from itertools import pairwise

import numpy as np
import pytest

from matinee.demo.run import DemoSize, pair_accuracy, run_demo
from matinee.demo.shapes import CLASSES, PAIRS, plan_segment, render_segment, write_shapes
from matinee.demo.view import DemoView
from matinee.errors import ConfigError


@pytest.mark.parametrize("pair", PAIRS)
def test_the_classes_of_a_pair_are_each_other_reversed(pair):
    """With the same random draws, frame by frame."""
    first, second = (
        render_segment(plan_segment(name, np.random.default_rng(7), fps=25), size=(48, 48))
        for name in pair
    )
    assert np.array_equal(first, second[::-1]) and not np.array_equal(first, second)


def test_the_same_seed_gives_the_same_bytes(tmp_path):
    """Videos and labels; another seed gives others."""

    def write(name, seed):
        write_shapes(
            tmp_path / name, seed=seed, train_videos=1, test_videos=1, segments_per_video=3
        )
        return {p.name: p.read_bytes() for p in sorted((tmp_path / name).rglob("*.*"))}

    assert write("a", 0) == write("b", 0) != write("c", 1)


def test_labels_tile_the_videos_and_captions_name_what_moves(tmp_path):
    """Ends meet, every class occurs, train and test are different videos."""
    table = write_shapes(tmp_path, train_videos=2, test_videos=1, segments_per_video=8)
    rows = list(csv.DictReader(table.open()))
    assert len(rows) == 24 and {row["label"] for row in rows} == set(CLASSES)
    for before, after in pairwise(rows):
        if before["path"] == after["path"]:
            assert before["end"] == after["start"]
    assert not {r["path"] for r in rows if r["split"] == "train"} & {
        r["path"] for r in rows if r["split"] == "test"
    }
    assert all(row["text"].startswith("a ") for row in rows)


class Quiet(DemoView):
    @contextmanager
    def counting(self, name, unit):
        yield lambda done, total, note="": None

    def training(self, name):
        return None


def test_the_demo_runs_through_and_says_what_came_out(tmp_path):
    """Two epochs on few videos: every file and figure, not the accuracy."""
    size = DemoSize(train_videos=2, test_videos=1, segments=16, epochs=2)
    result = run_demo(tmp_path / "demo", Quiet(), size=size)
    saved = json.loads((tmp_path / "demo" / "result.json").read_text())
    assert saved == result
    assert {"tsm_top1", "tsn_top1", "chance", "seconds"} < set(result) and result["chance"] == 0.5
    assert {p.name for p in (tmp_path / "demo").iterdir()} == {
        ".matinee-demo", "shapes", "shapes.pack", "tsm", "tsn", "report.html", "result.json",
        "sheet.png",
    }  # fmt: skip
    assert run_demo(tmp_path / "demo", Quiet(), size=size)["tsm_top1"] == result["tsm_top1"]


def test_the_demo_never_deletes_what_is_not_its_own(tmp_path):
    """A stray file stops it."""
    (tmp_path / "thesis.tex").write_text("mine")
    with pytest.raises(ConfigError, match=r"thesis\.tex"):
        run_demo(tmp_path, Quiet())
    assert (tmp_path / "thesis.tex").exists()


def test_pair_accuracy_forgives_the_direction_only():
    """By hand."""
    rows = [
        {"label": "opening", "predicted": "closing"},
        {"label": "opening", "predicted": "opening"},
        {"label": "opening", "predicted": "clockwise"},
    ]
    assert pair_accuracy(rows) == pytest.approx(2 / 3)
