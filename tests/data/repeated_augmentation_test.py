"""Several crops of one decoded clip: the pixels of separate decodes, for one decoder's work."""

import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

import matinee.media.decode
from matinee.data.clips import ClipSpec, plan_training_clip
from matinee.data.decode_job import ClipJob, DecodeJob
from matinee.data.device import after, color_change, to_video
from matinee.data.image_loader import ImageLoader
from matinee.data.loader import ClipLoader
from matinee.data.mix import take_turns
from matinee.data.random import generator
from matinee.errors import ConfigError
from matinee.media.color import ycbcr_to_rgb
from matinee.media.decode import Box, frame_bytes
from matinee.pack.images.image_set import ImageSet
from matinee.pack.images.writer import write_images
from matinee.pack.reading.reader import Pack

SPEC = ClipSpec(
    frames=4, sampling="dense", stride=4, size=32, flip="horizontal", brightness=0.3,
    contrast=0.3, saturation=0.3, grayscale=0.2,
)  # fmt: skip


def make(path, **more):
    settings = {
        "split": "train", "clip": SPEC, "batch_size": 8, "crops": 2, "repeats": 2, "seed": 3,
        "workers": 2, "mode": "threads",
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
        assert a.video.numpy().tobytes() == b.video.numpy().tobytes()
        assert torch.equal(a.target, b.target) and torch.equal(a.seeds, b.seeds)


@pytest.fixture(scope="module")
def reference(clips_pack):
    """Eight batches, over an epoch's end, by one worker process."""
    with make(clips_pack, workers=1, mode="processes") as loader:
        return batches(loader, 8)


@pytest.mark.parametrize("crops", [1, 2, 4])
def test_pixels_are_those_of_one_decode_for_each_plan(clips_pack, crops):
    """Bit for bit: every clip of an epoch decoded by itself, with its own box."""
    with make(clips_pack, crops=crops) as loader:
        found = list(loader)
    pack = Pack(clips_pack)
    assert loader.num_items == 12 * 2 * crops and len(found) == loader.num_items // 8
    for number, batch in enumerate(found):
        items = take_turns(loader._items(0, number), crops)
        for row, item in enumerate(items.tolist()):
            plan = loader.plan(0, item)
            index, info = int(batch.index[row]), pack.info(int(batch.index[row]))
            frames = [frame - info.first_frame for frame in plan.frames]
            i420 = pack.read(index, frames, size=(32, 32), box=plan.box, pixels="i420")
            fmt = pack.formats[info.codec]
            colours = after(ycbcr_to_rgb(fmt.matrix, fmt.full_range), color_change(plan.color))
            wanted = to_video(
                torch.from_numpy(i420)[None], torch.from_numpy(colours.astype(np.float32))[None],
                torch.tensor([plan.flip]), size=(32, 32),
            )  # fmt: skip
            assert torch.equal(batch.video[row], wanted[0])


def test_crops_share_their_frames_and_nothing_else(clips_pack):
    """And the frames are those of a loader that crops once."""
    once = make(clips_pack, crops=1)
    several = make(clips_pack, crops=4)
    for item in range(once.num_items):
        alone = once.plan(1, item)
        group = [several.plan(1, 4 * item + crop) for crop in range(4)]
        assert all((p.sample, p.frames) == (alone.sample, alone.frames) for p in group)
        assert len({p.box for p in group}) > 1 and len({p.color for p in group}) == 4
    flips = [several.plan(1, item).flip for item in range(several.num_items)]
    assert 0.3 < np.mean(flips) < 0.7
    assert len({several.plan(0, item).frames for item in range(0, 8, 4)}) == 2  # two repeats


def test_a_loader_that_crops_once_plans_as_ever(clips_pack):
    """From the generator of (seed, epoch, sample, copy), frames first and the crop after them."""
    loader, pack = make(clips_pack, crops=1), Pack(clips_pack)
    for item in range(loader.num_items):
        sample = int(loader.samples[item // 2])
        rng = generator(3, 5, sample, f"clip{item % 2}")
        assert loader.plan(5, item) == plan_training_clip(pack.info(sample), SPEC, rng)


@pytest.mark.parametrize("crops", [2, 4])
def test_the_decoder_works_no_more_than_for_one_crop(clips_pack, monkeypatch, crops):
    """Runs of packets and packets that entered the decoder."""
    work = {}
    real = matinee.media.decode._decode

    def counted(decoder, table, read, runs, *more):
        work["runs"] += len(runs)
        work["packets"] += sum(map(len, runs))
        return real(decoder, table, read, runs, *more)

    monkeypatch.setattr(matinee.media.decode, "_decode", counted)
    found = []
    for count in (1, crops):
        work.update(runs=0, packets=0)
        # As many batches of `count` times the clips, and nothing decoded ahead of them.
        with make(
            clips_pack, crops=count, batch_size=6 * count, repeats=1, prefetch=1, workers=1
        ) as loader:
            batches(loader, 2)
            loader._drain()
        found.append(dict(work))
    assert found[0] == found[1] and found[0]["packets"] > 0


@pytest.mark.parametrize(("workers", "mode"), [(1, "threads"), (3, "threads"), (2, "processes")])
def test_batches_are_the_same_bytes_whoever_decodes(clips_pack, reference, workers, mode):
    with make(clips_pack, workers=workers, mode=mode, prefetch=workers) as loader:
        assert_same(batches(loader, 8), reference)


@pytest.mark.parametrize("stop", [0, 1, 5, 6, 7])
def test_a_restored_position_continues_with_the_same_batches(clips_pack, reference, stop):
    """Also at an epoch's end (six batches), and on two ranks."""
    with make(clips_pack) as loader:
        batches(loader, stop)
        state = loader.state_dict()
    with make(clips_pack) as loader:
        loader.load_state_dict(state)
        assert_same(batches(loader, 8 - stop), reference[stop:])
    for rank in range(2):
        with make(clips_pack, batch_size=4, rank=rank, world=2) as loader:
            loader.load_state_dict(state)
            for ours, whole in zip(batches(loader, 8 - stop), reference[stop:], strict=True):
                assert torch.equal(ours.video, whole.video[4 * rank : 4 * rank + 4])


@pytest.mark.parametrize("crops", [2, 3])
def test_neighbours_in_a_batch_are_of_two_decoded_clips(clips_pack, crops):
    """So that mixing in pairs mixes different clips; each once, none left out."""
    loader = make(clips_pack, crops=crops, batch_size=4 * crops)
    seen = []
    for number in range(len(loader)):
        items = take_turns(loader._items(0, number), crops)
        seen.extend(items.tolist())
        clips = (items // crops).reshape(-1, 2)
        assert (clips[:, 0] != clips[:, 1]).all()
        assert sorted(items.tolist()) == sorted(loader._items(0, number).tolist())
        # Any split into pairs of decoded clips keeps the order.
        halves = np.split(loader._items(0, number), 2)
        assert np.array_equal(items, np.concatenate([take_turns(h, crops) for h in halves]))
    assert sorted(seen) == list(range(loader.num_items))


def test_two_clips_take_turns_and_a_last_one_stays():
    items = np.arange(9)
    assert take_turns(items, 3).tolist() == [0, 3, 1, 4, 2, 5, 6, 7, 8]
    assert take_turns(items, 1).tolist() == items.tolist()


@pytest.fixture
def damaged_pack(clips_pack, tmp_path):
    """A copy of the pack with one video's bytes overwritten, and the row of that sample."""
    path = tmp_path / "damaged.pack"
    shutil.copytree(clips_pack, path)
    pack = Pack(path)
    index = int(pack.select("train")[4])
    chunk = pack.locate(pack.info(index).video, [0])[0].chunk
    with Path(chunk.file).open("r+b") as file:
        file.seek(chunk.offset + 48)
        file.write(np.random.default_rng(0).bytes(chunk.size - 1200))
    return path, index


def test_a_damaged_clip_masks_all_its_crops(clips_pack, damaged_pack):
    """And no other; the mask is where the sample is."""
    path, index = damaged_pack
    settings = {"batch_size": 36, "crops": 3, "repeats": 1}
    with make(path, on_error="mask", **settings) as loader:
        (batch,) = list(loader)
        assert [error.sample for error in loader.failed] == [Pack(path).info(index).id] * 3
    assert torch.equal(batch.valid, batch.index != index)
    assert batch.num_valid == 33
    with make(clips_pack, **settings) as loader:
        (sound,) = list(loader)
    assert torch.equal(batch.video[batch.valid], sound.video[batch.valid])


def test_rows_of_a_damaged_clip_hold_nothing_of_what_was_there(damaged_pack):
    """All of them are zeroed, and those of others left alone."""
    path, index = damaged_pack
    pack = Pack(path)
    info = pack.info(index)
    memory = np.full((1, 4, 2, frame_bytes((32, 32))), 255, np.uint8)
    box = Box(0, 0, info.width, info.height)
    parts = pack.locate(info.video, [info.first_frame, info.first_frame + 4])
    decode = DecodeJob(pack.formats, memory, memory.shape)
    failure = decode(ClipJob(0, parts, ((0, box), (3, box)), (32, 32))).failure
    assert failure is not None and "damaged" in failure
    assert memory.reshape(4, -1).max(axis=1).tolist() == [0, 255, 255, 0]
    assert memory.reshape(4, -1).min(axis=1).tolist() == [0, 255, 255, 0]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"crops": 0}, "crops 0: at least 1"),
        ({"crops": 3}, "batches of 8 clips cannot hold 3 crops"),
        ({"views": (1, 1)}, "crops 2 are for training"),
        ({"clip": ClipSpec(crop="pad")}, "--clip.crop pad is for image sets"),
    ],
)
def test_what_cannot_be_is_refused_at_once(clips_pack, change, words):
    with pytest.raises(ConfigError, match=words):
        make(clips_pack, **change)


