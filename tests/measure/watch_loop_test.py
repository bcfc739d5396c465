"""Watching somebody's own loop: who it was that held it up."""

import json
import time

import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

from matinee.data.clips import ClipSpec
from matinee.data.decode_cost import DecodeCost
from matinee.data.loader import ClipLoader
from matinee.errors import ConfigError, MatineeError
from matinee.measure.diagnose import trace
from matinee.measure.diagnose import watch as watching
from matinee.measure.diagnose.watch import Watch
from matinee.media import decode
from matinee.pack.reading import storage
from matinee.pack.reading.reader import Pack

SPEC = ClipSpec(frames=4, sampling="dense", stride=4, size=32)


def slow(items, seconds):
    """An iterable that is late by so much, each time."""
    for item in items:
        time.sleep(seconds)
        yield item


def run(watch, loader, **spans):
    for _ in watch(loader):
        for name, seconds in spans.items():
            with watch.span(name):
                time.sleep(seconds)


@pytest.mark.parametrize(
    ("wait", "spans", "stage"),
    [
        (0.02, {"forward": 0.004, "optimizer": 0.002}, "data"),
        (0.0, {"forward": 0.01, "loss": 0.01, "optimizer": 0.004}, "compute"),
        (0.0, {"forward": 0.004, "optimizer": 0.02}, "optimizer"),
        (0.0, {"h2d": 0.02, "forward": 0.004}, "h2d"),
        (0.0, {"backward": 0.004, "comm": 0.02}, "communication"),
    ],
)
def test_the_slowest_part_is_the_verdict(wait, spans, stage):
    with Watch(warm_up=1) as watch:
        run(watch, slow(range(13), wait), **spans)
    found = watch.diagnosis()
    assert found.verdict.stage == stage and found.verdict.is_certain
    assert found.step.count == 12
    slept = wait + sum(spans.values())
    assert found.step.p50 >= slept
    assert sum(found.stages.values()) == pytest.approx(found.step.p50, rel=0.5)


def test_waiting_is_what_torchs_loader_is_waited_for_and_cannot_be_told_apart():
    class Late(TensorDataset):
        def __getitem__(self, index):
            time.sleep(0.005)
            return super().__getitem__(index)

    loader = DataLoader(Late(torch.zeros(40, 2)), batch_size=4)
    with Watch() as watch:
        run(watch, loader, forward=0.002)
    found = watch.diagnosis()
    assert found.verdict.stage == "data" and "storage" not in found.stages
    assert found.step.clips == 4 and found.step.count == 7
    assert any("DataLoader cannot be told apart" in note for note in found.notes)
    assert found.changes[0].stage == "data"


@pytest.mark.parametrize("stage", ["storage", "decode"])
def test_of_a_clip_loader_storage_and_decode_are_told_apart(clips_pack, monkeypatch, stage):
    """By making one of them slow."""
    read = storage.LocalFiles.read
    if stage == "storage":

        def late(self, path, offset, length):
            time.sleep(0.03)
            return read(self, path, offset, length)

        monkeypatch.setattr(storage.LocalFiles, "read", late)
    else:
        packets = decode.crc32

        def late_check(data):
            time.sleep(0.01)
            return packets(data)

        monkeypatch.setattr(decode, "crc32", late_check)
    with (
        ClipLoader(Pack(clips_pack), split="train", clip=SPEC, batch_size=2, workers=1,
                   mode="threads", repeats=2) as loader,
        Watch(warm_up=2) as watch,
    ):  # fmt: skip
        run(watch, loader, forward=0.001)
        assert loader.spans is None
    found = watch.diagnosis()
    assert found.verdict.stage == stage
    assert {"storage", "decode", "h2d", "compute"} <= set(found.stages)
    assert found.details["loading"]["frames_used"] > 0
    assert found.step.clips == 2


def test_what_decoders_did_in_forgotten_steps_is_forgotten(clips_pack, monkeypatch):
    monkeypatch.setattr(watching, "_KEPT", 3)
    monkeypatch.setattr(
        ClipLoader, "take_costs", lambda self: DecodeCost(clips=2, read_s=0.1, busy_s=0.4)
    )
    with (
        ClipLoader(Pack(clips_pack), split="train", clip=SPEC, batch_size=2, workers=1,
                   mode="threads") as loader,
        Watch(warm_up=1) as watch,
    ):  # fmt: skip
        run(watch, loader, forward=0.001)
    found = watch.diagnosis()
    assert found.step.count == 3
    told = found.details["loading"]
    assert (told["clips_a_step"], told["busy_ms"]) == (2, pytest.approx(200))
    assert found.stages["decode"] == pytest.approx(3 * found.stages["storage"])


