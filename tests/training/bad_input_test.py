"""Bad input of every task: one line on standard error, status 2, and no run left behind."""

import math
from dataclasses import replace

import pytest
import timm
import torch
from relabel import relabelled

from matinee.cli import main
from matinee.data.clips import ClipSpec
from matinee.data.loader import ClipLoader
from matinee.errors import MatineeError
from matinee.models.config import ModelConfig
from matinee.pack.reading.reader import Pack
from matinee.tasks.base import Outcome
from matinee.tasks.classification import ClassificationTask
from matinee.training.config import DataConfig, OptimConfig, RunConfig, TrainConfig
from matinee.training.loop import train
from matinee.training.state.runfolder import RunFolder

PAIR = ["--task.text.width", "8", "--task.text.layers", "1", "--model.backbone", "test_vit"]


@pytest.fixture(scope="module")
def pack(clips_pack, tmp_path_factory):
    """With captions; the second sample's is longer than CLIP's context."""
    captions = [f"clip number {i}" for i in range(18)]
    captions[1] = "rain " * 90
    return relabelled(clips_pack, tmp_path_factory.mktemp("bad") / "captions.pack", text=captions)


def run(recipe, pack, out, *flags, progress="none"):
    return main(
        ["train", recipe, "--tiny", "--data", str(pack), "--out", str(out), "--run.device", "cpu",
         "--progress", progress, *flags]
    )  # fmt: skip


def refusal(capsys, out, *args) -> str:
    """The one line that a command ends with."""
    assert run(*args[:2], out, *args[2:]) == 2
    said = capsys.readouterr()
    assert said.out == "" and "Traceback" not in said.err
    (line,) = said.err.splitlines()
    assert line.startswith("matinee train: ") and not (out / "last.pt").exists()
    return line


