"""From normalised frames to chunks: ordinary MP4 files of closed GOPs.

# Note [Same frames, same bytes]
A pack must not depend on when it was made. x264 gives the same bytes for the same number of
threads, with one exception found by measuring: x264 165 with AVX-512 and macroblock-tree rate
control, at widths that are no multiple of 128, gave other bytes (and pixels) from call to call.
Held to AVX2 it is reproducible, at the same size. So: one thread, and AVX2 where there is AVX-512.
"""

from __future__ import annotations

import io
from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction
from functools import cache
from pathlib import Path

import av

from matinee.errors import MediaError
from matinee.media.packets import PacketTable, VideoFormat, scan_packets

_COLORSPACE_TAG = {"bt601": 6, "bt709": 1}


@dataclass(frozen=True)
class EncoderSettings:
    """x264 settings of a chunk. `stride` is the spacing of reference frames, `gop` of keyframes.

    See Note [Temporal layers] in media/packets.py, and Note [Encodings] in pack/profiles.py.
    """

    stride: int
    gop: int
    crf: int
    preset: str
    fast_decode: bool

    def x264(self) -> dict[str, str]:
        """Options for libx264: closed GOPs of fixed length, every B-frame disposable."""
        layers = (
            f"keyint={self.gop}:min-keyint={self.gop}:scenecut=0:open-gop=0:"
            f"bframes={self.stride - 1}:b-adapt=0:b-pyramid=none:{reproducible()}"
        )
        options = {"preset": self.preset, "crf": str(self.crf)}
        if self.fast_decode:
            options["tune"] = "fastdecode"
            layers += ":ref=1"
        return {**options, "x264-params": layers}


@cache
def reproducible() -> str:
    """x264 parameters under which the same frames give the same bytes.

    See Note [Same frames, same bytes].
    """
    try:
        has_avx512 = "avx512f" in Path("/proc/cpuinfo").read_text()
    except OSError:
        has_avx512 = False
    return "threads=1:asm=avx2" if has_avx512 else "threads=1"


@dataclass(frozen=True)
class Chunk:
    """One encoded chunk: `data` is a whole MP4 file."""

    data: bytes
    table: PacketTable
    format: VideoFormat


def encode_chunks(
    frames: Iterator[av.VideoFrame],
    *,
    fps: Fraction,
    size: tuple[int, int],
    matrix: str,
    settings: EncoderSettings,
    frames_per_chunk: int,
) -> Iterator[Chunk]:
    """Encode frames into consecutive chunks of `frames_per_chunk` (the last may be shorter).

    Encoding uses one thread, so the same frames always give the same bytes.
    """
    encoder: ChunkEncoder | None = None
    for frame in frames:
        encoder = encoder or ChunkEncoder(fps=fps, size=size, matrix=matrix, settings=settings)
        encoder.add(frame)
        if encoder.count == frames_per_chunk:
            yield encoder.finish()
            encoder = None
    if encoder is not None:
        yield encoder.finish()


class ChunkEncoder:
    """Encodes one chunk: `add` its frames in order, then `finish` once.

    Frames must be limited-range yuv420p of `size` (width, height), their colours by `matrix`
    ("bt601" or "bt709"). `count` is the number of frames added.
    """

    def __init__(
        self, *, fps: Fraction, size: tuple[int, int], matrix: str, settings: EncoderSettings
    ) -> None:
        self.count = 0
        self._size, self._matrix = size, matrix
        self._buffer = io.BytesIO()
        self._file = av.open(self._buffer, "w", format="mp4")
        self._stream = self._file.add_stream("libx264", rate=fps, options=settings.x264())
        self._stream.width, self._stream.height = size
        self._stream.pix_fmt = "yuv420p"
        self._base = 1 / fps
        context = self._stream.codec_context
        context.time_base = self._base
        context.thread_count = 1
        context.colorspace = _COLORSPACE_TAG[matrix]
        context.color_range = 1

    def add(self, frame: av.VideoFrame) -> None:
        """Encode the next frame; its time stamp is set to its place in the chunk."""
        frame.pts, frame.time_base = self.count, self._base
        frame.pict_type = 0  # the encoder decides, not the source
        self._file.mux(self._stream.encode(frame))
        self.count += 1

    def finish(self) -> Chunk:
        """The chunk of all frames added.

        Raises:
            MediaError: the encoder lost or made up frames.
        """
        self._file.mux(self._stream.encode(None))
        self._file.close()
        data = self._buffer.getvalue()
        scan = scan_packets(data)
        if scan.table.num_frames != self.count:
            raise MediaError(f"encoder gave {scan.table.num_frames} frames for {self.count}")
        width, height = self._size
        fmt = VideoFormat(
            scan.codec, width, height, "yuv420p", scan.extradata, self._matrix, full_range=False
        )
        return Chunk(data, scan.table, fmt)
