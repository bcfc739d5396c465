"""Loggers: what trackers get, read back from their own files; failures; resumed runs."""

from __future__ import annotations

import json
import os
import signal
import sqlite3
import struct
import sys
import threading
import time

import pytest

from matinee.data.clips import ClipSpec
from matinee.errors import ConfigError, MissingExtra
from matinee.models.config import ModelConfig
from matinee.training.config import DataConfig, OptimConfig, RunConfig, TrainConfig
from matinee.training.loop import train
from matinee.training.show import loggers
from matinee.training.show.loggers import check_loggers, open_loggers, scalars
from matinee.training.show.progress import Silent
from matinee.training.show.trackers import TRACKERS, flat
from matinee.training.state.runfolder import RunFolder

CONFIG = {"optim": {"lr": 0.1, "betas": [0.9, 0.95]}, "run": {"seed": 3, "out": "runs/one"}}


def train_row(step, loss=None):
    return {
        "kind": "train", "step": step, "epoch": step / 20, "loss": loss or 8 / step, "lr": 0.1,
        "clips": 16, "clips_per_s": 100.0, "masked": 0,
        "spans": {"data_wait": 0.25, "forward": 0.5},
    }  # fmt: skip


def val_row(step, top1=0.5):
    return {
        "kind": "val", "step": step, "epoch": step // 20, "split": "val", "views": "1x1",
        "top1": top1, "per_class": [0.5, 0.5], "ece": None, "spans": {"validate": 2.0},
    }  # fmt: skip


def write(folder, names, rows, resume_step=None):
    """One session of a run: open, log, close. Returns what was said."""
    said = []
    folder.mkdir(exist_ok=True)
    opened = open_loggers(names, folder, CONFIG, resume_step, said.append)
    for row in rows:
        for logger in opened:
            logger.log(row)
    for logger in opened:
        logger.close()
    return said


def test_scalars_are_the_numbers_of_a_row_and_the_seconds_of_its_spans():
    assert scalars(train_row(10)) == {
        "train/epoch": 0.5, "train/loss": 0.8, "train/lr": 0.1, "train/clips": 16.0,
        "train/clips_per_s": 100.0, "train/masked": 0.0, "time/data_wait": 0.25,
        "time/forward": 0.5,
    }  # fmt: skip
    assert scalars(val_row(20)) == {"val/epoch": 1.0, "val/top1": 0.5, "time/validate": 2.0}


def test_settings_get_dotted_names():
    assert flat(CONFIG) == {
        "optim.lr": 0.1, "optim.betas": [0.9, 0.95], "run.seed": 3, "run.out": "runs/one",
    }  # fmt: skip


def test_tensorboard_reads_what_was_logged(tmp_path):
    """Its own reader; steps, values to float32."""
    events = read_events(tmp_path, [train_row(10), train_row(20), val_row(20)])
    assert events["train/loss"] == pytest.approx({10: 0.8, 20: 0.4})
    assert events["val/top1"] == {20: 0.5}
    assert events["time/data_wait"] == {10: 0.25, 20: 0.25}
    assert events["time/validate"] == {20: 2.0}


def test_tensorboard_drops_what_a_resumed_run_writes_again(tmp_path):
    """Stopped after step 40, resumed at 20: step 30 comes from the second session alone."""
    rows = [train_row(step) for step in (10, 20, 30, 40)]
    read_events(tmp_path, rows)
    again = read_events(tmp_path, [train_row(30, loss=7.0), train_row(40, loss=6.0)], 20)
    assert again["train/loss"] == pytest.approx({10: 0.8, 20: 0.4, 30: 7.0, 40: 6.0})


def read_events(folder, rows, resume_step=None):
    """{name: {step: value}} in RUN/tensorboard after a session; no step twice."""
    reading = pytest.importorskip(
        "tensorboard.backend.event_processing.event_accumulator", reason="extra [tensorboard]"
    )
    assert write(folder, ["tensorboard"], rows, resume_step) == []
    events = reading.EventAccumulator(str(folder / "tensorboard")).Reload()
    found = {}
    for name in events.Tags()["scalars"]:
        found[name] = {event.step: event.value for event in events.Scalars(name)}
        assert len(found[name]) == len(events.Scalars(name))
    return found


