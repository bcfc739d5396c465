"""The page about a search: every trial is found on it, in the right place; hostile text is text."""

import json
import math
import re
from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from pages import Page, read

from matinee.measure.draw.svg import Scale, around
from matinee.measure.study.page import summary, write_study_page
from matinee.training.search.dimensions import Condition, Dimension
from matinee.training.search.result import StudyResult, TrialResult

NAME = Dimension("optim.name", ("adamw", "sgd"), why="which is better")
LR = Dimension("optim.lr", (), 1e-4, 1e-1, log=True, when=Condition("optim.name", ("sgd",)))
FLIP = Dimension("clip.flip", ("none", "horizontal"))


def trial(number, value=None, *, lr=None, state="complete", curve=(), **more):
    values = {"optim.name": "adamw" if lr is None else "sgd", "clip.flip": "none"}
    values |= {} if lr is None else {"optim.lr": lr}
    if value is not None:
        curve = ((1, value / 2), (2, value))
    return TrialResult(number, state, values, value, curve, run=f"trial-{number:04d}", **more)


def study(*trials, **more) -> StudyResult:
    own = {"optim.name": "sgd", "optim.lr": 0.01, "clip.flip": "none"}
    base = StudyResult("tsm on my.pack", "top1", "maximize", 2, (NAME, LR, FLIP), trials, own)
    return replace(base, **more)


TRIALS = (
    trial(0, 0.5, lr=0.01, baseline=True, seconds=60),
    trial(1, 0.8, lr=0.001),
    trial(2, state="pruned", curve=((1, 0.1),), reason="behind the median after epoch 1"),
    trial(3, state="pruned", lr=0.1, reason="diverged: the loss is not finite in step 3"),
    trial(4, 0.6),
    trial(5, state="running"),
)


@pytest.fixture
def page(tmp_path):
    def write(found) -> Page:
        write_study_page(tmp_path / "search.html", found)
        return read(tmp_path / "search.html")

    return write


def marks(page, tag):
    """Attributes of marks of trials."""
    return [
        attributes for name, attributes in page.tags if name == tag and "data-trial" in attributes
    ]


def test_every_trial_is_in_the_table_and_every_score_in_the_plots(page):
    found = page(study(*TRIALS))
    assert {row["data-trial"] for row in marks(found, "tr")} == set("012345")
    assert {dot["data-trial"] for dot in marks(found, "circle")} == {"0", "1", "2", "4"}
    text = " ".join(found.text.split())
    assert "diverged: the loss is not finite in step 3" in text
    assert "reaches a top-1 of 80.0 %; the recipe's own settings 50.0 %" in text
    data = json.loads(found.scripts[-1])
    assert data["best"] == 1 and len(data["trials"]) == 6
    assert data["space"][1] == "optim.lr=0.0001..0.1:log if optim.name=sgd"


def test_the_best_is_marked_and_no_other(page):
    for direction, best in (("maximize", "1"), ("minimize", "0")):
        found = page(study(*TRIALS, direction=direction))
        assert {dot["data-trial"] for dot in marks(found, "circle") if dot["class"] == "best"} == {
            best
        }
        (row,) = [row for row in marks(found, "tr") if row.get("class") == "strong"]
        assert row["data-trial"] == best


def test_marks_lie_where_scores_are(page):
    """In the first plot: equal differences of score are equal heights, upward."""
    dots = {dot["data-trial"]: dot for dot in marks(page(study(*TRIALS)), "circle")[:4]}
    height = lambda number: float(dots[number]["cy"])  # noqa: E731
    unit = (height("0") - height("1")) / (0.8 - 0.5)
    assert unit > 0
    assert height("0") - height("4") == pytest.approx(unit * (0.6 - 0.5), abs=0.2)
    assert height("2") - height("0") == pytest.approx(unit * (0.5 - 0.1), abs=0.2)
    across = [float(dots[number]["cx"]) for number in "0124"]
    assert across[1] - across[0] == pytest.approx((across[3] - across[0]) / 4, abs=0.2)


