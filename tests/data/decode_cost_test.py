"""What decoders did, as sums: against what the pack's own tables say."""

import pickle
import time
from dataclasses import fields

import numpy as np
import pytest

from matinee.data.clips import ClipSpec
from matinee.data.decode_cost import DecodeCost
from matinee.data.image_loader import ImageLoader
from matinee.data.loader import ClipLoader
from matinee.errors import MediaError
from matinee.media.plan import packets_to_feed
from matinee.media.work import Work
from matinee.pack.images.image_set import ImageSet
from matinee.pack.images.writer import write_images
from matinee.pack.reading import storage
from matinee.pack.reading.clip import ClipReader
from matinee.pack.reading.reader import Pack

SPEC = ClipSpec(frames=4, sampling="dense", stride=4, size=32)


def make(path, **more):
    settings = {"split": "train", "clip": SPEC, "batch_size": 4, "seed": 3, "workers": 2} | more
    return ClipLoader(Pack(path), **settings)


def epoch(loader):
    """The costs of an epoch; what was decoded ahead of it counts, too."""
    list(loader)
    loader._drain()
    return loader.take_costs()


def expected(loader):
    """Packets, frames and clips of an epoch of `loader` and what it decodes ahead, by the tables of
    the pack.
    """
    reader = ClipReader(loader.pack.formats)
    packets = frames = clips = 0
    ahead = loader._planned
    at = [(0, batch) for batch in range(len(loader))]
    at += [(1, batch) for batch in range(ahead[1])]
    for number, batch in at:
        for item in loader._items(number, batch)[:: loader.crops]:
            plan = loader.plan(number, int(item))
            clips += 1
            for part in loader.pack.locate(plan.video, plan.frames):
                runs = packets_to_feed(reader.table(part.chunk), sorted(set(part.frames)))
                packets += sum(len(run) for run in runs)
                frames += len(set(part.frames))
    return clips, packets, frames


@pytest.mark.parametrize(
    "how",
    [{"mode": "threads"}, {"mode": "processes"}, {"mode": "threads", "crops": 2}],
    ids=["threads", "processes", "crops"],
)
def test_counts_are_those_of_the_packets_that_clips_need(clips_pack, how):
    with make(clips_pack, **how) as loader:
        begin = time.monotonic()
        cost = epoch(loader)
        went_by = time.monotonic() - begin
        assert (cost.clips, cost.packets, cost.frames_used) == expected(loader)
        assert cost.frames_decoded >= cost.frames_used
        inside = cost.read_s + cost.decode_s + cost.scale_s
        assert min(cost.read_s, cost.decode_s, cost.scale_s) > 0
        assert inside < cost.busy_s < 2 * went_by
        assert cost.queued_s > 0 and cost.handoff_s > 0
        assert loader.take_costs() == DecodeCost()


def test_bytes_are_those_that_were_read(clips_pack, monkeypatch):
    """Of files, counted where they are read."""
    read = []
    original = storage.LocalFiles.read

    def counted(self, path, offset, length):
        read.append(length)
        return original(self, path, offset, length)

    monkeypatch.setattr(storage.LocalFiles, "read", counted)
    with make(clips_pack, mode="threads") as loader:
        assert epoch(loader).bytes == sum(read) > 0


def test_slow_storage_shows_as_reading_and_as_nothing_else(clips_pack, monkeypatch):
    original = storage.LocalFiles.read
    reads = []

    def slow(self, path, offset, length):
        reads.append(length)
        time.sleep(0.02)
        return original(self, path, offset, length)

    with make(clips_pack, mode="threads") as loader:
        quick = epoch(loader)
    monkeypatch.setattr(storage.LocalFiles, "read", slow)
    with make(clips_pack, mode="threads") as loader:
        cost = epoch(loader)
    assert cost.read_s >= 0.02 * len(reads)
    assert cost.busy_s - cost.read_s < max(0.5 * cost.read_s, 4 * quick.busy_s)


def test_a_clip_that_cannot_be_read_costs_time_and_is_no_clip(clips_pack, monkeypatch):
    def refuse(self, path, offset, length):
        time.sleep(0.01)
        raise MediaError("is gone")

    monkeypatch.setattr(storage.LocalFiles, "read", refuse)
    with make(clips_pack, mode="threads", on_error="mask") as loader:
        next(iter(loader))
        loader._drain()
        cost = loader.take_costs()
    assert cost.clips == cost.bytes == cost.packets == 0
    assert cost.read_s >= 0.01 * 4 and cost.busy_s >= cost.read_s


def test_costs_add_up_field_by_field():
    names = [field.name for field in fields(DecodeCost)]
    one = DecodeCost(**{name: float(i + 1) for i, name in enumerate(names)})
    two = DecodeCost(**{name: 10.0 * (i + 1) for i, name in enumerate(names)})
    both = one + two
    assert both.to_dict() == {name: 11.0 * (i + 1) for i, name in enumerate(names)}
    assert sum([one, two], DecodeCost()) == both and one.clips == 1
    assert pickle.loads(pickle.dumps(both)) == both


def test_an_image_set_costs_nothing(tmp_path):
    """All of it lies in memory."""
    rng = np.random.default_rng(0)
    from PIL import Image

    for number in range(8):
        picture = Image.fromarray(rng.integers(0, 256, (16, 16, 3), dtype=np.uint8))
        folder = tmp_path / "pictures" / "ab"[number % 2]
        folder.mkdir(parents=True, exist_ok=True)
        picture.save(folder / f"{number}.png")
    write_images(tmp_path / "set", tmp_path / "pictures")
    with ImageLoader(ImageSet(tmp_path / "set"), batch_size=4) as loader:
        next(iter(loader))
        assert loader.take_costs() == DecodeCost()


def test_kinds_of_work_take_turns():
    """Nothing counts twice, and what is between counts nowhere."""
    work = Work(stretches=True)
    assert work.turn("decode") == ""
    time.sleep(0.02)
    before = work.turn("read")
    time.sleep(0.03)
    assert work.turn(before) == "read"
    work.turn("")
    time.sleep(0.02)
    assert work.turn("scale") == ""
    assert work.turn("") == "scale"
    kinds = [stretch.kind for stretch in work.stretches]
    assert kinds == ["decode", "read", "decode", "scale"]
    for kind in ("read", "decode", "scale"):
        spent = sum(s.end - s.begin for s in work.stretches if s.kind == kind)
        assert work.seconds[kind] == pytest.approx(spent)
    assert work.seconds["read"] >= 0.03 and work.seconds["decode"] >= 0.02
    assert work.seconds["scale"] < 0.02
