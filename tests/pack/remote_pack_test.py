"""Packs from afar: the frames that the stored MP4s hold, few requests, plain words on failure."""

from __future__ import annotations

import contextlib
import http.server
import io
import json
import os
import pickle
import re
import resource
import shutil
import subprocess
import sys
import tarfile
import tempfile
import threading
import time
import urllib.parse
from functools import partial
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
from servers import run_line, run_nginx

from matinee.cli import main
from matinee.errors import ClipError, ConfigError, MatineeError, PackError
from matinee.pack.annotations import Annotations, Sample, VideoFile
from matinee.pack.open import open_data
from matinee.pack.profiles import make_profile
from matinee.pack.reading import clip as clip_module
from matinee.pack.reading import remote, request
from matinee.pack.reading.reader import Pack
from matinee.pack.writing import shards
from matinee.pack.writing.writer import write_pack

pytest.importorskip("fsspec")
pytest.importorskip("aiohttp")

FRAMES = 80
WISHES = ([0, 1, 2], [30, 31, 32, 33], [0, 31, 32, 63, 64, 79], [33, 5, 33])


@pytest.fixture(scope="module")
def made(tmp_path_factory, film) -> Path:
    """Three films in chunks of 32 frames, each film in a shard of its own; odd names."""
    root = tmp_path_factory.mktemp("www")
    paths = [film(root / f"{n}.mp4", frames=FRAMES, size=(320, 240), seed=n) for n in range(3)]
    videos = tuple(VideoFile(f"a b/{path.name}", path) for path in paths)
    samples = tuple(Sample(v.id, v.id, label="run", split="train") for v in videos)
    profile = make_profile(preset="ultrafast", chunk_seconds=1.0)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(shards, "SHARD_BYTES", 1)
        write_pack(root / "my pack", Annotations(videos, samples), profile, workers=1)
    assert len(list((root / "my pack" / "shards").iterdir())) == 3
    return root


@pytest.fixture(scope="module")
def stored(made, sequential) -> dict[str, list[np.ndarray]]:
    """Frames by video: the shards' MP4s, decoded from start to end."""
    frames: dict[str, list[np.ndarray]] = {}
    for shard in sorted((made / "my pack" / "shards").iterdir()):
        with tarfile.open(shard) as tar:
            for name in sorted(n for n in tar.getnames() if n.endswith(".mp4")):
                data = tar.extractfile(name).read()
                frames.setdefault(str(Path(name).parent), []).extend(sequential(io.BytesIO(data)))
    return frames


@pytest.fixture(scope="module")
def web(made, tmp_path_factory):
    with run_nginx(made, tmp_path_factory.mktemp("nginx") / "run") as server:
        server.pack = f"{server.address}/my%20pack"
        yield server


@pytest.fixture
def line(web):
    with run_line(web.port) as proxy:
        proxy.pack = f"{proxy.address}/my%20pack"
        yield proxy


@pytest.fixture
def hasty(monkeypatch):
    """No waiting between tries."""
    monkeypatch.setattr(remote, "WAITS", [0.0] * 5)


@pytest.fixture
def copy(made, web):
    """A pack on the web server to damage: its folder and address."""
    folder = made / "copy"
    shutil.copytree(made / "my pack", folder)
    yield folder, f"{web.address}/copy"
    shutil.rmtree(folder)


def check(pack: Pack, stored, wishes=WISHES) -> None:
    for index in range(len(pack)):
        for frames in wishes:
            clip = pack.read(index, frames, pixels="i420")
            for row, frame in zip(clip, frames, strict=True):
                assert np.array_equal(row, stored[pack.info(index).video][frame])


def shard_requests(web) -> list[tuple[str, int, int]]:
    return [row for row in web.requests() if "/shards/" in row[0]]


def test_clips_over_http_are_the_frames_of_the_stored_files(web, stored):
    """Random frames too, in one chunk and over several."""
    rng = np.random.default_rng(0)
    check(Pack(web.pack), stored, [*WISHES, *(rng.integers(0, FRAMES, 5) for _ in range(4))])


