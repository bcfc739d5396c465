"""From stored YCbCr to RGB."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

MATRICES = {1: "bt709", 5: "bt601", 6: "bt601"}
"""Names of FFmpeg's AVColorSpace numbers (ITU-T H.273 MatrixCoefficients)."""

# ITU-T H.273 MatrixCoefficients 5/6 and 1: (Kr, Kb).
_LUMA = {"bt601": (0.299, 0.114), "bt709": (0.2126, 0.0722)}


def ycbcr_to_rgb(matrix: str, full_range: bool) -> NDArray[np.float64]:
    """Affine map [3, 4] from stored YCbCr (0–255) to RGB (0–1).

    Source: ITU-R BT.601-7 §2.5, BT.709-6 §3; quantisation ITU-T H.273 §8.3.
    """
    kr, kb = _LUMA[matrix]
    kg = 1 - kr - kb
    rgb_of_ycc = np.array(
        [
            [1, 0, 2 * (1 - kr)],
            [1, -2 * kb * (1 - kb) / kg, -2 * kr * (1 - kr) / kg],
            [1, 2 * (1 - kb), 0],
        ]
    )
    luma, chroma, black = (255.0, 255.0, 0.0) if full_range else (219.0, 224.0, 16.0)
    scale = np.array([1 / luma, 1 / chroma, 1 / chroma])
    offset = np.array([-black / luma, -128 / chroma, -128 / chroma])
    return np.concatenate([rgb_of_ycc * scale, (rgb_of_ycc @ offset)[:, None]], axis=1)
