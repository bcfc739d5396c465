"""N steps equal k + resume + (N - k), whatever ends the run; accumulation equals a large batch."""

import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from untimed import untimed

from matinee.data.clips import ClipSpec
from matinee.errors import ClipError, ConfigError, MatineeError
from matinee.models.config import ModelConfig
from matinee.training.config import DataConfig, OptimConfig, RunConfig, TrainConfig
from matinee.training.loop import train
from matinee.training.show.progress import Silent
from matinee.training.state.runfolder import RunFolder


def settings(pack, out, **optim) -> TrainConfig:
    """Small and quick, but with dropout, augmentation, accumulation and momentum."""
    return TrainConfig(
        data=DataConfig(path=str(pack), workers=2, mode="threads"),
        run=RunConfig(out=str(out), seed=5, log_every=1, device="cpu"),
        model=ModelConfig(backbone="resnet10t", dropout=0.3),
        clip=ClipSpec(frames=2, size=32, flip="horizontal", brightness=0.2, erasing=0.3),
        optim=OptimConfig(
            **({"lr": 0.05, "batch_size": 4, "accumulate": 2, "epochs": 3, "ema": 0.9} | optim)
        ),
    )


class StopAt(Silent):
    """Sends this process SIGTERM once a step is done."""

    def __init__(self, step: int) -> None:
        self.at = step

    def step(self, step: int) -> None:
        if step == self.at:
            os.kill(os.getpid(), signal.SIGTERM)


def losses(out: Path) -> list[tuple[int, float, float]]:
    rows = RunFolder(out).rows()
    return [(row["step"], row["loss"], row["lr"]) for row in rows if row["kind"] == "train"]


@pytest.fixture(scope="module")
def whole(clips_pack, tmp_path_factory):
    """The undisturbed run."""
    out = tmp_path_factory.mktemp("whole") / "run"
    result = train(settings(clips_pack, out))
    assert result.steps == 9 and result.epochs == 3
    return out


@pytest.mark.parametrize("stop", [1, 2, 3, 5, 8])
def test_a_run_stopped_at_any_step_resumes_to_identical_losses_and_weights(
    clips_pack, whole, tmp_path, stop
):
    """Bitwise: every logged loss, every validation, every tensor. 3 is the end of an epoch."""
    out = tmp_path / "run"
    result = train(settings(clips_pack, out), progress=StopAt(stop))
    assert result.stopped == "SIGTERM" and result.steps == stop
    assert train(settings(clips_pack, out), resume=True).stopped == ""
    assert losses(out) == losses(whole)
    ours, theirs = RunFolder(out), RunFolder(whole)
    assert untimed(out) == untimed(whole)
    a, b = ours.load_checkpoint()["state"], theirs.load_checkpoint()["state"]
    for key, value in b["model"].items():
        assert torch.equal(a["model"][key], value), key
    for mine, other in zip(
        a["optimizer"]["state"].values(), b["optimizer"]["state"].values(), strict=True
    ):
        assert torch.equal(mine["momentum_buffer"], other["momentum_buffer"])


def test_a_killed_run_resumes_from_its_last_save(clips_pack, whole, tmp_path):
    """kill -9 in the middle of an epoch; the rows written after the save are written again."""
    out = tmp_path / "run"
    code = (
        "import sys\nfrom matinee.training.config import TrainConfig\n"
        "from matinee.training.loop import train\nimport time\n"
        "from matinee.training.show.progress import Silent\n"
        "class Slow(Silent):\n    def step(self, step): time.sleep(0.2)\n"
        "train(TrainConfig.from_json(sys.stdin.read()), progress=Slow())\n"
    )
    child = subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, text=True)
    assert child.stdin is not None
    child.stdin.write(settings(clips_pack, out).to_json())
    child.stdin.close()
    deadline = time.monotonic() + 60
    while len(losses(out) if (out / "metrics.jsonl").exists() else []) < 5:
        assert time.monotonic() < deadline and child.poll() is None
        time.sleep(0.01)
    child.kill()
    child.wait()
    train(settings(clips_pack, out), resume=True)
    assert losses(out) == losses(whole)


def test_a_finished_run_resumes_to_nothing(clips_pack, whole):
    """Nothing is trained or logged again."""
    before = RunFolder(whole).rows()
    result = train(settings(clips_pack, whole), resume=True)
    assert result.steps == 9 and RunFolder(whole).rows() == before and result.val is not None


