"""Search spaces: what can be written, what is refused in one line, what a draw makes of it."""

import dataclasses
import random
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from matinee.errors import ConfigError
from matinee.recipes import RECIPES, tiny
from matinee.training.search.defaults import default_space
from matinee.training.search.dimensions import get_field, parse_dimension, searchable
from matinee.training.search.space import baseline, draw, make_space, put, read_space


class Draws:
    """Draws evenly, as its own definition says: what Optuna's trials are asked for."""

    def __init__(self, seed):
        self.random, self.asked = random.Random(seed), {}

    def suggest_float(self, name, low, high, *, step=None, log=False):
        if log:
            value = low * (high / low) ** self.random.random()
        elif step:
            value = low + step * self.random.randint(0, round((high - low) / step))
        else:
            value = self.random.uniform(low, high)
        return self.asked.setdefault(name, min(max(value, low), high))

    def suggest_int(self, name, low, high, *, step=1, log=False):
        return self.asked.setdefault(name, self.random.randrange(low, high + 1, step))

    def suggest_categorical(self, name, choices):
        assert all(isinstance(choice, str) for choice in choices)
        return self.asked.setdefault(name, self.random.choice(list(choices)))


class Fixed(Draws):
    """Gives what was enqueued."""

    def __init__(self, parameters):
        super().__init__(0)
        self.asked = dict(parameters)


def config(recipe="tsm"):
    return RECIPES[recipe]("my.pack", "out")


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("optim.lr=1e-4..1e-1:log", {"low": 1e-4, "high": 0.1, "log": True, "whole": False}),
        ("optim.weight-decay = 0..0.3:0.1", {"field": "optim.weight_decay", "step": 0.1}),
        ("optim.momentum=0.8..0.98", {"low": 0.8, "high": 0.98, "log": False, "step": None}),
        ("clip.frames=4..16:4", {"low": 4, "high": 16, "step": 4, "whole": True}),
        ("optim.accumulate=1..7:4", {"low": 1, "high": 5}),  # the last that steps reach
        ("optim.clip_norm=0.5..20:log", {"low": 0.5, "high": 20}),
        ("optim.name=sgd,adamw", {"choices": ("sgd", "adamw")}),
        ("optim.clip_norm=none,1,20", {"choices": (None, 1.0, 20.0)}),
        ("optim.batch_size=8,16", {"choices": (8, 16)}),
        ("model.partial_bn=true,false", {"choices": (True, False)}),
        ("optim.betas=0.9 0.95,0.9 0.999", {"choices": ((0.9, 0.95), (0.9, 0.999))}),
        ("optim.drops=0.4 0.8,0.5", {"choices": ((0.4, 0.8), (0.5,))}),
        ("model.temporal.div=4,8", {"choices": (4, 8)}),
        ("model.backbone=resnet18,resnet50", {"choices": ("resnet18", "resnet50")}),
    ],
)
def test_a_dimension_is_read_by_the_type_of_its_field(text, wanted):
    found = parse_dimension(text, config())
    for name, value in wanted.items():
        assert getattr(found, name) == value, name
        if isinstance(value, tuple):
            assert [type(v) for v in getattr(found, name)] == [type(v) for v in value]