def test_opening_takes_a_request_a_table_and_none_a_shard(web):
    web.requests()
    pack = Pack(web.pack + "/")
    paths = [path for path, _, _ in web.requests()]
    assert len(paths) == 5 and not any("shards" in path for path in paths)
    assert pack.path == web.pack and len(pack) == 3 and pack.num_frames == 3 * FRAMES


def test_a_clip_takes_one_request_where_its_chunks_are_small(web):
    """In one chunk, and over three that follow each other."""
    pack = Pack(web.pack)
    web.requests()
    for frames, chunks in (([3, 4], 1), ([30, 33], 2), ([0, 40, 79], 3)):
        pack.read(0, frames)
        parts = [part.chunk for part in pack.locate(pack.info(0).video, frames)]
        length = parts[-1].table_offset + parts[-1].table_size - parts[0].offset
        assert [r[1:] for r in shard_requests(web)] == [(206, length)] and len(parts) == chunks


def test_of_a_large_chunk_the_table_and_the_packets_of_the_clip_are_read(web, monkeypatch, stored):
    """And of a chunk whose table is known, the packets alone."""
    monkeypatch.setattr(clip_module, "_WHOLE", 0)
    pack = Pack(web.pack)
    web.requests()
    for known in (False, True):
        pack.read(0, [2])
        chunk = pack.locate(pack.info(0).video, [2])[0].chunk
        table = pack._readers.table(chunk)
        sizes = [size for _, _, size in shard_requests(web)]
        assert sizes[:-1] == ([] if known else [chunk.table_size])
        assert table.size[0] < sizes[-1] < 0.6 * chunk.size
    check(pack, stored)


def test_a_clip_that_spans_a_quarter_of_a_chunk_reads_it_whole(web, monkeypatch):
    """A shorter one its table and its packets: no more than it needs."""
    monkeypatch.setattr(clip_module, "_SMALL", 0)
    for frames, requests in (([0, 7], 1), ([0, 6], 2), ([5], 2)):
        pack = Pack(web.pack)
        web.requests()
        pack.read(0, frames)
        assert len(shard_requests(web)) == requests


def test_the_chunks_of_a_clip_are_asked_for_at_the_same_time(line, monkeypatch):
    """Three tables come while the first is still awaited."""
    monkeypatch.setattr(clip_module, "_WHOLE", 0)
    together, serve = threading.Barrier(3), line.serve

    def slow(client):
        head = client.recv(1, __import__("socket").MSG_PEEK)
        assert head
        together.wait(5)
        serve(client)

    pack = Pack(line.pack)
    line.serve = slow
    pack.read(0, [0, 40, 79])
    assert len(line.heads) == 5 + 3 + 3


@pytest.mark.parametrize("times", [1, 4])
@pytest.mark.parametrize("fault", ["drops", "errors"])
def test_a_passing_failure_is_overcome(line, hasty, stored, times, fault):
    """A connection dropped in the middle of a body, HTTP 503: the request is made again."""
    pack = Pack(line.pack)
    before = len(line.heads)
    setattr(line, fault, times)
    check(pack, stored, [[3, 4]])
    assert len(line.heads) - before == 3 + times


@pytest.mark.parametrize("fault", ["drops", "errors"])
def test_a_lasting_failure_is_told_with_address_and_reason(line, hasty, fault):
    """After six tries; the next clip is read if the server is back."""
    pack = Pack(line.pack)
    before = len(line.heads)
    setattr(line, fault, 6)
    with pytest.raises(ClipError) as caught:
        pack.read(1, [3])
    assert caught.value.file.startswith(line.pack) and caught.value.sample == "a b/1.mp4"
    assert "6 tries" in str(caught.value) and len(line.heads) - before == 6
    assert ("503" in str(caught.value)) == (fault == "errors")
    assert pack.read(1, [3]).any()


def test_a_server_that_is_gone_is_told(web, hasty):
    with run_line(web.port) as line:
        address = f"{line.address}/my%20pack"
        pack = Pack(address)
    with pytest.raises(ClipError, match=r"6 tries") as caught:
        pack.read(0, [0])
    assert address in str(caught.value)
    with pytest.raises(PackError, match=address):
        Pack(address)