def test_resuming_with_other_settings_is_refused(clips_pack, whole):
    """The section is named."""
    other = settings(clips_pack, whole, lr=0.1)
    with pytest.raises(ConfigError, match=r"was started with optim.lr 0.05, not 0.1"):
        train(other, resume=True)


def test_a_run_is_never_overwritten(clips_pack, whole):
    """Both ways out are named."""
    with pytest.raises(ConfigError, match=r"--resume continues it, another --out"):
        train(settings(clips_pack, whole))


def test_a_damaged_checkpoint_is_an_error(clips_pack, tmp_path):
    """Not a fresh start, if there is no other before it."""
    out = tmp_path / "run"
    train(settings(clips_pack, out, epochs=1))
    (out / "last.pt").write_bytes((out / "last.pt").read_bytes()[:1000])
    with pytest.raises(MatineeError, match=r"step-00000003\.pt"):
        train(settings(clips_pack, out, epochs=1), resume=True)


class Notes(Silent):
    """What a run says before it starts."""

    def start(self, *, total, facts, headline, epochs=None):
        self.facts = facts


def test_behind_a_damaged_checkpoint_the_one_before_it_is_used(clips_pack, whole, tmp_path):
    """It is said, and the run ends as if nothing had been."""
    out = tmp_path / "run"
    train(settings(clips_pack, out, epochs=3), progress=StopAt(8))
    newest = (out / "last.pt").resolve()
    content = bytearray(newest.read_bytes())
    content[len(content) // 2] ^= 1
    newest.write_bytes(content)
    told = Notes()
    train(settings(clips_pack, out), resume=True, progress=told)
    assert any("step-00000008.pt" in fact and "step 6" in fact for fact in told.facts)
    assert losses(out) == losses(whole)


def test_accumulation_equals_one_large_batch(clips_pack, tmp_path):
    """Same losses and weights in float32 but for the order of sums; norms without batch
    statistics, for those differ by design."""
    found = {}
    for parts in (1, 2, 4):
        config = settings(clips_pack, tmp_path / f"{parts}", accumulate=parts, epochs=2)
        config = replace(config, model=ModelConfig(backbone="convnext_atto", dropout=0.0))
        train(config)
        state = RunFolder(tmp_path / f"{parts}").load_checkpoint()["state"]
        found[parts] = (losses(tmp_path / f"{parts}"), state["model"])
    for parts in (2, 4):
        for mine, other in zip(found[parts][0], found[1][0], strict=True):
            assert mine[0] == other[0] and mine[1] == pytest.approx(other[1], rel=1e-4)
        for key, value in found[1][1].items():
            torch.testing.assert_close(found[parts][1][key], value, rtol=1e-3, atol=1e-4)


def test_a_masked_clip_is_counted_and_the_run_goes_on(clips_pack, tmp_path, monkeypatch):
    """ "raise" stops with the sample; "mask" trains on the other eleven."""
    import shutil

    from matinee.pack.reading.reader import Pack

    path = tmp_path / "damaged.pack"
    shutil.copytree(clips_pack, path)
    pack = Pack(path)
    info = pack.info(int(pack.select("train")[0]))
    chunk = pack.locate(info.video, [0])[0].chunk
    with Path(chunk.file).open("r+b") as file:
        file.seek(chunk.offset + 48)
        file.write(bytes(chunk.size - 1200))
    config = settings(path, tmp_path / "raise", accumulate=1, epochs=1)
    with pytest.raises(ClipError, match=info.id):
        train(config)
    config = settings(path, tmp_path / "mask", accumulate=1, epochs=1)
    config = replace(config, data=replace(config.data, on_error="mask", val_split="val"))
    gradients = []
    original = torch.optim.SGD.step

    def spy(self, *args, **kwargs):
        gradients.append([p.grad.clone() for g in self.param_groups for p in g["params"]])
        return original(self, *args, **kwargs)

    monkeypatch.setattr(torch.optim.SGD, "step", spy)
    result = train(replace(config, optim=replace(config.optim, clip_norm=None)))
    assert result.masked == 1
    rows = [row for row in RunFolder(tmp_path / "mask").rows() if row["kind"] == "train"]
    assert sum(row["clips"] for row in rows) == 11 and rows[-1]["masked"] == 1
    assert all(torch.isfinite(g).all() for step in gradients for g in step)


def test_masked_gradients_are_means_over_the_clips_that_were_read(clips_pack, tmp_path):
    """The loop's own step over two parts of two clips, one masked, against a direct mean."""
    from matinee.data.batch import Batch
    from matinee.tasks.classification import ClassificationTask
    from matinee.training.optim.build import build_optimizer
    from matinee.training.parallel.config import ParallelConfig
    from matinee.training.parallel.ranks import Ranks
    from matinee.training.parallel.wrap import wrap
    from matinee.training.step import StepRunner

    torch.manual_seed(0)
    config = settings(clips_pack, tmp_path, clip_norm=None)
    net = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(12, 3)).double()
    start = {key: value.clone() for key, value in net.state_dict().items()}
    before = start["1.weight"]
    video = torch.randn(4, 3, 1, 2, 2, dtype=torch.float64)
    target = torch.tensor([0, 1, 2, 0])
    valid = torch.tensor([True, False, True, True])
    texts, seeds = ("", ""), torch.arange(2)
    halves = [(slice(i, i + 2), int(valid[i : i + 2].sum())) for i in (0, 2)]
    parts = [
        Batch(video[i], target[i], valid[i], torch.arange(2), ("a", "b"), count, texts, seeds)
        for i, count in halves
    ]
    task, alone = ClassificationTask(net), Ranks(0, 1, 1, torch.device("cpu"))
    runner = StepRunner(
        task, build_optimizer(net, config.optim),
        wrap(task, ParallelConfig(), alone, parts=2, bf16=False), alone, parts=2, seed=0,
    )  # fmt: skip
    stepped = runner(iter(parts), clips=4, number=0, lr=0.1)
    ours = (before - net[1].weight.detach()) / 0.1
    net.load_state_dict(start)
    loss = torch.nn.functional.cross_entropy(net(video[valid]).float(), target[valid])
    (wanted,) = torch.autograd.grad(loss, [net[1].weight])
    torch.testing.assert_close(ours, wanted + config.optim.weight_decay * before)
    assert stepped.clips == 3


