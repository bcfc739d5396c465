"""What a file shows, found without matinee: PyAV decodes it in order, NumPy turns it upright.

A packed or indexed video is compared with that: number of frames, order, time, orientation,
aspect and colours.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path

import av
import numpy as np
from av.video.reformatter import VideoReformatter
from numpy.typing import NDArray

from matinee.errors import PackError
from matinee.pack.annotations import Annotations, Sample, VideoFile
from matinee.pack.profiles import make_profile
from matinee.pack.reading.reader import Pack, SampleInfo
from matinee.pack.writing.index import index_videos
from matinee.pack.writing.writer import write_pack

SHORT_SIDE = 64
# Nearly lossless: what differs then is wrong, not compressed.
NEAR_LOSSLESS = make_profile("layered", crf=1, preset="ultrafast", short_side=SHORT_SIDE)
LUMA, CHROMA = 40.0, 25.0  # dB between a packed frame and the original, at least


@dataclass(frozen=True)
class Shown:
    """A file as it is to be seen: frames as decoded, `times` in seconds from the first."""

    frames: tuple[NDArray[np.uint8], ...]  # upright, square pixels, flat I420 of an even size
    times: tuple[float, ...]
    size: tuple[float, float]  # (height, width) that the shape of the picture asks for
    tick: float  # seconds to which the container rounds times
    matrix: str  # "bt601" or "bt709", as tagged, else by height


def annotate(*paths: Path) -> Annotations:
    """Each file a video and a sample of one class."""
    videos = tuple(VideoFile(path.name, path) for path in paths)
    samples = tuple(Sample(v.id, v.id, label="a", split="train") for v in videos)
    return Annotations(videos, samples)


def packed(out: Path, *paths: Path) -> Pack:
    """A nearly lossless pack of the files, one sample each."""
    write_pack(out, annotate(*paths), NEAR_LOSSLESS, workers=1)
    return Pack(out)


@dataclass(frozen=True)
class Lot:
    """Many files packed together and indexed together, one of them sound (workers start once)."""

    paths: dict[str, Path]
    pack: Pack
    index: Pack
    refused: dict[str, str]  # name → why it is not packed
    not_indexed: dict[str, str]

    def check(self, name: str, *, luma: float = LUMA) -> SampleInfo:
        """Compare every packed frame of a file."""
        assert name not in self.refused, f"{name} {self.refused[name]}"
        row = _row(self.pack, name)
        check_packed(self.pack, row, self.paths[name], luma=luma)
        return self.pack.info(row)

    def check_index(self, name: str) -> str:
        """Compare frames of an indexed file; "", or why it is not indexed."""
        if name in self.not_indexed:
            return self.not_indexed[name]
        check_indexed(self.index, _row(self.index, name), self.paths[name])
        return ""

    def frames(self, name: str) -> NDArray[np.uint8]:
        """All packed frames of a file, [T, I420 bytes]."""
        row = _row(self.pack, name)
        return self.pack.read(row, range(self.pack.info(row).num_frames), pixels="i420")


def _row(pack: Pack, name: str) -> int:
    return pack.samples.column("sample").to_pylist().index(name)


def make_lot(out: Path, paths: Sequence[Path]) -> Lot:
    """Pack and index files, of which at least one is sound."""
    written = write_pack(out / "pack", annotate(*paths), NEAR_LOSSLESS, workers=1)
    listed = index_videos(out / "index", annotate(*paths))
    return Lot(
        {path.name: path for path in paths},
        Pack(out / "pack"),
        Pack(out / "index"),
        {Path(failure.path).name: failure.reason for failure in written.refused},
        {Path(failure.path).name: failure.reason for failure in listed.refused},
    )


def pack_and_compare(path: Path, out: Path) -> Pack:
    """Pack one file, and compare every frame."""
    pack = packed(out, path)
    check_packed(pack, 0, path)
    return pack


def refusal(path: Path, out: Path) -> str:
    """Why `pack` refuses a file; fails if it does not."""
    return _refusal(path, lambda: write_pack(out, annotate(path), NEAR_LOSSLESS, workers=1))


def index_refusal(path: Path, out: Path) -> str:
    """Why `index` refuses a file; fails if it does not."""
    return _refusal(path, lambda: index_videos(out, annotate(path)))


def _refusal(path: Path, make) -> str:
    try:
        report = make()
    except PackError as error:
        reason = str(error).partition(str(path))[2].strip()
        assert reason, str(error)
        return reason
    raise AssertionError(f"{path.name} was taken: {report}")


def index_and_compare(path: Path, out: Path) -> str:
    """Index a file and compare frames at random with sequential decoding.

    Returns "", or the reason where indexing refuses the file; wrong frames fail.
    """
    try:
        index_videos(out, annotate(path))
    except PackError as error:
        assert str(path) in str(error)
        return str(error).partition(str(path))[2].strip()
    check_indexed(Pack(out), 0, path)
    return ""


def check_indexed(pack: Pack, index: int, path: Path, *, frames: int = 24) -> None:
    """Frames of an indexed file, in random order, are those that sequential decoding gives."""
    info = pack.info(index)
    fmt = pack.formats[info.codec]
    size = (even(info.height), even(info.width))
    shown = seen(path, size, full=fmt.full_range, interpolation="BILINEAR")
    assert fmt.matrix == shown.matrix
    assert info.num_frames == len(shown.frames), f"{info.video}: {info.num_frames} frames"
    on_screen(shown, float(info.fps), info.num_frames)
    rng = np.random.default_rng(0)
    for frame in rng.permutation(info.num_frames)[:frames].tolist():
        clip = pack.read(index, [frame], size=size, pixels="i420")
        # Of odd sides a line is scaled away, by a filter of matinee's own.
        least = (LUMA, CHROMA) if size == (info.height, info.width) else (28.0, 18.0)
        check_frame(clip[0], shown, frame, f"{info.video} frame {frame}", *least)


def check_packed(pack: Pack, index: int, path: Path, *, luma: float = LUMA) -> None:
    """Every frame of sample `index` is what the file shows at its time."""
    info = pack.info(index)
    fmt = pack.formats[info.codec]
    shown = seen(path, (info.height, info.width))
    height, width = shown.size
    assert abs(info.height - height) <= 1 and abs(info.width - width) <= 1, (
        f"{info.video}: packed as {info.width}x{info.height}, shown as {width}x{height}"
    )
    assert (fmt.matrix, fmt.full_range) == (shown.matrix, False)
    for frame, original in enumerate(on_screen(shown, float(info.fps), info.num_frames)):
        if frame % 50 == 0:  # a few at a time: videos may be long
            some = range(frame, min(frame + 50, info.num_frames))
            clip = pack.read(index, list(some), pixels="i420")
        at = f"{info.video} frame {frame}"
        check_frame(clip[frame % 50], shown, original, at, luma)


def check_frame(
    picture: NDArray[np.uint8],
    shown: Shown,
    original: int,
    at: str,
    luma: float = LUMA,
    chroma: float = CHROMA,
) -> None:
    """`picture` is frame `original`, and no neighbour that looks otherwise is nearer to it."""
    here, pixels = shown.frames[original], len(picture) * 2 // 3
    bright = psnr(picture[:pixels], here[:pixels])
    colour = psnr(picture[pixels:], here[pixels:])
    assert bright >= luma, f"{at} (original {original}): luma {bright:.1f} dB"
    assert colour >= chroma, f"{at} (original {original}): chroma {colour:.1f} dB"
    mine = psnr(picture, here)
    for other in (original - 1, original + 1):
        if 0 <= other < len(shown.frames):
            its = psnr(picture, shown.frames[other])
            assert its <= mine + 0.5 or its > 45, f"{at}: {mine:.1f} dB, as {other} {its:.1f} dB"


def on_screen(shown: Shown, fps: float, count: int) -> list[int]:
    """Which decoded frame is on screen at each of `count` times n / fps.

    As many as decoded: each is shown once, within half a frame of its time. Otherwise frames are
    held until the next.
    """
    times = np.array(shown.times)
    if count == len(times):
        late = np.abs(times - np.arange(count) / fps).max(initial=0)
        assert late <= 0.5 / fps + 2 * shown.tick, f"a frame comes {late:.3f} s off its time"
        return list(range(count))
    starts = np.floor(times * fps + 0.5 + 1e-6).astype(int)
    last = starts[-1]
    assert last < count <= last + 1 + fps, f"{count} frames, the last begins at {last}"
    return [int(np.flatnonzero(starts <= n)[-1]) for n in range(count)]


def seen(
    path: Path,
    size: tuple[int, int],
    *,
    full: bool = False,
    interpolation: str = "BICUBIC",
) -> Shown:
    """Decode in order and normalise by definition: shrink, mirror and turn by the display matrix.

    `size`: even (height, width) of the upright frames; `full`: their luma spans 0–255.
    """
    frames: list[NDArray[np.uint8]] = []
    times: list[float | None] = []
    with av.open(str(path)) as file:
        stream = next(
            s for s in file.streams.video
            if not s.disposition & av.stream.Disposition.attached_pic
        )  # fmt: skip
        stream.codec_context.thread_count = 1
        rate = stream.average_rate or stream.guessed_rate or Fraction(25)
        aspect = Fraction(stream.sample_aspect_ratio or 1) or Fraction(1)
        tick = float(stream.time_base or 0)
        no_times = file.format.name == "avi" and stream.codec_context.has_b_frames
        for frame in file.decode(stream):
            turn = _turn(frame)
            width, height = frame.width * max(aspect, 1), frame.height / min(aspect, 1)
            shrink = min(Fraction(1), Fraction(SHORT_SIDE) / min(width, height))
            exact = float(height * shrink), float(width * shrink)
            matrix = {1: "bt709", 5: "bt601", 6: "bt601"}.get(
                int(frame.colorspace), "bt709" if frame.height >= 720 else "bt601"
            )
            goal = size if turn[0] else size[::-1]
            planes = _planes(frame, goal, matrix, full, interpolation)
            frames.append(np.concatenate([_apply(turn, plane).reshape(-1) for plane in planes]))
            times.append(None if no_times else frame.time)
    known = [t for t in times if t is not None]
    if len(known) != len(times):
        known = [n / float(rate) for n in range(len(times))]
    upright = exact if turn[0] else exact[::-1]
    return Shown(tuple(frames), tuple(t - known[0] for t in known), upright, tick, matrix)


def even(side: float) -> int:
    """The nearest even number below, 2 at least."""
    return max(2, int(side) // 2 * 2)


def _planes(
    frame: av.VideoFrame, size: tuple[int, int], matrix: str, full: bool, interpolation: str
) -> list[NDArray[np.uint8]]:
    """Y, U, V of 4:2:0 at `size` by the file's own tags."""
    is_full = int(frame.color_range) == 2 or frame.format.name.startswith("yuvj")
    stored = {"bt709": 1, "bt601": 5}[matrix]
    small = VideoReformatter().reformat(
        frame, width=size[1], height=size[0], format="yuv420p", interpolation=interpolation,
        src_colorspace=9 if int(frame.colorspace) in (9, 10) else stored, dst_colorspace=stored,
        src_color_range=2 if is_full else 1, dst_color_range=2 if full else 1,
    )  # fmt: skip
    flat = small.to_ndarray().reshape(-1)
    luma, chroma = size[0] * size[1], size[0] * size[1] // 4
    half = (size[0] // 2, size[1] // 2)
    return [
        flat[:luma].reshape(size),
        flat[luma : luma + chroma].reshape(half),
        flat[luma + chroma :].reshape(half),
    ]


def _turn(frame: av.VideoFrame) -> tuple[int, int, int, int]:
    """Display matrix (ISO/IEC 14496-12 §8.5.2): shown = (a·x + c·y, b·x + d·y), as -1, 0 or 1."""
    try:
        matrix = frame.side_data.get("DISPLAYMATRIX")
    except ValueError:  # other side data that PyAV does not know
        angle = np.deg2rad(-frame.rotation)
        a, b = round(np.cos(angle)), round(np.sin(angle))
        return a, b, -b, a
    if matrix is None or not any(bytes(matrix)[:20]):
        return 1, 0, 0, 1
    a, b, _, c, d = np.sign(np.frombuffer(bytes(matrix), "<i4")[:5]).tolist()
    return a, b, c, d


def _apply(turn: tuple[int, int, int, int], plane: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Put every pixel where the matrix says."""
    a, b, c, d = turn
    y, x = np.indices(plane.shape)
    to_x, to_y = a * x + c * y, b * x + d * y
    to_x, to_y = to_x - to_x.min(), to_y - to_y.min()
    out = np.empty((to_y.max() + 1, to_x.max() + 1), np.uint8)
    out[to_y, to_x] = plane
    return out


def psnr(a: NDArray[np.uint8], b: NDArray[np.uint8]) -> float:
    """Peak signal to noise, in dB; 99 for equal pictures."""
    error = np.square(a.astype(np.float64) - b).mean()
    return 99.0 if error < 1e-5 else float(10 * np.log10(255**2 / error))
