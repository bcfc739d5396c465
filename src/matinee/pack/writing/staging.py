"""The folder in which a pack grows: finished parts, who is at work on them, and what they are of.

# Note [Parts]
A part is a video, or a segment of a long one: `NAME.tar` with the members that go into a shard, and
then, durably, `NAME.json` that describes them, or says why there are none ("refused"). Only with
its JSON does a part count. It names the size and time of the source it was made from, so whoever
continues takes what is still true. Names tell the place (`000012`, `000012-000007200`), so any
number of workers, runs and machines can fill the folder, in any order. The folder of parts is named
for what the pack is made from: a worker that outlived its run finds no place in another's staging.

A video that is not cut into segments may take hours in one job. So beside the tar that is being
written lies a list of its chunks, each with a checksum instead of a flush to disk. If the job is
stopped, the next run begins its tar with the chunks that are sound, and encodes the others only.
"""

from __future__ import annotations

import base64
import errno
import fcntl
import hashlib
import json
import os
import re
import secrets
import socket
import tarfile
import zlib
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any, BinaryIO

from matinee.errors import MediaError, PackError
from matinee.files import write_whole
from matinee.media.encode import Chunk
from matinee.media.source import (
    FrameFolder,
    Source,
    check_readable,
    list_frames,
    open_bytes,
    size_of,
)

_SAMPLE = 16 * 1024  # bytes at the beginning, middle and end by which a source is told from another


def note_job(staging: Path, digest: str, shares: int | None) -> Path:
    """Note that a pack of `digest` is made here, in so many `shares`; returns the folder of parts.

    Raises:
        PackError: it is made in another number of shares already.
    """
    with (staging / "job.lock").open("wb") as file:
        fcntl.flock(file, fcntl.LOCK_EX)  # shares may begin at the same moment
        job, noted = staging / "job.json", None
        if job.exists():
            noted = json.loads(job.read_bytes())["shares"]
            if noted and shares and noted != shares:
                raise PackError(
                    f"{staging.parent} is being packed in {noted} shares, not {shares}: give "
                    f"--shard i/{noted}, or run the command without --shard"
                )
        if not job.exists() or (shares and not noted):
            write_whole(job, json.dumps({"digest": digest, "shares": shares}).encode())
    parts = staging / digest[:16]
    parts.mkdir(exist_ok=True)
    return parts


def staged_name(number: int, start: int | None = None) -> str:
    """The name of a video's part, or of that of the segment that begins with frame `start`."""
    return f"{number:06d}" if start is None else f"{number:06d}-{start:09d}"


def read_part(staging: Path, name: str) -> dict[str, Any] | None:
    """The description of a part; None if there is none."""
    try:
        part: dict[str, Any] = json.loads((staging / f"{name}.json").read_bytes())
    except (FileNotFoundError, ValueError):
        return None
    return part


def holds_its_bytes(staging: Path, part: dict[str, Any]) -> bool:
    """Whether the files of a part are still there; those that went into a shard are not."""
    return all((staging / name).exists() for name in part["tars"])


def write_part(staging: Path, name: str, part: dict[str, Any]) -> None:
    """Describe a finished part; from here on it counts."""
    write_whole(staging / f"{name}.json", json.dumps(part).encode())


def refuse_part(staging: Path, name: str, reason: str, stamp: list[int], print_: str) -> None:
    """Note that there will be no such part, and why."""
    (staging / f"{name}.tar").unlink(missing_ok=True)
    part = {"refused": reason, "seconds": 0.0, "stamp": stamp, "fingerprint": print_, "tars": []}
    write_part(staging, name, part)


def tar_member(name: str, data: bytes) -> tuple[bytes, int]:
    """One tar member as bytes (header, data, padding) and the offset of its data."""
    info = tarfile.TarInfo(name)
    info.size = len(data)
    info.mode = 0o644
    header = info.tobuf(tarfile.PAX_FORMAT)
    return header + data + bytes(-len(data) % tarfile.BLOCKSIZE), len(header)


