"""The comparison of packed with shown frames fails on the faults that it is there to find."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import wild
from wild import check_packed, packed, seen


def planes(flat, height=64, width=96):
    """Y, U and V of a flat I420 frame."""
    luma, chroma = height * width, height * width // 4
    half = (height // 2, width // 2)
    return (
        flat[:luma].reshape(height, width),
        flat[luma : luma + chroma].reshape(half),
        flat[luma + chroma :].reshape(half),
    )


def each(change):
    """The same change of every plane of every frame."""

    def faulty(shown):
        frames = [
            np.concatenate([np.ascontiguousarray(change(plane)).reshape(-1) for plane in planes(f)])
            for f in shown.frames
        ]
        return replace(shown, frames=tuple(frames))

    return faulty


def squeezed(plane):
    """As if drawn together to nine tenths of its width."""
    width = plane.shape[1]
    return plane[:, np.minimum(np.arange(width) * 10 // 9, width - 1)]


FAULTS = {
    "one frame late": lambda s: replace(s, frames=(s.frames[0], *s.frames[:-1])),
    "two frames swapped": lambda s: replace(
        s, frames=(*s.frames[:7], s.frames[8], s.frames[7], *s.frames[9:])
    ),
    "a frame repeated": lambda s: replace(s, frames=(*s.frames[:9], s.frames[8], *s.frames[10:])),
    "a frame missing": lambda s: replace(s, frames=s.frames[:-1], times=s.times[:-1]),
    "mirrored": each(lambda plane: plane[:, ::-1]),
    "upside down": each(lambda plane: plane[::-1]),
    "turned by 180 degrees": each(lambda plane: plane[::-1, ::-1]),
    "squeezed": each(squeezed),
    "moved by two pixels": each(lambda plane: np.roll(plane, 2, axis=1)),
    "another range": each(lambda plane: (plane.astype(float) * 219 / 255 + 16).astype(np.uint8)),
    "colours of another matrix": lambda s: replace(s, matrix="bt709"),
    "another shape": lambda s: replace(s, size=(64.0, 128.0)),
    "times of half the rate": lambda s: replace(s, times=tuple(2 * t for t in s.times)),
}


@pytest.fixture(scope="module")
def sound(tmp_path_factory, film):
    folder = tmp_path_factory.mktemp("sound")
    path = film(folder / "a.mp4", frames=16)
    return packed(folder / "pack", path), path


def test_a_sound_pack_passes(sound):
    pack, path = sound
    check_packed(pack, 0, path)


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_is_noticed(fault, sound, monkeypatch):
    pack, path = sound
    shown = seen(path, (64, 96))
    monkeypatch.setattr(wild, "seen", lambda *args, **kwargs: FAULTS[fault](shown))
    with pytest.raises(AssertionError):
        check_packed(pack, 0, path)
