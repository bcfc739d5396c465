"""An ablation's cells differ in their levers alone, are measured once, and never guessed."""

import json
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from matinee.errors import ConfigError, MatineeError
from matinee.measure.bench import ablation_grid
from matinee.measure.bench.ablation import Options, has_bf16, make_plan, measure
from matinee.measure.bench.ablation_grid import Plan, Run
from matinee.measure.bench.ablation_levers import (
    EMULATED,
    NO_GPU,
    Place,
    changed,
    configure,
    differences,
    grid,
    read_levers,
)
from matinee.measure.bench.ablation_run import EPOCH, OPEN, TEST, Job
from matinee.measure.bench.ablation_tables import across_sittings, remarks, summarise, table
from matinee.pack.images.writer import write_images
from matinee.recipes import RECIPES, tiny
from matinee.training.loop import train
from matinee.training.search.space import put
from matinee.training.show.trackers import flat
from matinee.workers import Result as Answer

# A small ViT without anything random but the order, and without batch normalisation: its loss does
# not depend on how a batch is cut.
PLAIN = {
    "task.mixup": 0.0, "task.cutmix": 0.0, "model.drop_path": 0.0, "clip.rand_augment": 0,
    "clip.erasing": 0.0, "clip.flip": "none", "optim.batch_size": 8, "optim.lr": 0.01,
    "run.device": "cpu",
}  # fmt: skip


@pytest.fixture(scope="module")
def pictures(tmp_path_factory):
    """An image set of two classes, dark and light; 16 of each to train on, 6 to test on."""
    root = tmp_path_factory.mktemp("pictures")
    rng = np.random.default_rng(0)
    for split, count in (("train", 16), ("test", 6)):
        for label, level in (("dark", 0), ("light", 110)):
            folder = root / "files" / split / label
            folder.mkdir(parents=True)
            for i in range(count):
                picture = level + rng.integers(0, 140, (32, 32, 3))
                Image.fromarray(picture.astype(np.uint8)).save(folder / f"{i}.png")
    write_images(root / "p.images", root / "files")
    return root / "p.images"


@pytest.fixture
def config(pictures):
    return put(tiny(RECIPES["vit_cifar"](str(pictures), "unused")), PLAIN)


def cell(plan, name):
    return next(one for one in plan.cells if one.name == name)


def plan_of(config, levers, **more):
    settings = {"epochs": 2, "seeds": 1, "turns": True} | more
    return make_plan(config, levers, **settings)


def run_of(name, seed, seconds, **more):
    own = {
        "device": "cpu", "precision": "fp32", "clips": 8, "steps": 2, "loss": (1.0, 0.5),
        "peak_bytes": 100, "held_bytes": 60, "top1": 0.5, "macro_f1": 0.4, "samples": 12,
        "sitting": "first",
    }  # fmt: skip
    return Run(cell=name, seed=seed, seconds=seconds, **{**own, **more})


class Here:
    """A pool without a process: jobs are done as they are asked for."""

    def __init__(self, count, target, args):
        assert (count, target) == (1, "matinee.measure.bench.ablation_run:Job")
        self.job = Job(*args)

    def submit(self, number, order):
        self.order = order

    def results(self):
        try:
            yield Answer(0, value=self.job(self.order))
        except Exception as error:
            yield Answer(0, error=error)

    def close(self):
        pass


def test_a_grid_has_none_each_pair_and_all(config):
    levers = read_levers(("GA", "AMP", "PM"), config, Place(gpu=True))
    assert [one.name for one in grid(levers)] == [
        "none", "GA", "AMP", "PM", "GA+AMP", "GA+PM", "AMP+PM", "GA+AMP+PM",
    ]  # fmt: skip
    assert [one.name for one in grid(levers[:1])] == ["none", "GA"]
    assert (
        len(grid(read_levers(("GA", "AMP", "PM", "recompute=1"), config, Place()))) == 1 + 4 + 6 + 1
    )


@given(st.lists(st.sampled_from(["GA=2", "AMP", "PM", "recompute=1", "fused", "compile=default"]),
                min_size=1, unique=True))  # fmt: skip
def test_cells_differ_in_their_levers_alone(texts):
    """For every pair of cells the settings that differ are those of the levers that differ."""
    config = put(tiny(RECIPES["vit_cifar"]("p", "unused")), PLAIN)
    levers = read_levers(texts, config, Place(gpu=True))
    field = {lever.name: lever.field for lever in levers}
    cells = grid(levers)
    held = [flat(configure(config, levers, c, epochs=3, seed=1).to_dict()) for c in cells]
    for one, first in zip(cells, held, strict=True):
        for other, second in zip(cells, held, strict=True):
            differ = {name for name in first if first[name] != second[name]}
            assert differ == {field[name] for name in set(one.on) ^ set(other.on)}
            assert first["optim.batch_size"] == second["optim.batch_size"] == 8


