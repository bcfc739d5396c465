"""One image file: decoded soundly or refused with a reason.

Pillow decodes rather than FFmpeg: it tells the size before it decodes, refuses a truncated JPEG
instead of filling in grey, and knows CMYK, palettes and orientation. Loading never needs it.
"""

from __future__ import annotations

import io
import warnings
from typing import Any

import numpy as np
from numpy.typing import NDArray

from matinee.errors import MediaError, first_line
from matinee.extras import require

MAX_SIDE = 4096
"""Largest width and height in pixels."""
MAX_BYTES = 64 << 20
"""Largest file."""
# Decoders for which the header alone gives the size. Every further format is code that files from
# strangers reach.
_FORMATS = ("JPEG", "PNG", "BMP")


def decode_image(data: bytes) -> Any:
    """Decode an image file to an upright RGB `PIL.Image.Image`.

    Grey, palette and CMYK become RGB; 16-bit grey keeps its upper 8 bits; transparency is dropped,
    as image classification does everywhere; EXIF orientation is applied. A JPEG that is damaged in
    its middle may pass: the format has no checksum.

    Raises:
        MediaError: not JPEG, PNG or BMP, over MAX_SIDE, truncated, damaged, or animated.
        MissingExtra: Pillow is not installed.
    """
    pil = require("PIL.Image", "train")
    turn = require("PIL.ImageOps", "train").exif_transpose
    if not data:
        raise MediaError("is empty (0 bytes)")
    try:
        with warnings.catch_warnings():
            # What Pillow warns of is either refused below or harmless (odd EXIF data).
            warnings.simplefilter("ignore")
            image = pil.open(io.BytesIO(data), formats=_FORMATS)
            _check_header(image)
            image.load()
            image = turn(image)
            if image.mode.startswith("I;16"):
                wide = np.asarray(image).astype(np.uint16)
                image = pil.fromarray((wide >> 8).astype(np.uint8))
            return image.convert("RGB")
    except MediaError:
        raise
    except pil.UnidentifiedImageError:
        raise MediaError(f"is no {', '.join(_FORMATS[:-1])} or {_FORMATS[-1]} image") from None
    except pil.DecompressionBombError:
        raise MediaError(f"is larger than {MAX_SIDE}x{MAX_SIDE} pixels") from None
    except Exception as error:  # Pillow's decoders raise all kinds on damaged files
        raise MediaError(f"is damaged: {first_line(error)}") from None


def _check_header(image: Any) -> None:
    width, height = image.size
    if not (1 <= width <= MAX_SIDE and 1 <= height <= MAX_SIDE):
        raise MediaError(f"has {width}x{height} pixels; the largest side read is {MAX_SIDE}")
    # MPO is how cameras store a JPEG with a preview beside it; its first picture is the image.
    if getattr(image, "n_frames", 1) > 1 and image.format != "MPO":
        raise MediaError(f"is animated, with {image.n_frames} pictures: pack it as a video")
    if image.mode in ("I", "F"):
        raise MediaError("has 32-bit pixels, whose white is unknown")


def square(image: Any, size: int) -> NDArray[np.uint8]:
    """The centre square of an RGB image at size × size, uint8 [size, size, 3].

    Resized bicubically with antialiasing; an image of that very size stays as it is.
    """
    bicubic = require("PIL.Image", "train").Resampling.BICUBIC
    fitted = require("PIL.ImageOps", "train").fit(image, (size, size), method=bicubic)
    return np.asarray(fitted, dtype=np.uint8)


def resize(picture: NDArray[np.uint8], size: tuple[int, int]) -> NDArray[np.uint8]:
    """An RGB picture, uint8 [H, W, 3], at another (height, width), bicubically."""
    pil = require("PIL.Image", "train")
    resized = pil.fromarray(picture).resize((size[1], size[0]), pil.Resampling.BICUBIC)
    return np.asarray(resized, dtype=np.uint8)
