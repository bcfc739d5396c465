"""How packs are encoded: named settings, each a trade of bytes against decoding time."""

from __future__ import annotations

from dataclasses import dataclass

from matinee.errors import ConfigError
from matinee.media.encode import EncoderSettings


@dataclass(frozen=True)
class Profile:
    """A named way to encode.

    `small`: x264 with few keyframes; fewest bytes, slowest to read at random.
    `layered`: temporal layers at the training stride; decodes only frames that are used.
    `intra`: every frame a keyframe; any frame at one frame's cost, three times the bytes.
    """

    name: str
    stride: int
    gop: int
    crf: int
    preset: str
    fast_decode: bool
    short_side: int
    chunk_seconds: float

    def encoder(self) -> EncoderSettings:
        return EncoderSettings(self.stride, self.gop, self.crf, self.preset, self.fast_decode)

    def frames_per_chunk(self, fps: float) -> int:
        """`chunk_seconds` rounded to whole GOPs, so that no GOP is cut short inside a video."""
        return max(1, round(self.chunk_seconds * fps / self.gop)) * self.gop


NAMES = ("small", "layered", "intra")
PRESETS = ("ultrafast", "superfast", "veryfast", "faster", "fast", "medium", "slow", "slower",
           "veryslow", "placebo")  # fmt: skip


def make_profile(
    name: str = "layered",
    *,
    stride: int = 4,
    crf: int = 23,
    preset: str = "medium",
    short_side: int = 288,
    chunk_seconds: float = 15.0,
) -> Profile:
    """A profile by name. `stride` is the spacing of reference frames, in frames.

    Raises:
        ConfigError: an unknown name or a value that cannot be encoded.
    """
    if name not in NAMES:
        raise ConfigError(f"unknown profile {name!r}: one of {', '.join(NAMES)}")
    if not 1 <= stride <= 16:
        raise ConfigError(f"stride {stride}: 1 to 16 frames between references can be encoded")
    if preset not in PRESETS:
        raise ConfigError(f"unknown preset {preset!r}: one of {', '.join(PRESETS)}")
    if not 0 <= crf <= 51:
        raise ConfigError(f"crf {crf}: 0 (lossless) to 51 (worst)")
    if short_side < 16 or short_side % 2:
        raise ConfigError(f"short side {short_side}: an even number of 16 or more pixels")
    if not 0.5 <= chunk_seconds <= 3600:
        raise ConfigError(f"chunks of {chunk_seconds} s: 0.5 to 3600 are supported")
    gop = {"small": 120, "layered": 8 * stride, "intra": 1}[name]
    spacing = {"small": 4, "layered": stride, "intra": 1}[name]
    return Profile(name, spacing, gop, crf, preset, name != "small", short_side, chunk_seconds)
