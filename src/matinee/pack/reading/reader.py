"""Open a pack: which samples there are, and where the frames of any clip lie."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from matinee.errors import ClipError, MediaError, PackError
from matinee.media.decode import Box, Pixels, frame_bytes
from matinee.media.packets import VideoFormat
from matinee.pack.decoders import DECODERS, is_pixel_format
from matinee.pack.format import CHUNKS, CODECS, SAMPLE_TABLE, SAMPLES, part_name
from matinee.pack.reading.chunks import ChunkIndex
from matinee.pack.reading.clip import ClipPart, ClipReader, Located
from matinee.pack.reading.location import Files, open_place
from matinee.pack.reading.samples import Samples
from matinee.pack.reading.selection import SampleTable
from matinee.pack.reading.storage import CACHE_BYTES
from matinee.pack.reading.table_file import TableFile, give_back

_MAX_FORMATS = 1 << 16


@dataclass(frozen=True)
class SampleInfo:
    """One sample: a span of frames of a video, and what is said about it.

    The sample's frames are `first_frame` … `first_frame + num_frames - 1` of the video; `width`,
    `height` are the stored picture's, in pixels.
    """

    id: str
    video: str
    label: str | None
    text: str | None
    split: str | None
    first_frame: int
    num_frames: int
    fps: Fraction
    width: int
    height: int
    codec: int


class Pack(SampleTable):
    """A data set made by `matinee pack` or `matinee index`, in a folder, a bucket or on the web.

    `samples` answers as a pyarrow Table does (sample, video, start_s, end_s, split, label, text,
    …), `classes` are the labels in order, `formats` the decoder setups, `meta` the content of
    pack.json. Opening reads the tables: a million videos of one chunk and one sample each take
    about 90 MB of memory, and their texts lie in a mapped file, 42 MB here, that the system may
    drop. See Note [Remote packs].

    Args:
        path: a folder, or an address: s3://bucket/…, gs://bucket/…, http(s)://host/….
        cache: a folder that keeps what is read from a remote pack, for later epochs and runs; any
            number of processes and packs may share it.
        cache_bytes: how large it may become; the blocks that were not used for longest go first.

    Raises:
        ConfigError: an address or a cache that cannot be used.
        PackError: no such pack, unfinished, damaged, or made by a newer matinee.
        MissingExtra: packages that remote packs need are not installed.
    """

    def __init__(
        self,
        path: str | Path,
        *,
        cache: str | Path | None = None,
        cache_bytes: int = CACHE_BYTES,
    ) -> None:
        place = open_place(path, cache=cache, cache_bytes=cache_bytes)
        self.path = place.path
        self.meta = place.manifest()
        # First, and then held open: annotating the pack twice meanwhile removes its name.
        table = place.table(part_name(self.meta, SAMPLE_TABLE), SAMPLES)
        self.classes: tuple[str, ...] = tuple(self.meta["classes"])
        self.formats = _formats(place.table("codecs.parquet", CODECS))
        self._files: Files = place.files()
        self._chunks = ChunkIndex(
            place.table("chunks.parquet", CHUNKS), sizes=self._files.sizes,
            codecs=len(self.formats),
        )  # fmt: skip
        self.samples: Samples = Samples(table, self._chunks)
        give_back()
        self._place = place
        self._remote = place.seal()
        self._readers: ClipReader | None = None

    @property
    def num_videos(self) -> int:
        return len(self._chunks.videos)

    @property
    def num_chunks(self) -> int:
        return len(self._chunks)

    @property
    def num_frames(self) -> int:
        """Frames of all videos together."""
        return self._chunks.num_frames

    @property
    def seconds(self) -> float:
        """Length of all videos together, in seconds."""
        return self._chunks.seconds

    def digest(self) -> str:
        """Stands for the content of the manifest and the tables."""
        return self._place.digest()

    def info(self, index: int) -> SampleInfo:
        """Everything about sample `index` that planning a clip needs."""
        s, chunks = self.samples, self._chunks
        video = int(s.video[index])
        codec = chunks.codec(video)
        fmt = self.formats[codec]
        text = s.column("text")[index].as_py() if "text" in s.column_names else None
        return SampleInfo(
            id=s.ids[index].as_py(),
            video=chunks.videos[video],
            label=s.label[index],
            text=text,
            split=s.split[index],
            first_frame=int(s.first[index]),
            num_frames=int(s.count[index]),
            fps=chunks.rate(video),
            width=fmt.width,
            height=fmt.height,
            codec=codec,
        )

    def locate(self, video: str, frames: Sequence[int]) -> tuple[ClipPart, ...]:
        """Which chunks hold `frames` (numbered within the video; repeats allowed).

        Raises:
            PackError: no such video; an original file that is gone or changed.
            IndexError: a frame outside the video.
        """
        row = self._chunks.videos.row(video)
        if row < 0:
            raise PackError(f"{self.path} has no video {video!r}")
        return tuple(
            [
                ClipPart(self._located(chunk), inside, rows)
                for chunk, inside, rows in self._chunks.find(row, frames)
            ]
        )

    def _located(self, chunk: int) -> Located:
        c = self._chunks.columns
        file, table_file = int(c["file"][chunk]), int(c["table_file"][chunk])
        name = self._files[file]
        return Located(
            file=name,
            offset=int(c["offset"][chunk]),
            size=int(c["size"][chunk]),
            table_file=name if table_file == file else self._files[table_file],
            table_offset=int(c["table_offset"][chunk]),
            table_size=int(c["table_size"][chunk]),
            codec=int(c["codec"][chunk]),
            frames=int(c["frames"][chunk]),
            file_bytes=int(self._files.sizes[file]),
            table_file_bytes=int(self._files.sizes[table_file]),
            remote=self._remote,
        )

    def read(
        self,
        index: int,
        frames: Sequence[int],
        *,
        size: tuple[int, int] | None = None,
        box: Box | None = None,
        pixels: Pixels = "rgb",
    ) -> NDArray[np.uint8]:
        """Decode frames of one sample, for looking at data; `ClipLoader` is the fast way.

        Args:
            frames: numbers within the sample, 0 … num_frames - 1.
            size: (height, width) of the result; the stored size when None.

        Returns:
            uint8 [T, H, W, 3] for "rgb", [T, H * W * 3 / 2] for "i420".

        Raises:
            ClipError: the data is damaged or gone.
        """
        info = self.info(index)
        for frame in frames:
            if not 0 <= frame < info.num_frames:
                raise IndexError(f"frame {frame} is outside sample {info.id!r}: {info.num_frames}")
        size = size or (info.height, info.width)
        out = np.empty((len(frames), frame_bytes(size, pixels)), np.uint8)
        parts = self.locate(info.video, [info.first_frame + frame for frame in frames])
        if self._readers is None:
            self._readers = ClipReader(self.formats)
        try:
            self._readers.read(parts, out, box=box, size=size, pixels=pixels)
        except MediaError as error:
            raise ClipError(info.id, parts[0].chunk.file, str(error)) from None
        return out.reshape(len(frames), *size, 3) if pixels == "rgb" else out


def _formats(table: TableFile) -> tuple[VideoFormat, ...]:
    if table.num_rows > _MAX_FORMATS:
        raise PackError(f"{table.shown} is damaged: it has {table.num_rows} decoder setups")
    formats = []
    rows = pa.table({name: table.column(name) for name in CODECS.names}).to_pylist()
    for row in rows:
        if not (2 <= row["width"] <= 16384 and 2 <= row["height"] <= 16384):
            raise PackError(f"{table.shown}: impossible picture of {row['width']}x{row['height']}")
        if row["matrix"] not in ("bt601", "bt709"):
            raise PackError(f"{table.shown}: unknown colour matrix {row['matrix']!r}")
        if row["codec"] not in DECODERS:
            raise PackError(
                f"{table.shown}: {row['codec']!r} is no video codec that packs can hold"
            )
        if not is_pixel_format(row["pix_fmt"]):
            raise PackError(f"{table.shown}: unknown pixel format {row['pix_fmt']!r}")
        formats.append(VideoFormat(**row))
    return tuple(formats)
