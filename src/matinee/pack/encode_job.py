"""What a packing worker does with one video. Runs in its own process; imports no torch."""

from __future__ import annotations

import base64
import errno
import json
import os
import stat
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

from av import VideoFrame

from matinee.errors import MediaError
from matinee.files import write_whole
from matinee.media.encode import encode_chunks
from matinee.media.normalise import normalised_frames, target_size
from matinee.media.probe import Probe, probe
from matinee.media.source import stamp_of
from matinee.pack.format import tar_member
from matinee.pack.profiles import Profile


def write_part(staging: Path, number: int, part: dict[str, Any], stamp: list[int]) -> None:
    """Describe a finished part, or why there is none ("refused"); from here on it counts."""
    file = staging / f"{number:06d}.json"
    write_whole(file, json.dumps({**part, "stamp": stamp}).encode())


class EncodeJob:
    """Encodes one video into `<staging>/<n>.tar` and describes it in `<n>.json`."""

    def __init__(self, staging: str, profile: Profile) -> None:
        self.staging = Path(staging)
        self.profile = profile

    def __call__(self, job: tuple[int, str, str]) -> None:
        number, video, path = job
        stamp = stamp_of(Path(path))  # before encoding: a file that changes meanwhile is redone
        try:
            video.encode()
            if not stat.S_ISREG(Path(path).stat().st_mode):
                raise OSError(errno.EINVAL, "it is not a regular file")
            with Path(path).open("rb"):
                pass
        except UnicodeEncodeError:
            part: dict[str, Any] = {"refused": "has a name that is not UTF-8", "seconds": 0.0}
        except OSError as error:
            reason = "no such file" if error.errno == errno.ENOENT else f"{error.strerror}"
            part = {"refused": f"cannot be read: {reason}", "seconds": 0.0}
        else:
            try:
                part = self._encode(number, video, Path(path))
            except MediaError as error:
                part = {"refused": str(error), "seconds": 0.0}
        if "refused" in part:
            self._tar(number).unlink(missing_ok=True)
        write_part(self.staging, number, part, stamp)

    def _tar(self, number: int) -> Path:
        return self.staging / f"{number:06d}.tar"

    def _encode(self, number: int, video: str, path: Path) -> dict[str, Any]:
        source = probe(path)
        size = target_size(source, self.profile.short_side)
        frames = normalised_frames(path, source, size)
        # Under a name of its own: a worker whose parent was killed may still be at this video.
        aside = self.staging / f"{number:06d}.{os.getpid()}.tmp"
        try:
            described = self._write(aside, video, source, size, frames)
        except BaseException:
            aside.unlink(missing_ok=True)
            raise
        aside.replace(self._tar(number))
        return described

    def _write(
        self,
        aside: Path,
        video: str,
        source: Probe,
        size: tuple[int, int],
        frames: Iterator[VideoFrame],
    ) -> dict[str, Any]:
        chunks: list[dict[str, Any]] = []
        start, at = 0, 0
        with aside.open("wb") as tar:
            for chunk in encode_chunks(
                frames,
                fps=source.fps,
                size=size,
                matrix=source.matrix,
                settings=self.profile.encoder(),
                frames_per_chunk=self.profile.frames_per_chunk(float(source.fps)),
            ):
                name = f"{video}/{round(1000 * start / source.fps):09d}"
                mp4, mp4_at = tar_member(f"{name}.mp4", chunk.data)
                table = chunk.table.to_bytes()
                npy, npy_at = tar_member(f"{name}.packets.npy", table)
                tar.write(mp4)
                tar.write(npy)
                fmt = asdict(chunk.format)
                fmt["extradata"] = base64.b64encode(chunk.format.extradata).decode()
                chunks.append(
                    {
                        "start_frame": start,
                        "frames": chunk.table.num_frames,
                        "offset": at + mp4_at,
                        "size": len(chunk.data),
                        "table_offset": at + len(mp4) + npy_at,
                        "table_size": len(table),
                        "format": fmt,
                    }
                )
                start += chunk.table.num_frames
                at += len(mp4) + len(npy)
            tar.flush()
            os.fsync(tar.fileno())
        if not start:
            raise MediaError("no frame decodes")
        return {
            "frames": start,
            "fps": [source.fps.numerator, source.fps.denominator],
            "seconds": float(start / source.fps),
            "bytes": at,
            "chunks": chunks,
        }
