"""Choose a profile for the clips one trains with, on a sample of one's own videos.

# Note [Choosing a profile]
How many bytes a video needs depends on what it shows, by more than on the profile. One encode of a
few seconds scales the stored table; ratios between profiles still differ from footage to footage,
so the profile that the scaled table speaks for is encoded too, and its row corrected, until the
choice rests on a measured row. Time needs no such sample: what is decoded is counted exactly, and
only ratios matter.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from itertools import islice
from typing import TYPE_CHECKING, Any

from matinee.errors import ConfigError, MediaError
from matinee.media.encode import ChunkEncoder
from matinee.media.normalise import normalised_frames, target_size
from matinee.media.probe import Probe, probe
from matinee.media.source import Source
from matinee.pack.cost import ClipShape, Costs, Estimate, estimate, stored_costs
from matinee.pack.profiles import Profile, make_profile

if TYPE_CHECKING:
    import av

VIDEOS, SKIP_SECONDS, SAMPLE_SECONDS = 3, 4.0, 4.0
HELD_BYTES = 512 << 20  # of pictures in memory; more are decoded again for each encode
ROOM = 1.5  # without a budget: this many times the bytes of the smallest profile
CLOSE = 1.05  # of profiles that are this much slower than the fastest, the smallest is taken
_UNITS = {"b": 1, "kb": 1e3, "mb": 1e6, "gb": 1e9}


@dataclass(frozen=True)
class Budget:
    """An upper limit of bytes: of each frame, or of each minute of video."""

    text: str
    amount: float
    per: str  # "frame" or "min"

    def bytes_per_frame(self, fps: float) -> float:
        return self.amount if self.per == "frame" else self.amount / (60 * fps)


def parse_budget(text: str) -> Budget:
    """`3KB/frame` or `5MB/min`; KB and MB are 1,000 and 1,000,000 bytes.

    Raises:
        ConfigError: anything else.
    """
    found = re.fullmatch(r"(\d+(?:\.\d+)?) *([kmg]?b) */ *(frame|min)", text.strip().lower())
    if found is None or float(found[1]) == 0:
        raise ConfigError(
            f"--budget {text}: say bytes a frame or a minute, as 3KB/frame or 5MB/min"
        )
    return Budget(text, float(found[1]) * _UNITS[found[2]], found[3])


@dataclass(frozen=True)
class Row:
    """One profile of the table; `encoded`: its bytes were measured on the sample."""

    profile: Profile
    estimate: Estimate
    encoded: bool
    fits: bool

    def as_dict(self) -> dict[str, Any]:
        return {
            "profile": self.profile.name,
            "stride": self.profile.stride,
            "gop": self.profile.gop,
            "bytes_per_frame": round(self.estimate.bytes_per_frame, 1),
            "bytes": "measured on the sample" if self.encoded else "scaled table",
            "ms_per_clip": round(self.estimate.ms_per_clip, 3),
            "frames_decoded": round(self.estimate.fed.total, 2),
            "fits": self.fits,
        }


@dataclass(frozen=True)
class Choice:
    """The profile taken, why, and the table it was taken from (fastest first).

    `video_frames`: of the sampled videos, on average; a uniform clip spreads over so many.
    """

    profile: Profile
    reason: str
    rows: tuple[Row, ...]
    clip: ClipShape
    limit: float
    content: float
    sample: str
    video_frames: int

    @property
    def note(self) -> str | None:
        """Why the estimate may not hold."""
        if self.clip.span <= self.video_frames:
            return None
        return (
            f"{self.clip} clips span {self.clip.span} frames, the sampled videos have "
            f"{self.video_frames} on average: the table is of clips in longer videos"
        )

    def as_dict(self) -> dict[str, Any]:
        return {
            "clip": str(self.clip),
            "chosen": {
                "profile": self.profile.name,
                "stride": self.profile.stride,
                "gop": self.profile.gop,
            },
            "reason": self.reason,
            "limit_bytes_per_frame": round(self.limit, 1),
            "sample": self.sample,
            "frames_per_video": self.video_frames,
            "bytes_over_reference_footage": round(self.content, 4),
            "reference_machine": dict(stored_costs().machine),
            "table": [row.as_dict() for row in self.rows],
        }


@dataclass(frozen=True)
class Scene:
    """Some normalised frames of one video, which has `video_frames` in all."""

    frames: Collection[av.VideoFrame]
    fps: Fraction
    size: tuple[int, int]
    matrix: str
    video_frames: int


@dataclass(frozen=True)
class _Stretch:
    """Frames that are too large to hold, decoded each time anew."""

    path: Source
    probe: Probe
    size: tuple[int, int]
    skip: int
    count: int

    def __len__(self) -> int:
        return self.count

    def __contains__(self, frame: object) -> bool:
        return any(frame is own for own in self)

    def __iter__(self) -> Iterator[av.VideoFrame]:
        frames = normalised_frames(self.path, self.probe, self.size)
        return islice(frames, self.skip, self.skip + self.count)


def sample_scenes(
    sources: Sequence[Source],
    short_side: int,
    on_progress: Callable[[int, int], None] | None = None,
) -> list[Scene]:
    """A few seconds of each of a few videos, taken evenly from the list; bad ones are passed over.

    Raises:
        ConfigError: no video can be read.
    """
    count = min(VIDEOS, len(sources))
    scenes: list[Scene] = []
    first_reason = "there are no videos"
    for number in range(count):
        own = range(number * len(sources) // count, (number + 1) * len(sources) // count)
        for at in islice(own, 20):  # of its share of the list, the first that can be read
            try:
                scenes.append(_scene(sources[at], short_side))
                break
            except (MediaError, OSError) as error:
                first_reason = f"{sources[at]} {error}"
        if on_progress:
            on_progress(number + 1, count)
    if not scenes:
        raise ConfigError(f"--for-clip: no video could be sampled ({first_reason}): give --profile")
    return scenes


def _scene(path: Source, short_side: int) -> Scene:
    source = probe(path)
    size = target_size(source, short_side)
    frames = max(1, round(SAMPLE_SECONDS * source.fps))
    skip = min(round(SKIP_SECONDS * source.fps), max(0, source.packets - frames) // 2)
    stretch = _Stretch(path, source, size, skip, frames)
    room = HELD_BYTES // VIDEOS // (size[0] * size[1] * 3 // 2)  # frames
    held: list[av.VideoFrame] = []
    count = 0
    for frame in stretch:
        count += 1
        if count <= room:
            held.append(frame)
        else:
            held.clear()
    if not count:
        raise MediaError("no frame decodes")
    kept = held if count <= room else replace(stretch, count=count)
    length = max(count, round(source.duration * source.fps))
    return Scene(kept, source.fps, size, source.matrix, length)


def encoded_bytes(profile: Profile, scenes: Sequence[Scene]) -> float:
    """Bytes a frame of the scenes, each encoded as one chunk, as a pack stores it."""
    size = frames = 0
    for scene in scenes:
        encoder = ChunkEncoder(
            fps=scene.fps, size=scene.size, matrix=scene.matrix, settings=profile.encoder()
        )
        for frame in scene.frames:
            encoder.add(frame)
        chunk = encoder.finish()
        size += len(chunk.data) + len(chunk.table.to_bytes())
        frames += chunk.table.num_frames
    return size / frames


def candidates(
    costs: Costs,
    clip: ClipShape,
    *,
    crf: int,
    preset: str,
    short_side: int,
    chunk_seconds: float,
) -> list[Profile]:
    """Every profile whose cost was measured, and layers at the clip's own stride, or at the largest
    divisor of it that can be encoded.
    """
    structures = costs.structures()
    if clip.stride:
        own = max(n for n in range(1, 17) if clip.stride % n == 0)
        layered = [(at, gop) for name, at, gop in structures if name == "layered"]
        if all(at != own for at, _ in layered):
            per_gop = sorted({gop // at for at, gop in layered})
            more = [("layered", own, own * n) for n in per_gop]
            structures += [s for s in more if costs.bits_of(*s) is not None]
    return [
        make_profile(
            name, stride=stride, gop=gop, crf=crf, preset=preset, short_side=short_side,
            chunk_seconds=chunk_seconds,
        )
        for name, stride, gop in structures
    ]  # fmt: skip


def choose_profile(
    clip: ClipShape,
    scenes: Sequence[Scene],
    profiles: Sequence[Profile],
    *,
    budget: Budget | None = None,
    measure: Callable[[Profile, Sequence[Scene]], float] = encoded_bytes,
) -> Choice:
    """The profile that decodes such clips fastest within the budget. See Note [Choosing a profile].

    Without a budget: within `ROOM` times the bytes of the smallest. Of profiles about as fast
    (`CLOSE`), the smallest is taken.

    Raises:
        ConfigError: no profile is within the budget.
    """
    weights = [len(scene.frames) for scene in scenes]
    pixels = sum(w * s.size[0] * s.size[1] for w, s in zip(weights, scenes, strict=True))
    size = (pixels // sum(weights), 1)  # the mean picture: only its pixels count
    fps = sum(weights) / sum(w / float(s.fps) for w, s in zip(weights, scenes, strict=True))

    length = round(sum(scene.video_frames for scene in scenes) / len(scenes))

    def cost(profile: Profile, content: float) -> Estimate:
        return estimate(profile, clip, size, content=content, video_frames=length, lengths=weights)

    first = next(profile for profile in profiles if profile.name == "small")
    known = {first: measure(first, scenes)}
    content = known[first] / cost(first, 1.0).bytes_per_frame
    estimates = {profile: cost(profile, content) for profile in profiles}
    while True:
        for profile, size_there in known.items():
            estimates[profile] = replace(estimates[profile], bytes_per_frame=size_there)
        smallest = min(e.bytes_per_frame for e in estimates.values())
        limit = budget.bytes_per_frame(fps) if budget else ROOM * smallest
        fitting = [p for p, e in estimates.items() if e.bytes_per_frame <= limit]
        pick = (
            _fastest(fitting, estimates)
            if fitting
            else min(estimates, key=lambda p: estimates[p].bytes_per_frame)
        )
        if pick in known:
            break
        known[pick] = measure(pick, scenes)
    if not fitting:
        raise ConfigError(
            f"--budget {budget.text if budget else ''}: the smallest profile ({pick.name}) needs "
            f"{smallest / 1000:.2f} KB a frame of these videos, {limit / 1000:.2f} are allowed: "
            "raise --budget or --crf, or lower --short-side"
        )
    rows = sorted(
        (Row(p, e, p in known, p in fitting) for p, e in estimates.items()),
        key=lambda row: row.estimate.ms_per_clip,
    )
    allowed = f"--budget {budget.text}" if budget else f"{ROOM} times the smallest profile's bytes"
    chosen = estimates[pick]
    return Choice(
        pick,
        f"of {len(fitting)} within {limit / 1000:.2f} KB/frame ({allowed}) the smallest of those "
        f"that decode {clip} clips about fastest: {chosen.fed.total:.1f} frames decoded for "
        f"{clip.frames}, {chosen.bytes_per_frame / 1000:.2f} KB/frame",
        tuple(rows),
        clip,
        limit,
        content,
        f"{len(scenes)} videos, {sum(weights)} frames, {len(known)} encodes",
        length,
    )


def _fastest(fitting: Sequence[Profile], estimates: dict[Profile, Estimate]) -> Profile:
    best = min(estimates[p].ms_per_clip for p in fitting)
    close = [p for p in fitting if estimates[p].ms_per_clip <= CLOSE * best]
    return min(close, key=lambda p: (estimates[p].bytes_per_frame, estimates[p].ms_per_clip))
