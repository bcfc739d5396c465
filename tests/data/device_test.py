"""I420 to normalised RGB against the standards' formulas in float64."""

import av
import kornia
import numpy as np
import pytest
import torch
from av.video.reformatter import ColorRange, Colorspace, Interpolation

from matinee.data.device import after, color_change, to_rgb, to_video
from matinee.media.color import ycbcr_to_rgb

MEAN, STD = (0.4, 0.5, 0.6), (0.2, 0.3, 0.4)


def reference_rgb(y, u, v, matrix, full):
    """BT.601-7 and BT.709-6 from their luma coefficients, one pixel, no matrices."""
    kr, kb = {"bt601": (0.299, 0.114), "bt709": (0.2126, 0.0722)}[matrix]
    if full:
        luma, cb, cr = y / 255, (u - 128) / 255, (v - 128) / 255
    else:
        luma, cb, cr = (y - 16) / 219, (u - 128) / 224, (v - 128) / 224
    red = luma + cr * 2 * (1 - kr)
    blue = luma + cb * 2 * (1 - kb)
    green = (luma - kr * red - kb * blue) / (1 - kr - kb)
    return np.stack([red, green, blue])


@pytest.mark.parametrize("matrix", ["bt601", "bt709"])
@pytest.mark.parametrize("full", [False, True])
def test_rgb_equals_the_standard_formula(matrix, full):
    """Random bytes, chroma repeated over 2×2 pixels, clamped, normalised."""
    rng = np.random.default_rng(0)
    height, width, frames = 6, 10, 3
    raw = rng.integers(0, 256, (2, frames, height * width * 3 // 2), dtype=np.uint8)
    affine = torch.tensor(np.stack([ycbcr_to_rgb(matrix, full)] * 2), dtype=torch.float32)
    video = to_video(torch.from_numpy(raw), affine, None, size=(height, width), mean=MEAN, std=STD)
    assert video.shape == (2, 3, frames, height, width) and video.dtype == torch.float32
    area, half = height * width, height * width // 4
    for b in range(2):
        for t in range(frames):
            y = raw[b, t, :area].reshape(height, width).astype(np.float64)
            u, v = (
                raw[b, t, area + i * half : area + (i + 1) * half]
                .reshape(height // 2, width // 2).repeat(2, 0).repeat(2, 1).astype(np.float64)
                for i in (0, 1)
            )  # fmt: skip
            rgb = np.clip(reference_rgb(y, u, v, matrix, full), 0, 1)
            wanted = (rgb - np.array(MEAN)[:, None, None]) / np.array(STD)[:, None, None]
            np.testing.assert_allclose(video[b, :, t].numpy(), wanted, atol=2e-5)


def test_matrices_and_ranges_mix_in_one_batch():
    """Each clip by its own tags, as alone; of 40 frames, more than are converted at once."""
    raw = torch.randint(0, 256, (4, 40, 64 * 96 * 3 // 2), dtype=torch.uint8)
    tags = [(matrix, full) for matrix in ("bt601", "bt709") for full in (False, True)]
    affine = torch.tensor(np.stack([ycbcr_to_rgb(*tag) for tag in tags]), dtype=torch.float32)
    flip = torch.tensor([False, True, True, False])
    for convert in (to_video, to_rgb):
        together = convert(raw, affine, flip, size=(64, 96))
        for i in range(4):
            one = slice(i, i + 1)
            for t in (0, 39):
                alone = convert(raw[one, t : t + 1], affine[one], flip[one], size=(64, 96))
                assert torch.equal(together[i, :, t], alone[0, :, 0])
    assert not torch.equal(together[0], together[1])


def flat_chroma(height, width):
    """Random luma; one chroma a frame, which no filter can change. uint8 [T, bytes]."""
    rng = np.random.default_rng(0)
    frames = []
    for _ in range(8):
        luma = rng.integers(16, 236, height * width)
        chroma = rng.integers(80, 176, 2).repeat(height * width // 4)
        frames.append(np.concatenate([luma, chroma]).astype(np.uint8))
    return np.stack(frames)


@pytest.mark.parametrize("matrix", ["bt601", "bt709"])
@pytest.mark.parametrize("full", [False, True])
def test_levels_are_those_of_swscale(matrix, full):
    """When it is told to be accurate; a level apart at most."""
    height, width = 32, 48
    raw = flat_chroma(height, width)
    affine = torch.tensor(ycbcr_to_rgb(matrix, full), dtype=torch.float32)[None]
    ours = to_rgb(torch.from_numpy(raw)[None], affine, None, size=(height, width))[0]
    for t, frame in enumerate(raw):
        picture = av.VideoFrame.from_ndarray(frame.reshape(-1, width), format="yuv420p")
        picture.colorspace = Colorspace.ITU709 if matrix == "bt709" else Colorspace.ITU601
        picture.color_range = ColorRange.JPEG if full else ColorRange.MPEG
        theirs = picture.reformat(
            format="rgb24",
            src_colorspace=picture.colorspace,
            src_color_range=picture.color_range,
            dst_color_range=ColorRange.JPEG,
            interpolation=Interpolation.BICUBIC
            | Interpolation.ACCURATE_RND
            | Interpolation.FULL_CHR_H_INT,
        ).to_ndarray()
        assert np.abs(ours[:, t].permute(1, 2, 0).numpy().astype(int) - theirs).max() <= 1


def test_full_range_bt601_is_kornias():
    """Which rounds the coefficients to three digits."""
    height, width = 32, 48
    raw = torch.from_numpy(flat_chroma(height, width))
    affine = torch.tensor(ycbcr_to_rgb("bt601", True), dtype=torch.float32)[None]
    ours = to_video(raw[None], affine, None, size=(height, width), mean=(0, 0, 0), std=(1, 1, 1))[0]
    luma = raw[:, : height * width].view(8, 1, height, width) / 255
    chroma = (raw[:, height * width :].view(8, 2, height // 2, width // 2) - 128.0) / 255
    theirs = kornia.color.yuv420_to_rgb(luma, chroma * torch.tensor([0.872, 1.23]).view(2, 1, 1))
    assert (ours.transpose(0, 1) - theirs.clamp(0, 1)).abs().max() < 0.005


def test_flip_mirrors_only_the_marked_clips():
    """Left and right swap, the rest stays."""
    raw = torch.randint(0, 256, (3, 2, 4 * 6 * 3 // 2), dtype=torch.uint8)
    affine = torch.tensor(np.stack([ycbcr_to_rgb("bt601", False)] * 3), dtype=torch.float32)
    plain = to_video(raw, affine, None, size=(4, 6))
    mixed = to_video(raw, affine, torch.tensor([True, False, True]), size=(4, 6))
    assert torch.equal(mixed[0], plain[0].flip(-1)) and torch.equal(mixed[1], plain[1])
    assert torch.equal(mixed[2], plain[2].flip(-1))


def test_colour_changes_are_brightness_then_contrast_then_saturation():
    """Against the three steps one by one."""
    rgb = np.array([0.2, 0.5, 0.9])
    brightness, contrast, saturation = 1.2, 0.7, 0.4
    step = (rgb * brightness - 0.5) * contrast + 0.5
    grey = step @ np.array([0.299, 0.587, 0.114])
    wanted = grey + saturation * (step - grey)
    change = color_change((brightness, contrast, saturation))
    np.testing.assert_allclose(change[:, :3] @ rgb + change[:, 3], wanted)


def test_no_colour_change_is_the_identity_and_zero_saturation_is_grey():
    """Edges of the factors."""
    np.testing.assert_allclose(color_change((1, 1, 1)), np.eye(3, 4), atol=1e-12)
    grey = color_change((1, 1, 0)) @ np.array([0.1, 0.6, 0.3, 1])
    np.testing.assert_allclose(grey, grey[0])


def test_affine_maps_compose_in_order():
    """`after(f, g)` is g of f."""
    rng = np.random.default_rng(1)
    f, g, x = rng.normal(size=(3, 4)), rng.normal(size=(3, 4)), rng.normal(size=3)
    once = f[:, :3] @ x + f[:, 3]
    both = after(f, g)
    np.testing.assert_allclose(both[:, :3] @ x + both[:, 3], g[:, :3] @ once + g[:, 3])


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an NVIDIA GPU")
def test_the_gpu_gives_what_the_cpu_gives():
    """Within float32 rounding."""
    raw = torch.randint(0, 256, (2, 4, 32 * 32 * 3 // 2), dtype=torch.uint8)
    affine = torch.tensor(np.stack([ycbcr_to_rgb("bt709", False)] * 2), dtype=torch.float32)
    flip = torch.tensor([True, False])
    cpu = to_video(raw, affine, flip, size=(32, 32))
    gpu = to_video(raw.cuda(), affine.cuda(), flip.cuda(), size=(32, 32))
    torch.testing.assert_close(gpu.cpu(), cpu, atol=1e-5, rtol=0)