def test_waits_between_tries_grow(line, monkeypatch):
    slept = []

    async def sleep(seconds):
        slept.append(seconds)

    pack = Pack(line.pack)
    line.errors = 3
    monkeypatch.setattr(remote.asyncio, "sleep", sleep)
    pack.read(0, [0])
    assert len(slept) == 3
    for seconds, wait in zip(slept, (0.5, 1, 2), strict=True):
        assert 0.7 * wait < seconds < 1.3 * wait


def drip(client) -> None:
    """A body that goes on for as long as someone listens, a byte every 20 ms."""
    head = client.recv(65536)
    client.sendall(
        b"HTTP/1.1 206 Partial Content\r\nContent-Length: 5000\r\nConnection: close\r\n"
        b"Content-Range: bytes 0-4999/5000\r\n\r\n"
    )
    if head.startswith(b"HEAD"):  # an answer without a body
        return
    with contextlib.suppress(OSError):
        while True:
            client.sendall(b" ")
            time.sleep(0.02)


@pytest.mark.parametrize("kind", ["http", "s3"])
def test_a_server_that_drips_is_given_up(line, hasty, monkeypatch, kind):
    """It is never silent."""
    monkeypatch.setattr(request, "SILENT_SECONDS", 0.3)
    monkeypatch.setattr(request, "SLOWEST", 1e9)
    line.serve = drip
    address = line.pack
    if kind == "s3":
        pytest.importorskip("s3fs")
        monkeypatch.setenv("AWS_ENDPOINT_URL", line.address)
        monkeypatch.setenv("AWS_ACCESS_KEY_ID", "test")
        monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "test")
        monkeypatch.setattr(remote, "_clients", {})
        address = "s3://films/pack"
    with pytest.raises(PackError, match=r"slower than .* \(6 tries\)"):
        Pack(address)


def test_closing_a_loader_of_threads_awaits_no_silent_server(line, stored):
    """Its threads are told to give up, those of another loader are not; the next one reads."""
    torch = pytest.importorskip("torch")
    from matinee.data.clips import ClipSpec
    from matinee.data.loader import ClipLoader

    spec = ClipSpec(frames=4, size=32)
    silent, asked, serve = threading.Event(), threading.Semaphore(0), line.serve
    end = threading.Event()

    def hang(client):
        if silent.is_set():
            asked.release()
            end.wait(60)
        else:
            serve(client)

    line.serve = hang
    pack = Pack(line.pack)
    silent.set()
    hung = []

    def load():
        with (
            pytest.raises(KeyboardInterrupt),
            ClipLoader(pack, clip=spec, batch_size=3, workers=2, mode="threads") as loader,
        ):
            backend = loader._start()
            loader._refill(backend)
            assert asked.acquire(timeout=20) and asked.acquire(timeout=20)
            raise KeyboardInterrupt
        hung.append(False)

    thread = threading.Thread(target=load, daemon=True)
    other = threading.Thread(target=lambda: pack.read(0, [3]), daemon=True)
    other.start()
    assert asked.acquire(timeout=20)
    thread.start()
    thread.join(15)
    try:
        assert hung == [False] and other.is_alive() and not remote._abandoned
    finally:
        silent.clear()
        end.set()
    other.join(20)
    with ClipLoader(pack, clip=spec, batch_size=3, workers=2, mode="threads") as loader:
        assert torch.any(next(iter(loader)).video != 0)


def test_what_no_other_try_would_change_is_told_at_once(web, line, hasty, monkeypatch):
    """An https:// address of a server without; names, profiles and endpoints that cannot be."""
    with pytest.raises(PackError, match="SSL") as caught:
        Pack(web.pack.replace("http://", "https://"))
    assert "tries" not in str(caught.value)
    pytest.importorskip("s3fs")
    for name, value, address, words in (
        ("AWS_REGION", "us-east-1", "s3://BAD_bucket!/x", "bucket"),
        ("AWS_PROFILE", "nosuch", "s3://films/x", "nosuch"),
        ("AWS_ENDPOINT_URL", "notaurl", "s3://films/x", "notaurl"),
    ):
        with monkeypatch.context() as patch:
            patch.setattr(remote, "_clients", {})
            patch.setenv("AWS_ENDPOINT_URL", line.address)
            patch.setenv("AWS_ACCESS_KEY_ID", "test")
            patch.setenv("AWS_SECRET_ACCESS_KEY", "test")
            patch.setenv(name, value)
            with pytest.raises(PackError, match=words) as caught:
                Pack(address)
            assert "tries" not in str(caught.value)


