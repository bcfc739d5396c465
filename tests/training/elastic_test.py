"""A rank that is killed: torchrun starts all again, and the run ends as if nothing had been."""

import pytest
import torch
from torchrun import run_ranks
from untimed import untimed

from matinee.data.clips import ClipSpec
from matinee.models.config import ModelConfig
from matinee.training.config import (
    DataConfig,
    OptimConfig,
    ParallelConfig,
    RunConfig,
    TrainConfig,
)
from matinee.training.state.runfolder import RunFolder


def settings(pack, out) -> TrainConfig:
    """With batch normalisation and dropout; saved every second step."""
    return TrainConfig(
        data=DataConfig(path=str(pack), workers=1, mode="threads"),
        run=RunConfig(out=str(out), seed=3, log_every=1, device="cpu", save_steps=2),
        model=ModelConfig("test_resnet", dropout=0.3),
        clip=ClipSpec(frames=2, size=32, flip="horizontal"),
        optim=OptimConfig(lr=0.05, batch_size=4, epochs=3, ema=0.9),
        parallel=ParallelConfig(timeout_s=100),
    )


@pytest.fixture(scope="module")
def runs(clips_pack, tmp_path_factory):
    root = tmp_path_factory.mktemp("elastic")
    run_ranks(2, [{"config": settings(clips_pack, root / "whole").to_dict()}], root)
    job = {"config": settings(clips_pack, root / "killed").to_dict(), "kill_at": 5}
    said = run_ranks(2, [job], root, max_restarts=1)
    return root, said


def test_the_run_ends_with_the_same_losses_and_metrics(runs):
    """Bit for bit: each step and each validation once."""
    root, _ = runs
    rows = untimed(root / "killed")
    assert rows == untimed(root / "whole") and rows[-1]["kind"] == "val"
    assert [row["step"] for row in rows if row["kind"] == "train"] == list(range(1, 10))


def test_the_weights_are_the_same(runs):
    root, _ = runs
    ours, theirs = (
        RunFolder(root / name).load_checkpoint()["state"] for name in ("killed", "whole")
    )
    for name, value in theirs["model"].items():
        assert torch.equal(ours["model"][name], value), name
        assert torch.equal(
            ours["ema"]["weights"].get(name, value), theirs["ema"]["weights"].get(name, value)
        )


def test_the_second_session_went_on_from_a_save(runs):
    """Killed after step 5, the last complete save is from step 4 (an earlier one is possible, if
    the disk was slow)."""
    root, _ = runs
    first, second = RunFolder(root / "killed").sessions()
    assert "step" not in first and 0 < second["step"] <= 5
