"""`matinee diagnose` as a whole, on small packs: what it tells, writes and refuses."""

import json
import subprocess
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from crippled_runs import small_config

from matinee.cli import main
from matinee.cli.diagnose import bar
from matinee.data.loader import ClipLoader
from matinee.errors import ConfigError
from matinee.measure import machine
from matinee.measure.diagnose import gather, repack
from matinee.measure.diagnose import stand as standing
from matinee.measure.diagnose.changes import Change
from matinee.measure.diagnose.diagnose import diagnose
from matinee.measure.diagnose.repack import time_repacked
from matinee.measure.diagnose.stand import Stand, open_stand
from matinee.measure.diagnose.trial import try_changes
from matinee.measure.plan.memory import RESERVE
from matinee.pack.annotations import read_class_folders
from matinee.pack.reading.reader import Pack
from matinee.pack.writing.index import index_videos
from matinee.training.parallel.ranks import Ranks
from matinee.training.setup import prepare

ALONE = Ranks(0, 1, 1, torch.device("cpu"))
FEW = ("--tiny", "--rounds", "1", "--steps", "1", "--run.device", "cpu")
SMALL = ("--model.backbone", "test_resnet", "--optim.batch-size", "2")


def said(capsys, *args) -> tuple[int, str, str]:
    status = main(["diagnose", *map(str, args)])
    read = capsys.readouterr()
    return status, read.out, read.err


def test_the_command_tells_and_writes_where_a_step_goes(clips_pack, tmp_path, capsys):
    status, out, _ = said(
        capsys, "tsm", "--data", clips_pack, *FEW, *SMALL, "--out", tmp_path / "page",
        "--json", tmp_path / "d.json", "--trace", tmp_path / "t.json",
    )  # fmt: skip
    assert status == 0
    for part in ("A step of 2 clips took", "Where a step goes", "Loading a clip", "What to change",
                 "waits for a decoder", "hand-off"):  # fmt: skip
        assert part in out
    found = json.loads((tmp_path / "d.json").read_text())
    assert found["verdict"]["text"] in out
    rounds = found["rounds"]
    assert len(rounds) == 1
    whole = found["arms_s"]["whole"]["median"]
    assert sum(rounds[0].values()) == pytest.approx(whole)
    assert found["loading"]["frames_used"] == 4
    assert found["loading"]["frames_decoded"] >= 4
    assert found["machine"]["cores"] >= 1
    page = (tmp_path / "page" / "diagnose.html").read_text()
    assert found["verdict"]["text"] in page
    assert (tmp_path / "page" / "diagnose-step-stages.png").stat().st_size > 1000
    names = {
        event["name"] for event in json.loads((tmp_path / "t.json").read_text())["traceEvents"]
    }
    assert {"step", "forward", "optimizer", "decode"} <= names


def test_json_on_standard_output_is_nothing_but_json(clips_pack, capsys):
    _, out, _ = said(capsys, "tsm", "--data", clips_pack, *FEW, *SMALL, "--json", "-")
    assert json.loads(out)["verdict"]["stage"]


def test_steps_leave_weights_and_working_decoders_alone(clips_pack):
    config = small_config(clips_pack, 0)
    with open_stand(config, ALONE) as stand:
        before = [p.detach().clone() for p in stand.setup.task.parameters()]
        stand.steps = 2
        readings = [stand.whole(), stand.synthetic(), stand.fetch(), stand.whole()]
        for old, new in zip(before, stand.setup.task.parameters(), strict=True):
            assert torch.equal(old, new)
        assert all(len(reading.steps) == 2 for reading in readings)
        assert readings[1].cost.clips == 0  # nothing is decoded while synthetic steps are timed
        assert readings[1].span("forward", "backward") > 0
        assert readings[2].cost.clips >= 2
        assert not readings[2].spans.get("forward")
        assert readings[0].span("data_wait") + readings[0].span("forward") <= readings[0].step_s


def test_averaging_weights_is_part_of_the_update(clips_pack):
    config = small_config(clips_pack, 0)
    config = replace(config, optim=replace(config.optim, ema=0.99))
    with open_stand(config, ALONE) as stand:
        update = stand.ema.update

        def slow_update(*args):
            time.sleep(0.2)
            update(*args)

        stand.ema.update = slow_update
        stand.steps = 2
        assert stand.synthetic().span("optimizer") > 0.2


def test_a_stand_that_cannot_be_built_closes_its_loader(clips_pack, monkeypatch):
    closed, close = [], ClipLoader.close

    def noting_close(self):
        closed.append(self)
        close(self)

    def refuse(*args, **more):
        raise ConfigError("no such network")

    monkeypatch.setattr(ClipLoader, "close", noting_close)
    monkeypatch.setattr(standing, "wrap", refuse)
    with pytest.raises(ConfigError, match="no such network"):
        open_stand(small_config(clips_pack, 0), ALONE)
    assert len(closed) == 1