def test_a_long_trace_keeps_its_end(tmp_path, monkeypatch):
    monkeypatch.setattr(trace, "KEPT", 9)
    with Watch(warm_up=1, trace=tmp_path / "t.json") as watch:
        run(watch, range(20), forward=0.0005)
    events = json.loads((tmp_path / "t.json").read_text())["traceEvents"]
    names = [event["name"] for event in events if event["ph"] == "X"]
    assert len(names) == 9 and "step 19" in names and "step 0" not in names


def test_without_spans_the_rest_is_compute_and_a_note_says_so():
    with Watch(warm_up=0) as watch:
        for _ in watch(range(8)):
            time.sleep(0.01)
    found = watch.diagnosis()
    assert found.verdict.stage == "compute" and "other" not in found.stages
    assert any("no spans" in note for note in found.notes)


def test_steps_do_not_hold_what_lies_between_loops_or_warms_up():
    with Watch(warm_up=2) as watch:
        for _ in range(2):
            for number in watch(range(6)):
                with watch.span("forward"):
                    time.sleep(0.2 if number < 2 else 0.01)
            time.sleep(0.3)
    found = watch.diagnosis()
    assert found.step.count == 8 and found.step.p99 < 0.15


def test_without_warm_up_a_loop_begins_with_its_first_batch():
    with Watch(warm_up=0) as watch:
        time.sleep(0.3)
        run(watch, range(5), forward=0.002)
        time.sleep(0.3)
        run(watch, range(5), forward=0.002)
    assert watch.diagnosis().step.p99 < 0.15


def test_a_loop_that_is_left_early_keeps_its_steps():
    with Watch(warm_up=0) as watch:
        for number in watch(range(100)):
            with watch.span("forward"):
                time.sleep(0.002)
            if number == 4:
                break
    assert watch.diagnosis().step.count == 5


def test_printed_it_is_a_table_a_verdict_and_what_to_change():
    with Watch() as watch:
        run(watch, slow(range(12), 0.01), forward=0.002, optimizer=0.001)
    text = str(watch.diagnosis())
    assert "Verdict: data: " in text and "What to change" in text and "p99" in text
    assert all(len(line) < 200 for line in text.splitlines())
    told = json.loads(json.dumps(watch.to_dict(), allow_nan=False))
    assert told["verdict"]["stage"] == "data" and told["step"]["count"] == 9
    assert told["stages"]["data"] > told["stages"]["compute"]


def test_a_slow_step_in_ten_counts_although_the_median_step_is_quick():
    """Steps that wait are few where a loader is ahead of the others."""

    def bursts():
        for number in range(100):
            if number % 10 == 9:
                time.sleep(0.06)
            yield number

    with Watch(warm_up=0) as watch:
        run(watch, bursts(), forward=0.002)
    assert watch.diagnosis().verdict.stage == "data"


def test_a_trace_is_written_at_the_end(tmp_path):
    with Watch(warm_up=1, trace=tmp_path / "t.json") as watch:
        run(watch, range(5), forward=0.001)
    events = json.loads((tmp_path / "t.json").read_text())["traceEvents"]
    names = [event["name"] for event in events if event["ph"] == "X"]
    assert names.count("forward") == 5 and "step 4" in names


def test_too_few_steps_say_what_to_do():
    with Watch(warm_up=3) as watch:
        run(watch, range(3), forward=0.001)
    with pytest.raises(ConfigError, match=r"3 steps were watched.*warm_up=0"):
        watch.diagnosis()


def test_wrong_use_is_refused():
    with pytest.raises(ConfigError, match="warm_up -1"):
        Watch(warm_up=-1)
    with pytest.raises(MatineeError, match=r"inside of `with matinee\.Watch"):
        Watch()(range(3))


def test_an_error_of_the_loop_comes_through():
    with pytest.raises(ZeroDivisionError), Watch() as watch:
        for number in watch(range(3)):
            with watch.span("forward"):
                1 / (number - 1)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an NVIDIA GPU")
def test_on_a_gpu_the_devices_time_counts():
    """The host is through with a step at once; the verdict is compute all the same."""
    x = torch.randn(4096, 4096, device="cuda")
    with Watch() as watch:
        for _ in watch(range(30)):
            with watch.span("forward"):
                for _ in range(10):
                    x @ x
            with watch.span("optimizer"):
                x.add(1)
    found = watch.diagnosis()
    assert found.details["device"].startswith("cuda")
    assert found.verdict.stage == "compute" and found.verdict.share > 0.8
