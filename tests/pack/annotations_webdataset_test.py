"""Tar shards: what is said about a video, where its bytes lie, and what hostile tars do not do."""

from __future__ import annotations

import io
import json
import tarfile
from pathlib import Path

import pytest

from matinee.errors import AnnotationError
from matinee.media.source import open_bytes
from matinee.pack.annotations import Sample
from matinee.pack.annotations.finder import VideoFinder
from matinee.pack.annotations.registry import read_annotations


def shard(path: Path, members: dict[str, bytes], **options) -> Path:
    with tarfile.open(path, "w", **options) as tar:
        for name, data in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))
    return path


def read(*files: Path):
    spec = "webdataset:" + ",".join(map(str, files))
    return read_annotations(spec, VideoFinder(files[0].parent))


@pytest.mark.parametrize("form", [tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT])
def test_members_of_a_key_are_one_sample(tmp_path, form):
    """txt, cls and json; long names; dots in folders; the bytes are those of the member."""
    deep = "a.b/" + "d" * 90 + "/0001"
    first = shard(
        tmp_path / "train-000000.tar",
        {
            "0000.mp4": b"zero", "0000.txt": b"a man\nruns\n", "0000.cls": b"7\n",
            f"{deep}.json": json.dumps({"caption": ["x", "y"], "label": 3, "other": {}}).encode(),
            f"{deep}.webm": b"one", "0002.mp4": b"two", "0002.jpg": b"thumbnail",
            "README": b"about",
        },
        format=form,
    )  # fmt: skip
    second = shard(tmp_path / "val-000000.tar", {"0000.mkv": b"three"}, format=form)
    found = read(first, second)
    assert found.samples == [
        Sample(name, name, label, split, text=text)
        for name, label, split, text in [
            ("train-000000/0000.mp4", "7", "train", "a man\nruns"),
            (f"train-000000/{deep}.webm", "3", "train", "x\ny"),
            ("train-000000/0002.mp4", None, "train", None),
            ("val-000000/0000.mkv", None, "val", None),
        ]
    ]
    for video, data in zip(found.videos, [b"zero", b"one", b"two", b"three"], strict=True):
        with open_bytes(video.path) as file:
            assert file.read() == data
    assert sorted(Path(what).name for what, _ in found.bystanders) == [
        "train-000000.tar:0002.jpg",
        "train-000000.tar:README",
    ]


def test_nothing_leaves_a_hostile_tar(tmp_path):
    """Names with .. or /, links, devices, pipes: refused and listed; the sound member stays."""
    path, outside = tmp_path / "in" / "a.tar", tmp_path / "outside.mp4"
    path.parent.mkdir()
    outside.write_bytes(b"secret")
    kinds = {
        "../up.mp4": tarfile.REGTYPE, "a/../../up.mp4": tarfile.REGTYPE, str(outside): b"0",
        "soft.mp4": tarfile.SYMTYPE, "hard.mp4": tarfile.LNKTYPE, "pipe.mp4": tarfile.FIFOTYPE,
        "char.mp4": tarfile.CHRTYPE, "block.mp4": tarfile.BLKTYPE,
    }  # fmt: skip
    with tarfile.open(path, "w") as tar:
        for name, kind in kinds.items():
            info = tarfile.TarInfo(name)
            info.type, info.linkname = kind, str(outside)
            tar.addfile(info)
        info = tarfile.TarInfo("good.mp4")
        info.size = 4
        tar.addfile(info, io.BytesIO(b"good"))
    before = {p: p.read_bytes() for p in tmp_path.rglob("*") if p.is_file()}
    found = read(path)
    assert [v.id for v in found.videos] == ["a/good.mp4"]
    assert len(found.refused) == len(kinds)
    reasons = {what.rpartition(":")[2]: why for what, why in found.refused}
    assert "leaves the shard" in reasons["../up.mp4"] and "link" in reasons["soft.mp4"]
    assert "link" in reasons["hard.mp4"] and "no regular file" in reasons["pipe.mp4"]
    assert before == {p: p.read_bytes() for p in tmp_path.rglob("*") if p.is_file()}