def test_room_on_a_gpu_counts_its_context_once(monkeypatch):
    """Free bytes leave it out already, and the prediction takes it from them."""
    given = []
    monkeypatch.setattr(machine, "free_bytes", lambda device: 1000)
    monkeypatch.setattr(gather, "fit_batch", lambda config, free, *rest, **more: given.append(free))
    for kind in ("cuda", "cpu"):
        gather.find_room(
            SimpleNamespace(
                config=small_config("x.pack", 0), parts=2, precision="fp32",
                ranks=SimpleNamespace(device=torch.device(kind), world=2, local_world=2),
                setup=SimpleNamespace(vocabulary=SimpleNamespace(classes=())),
            )
        )  # fmt: skip
    assert given == [1000 + RESERVE.context, 500]


def test_images_are_diagnosed_without_decoders(tmp_path):
    from PIL import Image

    from matinee.pack.images.writer import write_images
    from matinee.recipes import RECIPES, tiny

    rng = np.random.default_rng(0)
    for label in ("a", "b"):
        for number in range(8):
            path = tmp_path / "pictures" / "train" / label / f"{number}.png"
            path.parent.mkdir(parents=True, exist_ok=True)
            Image.fromarray(rng.integers(0, 256, (32, 32, 3), np.uint8)).save(path)
    write_images(tmp_path / "a.images", tmp_path / "pictures")
    config = tiny(RECIPES["resnet50_cifar"](str(tmp_path / "a.images"), "unused"))
    model = replace(config.model, backbone="test_resnet", small_input=False)
    config = replace(config, run=replace(config.run, device="cpu"), model=model)
    found = diagnose(config, rounds=1, steps=1)
    assert found is not None
    assert (found.stages["storage"], found.stages["decode"]) == (0, 0)
    assert "loading" not in found.details
    assert any("in memory" in note for note in found.notes)


def test_a_change_is_tried_beside_the_run_as_it_is(clips_pack):
    changes = [
        Change("two clips at a time", "compute", 0.1, "model", "", flags={"optim.batch_size": 4}),
        Change("three", "compute", None, "model", "", flags={"optim.accumulate": 3}),
        Change("a cache", "storage", 1.0, "model", "", flags={"data.cache": "matinee-cache"}),
        Change("a disk", "storage", 1.0, "model", "", command="cp"),
    ]
    with open_stand(small_config(clips_pack, 0), ALONE) as stand:
        turns = []
        told = try_changes(stand, changes, None, 2, lambda *turn: turns.append(turn))
    assert told[0].measured_s is not None
    assert told[0].low_s <= told[0].measured_s <= told[0].high_s
    assert told[0].expected_s == 0.1
    assert "--optim.accumulate 3 does not divide" in told[1].note
    assert "second epoch" in told[2].note
    assert "nothing that can be tried" in told[3].note
    assert turns[0][2] == "trying: two clips at a time"
    assert not Path("matinee-cache").exists()


def test_products_are_those_of_the_run_that_is_measured(clips_pack, monkeypatch):
    """Flags of the whole process: each turn sets its own, and they are as before at the end."""
    seen, step = set(), Stand._step
    products = torch.backends.cuda.matmul

    def noting_step(self, *args):
        seen.add((self.config.speed.tf32, products.allow_tf32))
        step(self, *args)

    monkeypatch.setattr(Stand, "_step", noting_step)
    config = small_config(clips_pack, 0)
    config = replace(config, speed=replace(config.speed, tf32=False))
    flags = {"speed.tf32": True}
    wrong = {"optim.batch_size": 64}
    changes = [Change("x", "compute", None, "model", "", flags=f) for f in (flags, flags | wrong)]
    with open_stand(config, ALONE) as stand:
        for change in changes:
            try_changes(stand, [change], None, 2, lambda *turn: None)
            assert not products.allow_tf32
    assert seen == {(False, False), (True, True)}


