"""The cache of remote packs: fewer requests, a bound that holds, nothing damaged handed out."""

from __future__ import annotations

import contextlib
import errno
import logging
import multiprocessing
import os
import resource
import zlib
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
from servers import run_nginx

from matinee.errors import ClipError, ConfigError
from matinee.pack.annotations import Annotations, Sample, VideoFile
from matinee.pack.profiles import make_profile
from matinee.pack.reading import block_cache, remote
from matinee.pack.reading.block_cache import BlockCache
from matinee.pack.reading.reader import Pack
from matinee.pack.reading.storage import Cache
from matinee.pack.writing.writer import write_pack

pytest.importorskip("fsspec")
pytest.importorskip("aiohttp")


@pytest.fixture(scope="module")
def web(tmp_path_factory, film):
    """A pack of four films in three chunks each behind nginx; blocks of 16 KiB."""
    root = tmp_path_factory.mktemp("served")
    videos = tuple(
        VideoFile(f"{n}.mp4", film(root / f"{n}.mp4", frames=80, size=(320, 240), seed=n))
        for n in range(4)
    )
    samples = tuple(Sample(v.id, v.id, label="run") for v in videos)
    profile = make_profile(preset="ultrafast", chunk_seconds=1.0)
    write_pack(root / "pack", Annotations(videos, samples), profile, workers=1)
    patch = pytest.MonkeyPatch()
    patch.setattr(remote, "_BLOCK", 16 << 10)
    with run_nginx(root, tmp_path_factory.mktemp("nginx") / "run") as server:
        server.pack, server.local = f"{server.address}/pack", Pack(root / "pack")
        yield server
    patch.undo()


def shard_requests(web) -> int:
    return sum("/shards/" in path for path, _, _ in web.requests())


def same(web, pack: Pack, index: int, frames: list[int]) -> None:
    assert np.array_equal(pack.read(index, frames), web.local.read(index, frames))


def test_what_was_read_is_not_asked_for_again(web, tmp_path):
    """By other frames of the chunk, by another pack object, after a restart of the process."""
    pack = Pack(web.pack, cache=tmp_path / "cache")
    web.requests()
    same(web, pack, 0, [3, 4])
    assert shard_requests(web) == 1
    same(web, pack, 0, [20])
    assert shard_requests(web) == 0
    remote._caches.clear()
    same(web, Pack(web.pack, cache=tmp_path / "cache"), 0, [0, 31])
    assert shard_requests(web) == 0
    same(web, pack, 3, [60])
    assert shard_requests(web) == 1


def test_blocks_that_are_missing_between_others_are_read_alone(web, tmp_path):
    pack = Pack(web.pack, cache=tmp_path / "cache")
    same(web, pack, 0, [0, 79])
    blocks = sorted(
        (tmp_path / "cache" / "matinee-blocks").glob("*/*-*"),
        key=lambda p: int(p.name.split("-")[1]),
    )
    assert len(blocks) > 3
    blocks[1].unlink()
    web.requests()
    same(web, pack, 0, [0, 79])
    assert [size for path, _, size in web.requests() if "shards" in path] == [16 << 10]


