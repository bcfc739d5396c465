"""A search by many short runs: it finds, prunes, and survives bad trials."""

import json
import os
import sys
import threading
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from relabel import relabelled
from small_search import LR, Lying, config

from matinee.errors import ClipError, ConfigError, MatineeError
from matinee.models.config import Joint, ModelConfig
from matinee.tasks.config import MaskedConfig
from matinee.training.loop import train
from matinee.training.search import tune as tune_module
from matinee.training.search.space import make_space
from matinee.training.search.study import Study
from matinee.training.search.tune import tune
from matinee.training.state.runfolder import RunFolder

pytest.importorskip("optuna")


def rows(folder):
    return [row for row in RunFolder(folder).rows() if row["kind"] == "val"]


def test_a_search_runs_trials_and_keeps_the_best(clips_pack, tmp_path):
    """Scores are the last validations of ordinary runs; the first is the recipe's own."""
    out = tmp_path / "search"
    found = tune(config(clips_pack, out), search=[*LR, "optim.name=sgd,adamw"], trials=3)
    trials = found.study.trials
    assert [trial.number for trial in trials] == [0, 1, 2]
    assert trials[0].baseline and trials[0].values == {"optim.lr": 0.01, "optim.name": "sgd"}
    for trial in trials:
        saved = RunFolder(out / trial.run).config()
        wanted = config(clips_pack, out / trial.run)
        optim = {key.removeprefix("optim."): value for key, value in trial.values.items()}
        assert saved == replace(wanted, optim=replace(wanted.optim, **optim))
        validated = [(row["epoch"], row["top1"]) for row in rows(out / trial.run)]
        assert list(trial.curve) == validated and trial.value == validated[-1][1]
        assert (out / trial.run / "last.pt").exists() == (trial is found.study.best)
        assert any((out / trial.run).rglob("*.pt")) == (trial is found.study.best)
    best = max(trials, key=lambda trial: (trial.value, -trial.number))
    assert found.study.best is best and not found.stopped
    written = json.loads((out / "study.json").read_text())
    assert written["best"] == best.number and len(written["trials"]) == 3
    assert written["space"] == ["optim.lr=0.001..0.1:log", "optim.name=sgd,adamw"]


def test_a_trial_is_the_run_that_its_settings_give(clips_pack, tmp_path):
    """Trained alone, they reach the same validations."""
    tune(config(clips_pack, tmp_path / "search"), search=LR, trials=2)
    saved = RunFolder(tmp_path / "search" / "trial-0001").config()
    train(replace(saved, run=replace(saved.run, out=str(tmp_path / "alone"))))
    strip = lambda row: {k: v for k, v in row.items() if k != "spans"}  # noqa: E731
    ours, theirs = rows(tmp_path / "search" / "trial-0001"), rows(tmp_path / "alone")
    assert list(map(strip, ours)) == list(map(strip, theirs))


@pytest.fixture
def lying(monkeypatch):
    def use(score, **more):
        lie = Lying(score, **more)
        monkeypatch.setattr(tune_module, "train", lie)
        return lie

    return use


def test_the_same_search_twice_is_the_same(clips_pack, tmp_path, lying):
    """And so is one that was ended half way and called again; another seed is another search."""
    lying(lambda made, epoch: 1 - abs(np.log10(made.optim.lr) + 2))
    search = [*LR, "optim.weight_decay=1e-5..1e-1:log", "optim.momentum=0.8,0.9,0.95"]
    whole, half, other = (config(clips_pack, tmp_path / name) for name in ("a", "b", "c"))
    values = lambda found: [trial.values for trial in found.study.trials]  # noqa: E731
    once = values(tune(whole, search=search, trials=9))
    assert len({str(value) for value in once}) == 9
    assert values(tune(half, search=search, trials=9, minutes=1e-9)) == [{}]  # none begun
    assert values(tune(half, search=search, trials=5)) == once[:5]
    assert values(tune(half, search=search, trials=9)) == once
    seeded = replace(other, run=replace(other.run, seed=4))
    assert values(tune(seeded, search=search, trials=3))[1:] != once[1:3]


