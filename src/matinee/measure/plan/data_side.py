"""What a run asks of processors, disks and networks: decoding, storage, bytes a second."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction

import numpy as np

from matinee.errors import ConfigError
from matinee.pack.cost import ClipShape, estimate, stored_costs
from matinee.pack.profiles import Profile, make_profile
from matinee.pack.reading.reader import Pack
from matinee.tasks.config import ClassificationConfig
from matinee.tasks.vocabulary import read_vocabulary
from matinee.training.config import TrainConfig
from matinee.training.setup import choose_splits


@dataclass(frozen=True)
class Footage:
    """Video that is trained on: `hours` of it at `fps`, `samples` clips an epoch; how it is stored
    (`profile`, `width` × `height`). `bytes_per_frame`: None where only the cost model knows it.
    `sample_frames`: frames of a sample, over which uniform clips spread; None: as many as the hours
    leave each, or 10 s. `source` says where that is from.
    """

    samples: int
    hours: float | None
    fps: float
    profile: Profile
    width: int
    height: int
    source: str
    bytes_per_frame: float | None = None
    sample_frames: float | None = None

    def __post_init__(self) -> None:
        if self.samples < 1:
            raise ConfigError(f"--samples {self.samples}: at least 1")
        if self.hours is not None and not 0 < self.hours < 1e9:
            raise ConfigError(f"--hours {self.hours}: a positive number")
        if not 0 < self.fps <= 1000:
            raise ConfigError(f"--fps {self.fps}: more than 0, at most 1000")


@dataclass(frozen=True)
class DataNeeds:
    """Of each clip: milliseconds of one core to decode it, bytes to read, bytes to send to the
    device. `stored`: bytes of the whole pack; None where its hours are not known. `machine`: whose
    core that is.
    """

    ms_per_clip: float
    bytes_per_clip: float
    sent_per_clip: float
    bytes_per_frame: float
    stored: float | None
    machine: str

    def cores(self, clips_per_second: float, read_ahead: float) -> float:
        """That decode so many clips a second, `read_ahead` of their time being the step's."""
        return clips_per_second * self.ms_per_clip / 1000 / read_ahead

    def clips_per_second(self, cores: float, read_ahead: float) -> float:
        return 1000 * cores * read_ahead / self.ms_per_clip


def data_needs(config: TrainConfig, footage: Footage) -> DataNeeds:
    """By the cost model of packs; see Note [Cost model] in pack/cost.py.

    The bytes of a clip are those of the frames from the keyframes before it to its last frame,
    which are read in one piece.

    Raises:
        ConfigError: a profile whose costs were not measured.
    """
    clip, data = config.clip, config.data
    stride = 0 if clip.sampling == "uniform" else clip.stride
    if stride and clip.fps is not None:
        stride = max(1, round(footage.fps / clip.fps))
    frames = clip.frames + (clip.modality == "difference")
    shape = ClipShape(frames, stride)
    length = 10 * footage.fps
    if footage.hours is not None:
        length = footage.hours * 3600 * footage.fps / footage.samples
    length = max(frames, round(footage.sample_frames or length))
    cost = estimate(
        footage.profile, shape, (footage.width, footage.height), video_frames=length
    )  # fmt: skip
    per_frame = footage.bytes_per_frame or cost.bytes_per_frame
    span = shape.span if stride else min(length, frames * footage.profile.gop)
    read = (span + footage.profile.gop / 2) * per_frame
    stored = None
    if footage.hours is not None:
        stored = footage.hours * 3600 * footage.fps * per_frame
    share = data.crops  # so many clips come of one that is read and decoded
    return DataNeeds(
        cost.ms_per_clip / share, read / share, 1.5 * frames * clip.size**2, per_frame, stored,
        str(stored_costs().machine["cpu"]),
    )  # fmt: skip


def typical_footage(
    samples: int, hours: float | None, *, fps: float, profile: str, height: int, stride: int
) -> Footage:
    """Footage that is not packed yet, as `matinee pack` would store pictures of 16:9."""
    made = make_profile(profile, stride=stride, short_side=height)
    width = 2 * round(height * 16 / 9 / 2)
    return Footage(samples, hours, fps, made, width, height, "as given; cost model of packs")


def packed_footage(config: TrainConfig) -> tuple[Footage, int]:
    """What lies in a pack, and the number of its classes (1 without labels).

    Raises:
        ConfigError: an image set, several packs, indexed files (whose decoding costs are not
            known), or no training split.
        PackError: there is no pack, or it is damaged.
    """
    pack = config.data.open()
    if not isinstance(pack, Pack):
        raise ConfigError(
            f"{config.data.path}: one pack of videos can be planned with; give --samples and "
            "--hours instead"
        )
    stored = pack.meta.get("profile")
    if stored is None:
        raise ConfigError(
            f"{config.data.path} indexes original files, whose decoding costs were not measured: "
            "plan with --samples, --hours and a --profile, or pack them"
        )
    rows = pack.select(choose_splits(pack, config).train)
    if not len(rows):
        raise ConfigError(f"{config.data.path}: no samples to train on")
    info = pack.info(int(rows[0]))
    profile = make_profile(
        str(stored["name"]), stride=int(stored["stride"]), gop=int(stored["gop"]),
        crf=int(stored["crf"]),
    )  # fmt: skip
    classes = 1
    if isinstance(config.task, ClassificationConfig):
        classes = max(1, len(read_vocabulary(pack.samples, config.task).classes))
    widths = sorted((fmt.width * fmt.height, fmt.width, fmt.height) for fmt in pack.formats)
    _, width, height = widths[len(widths) // 2]
    frames = float(np.mean(pack.samples.count[rows]))
    fps = float(Fraction(info.fps))
    return Footage(
        len(rows), pack.seconds / 3600, fps, profile, width, height,
        f"{config.data.path}, its training split", pack.meta["report"]["bytes"] / pack.num_frames,
        frames,
    ), classes  # fmt: skip