@pytest.mark.parametrize(
    "place, reason",
    [
        (Place(), NO_GPU),
        (Place(gpu=True, pictures=True, resident=True), "no batch is copied"),
        (Place(gpu=True, pictures=True), ""),
        (Place(gpu=True), ""),
    ],
)
def test_pinned_memory_is_marked_where_it_cannot_show(config, place, reason):
    cells = grid(read_levers(("GA", "PM"), config, place))
    assert {c.name: reason in c.cannot and bool(c.cannot) for c in cells} == {
        "none": False, "GA": False, "PM": bool(reason), "GA+PM": bool(reason),
    }  # fmt: skip


def test_mixed_precision_is_fp16_where_a_gpu_has_no_bf16(config):
    assert read_levers(("AMP",), config, Place(gpu=True, bf16=False))[0].on == "fp16"
    assert read_levers(("AMP",), config, Place(gpu=True))[0].on == "bf16"
    assert read_levers(("AMP=fp16",), config, Place())[0].on == "fp16"
    assert read_levers(("AMP",), config, Place(bf16=False))[0].on == "bf16"


@pytest.mark.parametrize(
    "cpuinfo, has",
    [
        ("model name\t: x\nflags\t\t: fpu avx512_bf16 avx512bw\n", True),
        ("flags\t\t: fpu amx_bf16 amx_tile\n", True),
        ("Features\t: fp asimd bf16 i8mm\n", True),
        ("model name\t: bf16 avx512_bf16\nflags\t\t: fpu avx2 avx512bw\n", False),
        ("", False),
    ],
)
def test_bf16_units_are_read_from_the_flags_of_a_processor(cpuinfo, has):
    assert has_bf16(cpuinfo) is has


def test_a_processor_that_emulates_bf16_is_named_on_the_page(config):
    """Where bf16 is a lever, and nowhere else."""
    plan = plan_of(config, ("GA",))
    for texts, place, named in (
        (("GA", "AMP"), Place(bf16=False), True), (("precision=bf16",), Place(bf16=False), True),
        (("GA", "AMP=fp16"), Place(bf16=False), False), (("GA",), Place(bf16=False), False),
        (("AMP",), Place(), False), (("AMP=bf16",), Place(gpu=True, bf16=False), False),
    ):  # fmt: skip
        levers = read_levers(texts, config, place)
        assert (EMULATED in remarks(plan, levers, [run_of("none", 0, (1.0,))])) is named, texts


@pytest.mark.parametrize(
    "texts, said",
    [
        ((), "at least one"),
        (("XX",), "no lever of this name; there are GA, AMP, PM and channels_last"),
        (("GA=1",), "2 or more"),
        (("GA=two",), "not a whole number"),
        (("AMP=int8",), "bf16 or fp16"),
        (("PM=3",), "takes no value"),
        (("GA", "GA=8"), "twice"),
        (("recompute=0",), "nothing would change"),
        (("compile=fast",), "none of none, default"),
        (("spans",), "no lever"),
    ],
)
def test_levers_that_make_no_sense_are_refused(config, texts, said):
    with pytest.raises(ConfigError, match=said):
        read_levers(texts, config, Place())


def test_settings_are_read_by_their_type(config):
    got = changed(
        config, ["optim.lr=0.25", "clip.size=40", "optim.clip-norm=none", "model.small_input=true"]
    )
    assert (got.optim.lr, got.clip.size, got.optim.clip_norm) == (0.25, 40, None)
    assert got.model.small_input is True
    for text, said in (
        ("optim.lr", "FIELD=VALUE"), ("optim.rate=1", "no field optim.rate"),
        ("lr=1", "no field"), ("model=x", "no field"), ("model.temporal=x", "no field"),
        ("optim.lr=fast", "not a number"),
    ):  # fmt: skip
        with pytest.raises(ConfigError, match=said):
            changed(config, [text])


def losses(config, epochs=2):
    """Loss of each epoch, and what the test says, in this process."""
    config = replace(config, optim=replace(config.optim, epochs=epochs))
    job = Job(config.to_json())
    job(OPEN)
    rows = [job(EPOCH) for _ in range(epochs)]
    return [row["loss"] for row in rows], job(TEST)