def test_a_position_of_other_crops_is_refused(clips_pack):
    with pytest.raises(ConfigError, match="other samples"):
        make(clips_pack, crops=1, repeats=4).load_state_dict(make(clips_pack).state_dict())


def test_images_have_crops_as_well(tmp_path):
    """Of one image two looks in a batch, at every position the same."""
    rng = np.random.default_rng(0)
    for number in range(8):
        file = tmp_path / "src" / ("a", "b")[number % 2] / f"{number}.png"
        file.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(rng.integers(0, 256, (16, 16, 3), dtype=np.uint8)).save(file)
    write_images(tmp_path / "some.images", tmp_path / "src", val_fraction=0)
    images = ImageSet(tmp_path / "some.images")
    spec = ClipSpec(frames=1, size=16, flip="horizontal")
    settings = {"clip": spec, "seed": 1, "batch_size": 8}
    loader = ImageLoader(images, crops=2, **settings)
    found = list(loader)
    assert loader.num_items == 16 and len(found) == 2
    for batch in found:
        assert len(set(batch.samples)) == 4
        assert all(a != b for a, b in zip(batch.samples[::2], batch.samples[1::2], strict=True))
        for name in set(batch.samples):
            one, two = (i for i, other in enumerate(batch.samples) if other == name)
            assert not torch.equal(batch.video[one], batch.video[two])
    again = ImageLoader(images, crops=2, **settings)
    again.load_state_dict(again.state_dict() | {"taken": 8})
    assert torch.equal(next(iter(again)).video, found[1].video)
    plain = ImageLoader(images, **settings)
    for item in range(8):
        assert plain.plan(0, item) == ImageLoader(images, repeats=2, **settings).plan(0, 2 * item)
    with pytest.raises(ConfigError, match="crops 2 are for training"):
        ImageLoader(images, crops=2, views=(1, 1), **settings)
