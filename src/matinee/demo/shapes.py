"""A small labelled set of long videos: captioned shapes that move, made to need time.

The classes come in pairs, and the two of a pair are each other played backwards. Shape, colour,
size, background, place, length and speed are drawn without looking at the class, so the frames
of a segment, taken as an unordered set, say which pair it is and nothing of which of the two:
a model that only averages over frames stays at one half. See Note [Only the order tells].
"""

import csv
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import accumulate, pairwise
from pathlib import Path

import av
import numpy as np
from numpy.typing import NDArray

from matinee.media.encode import reproducible

# Note [Only the order tells]
# The second class of a pair is the first with its frames in reverse; the motion is even, without
# easing or rest at either end. All else is drawn without looking at the class, so for each segment
# there is an equally likely one of the other class with exactly its frames, reversed. For the same
# reason no caption is drawn into the picture: a single frame would give the answer away.
PAIRS = (
    ("left_to_right", "right_to_left"),
    ("top_to_bottom", "bottom_to_top"),
    ("opening", "closing"),
    ("clockwise", "counter_clockwise"),
)
CLASSES = tuple(name for pair in PAIRS for name in pair)

_VERBS = {
    "left_to_right": "moves from left to right",
    "right_to_left": "moves from right to left",
    "top_to_bottom": "moves from top to bottom",
    "bottom_to_top": "moves from bottom to top",
    "opening": "opens from small to large",
    "closing": "closes from large to small",
    "clockwise": "circles clockwise",
    "counter_clockwise": "circles counter-clockwise",
}
_COLOURS = {
    "red": (230, 40, 40),
    "green": (50, 205, 60),
    "blue": (60, 90, 255),
    "yellow": (245, 225, 50),
    "pink": (250, 130, 200),
    "white": (245, 245, 245),
}
# Directions (degrees, y down) of the outward normals of each shape's sides; a circle has none.
_SIDES: dict[str, tuple[int, ...]] = {
    "circle": (),
    "triangle": (90, 210, 330),
    "square": (0, 90, 180, 270),
    "diamond": (45, 135, 225, 315),
}
SHAPES, COLOURS = tuple(_SIDES), tuple(_COLOURS)
_WAVES = 5  # plane waves summed into a background
_SECONDS = (2.0, 3.0)  # shortest and longest segment
_TURNS = 0.75  # how far round the classes that circle go


@dataclass(frozen=True)
class Segment:
    """One labelled sample before it is drawn. Lengths are fractions of the frame's shorter side,
    places are fractions of its width and height.
    """

    label: str
    frames: int
    shape: str
    colour: str
    radius: float
    centre: tuple[float, float]  # x, y: the middle of the path
    travel: float  # end to end along a line, or across the circle
    growth: float  # largest radius over smallest, for opening and closing
    heading: float  # radians: the middle of the arc, for circling
    background: NDArray[np.float32]  # [3], the mean colour, 0 … 255
    waves: NDArray[np.float32]  # [_WAVES, 6]: cycles across, cycles down, phase, then RGB weights

    @property
    def text(self) -> str:
        """The caption: `a red circle moves from left to right`."""
        return f"a {self.colour} {self.shape} {_VERBS[self.label]}"


def plan_segment(
    label: str,
    rng: np.random.Generator,
    *,
    fps: int,
    shape: str | None = None,
    colour: str | None = None,
) -> Segment:
    """Draw everything about a segment but its class (and its shape and colour, if given), the same
    way for every class.

    Raises:
        ValueError: a label that is not one of `CLASSES`.
    """
    if label not in CLASSES:
        raise ValueError(f"no class named {label!r}; the classes are {', '.join(CLASSES)}")
    shortest, longest = (round(seconds * fps) for seconds in _SECONDS)
    reach = np.array([4, 4, np.pi, 14, 14, 14])
    waves = rng.uniform(-reach, reach, (_WAVES, 6))
    frames = int(rng.integers(shortest, longest, endpoint=True))
    drawn = str(rng.choice(list(_SIDES))), str(rng.choice(list(_COLOURS)))
    return Segment(
        label=label,
        frames=frames,
        shape=shape or drawn[0],
        colour=colour or drawn[1],
        radius=rng.uniform(0.11, 0.18),
        centre=(rng.uniform(0.4, 0.6), rng.uniform(0.4, 0.6)),
        travel=rng.uniform(0.45, 0.65),
        growth=rng.uniform(3.0, 5.0),
        heading=rng.uniform(0, 2 * np.pi),
        background=rng.uniform(30, 130, 3).astype(np.float32),
        waves=waves.astype(np.float32),
    )