def test_a_run_trains_and_tests_as_matinee_train_does(config, tmp_path):
    own, tested = losses(config)
    run = replace(config.run, out=str(tmp_path / "run"), log_every=1000)
    result = train(replace(config, run=run, optim=replace(config.optim, epochs=2)))
    rows = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").open()]
    assert own == [row["loss"] for row in rows if row["kind"] == "train"]
    assert tested["top1"] == result.val["top1"] and tested["macro_f1"] == result.val["macro_f1"]
    assert tested["peak_bytes"] >= tested["held_bytes"] > 0


def test_what_was_held_before_the_first_step_is_none_of_the_steps(config):
    """A quarter of a gigabyte on the way, given back before training."""
    before = np.ones(256 << 20, np.uint8)
    del before
    _, tested = losses(config, 1)
    assert 0 <= tested["peak_bytes"] - tested["held_bytes"] < 200 << 20


def test_accumulation_is_the_same_training(config):
    plan = plan_of(config, ("GA", "AMP"))
    found = {
        name: losses(configure(config, plan.levers, cell(plan, name), epochs=1, seed=0), 1)[0]
        for name in ("none", "GA", "AMP")
    }
    assert found["GA"] == pytest.approx(found["none"], rel=1e-4)
    assert found["AMP"] == pytest.approx(found["none"], rel=0.05)
    assert found["AMP"] != found["none"]


def test_a_grid_is_measured_once_and_goes_on_where_it_stopped(pictures, tmp_path, monkeypatch):
    settings = tuple(f"{k}={str(v).lower()}" for k, v in PLAIN.items())
    options = Options(
        "vit_cifar", str(pictures), tmp_path, levers=("GA=2", "PM"), epochs=1, seeds=1,
        set=settings, tiny=True,
    )  # fmt: skip
    told = []
    first = measure(options, on_step=lambda *step: told.append(step))
    assert told[-1][:2] == (4, 4) and [step[0] for step in told] == sorted(s[0] for s in told)
    rows = {row[0]: row for row in first.parts[0].tables[0].rows}
    assert list(rows) == ["none", "GA", "PM", "GA+PM"]
    assert rows["PM"][2] == rows["GA+PM"][2] == NO_GPU
    assert not any(character.isdigit() for text in rows["PM"][1:] for character in text)
    json.dumps(first.data, allow_nan=False)

    def no_process(*args, **more):
        raise AssertionError("a finished run was run again")

    monkeypatch.setattr(ablation_grid, "WorkerPool", no_process)
    again = measure(options, on_step=lambda *step: None)
    assert again.data["runs"] == first.data["runs"]
    with pytest.raises(AssertionError, match="run again"):  # only the other seed is missing
        measure(replace(options, seeds=2), on_step=lambda *step: None)
    with pytest.raises(ConfigError, match=r"other settings \(config.optim.lr 0.01 → 0.02;"):
        other = (*settings, "optim.lr=0.02")
        measure(replace(options, set=other), on_step=lambda *step: None)
    (tmp_path / "runs" / "GA-seed0.json").write_text("{")
    with pytest.raises(ConfigError, match=r"GA-seed0.json is damaged.*delete it"):
        measure(options, on_step=lambda *step: None)


def test_a_run_that_fails_is_named(config, tmp_path, monkeypatch):
    monkeypatch.setattr(ablation_grid, "WorkerPool", Here)
    plan = plan_of(put(config, {"optim.lr": 1e30, "optim.clip_norm": None}), ("GA",))
    with pytest.raises(MatineeError, match=r"seed 0: .*not finite"):
        ablation_grid.run_grid(plan, tmp_path, lambda units, what: None)
    assert not list((tmp_path / "runs").iterdir())


def test_a_process_that_died_is_named(config, tmp_path, monkeypatch):
    class Dying(Here):
        def results(self):
            yield Answer(0, died="process 7 was ended by SIGKILL (often: out of memory)")

    monkeypatch.setattr(ablation_grid, "WorkerPool", Dying)
    with pytest.raises(MatineeError, match="none, seed 0: process 7 was ended by SIGKILL"):
        ablation_grid.run_grid(plan_of(config, ("GA",)), tmp_path, lambda units, what: None)


