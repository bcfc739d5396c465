"""Reading packs: clips are the stored frames bit for bit, and damage is told."""

from __future__ import annotations

import io
import json
import os
import shutil
import tarfile
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from matinee.cli import main as cli
from matinee.errors import ClipError, ConfigError, PackError
from matinee.media.decode import Box
from matinee.pack.annotations import Annotations, Sample, VideoFile
from matinee.pack.format import CHUNKS, VERSION
from matinee.pack.profiles import make_profile
from matinee.pack.reading.reader import Pack
from matinee.pack.reading.table_file import TableFile
from matinee.pack.writing.writer import write_pack

FRAMES = 80


@pytest.fixture(scope="module")
def made(tmp_path_factory, film) -> Path:
    """Three films in chunks of 32 frames, samples of two splits, a column `person`."""
    root = tmp_path_factory.mktemp("made")
    paths = [film(root / f"{n}.mp4", frames=FRAMES, seed=n) for n in range(3)]
    videos = tuple(VideoFile(path.name, path) for path in paths)
    samples = (
        Sample("0", "0.mp4", "run", "train", extra=(("person", "1"),)),
        Sample("1a", "1.mp4", "walk", "train", 0.4, 2.4, extra=(("person", "2"),)),
        Sample("1b", "1.mp4", "run", "val", 2.0, None, extra=(("person", "2"),)),
        Sample("2", "2.mp4", "sit", "test", extra=(("person", "10"),)),
    )
    profile = make_profile(preset="ultrafast", chunk_seconds=1.0)
    write_pack(root / "pack", Annotations(videos, samples), profile, workers=1)
    return root / "pack"


@pytest.fixture
def pack_path(made, tmp_path) -> Path:
    """A copy to damage."""
    shutil.copytree(made, tmp_path / "pack")
    return tmp_path / "pack"


@pytest.fixture(scope="module")
def stored(made, sequential) -> dict[str, list[np.ndarray]]:
    """Frames by video: the shard's MP4s, in order of their names, decoded from start to end."""
    frames: dict[str, list[np.ndarray]] = {}
    with tarfile.open(made / "shards" / "000000.tar") as tar:
        for name in sorted(n for n in tar.getnames() if n.endswith(".mp4")):
            data = tar.extractfile(name).read()
            frames.setdefault(str(Path(name).parent), []).extend(sequential(io.BytesIO(data)))
    return frames


def test_clips_are_the_frames_of_the_chunk_s_mp4(made, stored):
    """Random frames of every sample, also those that span two and three chunks."""
    pack, rng = Pack(made), np.random.default_rng(0)
    assert pack.num_chunks == 9 and pack.num_frames == 3 * FRAMES
    wishes = [[30, 31, 32, 33], [0, 31, 32, 63, 64, 79], [33, 31, 33, 0]]
    for index in range(len(pack)):
        info = pack.info(index)
        random = [rng.integers(0, info.num_frames, 6).tolist() for _ in range(6)]
        for frames in random + [w for w in wishes if max(w) < info.num_frames]:
            clip = pack.read(index, frames, pixels="i420")
            for row, frame in zip(clip, frames, strict=True):
                assert np.array_equal(row, stored[info.video][info.first_frame + frame])


def test_a_clip_across_chunks_gets_one_crop(made, stored):
    """The same box on both sides of the border."""
    box = Box(10, 6, 40, 32)
    clip = Pack(made).read(0, [31, 32], size=(32, 40), box=box, pixels="i420")
    for row, frame in zip(clip, (31, 32), strict=True):
        luma = stored["0.mp4"][frame][: 96 * 64].reshape(64, 96)
        assert np.array_equal(row[: 32 * 40].reshape(32, 40), luma[6:38, 10:50])


def test_spans_in_seconds_become_frames(made):
    """25 fps: 0.4–2.4 s are frames 10 … 59; from 2 s to the end 30 frames."""
    pack = Pack(made)
    spans = [(pack.info(i).first_frame, pack.info(i).num_frames) for i in range(4)]
    assert spans == [(0, 80), (10, 50), (50, 30), (0, 80)]