def test_re_packing_compares_the_same_frames_of_the_same_videos(film, tmp_path, monkeypatch):
    """Three videos of 40 frames: two fit into the time, and the begin of each is enough."""
    for number, label in enumerate("aab"):
        film(tmp_path / "films" / label / f"{number}.mp4", frames=40, options={"bf": "3"})
    index_videos(
        tmp_path / "i.pack", read_class_folders(tmp_path / "films", val_fraction=0), workers=1
    )
    setup = prepare(Pack(tmp_path / "i.pack"), small_config(tmp_path / "i.pack", 0), ALONE)
    monkeypatch.setattr(repack, "_FRAMES", 20)
    clock = iter([0.0, 0.4 * repack.LIMIT_S])
    monkeypatch.setattr(repack, "time", SimpleNamespace(perf_counter=lambda: next(clock)))
    frames, make = [], repack._loader

    def noting_loader(pack, clip):
        frames.append([pack.info(row).num_frames for row in range(len(pack))])
        return make(pack, clip)

    monkeypatch.setattr(repack, "_loader", noting_loader)
    settings = {"name": "layered", "stride": 4, "short_side": 32}
    assert time_repacked(setup, settings, rounds=1).videos == 2
    before, after = frames
    assert before == after
    assert len(before) == 2 and all(15 < count <= 20 for count in before)


def test_a_cut_leaves_no_hole_in_time(monkeypatch):
    """I P B B, P B B, …: not between a P and the Bs that are shown before it."""
    times = [0, 3, 1, 2, 6, 4, 5, 9, 7, 8]
    for frames, kept in ((6, 4), (7, 7), (8, 7)):
        monkeypatch.setattr(repack, "_FRAMES", frames)
        assert repack._cut_at(times) == kept


def test_a_re_packing_is_timed_on_a_few_videos_and_leaves_nothing(film, tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    for label in ("a", "b"):
        film(tmp_path / "films" / label / "0.mp4", frames=40, size=(640, 480))
    index_videos(
        tmp_path / "i.pack", read_class_folders(tmp_path / "films", val_fraction=0), workers=1
    )
    config = small_config(tmp_path / "i.pack", 0)
    setup = prepare(Pack(tmp_path / "i.pack"), config, ALONE)
    held = set(tmp_path.iterdir())
    settings = {"name": "layered", "stride": 4, "short_side": 64}
    times = time_repacked(setup, settings, rounds=2)
    assert times.videos == 2
    assert np.median(times.after_s) < np.median(times.before_s)  # a fiftieth of the pixels
    assert set(tmp_path.iterdir()) == held


def test_ranks_are_started_as_training_starts_them(clips_pack, tmp_path):
    """`--gpus 2` on a CPU, in a process of its own: the launcher wants the main thread."""
    command = [
        sys.executable, "-m", "matinee", "diagnose", "tsm", "--data", str(clips_pack), *FEW, *SMALL,
        "--gpus", "2", "--json", str(tmp_path / "d.json"),
    ]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 0, done.stderr
    found = json.loads((tmp_path / "d.json").read_text())
    assert found["world"] == 2
    assert len(found["ranks_s"]) == 2
    assert {"communication", "stragglers"} <= set(found["stages"])
    assert done.stdout.count("Where a step goes") == 1


@pytest.mark.parametrize(
    ("args", "what"),
    [
        (["nonsense"], "neither the folder of a run nor a recipe; recipes: tsm"),
        (["tsm", "--data", "nowhere.pack", *FEW], "nowhere.pack"),
        (["tsm", "--data", "PACK", "--rounds", "0"], "--rounds 0: at least 1"),
        (["tsm", "--data", "PACK", "--steps", "0"], "--steps 0: at least 1"),
        (["tsm", "--data", "PACK", "--try", "-1"], "--try -1: 0 or more"),
        (["tsm", "--data", "PACK", "--gpus", "0"], "--gpus 0: at least 1"),
        (["tsm", "--data", "PACK", *FEW, "--optim.batch-size", "64"], "fewer than one batch of 64"),
        (["EMPTY"], "EMPTY"),
    ],
)
def test_what_cannot_be_diagnosed_is_refused_in_a_line(args, what, clips_pack, tmp_path, capsys):
    (tmp_path / "EMPTY").mkdir()
    known = {"PACK": clips_pack, "EMPTY": tmp_path / "EMPTY"}
    status, _, err = said(capsys, *(known.get(arg, arg) for arg in args))
    assert status == 2
    assert what.replace("EMPTY", str(tmp_path / "EMPTY")) in err
    assert len(err.strip().splitlines()) == 1


def test_help_teaches_recipes_runs_and_stages(capsys):
    status, out, _ = said(capsys, "--help")
    assert status == 0
    for word in ("matinee diagnose RUN", "stragglers", "--try 2", "videomae_kinetics"):
        assert word in out


def test_the_bar_is_as_wide_as_asked_and_names_what_fits():
    drawn = bar({"decode": 0.5, "compute": 0.49, "other": 0.01}, width=40)
    assert drawn.cell_len == 40
    assert "decode 50%" in drawn.plain
    assert "other" not in drawn.plain