@pytest.mark.parametrize("damage", ["flip", "cut", "empty", "longer", "other"])
def test_a_damaged_block_is_read_anew(web, tmp_path, damage):
    pack = Pack(web.pack, cache=tmp_path / "cache")
    same(web, pack, 0, [3])
    blocks = sorted((tmp_path / "cache" / "matinee-blocks").glob("*/*-*"))
    for number, block in enumerate(blocks):
        data = bytearray(block.read_bytes())
        data[len(data) // 2] ^= 1
        new = {"flip": data, "cut": data[:100], "empty": b"", "longer": block.read_bytes() + b"x",
               "other": blocks[number - 1].read_bytes()[:-1]}[damage]  # fmt: skip
        block.write_bytes(new)
    web.requests()
    same(web, pack, 0, [3])
    assert shard_requests(web) > 0
    same(web, pack, 0, [3])
    assert shard_requests(web) == 0


def test_another_pack_at_the_same_address_gets_no_blocks_of_the_old(web, tmp_path):
    """Blocks belong to the content of the tables: the same again, or others."""
    pack = Pack(web.pack, cache=tmp_path / "cache")
    same(web, pack, 0, [3])
    again = Pack(web.pack, cache=tmp_path / "cache")
    table = web.local.path / "codecs.parquet"
    before = table.read_bytes()
    pq.write_table(pq.read_table(table), table, compression="none")
    try:
        other = Pack(web.pack, cache=tmp_path / "cache")
    finally:
        table.write_bytes(before)
    for opened, requests in ((again, 0), (other, 1), (other, 0)):
        web.requests()
        same(web, opened, 0, [3])
        assert shard_requests(web) == requests


def used(folder: Path) -> int:
    """Bytes of blocks, whole and being written."""
    total = 0
    for file in (folder / "matinee-blocks").glob("*/*"):
        with contextlib.suppress(FileNotFoundError):
            total += file.stat().st_size
    return total


def test_the_bound_holds_and_the_least_recently_used_go_first(tmp_path):
    cache = BlockCache(str(tmp_path), 100_000)
    for number in range(9):
        cache.put("a", number, bytes([number]) * 10_000)
    for number in range(9):
        os.utime(cache._path("a", number), ns=(number * 10**9, number * 10**9))
    assert cache.get("a", 0, 10_000) == bytes(10_000)  # used just now
    for number in range(9, 12):
        cache.put("a", number, bytes([number]) * 10_000)
        assert used(tmp_path) <= 100_000
    held = [n for n in range(12) if cache.get("a", n, 10_000) is not None]
    assert {0, 9, 10, 11} <= set(held) and 1 not in held and len(held) >= 8


def test_what_is_larger_than_the_cache_is_not_kept(tmp_path):
    cache = BlockCache(str(tmp_path), 10_000)
    cache.put("a", 0, bytes(20_000))
    assert cache.get("a", 0, 20_000) is None and used(tmp_path) == 0


def test_a_lost_count_is_made_anew(tmp_path):
    cache = BlockCache(str(tmp_path), 100_000)
    for number in range(9):
        cache.put("a", number, bytes(10_000))
    for content in (b"", b"xyz", b"\xff" * 8):
        (tmp_path / "matinee-blocks" / "used").write_bytes(content)
        cache.put("b", len(content), bytes(10_000))
        assert used(tmp_path) <= 100_000


def test_files_of_processes_that_died_are_removed(tmp_path):
    cache = BlockCache(str(tmp_path), 50_000)
    cache.put("a", 0, bytes(1000))
    aside = cache._path("a", 0).with_name(f"{'0' * 40}-1.123.4.1000.tmp")
    aside.write_bytes(bytes(1000))
    os.utime(aside, (0, 0))
    for number in range(20):
        cache.put("b", number, bytes(10_000))
    assert not aside.exists() and used(tmp_path) <= 50_000


def hammer(folder: str, seed: int) -> str | None:
    """Many threads put and get; a word about the first wrong block."""
    cache = BlockCache(folder, 200_000)

    def one(step: int) -> str | None:
        number = int(np.random.default_rng((seed, step)).integers(40))
        content = bytes([number]) * 8000
        data = cache.get("a", number, 8000)
        if data is None:
            cache.put("a", number, content)
        elif data != content:
            return f"block {number} is wrong"
        if used(Path(folder)) > 200_000 + 16_016:  # counted while blocks are renamed
            return "the bound does not hold"
        return None

    with ThreadPoolExecutor(4) as pool:
        return next((word for word in pool.map(one, range(60)) if word), None)


def test_several_processes_and_threads_share_a_cache(tmp_path):
    """Right blocks, and no more bytes than allowed and being written."""
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(2, mp_context=context) as pool:
        words = pool.map(hammer, [str(tmp_path)] * 2, range(2))
        assert [word for word in words if word] == []
    assert used(tmp_path) <= 200_000


def test_a_full_disk_is_told_once_and_reading_goes_on(web, tmp_path, caplog):
    """Files can grow no further; nothing half-written stays."""
    pack = Pack(web.pack, cache=tmp_path / "cache")
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (10_000, hard))
        with caplog.at_level(logging.WARNING):
            same(web, pack, 0, [3])
            same(web, pack, 1, [3])
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    told = [record.getMessage() for record in caplog.records]
    assert len(told) == 1 and "cache" in told[0] and "File too large" in told[0]
    assert used(tmp_path / "cache") == 0


def test_a_disk_that_was_full_is_written_to_again(tmp_path, caplog, monkeypatch):
    """The oldest tenth makes room; where that is not enough, a minute passes; told once."""
    cache, now, full = BlockCache(str(tmp_path), 10**6), [1000.0], [0]
    monkeypatch.setattr(block_cache.time, "monotonic", lambda: now[0])
    reserve = cache._reserve

    def failing(size, aside):
        if full[0]:
            full[0] -= 1
            raise OSError(errno.ENOSPC, "No space left on device")
        return reserve(size, aside)

    monkeypatch.setattr(cache, "_reserve", failing)
    for number in range(20):
        cache.put("a", number, bytes(10_000))
        os.utime(cache._path("a", number), (number, number))
    full[0] = 1
    cache.put("b", 0, bytes(10_000))
    held = [n for n in range(20) if cache.get("a", n, 10_000) is not None]
    assert cache.get("b", 0, 10_000) is not None and held == list(range(2, 20))
    with caplog.at_level(logging.WARNING):
        for _ in range(2):
            full[0] = 2
            cache.put("b", 1, bytes(10_000))
            now[0] += 59
            cache.put("b", 2, bytes(10_000))
            assert cache.get("b", 1, 10_000) is cache.get("b", 2, 10_000) is None
            now[0] += 2
    cache.put("b", 2, bytes(10_000))
    assert cache.get("b", 2, 10_000) is not None and len(caplog.records) == 1


