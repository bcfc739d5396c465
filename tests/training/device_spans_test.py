"""Where a GPU's time goes: events between stretches, read when somebody asks."""

import time

import pytest
import torch

from matinee.spans import Spans
from matinee.training import device_spans
from matinee.training.device_spans import DeviceSpans, spans_on


class Device:
    """Does work in order, `now` seconds into it; the host gives it more at any time."""

    def __init__(self):
        self.host = self.end = 0.0  # the host's clock; when all work that was given will be done
        self.waits = 0

    def give(self, seconds):
        """Work, for which the host takes no time."""
        self.end = max(self.end, self.host) + seconds

    def mark(self):
        self.end = max(self.end, self.host)
        return FakeEvent(self, self.end)


class FakeEvent:
    def __init__(self, device, at):
        self.device, self.at = device, at

    def query(self):
        return self.device.host >= self.at

    def synchronize(self):
        self.device.waits += 1
        self.device.host = max(self.device.host, self.at)

    def elapsed_time(self, end):
        assert self.query() and end.query(), "asked before the device was there"
        return 1000 * (end.at - self.at)


def step(device, spans, *, data=0.0):
    """The host waits `data` seconds, then gives 2 + 4 + 1 seconds of work at once."""
    with spans("data_wait"):
        device.host += data
        with spans("h2d"):
            device.give(0.5)
    for name, seconds in (("forward", 2.0), ("backward", 4.0), ("optimizer", 1.0)):
        with spans(name):
            device.give(seconds)


def test_times_are_the_devices_and_nobody_waits_before_they_are_asked_for():
    device = Device()
    spans = DeviceSpans(device.mark)
    for _ in range(3):
        step(device, spans)
    assert device.waits == 0 and device.host == 0
    assert spans.take() == {
        "data_wait": 0, "h2d": 1.5, "forward": 6, "backward": 12, "optimizer": 3
    }  # fmt: skip
    assert device.waits == 1
    step(device, spans)
    assert spans.take()["backward"] == 4


def test_waiting_for_data_counts_as_far_as_the_device_was_idle():
    """The host waits 10 s, of which the device works off what it has for 7.5."""
    device = Device()
    spans = DeviceSpans(device.mark)
    step(device, spans)
    step(device, spans, data=10)
    assert spans.take()["data_wait"] == pytest.approx(2.5)


def test_the_rest_of_a_stretch_gets_another_name():
    device = Device()
    spans = DeviceSpans(device.mark)
    with spans("backward"):
        device.give(3)
        spans.split("forward", "comm")  # another one is open: nothing happens
        spans.split("backward", "comm")
        device.give(2)
    assert spans.take() == {"backward": 3, "comm": 2}


def test_a_long_time_without_a_log_line_keeps_few_events(monkeypatch):
    """Those that the device has passed are read, without waiting; the sums stay the same."""
    monkeypatch.setattr(device_spans, "_MANY", 20)
    device = Device()
    spans = DeviceSpans(device.mark)
    for _ in range(50):
        step(device, spans)
        device.host += 7  # nearly keeps up: the device falls behind by half a second a step
    assert len(spans._marks) < 60 and device.waits == 0
    spent = spans.take()
    assert spent["h2d"] == pytest.approx(25) and spent["backward"] == pytest.approx(200)


def test_cuts_are_told_later_and_each_its_own():
    """As a watch cuts after every step, and reads at the end."""
    device = Device()
    spans = DeviceSpans(device.mark)
    cuts = []
    for data in (0, 20, 0):
        step(device, spans, data=data)
        cuts.append(spans.cut())
    assert device.waits == 0
    assert [cut()["data_wait"] for cut in cuts] == pytest.approx([0, 12.5, 0])


def test_a_trace_gets_the_hosts_clock(monkeypatch):
    """Begin and end of each stretch; the host waits once, to set the clocks."""
    device = Device()
    device.host = 5.0
    monkeypatch.setattr(time, "monotonic", lambda: device.host)
    spans = DeviceSpans(device.mark)
    told = []
    spans.record = lambda name, begin, end: told.append((name, begin, end))
    step(device, spans)
    assert device.waits == 1
    spans.take()
    assert told == [
        ("data_wait", 5, 5), ("h2d", 5, 5.5), ("data_wait", 5.5, 5.5), ("forward", 5.5, 7.5),
        ("backward", 7.5, 11.5), ("optimizer", 11.5, 12.5),
    ]  # fmt: skip


def test_each_second_counts_once_for_the_innermost_stretch(monkeypatch):
    """On a CPU as well: what is taken never adds up to more than went by."""
    now = [0.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    spans = Spans()
    with spans("data_wait"):
        now[0] += 1
        with spans("h2d"):
            now[0] += 2
        now[0] += 4
    now[0] += 8
    with spans("backward"):
        now[0] += 16
        spans.split("backward", "comm")
        now[0] += 32
    cut = spans.cut()
    assert cut() == {"": 8, "data_wait": 5, "h2d": 2, "backward": 16, "comm": 32}
    assert spans.take() == {}


def test_switched_off_no_event_is_made():
    spans = DeviceSpans(lambda: pytest.fail("an event"), on=False)
    with spans("forward"):
        spans.split("forward", "comm")


def test_a_cpu_gets_plain_spans():
    assert type(spans_on(torch.device("cpu"))) is Spans


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an NVIDIA GPU")
def test_a_gpus_work_counts_where_it_was_given():
    """The host is through at once; the clock of the host around a wait is the reference."""
    device = torch.device("cuda")
    spans = spans_on(device)
    x = torch.randn(4096, 4096, device=device)
    (x @ x).sum().item()

    def work(times):
        for _ in range(times):
            x @ x

    torch.cuda.synchronize()
    begin = time.monotonic()
    work(50)
    torch.cuda.synchronize()
    alone = time.monotonic() - begin
    with spans("forward"):
        work(50)
    with spans("backward"):
        work(100)
    launched = time.monotonic()
    with spans("data_wait"):
        pass
    spent = spans.take()
    assert time.monotonic() > launched
    assert spent["forward"] == pytest.approx(alone, rel=0.5)
    assert spent["backward"] == pytest.approx(2 * spent["forward"], rel=0.3)
    assert spent["data_wait"] < 0.1 * spent["forward"]