class PartFile:
    """Writes a part's tar, under a name of its own until it is whole.

    A worker whose parent was killed may still be at the same part, on this machine or another.
    """

    def __init__(self, staging: Path, name: str) -> None:
        self._staging, self._name = staging, name
        mine = f"{name}.{socket.gethostname()}.{os.getpid()}.{secrets.token_hex(4)}"
        self._aside, self._list_path = staging / f"{mine}.tmp", staging / f"{mine}.list"
        self._file: BinaryIO | None = None
        self._list: BinaryIO | None = None
        self._stamp: list[int] = []
        self._chunks: list[dict[str, Any]] = []
        self._at = 0

    def keep_chunks(self, stamp: list[int]) -> None:
        """From now on, what is added can be taken up if the source still has this stamp."""
        self._list = self._list or self._list_path.open("ab")
        self._stamp = stamp

    def take_up(self, stamp: list[int]) -> int:
        """Begin with the sound chunks of a job that was stopped; returns how many frames they have.

        What other jobs left of this part is deleted.
        """
        lists = {p: _listed(p, stamp) for p in self._staging.glob(f"{self._name}.*.list")}
        longest = max(lists, key=lambda path: len(lists[path]), default=None)
        if longest is not None and lists[longest]:
            with suppress(FileNotFoundError), longest.with_suffix(".tmp").open("rb") as left:
                self.keep_chunks(stamp)
                for row in lists[longest]:
                    data = left.read(row["end"] - self._at)
                    if len(data) != row["end"] - self._at or zlib.crc32(data) != row["crc"]:
                        break
                    self._put(data, row["chunk"])
        for path in lists:
            path.with_suffix(".tmp").unlink(missing_ok=True)
            path.unlink(missing_ok=True)
        return sum(chunk["frames"] for chunk in self._chunks)

    def add(self, member: str, start: int, chunk: Chunk) -> None:
        """Append a chunk that begins with frame `start` as `member`.mp4, and its table."""
        mp4, mp4_at = tar_member(f"{member}.mp4", chunk.data)
        table = chunk.table.to_bytes()
        npy, npy_at = tar_member(f"{member}.packets.npy", table)
        extradata = base64.b64encode(chunk.format.extradata).decode()
        about = {
            "start_frame": start,
            "frames": chunk.table.num_frames,
            "offset": self._at + mp4_at,
            "size": len(chunk.data),
            "table_offset": self._at + len(mp4) + npy_at,
            "table_size": len(table),
            "format": {**asdict(chunk.format), "extradata": extradata},
        }
        self._put(mp4 + npy, about)

    def _put(self, data: bytes, about: dict[str, Any]) -> None:
        self._file = self._file or self._aside.open("wb")
        self._file.write(data)
        self._chunks.append(about)
        self._at += len(data)
        if self._list is not None:
            self._file.flush()
            row = {"stamp": self._stamp, "end": self._at, "crc": zlib.crc32(data), "chunk": about}
            self._list.write(json.dumps(row).encode() + b"\n")
            self._list.flush()

    def finish(self, about: dict[str, Any]) -> None:
        """Give the part its name, and describe it by `about` and its chunks."""
        assert self._file is not None
        self._file.flush()
        os.fsync(self._file.fileno())
        self._file.close()
        tar = self._staging / f"{self._name}.tar"
        self._aside.replace(tar)
        more = {"bytes": self._at, "chunks": self._chunks, "tars": [tar.name]}
        write_part(self._staging, self._name, {**about, **more})
        self.discard()

    def discard(self) -> None:
        """Leave nothing behind, unless the part is finished."""
        self._close()
        for path in (self._aside, self._list_path):
            with suppress(OSError):
                path.unlink(missing_ok=True)

    def leave(self) -> None:
        """Stop here; what can be taken up stays."""
        if self._list is None or not self._chunks:
            self.discard()
        self._close()

    def _close(self) -> None:
        for file in (self._file, self._list):
            if file is not None:
                with suppress(OSError):  # of a full disk; what is not whole will not be taken up
                    file.close()


