"""What a log says held a run up."""

import json
from dataclasses import replace

import pytest

from matinee.data.clips import ClipSpec
from matinee.errors import ConfigError
from matinee.measure.diagnose.from_run import diagnose_run, row_stages
from matinee.training.config import DataConfig, RunConfig, TrainConfig
from matinee.training.loop import train

SPANS = {"data_wait": 4.0, "h2d": 0.2, "forward": 1.0, "backward": 2.0, "optimizer": 0.5}
LOADER = {
    "decoders": 2, "clips": 40, "bytes": 4_000_000, "read_s": 6.0, "decode_s": 1.5, "scale_s": 0.5,
    "packets": 800, "frames_decoded": 800, "frames_used": 160, "busy_s": 8.0, "queued_s": 1.0,
    "handoff_s": 1.0,
}  # fmt: skip


def write(folder, rows):
    """The folder of a run as `train` leaves it."""
    folder.mkdir()
    config = TrainConfig(data=DataConfig(path="gone.pack"), run=RunConfig(out=str(folder)))
    (folder / "config.json").write_text(config.to_json())
    (folder / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return folder


def row(number, **more):
    """10 steps of 4 clips in 8 s."""
    return {
        "kind": "train", "step": 10 * number, "epoch": number / 10, "loss": 1.0, "lr": 0.1,
        "clips": 40, "clips_per_s": 5.0, "masked": 0, "window": {"steps": 10, "seconds": 8.0},
        "spans": SPANS, "loader": LOADER,
    } | more  # fmt: skip


def test_waiting_is_divided_as_decoders_spent_their_time(tmp_path):
    """Three quarters of it reading; the rest of the window is other."""
    found = diagnose_run(write(tmp_path / "run", [row(n) for n in range(1, 8)]))
    assert found.stages == pytest.approx(
        {"storage": 0.3, "decode": 0.1, "h2d": 0.02, "compute": 0.3, "optimizer": 0.05,
         "other": 0.03}
    )  # fmt: skip
    assert found.step.p50 == pytest.approx(0.8) and found.step.clips == 4
    assert found.step.count == 6  # the first row is left out
    assert found.details["loading"]["frames_decoded"] == 20
    json.dumps(found.to_dict(), allow_nan=False)


@pytest.mark.parametrize(
    ("spans", "loader", "stage"),
    [
        ({"data_wait": 6.0}, {"read_s": 7.5}, "storage"),
        ({"data_wait": 6.0}, {"read_s": 0.1}, "decode"),
        ({"data_wait": 0.1, "h2d": 5.0}, {}, "h2d"),
        ({"data_wait": 0.1, "backward": 5.0}, {}, "compute"),
        ({"data_wait": 0.1, "optimizer": 5.0}, {}, "optimizer"),
    ],
)
def test_the_greatest_stage_is_the_verdict(tmp_path, spans, loader, stage):
    rows = [row(n, spans=SPANS | spans, loader=LOADER | loader) for n in range(1, 8)]
    found = diagnose_run(write(tmp_path / "run", rows))
    assert found.verdict.stage == stage and found.verdict.is_certain


def over(least, median, greatest, slowest=1):
    return {"least": least, "median": median, "greatest": greatest, "slowest": slowest}


@pytest.mark.parametrize(
    ("own", "comm", "stage"),
    [((3.0, 3.1, 9.0), (0.2, 5.9, 6.0), "stragglers"), ((2.0, 2.1, 2.2), (5.0, 5.1, 5.2),
     "communication")],
)  # fmt: skip
def test_waiting_for_a_slow_rank_is_told_from_sending(tmp_path, own, comm, stage):
    """Rank 0 waits 6 s in both; where the slowest rank waits as well, it is the network."""
    ranks = {
        "data_wait": over(0.1, 0.1, 0.1), "forward": over(0.5, 0.5, 0.5), "comm": over(*comm),
        "backward": over(own[0] - 0.6, own[1] - 0.6, own[2] - 0.6), "own": over(*own),
    }  # fmt: skip
    spans = {"data_wait": 0.1, "forward": 0.5, "backward": own[0] - 0.6, "comm": comm[2]}
    rows = [
        row(n, spans=spans, ranks=ranks, world=3, window={"steps": 10, "seconds": 9.4})
        for n in range(1, 8)
    ]
    found = diagnose_run(write(tmp_path / "run", rows))
    assert found.verdict.stage == stage
    assert found.stages["stragglers"] == pytest.approx((own[2] - own[1]) / 10)
    assert found.stages["communication"] == pytest.approx(comm[0] / 10)
    if stage == "stragglers":
        assert found.changes[0].what.startswith("rank 1 takes 590 ms longer")


def test_costs_of_all_ranks_are_told_of_one(tmp_path):
    """Three ranks decode 40 clips in 10 steps: each 4 a step on 2 decoders."""
    each = {name: over(s, s, s) for name, s in SPANS.items()} | {"own": over(7.7, 7.7, 7.7)}
    all_ranks = {name: 3 * value for name, value in LOADER.items()}
    rows = [row(n, ranks=each, world=3, loader=all_ranks) for n in range(1, 8)]
    told = diagnose_run(write(tmp_path / "run", rows)).details["loading"]
    assert (told["decoders"], told["clips_a_step"]) == (2, pytest.approx(4))


def test_saving_and_validating_belong_to_no_step():
    held = row(1, spans=SPANS | {"save": 100.0, "validate": 50.0},
               window={"steps": 10, "seconds": 108.0})  # fmt: skip
    stages = row_stages(held, 10, None)
    assert sum(stages.values()) == pytest.approx(0.77)
    assert stages["data"] == pytest.approx(0.4)


def test_old_logs_cannot_tell_storage_from_decode(tmp_path):
    """Rows of before there were sums of decoders: steps are counted by distance."""
    rows = [row(n) for n in range(1, 6)]
    for each in rows:
        del each["window"], each["loader"]
    found = diagnose_run(write(tmp_path / "run", rows))
    assert found.verdict.stage == "data" and "storage" not in found.stages
    assert found.stages["data"] == pytest.approx(0.4)
    assert any("older" in note for note in found.notes)


def test_a_resumed_runs_rows_count_the_steps_they_saw(tmp_path):
    """The row after the resume has seen 2 of 10 steps."""
    short = row(4, window={"steps": 2, "seconds": 1.6}, clips=40,
                spans={name: s / 5 for name, s in SPANS.items()})  # fmt: skip
    rows = [row(1), row(2), row(3), short, row(5)]
    found = diagnose_run(write(tmp_path / "run", rows))
    assert [sum(sample.values()) for sample in found.samples] == pytest.approx([0.8] * 4)


def test_a_run_of_images_in_memory_says_so(tmp_path):
    rows = [row(n) for n in range(1, 6)]
    for each in rows:
        del each["loader"]
    found = diagnose_run(write(tmp_path / "run", rows))
    assert found.verdict.stage == "h2d" and any("in memory" in note for note in found.notes)


def test_a_real_run_can_be_diagnosed(clips_pack, tmp_path):
    """Its own rows, with the pack still there."""
    config = TrainConfig(
        data=DataConfig(path=str(clips_pack), workers=1, mode="threads"),
        run=RunConfig(out=str(tmp_path / "run"), device="cpu", log_every=1, eval_every=2),
    )
    config = replace(
        config, clip=ClipSpec(frames=4, sampling="dense", stride=4, size=32),
        model=replace(config.model, backbone="resnet18"),
        optim=replace(config.optim, batch_size=4, epochs=2, warmup_epochs=0),
    )  # fmt: skip
    train(config)
    found = diagnose_run(tmp_path / "run")
    assert {"storage", "decode", "h2d", "compute", "optimizer", "other"} == set(found.stages)
    assert found.verdict.stage == "compute"  # a ResNet against pictures of 64 × 48
    assert found.details["loading"]["frames_used"] == 4
    assert found.step.count == 2 * 3 - 1


@pytest.mark.parametrize(
    ("rows", "words"),
    [
        ([], "no row of training"),
        ([row(1, spans={})], "--speed.no-spans"),
        ([row(1, window={"steps": 0, "seconds": 0.0})], "no row of the log holds a whole step"),
        ([row(1), row(2, loader={"decoders": 2})], "sums of decoders are damaged"),
    ],
)
def test_a_log_that_tells_nothing_is_refused(tmp_path, rows, words):
    with pytest.raises(ConfigError, match=words):
        diagnose_run(write(tmp_path / "run", rows))


def test_no_run_is_refused(tmp_path):
    with pytest.raises(ConfigError, match="is no run"):
        diagnose_run(tmp_path)