def test_training_tells_tensorboard_what_it_writes_down(clips_pack, tmp_path):
    """Stopped in the second epoch and resumed: its curves are metrics.jsonl's, point for point."""
    reading = pytest.importorskip(
        "tensorboard.backend.event_processing.event_accumulator", reason="extra [tensorboard]"
    )
    config = TrainConfig(
        data=DataConfig(path=str(clips_pack), workers=1, mode="threads"),
        run=RunConfig(
            out=str(tmp_path / "run"), log_every=1, device="cpu", loggers=("tensorboard",)
        ),
        model=ModelConfig(backbone="test_resnet", dropout=0.0),
        clip=ClipSpec(frames=2, size=32),
        optim=OptimConfig(lr=0.01, batch_size=4, epochs=3),
    )

    class StopInTheMiddle(Silent):
        def step(self, step):
            if step == 4:
                os.kill(os.getpid(), signal.SIGTERM)

    assert train(config, progress=StopInTheMiddle()).stopped == "SIGTERM"
    train(config, resume=True)
    events = reading.EventAccumulator(str(tmp_path / "run" / "tensorboard")).Reload()
    rows = RunFolder(tmp_path / "run").rows()
    for kind, metric in (("train", "loss"), ("train", "lr"), ("val", "top1")):
        drawn = [(event.step, event.value) for event in events.Scalars(f"{kind}/{metric}")]
        assert drawn == [
            (row["step"], pytest.approx(row[metric], rel=1e-6))
            for row in rows if row["kind"] == kind
        ]  # fmt: skip
        assert len(drawn) >= 3


