"""Mutated inputs, one by its number: each is read, or refused by an error of matinee's own.

Run by `hostile.py` in a process of its own, `python fuzz_cases.py KIND FOLDER FIRST COUNT`: what
kills or stops that process is found by the number it wrote last.
"""

from __future__ import annotations

import json
import os
import resource
import signal
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from zlib import crc32

import av
import numpy as np

from matinee.errors import MatineeError, MediaError
from matinee.media.decode import Box, ClipDecoder, frame_bytes
from matinee.media.normalise import normalised_frames, target_size
from matinee.media.packets import RECORD, PacketTable, VideoFormat, scan_packets
from matinee.media.plan import byte_ranges, packets_to_feed
from matinee.media.probe import probe

MEMORY = 6 << 30  # bytes of address space a case may take
SECONDS = 20  # of processor time for one case
EXTREMES = [-(2**63), -(2**31), -1, 0, 1, 2, 255, 2**31 - 1, 2**40, 2**63 - 1]


def mutate(data: bytes, rng: np.random.Generator) -> bytes:
    """Bytes changed, bits turned, runs overwritten, cut, doubled or put in."""
    out = bytearray(data)
    for _ in range(int(rng.integers(1, 4))):
        if not out:
            break
        at = int(rng.integers(len(out)))
        length = int(rng.integers(1, min(64, len(out)) + 1))
        match int(rng.integers(8)):
            case 0:
                out[at] = int(rng.integers(256))
            case 1:
                out[at] ^= 1 << int(rng.integers(8))
            case 2:
                out[at : at + length] = rng.bytes(len(out[at : at + length]))
            case 3:
                del out[at:]
            case 4:
                del out[at : at + length]
            case 5:
                out[at:at] = out[at : at + length]
            case 6:
                out[at : at + 4] = int(rng.choice([0, 1, 2**31 - 1, 2**32 - 1])).to_bytes(4, "big")
            case _:
                out[at : at + length] = bytes([int(rng.choice([0, 255]))]) * len(
                    out[at : at + length]
                )
    return bytes(out)


