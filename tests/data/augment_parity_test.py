"""What is done to pictures, against other libraries on the same numbers: timm with Pillow frame by
frame, torchvision, kornia; a level of 255 apart at most, borders included.
"""

import math

import kornia
import numpy as np
import pytest
import torch
import torchvision.transforms.v2.functional as vision
from PIL import Image
from timm.data import auto_augment as timm_ops

from matinee.data.augment.apply import augment
from matinee.data.augment.plan import NAMES, AugmentPlan, Operation, operation_at
from matinee.data.augment.warp import matrix_of
from matinee.data.device import normalise

GIVEN = {
    "autocontrast": timm_ops.auto_contrast,
    "equalize": timm_ops.equalize,
    "invert": timm_ops.invert,
    "rotate": timm_ops.rotate,
    "posterize": timm_ops.posterize,
    "solarize": timm_ops.solarize,
    "solarize-add": timm_ops.solarize_add,
    "color": timm_ops.color,
    "contrast": timm_ops.contrast,
    "brightness": timm_ops.brightness,
    "sharpness": timm_ops.sharpness,
    "shear-x": timm_ops.shear_x,
    "shear-y": timm_ops.shear_y,
    "translate-x": timm_ops.translate_x_rel,
    "translate-y": timm_ops.translate_y_rel,
}
LEVELS = {  # of the "increasing" variant, rand-…-inc1
    "rotate": "Rotate",
    "posterize": "PosterizeIncreasing",
    "solarize": "SolarizeIncreasing",
    "solarize-add": "SolarizeAdd",
    "color": "ColorIncreasing",
    "contrast": "ContrastIncreasing",
    "brightness": "BrightnessIncreasing",
    "sharpness": "SharpnessIncreasing",
    "shear-x": "ShearX",
    "shear-y": "ShearY",
    "translate-x": "TranslateXRel",
    "translate-y": "TranslateYRel",
}
WHOLE = {"posterize", "solarize", "solarize-add"}  # whole numbers
HEIGHT, WIDTH, FRAMES = 40, 56, 3


@pytest.fixture(scope="module")
def frames() -> list[Image.Image]:
    """Smooth pictures with noise, of all levels; one dark, one without colour."""
    rng = np.random.default_rng(0)
    y, x = np.mgrid[:HEIGHT, :WIDTH]
    made = []
    for number in range(FRAMES):
        waves = [np.sin(x / (5 + c) + number) * np.cos(y / (7 - c) - number) for c in range(3)]
        picture = np.stack(waves, -1) * 120 + 128 + rng.normal(0, 15, (HEIGHT, WIDTH, 3))
        picture = picture * (0.4 if number == 1 else 1)
        if number == 2:
            picture = picture[..., :1].repeat(3, -1)
        made.append(Image.fromarray(picture.clip(0, 255).astype(np.uint8)))
    return made


def clip_of(frames) -> torch.Tensor:
    """uint8 [1, 3, T, H, W]."""
    return torch.from_numpy(np.stack(frames)).permute(3, 0, 1, 2)[None].contiguous()


def test_all_operations_are_compared():
    assert set(GIVEN) == set(NAMES) and len(NAMES) == len(timm_ops._RAND_INCREASING_TRANSFORMS)


@pytest.mark.parametrize("level", [0.0, 2.5, 7.0, 9.9])
@pytest.mark.parametrize("name", NAMES)
def test_operations_change_frames_as_timm_does(frames, name, level):
    """Both directions; Pillow resamples bilinearly and fills with 128."""
    for sign in (1, -1):
        operation = operation_at(name, level, sign)
        ours = augment(clip_of(frames), [AugmentPlan(operations=(operation,))])
        arguments = [operation.value] if name in LEVELS else []
        if name in WHOLE:
            arguments = [int(operation.value)]
        theirs = [
            GIVEN[name](f, *arguments, fillcolor=(128,) * 3, resample=Image.Resampling.BILINEAR)
            for f in frames
        ]
        apart = (ours.int() - clip_of(theirs).int()).abs()
        assert apart.max() <= 1
        # Pillow cuts what it resamples, here it is rounded; else float32 against its fixed point.
        assert apart.float().mean() < (0.6 if matrix_of(operation, (HEIGHT, WIDTH)) else 0.1)


