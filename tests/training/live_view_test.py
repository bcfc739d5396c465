"""What a run shows: a view that fits any width and tells the truth, plain lines, nothing."""

from __future__ import annotations

import io
import math
import re
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len
from rich.console import Console

from matinee.training.show.figures import age, duration, figure, rate
from matinee.training.show.live import LiveView, sparks
from matinee.training.show.plain import PlainLines
from matinee.training.show.readings import Readings
from matinee.training.show.terminal import show_on

PER_EPOCH, EPOCHS = 100, 4
TOTAL = PER_EPOCH * EPOCHS
STEP_SECONDS, PAUSE_SECONDS = 0.5, 20.0


class Clock:
    def __init__(self):
        self.now = 0.0

    def __call__(self):
        return self.now


def loss_at(step):
    return 4 / (1 + step / 50)


def row_at(step, **more):
    """A row over the ten steps before `step`, of 16 clips each."""
    return {
        "kind": "train", "step": step, "epoch": step / PER_EPOCH, "loss": loss_at(step),
        "top1": 1 - 1 / (1 + step / 50), "lr": 0.0123, "clips": 160,
        "clips_per_s": 160 / (10 * STEP_SECONDS), "masked": 0,
        "spans": {"data_wait": 0.5, "forward": 1.5, "backward": 2.0, "optimizer": 1.0}, **more,
    }  # fmt: skip


def play(show, clock, until, top1=(0.5, 0.75, 0.625, 0.5), **more):
    """Tell a run of STEP_SECONDS a step and PAUSE_SECONDS of validation an epoch."""
    show.start(total=TOTAL, epochs=EPOCHS, headline="top1", facts=["10 clips of [red]all[/red]"])
    for step in range(1, until + 1):
        clock.now += STEP_SECONDS
        show.step(step)
        if step % 10 == 0:
            show.log(row_at(step, **more))
        if step % PER_EPOCH == 0:
            clock.now += PAUSE_SECONDS
            epoch = step // PER_EPOCH
            show.validated({"kind": "val", "step": step, "epoch": epoch, "top1": top1[epoch - 1]})
            show.saved(step, 0.3)


def view_of(width, until=0, name="tsm", **more):
    clock = Clock()
    console = Console(file=io.StringIO(), force_terminal=True, width=width)
    view = LiveView(console, name, clock)
    play(view, clock, until, **more)
    return view, clock, console


def lines_of(view, console):
    """The panel's lines as a terminal shows them: without colours."""
    with console.capture() as captured:
        console.print(view.render())
    return re.sub(r"\x1b\[[0-9;]*m", "", captured.get()).splitlines()


@pytest.mark.parametrize("width", [*range(24, 70), 80, 100, 120, 200])
def test_the_view_fits_and_keeps_its_height(width):
    """Of every width, before the first row and with everything there is to say."""
    heights = set()
    long = {"masked": 12_345, "world": 1024, "grad_norm": 1e-7, "a_long_name_of_a_sum": 0.5}
    for until, more in ((0, {}), (10, {}), (230, {}), (TOTAL, long)):
        view, clock, console = view_of(width, until, name="an [i]unusually[/i] long name", **more)
        lines = lines_of(view, console)
        assert {cell_len(line) for line in lines} == {min(width, 110)}, lines
        heights.add(len(lines))
        clock.now += 100_000
        assert {cell_len(line) for line in lines_of(view, console)} == {min(width, 110)}
    assert len(heights) == 1 or width < 60  # one column: rows come as there is more to say


def test_the_view_tells_the_run():
    """At 80 columns, each figure beside its name."""
    view, clock, console = view_of(80, 230, masked=3, world=4)
    clock.now += 12
    lines = lines_of(view, console)
    text = "\n".join(lines)
    for pattern in (
        r"─ tsm ─", r"epoch 3 of 4 .*━.* 30%", r"step 230 of 400 .*━.*left",
        rf"loss +{loss_at(230):.4f} +[▁-█]{{9,}}", r"top1 +0\.8214", r"lr +0\.0123",
        r"speed +32 clips/s", r"data wait +10% of the time", r"memory +\d+\.\d GiB",
        r"saved +step 200, 27 s ago", r"val +top1 0\.7500 \(epoch 2\)", r"4 ranks +3 clips masked",
    ):  # fmt: skip
        assert re.search(pattern, text), (pattern, text)
    for column in (("loss", "lr", "val"), ("speed", "data wait", "memory", "saved")):
        assert len({line.index(f"{n} ") for n in column for line in lines if f" {n} " in line}) == 1


def test_the_best_validation_stays_in_sight():
    view, _, console = view_of(80, 350)
    assert "top1 0.6250 (epoch 3), best 0.7500 (epoch 2)" in "\n".join(lines_of(view, console))