def test_a_slice_shows_only_trials_that_drew_from_it(page):
    """Learning rates of SGD are not those of AdamW."""
    found = page(study(*TRIALS))
    charts = [a["aria-label"] for tag, a in found.tags if tag == "svg" and "aria-label" in a]
    assert "top-1 over optim.lr if optim.name=sgd" in charts
    text = " ".join(found.text.split())
    assert "only with optim.name sgd" in text


def test_text_of_strangers_stays_text(page):
    nasty = '"><script>alert(1)</script>&\x00'
    values = {"optim.name": nasty, "clip.flip": nasty}
    bad = TrialResult(0, "complete", values, 0.5, ((1, 0.4), (2, 0.5)), reason=nasty)
    name = Dimension("optim.name", (nasty, "sgd"), why=nasty)
    other = replace(bad, number=1, value=0.4)
    found = page(
        study(bad, other, title=nasty, command=nasty, space=(name,), own={"optim.name": 1})
    )
    assert sum("alert(1)" in text for text in found.texts) > 5
    assert len([tag for tag, _ in found.tags if tag == "script"]) == 2


@pytest.mark.parametrize(
    "trials", [(), (trial(0, state="running"),), (trial(0, 0.5),), (trial(0, 0.5), trial(1, 0.5))]
)
def test_searches_that_have_hardly_begun_have_a_page(page, trials):
    found = page(study(*trials))
    assert ("No trial has ended" in found.text) == (not any(t.value for t in trials))


def test_the_summary_counts_each_trial_once():
    said = summary(study(*TRIALS))
    assert said.startswith("6 trials of 2 epochs, 60.0 s of training: 3 ran to the end")
    counted = re.search(r": (.*?)\. The best", said)[1]
    assert sum(int(number) for number in re.findall(r"\d+", counted)) == 6
    own = summary(study(trial(0, 0.9, baseline=True), trial(1, 0.8)))
    assert own.endswith("it has the recipe's own settings.")


def test_a_best_value_at_the_end_of_its_range_is_pointed_out(page):
    told = "optim.lr 0.1 is at the edge of its range, 0.0001..0.1:log"
    assert told in page(study(trial(0, 0.5, lr=0.1), trial(1, 0.4))).text
    assert "edge" not in page(study(trial(0, 0.5, lr=0.01), trial(1, 0.4))).text


@given(st.floats(-1e6, 1e6), st.floats(1e-6, 1e6))
def test_ticks_are_a_few_round_numbers_inside(low, width):
    assume(width > 1e-6 * abs(low))  # as digits of a float allow
    scale = Scale(low, low + width)
    ticks = scale.ticks()
    assert 2 <= len(ticks) <= 6
    assert all(-1e-6 <= place <= 1 + 1e-6 for place, _ in ticks)
    gaps = [b - a for (a, _), (b, _) in pairwise(ticks)]
    step = gaps[0] * width
    mantissa = step / 10 ** math.floor(math.log10(step * (1 + 1e-6)))
    assert any(mantissa == pytest.approx(m, rel=1e-3) for m in (1, 2, 5))


@given(st.floats(1e-8, 1), st.floats(1.5, 1e8))
def test_logarithmic_scales_place_equal_ratios_equally(low, ratio):
    scale = Scale(low, low * ratio, log=True)
    assert scale.place(low) == pytest.approx(0) and scale.place(low * ratio) == pytest.approx(1)
    assert scale.place(low * math.sqrt(ratio)) == pytest.approx(0.5)
    assert all(-1e-6 <= place <= 1 + 1e-6 for place, _ in scale.ticks())


@given(st.lists(st.floats(-1e3, 1e3), min_size=1))
def test_a_scale_around_values_holds_them_with_room(values):
    scale = around(values)
    assert all(0 < scale.place(value) < 1 for value in values)
