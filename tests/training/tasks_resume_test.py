"""Whatever is learned: a run that was stopped at any step goes on to bitwise the same end."""

import os
import signal

import pytest
import torch
from relabel import relabelled
from untimed import untimed

from matinee.data.clips import ClipSpec
from matinee.models.config import Joint, ModelConfig
from matinee.tasks.config import (
    ClassificationConfig,
    ClipTextConfig,
    ContrastiveConfig,
    MaskedConfig,
)
from matinee.training.config import DataConfig, OptimConfig, RunConfig, SpeedConfig, TrainConfig
from matinee.training.loop import train
from matinee.training.show.progress import Silent
from matinee.training.state.runfolder import RunFolder

CNN = ModelConfig("test_resnet", dropout=0.3)
VIT = ModelConfig("test_vit", Joint(patch_dropout=0.25), patch_size=8, drop_path=0.2)
MAE = ModelConfig(
    "vit_tiny_patch16_224", Joint(tubelet=2, positions="sine"), patch_size=8, drop_path=0.2,
    dropout=0.0,
)  # fmt: skip
PAIR = {"text": ClipTextConfig(width=8, heads=2, layers=1), "embed_dim": 8}
KINDS = {
    "mixed classes": (
        CNN, ClassificationConfig(label_smoothing=0.1, mixup=0.8, cutmix=1.0), {"name": "sgd"},
    ),
    "pairs": (VIT, ClassificationConfig(labels="verb+noun", mixup=0.8), {"name": "adamw"}),
    "contrastive": (CNN, ContrastiveConfig(**PAIR), {"name": "adamw"}),
    "graded": (VIT, ContrastiveConfig(**PAIR, loss="max-margin", graded=True), {"name": "sgd"}),
    "masked": (
        MAE, MaskedConfig(decoder_depth=1, decoder_width=64, decoder_heads=2), {"name": "adamw"},
    ),
}  # fmt: skip


@pytest.fixture(scope="module")
def actions(clips_pack, tmp_path_factory):
    """Two captions a clip, of which training draws one in each epoch; verbs and nouns."""
    return relabelled(
        clips_pack,
        tmp_path_factory.mktemp("resume") / "actions.pack",
        verb=[["cut", "put", "take"][i % 3] for i in range(18)],
        noun=[["egg", "ham"][i // 2 % 2] for i in range(18)],
        text=[f"clip number {i}\nnothing but {i}" for i in range(18)],
    )


def settings(kind, pack, out) -> TrainConfig:
    model, task, optim = KINDS[kind]
    return TrainConfig(
        data=DataConfig(path=str(pack), workers=1, mode="threads"),
        run=RunConfig(out=str(out), seed=7, log_every=2, device="cpu"),
        model=model,
        task=task,
        clip=ClipSpec(frames=4, size=32, flip="horizontal", erasing=0.3),
        optim=OptimConfig(**optim, lr=0.01, batch_size=4, accumulate=2, epochs=2, ema=0.9),
        speed=SpeedConfig(recompute=2),
    )


class StopAt(Silent):
    """Sends this process SIGTERM once a step is done."""

    def __init__(self, step: int) -> None:
        self.at = step

    def step(self, step: int) -> None:
        if step == self.at:
            os.kill(os.getpid(), signal.SIGTERM)


def leaves(value, path=""):
    """Every tensor and number of a checkpoint by where it lies."""
    if isinstance(value, dict):
        for key, inner in value.items():
            yield from leaves(inner, f"{path}/{key}")
    elif isinstance(value, (list, tuple)):
        for number, inner in enumerate(value):
            yield from leaves(inner, f"{path}/{number}")
    else:
        yield path, value


@pytest.mark.parametrize("kind", KINDS)
def test_a_stopped_run_resumes_to_the_same_rows_and_weights(actions, tmp_path, kind):
    """Steps 1 and 5 of six lie between log lines; batches are in two parts."""
    whole = tmp_path / "whole"
    assert train(settings(kind, actions, whole)).steps == 6
    wanted = dict(leaves(RunFolder(whole).load_checkpoint()))
    assert len({row["loss"] for row in untimed(whole) if row["kind"] == "train"}) == 4
    for stop in (1, 5):
        out = tmp_path / f"stopped {stop}"
        assert train(settings(kind, actions, out), progress=StopAt(stop)).steps == stop
        torch.manual_seed(stop)  # nothing may hang on what the process drew before
        assert train(settings(kind, actions, out), resume=True).stopped == ""
        assert untimed(out) == untimed(whole)
        found = dict(leaves(RunFolder(out).load_checkpoint()))
        assert set(found) == set(wanted)
        for place, value in wanted.items():
            if isinstance(value, torch.Tensor):
                assert torch.equal(found[place], value), place
            else:
                assert found[place] == value, place
