"""Images on the device: the planned pixels, exact positions, nothing that depends on the batch."""

from dataclasses import replace

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from PIL import Image

from matinee.data.augment.plan import AugmentPlan
from matinee.data.clips import ClipSpec, plan_training_clip
from matinee.data.device import color_change
from matinee.data.image_augment import to_images
from matinee.data.image_loader import ImageLoader
from matinee.data.loader import ClipLoader
from matinee.data.open_loader import open_loader
from matinee.errors import ConfigError
from matinee.media.image import resize
from matinee.pack.images.image_set import ImageSet
from matinee.pack.images.writer import write_images
from matinee.pack.reading.reader import Pack

RAW = {"mean": (0, 0, 0), "std": (1, 1, 1)}
PAD = ClipSpec(frames=1, size=32, crop="pad", flip="horizontal")
ALL = ClipSpec(
    frames=1, size=32, crop="random-resized", flip="horizontal", brightness=0.3, contrast=0.3,
    saturation=0.3, grayscale=0.2, erasing=0.5, erasing_fill="noise", hue=0.1, rand_augment=2,
)  # fmt: skip


def image_set(root, size=(32, 32), train=12, val=7):
    """Two classes of random pictures, smooth enough to tell shifts apart; (width, height)."""
    rng = np.random.default_rng(1)
    for split, count in (("train", train), ("val", val)):
        for n in range(count):
            path = root / "src" / split / ("left", "right")[n % 2] / f"{n:02}.png"
            path.parent.mkdir(parents=True, exist_ok=True)
            coarse = rng.integers(0, 256, (size[1] // 4, size[0] // 4, 3), dtype=np.uint8)
            Image.fromarray(resize(coarse, (size[1], size[0]))).save(path)
    write_images(root / "a.images", root / "src")
    return ImageSet(root / "a.images")


@pytest.fixture(scope="module")
def images(tmp_path_factory):
    return image_set(tmp_path_factory.mktemp("images"))


def make(images, **more):
    return ImageLoader(
        images, **({"split": "train", "clip": ALL, "batch_size": 5, "seed": 3} | more)
    )


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
        assert a.samples == b.samples and a.texts == b.texts
        assert a.video.numpy().tobytes() == b.video.numpy().tobytes()
        for name in ("target", "valid", "index", "seeds"):
            assert torch.equal(getattr(a, name), getattr(b, name))


def plans(loader, epoch):
    """Every plan of an epoch, by sample and order."""
    return [loader.plan(epoch, item) for item in range(loader.num_items)]


def test_padded_crops_are_moved_pixels_over_the_mean_colour(images):
    """Against a loop over the pixels of each plan, exactly; a border pixel is 0 after
    normalisation."""
    mean, std = (0.5, 0.4, 0.3), (0.2, 0.25, 0.3)
    with make(images, clip=PAD, batch_size=12, mean=mean, std=std) as loader:
        planned = {plan.sample: plan for plan in plans(loader, 0)}
        (batch,) = list(loader)
    assert batch.video.shape == (12, 3, 1, 32, 32) and batch.video.dtype == torch.float32
    moved = 0
    for row, name in enumerate(batch.samples):
        box, flip = planned[name].box, planned[name].flip
        picture = images.pixels[int(batch.index[row])]
        expected = np.zeros((3, 32, 32))
        for y in range(32):
            for x in range(32):
                from_x, from_y = (31 - x if flip else x) + box.x, y + box.y
                if 0 <= from_x < 32 and 0 <= from_y < 32:
                    expected[:, y, x] = (picture[from_y, from_x] / 255 - mean) / std
        assert np.abs(batch.video[row, :, 0].numpy() - expected).max() < 1e-5
        moved += (box.x, box.y) != (0, 0)
    assert moved > 6


def test_padding_moves_evenly_up_to_four_pixels_each_way(images):
    """All 81 places, as often as even odds give; half are mirrored."""
    with make(images, clip=PAD) as loader:
        many = [plan for epoch in range(500) for plan in plans(loader, epoch)]
    places = np.zeros((9, 9), int)
    for plan in many:
        places[plan.box.y + 4, plan.box.x + 4] += 1
    expected = len(many) / 81  # 74 each; the statistic has 80 degrees of freedom
    assert ((places - expected) ** 2 / expected).sum() < 140
    assert abs(np.mean([plan.flip for plan in many]) - 0.5) < 0.03


@pytest.mark.parametrize("shape", [(32, 32), (64, 48), (28, 40)])
@pytest.mark.parametrize("size", [16, 32, 50])
def test_crops_are_resized_as_pillow_does(tmp_path, shape, size):
    """Its antialiased bilinear filter on the cropped picture, to a level of 255."""
    images = image_set(tmp_path, shape, train=8)
    clip = ClipSpec(frames=1, size=size, crop="random-resized", flip="horizontal")
    with make(images, clip=clip, batch_size=8, **RAW) as loader:
        planned = {plan.sample: plan for plan in plans(loader, 0)}
        (batch,) = list(loader)
    for row, name in enumerate(batch.samples):
        box = planned[name].box
        picture = Image.fromarray(np.array(images.pixels[int(batch.index[row])]))
        cropped = picture.crop((box.x, box.y, box.x + box.width, box.y + box.height))
        theirs = np.asarray(cropped.resize((size, size), Image.Resampling.BILINEAR))
        if planned[name].flip:
            theirs = theirs[:, ::-1]
        ours = batch.video[row, :, 0].permute(1, 2, 0).numpy() * 255
        assert np.abs(ours - theirs).max() < 1.01


def test_small_images_are_enlarged_bilinearly(images):
    """32 to 224 pixels, whole picture: torch's own interpolation."""
    clip = ClipSpec(frames=1, size=224, crop="pad")
    with make(images, clip=clip, split="val", views=(1, 1), batch_size=7, **RAW) as loader:
        (batch,) = list(loader)
    pixels = torch.from_numpy(images.pixels[batch.index.numpy()]).permute(0, 3, 1, 2).double() / 255
    theirs = F.interpolate(pixels, size=(224, 224), mode="bilinear", align_corners=False)
    assert (batch.video[:, :, 0] - theirs).abs().max() < 1e-5


def test_a_moved_picture_is_enlarged_after_padding(images):
    """Padding, cropping, then enlarging, in float64 by torch; the border is 0."""
    clip = ClipSpec(frames=1, size=64, crop="pad")
    with make(images, clip=clip, batch_size=12, mean=(0.5,) * 3, std=(0.5,) * 3) as loader:
        planned = {plan.sample: plan for plan in plans(loader, 0)}
        (batch,) = list(loader)
    for row, name in enumerate(batch.samples):
        box = planned[name].box
        picture = torch.from_numpy(images.pixels[int(batch.index[row])]).permute(2, 0, 1).double()
        padded = F.pad((picture / 255 - 0.5) / 0.5, (4, 4, 4, 4))
        cropped = padded[None, :, box.y + 4 : box.y + 36, box.x + 4 : box.x + 36]
        theirs = F.interpolate(cropped, size=(64, 64), mode="bilinear", align_corners=False)
        assert (batch.video[row, :, 0] - theirs[0]).abs().max() < 1e-5


def test_colours_change_as_those_of_clips_do(images):
    """Against the affine map that the clip loader applies, clamped, in float64."""
    clip = ClipSpec(
        frames=1, size=32, crop="pad", brightness=0.5, contrast=0.5, saturation=0.5, grayscale=0.3
    )
    with make(images, clip=clip, batch_size=12, **RAW) as loader:
        planned = {plan.sample: plan for plan in plans(loader, 0)}
        (batch,) = list(loader)
    gray = 0
    for row, name in enumerate(batch.samples):
        plan = planned[name]
        change = color_change(plan.color)
        picture = images.pixels[int(batch.index[row])] / 255
        changed = np.clip(picture @ change[:, :3].T + change[:, 3], 0, 1)
        x, y = plan.box.x, plan.box.y
        rows, columns = slice(max(y, 0), 32 + min(y, 0)), slice(max(x, 0), 32 + min(x, 0))
        ours = batch.video[row, :, 0].permute(1, 2, 0).numpy()
        ours = ours[max(-y, 0) : 32 - max(y, 0), max(-x, 0) : 32 - max(x, 0)]
        assert np.abs(ours - changed[rows, columns]).max() < 1e-5
        gray += plan.color[2] == 0
    assert 0 < gray < 12


def test_blanked_boxes_are_the_mean_colour_and_nothing_else_changes(images):
    """Against the same plans without blanking."""
    clip = ClipSpec(frames=1, size=32, crop="pad", erasing=0.7)
    with make(images, clip=clip, batch_size=12) as loader:
        planned = {plan.sample: plan for plan in plans(loader, 0)}
        (batch,) = list(loader)
    kept = [replace(planned[name], augment=AugmentPlan()) for name in batch.samples]
    expected = to_images(torch.from_numpy(images.pixels[batch.index.numpy()]), kept, size=32)
    blanked = 0
    for row, name in enumerate(batch.samples):
        for part in planned[name].augment.erase:
            top, bottom, left, right = (round(edge * 32) for edge in part)
            assert bottom > top and right > left
            expected[row, :, :, top:bottom, left:right] = 0
            blanked += 1
    assert torch.equal(batch.video, expected) and 0 < blanked < 12


def test_pixels_keep_their_bits_under_autocast(images):
    """A loop may fetch its batches inside of it."""
    with make(images) as loader:
        reference = batches(loader, 2)
    with make(images) as loader, torch.autocast("cpu", torch.bfloat16):
        assert_same(batches(loader, 2), reference)


@pytest.mark.parametrize("stop", [0, 1, 2, 3, 4])
def test_a_restored_position_continues_with_the_same_batches(images, stop):
    """At every position of two epochs and more, in a fresh loader."""
    with make(images) as loader:
        reference = batches(loader, 5)
    with make(images) as loader:
        batches(loader, stop)
        state = loader.state_dict()
    with make(images) as loader:
        loader.load_state_dict(state)
        assert_same(batches(loader, 5 - stop), reference[stop:])


def test_an_image_gets_the_same_look_in_any_batch(images):
    """Batches of 2, 5 and 12: what a sample gets in an epoch depends on nothing else."""
    found = {}
    for size in (2, 5, 12):
        with make(images, batch_size=size) as loader:
            for batch in loader:
                for row, name in enumerate(batch.samples):
                    pixels = found.setdefault(name, batch.video[row])
                    assert torch.allclose(batch.video[row], pixels, atol=1e-6)
    assert len(found) == 12


def test_epochs_differ_in_order_and_look(images):
    """And repeats give several looks in one epoch."""
    with make(images, batch_size=12) as loader:
        (first,), (second,) = list(loader), list(loader)
    assert sorted(first.samples) == sorted(second.samples) and first.samples != second.samples
    at = second.samples.index(first.samples[0])
    assert not torch.equal(first.video[0], second.video[at])
    assert len({*first.seeds.tolist(), *second.seeds.tolist()}) == 24
    with make(images, batch_size=24, repeats=2) as loader:
        (batch,) = list(loader)
    for name in set(batch.samples):
        a, b = (i for i, other in enumerate(batch.samples) if other == name)
        assert not torch.equal(batch.video[a], batch.video[b])


def test_an_epoch_has_whole_groups_and_an_evaluation_drops_nothing(images):
    """12 images: 6 batches of 2 in groups of 3, one group of 4, the rest dropped. 7 held out."""
    assert len(make(images, batch_size=2, group=3)) == 6
    with make(images, batch_size=2, group=4) as loader:
        assert len(loader) == 4 == len(list(loader))
    with make(images, split="val", views=(1, 1), batch_size=3) as loader:
        found = list(loader)
    assert [len(batch) for batch in found] == [3, 3, 1] and found[-1].num_valid == 1
    index = torch.cat([batch.index for batch in found])
    assert torch.equal(index, torch.tensor(images.select("val")))


def test_evaluation_takes_the_centre_or_the_whole(images):
    """center_scale of the picture as for clips; where training pads, all of it, untouched."""
    with make(images, clip=PAD, split="val", views=(1, 1), batch_size=7, **RAW) as loader:
        (batch,) = list(loader)
    pixels = images.pixels[batch.index.numpy()].transpose(0, 3, 1, 2)
    assert np.array_equal(np.rint(batch.video[:, :, 0].numpy() * 255), pixels)
    clip = ClipSpec(frames=1, size=16, crop="random-resized", center_scale=0.5)
    with make(images, clip=clip, split="val", views=(1, 1), batch_size=7, **RAW) as loader:
        (batch,) = list(loader)
    assert np.array_equal(np.rint(batch.video[:, :, 0].numpy() * 255), pixels[:, :, 8:24, 8:24])


def test_targets_are_labels_or_the_given_rows(images):
    """Class numbers, other class orders, numbers of one's own, several labels, pairs."""
    labels = np.array(images.samples.column("label").to_pylist())
    with make(images, classes=("right", "left"), batch_size=12) as loader:
        (batch,) = list(loader)
    assert (batch.target.numpy() == (labels[batch.index] == "left")).all()
    rng = np.random.default_rng(0)
    for targets in (
        rng.integers(0, 9, 19), rng.random((19, 4)).astype(np.float32), rng.integers(0, 9, (19, 2)),
    ):  # fmt: skip
        with make(images, targets=targets, batch_size=12) as loader:
            (batch,) = list(loader)
        assert np.array_equal(batch.target.numpy(), targets[batch.index])
        assert batch.target.numpy().dtype == targets.dtype
    with pytest.raises(ConfigError, match="18 targets for a pack of 19"):
        make(images, targets=np.zeros(18, np.int64))


def test_mirrored_images_swap_their_labels(images):
    """left=right: as many as are mirrored."""
    clip = ClipSpec(frames=1, size=32, crop="pad", flip="horizontal", flip_swap=("left=right",))
    with make(images, clip=clip, batch_size=12) as loader:
        flips = {plan.sample: plan.flip for plan in plans(loader, 0)}
        (batch,) = list(loader)
    for name, target in zip(batch.samples, batch.target.tolist(), strict=True):
        own = ("left", "right").index(name.split("/")[1])
        assert target == (1 - own if flips[name] else own)
    assert 0 < sum(flips.values()) < 12
    with pytest.raises(ConfigError, match="one label a sample"):
        make(images, clip=clip, targets=np.zeros((19, 2), np.float32))


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"batch_size": 12}, "no whole number"), ({"repeats": 2}, "other samples"),
        ({"split": "val"}, "other samples"), ({"seed": 4}, "has seed 3, this 4"),
    ],
)  # fmt: skip
def test_a_position_of_another_loader_is_refused(images, change, words):
    """It would point at other images."""
    with make(images) as loader:
        next(iter(loader))
        state = loader.state_dict()
    with pytest.raises(ConfigError, match=words):
        make(images, **change).load_state_dict(state)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"clip": ClipSpec(frames=8, size=32)}, "--clip.frames 8: an image has 1"),
        ({"clip": ClipSpec(frames=1, modality="difference")}, "an image has no motion"),
        ({"views": (3, 1)}, "views 3x1: an image has one moment; use 1x1"),
        ({"batch_size": 13}, "12 clips an epoch, fewer than one batch of 13"),
        ({"classes": ("left",)}, "not among the 1 known classes: right"),
        ({"split": "nowhere"}, "no sample with split 'nowhere'"),
        ({"repeats": 0}, "repeats 0: at least 1"),
    ],
)
def test_what_images_cannot_be_is_refused_at_once(images, settings, words):
    """Before any batch is wanted."""
    with pytest.raises(ConfigError, match=words):
        make(images, **settings)