def test_a_full_temporary_folder_is_told(web, tmp_path, monkeypatch):
    """With its name, how much is needed, and how to name another."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (100, hard))
        with pytest.raises(PackError, match=r"TMPDIR") as caught:
            Pack(web.pack)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert str(tmp_path) in str(caught.value) and re.search(r"needs \d+ bytes", str(caught.value))
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "none"))
    with pytest.raises(PackError, match=r"No such file.*TMPDIR"):
        Pack(web.pack)


@pytest.mark.parametrize("status", ["403 Forbidden", "404 Not Found", "400 Bad Request"])
def test_what_cannot_pass_is_told_at_once(line, status):
    pack = Pack(line.pack)
    before = len(line.heads)
    line.errors, line.status = 1, status
    with pytest.raises(ClipError, match="no such file" if "404" in status else status):
        pack.read(0, [0])
    assert len(line.heads) == before + 1


@pytest.mark.parametrize("path", ["hidden/x", "elsewhere/my%20pack"])
def test_a_pack_that_is_denied_or_elsewhere_is_refused(web, path):
    """A redirection is not followed."""
    web.requests()
    with pytest.raises(PackError, match=r"403|302"):
        Pack(f"{web.address}/{path}")
    assert len(web.requests()) == 1


def test_no_pack_at_an_address(web):
    with pytest.raises(PackError, match="no pack"):
        Pack(f"{web.address}/nothing")


def test_a_server_without_byte_ranges_is_refused(made):
    """Python's own one."""

    class Quiet(http.server.SimpleHTTPRequestHandler):
        def log_message(self, *args) -> None:
            pass

    handler = partial(Quiet, directory=str(made))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}).start()
        with pytest.raises(PackError, match="byte ranges"):
            Pack(f"http://127.0.0.1:{server.server_address[1]}/my%20pack")
        server.shutdown()


def test_an_object_that_was_replaced_is_noticed(copy, web):
    """By its size with the first read; of the same size, by the packets' checksums."""
    folder, address = copy
    pack = Pack(address)
    first, second = (folder / "shards" / f"00000{n}.tar" for n in range(2))
    first.write_bytes(first.read_bytes() + b"\0")
    data = bytearray(second.read_bytes())
    row = next(r for r in pq.read_table(folder / "chunks.parquet").to_pylist() if r["file"] == 1)
    data[row["offset"] + 200 : row["offset"] + 2000] = bytes(1800)
    second.write_bytes(data)
    web.requests()
    with pytest.raises(ClipError, match="replaced"):
        pack.read(0, [0])
    assert len(shard_requests(web)) == 1
    with pytest.raises(ClipError, match=r"damaged|checksum|wrong|invalid"):
        pack.read(1, [0, 8, 30])
    second.unlink()
    with pytest.raises(ClipError, match="no such file"):
        pack.read(1, [40])


@pytest.mark.parametrize(
    "name",
    ["http://127.0.0.1:1/x.tar", "file:///etc/passwd", "/etc/passwd", "../my pack/x.tar",
     "shards/../../x", "shards//x", "", ".", "s3://other/x", "shards\\..\\x", "shards/\n/x"],
)  # fmt: skip
def test_files_of_a_remote_pack_lie_below_its_address(copy, web, name):
    """Other hosts, schemes and folders are refused when the pack is opened, and never asked."""
    folder, address = copy
    table = pq.read_table(folder / "files.parquet")
    rows = table.to_pylist()
    rows[0]["path"] = name
    pq.write_table(type(table).from_pylist(rows, schema=table.schema), folder / "files.parquet")
    with pytest.raises(PackError, match="outside itself"):
        Pack(address)


