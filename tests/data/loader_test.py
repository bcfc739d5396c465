"""The loader's promises: same batches whoever decodes, exact positions, honest failures."""

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import torch

from matinee.data.clips import ClipSpec, View, plan_evaluation_clip
from matinee.data.loader import ClipLoader
from matinee.data.mix import take_turns
from matinee.errors import ClipError, ConfigError, WorkerDied
from matinee.pack.reading.reader import Pack

SPEC = ClipSpec(
    frames=4, sampling="dense", stride=4, size=32, flip="horizontal", brightness=0.3,
    contrast=0.3, saturation=0.3, grayscale=0.2, erasing=0.5,
)  # fmt: skip


def batches(loader, count):
    """The next `count` batches, over epoch ends."""
    found = []
    while len(found) < count:
        for batch in loader:
            found.append(batch)
            if len(found) == count:
                break
    return found


def make(path, **more):
    settings = {"split": "train", "clip": SPEC, "batch_size": 5, "seed": 3, "workers": 2} | more
    return ClipLoader(Pack(path), **settings)


def assert_same(ours, theirs):
    for a, b in zip(ours, theirs, strict=True):
        assert a.samples == b.samples
        assert a.video.numpy().tobytes() == b.video.numpy().tobytes()
        assert torch.equal(a.target, b.target) and torch.equal(a.index, b.index)


@pytest.fixture(scope="module")
def reference(clips_pack):
    """Five batches (two epochs and more) by one worker process."""
    with make(clips_pack, workers=1) as loader:
        return batches(loader, 5)


@pytest.mark.parametrize("workers", [1, 2, 5])
@pytest.mark.parametrize("mode", ["processes", "threads"])
def test_batches_are_the_same_bytes_whoever_decodes(clips_pack, reference, workers, mode):
    """1, 2 and 5 workers, processes or threads, deeper prefetching: identical."""
    with make(clips_pack, workers=workers, mode=mode, prefetch=workers) as loader:
        assert_same(batches(loader, 5), reference)


@pytest.mark.parametrize(("workers", "threads"), [(3, 3), (4, 2), (3, 2)])
def test_batches_are_the_same_bytes_from_processes_of_several_threads(
    clips_pack, reference, workers, threads
):
    """One process of three, two of two: identical."""
    with make(clips_pack, workers=workers, threads=threads) as loader:
        assert_same(batches(loader, 5), reference)
        assert len(loader._backend.pids) == -(-workers // threads)


@pytest.mark.parametrize("stop", [0, 1, 2, 3, 4])
def test_a_restored_position_continues_with_the_same_batches(clips_pack, reference, stop):
    """At every position, also at an epoch's end, in a fresh loader."""
    with make(clips_pack) as loader:
        batches(loader, stop)
        state = loader.state_dict()
    with make(clips_pack, mode="threads") as loader:
        loader.load_state_dict(state)
        assert_same(batches(loader, 5 - stop), reference[stop:])


def test_a_loader_can_be_moved_while_it_decodes_ahead(clips_pack, reference):
    """What was decoded ahead is dropped, not delivered."""
    with make(clips_pack) as loader:
        batches(loader, 2)
        loader.load_state_dict({**loader.state_dict(), "epoch": 0, "taken": 0})
        assert_same(batches(loader, 5), reference)


def test_an_epoch_has_whole_batches_and_the_next_is_in_another_order(clips_pack):
    """12 samples, batches of 5: two a epoch, no sample twice."""
    with make(clips_pack) as loader:
        assert len(loader) == 2
        first, second = list(loader), list(loader)
    names = [name for batch in first for name in batch.samples]
    assert len(set(names)) == 10
    assert names != [name for batch in second for name in batch.samples]
    state = loader.state_dict()
    assert (state["epoch"], state["taken"], state["seed"]) == (2, 0, 3)


def test_repeats_are_different_clips_of_the_same_samples(clips_pack):
    """Each sample twice in an epoch, never the same pixels."""
    with make(clips_pack, repeats=2, batch_size=24) as loader:
        (batch,) = list(loader)
    assert sorted(batch.samples) == sorted([*set(batch.samples)] * 2)
    for name in set(batch.samples):
        a, b = (i for i, other in enumerate(batch.samples) if other == name)
        assert not torch.equal(batch.video[a], batch.video[b])


def test_several_clips_of_a_sample_are_in_one_batch(clips_pack):
    """Three clips of other frames, each decoded once for two crops of the same frames."""
    with make(clips_pack, clips=3, crops=2, batch_size=12) as loader:
        assert loader.num_items == 12 * 6
        for epoch in range(2):
            for number in range(len(loader)):
                items = loader._items(epoch, number)
                plans = [loader.plan(epoch, item) for item in items.tolist()]
                for first in (0, 6):
                    own = plans[first : first + 6]
                    assert len({plan.sample for plan in own}) == 1
                    for at in (0, 2, 4):
                        assert own[at].frames == own[at + 1].frames
                        assert own[at].box != own[at + 1].box
                    assert len({plan.frames for plan in own}) > 1
        (batch, *_) = batches(loader, 1)
    assert sorted(batch.samples) == sorted([*set(batch.samples)] * 6)


def test_each_of_several_clips_shows_its_own_frames(clips_pack):
    """Against Pack.read's RGB of every plan of a batch, in the order of its rows."""
    pack = Pack(clips_pack)
    spec = ClipSpec(frames=3, sampling="dense", stride=4, size=32)
    with make(clips_pack, clip=spec, clips=3, crops=2, batch_size=12, mean=(0, 0, 0),
              std=(1, 1, 1)) as loader:  # fmt: skip
        batch = next(iter(loader))
        items = take_turns(loader._items(0, 0), 6).tolist()
        plans = [loader.plan(0, item) for item in items]
    for row, plan in enumerate(plans):
        index = int(batch.index[row])
        first = pack.info(index).first_frame
        frames = [frame - first for frame in plan.frames]
        rgb = pack.read(index, frames, size=(32, 32), box=plan.box).astype(np.float32) / 255
        assert np.abs(batch.video[row].permute(1, 2, 3, 0).numpy() - rgb).mean() < 0.02


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"clips": 0}, "clips 0"), ({"clips": 2, "views": (1, 1)}, "evaluation takes views"),
        ({"clips": 2, "batch_size": 5}, "cannot hold 2"),
    ],
)  # fmt: skip
def test_numbers_of_clips_that_cannot_be_are_refused(clips_pack, change, words):
    """None, in evaluation, or not dividing the batch."""
    with pytest.raises(ConfigError, match=words):
        make(clips_pack, **change)