def test_wandb_goes_on_with_the_same_run(tmp_path, monkeypatch):
    """Offline, read back from its own file; a resumed session writes under the same id."""
    pytest.importorskip("wandb", reason="extra [wandb]")
    for name in ("WANDB_PROJECT", "WANDB_NAME", "WANDB_DIR", "WANDB_RUN_ID", "WANDB_CONSOLE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("WANDB_MODE", "offline")
    run = tmp_path / "one"
    assert write(run, ["wandb"], [train_row(10), train_row(20), val_row(20)]) == []
    identity = json.loads((run / "loggers.json").read_text())["wandb"]
    (folder,) = (run / "wandb").glob(f"offline-run-*-{identity}")
    file, end = folder / f"run-{identity}.wandb", time.monotonic() + 30
    while len(history := wandb_history(file)) < 3 and time.monotonic() < end:
        time.sleep(0.1)  # its process may write the file a moment after it said it was done
    assert [(row["step"], row.get("train/loss"), row.get("val/top1")) for row in history] == [
        (10, 0.8, None), (20, 0.4, None), (20, None, 0.5),
    ]  # fmt: skip
    assert write(run, ["wandb"], [train_row(30)], resume_step=20) == []
    assert json.loads((run / "loggers.json").read_text())["wandb"] == identity
    assert len(list((run / "wandb").glob(f"offline-run-*-{identity}*"))) == 2


def wandb_history(path):
    """Rows of a .wandb file: seven bytes of header, then records as LevelDB's log format has them
    (blocks of 32 KiB; each piece after its checksum, length and kind: whole, first, middle, last).
    """
    from wandb.proto.wandb_internal_pb2 import Record

    content, at, pieces, rows = path.read_bytes(), 7, b"", []
    while at + 7 < len(content):
        if 32768 - at % 32768 < 7:
            at += 32768 - at % 32768
        length, kind = struct.unpack_from("<HB", content, at + 4)
        pieces += content[at + 7 : at + 7 + length]
        at += 7 + length
        if kind in (1, 4):
            record, pieces = Record.FromString(pieces), b""
            if record.HasField("history"):
                items = record.history.item
                rows.append({i.key or i.nested_key[0]: json.loads(i.value_json) for i in items})
    return rows


def test_mlflow_goes_on_with_the_same_run(tmp_path, monkeypatch):
    """Read from its database; resumed elsewhere, it finds the run where it was begun, and sends no
    row twice.
    """
    mlflow = pytest.importorskip("mlflow", reason="extra [mlflow]")
    pytest.importorskip("sqlalchemy", reason="mlflow's database")
    uri = f"sqlite:///{tmp_path / 'mlflow.db'}"
    monkeypatch.setenv("MLFLOW_TRACKING_URI", uri)
    run = tmp_path / "one"
    assert write(run, ["mlflow"], [train_row(10), train_row(20), val_row(20)]) == []
    monkeypatch.delenv("MLFLOW_TRACKING_URI")
    rows = [train_row(20), val_row(20), train_row(30)]
    before = mlflow.get_tracking_uri()
    try:
        assert write(run, ["mlflow"], rows, resume_step=10) == []
    finally:
        mlflow.set_tracking_uri(before)
    with sqlite3.connect(tmp_path / "mlflow.db") as base:
        select = "SELECT step, value FROM metrics WHERE key = ? ORDER BY step"
        assert base.execute(select, ["train/loss"]).fetchall() == [
            (10, 0.8), (20, 0.4), (30, pytest.approx(8 / 30)),
        ]  # fmt: skip
        assert base.execute(select, ["time/data_wait"]).fetchall() == [
            (step, 0.25) for step in (10, 20, 30)
        ]
        params = dict(base.execute("SELECT key, value FROM params"))
        assert params == {name: str(value) for name, value in flat(CONFIG).items()}
        assert base.execute("SELECT name, status FROM runs").fetchall() == [("one", "FINISHED")]


def test_trackio_goes_on_with_the_same_run(tmp_path, monkeypatch):
    """Read from its database."""
    storage = pytest.importorskip("trackio.sqlite_storage", reason="extra [trackio]")
    for name in ("TRACKIO_SPACE_ID", "TRACKIO_SERVER_URL"):
        monkeypatch.delenv(name, raising=False)
    for module in list(sys.modules.values()):  # read from the environment when imported
        if getattr(module, "__name__", "").startswith("trackio") and hasattr(module, "TRACKIO_DIR"):
            monkeypatch.setattr(module, "TRACKIO_DIR", tmp_path / "trackio")
    run = tmp_path / "one"
    assert write(run, ["trackio"], [train_row(10), train_row(20), val_row(20)]) == []
    assert write(run, ["trackio"], [train_row(30)], resume_step=20) == []
    name = json.loads((run / "loggers.json").read_text())["trackio"]
    assert name.startswith("one-")
    with sqlite3.connect(storage.SQLiteStorage.get_project_db_path("matinee")) as base:
        rows = base.execute("SELECT run_name, step, metrics FROM metrics ORDER BY id").fetchall()
    assert [(row[0], row[1]) for row in rows] == [(name, step) for step in (10, 20, 20, 30)]
    assert [json.loads(row[2]).get("train/loss") for row in rows] == [
        0.8, 0.4, None, pytest.approx(8 / 30),
    ]  # fmt: skip


class Recorder:
    """A tracker that keeps what it gets."""

    made: list[Recorder]

    @staticmethod
    def check() -> None:
        pass

    def __init__(self, opening) -> None:
        self.opening, self.id, self.held, self.closed = opening, "its id", -1, False
        self.got: list[tuple[int, float | None]] = []
        type(self).made = [*getattr(type(self), "made", []), self]

    def log(self, values, step) -> None:
        self.got.append((step, values.get("train/loss")))

    def close(self) -> None:
        self.closed = True


@pytest.fixture
def tracker(monkeypatch):
    """`tracker(name, **methods)`: a recorder of that name, with other methods."""

    def make(name, **methods):
        kind = type(name, (Recorder,), {"made": [], **methods})
        monkeypatch.setitem(TRACKERS, name, kind)
        return kind

    return make


def test_a_logger_that_fails_is_said_once_and_the_others_go_on(tracker, tmp_path):
    def fail(self, values, step):
        if step >= 20:
            raise ConnectionError("no route to host\nand more")
        self.got.append(step)

    broken, sound = tracker("broken", log=fail), tracker("sound")
    said = write(tmp_path, ["broken", "sound"], [train_row(s) for s in (10, 20, 30, 40)])
    assert said == [
        "broken failed, training goes on without it (ConnectionError: no route to host)"
    ]
    assert broken.made[0].got == [10]
    assert [step for step, _ in sound.made[0].got] == [10, 20, 30, 40]
    assert sound.made[0].closed


def test_training_does_not_wait_for_a_slow_logger(tracker, tmp_path):
    """A hundred rows are taken while the first is still on its way; all arrive, in order."""
    go = threading.Event()

    def slow(self, values, step):
        assert go.wait(60)
        self.got.append(step)

    kind, said = tracker("slow", log=slow), []
    (logger,) = open_loggers(["slow"], tmp_path, CONFIG, None, said.append)
    for step in range(1, 101):
        logger.log(train_row(step))
    assert kind.made[0].got == []
    go.set()
    logger.close()
    assert kind.made[0].got == list(range(1, 101)) and said == []


def test_a_logger_that_hangs_is_left_behind(tracker, tmp_path, monkeypatch):
    """At the end, or with too many rows waiting; that it fails later on is not worth a word."""
    monkeypatch.setattr(loggers, "_SECONDS_TO_END", 0.05)
    monkeypatch.setattr(loggers, "_ROWS_WAITING", 3)
    go = threading.Event()

    def hang(self, values, step):
        go.wait(60)
        raise TimeoutError

    tracker("stuck", log=hang)
    ended = write(tmp_path, ["stuck"], [train_row(10)])
    flooded = write(tmp_path, ["stuck"], [train_row(step) for step in range(1, 20)])
    go.set()
    for thread in threading.enumerate():
        if thread.name == "logger-stuck":
            thread.join(60)
    assert ended == ["stuck failed, training goes on without it (not all is written after 0 s)"]
    assert flooded == ["stuck failed, training goes on without it (3 rows wait to be sent)"]


def test_rows_a_tracker_has_are_not_sent_again(tracker, tmp_path):
    """Of the last step it has, validation may be missing."""
    kind = tracker("holds")
    write(tmp_path, ["holds"], [train_row(10), train_row(20)])

    class Holding(kind):
        def __init__(self, opening):
            super().__init__(opening)
            self.held = 20

    TRACKERS["holds"] = Holding
    write(tmp_path, ["holds"], [train_row(20), val_row(20), train_row(30)], resume_step=10)
    assert kind.made[0].opening.known is None and Holding.made[-1].opening.known == "its id"
    assert Holding.made[-1].got == [(20, None), (30, pytest.approx(8 / 30))]


def test_one_that_cannot_be_opened_stops_a_new_run_and_not_a_resumed_one(tracker, tmp_path):
    """Another one, opened before, is closed."""

    def refuse(self, opening):
        raise PermissionError("no key is configured")

    tracker("locked", __init__=refuse)
    sound = tracker("sound")
    with pytest.raises(ConfigError, match=r"--run\.loggers locked cannot be opened: .*no key"):
        open_loggers(["sound", "locked"], tmp_path, CONFIG, None)
    assert sound.made[0].closed
    said = write(tmp_path, ["locked", "sound"], [train_row(10)], resume_step=0)
    assert said == [
        "locked cannot be opened, training goes on without it (PermissionError: no key is "
        "configured)"
    ]
    assert sound.made[-1].got == [(10, 0.8)]


def test_names_and_packages_are_checked_first(monkeypatch, tmp_path):
    with pytest.raises(ConfigError, match=r"--run\.loggers visdom: there are tensorboard, wandb"):
        check_loggers(["visdom"])
    for name in TRACKERS:
        monkeypatch.setitem(sys.modules, name, None)
        with pytest.raises(MissingExtra, match=rf"pip install 'matinee\[{name}\]'"):
            open_loggers([name], tmp_path, CONFIG, None)
    assert list(tmp_path.iterdir()) == []