def test_trials_behind_the_median_end_early(clips_pack, tmp_path, lying):
    """By the rule itself: its best so far is below the median of what complete trials had at that
    epoch, once there are four of them and a quarter of the epochs is over."""

    def score(made, epoch):
        return epoch / 10 - abs(np.log10(made.optim.lr / 0.01))

    lying(score, epochs=8)
    settings = config(clips_pack, tmp_path / "search", epochs=8)
    found = tune(settings, search=["optim.lr=1e-4..1:log"], trials=12).study
    complete: list = []
    for trial in found.trials:
        expected = 8
        for epoch in range(2, 8):  # at the last it is too late
            others = [dict(other.curve)[epoch] for other in complete]
            best = max(value for at, value in trial.curve if at <= epoch)
            if len(complete) >= 4 and best < np.median(others):
                expected = epoch
                break
        assert len(trial.curve) == expected, trial
        assert trial.state == ("complete" if expected == 8 else "pruned")
        if trial.state == "complete":
            complete.append(trial)
        else:
            assert f"behind the median of other trials after epoch {expected}" in trial.reason
    assert 4 <= len(complete) < 12
    unpruned = replace(settings, run=replace(settings.run, out=str(tmp_path / "all")))
    found = tune(unpruned, search=["optim.lr=1e-4..1:log"], trials=8, prune=False).study
    assert len(found.complete) == 8


def test_no_trial_is_ended_after_its_last_epoch(clips_pack, tmp_path, lying, monkeypatch):
    lying(lambda made, epoch: 0.5, epochs=1)
    monkeypatch.setattr(Study, "report", lambda *args: True)
    found = tune(config(clips_pack, tmp_path / "search", epochs=1), search=LR, trials=1).study
    assert found.trials[0].state == "complete"


@pytest.mark.parametrize("mode", ["threads", "processes"])
def test_a_trial_that_ends_early_leaves_nobody_behind(clips_pack, tmp_path, monkeypatch, mode):
    """After a real epoch: no thread, no worker process; the run is one that was stopped there."""
    settings = config(clips_pack, tmp_path / "search")
    settings = replace(settings, data=replace(settings.data, mode=mode))
    children = Path(f"/proc/self/task/{os.getpid()}/children")
    before = threading.active_count(), children.read_text()
    monkeypatch.setattr(Study, "report", lambda *args: True)
    found = tune(settings, search=LR, trials=1).study
    assert (threading.active_count(), children.read_text()) == before
    assert found.trials[0].state == "pruned" and "after epoch 1" in found.trials[0].reason
    assert [row["epoch"] for row in rows(tmp_path / "search" / "trial-0000")] == [1]


def test_a_loss_is_made_small(clips_pack, tmp_path, lying):
    lying(lambda made, epoch: abs(np.log10(made.optim.lr / 0.03)), metric="loss")
    masked = replace(
        config(clips_pack, tmp_path / "search"),
        model=ModelConfig(
            "vit_tiny_patch16_224",
            patch_size=8,
            dropout=0.0,
            temporal=Joint(tubelet=2, positions="sine"),
        ),
        task=MaskedConfig(decoder_depth=1, decoder_width=64, decoder_heads=2),
    )
    found = tune(masked, search=LR, trials=5)
    assert found.study.metric == "loss"
    assert found.study.best.value == min(trial.value for trial in found.study.trials)


def test_a_trial_that_diverges_is_told_and_the_search_goes_on(clips_pack, tmp_path):
    """By a real run with a rate that no network bears."""
    settings = config(clips_pack, tmp_path / "search", epochs=1, clip_norm=None)
    found = tune(settings, search=["optim.lr=0.01,1e30"], trials=4).study
    diverged = [trial for trial in found.trials if trial.values["optim.lr"] == 1e30]
    assert diverged and found.complete
    for trial in diverged:
        assert trial.state == "pruned" and trial.value is None
        assert trial.reason.startswith("diverged: ") and "finite" in trial.reason
        assert str(tmp_path) not in trial.reason