def test_evaluation_gives_every_view_of_every_sample_once_in_order(clips_pack):
    """6 held-out samples, 2×3 views, batches of 7: 36 clips, the last batch shorter."""
    with make(clips_pack, split="val", views=(2, 3), batch_size=7) as loader:
        found = list(loader)
    assert [len(batch) for batch in found] == [7, 7, 7, 7, 7, 1]
    index = torch.cat([batch.index for batch in found])
    assert torch.equal(index, torch.tensor(loader.samples).repeat_interleave(6))


def test_pixels_are_the_planned_crop_of_the_planned_frames(clips_pack):
    """Against Pack.read's RGB of the same plan, scaled by FFmpeg alone; chroma upsampling and
    rounding differ by little."""
    pack = Pack(clips_pack)
    spec = ClipSpec(frames=3, sampling="uniform", size=32, center_scale=1.0)
    with ClipLoader(
        pack, split="val", clip=spec, views=(1, 1), batch_size=6, workers=1, mean=(0, 0, 0),
        std=(1, 1, 1),
    ) as loader:  # fmt: skip
        (batch,) = list(loader)
    for row in range(len(batch)):
        index = int(batch.index[row])
        info = pack.info(index)
        plan = plan_evaluation_clip(info, spec, View())
        frames = [frame - info.first_frame for frame in plan.frames]
        rgb = pack.read(index, frames, size=(32, 32), box=plan.box).astype(np.float32) / 255
        ours = batch.video[row].permute(1, 2, 3, 0).numpy()
        assert np.abs(ours - rgb).mean() < 0.02


def test_mirrored_clips_swap_their_labels(clips_pack):
    """left=right: a mirrored clip of one class carries the other's label; plans tell which."""
    spec = ClipSpec(frames=2, size=32, flip="horizontal", flip_swap=("left=right",))
    with make(clips_pack, clip=spec, batch_size=12) as loader:
        (batch,) = list(loader)
        plans = {plan.sample: plan for plan in (loader.plan(0, item) for item in range(12))}
    flipped = 0
    for name, target in zip(batch.samples, batch.target.tolist(), strict=True):
        own = ["left", "right"].index(name.split("/")[0])
        flipped += plans[name].flip
        assert target == (1 - own if plans[name].flip else own)
    assert 0 < flipped < 12


def test_unknown_labels_in_a_swap_are_named(clips_pack):
    """With the labels there are."""
    spec = ClipSpec(flip="horizontal", flip_swap=("left=rihgt",))
    with pytest.raises(ConfigError, match=r"unknown label 'rihgt'.*left, right"):
        make(clips_pack, clip=spec)