def _listed(path: Path, stamp: list[int]) -> list[dict[str, Any]]:
    """The whole rows of a list of chunks, if they are of a source with this stamp."""
    rows: list[dict[str, Any]] = []
    with suppress(FileNotFoundError, ValueError):  # the last row may be torn
        for line in path.read_bytes().splitlines():
            row = json.loads(line)
            if row["stamp"] != stamp:
                break
            rows.append(row)
    return rows


def delete_leftovers(parts: Path, mine: range | None) -> None:
    """Delete what stopped jobs left and nobody can take up, of the videos `mine` (None: of all)."""
    for left in parts.glob("*.tmp"):
        number = re.split(r"[.-]", left.name)[0]
        ours = mine is None or (number.isdecimal() and int(number) in mine)
        if ours and not left.with_suffix(".list").exists():
            left.unlink(missing_ok=True)  # a worker of a killed run may end just now


def join_segments(staging: Path, number: int, names: Sequence[str]) -> dict[str, Any]:
    """Describe a video by the parts of its segments, in their order; returns the description.

    Raises:
        PackError: they are of different states of the source.
    """
    parts = [read_part(staging, name) for name in names]
    first, chunks, at = parts[0], [], 0
    for part in parts:
        if part is None or first is None or part["stamp"] != first["stamp"]:
            raise PackError(f"{staging}: parts of video {number} changed while packing")
        for chunk in part["chunks"]:
            for place in ("offset", "table_offset"):
                chunk[place] += at
            chunks.append(chunk)
        at += part["bytes"]
    assert first is not None
    whole = {
        "stamp": first["stamp"],
        "fingerprint": first["fingerprint"],
        "frames": sum(chunk["frames"] for chunk in chunks),
        "fps": first["fps"],
        "seconds": sum(part["seconds"] for part in parts if part),
        "bytes": at,
        "chunks": chunks,
        "tars": [f"{name}.tar" for name in names],
    }
    write_part(staging, staged_name(number), whole)
    return whole


def fingerprint(source: Source) -> str:
    """A source's size and samples of its bytes, in short; a copy elsewhere has the same.

    Times of files are left out: a data set that was copied makes the same pack.
    """
    digest = hashlib.sha256()
    try:
        check_readable(source)  # opening a pipe would wait for whoever writes into it
        size = size_of(source)
        digest.update(str(size).encode())
        if isinstance(source, FrameFolder):
            names = list_frames(source.folder).names
            digest.update("/".join(names).encode(errors="surrogateescape"))
            digest.update((source.folder / names[-1]).read_bytes())
        else:
            with open_bytes(source) as file:
                for place in (0, (size - _SAMPLE) // 2, size - _SAMPLE):
                    file.seek(max(0, place))
                    digest.update(file.read(_SAMPLE))
    except (OSError, ValueError, MediaError):
        return "unreadable"
    return digest.hexdigest()[:32]


class Locks:
    """Who may work in a staging folder; the system lets go when this process ends, however it does.

    A run that ends the pack works alone; shares of it work beside each other, each share once.
    """

    def __init__(self, staging: Path, share: tuple[int, int] | None) -> None:
        self._files: list[BinaryIO] = []
        shared = share is not None
        self._take(staging, "lock", fcntl.LOCK_SH if shared else fcntl.LOCK_EX, "the pack")
        if share is not None:
            i, n = share
            self._take(staging, f"share-{i}-of-{n}.lock", fcntl.LOCK_EX, f"shard {i}/{n}")

    def _take(self, staging: Path, name: str, kind: int, what: str) -> None:
        file = (staging / name).open("wb")
        self._files.append(file)
        try:
            fcntl.flock(file, kind | fcntl.LOCK_NB)
        except OSError as error:
            self.close()
            if error.errno not in (errno.EAGAIN, errno.EACCES):
                raise
            raise PackError(
                f"another process is packing into {staging.parent} and holds {what}"
            ) from None

    def check(self) -> None:
        """See that the folder is the one that was locked: another run may have replaced it."""
        for file in self._files:
            path = Path(file.name)
            if not path.exists() or not os.path.samestat(path.stat(), os.fstat(file.fileno())):
                raise PackError(
                    f"another process has replaced {path.parent.parent}: run the command again"
                )

    def close(self) -> None:
        for file in self._files:
            file.close()
