"""Plans of augmentation, and what a clip's result may depend on: its own plan, nothing else."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from scipy import stats
from torch.utils._python_dispatch import TorchDispatchMode

from matinee.data import device as conversion
from matinee.data.augment import blocks as cutting
from matinee.data.augment import jitter
from matinee.data.augment.apply import TONES, augment
from matinee.data.augment.erase import box_in_pixels, erase
from matinee.data.augment.plan import (
    NAMES,
    AugmentPlan,
    Operation,
    operation_at,
    plan_augment,
    plan_rand_augment,
)
from matinee.data.augment.tones import from_parts
from matinee.data.augment.warp import matrix_of, warp
from matinee.data.clips import ClipSpec
from matinee.data.device import IMAGENET_MEAN, IMAGENET_STD, normalise, to_rgb, to_video
from matinee.data.random import generator
from matinee.errors import ConfigError
from matinee.media.color import ycbcr_to_rgb

ALL = ClipSpec(
    size=32, hue=0.1, rand_augment=4, rand_magnitude=7, blur=0.5, erasing=0.5, erasing_fill="noise",
    erasing_area=(0.02, 1 / 3), erasing_aspect=(0.3, 1 / 0.3), erasing_count=(1, 3),
)  # fmt: skip


def plans(count, spec=ALL, epoch=0):
    return [plan_augment(spec, generator(3, epoch, i, "clip0")) for i in range(count)]


def clips(count, frames=3, size=(32, 40)):
    random = torch.Generator().manual_seed(0)
    coarse = torch.randint(0, 256, (count, 3, frames, 8, 10), generator=random)
    return coarse.repeat_interleave(size[0] // 8, 3).repeat_interleave(size[1] // 10, 4).byte()


def test_a_plan_follows_from_its_generator_alone():
    """And is numbers: equal, hashable, printable."""
    torch.manual_seed(0)
    before = torch.get_rng_state()
    first = plans(50)
    assert first == plans(50) and first != plans(50, epoch=1)
    assert torch.equal(before, torch.get_rng_state())
    assert len(set(first)) == 50
    again = [
        eval(repr(plan), {"AugmentPlan": AugmentPlan, "Operation": Operation}) for plan in first
    ]
    assert again == first


def test_settings_that_are_off_change_nothing():
    assert plans(20, ClipSpec(size=32)) == [AugmentPlan()] * 20
    boxes = [plan.erase for plan in plans(20, ClipSpec(size=32, erasing=0.5))]
    assert boxes == [plan.erase for plan in plans(20, ClipSpec(size=32, erasing=0.5, hue=0.2))]


def test_operations_are_drawn_alike_often_and_done_at_their_odds():
    """Counts against the multinomial, number done against the binomial distribution."""
    rng = np.random.default_rng(0)
    drawn = [plan_rand_augment(rng, 4, 7.0, 0.5, 0.5) for _ in range(3000)]
    done = [operation.name for plan in drawn for operation in plan]
    assert stats.binomtest(len(done), 12_000, 0.5).pvalue > 0.01
    assert stats.chisquare([done.count(name) for name in NAMES]).pvalue > 0.01
    assert max(map(len, drawn)) == 4 and min(map(len, drawn)) == 0


def test_magnitudes_are_normal_about_the_given_one_and_both_directions_alike_likely():
    rng = np.random.default_rng(1)
    drawn = [o for _ in range(2000) for o in plan_rand_augment(rng, 4, 7.0, 0.5, 1.0)]
    angles = np.array([o.value for o in drawn if o.name == "rotate"])
    assert stats.kstest(np.abs(angles) / 3, stats.norm(7, 0.5).cdf).pvalue > 0.01
    assert stats.binomtest(int((angles > 0).sum()), len(angles), 0.5).pvalue > 0.01
    far = [o for _ in range(300) for o in plan_rand_augment(rng, 4, 10.0, 5.0, 1.0)]
    assert max(abs(o.value) for o in far if o.name == "rotate") == 30


def test_boxes_have_the_area_aspect_and_number_asked_for():
    """Unless the picture's sides cut them."""
    spec = replace(ALL, erasing=1.0, erasing_area=(0.05, 0.1), erasing_aspect=(0.5, 2.0))
    made = plans(400, spec)
    assert {len(plan.erase) for plan in made} == {1, 2, 3}
    for plan in made:
        for top, bottom, left, right in plan.erase:
            height, width = bottom - top, right - left
            assert 0 <= top < bottom <= 1 and 0 <= left < right <= 1
            assert 0.05 <= height * width * len(plan.erase) <= 0.1000001
            assert 0.499999 <= width / height <= 2.000001


