"""Write an image set: list, plan, decode, and give it its name when it is whole.

A set is made in a hidden folder beside its place and renamed at the end, so there is never half a
set under its name. Decoding small images takes seconds to minutes: a killed run starts again.
"""

from __future__ import annotations

import fcntl
import hashlib
import io
import json
import os
import shutil
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, astuple, dataclass
from pathlib import Path
from typing import BinaryIO

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from matinee.errors import ConfigError, MediaError, PackError
from matinee.files import naming, write_whole
from matinee.media.image import decode_image, square
from matinee.pack.annotations import Sample
from matinee.pack.images.image_set import (
    COLUMNS,
    MANIFEST,
    PIXELS,
    TABLE,
    VERSION,
    read_image_manifest,
)
from matinee.pack.images.plan import ImagePlan, plan_images
from matinee.pack.images.source import ArchiveSource, ImageSource, open_source
from matinee.pack.writing.finish import Failure

_SIZES = range(8, 1025)


@dataclass(frozen=True)
class ImageReport:
    """What was made: `samples` images of `size` (height, width) in `bytes` bytes of pixels."""

    out: Path
    samples: int
    classes: int
    size: tuple[int, int]
    bytes: int
    refused: tuple[Failure, ...]
    ignored: tuple[Failure, ...]
    notes: tuple[str, ...]
    was_complete: bool

    def counts(self) -> dict[str, int]:
        """The report in numbers, for JSON."""
        return {
            "samples": self.samples,
            "bytes": self.bytes,
            "refused": len(self.refused),
            "ignored": len(self.ignored),
        }


def write_images(
    out: str | Path,
    source: str | Path,
    *,
    size: int | None = None,
    limit: int | None = None,
    val_fraction: float = 0.2,
    overwrite: bool = False,
    on_progress: Callable[[int, int], None] | None = None,
) -> ImageReport:
    """Make an image set of a folder or of a .tar, .tar.gz or .tgz archive.

    Args:
        size: side of the centre square that every image becomes, in pixels; when None, all images
            must have one size, which stays.
        limit: take the first so many images of each class and split, by name.
        val_fraction: without given splits, what part of each class is held out as "val".
        overwrite: replace a set that was made from something else; it stays until the new is whole.
        on_progress: called with (images done, images in all).

    Returns:
        What was made, with every file that was refused.

    Raises:
        ConfigError: impossible settings, images of several sizes without `size`, `out` is taken.
        AnnotationError: no class folders, or an empty one.
        PackError: a damaged archive, not one sound image, or `out` cannot be written.
    """
    out = Path(out).resolve()
    _check_settings(size, limit, val_fraction)
    files = open_source(Path(source))
    listing = files.list()
    plan = plan_images(
        listing, str(source), val_fraction=val_fraction, limit=limit,
        archive=isinstance(files, ArchiveSource),
    )  # fmt: skip
    digest = _digest(plan, size)
    done = _existing(out, digest, overwrite)
    if done is not None:
        return done
    refused = [Failure(path, "refused", reason) for path, reason in listing.refused]
    ignored = [Failure(path, "ignored", reason) for path, reason in plan.ignored]
    making = out.with_name(f".{out.name}.making")
    try:
        making.mkdir(parents=True, exist_ok=True)
        lock = _lock(making)
        try:
            for leftover in making.iterdir():
                leftover.unlink()
            samples, shape, bad = _decode_all(files, plan, making, size, on_progress)
            refused += bad
            report = ImageReport(
                out=out, samples=len(samples), classes=len({s.label for s in samples}), size=shape,
                bytes=len(samples) * shape[0] * shape[1] * 3, refused=tuple(refused),
                ignored=tuple(ignored), notes=plan.notes, was_complete=False,
            )  # fmt: skip
            _finish(making, samples, report, digest)
            _replace(making, out)
        except BaseException:
            shutil.rmtree(making, ignore_errors=True)
            raise
        finally:
            os.close(lock)
    except OSError as error:
        raise PackError(
            f"cannot write {error.filename or out}: {error.strerror or error}"
        ) from error
    return report


def _check_settings(size: int | None, limit: int | None, val_fraction: float) -> None:
    if size is not None and size not in _SIZES:
        raise ConfigError(f"--size {size}: between {_SIZES[0]} and {_SIZES[-1]} pixels")
    if limit is not None and limit < 1:
        raise ConfigError(f"--limit {limit}: at least 1")
    if not 0 <= val_fraction < 1:
        raise ConfigError(f"--val-fraction {val_fraction}: at least 0, below 1")


def _digest(plan: ImagePlan, size: int | None) -> str:
    """What the set is made from: names and sizes of the files, labels, splits, settings."""
    images = [[s.id, s.label, s.split, plan.files[s.id].size] for s in plan.samples]
    return hashlib.sha256(json.dumps([VERSION, size, images]).encode()).hexdigest()


