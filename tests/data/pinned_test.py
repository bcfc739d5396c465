"""Copies that nobody waits for: a slot is not written again before it has been read."""

import contextlib
import gc
import logging
import shutil
import time
import weakref
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

import matinee.data.loader
from matinee.data import transfer
from matinee.data.batch import Batch
from matinee.data.clips import ClipSpec
from matinee.data.loader import ClipLoader
from matinee.errors import ClipError
from matinee.pack.reading.reader import Pack
from matinee.spans import Spans

SPEC = ClipSpec(
    frames=4, sampling="dense", stride=4, size=32, flip="horizontal", brightness=0.3, erasing=0.5
)
NEEDS_GPU = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an NVIDIA GPU")


def make(path, **more):
    settings = {
        "split": "train", "clip": SPEC, "batch_size": 3, "seed": 3, "workers": 2,
        "mode": "threads",
    } | more  # fmt: skip
    return ClipLoader(Pack(path), **settings)


def batches(loader, count):
    """The next `count` batches, over epoch ends."""
    found = []
    while len(found) < count:
        for batch in loader:
            found.append(batch)
            if len(found) == count:
                break
    return found


def assert_same(ours, theirs):
    for a, b in zip(ours, theirs, strict=True):
        assert a.samples == b.samples
        assert a.video.cpu().numpy().tobytes() == b.video.cpu().numpy().tobytes()
        assert torch.equal(a.target.cpu(), b.target.cpu())
        assert torch.equal(a.valid.cpu(), b.valid.cpu())


@pytest.fixture(scope="module")
def reference(clips_pack):
    """Ten batches, over two epochs' ends, as the host makes them."""
    with make(clips_pack) as loader:
        return batches(loader, 10)


class SlowDevice:
    """A device that reads a slot long after the batch was handed out, as a busy GPU does.

    A copy is finished when it was asked for `patience` times whether it is, or waited for.
    """

    spare = 1

    def __init__(self, *, ahead: bool, patience: int) -> None:
        self.ahead, self.patience = ahead, patience
        self.copies: list[SlowCopy] = []
        self.memory = None

    def attach(self, memory) -> None:
        assert self.memory is None
        self.memory = memory

    def begin(self, make):
        self.copies.append(SlowCopy(make, self.patience))
        return self.copies[-1]

    def close(self) -> None:
        self.memory = None
        for copy in self.copies:
            copy.wait()


class SlowCopy:
    def __init__(self, make, patience: int) -> None:
        self.make, self.patience, self.finished, self.waited = make, patience, False, False
        made = make()
        self.batch = replace(made, video=torch.full_like(made.video, torch.nan))

    def done(self) -> bool:
        self.patience -= 1
        if self.patience < 0:
            self.finish()
        return self.finished

    def wait(self) -> None:
        self.waited = self.waited or not self.finished
        self.finish()

    def finish(self) -> None:
        if not self.finished:  # what lies in the slot now
            self.batch.video.copy_(self.make().video)
        self.finished = True

    def hand_out(self):
        return self.batch


def slow(monkeypatch, **settings) -> SlowDevice:
    device = SlowDevice(**settings)
    monkeypatch.setattr(matinee.data.loader, "make_transfer", lambda *_, **__: device)
    return device


@pytest.mark.parametrize(
    ("mode", "patience"),
    [("threads", 0), ("threads", 1), ("threads", 4), ("threads", 1000), ("processes", 4)],
)
@pytest.mark.parametrize("ahead", [False, True])
def test_a_slot_is_not_written_before_the_device_has_read_it(
    clips_pack, reference, monkeypatch, ahead, mode, patience
):
    """However late copies finish: what arrives is what was decoded for that batch."""
    device = slow(monkeypatch, ahead=ahead, patience=patience)
    with make(clips_pack, mode=mode, prefetch=2) as loader:
        found = batches(loader, 10)
        # No more slots than that were ever being read: the loader waits instead.
        assert sum(not copy.finished for copy in device.copies) <= 2 + device.spare
    assert_same(found, reference)
    if patience == 1000:  # then somebody has to wait
        assert any(copy.waited for copy in device.copies[:-3])


def test_a_device_that_keeps_up_is_never_waited_for(clips_pack, reference, monkeypatch):
    """Copies done by the time that the next batch is taken: the spare slot is enough."""
    device = slow(monkeypatch, ahead=True, patience=0)
    with make(clips_pack, prefetch=1) as loader:
        assert_same(batches(loader, 10), reference)
        assert not any(copy.waited for copy in device.copies)


def until_decoded(loader) -> None:
    """All that was submitted is decoded, and lies there to be collected."""
    deadline = time.monotonic() + 60
    while loader._backend._threads._done.qsize() < sum(flight.left for flight in loader._flights):
        assert time.monotonic() < deadline
        time.sleep(0.001)