@pytest.mark.parametrize("name", ["..%2f..%2fx", "%2e%2e/x", "x?y=1#z", "http:x"])
def test_odd_names_of_files_stay_names(copy, web, name):
    """What looks encoded is encoded once more; a question mark begins no query."""
    folder, address = copy
    table = pq.read_table(folder / "files.parquet")
    rows = table.to_pylist()
    rows[0]["path"] = name
    pq.write_table(type(table).from_pylist(rows, schema=table.schema), folder / "files.parquet")
    (folder / name).parent.mkdir(exist_ok=True)
    (folder / "shards" / "000000.tar").rename(folder / name)
    pack = Pack(address)
    web.requests()
    assert np.array_equal(pack.read(0, [3]), Pack(folder).read(0, [3]))
    assert [path.startswith("/copy/") for path, _, _ in web.requests()] == [True]


def test_secrets_of_an_address_are_sent_and_never_shown(line, hasty):
    """A password, a signature: not in the path of the pack, an error, a worker's job as text."""
    secret = line.pack.replace("http://", "http://me:hush@") + "?sig=hidden"
    pack = Pack(secret)
    parts = pack.locate(pack.info(0).video, [0])
    line.errors = 6
    with pytest.raises(ClipError) as caught:
        pack.read(0, [0])
    line.errors, line.status = 1, "403 Forbidden"
    with pytest.raises(ClipError) as denied:
        pack.read(0, [0])
    shown = [str(pack.path), pack.name, repr(parts), str(caught.value), str(denied.value)]
    for text in (*shown, caught.value.file):
        assert not any(word in text for word in ("hush", "hidden", "me:"))
    for head in line.heads:
        assert b"?sig=hidden HTTP" in head and b"Authorization: Basic bWU6aHVzaA==" in head
    assert pickle.loads(pickle.dumps(parts)) == parts and pack.read(0, [0]).any()


def test_addresses_in_the_errors_of_libraries_lose_what_is_secret():
    """However they write them."""
    text = "cannot reach url='https://me:h%75sh@host:1/a/b?sig=hidd%65n&x=1' now"
    assert request.words(OSError(text)) == "OSError: cannot reach url='https://host:1/a/b' now"


@pytest.mark.parametrize(
    "address",
    ["ftp://host/x", "file:///x", "http://", "s3://key@bucket/x", "http://127.0.0.1:99999/x",
     "http://[::1/x", "http://h:abc/x", "http://me:hush/@h/x", "HTTPS://h:abc/x"],
)  # fmt: skip
def test_addresses_that_cannot_be_read_are_refused(address):
    with pytest.raises(ConfigError) as caught:
        Pack(address)
    assert "hush" not in str(caught.value)


def test_the_kind_of_an_address_may_be_in_capitals(web):
    pack = Pack(web.pack.replace("http://", "HTTP://"))
    assert pack.path == web.pack and pack.read(0, [3]).any()


def test_a_forked_process_reads_too(web, stored):
    """After its parent has read: neither shares the other's connections."""
    pack = Pack(web.pack)
    check(pack, stored, [[3, 4]])
    child = os.fork()
    if not child:
        try:
            check(pack, stored, [[5, 40]])
            os._exit(0)
        finally:
            os._exit(1)
    assert os.waitpid(child, 0)[1] == 0
    check(pack, stored, [[6]])


def test_worker_processes_read_by_themselves(web, made):
    """The batches of a loader are those of the local pack."""
    torch = pytest.importorskip("torch")
    from matinee.data.clips import ClipSpec
    from matinee.data.loader import ClipLoader

    def batches(path):
        spec = ClipSpec(frames=4, size=32)
        with ClipLoader(Pack(path), clip=spec, batch_size=3, repeats=2, workers=2) as loader:
            return [batch.video for batch in loader]

    ours, theirs = batches(web.pack), batches(made / "my pack")
    assert len(ours) == 2 and all(torch.equal(a, b) for a, b in zip(ours, theirs, strict=True))