def test_of_losses_the_lowest_is_best():
    readings = Readings()
    readings.start(total=3, headline="loss", epochs=3)
    rows = [{"loss": loss, "epoch": epoch} for epoch, loss in enumerate((2.0, 1.0, 1.5), 1)]
    assert [readings.validated(row) for row in rows] == [True, True, False]
    assert (readings.best_val.value, readings.best_val.epoch) == (1.0, 2)


def test_the_view_says_what_keeps_it():
    view, clock, console = view_of(80, 100)
    lines_of(view, console)
    clock.now += 5
    assert "end of epoch: validating, saving" in lines_of(view, console)[0]
    view.step(101)
    assert "validating" not in lines_of(view, console)[0]
    clock.now += 75
    assert "no step for 1 min 15 s" in lines_of(view, console)[0]


def test_of_a_gpu_the_peak_is_shown(monkeypatch):
    """Of the device this process uses, which need not be the first."""
    peaks = {0: 0, 1: int(12.34 * 2**30)}
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "max_memory_allocated", peaks.__getitem__)
    cards = [SimpleNamespace(total_memory=size * 2**30) for size in (24, 80)]
    monkeypatch.setattr(torch.cuda, "get_device_properties", cards.__getitem__)
    view, _, console = view_of(80, 10)
    assert "memory     12.3 of 80 GiB" in "\n".join(lines_of(view, console))


def test_names_are_not_markup():
    view, _, console = view_of(80, 10, name="[red]a[/red] :smile:")
    view.note("clip [1/2]: [bold]bad[/bold]")
    assert "[red]a[/red] :smile:" in lines_of(view, console)[0]
    said = console.file.getvalue()
    assert "10 clips of [red]all[/red]" in said and "clip [1/2]: [bold]bad[/bold]" in said


def test_time_left_counts_validation_too():
    """After an epoch with its pause, against what the rest of the run will take."""
    readings = {}
    for until in (10, 110):
        lines, _ = plain(until)
        readings[until] = lines._readings
    assert readings[10].seconds_left(10) is None  # a single row may be the slow first
    rest = (TOTAL - 110) * STEP_SECONDS + (EPOCHS - 1) * PAUSE_SECONDS
    assert readings[110].seconds_left(110) == pytest.approx(rest, rel=0.1)
    assert readings[110].epoch_at(115) == pytest.approx(1.15)


def test_time_left_follows_the_recent_speed():
    """Ten times slower since 20 rows: the time before does not count."""
    clock = Clock()
    readings = Readings(clock)
    readings.start(total=10_000, headline="top1", epochs=None)
    for number in range(1, 81):
        seconds = 1.0 if number <= 60 else 10.0
        clock.now += seconds
        readings.log(row_at(10 * number) | {"clips_per_s": 160 / seconds})
    assert readings.seconds_left(800) == pytest.approx(9200 * 1.0)


@given(st.lists(st.floats(0.01, 100), min_size=1, max_size=40))
def test_sparks_rise_and_fall_with_the_values(values):
    """The lowest is the lowest, the highest the highest, and order is kept."""
    heights = ["▁▂▃▄▅▆▇█".index(c) for c in sparks(values)]
    assert len(heights) == len(values)
    if math.log(max(values)) > math.log(min(values)):
        assert heights[values.index(min(values))] == 0
        assert heights[values.index(max(values))] == 7
    assert all(
        a <= b for a, x in zip(heights, values, strict=True)
        for b, y in zip(heights, values, strict=True) if x < y
    )  # fmt: skip