def test_a_trial_whose_own_values_cannot_be_is_told(clips_pack, tmp_path):
    """Twelve clips are no batch of sixteen; the recipe's own batch would do."""
    settings = config(clips_pack, tmp_path / "search", epochs=1)
    found = tune(settings, search=["optim.batch_size=4,16"], trials=3).study
    states = {(trial.values["optim.batch_size"], trial.state) for trial in found.trials}
    assert states <= {(4, "complete"), (16, "pruned")} and (16, "pruned") in states
    assert all(
        "fewer than one batch of 16" in t.reason for t in found.trials if t.state == "pruned"
    )


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"data": {"path": "nowhere"}}, "nowhere is no pack"),
        ({"data": {"train_split": "val", "val_split": "val"}}, "samples are in the training split"),
        ({"optim": {"batch_size": 16}}, "fewer than one batch of 16"),
        ({"model": {"backbone": "resnet5O"}}, "no model 'resnet5O'"),
        ({"task": {"labels": "verb+noun"}}, "'noun' is not among"),
    ],
)
def test_what_every_trial_would_stumble_over_ends_it_at_once(clips_pack, tmp_path, change, words):
    settings = config(clips_pack, tmp_path / "search")
    for section, fields in change.items():
        settings = replace(settings, **{section: replace(getattr(settings, section), **fields)})
    with pytest.raises(MatineeError, match=words):
        tune(settings, search=LR, trials=3)
    assert not (tmp_path / "search").exists()


def test_what_only_a_run_would_stumble_over_ends_it_with_the_first(clips_pack, tmp_path):
    """Nothing has been trained by then."""
    settings = config(clips_pack, tmp_path / "search", noise_scale=True)
    with pytest.raises(ConfigError, match="noise-scale compares"):
        tune(settings, search=LR, trials=3)
    assert not list((tmp_path / "search").glob("trial-*"))


def test_a_validation_that_is_not_finite_is_told(clips_pack, tmp_path, lying):
    lying(lambda made, epoch: np.nan if made.optim.lr == 0.1 else 0.5)
    settings = config(clips_pack, tmp_path / "search")
    found = tune(settings, search=["optim.lr=0.01,0.1"], trials=4).study
    bad = [trial for trial in found.trials if trial.values["optim.lr"] == 0.1]
    assert bad and all(trial.state == "pruned" and not trial.curve for trial in bad)
    assert bad[0].reason == "diverged: validation top1 is not finite, epoch 1"


def test_a_search_needs_something_to_validate_on(clips_pack, tmp_path):
    pack = relabelled(clips_pack, tmp_path / "all.pack", split=["train"] * 18)
    with pytest.raises(ConfigError, match="nothing to validate on"):
        tune(config(pack, tmp_path / "search"), search=LR, trials=3)


def test_other_settings_in_the_folder_of_a_search_are_refused(clips_pack, tmp_path, lying):
    """Named by their section; where it runs and how many trials may differ."""
    lying(lambda made, epoch: 0.5)
    settings = config(clips_pack, tmp_path / "search")
    tune(settings, search=LR, trials=1)
    for search, changed, section in (
        (["optim.lr=1e-3..1:log"], {}, "space"),
        (LR, {"optim": {"epochs": 3}}, "optim"),
        (LR, {"clip": {"frames": 4}}, "clip"),
        (LR, {"run": {"seed": 4}}, "run"),
    ):
        other = settings
        for name, fields in changed.items():
            other = replace(other, **{name: replace(getattr(other, name), **fields)})
        with pytest.raises(ConfigError, match=f"other settings in section '{section}'"):
            tune(other, search=search, trials=2)
    moved = replace(settings, data=replace(settings.data, workers=2, mode="processes"))
    assert len(tune(moved, search=LR, trials=2).study.trials) == 2


@pytest.mark.parametrize(
    ("more", "words"), [({"trials": 0}, "--trials 0"), ({"minutes": 0}, "--minutes 0")]
)
def test_searches_of_nothing_are_refused(clips_pack, tmp_path, more, words):
    with pytest.raises(ConfigError, match=words):
        tune(config(clips_pack, tmp_path / "search"), search=LR, **more)