def test_workers_of_local_packs_load_no_client(made):
    """Nor does the module they import load pyarrow or torch."""
    pack = Pack(made / "my pack")
    parts = pack.locate(pack.info(0).video, [0, 40])
    code = (
        "import sys, pickle, numpy as np; from matinee.data.decode_job import ClipReader\n"
        "formats, parts = pickle.load(sys.stdin.buffer)\n"
        "out = np.empty((2, 32 * 32 * 3 // 2), np.uint8)\n"
        "ClipReader(formats).read(parts, out, box=None, size=(32, 32))\n"
        "heavy = {'pyarrow', 'torch', 'fsspec', 'aiohttp', 's3fs', 'asyncio'} & set(sys.modules)\n"
        "assert out.any() and not heavy, heavy"
    )
    data = pickle.dumps((pack.formats, parts))
    subprocess.run([sys.executable, "-c", code], input=data, check=True, timeout=60)


def test_info_of_an_address(web, made, capsys):
    assert main(["info", web.pack, "--json", "-"]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert facts["path"] == web.pack and facts["chunks"] == 9
    assert isinstance(open_data(web.pack), Pack)


# --- a server that speaks S3 --------------------------------------------------------------------


@pytest.fixture(scope="module")
def bucket(made):
    """The pack in a bucket, and a line to its server."""
    pytest.importorskip("s3fs")
    server_module = pytest.importorskip("moto.server")
    boto3 = pytest.importorskip("boto3")
    server = server_module.ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    with pytest.MonkeyPatch.context() as patch, run_line(port) as proxy:
        patch.setenv("AWS_ACCESS_KEY_ID", "test")
        patch.setenv("AWS_SECRET_ACCESS_KEY", "very-secret")
        patch.setenv("AWS_DEFAULT_REGION", "us-east-1")
        patch.setenv("AWS_ENDPOINT_URL", proxy.address)
        remote._clients.clear()
        proxy.client = boto3.client("s3", endpoint_url=f"http://{host}:{port}")
        proxy.client.create_bucket(Bucket="films")
        for file in (made / "my pack").rglob("*"):
            if file.is_file():
                key = f"sets/my pack/{file.relative_to(made / 'my pack')}"
                proxy.client.put_object(Bucket="films", Key=key, Body=file.read_bytes())
        proxy.pack = "s3://films/sets/my pack"
        yield proxy
    server.stop()
    remote._clients.clear()


def test_clips_of_a_bucket_are_the_frames_of_the_stored_files(bucket, stored):
    check(Pack(bucket.pack), stored)
    assert main(["info", bucket.pack]) == 0


def test_a_clip_of_a_bucket_takes_one_request(bucket):
    """And one more, for the size of the file, when that is first read."""
    pack = Pack(bucket.pack)
    remote._client("s3").sizes.clear()
    for requests in (2, 1, 1):
        before = len(bucket.heads)
        pack.read(2, [3, 4])
        heads = bucket.heads[before:]
        assert len(heads) == requests and heads[-1].startswith(b"GET ")
        assert b"range: bytes=" in heads[-1].lower()


@pytest.mark.parametrize("fault", ["drops", "errors"])
def test_failures_of_a_bucket_are_overcome_or_told(bucket, hasty, stored, fault):
    pack = Pack(bucket.pack)
    check(pack, stored, [[3]])
    setattr(bucket, fault, 3)
    check(pack, stored, [[3, 4]])
    setattr(bucket, fault, 6)
    with pytest.raises(ClipError, match=r"6 tries") as caught:
        pack.read(0, [3])
    assert "s3://films" in str(caught.value) and "very-secret" not in str(caught.value)
    setattr(bucket, fault, 0)


def test_what_a_bucket_lacks_or_denies_is_told_at_once(bucket):
    with pytest.raises(PackError, match="no pack"):
        Pack("s3://films/none")
    pack = Pack(bucket.pack)
    pack.read(0, [3])
    before = len(bucket.heads)
    bucket.errors, bucket.status = 1, "403 Forbidden"
    with pytest.raises(ClipError, match="denied"):
        pack.read(0, [3])
    assert len(bucket.heads) == before + 1
    bucket.status = "503 Service Unavailable"


def test_an_object_of_a_bucket_that_was_replaced_is_noticed(bucket, made):
    key = "sets/my pack/shards/000001.tar"
    data = (made / "my pack" / "shards" / "000001.tar").read_bytes()
    pack = Pack(bucket.pack)
    remote._client("s3").sizes.clear()
    bucket.client.put_object(Bucket="films", Key=key, Body=data[:-512])
    try:
        with pytest.raises(ClipError, match="replaced"):
            pack.read(1, [0])
    finally:
        bucket.client.put_object(Bucket="films", Key=key, Body=data)
        remote._client("s3").sizes.clear()
    assert pack.read(1, [0]).any()


# --- a server that speaks Google's JSON interface -----------------------------------------------


@pytest.fixture
def google(made, monkeypatch):
    """The pack in a bucket; `faults` are statuses to answer with, `asked` the requests."""
    pytest.importorskip("gcsfs")
    faults: list[int] = []
    asked: list[str] = []

    class Objects(http.server.BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, *args) -> None:
            pass

        def do_GET(self) -> None:
            asked.append(self.path)
            place = urllib.parse.urlsplit(self.path)
            found = re.fullmatch(r"(?:/download)?/storage/v1/b/films/o/(.+)", place.path)
            name = urllib.parse.unquote(found[1]) if found else ""
            file = made / name.removeprefix("sets/")
            status, body = 200, b""
            if faults:
                status = faults.pop(0)
                error = {"code": status, "message": "a reason"}
                body = json.dumps({"error": error}).encode()
            elif not name or not file.is_file():
                status = 404
            elif place.path.startswith("/download"):
                first, last = re.fullmatch(r"bytes=(\d+)-(\d+)", self.headers["Range"]).groups()
                status, body = 206, file.read_bytes()[int(first) : int(last) + 1]
            else:
                size = file.stat().st_size
                body = json.dumps({"name": name, "bucket": "films", "size": str(size)}).encode()
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Objects) as server:
        server.daemon_threads, server.block_on_close = True, False
        threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}).start()
        monkeypatch.setattr(remote, "_clients", {})
        monkeypatch.setenv("NO_GCE_CHECK", "true")  # nothing else is asked for credentials
        monkeypatch.setenv("STORAGE_EMULATOR_HOST", f"http://127.0.0.1:{server.server_address[1]}")
        yield faults, asked, "gs://films/sets/my pack"
        server.shutdown()