def test_labels_outside_the_given_classes_are_refused(clips_pack):
    """A run that was trained on other classes cannot be evaluated here."""
    with pytest.raises(ConfigError, match=r"not among the 1 known classes: right"):
        make(clips_pack, classes=("left",))


def test_a_batch_larger_than_the_set_is_refused(clips_pack):
    """With both numbers."""
    with pytest.raises(ConfigError, match=r"12 clips an epoch, fewer than one batch of 13"):
        make(clips_pack, batch_size=13)


@pytest.fixture
def damaged_pack(clips_pack, tmp_path):
    """A copy of the pack with one held-out video's bytes overwritten, and that sample's id."""
    path = tmp_path / "damaged.pack"
    shutil.copytree(clips_pack, path)
    pack = Pack(path)
    index = int(pack.select("train")[4])
    info = pack.info(index)
    chunk = pack.locate(info.video, [0])[0].chunk
    with Path(chunk.file).open("r+b") as file:
        file.seek(chunk.offset + 48)
        file.write(np.random.default_rng(0).bytes(chunk.size - 1200))
    return path, info.id


@pytest.mark.parametrize("mode", ["processes", "threads"])
def test_a_damaged_clip_stops_with_sample_file_and_reason(damaged_pack, mode):
    """In the batch it belongs to."""
    path, sample = damaged_pack
    with make(path, mode=mode) as loader, pytest.raises(ClipError) as caught:
        batches(loader, 3)
    assert caught.value.sample == sample and caught.value.file.endswith("000000.tar")
    assert "damaged" in caught.value.reason and sample in str(caught.value)


def test_a_damaged_clip_is_masked_counted_and_never_replaced(damaged_pack, clips_pack, caplog):
    """All other clips are those of the sound pack, byte for byte."""
    path, sample = damaged_pack
    with make(path, on_error="mask", batch_size=12) as loader:
        (batch,) = list(loader)
        assert [error.sample for error in loader.failed] == [sample]
    with make(clips_pack, batch_size=12) as loader:
        (sound,) = list(loader)
    bad = batch.samples.index(sample)
    assert batch.samples == sound.samples and batch.num_valid == 11
    assert batch.valid.tolist() == [row != bad for row in range(12)]
    for row in set(range(12)) - {bad}:
        assert torch.equal(batch.video[row], sound.video[row])
    assert sample in caplog.text


def test_a_killed_worker_is_an_error_not_a_hang(clips_pack):
    """SIGKILL of a worker while batches are wanted."""
    with make(clips_pack, workers=2) as loader:
        batches(loader, 1)
        os.kill(loader._backend.pids[0], signal.SIGKILL)
        with pytest.raises(WorkerDied, match="SIGKILL"):
            batches(loader, 50)


def test_after_an_error_the_loader_stands_where_it_stood(damaged_pack, clips_pack):
    """The next try meets the same batch; nothing is skipped, in either mode."""
    path, sample = damaged_pack
    with make(clips_pack, batch_size=3) as loader:
        sound = batches(loader, 4)
    at = next(i for i, batch in enumerate(sound) if sample in batch.samples)
    for mode in ("processes", "threads"):
        with make(path, mode=mode, batch_size=3) as loader:
            assert_same(batches(loader, at), sound[:at])
            for _ in range(2):
                with pytest.raises(ClipError):
                    batches(loader, 1)
                assert loader.state_dict()["taken"] == 3 * at


def test_after_a_killed_worker_the_loader_can_go_on(clips_pack, reference):
    """New workers, same batches."""
    with make(clips_pack) as loader:
        first = batches(loader, 1)
        for pid in loader._backend.pids:
            os.kill(pid, signal.SIGKILL)
        found = list(first)
        for _ in range(10):  # the first tries meet the dead
            with contextlib.suppress(WorkerDied):
                found += batches(loader, 1)
            if len(found) == 5:
                break
        assert_same(found, reference)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"batch_size": 4}, "no whole number"), ({"repeats": 2}, "other samples"),
        ({"split": "val"}, "other samples"),
    ],
)  # fmt: skip
def test_a_position_of_another_loader_is_refused(clips_pack, change, words):
    """It would point at other samples, or between two batches."""
    with make(clips_pack) as loader:
        batches(loader, 1)
        state = loader.state_dict()
    with make(clips_pack, **change) as other, pytest.raises(ConfigError, match=words):
        other.load_state_dict(state)