@pytest.mark.parametrize(
    ("texts", "words"),
    [
        (["optim.lrr=1..2"], "no field optim.lrr: did you mean optim.lr?"),
        (["lr=1..2"], "no field lr: did you mean optim.lr?"),
        (["optim.lr=0.1..0.1"], "--search optim.lr=0.1..0.1: an empty range"),
        (["optim.lr=1..0.1:log"], "an empty range"),
        (["optim.lr=0..0.1:log"], "a logarithmic range starts above 0, not at 0"),
        (["optim.lr=a..b"], "'a' is not a number"),
        (["optim.lr=1e-4..inf"], "'inf' is not finite"),
        (["optim.lr=0.1..0.2:0"], "a step of 0"),
        (["optim.lr=0.1..0.2:1"], "the step 1 is larger than the range"),
        (["optim.lr"], "expected FIELD=LOW..HIGH"),
        (["optim.lr="], "expected FIELD=LOW..HIGH"),
        (["optim.batch_size=1.5..4"], "'1.5' is not a whole number"),
        (["optim.name=sgd,sgdd"], "'sgdd' is none of sgd, adam, adamw"),
        (["optim.name=1..2"], "takes no numbers: list its values"),
        (["optim.name=sgd,sgd"], "the same value twice"),
        (["optim.betas=0.9"], "needs 2 numbers with spaces between"),
        (["model.partial_bn=yes"], "neither true nor false"),
        (["run.seed=1..5"], "run.seed cannot be searched"),
        (["data.path=a,b"], "data.path cannot be searched"),
        (["task.margin=0.1..0.2"], "no field task.margin"),  # of another kind of task
        (["optim.betas=0.9 0.95,0.9 0.999"], "has no effect with optim.name sgd"),
        (["optim.lr=1e-3..1", "optim.lr=1e-3..1:log"], "optim.lr is searched twice"),
        (
            ["optim.lr=1e-3..1 if optim.name=sgd,adamw", "optim.lr=1..2 if optim.name=sgd",
             "optim.name=sgd,adamw,adam"],
            "optim.lr is searched twice",
        ),
        (["optim.momentum=0.8..0.9", "optim.name=adam,adamw"], "is never sgd or lars or muon"),
        (["optim.lr=0.1..1 if optim.momentum=0.9", "optim.momentum=0.8..0.9"], "take a list"),
        (
            ["optim.clip_norm=none,1 if optim.clip_value=none",
             "optim.clip_value=none,1 if optim.clip_norm=none"],
            "its condition depends on itself",
        ),
    ],
)  # fmt: skip
def test_spaces_that_cannot_be_are_refused_in_one_line(texts, words):
    with pytest.raises(ConfigError, match=re.escape(words)) as refused:
        make_space(texts, config(), ())
    assert "\n" not in str(refused.value)


def test_what_sets_the_loss_of_masked_clips_is_not_searched():
    """Scores would be losses of different problems."""
    for field in ("task.mask_ratio=0.5..0.9", "clip.size=64,112", "model.temporal.tubelet=1,2"):
        with pytest.raises(ConfigError, match="cannot be compared"):
            make_space([field], config("videomae_kinetics"), ())
    make_space(["clip.size=64,112"], config(), ())


@given(st.sampled_from(sorted(RECIPES)), st.booleans(), st.integers(0, 2**32))
def test_any_draw_of_a_default_space_is_a_config_that_can_be(recipe, small, seed):
    """Checks of the config all hold; only searched fields change, and lr's end with lr."""
    start = tiny(config(recipe)) if small else config(recipe)
    space = make_space((), start, default_space(start))
    values = draw(space, Draws(seed), start)
    made = put(start, values)
    for field in searchable(start):
        if field == "optim.min_lr":
            continue
        wanted = values.get(field, get_field(start, field))
        assert get_field(made, field) == wanted, field
    ends = made.optim.min_lr * start.optim.lr, start.optim.min_lr * made.optim.lr
    assert ends[0] == pytest.approx(ends[1])
    assert dataclasses.replace(made, model=start.model, task=start.task, clip=start.clip,
                               optim=start.optim, data=start.data) == start  # fmt: skip


@pytest.mark.parametrize("recipe", RECIPES)
def test_the_default_space_has_the_recipe_itself(recipe):
    """As the first trial; every dimension has a reason."""
    for start in (config(recipe), tiny(config(recipe))):
        space = make_space((), start, default_space(start))
        parameters = baseline(space, start)
        assert isinstance(parameters, dict), parameters
        assert put(start, draw(space, Fixed(parameters), start)) == start
        assert all(dimension.why for dimension in space)


