"""Loaders augment each clip and image by its own plan, whatever shares its batch."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from matinee.data.augment.apply import augment
from matinee.data.augment.erase import erase
from matinee.data.clips import ClipSpec
from matinee.data.device import IMAGENET_MEAN, IMAGENET_STD, normalise, to_rgb, to_video
from matinee.data.loader import ClipLoader
from matinee.media.color import ycbcr_to_rgb
from matinee.pack.reading.reader import Pack

SPEC = ClipSpec(
    frames=3, size=32, flip="horizontal", hue=0.1, rand_augment=4, rand_magnitude=7, blur=0.5,
    erasing=0.5, erasing_fill="noise",
)  # fmt: skip


def clips(path, spec, batch_size, **more):
    """Of an epoch, by sample."""
    settings = {"split": "train", "workers": 1, "mode": "threads", "seed": 3} | more
    with ClipLoader(Pack(path), clip=spec, batch_size=batch_size, **settings) as loader:
        return {
            name: batch.video[row] for batch in loader for row, name in enumerate(batch.samples)
        }


@pytest.mark.parametrize("modality", ["rgb", "difference"])
def test_clips_do_not_depend_on_their_batch(clips_pack, modality):
    """Bit for bit, in batches of 1, 4 and 6."""
    spec = replace(SPEC, modality=modality)
    one, four, six = (clips(clips_pack, spec, size) for size in (1, 4, 6))
    assert len(one) == len(four) == len(six) == 12
    for name, video in one.items():
        assert torch.equal(video, four[name]) and torch.equal(video, six[name])


def test_clips_are_what_their_plans_say(clips_pack):
    """Each decoded by itself, converted, augmented, normalised, blanked."""
    pack = Pack(clips_pack)
    found = clips(clips_pack, SPEC, 4)
    with ClipLoader(pack, split="train", clip=SPEC, batch_size=4, workers=1, seed=3) as loader:
        plans = [loader.plan(0, item) for item in range(loader.num_items)]
        rows = {pack.info(int(row)).id: int(row) for row in loader.samples}
    operations = {o.name for plan in plans for o in plan.augment.operations}
    assert len(operations) > 5 and any(plan.augment.erase for plan in plans)
    for plan in plans:
        info = pack.info(rows[plan.sample])
        frames = [frame - info.first_frame for frame in plan.frames]
        i420 = pack.read(rows[plan.sample], frames, size=(32, 32), box=plan.box, pixels="i420")
        tags = pack.formats[info.codec]
        affine = torch.tensor(ycbcr_to_rgb(tags.matrix, tags.full_range), dtype=torch.float32)[None]
        flip = torch.tensor([plan.flip])
        rgb = augment(
            to_rgb(torch.from_numpy(i420)[None], affine, flip, size=(32, 32)), [plan.augment]
        )
        wanted = normalise(rgb, IMAGENET_MEAN, IMAGENET_STD)
        erase(wanted, [plan.augment])
        assert torch.equal(found[plan.sample], wanted[0])


def test_evaluation_is_not_augmented(clips_pack):
    """Nor rounded to levels: the clips of a spec without augmentation, bit for bit."""
    views = {"split": "val", "views": (1, 1)}
    plain = clips(clips_pack, ClipSpec(frames=3, size=32), 3, **views)
    same = clips(clips_pack, SPEC, 3, **views)
    assert plain.keys() == same.keys() and len(plain) == 6
    assert all(torch.equal(plain[name], same[name]) for name in plain)


def test_levels_lose_no_more_than_half_of_one():
    """The way by 8-bit RGB, against the direct one."""
    raw = torch.randint(0, 256, (2, 3, 16 * 16 * 3 // 2), dtype=torch.uint8)
    affine = torch.tensor(np.stack([ycbcr_to_rgb("bt601", True)] * 2), dtype=torch.float32)
    unit = ((0.0, 0.0, 0.0), (1.0, 1.0, 1.0))
    direct = to_video(raw, affine, None, size=(16, 16), mean=unit[0], std=unit[1])
    rounded = normalise(to_rgb(raw, affine, None, size=(16, 16)), *unit)
    assert (direct - rounded).abs().max() * 255 <= 0.501