def test_the_next_batch_is_sent_while_this_one_is_worked_on(clips_pack, monkeypatch):
    """If it is complete by then; the position is that of batches handed out."""
    device = slow(monkeypatch, ahead=True, patience=0)
    with make(clips_pack, workers=1) as loader:
        for taken in range(1, 8):
            batches(loader, 1)
            position = loader.state_dict()
            assert 12 * position["epoch"] + position["taken"] == 3 * taken
            # The first may have been taken before the second was decoded.
            assert taken == 1 or len(device.copies) == taken + 1
            until_decoded(loader)  # whoever works on it gives decoders time


@pytest.mark.parametrize("ahead", [False, True])
def test_a_loader_that_is_moved_forgets_what_it_sent(clips_pack, reference, monkeypatch, ahead):
    """More often than it has slots: none gets lost."""
    slow(monkeypatch, ahead=ahead, patience=2)
    with make(clips_pack) as loader:
        start = loader.state_dict()
        for count in (1, 2, 3, 1, 2, 3, 4):
            loader.load_state_dict(start)
            found = batches(loader, count)
        loader.load_state_dict(start)
        found = batches(loader, 10)
    assert_same(found, reference)


def test_a_damaged_clip_stops_in_its_own_batch(clips_pack, reference, monkeypatch, tmp_path):
    """Not in the one before, though it was sent ahead."""
    path = tmp_path / "damaged.pack"
    shutil.copytree(clips_pack, path)
    pack = Pack(path)
    info = pack.info(int(pack.select("train")[4]))
    chunk = pack.locate(info.video, [0])[0].chunk
    with Path(chunk.file).open("r+b") as file:
        file.seek(chunk.offset + 48)
        file.write(np.random.default_rng(0).bytes(chunk.size - 1200))
    at = next(i for i, batch in enumerate(reference) if info.id in batch.samples)
    slow(monkeypatch, ahead=True, patience=1)
    found = []
    with make(path) as loader:
        for _ in range(2):  # and again in the same one
            with pytest.raises(ClipError):
                while True:
                    found += batches(loader, 1)
            assert loader.state_dict()["taken"] == 3 * at
    assert_same(found, reference[:at])


def test_a_closed_loader_lets_go_of_its_memory_and_can_start_again(
    clips_pack, reference, monkeypatch
):
    device = slow(monkeypatch, ahead=True, patience=3)
    loader = make(clips_pack)
    found = batches(loader, 2)
    loader.close()
    assert device.memory is None and all(copy.finished for copy in device.copies)
    found += batches(loader, 2)
    loader.close()
    assert_same(found, reference[:4])


@pytest.mark.parametrize("settings", [{}, {"pinned": False, "side_stream": False}])
def test_the_settings_of_a_gpu_change_nothing_on_the_host(clips_pack, reference, settings):
    with make(clips_pack, **settings) as loader:
        assert_same(batches(loader, 10), reference)
        assert len(loader._backend.memory) == 2  # no spare slot


def test_a_batch_that_was_handed_out_is_not_kept(clips_pack):
    """Its memory is the training step's; here the last of an evaluation, after which no slot is
    asked for."""
    with make(clips_pack, split="val", views=(1, 1), batch_size=6) as loader:
        kept = weakref.ref(loader._next())
        assert kept() is None


def test_what_is_sent_is_measured_where_spans_are_wanted(clips_pack):
    with make(clips_pack) as loader:
        batches(loader, 1)
        loader.spans = Spans()
        batches(loader, 2)
        spent = loader.spans.take()
    assert list(spent) == ["h2d"] and spent["h2d"] > 0


@pytest.fixture
def locked(monkeypatch):
    """Addresses that are page-locked, by a driver that only keeps the list."""
    addresses = []

    def release(memory, device):
        addresses.remove(memory.ctypes.data)

    monkeypatch.setattr(transfer, "_page_lock", lambda m, device: addresses.append(m.ctypes.data))
    monkeypatch.setattr(transfer, "_release", release)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda device: None)
    return addresses


def cuda_transfer(**settings):
    return transfer.make_transfer(torch.device("cuda"), side_stream=False, **settings)


def test_memory_is_page_locked_until_it_is_let_go(locked):
    """Once by close, or when nobody has it any more."""
    memory = np.zeros((2, 100), np.uint8)
    for _ in range(2):
        pinned = cuda_transfer(pinned=True)
        pinned.attach(memory)
        assert locked == [memory.ctypes.data]
        pinned.close()
        pinned.close()
        assert locked == []
    pinned = cuda_transfer(pinned=True)
    pinned.attach(memory)
    del pinned
    gc.collect()
    assert locked == []
    pageable = cuda_transfer(pinned=False)
    pageable.attach(memory)
    assert locked == []


