"""Which weights of a run are loaded: the newest or the best, averaged where training averaged."""

from __future__ import annotations

import json
import shutil

import pytest
import torch

import matinee
from matinee.cli import main
from matinee.errors import ConfigError, MatineeError
from matinee.inference.evaluate import evaluate
from matinee.inference.load import load_run
from matinee.training.state.runfolder import RunFolder


@pytest.fixture
def folder(causal_run, tmp_path) -> RunFolder:
    """A run of its own, whose checkpoints may be changed."""
    shutil.copytree(causal_run, tmp_path / "run", symlinks=True)
    return RunFolder(tmp_path / "run")


def fill(tensors, value):
    return {name: torch.full_like(tensor, value) for name, tensor in tensors.items()}


def test_averaged_weights_take_the_place_of_those_that_were_averaged(folder):
    """The others, here running statistics, are the model's own; the notes say so."""
    held = folder.load_checkpoint()
    weights = held["state"]["model"]
    parameters = dict(load_run(folder.path, device="cpu").task.model.named_parameters())
    assert 0 < len(parameters) < len(weights)
    averaged = fill(parameters, 0.25)
    held["state"]["ema"] = {"updates": 1234, "weights": averaged}
    folder.save_checkpoint(held)
    loaded = load_run(folder.path, device="cpu")
    assert loaded.notes == ("weights averaged over 1,234 updates (EMA), as they were validated",)
    for name, value in loaded.task.model.state_dict().items():
        assert torch.equal(value, averaged.get(name, weights[name])), name
    held["state"]["ema"] = None
    folder.save_checkpoint(held)
    loaded = load_run(folder.path, device="cpu")
    assert loaded.notes == ()
    for name, value in loaded.task.model.state_dict().items():
        assert torch.equal(value, weights[name]), name


def test_averages_of_another_network_are_refused(folder):
    held = folder.load_checkpoint()
    held["state"]["ema"] = {"updates": 1, "weights": {"nowhere": torch.zeros(1)}}
    folder.save_checkpoint(held)
    with pytest.raises(MatineeError, match="checkpoint and config differ"):
        load_run(folder.path, device="cpu")


def test_the_best_checkpoint_is_evaluated_when_asked_for(folder, capsys):
    """Beside the newest, into a file of its own."""
    held = folder.load_checkpoint()
    step = held["state"]["step"]
    folder.save_checkpoint(held, best=True)
    held["state"]["step"] = step + 1
    held["state"]["model"] = fill(held["state"]["model"], 0.0)
    held["state"]["ema"] = {"updates": 9, "weights": {}}
    folder.save_checkpoint(held)
    assert load_run(folder.path, device="cpu").step == step + 1
    args = ["eval", str(folder.path), "--workers", "1", "--device", "cpu", "--views", "1x1"]
    assert main([*args, "--best"]) == 0
    assert "EMA" not in capsys.readouterr().out
    best = json.loads((folder.path / "eval-val-1x1-best.json").read_text())
    assert best["step"] == step and best["notes"] == []
    loaded = load_run(folder.path, device="cpu", checkpoint="best")
    assert loaded.step == step and evaluate(loaded, views=(1, 1), workers=1) == best
    assert main(args) == 0
    assert "averaged over 9 updates (EMA)" in capsys.readouterr().out
    newest = json.loads((folder.path / "eval-val-1x1.json").read_text())
    assert newest["step"] == step + 1 and "EMA" in newest["notes"][0]
    # All logits are 0: every class is as probable.
    assert {row["probability"] for row in newest["predictions"]} == {0.5}


def test_a_device_that_is_not_here_is_called_by_its_flag(causal_run):
    with pytest.raises(ConfigError, match=r"^--device cuda:99: "):
        load_run(causal_run, device="cuda:99")
    with pytest.raises(ConfigError, match=r"^--device 'gpu': auto, cpu or cuda"):
        load_run(causal_run, device="gpu")


def test_every_public_name_is_there():
    """Each from its own module, on first use."""
    for name in matinee.__all__:
        found = getattr(matinee, name)
        assert found.__name__.endswith(name), name