@pytest.mark.parametrize("frame", [-1, 50, 10**6])
def test_frames_outside_a_sample_are_an_index_error(made, frame):
    with pytest.raises(IndexError, match="1a"):
        Pack(made).read(1, [0, frame])


def test_rgb_is_height_width_three(made):
    clip = Pack(made).read(0, [0, 40])
    assert clip.shape == (2, 64, 96, 3) and clip.dtype == np.uint8
    assert clip.std() > 10


@pytest.mark.parametrize(
    ("which", "expected"),
    [
        (None, [0, 1, 2, 3]), ("train", [0, 1]), ("val", [2]), ("train,val", [0, 1, 2]),
        ("split=test", [3]), ("person=2", [1, 2]), ("person=1,10", [0, 3]), ("label=run", [0, 2]),
        ("video=1.mp4", [1, 2]),
    ],
)  # fmt: skip
def test_select_by_split_or_any_column(made, which, expected):
    assert Pack(made).select(which).tolist() == expected


@pytest.mark.parametrize(
    ("which", "words"),
    [
        ("dev", "train, val"),
        ("person=3", "1, 10, 2"),
        ("persons=1", "person"),
        ("", "no sample"),
        ("person=", "no sample"),
    ],
)
def test_a_selection_of_nothing_says_what_there_is(made, which, words):
    with pytest.raises(ConfigError, match=words):
        Pack(made).select(which)


def test_splits_are_counted(made):
    assert Pack(made).splits() == {"test": 1, "train": 2, "val": 1}


def edit(path: Path, **changes) -> None:
    meta = json.loads(path.read_text())
    path.write_text(json.dumps({**meta, **changes}))


@pytest.mark.parametrize("version", [VERSION + 1, 99, "1", None, 1.5])
def test_a_pack_of_a_newer_or_unknown_version_is_refused(pack_path, version):
    edit(pack_path / "pack.json", version=version)
    with pytest.raises(PackError, match="version"):
        Pack(pack_path)


@pytest.mark.parametrize(
    "content", [b"", b"{", b"[]", b"null", b'{"format": "other"}', b"\xff\xfe", b"1"]
)
def test_a_damaged_manifest_is_refused(pack_path, content):
    (pack_path / "pack.json").write_bytes(content)
    with pytest.raises(PackError):
        Pack(pack_path)


@pytest.mark.parametrize("classes", [None, "run", [1, 2], {"a": 1}])
def test_a_manifest_without_classes_is_refused(pack_path, classes):
    edit(pack_path / "pack.json", classes=classes)
    with pytest.raises(PackError, match="classes"):
        Pack(pack_path)


@pytest.mark.parametrize(
    ("name", "value"),
    [("profile", 5), ("profile", {"a": 1}), ("profile", {"name": "x", "stride": "4"}),
     ("profile", []), ("bytes", "x"), ("bytes", None), ("refused", [1]), ("samples", True),
     ("videos", -1), ("seconds_of_video", float("nan")), ("seconds_of_video", "1")],
)  # fmt: skip
def test_a_manifest_with_other_facts_than_a_pack_s_is_refused_in_a_line(
    pack_path, capsys, name, value
):
    path = pack_path / "pack.json"
    if name == "profile":
        edit(path, profile=value)
    else:
        edit(path, report={**json.loads(path.read_text())["report"], name: value})
    assert cli(["info", str(pack_path)]) == 2
    error = capsys.readouterr().err.strip().splitlines()
    assert len(error) == 1 and name in error[0] and "pack.json is damaged" in error[0]


