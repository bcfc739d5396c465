"""Which decoders a pack may name: FFmpeg has hundreds, some of which draw a picture of any bytes.

Imports no pyarrow: processes that index start fast.
"""

from __future__ import annotations

import av

# Those whose packets tell what they refer to (media/units), and codecs of cameras and editing in
# which every frame stands alone. Text art, game and still-image decoders are left out.
DECODERS = frozenset([
    "h264", "hevc", "vp8", "vp9", "av1", "libdav1d", "libaom-av1", "mpeg4", "mpeg2video",
    "mpeg1video", "aic", "amv", "apv", "asv1", "asv2", "avrn", "avrp", "avui", "cllc", "dnxhd",
    "dvvideo", "dxtory", "dxv", "ffvhuff", "fraps", "hap", "hq_hqa", "hqx", "huffyuv", "hymt",
    "jpeg2000", "jpegls", "lagarith", "loco", "m101", "magicyuv", "media100", "mjpeg", "mjpegb",
    "notchlc", "pixlet", "prores", "prores_raw", "r10k", "r210", "rawvideo", "sheervideo", "sp5x",
    "speedhq", "utvideo", "v210", "v210x", "v308", "v408", "v410", "vble", "vmix", "y41p", "ylc",
    "yuv4",
])  # fmt: skip


def is_pixel_format(name: str) -> bool:
    """Whether a picture in memory can have this format."""
    try:
        return bool(av.VideoFormat(name).components)  # those of accelerators have none
    except ValueError:
        return False