def test_a_loss_that_is_not_finite_stops_the_run(clips_pack, tmp_path):
    """With the step and what to do."""
    config = settings(clips_pack, tmp_path / "run", lr=1e30, clip_norm=None)
    with pytest.raises(
        MatineeError,
        match=r"not finite in step \d+, on samples .*lower --optim.lr.*no checkpoint yet",
    ):
        train(config)


def test_configs_survive_json():
    """Every field, tuples included."""
    config = TrainConfig(
        data=DataConfig(path="a.pack", val_split="person=1,2"),
        run=RunConfig(out="r"),
        clip=ClipSpec(flip="horizontal", flip_swap=("a=b",), scale=(0.1, 0.2)),
    )
    assert TrainConfig.from_json(config.to_json()) == config
    changed = json.loads(config.to_json())
    changed["optim"]["typo"] = 1
    with pytest.raises(ConfigError, match="typo"):
        TrainConfig.from_json(json.dumps(changed))


class StopInValidation(Silent):
    """Sends SIGTERM with the last step of the first epoch, so that it arrives in validation."""

    def log(self, row):
        if row["epoch"] == 1.0:
            os.kill(os.getpid(), signal.SIGTERM)


def test_a_stop_during_validation_validates_again_when_resumed(clips_pack, whole, tmp_path):
    """The epoch's training is kept, its validation not lost."""
    out = tmp_path / "run"
    result = train(settings(clips_pack, out), progress=StopInValidation())
    assert result.stopped == "SIGTERM" and result.steps == 3 and result.epochs == 0
    train(settings(clips_pack, out), resume=True)
    assert untimed(out) == untimed(whole)


@pytest.mark.parametrize("stop", [2, 4])
def test_sums_between_log_lines_survive_a_stop(clips_pack, tmp_path, stop):
    """Lines every four steps, worker processes: the same lines, stopped or not."""
    found = []
    for name in ("whole", "stopped"):
        config = settings(clips_pack, tmp_path / name)
        config = replace(
            config,
            run=replace(config.run, log_every=4),
            data=replace(config.data, mode="processes"),
        )
        if name == "stopped":
            assert train(config, progress=StopAt(stop)).steps == stop
        train(config, resume=name == "stopped")
        found.append(untimed(tmp_path / name))
    assert found[0] == found[1]