def test_files_of_others_in_the_folder_stay(tmp_path):
    """Even where they lie in folders like the cache's own; links are not followed."""
    cache = BlockCache(str(tmp_path), 100_000)
    cache.put("a", 0, bytes(1000))
    own = next((tmp_path / "matinee-blocks").glob("??"))
    (tmp_path / "outside").mkdir()
    block = f"{'0' * 40}-1"
    others = [
        tmp_path / "v1" / "film.mp4", tmp_path / "ab" / block, tmp_path / "x.tmp",
        own / "film.mp4", own / "film.tmp", tmp_path / "matinee-blocks" / "v1" / block,
        tmp_path / "outside" / block,
    ]  # fmt: skip
    for file in others:
        file.parent.mkdir(exist_ok=True)
        file.write_bytes(bytes(200_000))
        os.utime(file, (0, 0))
    (tmp_path / "matinee-blocks" / "zz").symlink_to(tmp_path / "outside")
    for number in range(30):
        cache.put("b", number, bytes(10_000))
    assert all(file.stat().st_size == 200_000 for file in others)
    assert cache.get("b", 29, 10_000) is not None


def test_caches_of_one_folder_keep_their_own_bounds(tmp_path):
    """The first to be opened does not decide for those that follow."""
    for limit in (10**6, 50_000):
        cache = remote._cache(remote.Remote(cache=Cache(str(tmp_path), limit)))
        for number in range(30):
            cache.put(str(limit), number, bytes(10_000))
        assert used(tmp_path) > 0.5 * min(limit, 300_000)
    assert used(tmp_path) <= 50_000


def test_wrong_bytes_in_the_cache_are_read_anew(web, tmp_path):
    """Whole blocks of wrong content: the very clip that finds them is right."""
    pack = Pack(web.pack, cache=tmp_path / "cache")
    same(web, pack, 0, [3])
    blocks = [*(tmp_path / "cache" / "matinee-blocks").glob("*/*-*")]
    assert blocks
    for block in blocks:
        data = bytes(block.stat().st_size - 8)
        block.write_bytes(b"MTB1" + zlib.crc32(data).to_bytes(4, "little") + data)
    for opened in (pack, Pack(web.pack, cache=tmp_path / "cache")):
        same(web, opened, 0, [5])
    web.requests()
    same(web, pack, 0, [5])
    assert shard_requests(web) == 0


def test_a_wrong_answer_of_the_server_does_not_last(web, tmp_path):
    """What it sent is not kept, neither as blocks nor as a packet table."""
    pack = Pack(web.pack, cache=tmp_path / "cache")
    shards = [*(web.local.path / "shards").iterdir()]
    before = [shard.read_bytes() for shard in shards]
    for shard in shards:
        shard.write_bytes(bytes(shard.stat().st_size))
    try:
        for _ in range(2):
            with pytest.raises(ClipError):
                pack.read(2, [3])
    finally:
        for shard, data in zip(shards, before, strict=True):
            shard.write_bytes(data)
    same(web, pack, 2, [3])


def test_a_failing_server_is_told_with_a_cache_too(web, tmp_path, monkeypatch):
    monkeypatch.setattr(remote, "WAITS", [0.0] * 5)
    pack = Pack(web.pack, cache=tmp_path / "cache")
    same(web, pack, 0, [3])
    monkeypatch.setattr(remote.Remote, "whole", lambda self, address: "http://127.0.0.1:9/x")
    same(web, pack, 0, [3])
    with pytest.raises(ClipError, match="6 tries"):
        pack.read(3, [60])


def test_settings_that_cannot_be_used_are_refused(web, tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match="cannot be made"):
        Pack(web.pack, cache=tmp_path / "file" / "cache")
    with pytest.raises(ConfigError, match="16 MiB"):
        Pack(web.pack, cache=tmp_path / "cache", cache_bytes=1000)
    with pytest.raises(ConfigError, match="local pack"):
        Pack(web.local.path, cache=tmp_path / "cache")
