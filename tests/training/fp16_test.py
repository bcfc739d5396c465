"""fp16: an overflow leaves out the step, the schedule and the average, all three."""

from contextlib import nullcontext
from dataclasses import replace

import pytest
import torch

from matinee.data.batch import Batch
from matinee.data.clips import ClipSpec
from matinee.errors import ConfigError, MatineeError
from matinee.models.config import Joint, ModelConfig
from matinee.tasks.classification import ClassificationTask
from matinee.training.config import (
    DataConfig,
    OptimConfig,
    RunConfig,
    SpeedConfig,
    TrainConfig,
)
from matinee.training.loop import train
from matinee.training.optim.build import build_optimizer
from matinee.training.parallel.ranks import Ranks
from matinee.training.parallel.wrap import Wrapped
from matinee.training.session import Session
from matinee.training.state.runfolder import RunFolder
from matinee.training.step import StepRunner


def settings(pack, out, **speed) -> TrainConfig:
    return TrainConfig(
        data=DataConfig(path=str(pack), repeats=2, workers=1, mode="threads"),
        run=RunConfig(out=str(out), log_every=1, device="cpu", save_steps=1, keep=100),
        model=ModelConfig("test_vit", Joint(), patch_size=8, dropout=0.0),
        clip=ClipSpec(frames=2, size=32),
        optim=OptimConfig(
            name="adamw", lr=1e-3, batch_size=4, accumulate=2, epochs=2, ema=0.9, warmup_epochs=0.5
        ),
        speed=SpeedConfig(**{"precision": "fp16", **speed}),
    )


class Overflow:
    """Makes a gradient infinite in some steps (from 0)."""

    def __init__(self, monkeypatch, steps):
        original = Session.done

        def done(session, stepped, clips):
            original(session, stepped, clips)
            if session.state.step in steps:
                weight = next(p for p in session.state.model.parameters() if p.requires_grad)
                hook = weight.register_hook(lambda gradient: gradient * torch.inf)
                self.hooks.append(hook)
            else:
                for hook in self.hooks:
                    hook.remove()

        self.hooks = []
        monkeypatch.setattr(Session, "done", done)


def state_after(out, step):
    file = out / "checkpoints" / f"step-{step:08d}.pt"
    return torch.load(file, weights_only=True)["state"]


def test_an_overflow_skips_the_step_the_schedule_and_the_average(clips_pack, tmp_path, monkeypatch):
    out = tmp_path / "run"
    Overflow(monkeypatch, {4})
    train(settings(clips_pack, out))
    before, skipped, after = (state_after(out, step) for step in (4, 5, 6))
    assert [s["skipped"] for s in (before, skipped, after)] == [0, 1, 1]
    for name, value in before["model"].items():
        assert torch.equal(skipped["model"][name], value), name
        assert torch.equal(skipped["ema"]["weights"][name], before["ema"]["weights"][name]), name
    assert any(not torch.equal(after["model"][n], v) for n, v in before["model"].items())
    counts = [s["optimizer"]["state"][0]["step"].item() for s in (before, skipped, after)]
    assert counts == [4, 4, 5] and skipped["ema"]["updates"] == 4
    assert skipped["scaler"]["scale"] == before["scaler"]["scale"] / 2
    rows = {row["step"]: row for row in RunFolder(out).rows() if row["kind"] == "train"}
    rates = {step: row["lr"] for step, row in rows.items()}
    # The step after the skipped one has the rate that the skipped one would have had.
    assert rates[5] == rates[6] and rates[4] != rates[5] and rates[6] != rates[7]
    assert rows[5]["skipped"] == 1 and rows[5]["loss"] > 0


def test_a_run_with_a_skipped_step_resumes_exactly(clips_pack, tmp_path, monkeypatch):
    """The scale and what was skipped are part of the state."""
    import shutil

    whole, out = tmp_path / "whole", tmp_path / "cut"
    Overflow(monkeypatch, {4})
    train(settings(clips_pack, whole))
    shutil.copytree(whole, out, symlinks=True)
    for step in range(8, 13):
        (out / "checkpoints" / f"step-{step:08d}.pt").unlink()
    config = settings(clips_pack, out)
    train(config, resume=True)
    found, wanted = state_after(out, 12), state_after(whole, 12)
    assert found["scaler"] == wanted["scaler"] and found["skipped"] == wanted["skipped"] == 1
    for name, value in wanted["model"].items():
        assert torch.equal(found["model"][name], value), name


def test_fp16_matches_float32_but_for_rounding(clips_pack, tmp_path):
    """The loss scale leaves no trace in the updates."""
    found = {}
    for precision in ("fp16", "fp32"):
        config = settings(clips_pack, tmp_path / precision, precision=precision)
        config = replace(config, optim=replace(config.optim, name="sgd", clip_norm=1.0))
        train(config)
        found[precision] = state_after(tmp_path / precision, 12)["model"]
    for name, value in found["fp32"].items():
        torch.testing.assert_close(found["fp16"][name], value, rtol=0.02, atol=2e-3)


def test_gradients_that_overflow_at_any_scale_end_the_run(clips_pack, tmp_path, monkeypatch):
    Overflow(monkeypatch, set(range(1, 100)))
    config = settings(clips_pack, tmp_path / "run")
    config = replace(config, optim=replace(config.optim, epochs=8))
    with pytest.raises(MatineeError, match=r"overflow even with the loss scaled .* bf16 or fp32"):
        train(config)


def test_without_a_loss_scale_nothing_is_skipped_but_the_run_stops(
    clips_pack, tmp_path, monkeypatch
):
    """The same infinite gradient in float32 is an error."""
    Overflow(monkeypatch, {4})
    with pytest.raises(MatineeError, match="not finite in step 5"):
        train(settings(clips_pack, tmp_path / "run", precision="fp32"))


def test_settings_that_do_not_go_together_are_refused(clips_pack, tmp_path):
    config = settings(clips_pack, tmp_path / "run")
    noise = replace(config, optim=replace(config.optim, noise_scale=True, accumulate=1))
    with pytest.raises(ConfigError, match=r"--optim.accumulate 2 or more"):
        train(noise)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("name", ["sgd", "adam", "adamw", "lion"])
def test_an_overflow_in_the_first_step_leaves_no_trace(name):
    """Nor in what the optimizer remembers: the second step is another one's first."""
    config, alone = OptimConfig(name=name), Ranks(0, 1, 1, torch.device("cpu"))
    batch = Batch(
        video=torch.randn(4, 3, 1, 2, 2), target=torch.tensor([0, 1, 2, 0]),
        valid=torch.ones(4, dtype=torch.bool), index=torch.arange(4), samples=tuple("abcd"),
        num_valid=4, texts=("",) * 4, seeds=torch.arange(4),
    )  # fmt: skip
    found = []
    for overflows in (True, False):
        torch.manual_seed(0)
        net = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(12, 3))
        task = ClassificationTask(net)
        runner = StepRunner(
            task, build_optimizer(net, config), Wrapped(task.compute, lambda _: nullcontext()),
            alone, parts=1, seed=0, precision="fp16",
        )  # fmt: skip
        if overflows:
            hook = net[1].weight.register_hook(lambda gradient: gradient * torch.inf)
            first = runner(iter([batch]), clips=4, number=0, lr=0.1)
            hook.remove()
            assert first.skipped
        assert not runner(iter([batch]), clips=4, number=0, lr=0.1).skipped
        assert not runner(iter([batch]), clips=4, number=1, lr=0.1).skipped
        found.append(net[1].weight.detach())
    torch.testing.assert_close(found[0], found[1], rtol=1e-4, atol=1e-5)
