"""Reading: what is read, whether it was out of memory, and what is told."""

import json
import os
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from matinee.errors import ConfigError
from matinee.measure.bench import io, io_places
from matinee.measure.bench.loader_clips import clip_spec, parse_shape
from matinee.measure.result import write_result
from matinee.pack.reading.reader import Pack
from matinee.pack.reading.storage import Range


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """Three files of known bytes, of which one is too small."""
    root = tmp_path_factory.mktemp("io")
    for name, size in (("a.bin", 1 << 20), ("sub/b.bin", 1 << 19), ("small.bin", 100)):
        (root / name).parent.mkdir(exist_ok=True)
        (root / name).write_bytes(np.random.default_rng(0).bytes(size))
    os.sync()
    return root


def test_files_are_cut_into_ranges_without_gaps(files):
    found = io_places.find_files(files, 64 * 1024)
    assert len(found.ranges) == 16 + 8 and found.total_bytes == (1 << 20) + (1 << 19)
    assert found.ranges[17] == Range(str(files / "sub" / "b.bin"), 1 << 19, 65536, 65536)


def test_it_is_seen_whether_pages_are_in_memory(files):
    """Just read: there. Dropped: gone, where the file system lies on a disk."""
    ranges = io_places.find_files(files / "a.bin", 64 * 1024).ranges
    (files / "a.bin").read_bytes()
    assert io_places.resident_part(ranges) == 1
    io_places.drop_cache({str(files / "a.bin")})
    assert io_places.resident_part(ranges) in (0, 1)


def test_a_file_system_in_memory_is_found_out():
    shm = Path("/dev/shm")
    if not os.access(shm, os.W_OK):
        pytest.skip("no /dev/shm")
    file = shm / f"matinee-test-{os.getpid()}"
    try:
        file.write_bytes(bytes(1 << 20))
        result = io.measure(
            io.Options(path=str(file), kib=64, readers=(1,), rounds=1), on_step=lambda *_: None
        )
    finally:
        file.unlink()
    assert result.data["resident_after_dropping"] == 1
    assert "could not be dropped" in result.parts[0].text


def test_the_ranges_of_a_pack_hold_the_packets_of_its_clips(clips_pack):
    """Every range lies in its chunk, begins and ends with a packet, and the decoder can use it."""
    found = io_places.clips_of_pack(str(clips_pack), clip_spec(parse_shape("4x2"), 32))
    assert found is not None and found.remote is None
    pack = Pack(clips_pack)
    chunks = [
        part.chunk for i in range(len(pack))
        for part in pack.locate(pack.info(i).video, [pack.info(i).first_frame])
    ]  # fmt: skip
    for wanted in found.ranges:
        assert any(
            c.file == wanted.file and c.offset <= wanted.offset
            and wanted.offset + wanted.length <= c.offset + c.size
            for c in chunks
        )  # fmt: skip
    for first, second in pairwise(found.ranges):  # none is read from memory after another
        assert (first.file, first.offset + first.length) <= (second.file, second.offset)


def test_reads_are_measured_by_pattern_and_readers(files, tmp_path):
    options = io.Options(path=str(files), kib=16, readers=(2, 1), rounds=2)
    write_result(io.measure(options, on_step=lambda *_: None), tmp_path)
    data = json.loads((tmp_path / "io.json").read_text())
    assert [(m["pattern"], m["readers"]) for m in data["measured"]] == [
        ("random", 1), ("random", 2), ("sequential", 1), ("sequential", 2)
    ]  # fmt: skip
    for row in data["measured"]:
        latency = row["latency_ms"]
        assert row["bytes_per_s"]["median"] > 0
        assert 0 < latency["p50"] <= latency["p90"] <= latency["p99"]
    assert (tmp_path / "io-reads-latency.png").stat().st_size > 5000


def test_a_file_written_for_the_purpose_is_removed(tmp_path):
    options = io.Options(path=str(tmp_path), write_mib=4, readers=(1,), rounds=1)
    result = io.measure(options, on_step=lambda *_: None)
    assert result.data["bytes"] == 4 << 20 and not list(tmp_path.iterdir())


def test_files_without_room_for_reads_are_refused_with_what_to_do(tmp_path):
    (tmp_path / "a").write_bytes(b"x" * 1000)
    with pytest.raises(ConfigError, match=r"0 ranges of 256 KiB.*--write-mib"):
        io.measure(io.Options(path=str(tmp_path)), on_step=lambda *_: None)
    with pytest.raises(ConfigError, match="--write-mib needs a folder"):
        io.measure(io.Options(path=str(tmp_path / "a"), write_mib=1), on_step=lambda *_: None)