def _decode_all(
    source: ImageSource,
    plan: ImagePlan,
    making: Path,
    size: int | None,
    on_progress: Callable[[int, int], None] | None,
) -> tuple[list[Sample], tuple[int, int], list[Failure]]:
    """Write pixels.npy; returns the samples that are in it, (height, width), and the refusals.

    An archive gives its images in its own order, so each is first written to its place in a plain
    file; places left empty by refused images are then left out.
    """
    rows = {sample.id: row for row, sample in enumerate(plan.samples)}
    wanted = {plan.files[name].place: plan.files[name] for name in rows}
    row_of = {plan.files[name].place: row for name, row in rows.items()}
    kept = np.zeros(len(rows), bool)
    refused: list[Failure] = []
    shape: tuple[int, int] | None = None
    first, one = "", 0
    rough = making / "pixels.raw"
    with naming(rough), rough.open("w+b") as file:
        for done, (image, data) in enumerate(source.read(wanted), 1):
            try:
                pixels = _pixels(data, size)
            except MediaError as error:
                refused.append(Failure(image.id, "refused", str(error)))
            else:
                if shape is None:
                    shape, first, one = (pixels.shape[0], pixels.shape[1]), image.id, pixels.nbytes
                if pixels.shape[:2] != shape:
                    raise ConfigError(
                        f"{source.path} has images of several sizes ({first} "
                        f"{shape[1]}x{shape[0]}, {image.id} {pixels.shape[1]}x{pixels.shape[0]}): "
                        "give one with --size, such as --size 32"
                    )
                row = row_of[image.place]
                file.seek(row * one)
                file.write(pixels.data)
                kept[row] = True
            if on_progress:
                on_progress(done, len(rows))
        if shape is None:
            raise PackError(
                f"none of {len(rows)} images is sound; the first refusal: {refused[0].path} "
                f"{refused[0].reason}"
            )
        _write_pixels(making / PIXELS, file, np.flatnonzero(kept), shape)
    rough.unlink()
    samples = [sample for sample, sound in zip(plan.samples, kept, strict=True) if sound]
    return samples, shape, sorted(refused, key=astuple)


def _pixels(data: bytes | str, size: int | None) -> NDArray[np.uint8]:
    if isinstance(data, str):
        raise MediaError(data)
    image = decode_image(data)
    if size is not None:
        return square(image, size)
    if max(image.size) > _SIZES[-1]:
        raise ConfigError(
            f"images of {image.width}x{image.height} pixels are too large to be held as they are: "
            "give their size with --size, such as --size 224"
        )
    return np.ascontiguousarray(np.asarray(image, dtype=np.uint8))


def _write_pixels(
    path: Path, rough: BinaryIO, rows: NDArray[np.int64], shape: tuple[int, int]
) -> None:
    """Copy rows of a plain file of images to an .npy file, flushed to disk."""
    one = shape[0] * shape[1] * 3
    with naming(path), path.open("wb") as file:
        header = {"descr": "|u1", "fortran_order": False, "shape": (len(rows), *shape, 3)}
        np.lib.format.write_array_header_1_0(file, header)
        for row in rows.tolist():
            rough.seek(row * one)
            file.write(rough.read(one))
        file.flush()
        os.fsync(file.fileno())


def _finish(making: Path, samples: list[Sample], report: ImageReport, digest: str) -> None:
    """Write the table and, last, the manifest."""
    rows = [{"sample": s.id, "split": s.split, "label": s.label} for s in samples]
    table = io.BytesIO()
    pq.write_table(pa.Table.from_pylist(rows, schema=COLUMNS), table, compression="zstd")
    write_whole(making / TABLE, table.getvalue())
    manifest = {
        "format": "matinee images",
        "version": VERSION,
        "size": list(report.size),
        "classes": sorted({str(sample.label) for sample in samples}),
        "source_digest": digest,
        "report": report.counts(),
        "notes": list(report.notes),
        "refused": [asdict(failure) for failure in report.refused],
        "ignored": [asdict(failure) for failure in report.ignored],
    }
    write_whole(making / MANIFEST, (json.dumps(manifest, indent=1) + "\n").encode())


def _lock(folder: Path) -> int:
    """Hold a folder; the system lets go of it when this process ends, however it does."""
    held = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(held)
        raise PackError(f"another process is making {folder}: wait for it, or stop it") from None
    return held


def _replace(making: Path, out: Path) -> None:
    """Give a finished set its name; one that was there before goes."""
    going = out.with_name(f".{out.name}.deleting")
    shutil.rmtree(going, ignore_errors=True)
    if out.exists():
        out.rename(going)
    making.rename(out)
    shutil.rmtree(going, ignore_errors=True)
    parent = os.open(out.parent, os.O_RDONLY)
    try:
        os.fsync(parent)
    finally:
        os.close(parent)


def _existing(out: Path, digest: str, overwrite: bool) -> ImageReport | None:
    """The report of a set that was made from the same before; None when there is work to do."""
    if not out.exists() or (out.is_dir() and not any(out.iterdir())):
        return None
    names = {entry.name for entry in out.iterdir()} if out.is_dir() else {out.name}
    if MANIFEST not in names or names - {MANIFEST, TABLE, PIXELS}:
        raise ConfigError(
            f"{out} exists and is no image set, or holds other files: choose another --out"
        )
    if overwrite:
        return None
    meta = read_image_manifest(out)
    if meta.get("source_digest") != digest:
        raise PackError(
            f"{out} already holds a set of other images or settings; choose another --out, or "
            "replace it with --overwrite"
        )
    with suppress(KeyError, TypeError):
        refused, ignored = (
            tuple(Failure(**row) for row in meta[kind]) for kind in ("refused", "ignored")
        )
        return ImageReport(
            out, meta["report"]["samples"], len(meta["classes"]), tuple(meta["size"]),
            meta["report"]["bytes"], refused, ignored, tuple(meta["notes"]), was_complete=True,
        )  # fmt: skip
    raise PackError(f"{out} is a damaged set: --overwrite makes it anew")
