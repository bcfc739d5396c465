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


def file_system(path):
    """Its kind, as the system's table of mounts has it: ext4, tmpfs, …"""
    mounts = [line.split()[1:3] for line in Path("/proc/mounts").read_text().splitlines()]
    own = [(len(place), kind) for place, kind in mounts if path.is_relative_to(place)]
    return max(own, key=lambda held: held[0])[1]


def test_it_is_seen_whether_pages_are_in_memory(files):
    """Just read: there. Dropped: gone from a disk, and there still in a file system in memory."""
    ranges = io_places.find_files(files / "a.bin", 64 * 1024).ranges
    (files / "a.bin").read_bytes()
    assert io_places.resident_part(ranges) == 1
    io_places.drop_cache({str(files / "a.bin")})
    kind = file_system(files)
    if kind not in ("ext4", "xfs", "btrfs", "overlay", "tmpfs"):
        pytest.skip(f"whether {kind} drops what was read is not known")
    assert io_places.resident_part(ranges) == (kind == "tmpfs")


def test_of_many_ranges_those_read_lie_evenly_and_in_runs(tmp_path, monkeypatch):
    """Two files without content, 300 and 100 ranges; five runs of eight are read."""
    monkeypatch.setattr(io_places, "_MOST_RUNS", 5)
    monkeypatch.setattr(io_places, "_RUN", 8)
    for name, count in (("a.bin", 300), ("b.bin", 100)):
        with (tmp_path / name).open("wb") as file:
            file.truncate(count * 4096 + 7)
    found = io_places.find_files(tmp_path, 4096)
    places = [r.offset // 4096 + 300 * r.file.endswith("b.bin") for r in found.ranges]
    runs = np.array(places).reshape(5, 8)
    assert (np.diff(runs, axis=1) == 1).all()
    assert runs[:, 0].tolist() == [0, 98, 196, 294, 392]
    assert found.what == f"{tmp_path}, 40 of 400 ranges"
    assert all(r.offset + r.length <= Path(r.file).stat().st_size for r in found.ranges)


def test_a_terabyte_is_read_from_its_beginning_to_its_end(tmp_path):
    with (tmp_path / "a.bin").open("wb") as file:
        file.truncate(1 << 40)
    ranges = io_places.find_files(tmp_path, 4096).ranges
    assert len(ranges) == 200_000 and ranges[0].offset == 0
    assert ranges[-1].offset + 4096 == 1 << 40


def test_the_length_of_a_turn_is_found_with_files_out_of_memory(files, monkeypatch):
    """Each file that is read was dropped before."""
    found = io_places.find_files(files, 16 * 1024)
    turns = io._Turns(found, (1, 4), np.random.default_rng(0))
    dropped, read = [], []
    monkeypatch.setattr(io, "drop_cache", dropped.append)

    def timed(wanted, readers):
        read.append({r.file for r in wanted})
        assert dropped == read
        return len(wanted) * 0.25, np.zeros(len(wanted))

    monkeypatch.setattr(turns, "_timed", timed)
    turns.find_lengths()
    assert len(read) == 2 and turns.lengths == {1: 24, 4: 24}  # not fewer than 24


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


def test_a_test_file_is_written_to_a_folder_alone(tmp_path, clips_pack):
    (tmp_path / "a").write_bytes(b"x" * 1000)
    before = sorted(clips_pack.iterdir())
    for path, kind in ((tmp_path / "a", "none"), (clips_pack, "a pack"),
                       ("https://host/x.pack", "an address")):  # fmt: skip
        options = io.Options(path=str(path), write_mib=1)
        with pytest.raises(ConfigError, match=f"--write-mib needs a folder, and .* is {kind}$"):
            io.measure(options, on_step=lambda *_: None)
    assert sorted(clips_pack.iterdir()) == before