def test_a_driver_that_refuses_is_reported_once_and_copies_go_on(locked, monkeypatch, caplog):
    def refuse(memory, device):
        raise RuntimeError("out of memory (2)\nand more")

    monkeypatch.setattr(transfer, "_page_lock", refuse)
    transfer._warn_pageable.cache_clear()
    with caplog.at_level(logging.WARNING):
        for _ in range(2):
            pageable = cuda_transfer(pinned=True)
            pageable.attach(np.zeros((2, 100), np.uint8))
            pageable.close()
    (record,) = caplog.records
    assert record.message.endswith("out of memory (2)") and "pageable" in record.message


class FakeStream:
    """Notes what is asked of it in `diary`."""

    def __init__(self, name: str, diary: list[str]) -> None:
        self.name, self.diary, self.reached = name, diary, False

    def record_event(self):
        self.diary.append(f"event on {self.name}")
        return self

    def wait_event(self, event) -> None:
        self.diary.append(f"{self.name} waits for {event.name}")

    def query(self) -> bool:
        return self.reached


@pytest.mark.parametrize("side_stream", [True, False])
def test_the_step_waits_for_the_copy_and_the_slot_for_its_event(monkeypatch, side_stream):
    """The order of calls, by streams that only keep a diary."""
    diary: list[str] = []
    streams = [FakeStream("step", diary)]

    @contextlib.contextmanager
    def within(stream):
        streams.append(stream)
        yield
        streams.pop()

    monkeypatch.setattr(torch.cuda, "Stream", lambda device: FakeStream("side", diary))
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: streams[-1])
    monkeypatch.setattr(torch.cuda, "stream", within)
    gpu = transfer.make_transfer(torch.device("cuda"), pinned=True, side_stream=side_stream)
    batch = Batch(*[torch.zeros(1)] * 4, ("a",), 1, ("",), torch.zeros(1))

    def make_batch():
        diary.append(f"copy on {streams[-1].name}")
        return batch

    sent = gpu.begin(make_batch)
    own = "side" if side_stream else "step"
    assert gpu.ahead == side_stream and diary == [f"copy on {own}", f"event on {own}"]
    assert not sent.done()
    assert sent.hand_out() is batch and diary[-1] == f"step waits for {own}"
    assert not sent.done()  # handing out did not wait
    sent._event.reached = True
    assert sent.done()


@pytest.fixture(scope="module")
def pageable(clips_pack):
    """Forty batches by copies from pageable memory on the step's own stream."""
    with make(clips_pack, device="cuda", pinned=False, side_stream=False) as loader:
        return batches(loader, 40)


@pytest.mark.gpu
@NEEDS_GPU
@pytest.mark.parametrize("mode", ["threads", "processes"])
@pytest.mark.parametrize("side_stream", [True, False])
@pytest.mark.parametrize("pinned", [True, False])
def test_a_busy_gpu_gets_the_same_bytes(clips_pack, request, pinned, side_stream, mode):
    """The step's kernels are milliseconds behind the host, and each batch is let go before they
    have read it."""
    found = []
    settings = {"pinned": pinned, "side_stream": side_stream, "mode": mode}
    with make(clips_pack, device="cuda", **settings) as loader:
        while len(found) < 40:
            for batch in loader:
                torch.cuda._sleep(5_000_000)
                found.append(replace(batch, video=batch.video.clone()))
                del batch
                if len(found) == 40:
                    break
        registered = torch.from_numpy(loader._backend.memory)
        assert registered.is_pinned() == pinned
    assert not registered.is_pinned()
    assert_same(found, request.getfixturevalue("pageable"))


@pytest.mark.gpu
@NEEDS_GPU
def test_memory_that_is_already_locked_is_copied_all_the_same(clips_pack, request, caplog):
    """CUDA refuses to register it twice; the refusal does not surface in a later kernel."""
    transfer._warn_pageable.cache_clear()
    memory = np.zeros(1 << 20, np.uint8)
    first, second = cuda_transfer(pinned=True), cuda_transfer(pinned=True)
    first.attach(memory)
    with caplog.at_level(logging.WARNING):
        second.attach(memory)
    assert len(caplog.records) == 1
    torch.ones(8, device="cuda").sum().item()
    second.close()
    first.close()


@pytest.mark.gpu
@NEEDS_GPU
def test_taking_batches_does_not_wait_for_the_gpu(clips_pack):
    """No synchronising call after the first batch, which brings constants."""
    with make(clips_pack, device="cuda") as loader:
        batches(loader, 1)
        torch.cuda.set_sync_debug_mode("error")
        try:
            batches(loader, 8)
        finally:
            torch.cuda.set_sync_debug_mode("default")
