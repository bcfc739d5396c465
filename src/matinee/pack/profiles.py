"""How packs are encoded: named settings, each a trade of bytes against decoding time.

# Note [Encodings]
Tried on real footage at equal PSNR (benchmarks/encoding_trials.py; 16x4 clips; against `layered`
where nothing else is said), and not taken: three references (1 to 2 % slower to decode, 10 to 20 %
to encode), CABAC (8 to 16 % fewer bytes, 60 to 95 % slower), deblocking (6 to 9 % fewer, 24 to 30 %
slower), whole-pixel motion vectors (30 to 70 % more bytes, no faster), no partitions (3 % faster,
13 to 21 % more bytes), preset slow (2 % fewer bytes, twice the encoding), HEVC (10 to 40 % fewer
bytes, about 3 times slower), AV1 and VP8 (4 to 6 times slower; nothing can be left out), B-frames
in a pyramid for `small` (3 to 6 % fewer bytes, about twice as slow). An H.264 pyramid with two
spacings at once (B-frames that only B-frames refer to): leaving those out leaves a gap in the frame
numbers, which the decoder conceals with a copied frame. FFmpeg's guess was right in a trial, but no
standard promises it. MPEG-2 and MJPEG for `intra` decode a third to a half faster at equal PSNR,
with up to 30 % more bytes, but lose faint texture, which PSNR hardly sees: at equal SSIM MPEG-2
needs three times the bytes and is no faster. MPEG-4 keyframes are no faster.
"""

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

    What each costs: pack/cost.py. Why these settings: Note [Encodings].
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
    gop: int | None = None,
    crf: int = 23,
    preset: str = "medium",
    short_side: int = 288,
    chunk_seconds: float = 15.0,
) -> Profile:
    """A profile by name.

    `stride` is the spacing of reference frames of the layered profile, `gop` that of keyframes
    (None: the profile's own), both in frames.

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
    if gop is not None and not 1 <= gop <= 1000:
        raise ConfigError(f"gop {gop}: 1 to 1000 frames between keyframes can be encoded")
    if name == "intra" and gop not in (None, 1):
        raise ConfigError(f"gop {gop}: the intra profile has keyframes alone")
    if gop is None:
        gop = {"small": 120, "layered": 8 * stride, "intra": 1}[name]
    spacing = {"small": 4, "layered": stride, "intra": 1}[name]
    return Profile(name, spacing, gop, crf, preset, name != "small", short_side, chunk_seconds)
