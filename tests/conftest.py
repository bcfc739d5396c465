"""Shared fixtures: short films written by a visible encoder call, and their sequential decoding."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from fractions import Fraction
from pathlib import Path

import av
import numpy as np
import pytest
from hypothesis import settings
from numpy.typing import NDArray

# Tensors of tests are small, and threads of torch's operations wait for each other actively: where
# others want the cores too, tests would take a hundred times as long.
os.environ.setdefault("OMP_NUM_THREADS", "1")

# Time belongs to benchmarks: on a busy machine an example may take long.
settings.register_profile("matinee", deadline=None)
settings.load_profile("matinee")

Film = Callable[..., Path]


@pytest.fixture(autouse=True)
def _ordinary_priority():
    """SVT-AV1's encoder makes the process of a root user a real-time one (SCHED_FIFO 99), for good
    and with all that it starts: ranks that wait for each other would then hold every core.
    """
    yield
    if os.sched_getscheduler(0) != os.SCHED_OTHER:
        os.sched_setscheduler(0, os.SCHED_OTHER, os.sched_param(0))


def pictures(count: int, width: int, height: int, *, seed: int = 0, scene: int = 23):
    """RGB [H, W, 3] pictures: a textured background that pans, cut to another every `scene`."""
    for number in range(count):
        rng = np.random.default_rng((seed, number // scene))
        coarse = rng.integers(0, 256, (height // 8 + 2, width // 8 + 2, 3), dtype=np.uint8)
        texture = coarse.repeat(8, 0).repeat(8, 1)
        picture = np.roll(texture, (number, 2 * number), (0, 1))[:height, :width].copy()
        x, y = 3 * number % (width - 8), number % (height - 8)
        picture[y : y + 8, x : x + 8] = (number * 5 % 256, 255 - number % 256, 128)
        yield picture


@pytest.fixture(scope="session")
def film() -> Film:
    """`film(path, frames=…, size=(width, height), codec=…, options=…)` encodes and returns path.

    `pictures`: RGB arrays instead of the standard ones; `times`: presentation time of each, in
    units of `time_base`; `stream`: attributes set on the encoder, such as color_range.
    """

    def write(
        path: Path,
        *,
        frames: int = 48,
        size: tuple[int, int] = (96, 64),
        fps: int | Fraction = 25,
        codec: str = "libx264",
        pix_fmt: str = "yuv420p",
        options: dict[str, str] | None = None,
        container: dict[str, str] | None = None,
        content: Iterable[NDArray[np.uint8]] | None = None,
        times: Sequence[int] | None = None,
        time_base: Fraction | None = None,
        stream: dict[str, object] | None = None,
        rotation: Callable[[av.VideoStream], None] | None = None,
        seed: int = 0,
    ) -> Path:
        path.parent.mkdir(parents=True, exist_ok=True)
        options = {"preset": "veryfast"} if options is None and codec == "libx264" else options
        with av.open(str(path), "w", options=container or {}) as file:
            out = file.add_stream(codec, rate=Fraction(fps), options=options or {})
            out.width, out.height, out.pix_fmt = *size, pix_fmt
            out.codec_context.thread_count = 1
            if time_base is not None:
                out.codec_context.time_base = time_base
            for name, value in (stream or {}).items():
                setattr(out.codec_context, name, value)
            base = time_base or 1 / Fraction(fps)
            for number, picture in enumerate(content or pictures(frames, *size, seed=seed)):
                frame = av.VideoFrame.from_ndarray(np.ascontiguousarray(picture), format="rgb24")
                context = out.codec_context
                frame = frame.reformat(
                    format=pix_fmt,
                    dst_colorspace=int(context.colorspace) if context.colorspace in (1, 5) else 5,
                    dst_color_range=2 if context.color_range == 2 else 1,
                )
                frame.pts = number if times is None else times[number]
                frame.time_base = base
                file.mux(out.encode(frame))
            file.mux(out.encode(None))
        return path

    return write


@pytest.fixture(scope="session")
def sequential() -> Callable[[Path], list[NDArray[np.uint8]]]:
    """`sequential(path or file object)`: every frame, decoded in order by PyAV, as flat I420."""

    def read(path) -> list[NDArray[np.uint8]]:
        with av.open(str(path) if isinstance(path, Path) else path) as file:
            return [f.to_ndarray(format="yuv420p").reshape(-1) for f in file.decode(video=0)]

    return read


@pytest.fixture(scope="session")
def real_data() -> Path:
    """A folder of third-party test data: $MATINEE_DATA, or ../shared/data beside the checkout."""
    beside = Path(__file__).resolve().parents[2] / "shared" / "data"
    folder = Path(os.environ.get("MATINEE_DATA", beside))
    if not folder.is_dir():
        pytest.skip(f"no real data at {folder}: set MATINEE_DATA")
    return folder


@pytest.fixture(scope="session")
def clips_pack(film: Film, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A pack of two classes, nine short films each, of two picture sizes; three each held out."""
    from matinee.pack.annotations import read_class_folders
    from matinee.pack.profiles import make_profile
    from matinee.pack.writing.writer import write_pack

    root = tmp_path_factory.mktemp("clips")
    for number, label in enumerate(("left", "right")):
        for i in range(9):
            film(
                root / "films" / label / f"{i}.mp4",
                frames=30 + 5 * i,
                size=(64, 48) if i % 2 else (80, 64),
                content=bars(30 + 5 * i, (64, 48) if i % 2 else (80, 64), number),
            )
    annotations = read_class_folders(root / "films", val_fraction=1 / 3)
    write_pack(root / "clips.pack", annotations, make_profile("layered", crf=20), workers=2)
    return root / "clips.pack"


def bars(count: int, size: tuple[int, int], direction: int):
    """A bright bar on grey that goes right (0) or left (1)."""
    width, height = size
    for number in range(count):
        picture = np.full((height, width, 3), 90, np.uint8)
        place = int(number / count * (width - 8))
        x = width - 8 - place if direction else place
        picture[:, x : x + 8] = (240, 200, 40)
        yield picture