def test_several_ranks_are_refused(clips_pack, tmp_path, monkeypatch):
    for name, value in (("RANK", "0"), ("WORLD_SIZE", "2"), ("LOCAL_RANK", "0"),
                        ("LOCAL_WORLD_SIZE", "2"), ("MASTER_ADDR", "127.0.0.1"),
                        ("MASTER_PORT", "1")):  # fmt: skip
        monkeypatch.setenv(name, value)
    with pytest.raises(ConfigError, match="without torchrun or srun"):
        tune(config(clips_pack, tmp_path / "search"), search=LR)


@pytest.mark.parametrize("error", [ClipError("a", "b", "torn"), OSError(28, "full"), KeyError("k")])
def test_an_error_that_is_no_trials_own_ends_the_search_and_the_trial_is_tried_again(
    clips_pack, tmp_path, monkeypatch, lying, error
):
    lie = lying(lambda made, epoch: 0.5)

    def fail(made, **more):
        raise error

    settings = config(clips_pack, tmp_path / "search")
    monkeypatch.setattr(tune_module, "train", fail)
    with pytest.raises(type(error)):
        tune(settings, search=LR, trials=2)
    monkeypatch.setattr(tune_module, "train", lie)
    found = tune(settings, search=LR, trials=2)
    assert [trial.state for trial in found.study.trials] == ["complete", "complete"]
    assert found.study.trials[0].values == {"optim.lr": 0.01} and len(lie.calls) == 2


def test_an_out_of_memory_trial_is_told(clips_pack, tmp_path, monkeypatch):
    def full(made, **more):
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(tune_module, "train", full)
    found = tune(config(clips_pack, tmp_path / "search"), search=LR, trials=2).study
    assert [trial.reason for trial in found.trials] == ["out of GPU memory"] * 2


def test_importance_finds_the_setting_that_the_score_is_made_of(clips_pack, tmp_path, lying):
    lying(lambda made, epoch: -abs(np.log10(made.optim.lr / 0.01)))
    search = [
        "optim.lr=1e-4..1:log",
        "optim.weight_decay=1e-6..1e-1:log",
        "clip.flip=none,horizontal",
    ]
    found = tune(config(clips_pack, tmp_path / "s"), search=search, trials=12, prune=False).study
    assert sum(found.importance.values()) == pytest.approx(1)
    assert found.importance["optim.lr"] == max(found.importance.values()) > 0.6
    few = tune(config(clips_pack, tmp_path / "few"), search=search, trials=4).study
    assert few.importance == {}


def test_a_best_value_at_the_end_of_its_range_is_pointed_out(clips_pack, tmp_path, lying):
    lying(lambda made, epoch: made.optim.lr)
    found = tune(config(clips_pack, tmp_path / "s"), search=["optim.lr=0.01..0.0101"], trials=5)
    best = found.study.best.values["optim.lr"]
    near = (best - 0.01) / 0.0001 > 0.95
    assert [d.field for d in found.study.at_edge] == (["optim.lr"] if near else [])
    space = make_space(LR, config(clips_pack, "x"), ())
    for value, part in ((1e-3, 0), (0.01, 0.5), (0.1, 1)):
        assert space[0].part(value) == pytest.approx(part)


def test_without_optuna_the_command_that_installs_it_is_told(clips_pack, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "optuna", None)
    with pytest.raises(MatineeError, match=r"pip install 'matinee\[tune\]'"):
        tune(config(clips_pack, tmp_path / "search"), search=LR, trials=1)


def test_the_study_file_can_lie_anywhere(clips_pack, tmp_path, lying):
    """Also where an address would end, or a format begin."""
    lying(lambda made, epoch: 0.5)
    out = tmp_path / "a {b}?c#d%20 é"
    assert len(tune(config(clips_pack, out), search=LR, trials=1).study.trials) == 1
    assert (out / "study.db").exists()
