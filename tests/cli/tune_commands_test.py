"""`matinee find-lr` and `matinee tune`: what they write, say, and refuse."""

import json
import re
import shlex
from dataclasses import replace

import pytest

from matinee.cli import find_lr, train, tune
from matinee.errors import ConfigError
from matinee.recipes import RECIPES
from matinee.training.config import TrainConfig
from matinee.training.search.flags import flags

pytest.importorskip("optuna")
TINY = ["--tiny", "--model.backbone", "test_resnet", "--clip.frames", "2", "--run.device", "cpu"]
SEARCH = ["--search", "optim.lr=1e-3..1e-1:log", "--search", "optim.clip_norm=none,20"]


def searched(pack, out, *more):
    return tune.main(
        ["tsm", "--data", str(pack), "--out", str(out), *TINY, *SEARCH, "--progress", "none", *more]
    )


@pytest.fixture(scope="module")
def found(clips_pack, tmp_path_factory):
    """A search of three trials."""
    out = tmp_path_factory.mktemp("tuned") / "search"
    assert searched(clips_pack, out, "--trials", "3", "--optim.momentum", "0.8") == 0
    return out


def test_find_lr_writes_curve_and_plots_and_says_what_to_take(clips_pack, tmp_path, capsys):
    out = tmp_path / "lr"
    range_ = ["--from", "1e-4", "--to", "1e6", "--steps", "40"]
    assert find_lr.main(["tsm", "--data", str(clips_pack), "--out", str(out), *TINY, *range_]) == 0
    said = " ".join(capsys.readouterr().out.split())
    written = json.loads((out / "lr.json").read_text())
    count = len(written["rates"])
    assert written["steps"] == 40 and written["rates"][0] == pytest.approx(1e-4)
    assert written["diverged"] == (count < 40 or "diverged" in said)
    assert f"{count} of 40 steps" in said and str(out / "lr.json") in said
    taken = written["suggestion"]["lr"]
    told = f"take --optim.lr {taken:.2g}" if taken is not None else "no rate to suggest"
    assert told in said
    assert (out / "lr.png").read_bytes().startswith(b"\x89PNG")
    assert "<svg" in (out / "lr.svg").read_text()
    assert sorted(path.name for path in out.iterdir()) == ["lr.json", "lr.png", "lr.svg"]


def test_tune_writes_study_and_page(found):
    study = json.loads((found / "study.json").read_text())
    assert len(study["trials"]) == 3 and study["title"] == "tsm on clips.pack"
    assert (found / "search.html").stat().st_size > 10_000


def test_the_command_it_gives_trains_the_winner(found, monkeypatch):
    """Read back by `matinee train`: the winner's config but for its folder."""
    study = json.loads((found / "study.json").read_text())
    matinee, command, *args = shlex.split(study["command"])
    assert (matinee, command, args[0]) == ("matinee", "train", "tsm")
    winner = TrainConfig.from_json(
        (found / f"trial-{study['best']:04d}" / "config.json").read_text()
    ).to_dict()
    plain = trained(monkeypatch, args).to_dict()
    assert plain["run"].pop("out") == f"{found}-best" and winner["run"].pop("out")
    assert plain == winner and plain["optim"]["momentum"] == 0.8


CHANGES = {
    "numbers": ("tsm", {"optim": {"lr": 0.00123, "batch_size": 12}, "clip": {"frames": 3}}),
    "nothing": ("tsm", {"optim": {"clip_norm": None}, "model": {"patch_size": 8}}),
    "switches": ("resnet50_cifar", {"model": {"small_input": False}, "speed": {"tf32": False}}),
    "a switch on": ("tsm_kinetics", {"model": {"partial_bn": True}}),
    "several": ("videomae_kinetics", {"optim": {"betas": (0.8, 0.9), "drops": (0.1, 0.2, 0.3)}}),
    "text": ("clip_ego4d", {"task": {"embed_dim": 64}, "data": {"train_split": "a=b c,d"}}),
}


@pytest.mark.parametrize("name", CHANGES)
def test_flags_give_back_any_config(name, monkeypatch):
    """Through a shell's quoting and `matinee train`."""
    recipe, changes = CHANGES[name]
    start = config = RECIPES[recipe]("my.pack", "out")
    for section, fields in changes.items():
        config = replace(config, **{section: replace(getattr(config, section), **fields)})
    line = shlex.join([recipe, "--data", "my.pack", "--out", "out", *flags(config, start)])
    assert trained(monkeypatch, shlex.split(line)) == config
    assert flags(start, start) == []


def trained(monkeypatch, args):
    """The config that `matinee train` would run."""
    given = []

    def stop(config, **more):
        given.append(config)
        raise KeyboardInterrupt

    monkeypatch.setattr(train, "train", stop)
    with pytest.raises(KeyboardInterrupt):
        train.main(args)
    return given[0]


def test_tune_goes_on_and_tells_so(found, clips_pack, capsys):
    args = ["--trials", "4", "--optim.momentum", "0.8", "--progress", "plain"]
    assert searched(clips_pack, found, *args) == 0
    said = capsys.readouterr()
    assert "goes on with a search of 3 trials" in said.err
    assert re.search(r"trial 3: lr \S+, clip_norm (none|20)", said.err)
    assert "4 trials of 1 epoch" in said.out and "matinee train tsm --tiny" in said.out


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (["--search", "optim.lrr=1e-4..1"], "no field optim.lrr: did you mean optim.lr?"),
        (["--search", "optim.lr=1..1"], "--search optim.lr=1..1: an empty range"),
        (["--search", "optim.lr=0..1:log"], "a logarithmic range starts above 0"),
        (["--space", "gone.json"], "--space gone.json: no such file"),
        (["--space", "a.json", "--search", "optim.lr=1..2"], "--space and --search: give one"),
        (["--trials", "0"], "--trials 0: at least 1"),
        (["--minutes", "-1"], "--minutes -1"),
    ],
)
def test_bad_flags_of_tune_are_one_line(clips_pack, tmp_path, args, words):
    base = ["tsm", "--data", str(clips_pack), "--out", str(tmp_path / "s"), *TINY]
    with pytest.raises(ConfigError, match=re.escape(words)) as refused:
        tune.main([*base, *args])
    assert "\n" not in str(refused.value) and not (tmp_path / "s").exists()


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (["--from", "0"], "--from 0 --to 10"),
        (["--steps", "3"], "--steps 3"),
        (["--optim.lr", "0"], "--optim.lr 0"),
    ],
)
def test_bad_flags_of_find_lr_are_one_line(clips_pack, tmp_path, args, words):
    base = ["tsm", "--data", str(clips_pack), "--out", str(tmp_path / "s"), *TINY]
    with pytest.raises(ConfigError, match=re.escape(words)):
        find_lr.main([*base, *args])
    assert not (tmp_path / "s").exists()


@pytest.mark.parametrize("command", [find_lr, tune])
def test_recipes_are_listed_and_unknown_ones_refused(command, capsys):
    assert command.main(["--help"]) == 0 and command.main([]) == 2
    assert "videomae_kinetics" in capsys.readouterr().out
    with pytest.raises(ConfigError, match="no recipe 'tsmm'"):
        command.main(["tsmm", "--data", "x"])