def header(name: str, size: bytes, kind: bytes = b"0") -> bytes:
    """A ustar header with any size field and a right checksum."""
    info = tarfile.TarInfo(name)
    raw = bytearray(info.tobuf(tarfile.USTAR_FORMAT)[:512])
    raw[124:136], raw[156:157] = size.ljust(12, b"\0"), kind
    raw[148:156] = b" " * 8
    raw[148:156] = f"{sum(raw):06o}\0 ".encode()
    return bytes(raw)


END = bytes(1024)
NEGATIVE = b"\xff" + (-1024).to_bytes(11, "big", signed=True)
HUGE = b"\x80" + (1 << 62).to_bytes(11, "big")


@pytest.mark.parametrize(
    ("raw", "words"),
    {
        "a size beyond the file": (header("a.mp4", b"77777777777") + b"x" * 512 + END, "outside"),
        "a huge size": (header("a.mp4", HUGE) + b"x" * 512 + END, "outside|no sound tar"),
        "a negative size": (
            header("a.txt", b"00000000000") + header("a.mp4", NEGATIVE) + END, "outside|no sound",
        ),
        "a long name of a terabyte": (
            header("././@LongLink", HUGE, b"L") + b"x" * 512 + END, "no sound tar",
        ),
        "a pax header of a gigabyte": (
            header("p", b"10000000000", b"x") + b"x" * 512 + END, "no sound tar",
        ),
        "long names without end": (
            (header("././@LongLink", b"00000000001", b"L") + b"x" + bytes(511)) * 3000 + END,
            "no sound tar",
        ),
        "cut off": (header("a.mp4", b"00000002000") + b"x" * 512, "outside|no sound tar"),
        "gzip": (b"\x1f\x8b\x08" + bytes(600), "is compressed"),
        "no tar": (b"ordinary text " * 100, "no sound tar"),
        "nothing": (b"", "no sound tar|holds no videos"),
        "empty": (END, "holds no videos"),
        "text that is no JSON": (header("a.json", b"3") + b"abc" + bytes(509) + END, "be read"),
    }.values(),
)  # fmt: skip
def test_damaged_and_malicious_tars_are_errors(tmp_path, raw, words):
    """Neither memory by the size a header claims, nor an endless walk."""
    path = tmp_path / "a.tar"
    path.write_bytes(raw)
    with pytest.raises(AnnotationError, match=words):
        read(path)


def test_a_sparse_member_is_refused(tmp_path):
    """Its bytes in the tar are not those of the file."""
    path = tmp_path / "a.tar"
    info = tarfile.TarInfo("s.mp4")
    info.size = 4
    info.pax_headers = {
        "GNU.sparse.major": "1", "GNU.sparse.minor": "0", "GNU.sparse.realsize": "1000000",
        "GNU.sparse.name": "s.mp4",
    }  # fmt: skip
    with tarfile.open(path, "w", format=tarfile.PAX_FORMAT) as tar:
        info.size = 512
        tar.addfile(info, io.BytesIO(b"1\n0\n4\n".ljust(512, b"\0")))
        good = tarfile.TarInfo("good.mp4")
        tar.addfile(good)
    found = read(path)
    assert [v.id for v in found.videos] == ["a/good.mp4"]
    assert "sparse" in found.refused[0][1]


def test_two_members_of_a_name_or_two_videos_of_a_key_are_errors(tmp_path):
    """Which one counts is for no reader to guess."""
    path = tmp_path / "a.tar"
    with tarfile.open(path, "w") as tar:
        for _ in range(2):
            tar.addfile(tarfile.TarInfo("0.mp4"))
    with pytest.raises(AnnotationError, match="twice"):
        read(path)
    with pytest.raises(AnnotationError, match="another video"):
        read(shard(tmp_path / "b.tar", {"0.mp4": b"", "0.mkv": b""}))


