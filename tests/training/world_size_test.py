"""The same run on one, two and four ranks: same samples, same losses, same checkpoints."""

import json
from dataclasses import replace

import pytest
import torch
from relabel import relabelled
from torchrun import run_ranks

from matinee.data.clips import ClipSpec
from matinee.models.config import Joint, ModelConfig, Shift
from matinee.tasks.config import (
    ClassificationConfig,
    ClipTextConfig,
    ContrastiveConfig,
    MaskedConfig,
)
from matinee.training.config import (
    DataConfig,
    OptimConfig,
    ParallelConfig,
    RunConfig,
    SpeedConfig,
    TrainConfig,
)
from matinee.training.state.runfolder import RunFolder

PAIR = {"text": ClipTextConfig(width=8, heads=2, layers=1), "embed_dim": 8}
VIT = ModelConfig("test_vit", Joint(), patch_size=8, dropout=0.0)
MAE = ModelConfig(
    "vit_tiny_patch16_224", Joint(tubelet=2, positions="sine"), patch_size=8, dropout=0.0
)
# No batch normalisation, no dropout: their numbers are of micro-batches.
TASKS = {
    "classes": (
        ModelConfig("test_convnext", Shift(every=1), dropout=0.0),
        ClassificationConfig(label_smoothing=0.1, mixup=0.8, cutmix=1.0),
    ),
    "pairs": (VIT, ClassificationConfig(labels="verb+noun", mixup=0.8)),
    "contrastive": (VIT, ContrastiveConfig(**PAIR)),
    "local loss": (VIT, ContrastiveConfig(**PAIR, local_loss=True)),
    "graded": (VIT, ContrastiveConfig(**PAIR, loss="max-margin", graded=True)),
    "masked": (MAE, MaskedConfig(decoder_depth=1, decoder_width=64, decoder_heads=2)),
}
BY_MICRO_BATCH = {
    "statistics": (ModelConfig("test_resnet", dropout=0.3), ClassificationConfig(mixup=0.8)),
}
SPLITS = {1: {"large": 1, "parts": 4}, 2: {"ranks": 2}, 4: {"ranks": 1}}
"""By ranks: names, and in how many parts each rank passes its share."""