def test_resuming_on_other_samples_is_refused(clips_pack, whole):
    """Another selection or number of repeats would be another order."""
    config = settings(clips_pack, whole)
    with pytest.raises(ConfigError, match=r"data\.repeats 1"):
        train(replace(config, data=replace(config.data, repeats=2)), resume=True)


def test_resuming_on_another_pack_is_refused(clips_pack, whole, tmp_path):
    """Same samples, same classes, other pixels: its source digest differs."""
    import shutil

    other = tmp_path / "other.pack"
    shutil.copytree(clips_pack, other)
    meta = json.loads((other / "pack.json").read_text())
    (other / "pack.json").write_text(json.dumps({**meta, "source_digest": "0" * 64}))
    with pytest.raises(ConfigError, match="trained on another pack"):
        train(settings(other, whole), resume=True)


def test_training_and_validation_never_share_samples(clips_pack, tmp_path):
    """A selection by column that overlaps the pack's own val split is refused."""
    config = settings(clips_pack, tmp_path / "run")
    config = replace(config, data=replace(config.data, train_split="label=left,right"))
    with pytest.raises(ConfigError, match="6 samples are in the training split"):
        train(config)


class Bests(Silent):
    """The best validation that each validation of a run tells."""

    def __init__(self):
        self.rows = []

    def validated(self, row):
        self.rows.append((row["epoch"], row["top1"], row["best"]))


def test_the_best_validation_survives_a_resume(clips_pack, tmp_path):
    """best.pt is of the epoch that each later row names, across sessions."""
    told, config = Bests(), settings(clips_pack, tmp_path / "run", epochs=5)
    train(config, progress=StopAt(8))
    train(config, resume=True, progress=told)
    rows = [row for row in RunFolder(tmp_path / "run").rows() if row["kind"] == "val"]
    top1 = [row["top1"] for row in rows]
    for number, row in enumerate(rows):
        best = max(top1[: number + 1])
        epoch = top1.index(best) + 1
        assert row["best"] == {"epoch": epoch, "value": best}
    assert len(told.rows) == 3
    state = RunFolder(tmp_path / "run").load_checkpoint("best")["state"]
    assert state["validated"] == rows[-1]["best"]["epoch"]


def test_what_decides_what_is_learned_must_stay_and_the_rest_is_told(clips_pack, tmp_path):
    """Each refused field by its name; parts of a batch and speed may change, in words."""
    out = tmp_path / "run"
    config = settings(clips_pack, out)
    train(config, progress=StopAt(2))
    for section, change, words in (
        ("run", {"seed": 6}, r"run.seed 5, not 6"),
        ("data", {"repeats": 2}, r"data.repeats 1, not 2"),
        ("clip", {"flip": "none"}, r"clip.flip 'horizontal', not 'none'"),
        ("speed", {"stages": ("0.4=2x16",)}, r"speed.stages"),
        ("parallel", {"sync_bn": True}, r"parallel.sync_bn False, not True"),
    ):
        other = replace(config, **{section: replace(getattr(config, section), **change)})
        with pytest.raises(ConfigError, match=f"was started with {words}"):
            train(other, resume=True)
    told = Notes()
    other = replace(config, optim=replace(config.optim, accumulate=1))
    other = replace(other, speed=replace(config.speed, channels_last=False))
    assert train(other, resume=True, progress=told).steps == 9
    assert any("goes on after step 2 of 9" in fact for fact in told.facts)
    changed = "optim.accumulate 1 (was 2), speed.channels_last False (was True)"
    assert any(changed in fact for fact in told.facts)


def test_a_run_that_cannot_start_leaves_nothing(clips_pack, tmp_path, monkeypatch):
    """A logger whose package is absent is refused before the folder is made."""
    monkeypatch.setitem(sys.modules, "trackio", None)
    config = settings(clips_pack, tmp_path / "run")
    with pytest.raises(MatineeError, match=r"pip install 'matinee\[trackio\]'"):
        train(replace(config, run=replace(config.run, loggers=("trackio",))))
    assert not (tmp_path / "run").exists()