def test_numbered_shards_are_counted(tmp_path):
    """{000..002} is three files, with their zeros."""
    for n in range(4):
        shard(tmp_path / f"{n:03d}.tar", {f"{n}.mp4": b"x"})
    found = read_annotations(f"webdataset:{tmp_path}/{{000..002}}.tar", VideoFinder(tmp_path))
    assert [v.id for v in found.videos] == ["000/0.mp4", "001/1.mp4", "002/2.mp4"]


def test_shards_of_one_name_are_told_apart_by_their_folders(tmp_path, monkeypatch):
    """Only those; another shard keeps its name alone. Splits come from the folders' names too."""
    for name in ("train/00.tar", "val/00.tar", "test-1.tar"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        shard(tmp_path / name, {"0.mp4": b"x"})
    files = [tmp_path / name for name in ("train/00.tar", "val/00.tar", "test-1.tar")]
    expected = [("train/00/0.mp4", "train"), ("val/00/0.mp4", "val"), ("test-1/0.mp4", "test")]
    assert [(s.video, s.split) for s in read(*files).samples] == expected
    (tmp_path / "p" / "q").mkdir(parents=True)
    for name in ("p/0.tar", "p/q/0.tar"):
        shard(tmp_path / name, {"0.mp4": b"x"})
    monkeypatch.chdir(tmp_path / "p" / "q")
    ids = [v.id for v in read(Path("../0.tar"), Path("0.tar")).videos]
    assert ids == ["p/0/0.mp4", "q/0/0.mp4"]


def test_a_shard_without_a_split_beside_others_with_one_is_an_error(tmp_path):
    files = [shard(tmp_path / n, {"0.mp4": b"x"}) for n in ("train-0.tar", "more.tar")]
    plain = tmp_path / "data"
    plain.mkdir()
    files = [file.rename(plain / file.name) for file in files]
    with pytest.raises(AnnotationError, match=r"'more/0.mp4' has no split"):
        read(*files)


def test_a_member_whose_name_is_no_text_is_refused_alone(tmp_path):
    """Bytes of another encoding; the other members stay."""
    path = shard(tmp_path / "a.tar", {"good.mp4": b"x", "b@d.mp4": b"y", "b@d.txt": b"t"})
    raw = bytearray(path.read_bytes())
    while (at := raw.find(b"b@d.")) >= 0:
        raw[at + 1] = 0xE4
        block = at // 512 * 512
        raw[block + 148 : block + 156] = b" " * 8
        total = sum(raw[block : block + 512])
        raw[block + 148 : block + 156] = f"{total:06o}\0 ".encode()
    path.write_bytes(raw)
    found = read(path)
    assert [v.id for v in found.videos] == ["a/good.mp4"]
    assert [why for _, why in found.refused] == ["has a name that is not UTF-8"] * 2


@pytest.mark.parametrize(
    ("said", "words"),
    [
        ('{"label": 1.5}', "label is a float"),
        ('{"label": true}', "label is a bool"),
        ('{"caption": {"a": 1}}', "caption is a dict"),
        ('{"caption": ["a", 1]}', "caption is a list of other things than texts"),
        ('{"caption": "half \\ud800"}', "caption holds half a character"),
        ('{"caption": ["half \\ud800"]}', "caption holds half a character"),
    ],
)
def test_what_json_says_is_text_or_whole_numbers_or_refused_with_its_place(tmp_path, said, words):
    path = shard(tmp_path / "a.tar", {"0.mp4": b"x", "0.json": said.encode()})
    with pytest.raises(AnnotationError, match=f"a.tar:0.json cannot be read: {words}"):
        read(path)


def test_nothing_said_in_json_is_nothing(tmp_path):
    """null, blank, and an empty list are passed over for the next field."""
    said = b'{"label": null, "caption": [], "text": "b", "size": 1.5}'
    (sample,) = read(shard(tmp_path / "a.tar", {"0.mp4": b"x", "0.json": said})).samples
    assert (sample.label, sample.text) == (None, "b")