def test_clips_of_a_google_bucket_are_the_frames_of_the_stored_files(google, stored):
    """In one request, once the size of the file is known."""
    _, asked, address = google
    pack = Pack(address)
    check(pack, stored)
    asked.clear()
    pack.read(2, [3, 4])
    assert len(asked) == 1
    with pytest.raises(PackError, match="no pack"):
        Pack("gs://films/none")


def test_failures_of_a_google_bucket_are_overcome_or_told(google, hasty, stored, caplog):
    """With as many requests as elsewhere, and nothing else in the log."""
    faults, asked, address = google
    pack = Pack(address)
    check(pack, stored, [[3]])
    faults[:] = [503, 429, 502]
    check(pack, stored, [[3, 4]])
    for status, requests in ((503, 6), (401, 1), (400, 1), (404, 1)):
        faults[:] = [status] * 50
        asked.clear()
        with pytest.raises(ClipError, match="no such file" if status == 404 else str(status)):
            pack.read(0, [3])
        assert len(asked) == requests
    faults[:] = [403] * 50
    with pytest.raises(ClipError, match="denied"):
        pack.read(0, [3])
    faults.clear()
    assert not [record for record in caplog.records if record.name.startswith("gcsfs")]


def test_without_the_package_the_install_command_is_told(monkeypatch):
    monkeypatch.setitem(sys.modules, "fsspec", None)
    monkeypatch.setattr(remote, "_clients", {})
    with pytest.raises(MatineeError, match=r"matinee\[remote\]"):
        Pack("http://127.0.0.1:1/x")


def test_a_whole_chunk_is_a_video_of_its_own(web, made, sequential):
    """From afar and from the folder."""
    frames = None
    for path in (web.pack, made / "my pack"):
        pack = Pack(path)
        chunk = pack.locate(pack.info(0).video, [0])[0].chunk
        data = bytes(clip_module.ClipReader(pack.formats).chunk(chunk))
        own = sequential(io.BytesIO(data))
        assert len(own) == chunk.frames and (frames is None or np.array_equal(own, frames))
        frames = own