def render_segment(segment: Segment, *, size: tuple[int, int]) -> NDArray[np.uint8]:
    """Draw a segment at `size` (height, width): RGB, uint8, [T, H, W, 3]."""
    height, width = size
    y_HW, x_HW = np.mgrid[0:height, 0:width].astype(np.float32) + np.float32(0.5)
    background_HWC = _draw_background(segment, x_HW / width, y_HW / height)

    x_T, y_T, radius_T = _path(segment)
    dx_THW = x_HW - (x_T * width)[:, None, None]
    dy_THW = y_HW - (y_T * height)[:, None, None]
    distance_THW = _distance(segment.shape, dx_THW, dy_THW) - (radius_T * min(size))[:, None, None]
    cover_THW1 = np.clip(0.5 - distance_THW, 0, 1)[..., None]  # an edge one pixel wide

    colour_C = np.array(_COLOURS[segment.colour], np.float32)
    video_THWC = background_HWC + cover_THW1 * (colour_C - background_HWC)
    pixels_THWC: NDArray[np.uint8] = np.rint(video_THWC).astype(np.uint8)
    return pixels_THWC


def write_shapes(
    folder: Path,
    *,
    train_videos: int,
    test_videos: int,
    segments_per_video: int,
    seed: int = 0,
    size: tuple[int, int] = (96, 96),
    fps: int = 25,
    on_progress: Callable[[int, int], None] | None = None,
) -> Path:
    """Write `videos/train_000.mp4 …`, `videos/test_000.mp4 …` and `labels.csv` into `folder`.

    A video is `segments_per_video` segments of 2 to 3 s, cut hard, each with its own row in
    labels.csv: path (relative to `folder`), label, split, start and end (seconds, end excluded),
    text. Classes are as even within a video as their number allows. A video depends only on the
    seed, its split, its number and the settings here, and comes out the same bytes every time.

    Args:
        size: height, width in pixels; even, as 4:2:0 video asks.
        on_progress: called after each video with how many are written, and of how many.

    Returns:
        The path of labels.csv.

    Raises:
        ValueError: a count or rate below 1, or a size H.264 4:2:0 cannot hold.
    """
    if min(counts := (train_videos, test_videos, segments_per_video, fps)) < 1:
        raise ValueError(f"train, test videos, segments, fps are {counts}: give 1 or more of each")

    videos = [("train", i) for i in range(train_videos)] + [("test", i) for i in range(test_videos)]
    planned = (
        (split, f"{split}_{i:03d}", _plan_video(split, i, segments_per_video, seed=seed, fps=fps))
        for split, i in videos
    )
    return write_videos(folder, planned, len(videos), size=size, fps=fps, on_progress=on_progress)


def write_videos(
    folder: Path,
    videos: Iterable[tuple[str, str, list[Segment]]],
    count: int,
    *,
    size: tuple[int, int],
    fps: int,
    on_progress: Callable[[int, int], None] | None = None,
) -> Path:
    """Write `videos/NAME.mp4` for each of `count` (split, name, segments), and `labels.csv`.

    Raises:
        ValueError: a size H.264 4:2:0 cannot hold.
    """
    if min(size) < 16 or any(side % 2 for side in size):
        raise ValueError(f"size={size}: give an even height and width of 16 or more")
    (folder / "videos").mkdir(parents=True, exist_ok=True)
    labels = folder / "labels.csv"
    with labels.open("w", newline="", encoding="utf-8") as file:
        rows = csv.writer(file, lineterminator="\n")
        rows.writerow(["path", "label", "split", "start", "end", "text"])
        for done, (split, name, segments) in enumerate(videos, start=1):
            path = f"videos/{name}.mp4"
            _write_video(folder / path, segments, size=size, fps=fps)
            cuts = accumulate((segment.frames for segment in segments), initial=0)
            for segment, (first, end) in zip(segments, pairwise(cuts), strict=True):
                times = [first / fps, end / fps]
                rows.writerow([path, segment.label, split, *times, segment.text])
            if on_progress is not None:
                on_progress(done, count)
    return labels