@pytest.mark.parametrize("pixels", [500, 1280, 4000, 10**9])
def test_a_clip_does_not_depend_on_those_beside_it_or_on_how_the_batch_is_cut(monkeypatch, pixels):
    """Bit for bit: alone, in a batch, in another order; frame by frame or all at once."""
    video, made = clips(8), plans(8)
    alone = [augment(video[i : i + 1].clone(), made[i : i + 1])[0] for i in range(8)]
    monkeypatch.setattr(cutting, "PIXELS", pixels)
    together = augment(video.clone(), made)
    order = [5, 2, 7, 0, 1, 6, 3, 4]
    turned = augment(video[order].clone(), [made[i] for i in order])
    for i in range(8):
        assert torch.equal(together[i], alone[i]) and torch.equal(turned[order.index(i)], alone[i])
    assert sum(not torch.equal(together[i], video[i]) for i in range(8)) > 5


def test_all_frames_of_a_clip_get_the_same():
    """Equal frames stay equal, whatever is done, but for the noise in erased boxes."""
    still = clips(12)[:, :, :1].repeat(1, 1, 4, 1, 1)
    made = plans(12)
    changed = augment(still.clone(), made)
    assert torch.equal(changed, changed[:, :, :1].expand_as(changed))
    video = normalise(changed, IMAGENET_MEAN, IMAGENET_STD)
    erased = video.clone()
    erase(erased, made)
    differs = (erased != video).any(1)  # [B, T, H, W]
    assert torch.equal(differs, differs[:, :1].expand_as(differs)) and differs.any()


def test_noise_is_normal_stays_in_its_box_and_follows_from_its_seed():
    """Kolmogorov and Smirnov; new in each frame and channel."""
    part = (0.25, 0.75, 0.1, 0.9)
    made = [AugmentPlan(erase=(part,), noise=n) for n in (1, 2, 1)] + [AugmentPlan(erase=(part,))]
    video = torch.full((4, 3, 4, 32, 40), 7.0)
    erase(video, made)
    top, bottom, left, right = box_in_pixels(part, 32, 40)
    assert (top, bottom, left, right) == (8, 24, 4, 36)
    inside = torch.zeros(32, 40, dtype=torch.bool)
    inside[top:bottom, left:right] = True
    assert (video[..., ~inside] == 7).all() and (video[3][..., inside] == 0).all()
    noise = video[0][..., inside]
    assert stats.kstest(noise.flatten().numpy(), stats.norm.cdf).pvalue > 0.01
    assert len({tuple(row.tolist()) for row in noise.view(12, -1)}) == 12
    assert torch.equal(video[0], video[2]) and not torch.equal(video[0], video[1])
    half = torch.zeros(1, 3, 4, 32, 40, dtype=torch.bfloat16)
    erase(half, made[:1])
    assert half.dtype == torch.bfloat16 and half.any()


def test_a_box_that_reaches_no_pixel_is_none():
    video = torch.ones(1, 3, 2, 16, 16)
    erase(video, [AugmentPlan(erase=((0.5, 0.51, 0.5, 0.51),), noise=1)])
    assert (video == 1).all()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_parts_of_any_precision_become_the_nearest_level(dtype):
    parts = (torch.arange(256) / 255).to(dtype).view(1, 1, 1, 16, 16)
    wanted = (parts.double() * 255).round()
    assert (from_parts(parts).double() - wanted).abs().max() <= (dtype != torch.float32)


class Waits(TorchDispatchMode):
    """Notes operations whose result or size the host would have to wait for."""

    def __init__(self):
        super().__init__()
        self.names = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        name = func._schema.name
        asks = ("_local_scalar_dense", "nonzero", "masked_select", "unique", "bincount", "equal")
        if name.removeprefix("aten::") in asks:
            self.names.append(name)
        if name in ("aten::index", "aten::index_put_") and any(
            i is not None and i.dtype == torch.bool for i in args[1]
        ):
            self.names.append(name)
        return func(*args, **(kwargs or {}))