class Tables:
    """Packet tables: bytes, or the fields of their records, are changed."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "b.mp4"
        self.raw = scan_packets(self.path).table.to_bytes()
        self.size = self.path.stat().st_size

    def __call__(self, rng: np.random.Generator) -> None:
        raw = mutate(self.raw, rng)
        if rng.random() < 0.6:
            start = self.raw.index(b"\n") + 1
            records = np.frombuffer(self.raw, RECORD, offset=start).copy()
            for _ in range(int(rng.integers(1, 4))):
                name = str(rng.choice(["offset", "size", "frame", "flags"]))
                value = int(rng.choice(EXTREMES)) & (2 ** (8 * RECORD[name].itemsize) - 1)
                low = np.array([value], f"<u{RECORD[name].itemsize}").view(RECORD[name])
                records[name][int(rng.integers(len(records)))] = low[0]
            raw = self.raw[:start] + records.tobytes()
        table = PacketTable.from_bytes(raw, data_size=self.size)
        # What is accepted must be safe to use: every range lies in the file, every plan in it.
        assert np.all(table.offset >= 0) and np.all(table.offset + table.size <= self.size)
        frames = rng.integers(0, max(1, table.num_frames), 4)
        for packets in packets_to_feed(table, frames):
            run = np.array(packets)
            assert run.min() >= 0 and run.max() < len(table.offset)
            for first, last in byte_ranges(table.offset[run], table.size[run]):
                assert 0 <= first < last <= self.size


class Packets:
    """The bytes of packets, with checksums that fit: a decoder gets what no check keeps away."""

    def __init__(self, folder: Path) -> None:
        self.decoder = ClipDecoder()
        self.films = []
        for path in sorted(folder.glob("*.*")):
            try:
                scan, source = scan_packets(path), probe(path)
            except MediaError:
                continue  # cannot be indexed
            fmt = VideoFormat(
                scan.codec, source.width, source.height, source.pix_fmt, scan.extradata,
                source.matrix, source.full_range,
            )  # fmt: skip
            self.films.append((fmt, scan.table, path.read_bytes()))

    def __call__(self, rng: np.random.Generator) -> None:
        fmt, table, good = self.films[int(rng.integers(len(self.films)))]
        data, crc = bytearray(good), table.crc.copy()
        for packet in rng.integers(0, len(crc), 2):
            at, size = int(table.offset[packet]), int(table.size[packet])
            bad = mutate(good[at : at + size], rng)[:size]
            data[at : at + len(bad)] = bad
            crc[packet] = crc32(data[at : at + size])
        if rng.random() < 0.2:
            fmt = replace(fmt, extradata=mutate(fmt.extradata, rng))
        if rng.random() < 0.1:
            fmt = replace(fmt, width=int(rng.integers(1, 300)), height=int(rng.integers(1, 300)))
        size = (32, 32)
        pixels = "rgb" if rng.random() < 0.3 else "i420"
        length = frame_bytes(size, pixels)
        memory = np.full((6, length), 7, np.uint8)  # a row before and one after must stay
        frames = rng.integers(0, table.num_frames, 4)
        box = Box(0, 0, fmt.width // 2 * 2, fmt.height // 2 * 2)
        try:
            self.decoder.decode(
                fmt, replace(table, crc=crc), lambda first, last: bytes(data[first:last]),
                frames, memory[1:5], size=size, box=box, pixels=pixels,
            )  # fmt: skip
        except ValueError:
            assert box.width < 2 or box.height < 2
        finally:
            assert np.all(memory[0] == 7) and np.all(memory[5] == 7)


class Files:
    """Whole source files, their headers above all: probed, decoded and scanned."""

    def __init__(self, folder: Path) -> None:
        self.files = [(path, path.read_bytes()) for path in sorted(folder.glob("*.*"))]
        self.folder = folder / "mutated"
        self.folder.mkdir(exist_ok=True)

    def __call__(self, rng: np.random.Generator) -> None:
        path, good = self.files[int(rng.integers(len(self.files)))]
        low, high = 0, len(good)
        moov = good.find(b"moov")
        if moov >= 0 and rng.random() < 0.7:
            low = moov
        elif rng.random() < 0.5:
            high = min(high, 600)
        changed = self.folder / path.name
        changed.write_bytes(good[:low] + mutate(good[low:high], rng) + good[high:])
        source = probe(changed)
        for number, frame in enumerate(normalised_frames(changed, source, target_size(source, 32))):
            assert frame.format.name == "yuv420p" and frame.width >= 2 <= frame.height
            if number > 500:
                break
        scan_packets(changed)


def run(kind: str, folder: Path, first: int, count: int) -> None:
    """Cases `first` … `first + count - 1`, each announced on standard output."""
    from fuzz_packs import Manifests, PackFiles, ParquetTables, Shards

    kinds: dict[str, Callable[[Path], Callable[[np.random.Generator], None]]] = {
        "tables": Tables, "packets": Packets, "files": Files, "manifests": Manifests,
        "parquet": ParquetTables, "shards": Shards, "pack files": PackFiles,
    }  # fmt: skip
    av.logging.set_level(None)
    case = kinds[kind](folder)
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    accepted = 0
    for number in range(first, first + count):
        os.write(1, b"%d\n" % number)
        signal.setitimer(signal.ITIMER_PROF, SECONDS)
        try:
            case(np.random.default_rng((number, len(kind))))
            accepted += 1
        except MatineeError as error:
            assert str(error)
        except IndexError as error:
            # The one that a plan raises for a frame which a damaged table does not have.
            assert "frame" in str(error), error
    signal.setitimer(signal.ITIMER_PROF, 0)
    os.write(1, json.dumps({"accepted": accepted, "peak_mb": peak_mb()}).encode() + b"\n")


def peak_mb() -> int:
    """Of this program; getrusage also counts what the process was before it ran this."""
    status = Path("/proc/self/status").read_text()
    return int(status.partition("VmHWM:")[2].split()[0]) // 1024


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "pack"))
    run(sys.argv[1], Path(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4]))
