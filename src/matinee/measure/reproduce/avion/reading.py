"""Reading clips: chunks against whole files, cropping while decoding against afterwards."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from matinee.data.clips import ClipPlan
from matinee.measure.arms import Spread, Turns, take_turns
from matinee.measure.draw.figures import Bars, Series, Stacks
from matinee.measure.draw.plots import RUN
from matinee.measure.reproduce.avion.before import BeforeClips, crop, open_decord, scaled, to_float
from matinee.measure.reproduce.avion.footage import Footage, Video
from matinee.measure.reproduce.avion.options import Options
from matinee.measure.result import Part, Table
from matinee.media.decode import Box, Pixels, frame_bytes
from matinee.pack.reading.clip import ClipReader
from matinee.pack.reading.reader import Pack

CLIPS = 2
"""Read in a turn."""


class Decord:
    """Opens the file for each clip and reads its whole frames; keeps the ms of both."""

    def __init__(self, video: Video, plans: Sequence[ClipPlan], footage: Footage) -> None:
        info = footage.pack.info(0)
        self._clips = BeforeClips(video, plans, (info.width, info.height), 0, footage.frames)
        self._next = 0
        self.opening: list[float] = []
        self.reading: list[float] = []

    def __call__(self) -> float:
        """Milliseconds a clip of a turn."""
        spent = []
        for _ in range(CLIPS):
            begin = time.perf_counter()
            reader = open_decord(self._clips.video)
            opened = time.perf_counter()
            reader.get_batch(self._clips.frames(self._next % len(self._clips))).asnumpy()
            end = time.perf_counter()
            self._next += 1
            self.opening.append(1000 * (opened - begin))
            self.reading.append(1000 * (end - opened))
            spent.append(1000 * (end - begin))
        return sum(spent) / CLIPS


class Ours:
    """Reads clips of a pack, whole frames or cropped to `size`."""

    def __init__(
        self,
        pack: Pack,
        plans: Sequence[ClipPlan],
        picture: tuple[int, int],
        *,
        size: int | None,
        pixels: Pixels = "i420",
    ) -> None:
        self._pack, self._plans, self._picture = pack, plans, picture
        self._size, self._pixels = size, pixels
        self._reader = ClipReader(pack.formats)
        self._next = 0
        info = pack.info(0)
        self._video, self._whole = info.video, (info.width, info.height)
        shape = (self._whole[1], self._whole[0]) if size is None else (size, size)
        self._shape = shape
        self._out = np.empty((len(plans[0].frames), frame_bytes(shape, pixels)), np.uint8)

    def __call__(self) -> float:
        """Milliseconds a clip of a turn."""
        begin = time.perf_counter()
        for _ in range(CLIPS):
            self.read(self._next % len(self._plans))
            self._next += 1
        return 1000 * (time.perf_counter() - begin) / CLIPS

    def read(self, index: int) -> Any:
        """One clip: uint8 [T, bytes of a frame]."""
        plan = self._plans[index]
        box = None if self._size is None else self.box(plan)
        parts = self._pack.locate(self._video, plan.frames)
        self._reader.read(parts, self._out, box=box, size=self._shape, pixels=self._pixels)
        return self._out

    def box(self, plan: ClipPlan) -> Box:
        """The plan's in this file's picture, with even corners as decoding needs them."""
        left, top, right, bottom = (
            v // 2 * 2 for v in scaled(plan.box, self._picture, self._whole)
        )
        return Box(left, top, max(2, right - left), max(2, bottom - top))


class CropAfter(Ours):
    """Reads whole RGB frames, then crops and scales each with PIL, to float32."""

    def __init__(
        self, pack: Pack, plans: Sequence[ClipPlan], picture: tuple[int, int], size: int
    ) -> None:
        super().__init__(pack, plans, picture, size=None, pixels="rgb")
        self._side = size

    def read(self, index: int) -> Any:
        """float32 [3, T, size, size]."""
        frames = super().read(index).reshape(-1, *self._shape, 3)
        plan = self._plans[index]
        box = self.box(plan)
        corners = (box.x, box.y, box.x + box.width, box.y + box.height)
        return to_float(crop(frames, corners, self._side, flip=plan.flip))


def measure_chunks(
    options: Options, footage: Footage, plans: Sequence[ClipPlan], tell: Callable[[str], None]
) -> tuple[Part, dict[str, Any]]:
    """Opening and reading clips at random places of whole files and of chunks."""
    info = footage.pack.info(0)
    picture = (info.width, info.height)
    minutes = round(footage.long_chunk.times * options.scale.seconds / 60, 1)
    long, once = footage.long_original, footage.chunk
    files = {
        f"original as a whole, {minutes:g} min, {long.height} lines": long,
        f"shrunk as a whole, {minutes:g} min, {once.height} lines": footage.long_chunk,
        f"shrunk, one chunk, {options.scale.seconds} s": once,
    }
    decord = {name: Decord(video, plans, footage) for name, video in files.items()}
    chunk = "the same chunk, its packet table kept (matinee)"
    pack = "matinee's layered pack"
    ours = {
        chunk: Ours(footage.chunk_index, plans, picture, size=None, pixels="rgb"),
        pack: Ours(footage.pack, plans, picture, size=None, pixels="rgb"),
    }
    tell("chunked against whole-file reading")
    turns = take_turns({**decord, **ours}, options.scale.rounds)
    times = {
        name: (
            (Spread.of(decord[name].opening[CLIPS:]), Spread.of(decord[name].reading[CLIPS:]))
            if name in decord
            else (None, turns.spread(name))
        )
        for name in turns.values
    }  # fmt: skip
    slowest = next(iter(turns.values))
    table = Table(
        ("source", "opening, ms", "seeking and decoding, ms", "ms a clip", "faster by"),
        [
            (
                name, "none" if opening is None else shown(opening), shown(reading),
                shown(turns.spread(name)), f"{turns.ratio(slowest, name).median:.1f}×",
            )
            for name, (opening, reading) in times.items()
        ],
        heading=f"A clip of {options.frames} whole RGB frames at a random place, one thread",
        note="Medians with quartiles. The first three are decord, which opens the file for each "
        "clip, as it must when a data set has more files than can stay open. From a cache in "
        "memory: a disk adds its time.",
    )  # fmt: skip
    plot = Stacks(
        "Milliseconds a clip, opening and reading.", list(times),
        [
            {"opening": 0.0 if a is None else a.median, "seeking and decoding": b.median}
            for a, b in times.values()
        ],
        "ms a clip", {"opening": RUN[1], "seeking and decoding": RUN[0]}, form="{:,.0f}",
    )  # fmt: skip
    text = (
        "A long file is scanned when it is opened, and its keyframes are far from where a clip "
        "starts. AVION cuts videos into chunks of 15 s; matinee also keeps the table of packets, "
        "so that nothing is opened, and packs with layers, so that frames between are not decoded."
    )
    return Part("chunks", "Chunks against whole files", text, (table,), {"ms": plot}), {
        "ms_a_clip": _spreads(turns),
        "opening_ms": {n: a.to_dict() for n, (a, _) in times.items() if a is not None},
        "reading_ms": {n: b.to_dict() for n, (_, b) in times.items()},
        "minutes": minutes,
    }


def measure_fusion(
    options: Options, footage: Footage, plans: Sequence[ClipPlan], tell: Callable[[str], None]
) -> tuple[Part, dict[str, Any]]:
    """The same decoder with crops made afterwards by PIL, or while it decodes."""
    info = footage.pack.info(0)
    picture, size = (info.width, info.height), options.scale.size
    sources = {
        f"original, {footage.original.height} lines": footage.original_index,
        f"chunk, {footage.chunk.height} lines": footage.chunk_index,
        f"layered pack, {info.height} lines": footage.pack,
    }
    ways: dict[str, Callable[[Pack], Ours]] = {
        "decode, then crop": lambda pack: CropAfter(pack, plans, picture, size),
        "fused, RGB": lambda pack: Ours(pack, plans, picture, size=size, pixels="rgb"),
        "fused, I420": lambda pack: Ours(pack, plans, picture, size=size),
    }
    tell("decode-then-crop against fused")
    arms: dict[str, Callable[[], float]] = {
        f"{source}: {way}": make(pack) for source, pack in sources.items()
        for way, make in ways.items()
    }  # fmt: skip
    turns = take_turns(arms, 2 * options.scale.rounds)
    after, _, fused = ways
    table = Table(
        ("source", *(f"{way}, ms" for way in ways), "faster by"),
        [
            (
                source, *(shown(turns.spread(f"{source}: {way}")) for way in ways),
                f"{turns.ratio(f'{source}: {after}', f'{source}: {fused}').median:.2f}×",
            )
            for source in sources
        ],
        heading=f"A clip of {options.frames} frames to {size}², one thread",
        note="The decoder and its packets are the same in each row. First column: whole frames to "
        "RGB, PIL's crop and scale of each, float32. Last: 8-bit I420 at the final size.",
    )  # fmt: skip
    plot = Bars(
        "Milliseconds a clip.", list(sources), "ms a clip",
        [
            Series(
                way, [], [turns.spread(f"{s}: {way}").median for s in sources],
                [turns.spread(f"{s}: {way}").low for s in sources],
                [turns.spread(f"{s}: {way}").high for s in sources],
            )
            for way in ways
        ],
        form="{:,.0f}",
    )  # fmt: skip
    text = (
        "Cropping before colour conversion and scaling touches only pixels that are used. What is "
        "left is decoding itself, which fusion cannot shorten: the larger its share, the smaller "
        "the gain."
    )
    return Part("fusion", "Cropping while decoding", text, (table,), {"ms": plot}), {
        "ms_a_clip": _spreads(turns)
    }


def shown(spread: Spread) -> str:
    """The median with its quartiles, in figures that can be read."""
    low, median, high = (
        f"{value:,.0f}" if value >= 100 else f"{value:.3g}"
        for value in (spread.low, spread.median, spread.high)
    )
    return f"{median} ({low}–{high})"


def _spreads(turns: Turns) -> dict[str, dict[str, float]]:
    return {name: turns.spread(name).to_dict() for name in turns.values}