def test_a_small_table_of_very_many_equal_rows_is_refused_unread(pack_path):
    """Two million rows of one value take some kilobytes; `TableFile` itself reads no column."""
    path = pack_path / "chunks.parquet"
    table = pq.read_table(path)
    many = pa.table({n: pa.repeat(table.column(n)[0], 2_000_000) for n in table.column_names})
    pq.write_table(many, path)
    assert path.stat().st_size < 200_000
    with pytest.raises(PackError, match=r"chunks\.parquet is damaged: .* 2000000 rows"):
        TableFile(path, CHUNKS)


@pytest.mark.parametrize("name", ["chunks", "codecs", "files", "samples"])
def test_a_table_with_a_column_twice_is_refused(pack_path, name):
    path = pack_path / f"{name}.parquet"
    table = pq.read_table(path)
    first = table.column_names[0]
    pq.write_table(table.append_column(first, table.column(first)), path)
    with pytest.raises(PackError, match=rf"{name}\.parquet is damaged: .*'{first}' twice"):
        Pack(pack_path)


@pytest.mark.parametrize(
    ("column", "value"),
    [("codec", "ansi"), ("codec", "tmv"), ("codec", "aac"), ("codec", "h264_cuvid"),
     ("pix_fmt", "none-such"), ("pix_fmt", "cuda"), ("pix_fmt", "")],
)  # fmt: skip
def test_only_decoders_that_packs_can_hold_are_opened(pack_path, column, value):
    rewrite(pack_path / "codecs.parquet", column, 0, value)
    with pytest.raises(PackError, match=rf"codecs\.parquet: .*'{value}'"):
        Pack(pack_path)


def test_what_is_no_pack_is_refused(tmp_path):
    with pytest.raises(PackError, match="no pack"):
        Pack(tmp_path / "none")
    with pytest.raises(PackError, match="no pack"):
        Pack(tmp_path)
    (tmp_path / "file").write_text("x")
    with pytest.raises(PackError, match="no pack"):
        Pack(tmp_path / "file")


TABLES = ["chunks", "codecs", "files", "samples"]