@pytest.mark.parametrize("angle", [12.0, -30.0])
def test_rotation_is_that_of_torchvision_inside(frames, angle):
    """And rounded as there; at the border torchvision blends with the fill."""
    operation = Operation("rotate", angle)
    ours = augment(clip_of(frames), [AugmentPlan(operations=(operation,))])[0].transpose(0, 1)
    bilinear = vision.InterpolationMode.BILINEAR
    still = clip_of(frames)[0].transpose(0, 1)
    theirs = vision.rotate(still, angle, interpolation=bilinear, fill=[128] * 3)
    white = torch.full_like(still, 255)
    shown = vision.rotate(white, angle, interpolation=bilinear, fill=[0] * 3) == 255
    apart = (ours.int() - theirs.int()).abs()[shown]
    assert apart.max() <= 1 and apart.float().mean() < 0.01 and shown.float().mean() > 0.5


@pytest.mark.parametrize("name", sorted(LEVELS))
def test_magnitudes_mean_what_they_mean_to_timm(monkeypatch, name):
    """At eleven magnitudes, in both directions."""
    level_to_value = timm_ops.LEVEL_TO_ARG[LEVELS[name]]
    for level in np.linspace(0, 10, 11).tolist():
        for sign in (1, -1):
            monkeypatch.setattr(
                timm_ops.random, "random", lambda sign=sign: 0.25 - 0.5 * (sign - 1)
            )
            (value,) = level_to_value(level, {})
            assert operation_at(name, level, sign).value == pytest.approx(value, abs=1e-12)


def test_several_operations_follow_each_other(frames):
    """As Pillow does one after the other; each may add a level."""
    plan = [Operation("color", 1.6), Operation("invert"), Operation("brightness", 0.7)]
    ours = augment(clip_of(frames), [AugmentPlan(operations=tuple(plan))])
    theirs = frames
    for operation in plan:
        arguments = [operation.value] if operation.value else []
        theirs = [GIVEN[operation.name](f, *arguments) for f in theirs]
    assert (ours.int() - clip_of(theirs).int()).abs().max() <= 2


@pytest.mark.parametrize("value", [40, 0, 255])
def test_pictures_of_one_colour_stay_or_change_as_pillows_do(value):
    """Nothing to stretch, to equalise or to sharpen."""
    frames = [Image.new("RGB", (24, 16), (value, 90, 255 - value))] * 2
    for name in ("autocontrast", "equalize", "contrast", "sharpness"):
        ours = augment(clip_of(frames), [AugmentPlan(operations=(operation_at(name, 7),))])
        arguments = [operation_at(name, 7).value] if name in LEVELS else []
        theirs = [GIVEN[name](f, *arguments) for f in frames]
        assert (ours.int() - clip_of(theirs).int()).abs().max() <= 1


@pytest.mark.parametrize("turn", [0.08, -0.31, 0.5])
def test_hue_turns_as_in_torchvision(frames, turn):
    """Of the same 8-bit frames."""
    ours = augment(clip_of(frames), [AugmentPlan(hue=turn)])[0]
    theirs = vision.adjust_hue(clip_of(frames)[0].transpose(0, 1), turn).transpose(0, 1)
    assert (ours.int() - theirs.int()).abs().max() <= 1


def test_hue_turns_as_in_kornia(frames):
    """Whose unit is the radian."""
    ours = augment(clip_of(frames), [AugmentPlan(hue=0.2)])[0]
    parts = clip_of(frames)[0].transpose(0, 1) / 255
    theirs = kornia.enhance.adjust_hue(parts, 0.2 * 2 * math.pi).transpose(0, 1) * 255
    assert (ours - theirs).abs().max() <= 1


@pytest.mark.parametrize("sigma", [0.1, 0.7, 2.0])
def test_blur_is_that_of_torchvision_and_kornia(frames, sigma):
    """With kernels that reach three deviations."""
    ours = augment(clip_of(frames), [AugmentPlan(blur=sigma)])[0]
    kernel = 2 * max(1, math.ceil(3 * sigma)) + 1
    still = clip_of(frames)[0].transpose(0, 1)
    theirs = vision.gaussian_blur(still, [kernel, kernel], [sigma, sigma]).transpose(0, 1)
    assert (ours.int() - theirs.int()).abs().max() <= 1
    other = kornia.filters.gaussian_blur2d(still.float(), (kernel, kernel), (sigma, sigma))
    assert (ours - other.transpose(0, 1)).abs().max() <= 0.51  # rounding


def test_normalised_levels_are_torchvisions(frames):
    clip = clip_of(frames)
    mean, std = (0.4, 0.5, 0.6), (0.2, 0.3, 0.4)
    theirs = vision.normalize(clip[0].transpose(0, 1) / 255, list(mean), list(std))
    ours = normalise(clip, mean, std)[0].transpose(0, 1)
    torch.testing.assert_close(ours, theirs, atol=2e-6, rtol=0)