@given(st.integers(1, 3000), st.integers(1, 60))
def test_the_trend_has_all_of_the_run_in_few_points(rows, count):
    """Against numpy's mean; memory stays bounded."""
    readings = Readings()
    losses = np.random.default_rng(rows).random(rows)
    for loss in losses:
        readings._add_loss(float(loss))
    found = readings.losses(count)
    assert len(found) <= min(count, 512) and len(readings._losses) < 512
    joined = 1
    while rows // joined >= 512:
        joined *= 2
    points = losses[: rows // joined * joined].reshape(-1, joined).mean(1)
    every = math.ceil(len(points) / count)
    expected = [points[i : i + every].mean() for i in range(0, len(points), every)]
    assert found == pytest.approx(expected)


def test_a_step_writes_nothing_and_what_stays_scrolls_above():
    """The thread of the view draws; after the run its lines stay and the panel is gone."""
    clock = Clock()
    file = io.StringIO()
    view = LiveView(Console(file=file, force_terminal=True, width=80), "tsm", clock)
    view.start(total=TOTAL, epochs=EPOCHS, headline="top1", facts=[])
    for step in range(100):
        view.step(step)
    assert file.getvalue() == ""
    with view:
        play(view, clock, 200)
        view.note("checkpoint 100 is damaged")
    shown = screen(file.getvalue())
    assert [line for line in shown if line] == [
        "  10 clips of [red]all[/red]",
        "  epoch 1  loss 1.333  validation top1 0.5000  best",
        "  epoch 2  loss 0.8000  validation top1 0.7500  best",
        "  checkpoint 100 is damaged",
        "  step 200 of 400, epoch 2  loss 0.8000  32 clips/s",
    ]


def screen(output):
    """Lines a terminal shows after `output`: of control codes, those that rich's live view uses."""
    lines, row, column = [""], 0, 0
    for code, move, text in re.findall(r"\x1b\[\??([0-9;]*)([A-Za-z])|([^\x1b])", output):
        if text == "\n":
            row, column = row + 1, 0
            lines += [""] * (row + 1 - len(lines))
        elif text == "\r":
            column = 0
        elif text:
            lines[row] = lines[row][:column].ljust(column) + text + lines[row][column + 1 :]
            column += 1
        elif move == "A":
            row -= int(code or 1)
        elif move == "K":
            lines[row] = ""
    return lines


def plain(until, **more):
    file, clock = io.StringIO(), Clock()
    lines = PlainLines(Console(file=file, width=80), "tsm", clock)
    play(lines, clock, until, **more)
    return lines, file


def test_plain_lines_of_an_epoch():
    """An epoch of 50 s and its validation: a line each, and one for the checkpoint."""
    _, file = plain(100)
    assert file.getvalue().splitlines() == [
        "  10 clips of [red]all[/red]",
        "tsm: epoch 1 of 4  loss 1.333  top1 0.6667  lr 0.0123  32 clips/s  "
        "waiting for data 10%  2 min 30 s left",
        "tsm: epoch 1 of 4  validation top1 0.5000  (best)",
        "tsm: checkpoint of step 100 (0.3 s)",
    ]


def test_plain_lines_come_each_minute_of_a_long_epoch():
    """Rows each 5 s, an epoch of 50: twelve rows between lines. Of checkpoints, one a minute."""
    lines, file = plain(0)
    before = len(file.getvalue())
    for number in range(1, 31):
        lines._clock.now += 5
        lines.log(row_at(number) | {"epoch": number / 1000})
        lines.saved(number, 0.1)
    said = file.getvalue()[before:].splitlines()
    assert [line.split("  ")[0] for line in said if "loss" in line] == [
        "tsm: epoch 0.01 of 4, step 12", "tsm: epoch 0.02 of 4, step 24",
    ]  # fmt: skip
    assert [line for line in said if "checkpoint" in line] == [
        f"tsm: checkpoint of step {step} (0.1 s)" for step in (1, 13, 25)
    ]


def test_plain_lines_tell_notes_and_masked_clips_and_no_share_without_spans():
    lines, file = plain(100, masked=2, spans={})
    lines.note("last.pt is damaged: [Errno 5]")
    said = file.getvalue()
    assert "masked 2" in said and "waiting" not in said
    assert said.endswith("tsm: last.pt is damaged: [Errno 5]\n")


def test_each_console_gets_what_it_can_show(monkeypatch):
    monkeypatch.setenv("TERM", "xterm")
    terminal, pipe = Console(force_terminal=True), Console(file=io.StringIO())
    assert isinstance(show_on(terminal), LiveView)
    assert isinstance(show_on(pipe), PlainLines)
    assert isinstance(show_on(terminal, how="plain"), PlainLines)
    monkeypatch.setenv("TERM", "dumb")
    assert isinstance(show_on(Console(force_terminal=True)), PlainLines)
    silent = show_on(terminal, how="none")
    with terminal.capture() as captured:
        play(silent, Clock(), 100)
    assert captured.get() == ""


def test_numbers_are_short():
    assert [figure(v) for v in (0.4, 12.345, 2345.6, 1.2345e-5)] == [
        "0.4000", "12.35", "2346", "1.234e-05",
    ]  # fmt: skip
    assert [rate(v) for v in (3.14, 12.3, 12345.6)] == ["3.1", "12", "12,346"]
    seconds = (0, 59.4, 60, 185, 8040, 273_600)
    assert [duration(v) for v in seconds] == [
        "0 s", "59 s", "1 min 00 s", "3 min 05 s", "2 h 14 min", "3 d 04 h",
    ]  # fmt: skip
    assert [age(v) for v in seconds[1:4]] == ["59 s ago", "1 min ago", "3 min ago"]