@pytest.mark.parametrize("name", TABLES)
@pytest.mark.parametrize("damage", ["gone", "empty", "text", "cut", "zeroed", "column", "type"])
def test_a_damaged_table_is_refused(pack_path, name, damage):
    """Its name is in the message."""
    path = pack_path / f"{name}.parquet"
    data, table = path.read_bytes(), pq.read_table(path)
    footer = len(data) - 8 - int.from_bytes(data[-8:-4], "little")
    if damage == "gone":
        path.unlink()
    elif damage == "column":
        pq.write_table(table.drop_columns([table.column_names[0]]), path)
    elif damage == "type":
        index = next(i for i, f in enumerate(table.schema) if f.type != pa.string())
        if name == "samples":
            index = table.column_names.index("start_s")
        words = pa.array(["many"] * table.num_rows)
        pq.write_table(table.set_column(index, table.column_names[index], words), path)
    else:
        new = {"empty": b"", "text": b"PAR1 not really", "cut": data[: len(data) // 2],
               "zeroed": data[:footer] + bytes(32) + data[footer + 32 :]}  # fmt: skip
        path.write_bytes(new[damage])
    with pytest.raises(PackError, match=f"{name}.parquet"):
        Pack(pack_path)


def rewrite(path: Path, column: str, row: int, value) -> None:
    """Change one value of a parquet table."""
    table = pq.read_table(path)
    rows = table.to_pylist()
    rows[row][column] = value
    loose = pa.schema([field.with_nullable(True) for field in table.schema])
    pq.write_table(pa.Table.from_pylist(rows, schema=loose), path)


@pytest.mark.parametrize(
    ("name", "column", "value"),
    [
        ("chunks", "codec", 7), ("chunks", "codec", -1), ("chunks", "file", 1),
        ("chunks", "frames", 0), ("chunks", "fps_num", 0), ("chunks", "fps_den", -1),
        ("chunks", "offset", -512), ("chunks", "size", 0), ("chunks", "table_size", 2**40),
        ("chunks", "start_frame", -1), ("chunks", "table_file", 3),
        ("chunks", "frames", None), ("chunks", "codec", None), ("chunks", "offset", None),
        ("chunks", "video", None),
        ("codecs", "width", 0), ("codecs", "height", 10**6), ("codecs", "matrix", "xyz"),
        ("codecs", "width", None), ("codecs", "codec", None),
        ("files", "path", "../outside.tar"), ("files", "path", "/etc/passwd"),
        ("files", "path", "shards/../../x"), ("files", "path", None), ("files", "mtime_ns", None),
    ],
)  # fmt: skip
def test_impossible_values_in_the_tables_are_refused(pack_path, name, column, value):
    """Also blanks where a number must stand, and files outside the pack."""
    rewrite(pack_path / f"{name}.parquet", column, 0, value)
    with pytest.raises(PackError):
        Pack(pack_path)


def test_a_link_out_of_the_pack_is_refused(pack_path, tmp_path):
    """A shard that is a symbolic link to somewhere else."""
    shard = pack_path / "shards" / "000000.tar"
    shard.rename(tmp_path / "elsewhere.tar")
    shard.symlink_to(tmp_path / "elsewhere.tar")
    with pytest.raises(PackError, match="outside"):
        Pack(pack_path)


@pytest.mark.parametrize(
    ("column", "value"),
    [("offset", 10**12), ("offset", 512 * 3), ("size", 600), ("table_offset", 0),
     ("table_size", 10), ("frames", 31), ("start_frame", 5)],
)  # fmt: skip
def test_a_chunk_that_points_to_the_wrong_place_is_a_clip_error(pack_path, column, value):
    """Sample, file and reason; never a clip of other frames, never another exception."""
    rewrite(pack_path / "chunks.parquet", column, 0, value)
    try:
        pack = Pack(pack_path)
        with pytest.raises((ClipError, IndexError)):
            pack.read(0, [0, 31, 30])
    except PackError:
        pass


def test_a_codec_that_decodes_no_video_is_an_error_of_the_clip(pack_path):
    for codec in ("no-such-codec", "aac", "mpeg4"):
        rewrite(pack_path / "codecs.parquet", "codec", 0, codec)
        with pytest.raises((ClipError, PackError)):
            Pack(pack_path).read(0, [0])


def test_a_sample_of_an_unknown_video_is_a_pack_error(pack_path):
    rewrite(pack_path / "samples.parquet", "video", 0, "other.mp4")
    with pytest.raises(PackError, match=r"other\.mp4"):
        Pack(pack_path).info(0)


@pytest.mark.parametrize("damage", ["gone", "cut", "noise", "table"])
def test_a_damaged_shard_is_a_clip_error_with_sample_and_file(pack_path, damage):
    shard = pack_path / "shards" / "000000.tar"
    data = bytearray(shard.read_bytes())
    row = pq.read_table(pack_path / "chunks.parquet").to_pylist()[0]
    rng = np.random.default_rng(0)
    if damage == "gone":
        shard.unlink()
    elif damage == "cut":
        os.truncate(shard, row["offset"] + 100)
    elif damage == "noise":
        a = row["offset"] + 200
        data[a : a + 4000] = rng.bytes(4000)
        shard.write_bytes(data)
    else:
        a = row["table_offset"]
        data[a + 200 : a + 400] = rng.bytes(200)
        shard.write_bytes(data)
    with pytest.raises((ClipError, PackError)) as caught:
        Pack(pack_path).read(0, [0, 8, 30])
    if isinstance(caught.value, ClipError):
        assert caught.value.sample == "0" and caught.value.file == str(shard)
        assert caught.value.reason


def test_a_pack_that_was_moved_still_works(pack_path, stored):
    """Nothing in it is absolute."""
    moved = pack_path.rename(pack_path.parent / "moved here")
    assert np.array_equal(Pack(moved).read(0, [7], pixels="i420")[0], stored["0.mp4"][7])
