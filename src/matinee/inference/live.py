"""Predictions on video as it comes: a causal temporal-shift network follows a file or a camera.

# Note [Live sampling]
A clip's frames are some way apart; the network must see live video at the same pace. Dense sampling
says the pace itself: every `stride`-th frame, as evaluation takes them of any file. Uniform
sampling spreads a clip's T frames over a whole sample, however long, and a stream has no end: the
samples that the run was trained on give the pace, their median length in seconds divided by T.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import av
import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from matinee.data.clips import View, plan_evaluation_clip
from matinee.data.device import after, color_change, to_video
from matinee.data.sampling import uniform_segments
from matinee.errors import ConfigError, MatineeError, MediaError, PackError
from matinee.inference.embed import autocast_of
from matinee.inference.load import LoadedRun, load_run
from matinee.media.color import ycbcr_to_rgb
from matinee.media.convert import Converter, frame_bytes
from matinee.media.packets import VideoFormat
from matinee.media.probe import Orientation, Probe, probe
from matinee.media.source import open_video, reason_of, video_stream
from matinee.models.config import Shift
from matinee.models.frames import FrameModel
from matinee.models.live import LiveModel
from matinee.pack.reading.reader import Pack, SampleInfo
from matinee.pack.writing.index_job import needs_normalising
from matinee.tasks.classification import ClassificationTask
from matinee.training.setup import choose_splits

_PATIENCE = 10.0  # seconds to wait for a device or an address
_SAMPLES = 1000  # of a pack, whose lengths give the pace


@dataclass(frozen=True)
class LiveFrame:
    """What is said after one frame.

    seconds: its time, from the first frame on. label, probability: of the mean of the last frames'
    logits, as many as a clip has. logits: float32 [K], of this frame alone. milliseconds: from the
    decoded frame to the prediction.
    """

    seconds: float
    label: str
    probability: float
    logits: NDArray[np.float32]
    milliseconds: float


@dataclass
class LiveVideo:
    """A stream being followed: iterate over it once. `every`: one frame in so many is taken, for
    the reason `why`; `interval` seconds apart if the stream says its rate. `damaged` frames did
    not arrive whole and were left out.
    """

    source: str
    every: int
    why: str
    interval: float | None
    frames: Iterator[LiveFrame]
    damaged: int = 0

    def __iter__(self) -> Iterator[LiveFrame]:
        return self.frames


def live(
    run: str | Path | LoadedRun, source: str, *, every: int | None = None, device: str = "auto"
) -> LiveVideo:
    """Follow a file, a camera (/dev/video0) or an address (rtsp://…) with a run.

    Frames are cropped, scaled and normalised as evaluation does it (one view, the centre). Damage
    in a file is an error; a frame that a camera or an address gives damaged is left out and
    counted.

    Args:
        every: take every n-th frame; as the run was trained when None. See Note [Live sampling].

    Raises:
        ConfigError: no such run, one whose network is not causal, no such source.
        MatineeError: the source is no video, or its frames would have to be normalised; while
            iterating: damage, with the time where it shows.
    """
    loaded = run if isinstance(run, LoadedRun) else load_run(run, device=device)
    model = _causal_network(loaded)
    if every is not None and every < 1:
        raise ConfigError(f"--every {every}: at least 1")
    try:
        container, whole = _open(source)
        try:
            stream = video_stream(container)
            rate = stream.average_rate or stream.guessed_rate
            if every is None:
                every, why = _pace(loaded, rate)
            else:
                why = "as asked"
        except BaseException:
            container.close()
            raise
    except MediaError as error:
        raise MatineeError(f"{source} {error}") from None
    video = LiveVideo(source, every, why, float(every / rate) if rate else None, iter(()))
    video.frames = _follow(video, loaded, model, container, stream, whole)
    return video


def summarise(frames: Sequence[LiveFrame]) -> dict[str, Any]:
    """frames, and mean_ms, p50_ms, p95_ms, max_ms of their latency (None without frames)."""
    names = ("mean_ms", "p50_ms", "p95_ms", "max_ms")
    spent = np.array([frame.milliseconds for frame in frames])
    if not len(spent):
        return {"frames": 0, **dict.fromkeys(names)}
    values = (spent.mean(), *np.percentile(spent, [50, 95, 100]))
    return {"frames": len(spent), **dict(zip(names, map(float, values), strict=True))}


def _causal_network(run: LoadedRun) -> FrameModel:
    if not isinstance(run.task, ClassificationTask):
        raise ConfigError(
            f"{run.folder.path} is a run of {run.task.kind}: live prediction needs a run of "
            "classification"
        )
    temporal, model = run.config.model.temporal, run.task.model
    causal = isinstance(temporal, Shift) and temporal.causal
    if not causal or not isinstance(model, FrameModel):
        raise ConfigError(
            f"{run.folder.path} cannot follow live video, since its network is not causal: train "
            "one with temporal shift from the past alone (model.temporal:shift "
            "--model.temporal.causal)"
        )
    return model


def _open(source: str) -> tuple[av.container.InputContainer, Probe | None]:
    """The container, and of a file what it really is."""
    path = Path(source)
    try:
        if "://" in source:
            return av.open(source, "r", timeout=_PATIENCE), None
        if path.is_char_device():
            return av.open(source, "r", format="v4l2", timeout=_PATIENCE), None
    except (av.FFmpegError, OSError, ValueError) as error:
        raise MediaError(f"cannot be opened as video: {reason_of(error)}") from None
    if not path.is_file():
        raise ConfigError(
            f"{source}: no such file or device; a stream has an address such as rtsp://host/path"
        )
    return open_video(path), probe(path)


def _pace(run: LoadedRun, rate: Fraction | None) -> tuple[int, str]:
    """One frame in how many, and why. See Note [Live sampling]."""
    clip, data = run.config.clip, run.config.data.path
    if clip.sampling == "dense" and clip.fps is None:
        return clip.stride, f"the run's --clip.stride {clip.stride}"
    ask = "say with --every N that every N-th frame is taken"
    if clip.fps is not None and rate is not None:
        every = max(1, round(rate / Fraction(str(clip.fps))))
        return every, f"the run's --clip.fps {clip.fps:g}, of {float(rate):g} frames a second"
    try:
        pack = Pack(data)
        rows = pack.select(choose_splits(pack, run.config).train)
    except (PackError, OSError) as error:
        raise ConfigError(
            f"the pace of uniform sampling follows from the samples trained on, and {error}: {ask}"
        ) from None
    if rate is None:
        raise ConfigError(f"the stream does not say its frame rate: {ask}")
    some = rows[np.unique(uniform_segments(len(rows), _SAMPLES))].tolist()
    infos = [pack.info(row) for row in some]
    seconds = float(np.median([info.num_frames / float(info.fps) for info in infos]))
    every = max(1, round(seconds / clip.frames * float(rate)))
    return every, (
        f"the run was trained on {clip.frames} frames of a sample, whose median length is "
        f"{seconds:.2f} s, and this stream has {float(rate):g} frames a second"
    )


def _follow(
    video: LiveVideo,
    run: LoadedRun,
    model: FrameModel,
    container: av.container.InputContainer,
    stream: av.VideoStream,
    whole: Probe | None,
) -> Iterator[LiveFrame]:
    with container:
        network = LiveModel(model.backbone)
        pixels: _Pixels | None = None
        start, number = None, 0
        for frame in _decode(video, container, stream, whole):
            if start is None:
                start = frame.time or 0.0
            number += 1
            if (number - 1) % video.every:
                continue
            begin = time.perf_counter()
            if pixels is None:
                pixels = _Pixels(run, video.source, frame, stream, whole)
                _warm_up(run, network)
                begin = time.perf_counter()  # making ready is no latency
            try:
                image_13HW = pixels(frame)
            except MediaError as error:
                raise MatineeError(f"{video.source} {error}") from None
            if image_13HW is None:
                continue
            with autocast_of(run)():
                logits = network.step(image_13HW).float()
                mean = network.average().float()
            assert isinstance(run.task, ClassificationTask)
            probabilities = run.task.probabilities(mean)[0].cpu()
            best = int(probabilities.argmax())
            spent = (time.perf_counter() - begin) * 1000
            yield LiveFrame(
                (frame.time or 0.0) - start, run.vocabulary.classes[best],
                float(probabilities[best]), logits[0].cpu().numpy(), spent,
            )  # fmt: skip


def _decode(
    video: LiveVideo,
    container: av.container.InputContainer,
    stream: av.VideoStream,
    whole: Probe | None,
) -> Iterator[av.VideoFrame]:
    """Whole frames in the order they are shown."""
    if whole is not None:
        stream.codec_context.options = {"err_detect": "explode"}
    last = 0.0
    try:
        for frame in container.decode(stream):
            if frame.is_corrupt and whole is None:
                video.damaged += 1
                continue
            if frame.is_corrupt:
                raise MediaError("a frame is not whole")
            yield frame
            last = frame.time or last
    except (av.FFmpegError, MediaError, EOFError, PermissionError, ValueError) as error:
        raise MatineeError(
            f"{video.source} is damaged or broke off after {last:.2f} s: {reason_of(error)}"
        ) from None


class _Pixels:
    """Decoded frames as evaluation's pixels, normalised, float32 [1, 3, H, W] on the device."""

    def __init__(
        self,
        run: LoadedRun,
        source: str,
        frame: av.VideoFrame,
        stream: av.VideoStream,
        whole: Probe | None,
    ) -> None:
        found = replace(whole or _look(frame, stream), constant=True)  # a pause does no harm here
        if needs := needs_normalising(found):
            raise MatineeError(
                f"{source} must be {needs} first, which live prediction cannot do: leave out "
                "--live, which normalises a file"
            )
        self._format = VideoFormat(
            stream.codec_context.name, found.width, found.height, found.pix_fmt, b"", found.matrix,
            found.full_range,
        )  # fmt: skip
        info = SampleInfo(
            id=source, video=source, label=None, text=None, split=None, first_frame=0, num_frames=1,
            fps=found.fps, width=found.width, height=found.height, codec=0,
        )  # fmt: skip
        spec = run.config.clip
        plan = plan_evaluation_clip(info, replace(spec, short="hold"), View())
        colours = after(
            ycbcr_to_rgb(self._format.matrix, self._format.full_range), color_change(plan.color)
        )
        self._box, self._size = plan.box, (spec.size, spec.size)
        self._affine = torch.from_numpy(colours.astype(np.float32))[None].to(run.device)
        self._run = run
        self._convert = Converter(self._format, self._box, self._size, "i420")
        self._before: Tensor | None = None

    def __call__(self, frame: av.VideoFrame) -> Tensor | None:
        """None for the first frame of a network that sees differences."""
        row = np.empty(frame_bytes(self._size), np.uint8)
        self._convert(frame, row)
        run = self._run
        i420 = torch.from_numpy(row)[None, None].to(run.device)
        video = to_video(
            i420, self._affine, None, size=self._size, mean=run.normalisation.mean,
            std=run.normalisation.std,
        )  # fmt: skip
        image = video[:, :, 0]
        if run.config.clip.modality == "rgb":
            return image
        before, self._before = self._before, image
        return None if before is None else image - before


def _look(frame: av.VideoFrame, stream: av.VideoStream) -> Probe:
    """What can be known of a stream from its first frame."""
    rate = stream.average_rate or stream.guessed_rate or Fraction(25)
    aspect = stream.sample_aspect_ratio
    return Probe(
        width=frame.width, height=frame.height, pix_fmt=frame.format.name,
        colorspace=int(frame.colorspace), color_range=int(frame.color_range), fps=Fraction(rate),
        packets=0, duration=0.0, constant=True, interlaced=bool(frame.interlaced_frame),
        one_frame_a_packet=False, pixel_aspect=Fraction(aspect) if aspect else Fraction(1),
        orientation=Orientation(),
    )  # fmt: skip


def _warm_up(run: LoadedRun, network: LiveModel) -> None:
    """The first step chooses kernels and fills caches: not what a frame costs."""
    size = run.config.clip.size
    with autocast_of(run)():
        network.step(torch.zeros(1, 3, size, size, device=run.device))
    network.reset()