def test_workers_end_with_a_killed_parent(clips_pack, tmp_path):
    """kill -9 of the training process leaves no decoder behind."""
    code = (
        "import sys, time\nfrom matinee import ClipLoader, Pack, ClipSpec\n"
        f"loader = ClipLoader(Pack({str(clips_pack)!r}), clip=ClipSpec(frames=2, size=32),"
        " batch_size=4, workers=2)\n"
        "next(iter(loader)); print(*loader._backend.pids, flush=True); time.sleep(60)\n"
    )
    child = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    assert child.stdout is not None
    pids = [int(pid) for pid in child.stdout.readline().split()]
    child.kill()
    child.wait()
    child.stdout.close()
    deadline = time.monotonic() + 20
    while any(_alive(pid) for pid in pids):
        assert time.monotonic() < deadline, "workers outlived their parent"
        time.sleep(0.05)


def _alive(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return False
    return state != "Z"


def test_a_worker_imports_neither_torch_nor_pyarrow():
    """It must start fast; checked in a fresh interpreter."""
    code = (
        "import sys, matinee.data.decode_job\n"
        "print([m for m in ('torch', 'pyarrow', 'rich', 'tyro') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


# --- interrupts, deaths and forks around a position ----------------------------------------------


def test_a_position_can_be_taken_up_after_a_worker_died(clips_pack):
    """Loading it drops what was decoded ahead; the next batch is that of the position."""
    with make(clips_pack) as loader:
        start = loader.state_dict()
        expected = next(iter(loader))
        os.kill(loader._backend.pids[0], signal.SIGKILL)
        time.sleep(0.3)
        loader.load_state_dict(start)
        again = next(iter(loader))
        assert again.samples == expected.samples and torch.equal(again.video, expected.video)


def test_an_interrupt_before_a_batch_is_counted_leaves_the_order_right(clips_pack, monkeypatch):
    """The batch comes again: nothing is lost, nothing is one off."""
    with make(clips_pack) as plain:
        expected = [batch.samples for batch in batches(plain, 6)]
    with make(clips_pack) as loader:
        found = [batch.samples for batch in batches(loader, 2)]
        loader._next()  # and then, before the position is raised, Ctrl-C
        found += [batch.samples for batch in batches(loader, 4)]
    assert found == expected


def test_a_fork_that_takes_up_a_position_leaves_the_parents_batches_alone(clips_pack):
    """Answers of the parent's workers are the parent's."""
    with make(clips_pack) as plain:
        expected = [batch.samples for batch in batches(plain, 4)]
    with make(clips_pack) as loader:
        found = [batch.samples for batch in batches(loader, 1)]
        child = os.fork()
        if not child:
            try:
                loader.load_state_dict(loader.state_dict())
                os._exit(0)
            finally:
                os._exit(1)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        found += [batch.samples for batch in batches(loader, 3)]
    assert found == expected


def test_a_loader_whose_closing_was_interrupted_can_be_used_again(clips_pack, monkeypatch):
    """And leaves no process behind."""
    with make(clips_pack) as loader:
        expected = next(iter(loader)).samples
        start, pids = loader.state_dict(), loader._backend.pids
        monkeypatch.setattr(loader._transfer, "close", interrupt)
        with pytest.raises(KeyboardInterrupt):
            loader.close()
        monkeypatch.undo()
        loader.load_state_dict({**start, "taken": 0})
        assert next(iter(loader)).samples == expected
        assert not any(Path(f"/proc/{pid}").exists() for pid in pids)


def interrupt() -> None:
    raise KeyboardInterrupt


def test_clips_too_long_for_a_message_are_refused_with_what_to_do(clips_pack):
    """A clip of tens of thousands of frames; threads take it."""
    spec = ClipSpec(frames=40_000, size=16, sampling="uniform")
    with (
        make(clips_pack, clip=spec, batch_size=1, workers=1) as loader,
        pytest.raises(ConfigError, match="threads"),
    ):
        next(iter(loader))


@pytest.mark.parametrize(
    ("settings", "words"),
    [({"sampling": "foo"}, "uniform, dense"), ({"short": "xx"}, "hold"), ({"flip": "up"}, "none")],
)
def test_unknown_words_of_a_spec_are_refused(settings, words):
    """From Python nobody else checks them."""
    with pytest.raises(ConfigError, match=words):
        ClipSpec(**settings)


def test_ranks_beyond_the_world_and_foreign_states_are_refused(clips_pack):
    with pytest.raises(ConfigError, match="rank 3 of 2"):
        make(clips_pack, rank=3, world=2)
    with make(clips_pack) as loader, pytest.raises(ConfigError, match="no saved position"):
        loader.load_state_dict({"epoch": 0, "x": 1})