def test_nobody_waits_for_the_device():
    """Every operation, hue, blur, noise, conversion, several clips and each kind once alone."""
    raw = torch.randint(0, 256, (len(NAMES), 2, 16 * 16 * 3 // 2), dtype=torch.uint8)
    affine = torch.tensor(np.stack([ycbcr_to_rgb("bt601", True)] * len(NAMES)), dtype=torch.float32)
    made = [
        AugmentPlan(True, 0.1, (operation_at(name, 7), operation_at("invert", 7)), 0.5,
                    ((0.1, 0.5, 0.1, 0.5),), 3)
        for name in NAMES
    ]  # fmt: skip
    with Waits() as waits:
        rgb = augment(to_rgb(raw, affine, raw[:, 0, 0] > 99, size=(16, 16)), made)
        erase(normalise(rgb, IMAGENET_MEAN, IMAGENET_STD), made)
    assert waits.names == []
    with Waits() as waits:
        assert rgb[0, 0, 0, 0, 0].item() >= 0
    assert waits.names


@pytest.mark.parametrize("name", ["to_video", "to_rgb", "normalise", *TONES, "warp", "hue", "blur"])
def test_compiled_without_a_break_it_gives_the_same(name):
    """`fullgraph=True`; traced whole, with what eager gives, bit for bit."""
    size = (16, 20)
    raw = torch.randint(0, 256, (2, 3, size[0] * size[1] * 3 // 2), dtype=torch.uint8)
    affine = torch.tensor(np.stack([ycbcr_to_rgb("bt709", False)] * 2), dtype=torch.float32)
    flip = torch.tensor([True, False])
    rgb = to_rgb(raw, affine, flip, size=size)
    value = torch.tensor([operation_at(name, 7).value] * 2) if name in TONES else None
    turn = [matrix_of(Operation("rotate", angle), size) for angle in (20, -5)]
    function, arguments = {
        "to_video": (lambda *a: to_video(*a, size=size), (raw, affine, flip)),
        "to_rgb": (lambda *a: to_rgb(*a, size=size), (raw, affine, flip)),
        "normalise": (normalise, (rgb, IMAGENET_MEAN, IMAGENET_STD)),
        "warp": (warp, (rgb, torch.tensor(turn))),
        "hue": (jitter.turn_hue, (rgb, torch.tensor([0.2, -0.3]))),
        "blur": (jitter.blur, (rgb, torch.tensor([jitter.blur_weights(1.0, 3)] * 2))),
    }.get(name) or (TONES[name], (rgb, value))
    conversion.channels(IMAGENET_MEAN, raw.device), conversion.channels(IMAGENET_STD, raw.device)
    torch._dynamo.reset()
    compiled = torch.compile(function, fullgraph=True, backend="eager")
    assert torch.equal(compiled(*arguments), function(*arguments))


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        ({"hue": 0.6}, "--clip.hue"),
        ({"rand_augment": -1}, "--clip.rand-augment"),
        ({"rand_magnitude": 11}, "--clip.rand-magnitude"),
        ({"rand_deviation": -1}, "--clip.rand-deviation"),
        ({"rand_probability": 1.5}, "--clip.rand-probability"),
        ({"blur": 2}, "--clip.blur"),
        ({"blur_sigma": (0, 1)}, "--clip.blur-sigma"),
        ({"blur_sigma": (1, 20)}, "--clip.blur-sigma"),
        ({"erasing_area": (0.5, 0.2)}, "--clip.erasing-area"),
        ({"erasing_aspect": (0, 2)}, "--clip.erasing-aspect"),
        ({"erasing_count": (0, 2)}, "--clip.erasing-count"),
    ],
)
def test_settings_out_of_range_are_refused(settings, named):
    with pytest.raises(ConfigError, match=named):
        ClipSpec(size=32, **settings)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an NVIDIA GPU")
def test_a_gpu_gives_what_a_cpu_gives_and_is_not_waited_for():
    """A level apart at most; CUDA itself would complain about waiting."""
    video, made = clips(8), plans(8)
    wanted = augment(video.clone(), made)
    augment(video.cuda(), made)
    there = video.cuda()
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    try:
        found = augment(there, made)
        erase(normalise(found, IMAGENET_MEAN, IMAGENET_STD), made)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    apart = (found.cpu().int() - wanted.int()).abs()
    assert apart.float().mean() < 0.5  # a level may decide what equalise and solarise do
