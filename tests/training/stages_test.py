"""Stages of smaller clips: how epochs, steps and rates follow, and that they resume exactly."""

import os
import signal

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from untimed import untimed

from matinee.data.clips import ClipSpec
from matinee.errors import ConfigError
from matinee.models.config import Joint, ModelConfig, Shift
from matinee.tasks.classification import ClassificationTask
from matinee.training.config import (
    DataConfig,
    OptimConfig,
    RunConfig,
    SpeedConfig,
    TrainConfig,
)
from matinee.training.loop import train
from matinee.training.show.progress import Silent
from matinee.training.stages import Stage, Timeline, plan_stages
from matinee.training.state.runfolder import RunFolder


def test_stages_are_read_with_the_whole_clips_last():
    texts = ("0.25=2x32@16", "0.5=4x32")
    stages = plan_stages(texts, epochs=8, frames=4, size=64, batch_size=8)
    assert stages == (Stage(2, 2, 32, 16), Stage(4, 4, 32, 8), Stage(8, 4, 64, 8))


@pytest.mark.parametrize(
    ("texts", "words"),
    [
        (("half=4x32",), "expected PART=FRAMESxSIZE"),
        (("0.5=4x32@",), "expected PART=FRAMESxSIZE"),
        (("0.5.5=4x32",), "'0.5.5' is no part"),
        (("0=4x32",), "must end after epoch 0 and before the last, 8"),
        (("1=4x32",), "must end after epoch 0 and before the last, 8"),
        (("0.5=4x32", "0.25=4x48"), "must end after epoch 4"),
        (("0.5=0x32",), "at least 1 frame"),
        (("0.5=4x31",), "an even size"),
    ],
)
def test_stages_that_make_no_sense_are_refused(texts, words):
    with pytest.raises(ConfigError, match=words):
        plan_stages(texts, epochs=8, frames=4, size=64, batch_size=8)


@given(
    st.lists(st.tuples(st.integers(1, 3), st.integers(1, 12)), min_size=1, max_size=4),
    st.integers(12, 100),
)
def test_a_timeline_counts_every_step_once(parts, items):
    """Against a list of the epoch of each step, made by counting."""
    stages, until = [], 0
    for epochs, batch in parts:
        until += epochs
        stages.append(Stage(until, 2, 32, batch))
    timeline = Timeline(tuple(stages), items)
    epoch_of = []
    for epoch in range(until):
        batch = next(b for (_, b), s in zip(parts, stages, strict=True) if epoch < s.until)
        epoch_of += [epoch] * (items // batch)
    assert timeline.total == len(epoch_of) and timeline.epochs == until
    for step, epoch in enumerate(epoch_of):
        assert timeline.epoch(step) == epoch == int(timeline.progress(step))
        first = epoch_of.index(epoch)
        assert timeline.start(epoch) == first
        assert timeline.progress(step) == epoch + (step - first) / epoch_of.count(epoch)
    assert timeline.progress(len(epoch_of)) == until


def test_an_epoch_without_a_whole_batch_is_refused():
    with pytest.raises(ConfigError, match="12 clips an epoch, fewer than one batch of 16"):
        Timeline((Stage(1, 2, 32, 16),), 12)


MODELS = {
    "shift": ModelConfig("test_resnet", Shift(), dropout=0.2),
    "joint": ModelConfig("test_vit", Joint(), patch_size=8, dropout=0.0),
}


def settings(pack, out, kind) -> TrainConfig:
    """12 clips an epoch: two epochs of small clips in batches of 6, then two of whole ones in 4."""
    return TrainConfig(
        data=DataConfig(path=str(pack), workers=1, mode="threads"),
        run=RunConfig(out=str(out), seed=2, log_every=1, device="cpu"),
        model=MODELS[kind],
        clip=ClipSpec(frames=4, size=48, flip="horizontal"),
        optim=OptimConfig(
            lr=0.02, base_batch=4, batch_size=4, accumulate=2, epochs=4, warmup_epochs=0,
            schedule="constant", ema=0.9,
        ),
        speed=SpeedConfig(stages=("0.5=2x32@6",)),
    )  # fmt: skip


class StopAt(Silent):
    def __init__(self, step):
        self.at = step

    def step(self, step):
        if step == self.at:
            os.kill(os.getpid(), signal.SIGTERM)


@pytest.mark.parametrize("kind", MODELS)
def test_stages_change_clips_batches_and_rates_and_resume_exactly(
    clips_pack, tmp_path, monkeypatch, kind
):
    """Stopped within the first stage, at its end, and in the last."""
    seen, forward = [], ClassificationTask.forward

    def spy(self, batch):
        if self.training:
            seen.append(tuple(batch.video.shape))
        else:
            assert batch.video.shape[2:] == (4, 48, 48)  # always validated on whole clips
        return forward(self, batch)

    monkeypatch.setattr(ClassificationTask, "forward", spy)
    whole = tmp_path / "whole"
    result = train(settings(clips_pack, whole, kind))
    assert result.steps == 4 + 6 and result.epochs == 4
    assert seen == [(3, 3, 2, 32, 32)] * 8 + [(2, 3, 4, 48, 48)] * 12
    logged = [row for row in untimed(whole) if row["kind"] == "train"]
    assert [row["lr"] for row in logged] == pytest.approx([0.03] * 4 + [0.02] * 6)
    assert [row["epoch"] for row in logged][:5] == pytest.approx([0.5, 1, 1.5, 2, 2 + 1 / 3])
    wanted = RunFolder(whole).load_checkpoint()["state"]
    for stop in (1, 4, 7):
        out = tmp_path / f"{stop}"
        assert train(settings(clips_pack, out, kind), progress=StopAt(stop)).steps == stop
        train(settings(clips_pack, out, kind), resume=True)
        assert untimed(out) == untimed(whole)
        found = RunFolder(out).load_checkpoint()["state"]
        for name, value in wanted["model"].items():
            assert torch.equal(found["model"][name], value), name