@pytest.mark.parametrize("turns", [True, False])
def test_runs_take_turns_or_follow_each_other(config, tmp_path, monkeypatch, turns):
    """Orders as the processes get them: the one that begins changes with each epoch."""
    asked = []
    tested = {"peak_bytes": 2, "held_bytes": 1, "top1": 0.5, "macro_f1": 0.5, "samples": 4}
    answers = {
        OPEN: {"device": "cpu", "precision": "fp32"},
        EPOCH: {"seconds": 1.0, "loss": 0.5, "clips": 8, "steps": 1}, TEST: tested,
    }  # fmt: skip

    class Noting(Here):
        def submit(self, number, order):
            asked.append((self.job._config.optim.accumulate, order))
            self.order = order

        def results(self):
            yield Answer(0, value=answers[self.order])

    monkeypatch.setattr(ablation_grid, "WorkerPool", Noting)
    plan = plan_of(config, ("GA",), turns=turns)
    runs = ablation_grid.run_grid(plan, tmp_path, lambda units, what: None)
    assert [run.cell for run in runs] == ["none", "GA"]
    one, two = (1, EPOCH), (4, EPOCH)
    epochs = [held for held in asked if held[1] == EPOCH]
    assert epochs == ([one, two, two, one] if turns else [one, one, two, two])


def test_ratios_across_sittings_are_named(config, tmp_path, monkeypatch):
    """A grid of which one run is missing: the cell that is run later is not as the others."""
    monkeypatch.setattr(ablation_grid, "WorkerPool", Here)
    plan = plan_of(config, ("GA=2", "fused"), epochs=1)
    runs = ablation_grid.run_grid(plan, tmp_path, lambda units, what: None)
    assert len({run.sitting for run in runs}) == 1 and not across_sittings(runs)
    assert "several sittings" not in remarks(plan, plan.levers, runs)
    (tmp_path / "runs" / "GA-seed0.json").unlink()
    runs = ablation_grid.run_grid(plan, tmp_path, lambda units, what: None)
    assert across_sittings(runs) == ("GA",)
    assert "several sittings: GA not always" in remarks(plan, plan.levers, runs)
    # As good as measured at once: each seed in a sitting of its own.
    seeds = [run_of(name, i, (1.0,), sitting=str(i)) for i in (0, 1) for name in ("none", "GA")]
    assert not across_sittings(seeds)


def test_speed_is_compared_epoch_by_epoch_and_the_first_does_not_count(config):
    plan = plan_of(config, ("GA", "PM"), epochs=3, seeds=2)
    runs = [
        run_of("none", 0, (9.0, 2.0, 4.0), peak_bytes=100), run_of("none", 1, (9.0, 3.0, 3.0)),
        run_of("GA", 0, (1.0, 1.0, 2.0), peak_bytes=80, top1=0.25),
        run_of("GA", 1, (1.0, 1.5, 6.0)),
    ]  # fmt: skip
    rows = {row.cell: row for row in summarise(plan, runs)}
    assert rows["none"].epoch_s.median == 3.0 and rows["none"].speedup is None
    assert rows["GA"].speedup.median == 2.0  # of 2, 2, 2 and 0.5
    assert rows["GA"].speedup.count == 4
    assert rows["GA"].step_bytes.median == pytest.approx((20 + 40) / 2)
    assert rows["PM"].cannot == NO_GPU and rows["PM"].epoch_s is None
    shown = {row[0]: row for row in table(list(rows.values()), runs).rows}
    assert shown["GA"][5] == "37.5 (25.0–50.0)" and shown["GA"][2].startswith("2 (")


def test_differences_name_settings_on_either_side():
    assert differences({"a": {"b": 1}, "c": 2}, {"a": {"b": 3}, "d": 2}) == [
        "a.b 1 → 3", "c 2 → None", "d None → 2",
    ]  # fmt: skip


@pytest.mark.parametrize(
    "more, said",
    [
        ({"recipe": "nothing"}, "no recipe"),
        ({"recipe": "clip_ego4d"}, "recipe that classifies"),
        ({"epochs": 0}, "at least 1"),
        ({"batch_size": 9}, "divide"),
    ],
)
def test_impossible_ablations_are_refused(pictures, tmp_path, more, said):
    options = Options(recipe="vit_cifar", data=str(pictures), out=tmp_path, tiny=True)
    with pytest.raises(ConfigError, match=said):
        measure(replace(options, **more), on_step=lambda *step: None)


@pytest.mark.gpu
def test_pinned_memory_is_measured_on_a_gpu(clips_pack, tmp_path):
    if not torch.cuda.is_available():
        pytest.skip("no GPU")
    options = Options(
        "tsm", str(clips_pack), tmp_path, levers=("PM",), epochs=1, seeds=1, tiny=True
    )
    result = measure(options, on_step=lambda *step: None)
    assert [row[0] for row in result.parts[0].tables[0].rows] == ["none", "PM"]
    assert all(run["peak_bytes"] > run["held_bytes"] for run in result.data["runs"])
    assert isinstance(plan_of(RECIPES["tsm"](str(clips_pack), "x"), ("PM",)), Plan)