def test_padding_is_for_square_images_and_not_for_videos(tmp_path, clips_pack):
    """Each with what to use instead."""
    with pytest.raises(ConfigError, match=r"needs square images, these are 64x48"):
        make(image_set(tmp_path, (64, 48)), clip=PAD)
    info = Pack(clips_pack).info(0)
    with pytest.raises(ConfigError, match="pad is for image sets"):
        plan_training_clip(info, PAD, np.random.default_rng(0))


def test_a_loader_can_be_closed_and_used_again(images):
    """It stands where it stood."""
    with make(images) as loader:
        reference = batches(loader, 4)
    loader = make(images)
    first = batches(loader, 1)
    loader.close()
    assert_same(first + batches(loader, 3), reference)
    assert (loader.workers, loader.mode, loader.failed) == (0, "tensor", [])


def test_the_loader_follows_the_kind_of_data(images, clips_pack):
    """Who decodes matters to packs only."""
    shared = {"workers": 2, "mode": "threads", "on_error": "mask", "batch_size": 4, "seed": 1}
    with open_loader(images, clip=PAD, **shared) as loader:
        assert isinstance(loader, ImageLoader) and (loader.batch_size, loader.seed) == (4, 1)
    with open_loader(Pack(clips_pack), clip=ClipSpec(frames=2, size=32), **shared) as loader:
        assert isinstance(loader, ClipLoader)
        assert (loader.workers, loader.mode, loader.on_error) == (2, "threads", "mask")


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an NVIDIA GPU")
@pytest.mark.parametrize("kept", [{}, {"resident": False}, {"resident": False, "pinned": False}])
def test_the_gpu_gives_what_the_cpu_gives(images, kept):
    """Two epochs, with the whole set on the GPU or batch by batch; rounding differs."""
    with make(images) as loader:
        reference = batches(loader, 4)
    with make(images, device="cuda", **kept) as loader:
        for ours, theirs in zip(batches(loader, 4), reference, strict=True):
            assert ours.samples == theirs.samples and ours.video.is_cuda
            torch.testing.assert_close(ours.video.cpu(), theirs.video, atol=1e-4, rtol=0)
            assert torch.equal(ours.target.cpu(), theirs.target)