def _plan_video(split: str, number: int, count: int, *, seed: int, fps: int) -> list[Segment]:
    """The segments of one video; each has its own generator, so none depends on another."""
    video = (seed, int(split == "test"), number)
    order = np.random.default_rng(video).permutation(count) % len(CLASSES)
    return [
        plan_segment(CLASSES[which], np.random.default_rng((*video, i)), fps=fps)
        for i, which in enumerate(order)
    ]


def _path(segment: Segment) -> tuple[NDArray[np.float32], ...]:
    """Where the shape is and how large: x, y, radius, each [T] in the fractions of `Segment`."""
    pair = next(pair for pair in PAIRS if segment.label in pair)
    step_T = np.linspace(-0.5, 0.5, segment.frames, dtype=np.float32)
    x_T, y_T = (np.full_like(step_T, place) for place in segment.centre)
    radius_T = np.full_like(step_T, segment.radius)
    match pair[0]:
        case "left_to_right":
            x_T += segment.travel * step_T
        case "top_to_bottom":
            y_T += segment.travel * step_T
        case "opening":
            radius_T *= segment.growth**step_T
        case "clockwise":  # as seen on the screen, where y points down
            angle_T = segment.heading + 2 * np.pi * _TURNS * step_T
            x_T += segment.travel / 2 * np.cos(angle_T)
            y_T += segment.travel / 2 * np.sin(angle_T)
    order = slice(None, None, -1 if segment.label == pair[1] else 1)
    return x_T[order], y_T[order], radius_T[order]


def _draw_background(
    segment: Segment, x_HW: NDArray[np.float32], y_HW: NDArray[np.float32]
) -> NDArray[np.float32]:
    """A soft texture, [H, W, 3] in 0 … 255: the mean colour plus a few plane waves."""
    across, down, phase = segment.waves[:, :3, None, None].swapaxes(0, 1)
    angle_NHW = 2 * np.pi * (across * x_HW + down * y_HW) + phase
    waves_HWC = np.einsum("nhw,nc->hwc", np.sin(angle_NHW), segment.waves[:, 3:])
    picture_HWC: NDArray[np.float32] = np.clip(segment.background + waves_HWC, 0, 255)
    return picture_HWC


def _distance(shape: str, dx: NDArray[np.float32], dy: NDArray[np.float32]) -> NDArray[np.float32]:
    """How far (dx, dy) lies from the shape's centre, in the measure whose unit ball it is."""
    if not _SIDES[shape]:
        return np.hypot(dx, dy)
    normals = np.radians(np.array(_SIDES[shape], np.float32))
    sides = [dx * np.cos(angle) + dy * np.sin(angle) for angle in normals]
    distance: NDArray[np.float32] = np.maximum.reduce(sides)
    return distance


def _write_video(path: Path, segments: list[Segment], *, size: tuple[int, int], fps: int) -> None:
    """Encode the segments one after the other into an H.264 MP4, much as ffmpeg would."""
    options = {"crf": "23", "preset": "veryfast", "x264-params": reproducible()}
    with av.open(str(path), "w") as container:
        stream = container.add_stream("libx264", rate=fps, options=options)
        stream.height, stream.width = size
        stream.pix_fmt = "yuv420p"
        for segment in segments:
            for image_HWC in render_segment(segment, size=size):
                frame = av.VideoFrame.from_ndarray(image_HWC, format="rgb24")
                container.mux(stream.encode(frame))
        container.mux(stream.encode())