MASK = "--task.mask-ratio"
CASES = {
    "hides all": ("videomae_kinetics", [MASK, "1.0"], "--task.mask-ratio 1.0: between 0 and 1"),
    "hides none": ("videomae_kinetics", [MASK, "0.05"], "hides 0 of the 16 patches"),
    "odd frames, masked": (
        "videomae_kinetics", ["--clip.frames", "5"], "5 frames cannot be cut into tubelets of 2",
    ),
    "odd frames, joint": (
        "videomae_finetune_kinetics", ["--clip.frames", "3"], "3 frames cannot be cut into tube",
    ),
    "odd size": ("videomae_kinetics", ["--clip.size", "36"], "--clip.size 36 is no multiple of"),
    "a CNN, masked": (
        "videomae_kinetics", ["--model.backbone", "resnet10t"], "take a plain ViT such as",
    ),
    "a CNN, joint": (
        "clip_ego4d", ["--model.backbone", "resnet10t"], "joint attention needs a ViT",
    ),
    "a ViT, shifted": (
        "tsm", ["--model.backbone", "vit_tiny_patch16_224"], "no residual blocks .* to shift",
    ),
    "no such network": (
        "tsm", ["--model.backbone", "resnet5O"], "no model 'resnet5O'; did you mean .*resnet50",
    ),
    "partial BN from scratch": (
        "tsm", ["--model.partial-bn"], "--model.partial-bn .* give --model.pretrained",
    ),
    "too cold": ("clip_ego4d", ["--task.temperature", "0.009"], "at least 0.01, CLIP's limit"),
    "no verbs": ("cls_epic100", [], "'noun' is not among"),
    "no relevancy": ("mir_epic100", ["--task.graded", *PAIR], "'noun' is not among"),
    "graded without hinges": ("clip_ego4d", ["--task.graded"], "no effect without --task.loss"),
    "no such weights": ("tsm", ["--model.pretrained", "gone.pt"], "gone.pt: no such file"),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_settings_that_cannot_be_are_refused(pack, tmp_path, capsys, name):
    import re

    recipe, flags, words = CASES[name]
    line = refusal(capsys, tmp_path / "run", recipe, pack, *flags)
    assert re.search(words, line), line
    assert not (tmp_path / "run").exists()


def test_weights_of_another_size_are_refused(pack, tmp_path, capsys):
    """With the key and both shapes; and of another network, by how little matches."""
    torch.save(timm.create_model("resnet14t").state_dict(), tmp_path / "deeper.pt")
    line = refusal(
        capsys, tmp_path / "run", "tsm", pack, "--model.pretrained", str(tmp_path / "deeper.pt")
    )
    assert "deeper.pt is for another network: layer1.0.conv1.weight is [64, 64, 1, 1] there" in line
    torch.save(timm.create_model("test_vit").state_dict(), tmp_path / "vit.pt")
    line = refusal(
        capsys, tmp_path / "run", "tsm", pack, "--model.pretrained", str(tmp_path / "vit.pt")
    )
    assert "vit.pt" in line


def test_empty_captions_are_counted_and_the_first_is_named(pack, tmp_path, capsys):
    """Of the split that is trained on, and of the one that is validated on."""
    held = Pack(pack)
    names = held.samples.column("sample").to_pylist()
    captions = held.samples.column("text").to_pylist()
    val = held.select("val").tolist()
    captions[val[1]] = None
    bad = relabelled(pack, tmp_path / "val.pack", text=captions)
    line = refusal(capsys, tmp_path / "run", "clip_ego4d", bad)
    assert "1 of 6 samples of split 'val' have no caption (column 'text'), the first is " in line
    assert repr(names[val[1]]) in line
    train_rows = held.select("train").tolist()
    captions[train_rows[0]], captions[train_rows[3]] = " \n ", ""
    bad = relabelled(pack, tmp_path / "train.pack", text=captions)
    line = refusal(capsys, tmp_path / "run", "clip_ego4d", bad)
    assert "2 of 12 samples of split 'train'" in line and repr(names[train_rows[0]]) in line


@pytest.mark.parametrize("kind", ["single", "multi"])
def test_classes_that_training_never_saw_are_named(pack, tmp_path, capsys, kind):
    held = Pack(pack)
    labels = held.samples.column("label").to_pylist()
    for row in held.select("val").tolist()[:2]:
        labels[row] = "jump" if kind == "single" else f"{labels[row]} | jump"
    bad = relabelled(pack, tmp_path / "bad.pack", label=labels)
    line = refusal(capsys, tmp_path / "run", "tsm", bad, "--task.labels", kind)
    wanted = "1 of 3 classes of split 'val' never occur in the training split 'train', the first is"
    assert f"{wanted} 'jump'" in line


def test_training_samples_without_a_label_are_named(pack, tmp_path, capsys):
    held = Pack(pack)
    labels = held.samples.column("label").to_pylist()
    row = held.select("train").tolist()[4]
    labels[row] = None
    bad = relabelled(pack, tmp_path / "bad.pack", label=labels)
    line = refusal(capsys, tmp_path / "run", "tsm", bad)
    assert "1 of 12 samples of split 'train' have no label" in line
    assert repr(held.samples.column("sample")[row].as_py()) in line


def test_a_single_class_is_refused(pack, tmp_path, capsys):
    bad = relabelled(pack, tmp_path / "bad.pack", label=["walk"] * 18)
    line = refusal(capsys, tmp_path / "run", "tsm", bad)
    assert "the single label 'walk'; classification needs two or more" in line


def test_captions_longer_than_the_context_are_cut_and_counted(pack, tmp_path, capsys):
    """Said at the start; how many of a step's clips, in its row; how many of validation, there."""
    assert 1 in Pack(pack).select("train")
    assert run("clip_ego4d", pack, tmp_path / "run", *PAIR, progress="plain") == 0
    said = " ".join(capsys.readouterr().err.split())
    assert "12 captions of 12 clips; 1 longer than 77 tokens and cut to them" in said
    rows = RunFolder(tmp_path / "run").rows()
    cut = [row["cut"] * row["clips"] for row in rows if row["kind"] == "train"]
    assert sum(cut) == pytest.approx(1) and rows[-1]["cut"] == 0


def config(pack, out, **optim) -> TrainConfig:
    return TrainConfig(
        data=DataConfig(path=str(pack), workers=1, mode="threads"),
        run=RunConfig(out=str(out), seed=3, device="cpu", log_every=100),
        model=ModelConfig("test_resnet", dropout=0.0),
        clip=ClipSpec(frames=2, size=32),
        optim=OptimConfig(**({"batch_size": 4, "epochs": 3, "lr": 0.01} | optim)),
    )


def of_loss(outcome):
    return outcome.loss * math.nan


def of_gradient(outcome):
    """0, whose square root has no slope."""
    return outcome.loss + (0 * outcome.loss).sqrt()


@pytest.mark.parametrize("spoil", [of_loss, of_gradient])
def test_a_step_that_is_not_finite_is_named_with_its_samples(pack, tmp_path, monkeypatch, spoil):
    """The fifth, in the second epoch of three steps; the sixth is spoilt by it. Which samples it
    had, a loader of its own tells; what was saved after the third is finite."""
    forward, calls = ClassificationTask.forward, []

    def spoilt(self, batch):
        outcome = forward(self, batch)
        if self.training:
            calls.append(batch.samples)
            if len(calls) == 5:
                return Outcome(spoil(outcome), outcome.sums)
        return outcome

    monkeypatch.setattr(ClassificationTask, "forward", spoilt)
    out = tmp_path / "run"
    with pytest.raises(MatineeError) as stopped:
        train(config(pack, out))
    assert len(calls) == 6
    held = Pack(pack)
    with ClipLoader(
        held, split="train", clip=ClipSpec(frames=2, size=32), batch_size=4, seed=3, workers=1,
        mode="threads",
    ) as loader:  # fmt: skip
        batches = [batch.samples for _ in range(2) for batch in loader]
    line = str(stopped.value)
    assert "\n" not in line
    assert f"not finite in step 5, on samples {', '.join(batches[4])}: " in line
    assert f"the last checkpoint, {out / 'last.pt'}, is from step 3 and finite" in line
    state = RunFolder(out).load_checkpoint()["state"]
    assert state["step"] == 3
    assert all(value.isfinite().all() for value in state["model"].values())
    assert [r["step"] for r in RunFolder(out).rows() if r["kind"] == "train"] == [3]


def test_weights_beyond_their_range_are_never_saved(pack, tmp_path):
    """A single step at an absurd rate: its loss was finite, what it left is not."""
    absurd = config(pack, tmp_path / "run", lr=1e39, batch_size=12, clip_norm=None, epochs=2)
    absurd = replace(absurd, optim=replace(absurd.optim, warmup_epochs=0))
    with pytest.raises(MatineeError, match=r"weights are not finite after step 1.*no checkpoint"):
        train(absurd)
    assert not (tmp_path / "run" / "last.pt").exists()


def test_of_many_samples_sixteen_are_named(pack, tmp_path, monkeypatch):
    forward = ClassificationTask.forward

    def spoilt(self, batch):
        return Outcome(forward(self, batch).loss * math.nan, {})

    monkeypatch.setattr(ClassificationTask, "forward", spoilt)
    given = config(pack, tmp_path / "run", batch_size=24, accumulate=2, epochs=1)
    given = replace(given, data=replace(given.data, repeats=2))
    with pytest.raises(MatineeError) as stopped:
        train(given)
    line = str(stopped.value)
    assert "in step 1, on samples" in line and " and 8 more: " in line
    assert "there is no checkpoint yet: remove" in line and line.endswith("take another --out")