@pytest.mark.parametrize(
    ("text", "inside", "outside"),
    [
        ("optim.lr=0.1..0.2", [0.1, 0.15, 0.2], [0.0999, 0.2001, None]),
        ("optim.weight_decay=0..0.3:0.1", [0.0, 0.1, 0.2, 0.3], [0.15, 0.4]),
        ("optim.clip_norm=none,1", [None, 1.0], [0.5, 2.0]),
        ("optim.clip_norm=0.5..2", [0.5, 2.0], [None]),
        ("clip.frames=4..16:4", [4, 8, 16], [6, 20, 0]),
    ],
)
def test_a_range_holds_its_ends_and_its_steps(text, inside, outside):
    dimension = parse_dimension(text, config())
    assert all(map(dimension.holds, inside)) and not any(map(dimension.holds, outside))


def test_a_recipe_outside_the_space_is_no_trial_of_it():
    space = make_space(["optim.lr=0.1..1:log"], config(), ())
    assert baseline(space, config()) == "optim.lr 0.0025 is not in 0.1..1:log"


def test_conditions_decide_what_is_asked():
    """Momentum of SGD alone, without being told; a rate of its own for each optimizer."""
    texts = [
        "optim.momentum=0.8..0.98", "optim.lr=1e-3..1:log if optim.name=sgd",
        "optim.lr=1e-5..1e-2:log if optim.name=adamw", "optim.name=sgd,adamw",
    ]  # fmt: skip
    space = make_space(texts, config(), ())
    asked = {}
    for seed in range(20):
        draws = Draws(seed)
        values = draw(space, draws, config())
        asked[values["optim.name"]] = set(draws.asked)
        high = 1 if values["optim.name"] == "sgd" else 1e-2
        assert values["optim.lr"] <= high
    lr = "optim.lr if optim.name="
    assert asked["sgd"] == {"optim.name", "optim.momentum if optim.name=sgd", f"{lr}sgd"}
    assert asked["adamw"] == {"optim.name", f"{lr}adamw"}


def test_a_condition_that_always_holds_is_none():
    """Momentum, where only SGD is searched or set."""
    for texts in (["optim.momentum=0.8..0.9"], ["optim.momentum=0.8..0.9", "optim.name=sgd,lars"]):
        names = {dimension.name for dimension in make_space(texts, config(), ())}
        assert "optim.momentum" in names


def test_default_stands_for_the_rest_of_the_default_space():
    start = config()
    usual = default_space(start)
    space = make_space(["default", "optim.lr=1e-3..1:log"], start, usual)
    lr = [dimension for dimension in space if dimension.field == "optim.lr"]
    assert [dimension.text for dimension in lr] == ["optim.lr=0.001..1:log"]
    assert {d.field for d in space} == {d.field for d in usual}


def test_a_space_written_out_reads_back_as_it_was():
    """As study.json keeps it."""
    for recipe in RECIPES:
        start = config(recipe)
        space = make_space((), start, default_space(start))
        again = make_space([dimension.text for dimension in space], start, ())
        plain = lambda d: dataclasses.replace(d, why="")  # noqa: E731
        assert list(map(plain, again)) == list(map(plain, space))


def test_a_file_of_texts_is_a_list(tmp_path):
    (tmp_path / "space.json").write_text('["optim.lr=1e-4..1e-1:log", "optim.name=sgd,adamw"]')
    assert read_space(tmp_path / "space.json") == (
        "optim.lr=1e-4..1e-1:log",
        "optim.name=sgd,adamw",
    )
    for content, words in (("{}", "expected a list"), ("[1]", "expected a list"), ("[", "no JSON")):
        (tmp_path / "bad.json").write_text(content)
        with pytest.raises(ConfigError, match=words):
            read_space(tmp_path / "bad.json")
    with pytest.raises(ConfigError, match="no such file"):
        read_space(tmp_path / "gone.json")