@pytest.fixture(scope="module")
def actions(clips_pack, tmp_path_factory):
    return relabelled(
        clips_pack,
        tmp_path_factory.mktemp("ranks") / "actions.pack",
        verb=[["cut", "put", "take"][i % 3] for i in range(18)],
        noun=[["egg", "ham"][i // 2 % 2] for i in range(18)],
        text=[f"clip number {i}" for i in range(18)],
    )


def settings(pack, out, kind, parts, **more) -> TrainConfig:
    model, task = (TASKS | BY_MICRO_BATCH)[kind]
    return TrainConfig(
        data=DataConfig(path=str(pack), repeats=2, workers=1, mode="threads"),
        run=RunConfig(out=str(out), seed=7, log_every=1, device="cpu", eval_every=100),
        model=model,
        task=task,
        clip=ClipSpec(frames=4, size=32, flip="horizontal", erasing=0.3),
        optim=OptimConfig(
            **{"lr": 0.005, "batch_size": 8, "accumulate": parts, "epochs": 1, "ema": 0.9} | more
        ),
        parallel=ParallelConfig(timeout_s=100),
    )


def train_rows(out):
    return [row for row in RunFolder(out).rows() if row["kind"] == "train"]


@pytest.fixture(scope="module")
def runs(actions, tmp_path_factory):
    """Every task in float64 on every split, and long float32 runs, two of them interrupted."""
    root = tmp_path_factory.mktemp("runs")
    for world, splits in SPLITS.items():
        jobs = []
        for name, parts in splits.items():
            for kind in TASKS:
                out = root / f"{kind} {world} {name}"
                jobs.append(
                    {"config": settings(actions, out, kind, parts).to_dict(), "double": True}
                )
        for kind in ("classes", "contrastive"):
            out = root / f"long {kind} {world}"
            samples = root / f"samples {kind}"
            samples.mkdir(exist_ok=True)
            config = settings(actions, out, kind, 4 // world, epochs=7)
            jobs.append({"config": config.to_dict(), "samples": str(samples)})
        for name, simulated in {1: {"simulated": 4, "as one": None}, 4: {"real": None}}.get(
            world, {}
        ).items():
            config = settings(actions, root / name, "statistics", 1)
            config = replace(config, parallel=ParallelConfig(simulate_world=simulated))
            jobs.append({"config": config.to_dict(), "double": True})
        if world == 1:
            config = settings(actions, root / "one to fsdp", "contrastive", 4, epochs=7)
            jobs.append({"config": config.to_dict(), "stop_at": 8})
        if world == 2:
            config = settings(actions, root / "no no_sync", "contrastive", 2)
            config = replace(config, parallel=ParallelConfig(no_sync=False, timeout_s=100))
            jobs.append({"config": config.to_dict(), "double": True})
            for strategy in ("ddp", "fsdp"):
                config = settings(actions, root / f"{strategy} bf16", "statistics", 2, epochs=3)
                config = replace(config, speed=SpeedConfig(precision="bf16"))
                config = replace(config, parallel=ParallelConfig(strategy, timeout_s=100))
                jobs.append({"config": config.to_dict()})
            for hook in ("bf16", "fp16", "powersgd"):
                config = settings(actions, root / hook, "classes", 2, epochs=7)
                parallel = replace(config.parallel, hook=hook, bucket_mb=0.05)
                config = replace(config, parallel=parallel)
                jobs.append({"config": config.to_dict(), "powersgd_start": 6})
            out = root / "from 4 on 2"
            config = settings(actions, out, "classes", 2, epochs=7)
            last = {"config": config.to_dict(), "resume": True}
        if world == 4:
            out = root / "from 4 on 2"
            config = settings(actions, out, "classes", 1, epochs=7)
            jobs.append({"config": config.to_dict(), "stop_at": 11})
            for strategy in ("fsdp", "zero1"):
                config = settings(actions, root / strategy, "contrastive", 1, epochs=7)
                config = replace(config, parallel=replace(config.parallel, strategy=strategy))
                jobs.append({"config": config.to_dict()})
            config = settings(actions, root / "fsdp to one", "contrastive", 1, epochs=7)
            config = replace(config, parallel=ParallelConfig("fsdp", timeout_s=100))
            jobs.append({"config": config.to_dict(), "stop_at": 11})
        run_ranks(world, jobs, root)
    config = settings(actions, root / "one to fsdp", "contrastive", 2, epochs=7)
    config = replace(config, parallel=ParallelConfig("fsdp", timeout_s=100))
    run_ranks(2, [last, {"config": config.to_dict(), "resume": True}], root)
    config = settings(actions, root / "fsdp to one", "contrastive", 4, epochs=7)
    run_ranks(1, [{"config": config.to_dict(), "resume": True}], root)
    return root


def weights(out, part="model"):
    state = RunFolder(out).load_checkpoint()["state"]
    return state["model"] if part == "model" else state["ema"]["weights"]


@pytest.mark.parametrize("split", ["1 parts", "2 ranks", "4 ranks"])
@pytest.mark.parametrize("kind", TASKS)
def test_a_step_is_the_same_however_it_is_cut(runs, kind, split):
    """One batch of 8, 4 parts of 2, 2 ranks of 2 parts, 4 ranks: loss and weights, float64."""
    whole, cut = runs / f"{kind} 1 large", runs / f"{kind} {split}"
    for ours, theirs in zip(train_rows(cut), train_rows(whole), strict=True):
        assert ours["clips"] == theirs["clips"] == 8
        assert ours["loss"] == pytest.approx(theirs["loss"], rel=1e-9)
        assert ours.get("top1") == theirs.get("top1")
    for part in ("model", "ema"):
        before = weights(whole, part)
        for name, value in weights(cut, part).items():
            torch.testing.assert_close(value, before[name], rtol=1e-9, atol=1e-12)


def test_the_cut_could_be_seen(runs):
    """Losses change from step to step, and so do weights."""
    rows = train_rows(runs / "classes 1 large")
    assert len({row["loss"] for row in rows}) == len(rows) == 3
    start, end = weights(runs / "classes 1 large"), weights(runs / "pairs 1 large")
    assert start.keys() != end.keys()


@pytest.mark.parametrize("kind", ["classes", "contrastive"])
def test_losses_of_twenty_steps_agree(runs, kind):
    """Float32, the same global batch on 1, 2 and 4 ranks."""
    losses = {w: [row["loss"] for row in train_rows(runs / f"long {kind} {w}")] for w in SPLITS}
    assert len(losses[1]) == 21
    for world in (2, 4):
        assert losses[world] == pytest.approx(losses[1], abs=1e-5)


@pytest.mark.parametrize("kind", ["classes", "contrastive"])
def test_steps_read_the_same_samples_in_the_same_order(runs, kind):
    """Rank after rank within a micro-batch, micro-batch after micro-batch."""
    read = {}
    for world, parts in ((1, 4), (2, 2), (4, 1)):
        files = [runs / f"samples {kind}" / f"{world}-{rank}.txt" for rank in range(world)]
        steps = zip(
            *([json.loads(x) for x in f.read_text().splitlines()] for f in files), strict=True
        )
        each = 8 // world // parts
        read[world] = [
            [name for p in range(parts) for own in step for name in own[p * each : (p + 1) * each]]
            for step in steps
        ]
    assert len(read[1]) == 21 and all(len(step) == 8 for step in read[1])
    assert read[1] == read[2] == read[4]


def test_a_run_saved_on_four_ranks_goes_on_on_two(runs):
    """Stopped by a signal that one rank got, in the middle of an epoch; as if nothing had been."""
    rows, wanted = train_rows(runs / "from 4 on 2"), train_rows(runs / "long classes 1")
    assert [row["step"] for row in rows] == [row["step"] for row in wanted]
    losses = [row["loss"] for row in rows]
    assert losses == pytest.approx([row["loss"] for row in wanted], abs=1e-5)
    sessions = RunFolder(runs / "from 4 on 2").sessions()
    # Sent after step 11, it is told to the other ranks in step 12.
    assert len(sessions) == 2 and sessions[1]["step"] == 12


@pytest.mark.parametrize("name", ["one to fsdp", "fsdp to one"])
def test_divided_and_whole_states_go_on_from_each_other(runs, name):
    """Momentum and averages with them; fused kernels of one are not forced on the other."""
    rows, wanted = train_rows(runs / name), train_rows(runs / "long contrastive 1")
    assert len(RunFolder(runs / name).sessions()) == 2
    assert [row["step"] for row in rows] == [row["step"] for row in wanted]
    assert [r["loss"] for r in rows] == pytest.approx([r["loss"] for r in wanted], abs=1e-5)
    for part in ("model", "ema"):
        theirs = weights(runs / "long contrastive 1", part)
        for key, value in weights(runs / name, part).items():
            torch.testing.assert_close(value, theirs[key], rtol=1e-3, atol=1e-5)


def test_gradients_may_be_averaged_after_every_part(runs):
    """Slower, and the same."""
    ours, theirs = (train_rows(runs / n) for n in ("no no_sync", "contrastive 1 large"))
    for row, other in zip(ours, theirs, strict=True):
        assert row["loss"] == pytest.approx(other["loss"], rel=1e-9)


def test_fsdp_in_bf16_trains_networks_with_batch_normalisation(runs):
    found, wanted = (
        [row["loss"] for row in train_rows(runs / f"{strategy} bf16")]
        for strategy in ("fsdp", "ddp")
    )
    assert found == pytest.approx(wanted, abs=0.05)


@pytest.mark.parametrize("strategy", ["fsdp", "zero1"])
def test_divided_states_train_alike(runs, actions, strategy):
    """The checkpoint holds whole tensors."""
    rows, wanted = train_rows(runs / strategy), train_rows(runs / "long contrastive 4")
    assert [r["loss"] for r in rows] == pytest.approx([r["loss"] for r in wanted], abs=1e-5)
    ours, theirs = weights(runs / strategy), weights(runs / "long contrastive 4")
    assert ours.keys() == theirs.keys()
    for name, value in ours.items():
        torch.testing.assert_close(value, theirs[name], rtol=1e-3, atol=1e-5)


def test_a_simulated_world_makes_the_updates_of_real_ranks(runs):
    """With dropout and batch normalisation, whose running statistics alone differ: they moved once
    for each micro-batch. One process with its own large batch is something else.
    """
    simulated, real, other = (train_rows(runs / name) for name in ("simulated", "real", "as one"))
    assert [row["lr"] for row in simulated] == [row["lr"] for row in real]
    losses = [[row["loss"] for row in rows] for rows in (simulated, real, other)]
    assert losses[0] == pytest.approx(losses[1], rel=1e-9)
    assert losses[0] != pytest.approx(losses[2], rel=1e-3)
    ours, theirs = weights(runs / "simulated"), weights(runs / "real")
    moved = {name for name in theirs if "running" in name or "num_batches" in name}
    assert moved
    for name in theirs.keys() - moved:
        torch.testing.assert_close(ours[name], theirs[name], rtol=1e-9, atol=1e-12)
    assert any(not torch.allclose(ours[n].double(), theirs[n].double()) for n in moved)


@pytest.mark.parametrize(("hook", "limit"), [("bf16", 0.02), ("fp16", 0.003), ("powersgd", 0.2)])
def test_compressed_gradients_train_almost_alike(runs, hook, limit):
    """PowerSGD begins after six steps; until then nothing is compressed."""
    found = [row["loss"] for row in train_rows(runs / hook)]
    wanted = [row["loss"] for row in train_rows(runs / "long classes 2")]
    assert found == pytest.approx(wanted, abs=limit) and found != wanted
    if hook == "powersgd":
        assert found[:6] == pytest.approx(wanted[:6], abs=1e-6)
