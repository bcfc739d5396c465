"""What a packet's own headers say: may decoding start there, does anything refer to it.

Containers flag keyframes by their own lights, open GOPs and recovery points among them, and say
nothing of references; so each codec's headers are read. In doubt the answer is the safe one: not a
key, not disposable. Headers are hostile: all loops are bounded, nothing recurses.
"""

from __future__ import annotations

from matinee.media.units.av1 import AV1
from matinee.media.units.mpeg import MPEG2, MPEG4
from matinee.media.units.nal import H264, HEVC
from matinee.media.units.picture import Headers, Picture, settle
from matinee.media.units.vpx import VP8, VP9

__all__ = ["MPEG2", "MPEG4", "Picture", "headers_of", "settle"]

_READERS: dict[str, type[H264 | HEVC | VP8 | VP9 | AV1 | MPEG4 | MPEG2]] = {
    "h264": H264, "hevc": HEVC, "vp8": VP8, "vp9": VP9, "av1": AV1, "libdav1d": AV1,
    "libaom-av1": AV1, "mpeg4": MPEG4, "mpeg2video": MPEG2, "mpeg1video": MPEG2,
}  # fmt: skip


class _Intra:
    """A codec in which every frame stands alone."""

    def read(self, payload: bytes) -> Picture:
        return Picture(key=True)


def headers_of(codec: str, extradata: bytes, *, intra_only: bool) -> Headers | None:
    """The reader for a video in `codec` (FFmpeg's name of the decoder); None if there is none."""
    if intra_only:
        return _Intra()
    reader = _READERS.get(codec)
    return None if reader is None else reader(extradata)
