"""The index of large packs says what the tables say, row for row."""

from __future__ import annotations

import json
import math
from fractions import Fraction
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from matinee.errors import ConfigError, PackError
from matinee.pack.format import CHUNKS, CODECS, FILES, MANIFEST, SAMPLES, VERSION
from matinee.pack.reading import location, names, table_file
from matinee.pack.reading.names import Names, check_distinct, hash_of, hashes, numbered
from matinee.pack.reading.reader import Pack
from matinee.pack.reading.table_file import narrow

WORDS = st.text(st.characters(exclude_categories=["Cs"]), max_size=40)


# --- names --------------------------------------------------------------------------------------


@given(st.lists(WORDS, max_size=60), st.integers(0, 5), st.booleans())
def test_hashes_of_many_names_are_those_of_each(words, skip, large):
    """Also of a part of an array, and of 64-bit strings."""
    array = pa.array(words, pa.large_string() if large else pa.string())[skip:]
    assert hashes(array).tolist() == [hash_of(word) for word in words[skip:]]


def test_hashes_do_not_depend_on_the_blocks_they_are_computed_in(monkeypatch):
    array = pa.array([f"video {i}" * (i % 5) for i in range(1000)])
    before = hashes(array)
    monkeypatch.setattr(names, "_BLOCK", 7)
    assert np.array_equal(hashes(array), before) and len(set(before.tolist())) == 801


@given(st.lists(WORDS, unique=True, max_size=60), st.lists(WORDS, max_size=60), st.data())
def test_rows_of_names_are_those_of_a_dict(known, others, data):
    asked = data.draw(st.permutations(known + others))
    table = {name: row for row, name in enumerate(known)}
    index = Names(pa.array(known, pa.string()))
    expected = [table.get(name, -1) for name in asked]
    assert index.rows(pa.array(asked, pa.string())).tolist() == expected
    assert [index.row(name) for name in asked] == expected


@pytest.mark.parametrize("constant", [0, 2**64 - 1])
def test_names_of_one_hash_are_told_apart(monkeypatch, constant):
    """As a hostile pack could have them."""
    monkeypatch.setattr(names, "hashes", lambda a: np.full(len(a), constant, np.uint64))
    monkeypatch.setattr(names, "hash_of", lambda name: constant)
    words = [f"v{i}" for i in range(50)]
    index = Names(pa.array(words))
    asked = ["v49", "v0", "none", "v7"]
    assert index.rows(pa.array(asked)).tolist() == [49, 0, -1, 7]
    assert [index.row(name) for name in asked] == [49, 0, -1, 7]
    assert check_distinct(pa.array(words)) is None
    assert check_distinct(pa.array([*words, "v3"])) == "v3"


@given(st.lists(st.sampled_from(["a", "b", "", "cc", "ü"]), max_size=40))
def test_numbered_names_give_the_names_back(words):
    """Distinct ones in the order of their first rows, whether equal ones are neighbours or not."""
    numbers, distinct = numbered(pa.array(words, pa.string()))
    assert [distinct[n] for n in numbers.tolist()] == words
    assert distinct.names.to_pylist() == list(dict.fromkeys(words))


@given(st.lists(WORDS, max_size=40))
def test_a_name_that_occurs_twice_is_found(words):
    twice = {word for word in words if words.count(word) > 1}
    found = check_distinct(pa.array(words, pa.string()))
    assert found in twice if twice else found is None
    if twice:
        with pytest.raises(ValueError):
            Names(pa.array(words, pa.string()))


@given(st.lists(st.integers(-(2**40), 2**40), min_size=1, max_size=20), st.booleans())
def test_narrow_integers_are_the_same_integers(values, signed):
    assert narrow(np.array(values), signed=signed).tolist() == values


# --- packs of tables alone ----------------------------------------------------------------------


def write(path: Path, rows: dict[str, list], schema: pa.Schema, groups: int) -> None:
    extra = [pa.field(n, pa.array(v).type) for n, v in rows.items() if n not in schema.names]
    table = pa.table(rows, schema=pa.schema([*schema, *extra]))
    pq.write_table(table, path, row_group_size=max(1, table.num_rows // groups))


def make(folder: Path, *, seed: int = 0, groups: int = 3, **changes) -> tuple[Path, dict, dict]:
    """A pack without video: 40 videos of one to six chunks, in no order, and 150 samples."""
    rng = np.random.default_rng(seed)
    (folder / "shards").mkdir(parents=True)
    chunks: dict[str, list] = {name: [] for name in CHUNKS.names}
    at = 0
    for video in range(40):
        rate = [(30, 1), (30000, 1001), (25, 1)][video % 3]
        start = 0
        for _ in range(rng.integers(1, 7)):
            frames, size, table = (int(n) for n in rng.integers(1, 500, 3))
            values = [f"v/{video}.mp4", start, 0.0, frames, *rate, video % 2, 0, at, size, 0,
                      at + size, table]  # fmt: skip
            for name, value in zip(CHUNKS.names, values, strict=True):
                chunks[name].append(value)
            start, at = start + frames, at + size + table
    order = rng.permutation(len(chunks["video"]))
    chunks = {name: [column[i] for i in order] for name, column in chunks.items()}
    count = 150
    spans = rng.uniform(-1, 40, (count, 2)).round(3)
    samples = {
        "sample": [f"s{i}" for i in rng.permutation(count)],
        "video": [f"v/{i}.mp4" for i in rng.integers(0, 40, count)],
        "start_s": [None if i % 4 == 0 else float(min(s)) for i, s in enumerate(spans)],
        "end_s": [None if i % 5 == 0 else float(max(s)) for i, s in enumerate(spans)],
        "split": [[None, "train", "val", ""][i] for i in rng.integers(0, 4, count)],
        "label": [None if i == 0 else f"l{i}" for i in rng.integers(0, 9, count)],
        "text": [None if i % 7 == 0 else f"one {i}\n\n two " for i in range(count)],
        "verb": [f"w{i % 3}" for i in range(count)],
        "score": [i % 4 / 2 for i in range(count)],
    }
    for name, (row, value) in changes.items():
        samples[name][row] = value
    with (folder / "shards" / "0.tar").open("wb") as file:
        file.truncate(at)
    write(folder / "chunks.parquet", chunks, CHUNKS, groups)
    write(folder / "samples.parquet", samples, SAMPLES, groups)
    codecs = [["h264"] * 2, [64, 96], [48, 64], ["yuv420p"] * 2, ["bt601"] * 2, [False] * 2,
              [b""] * 2]  # fmt: skip
    write(folder / "codecs.parquet", dict(zip(CODECS.names, codecs, strict=True)), CODECS, 1)
    files = {"path": ["shards/0.tar"], "size": [at], "mtime_ns": [0]}
    write(folder / "files.parquet", files, FILES, 1)
    counts = ("videos", "samples", "chunks", "bytes", "seconds_of_video", "refused", "ignored")
    manifest = {
        "format": "matinee pack", "version": VERSION, "classes": [],
        "report": dict.fromkeys(counts, 0),
    }  # fmt: skip
    (folder / MANIFEST).write_text(json.dumps(manifest))
    return folder, chunks, samples


def rows_of(chunks: dict, video: str) -> list[dict]:
    """The rows of one video, by time."""
    rows = [dict(zip(chunks, row, strict=True)) for row in zip(*chunks.values(), strict=True)]
    return sorted((r for r in rows if r["video"] == video), key=lambda r: r["start_frame"])


@pytest.mark.parametrize("groups", [1, 7])
def test_samples_are_as_their_rows_say(tmp_path, groups):
    """Spans frame by frame: shown at the start or later, before the end, inside, not empty."""
    folder, chunks, samples = make(tmp_path / "pack", groups=groups)
    pack = Pack(folder)
    assert len(pack) == 150 and pack.num_videos == 40
    assert pack.num_frames == sum(chunks["frames"])
    for index in range(len(pack)):
        info = pack.info(index)
        row = {name: column[index] for name, column in samples.items()}
        video = rows_of(chunks, row["video"])
        total = sum(r["frames"] for r in video)
        fps = Fraction(video[0]["fps_num"], video[0]["fps_den"])
        assert (info.id, info.video, info.label, info.text, info.split, info.fps) == (
            row["sample"], row["video"], row["label"], row["text"], row["split"], fps,
        )  # fmt: skip
        start = -math.inf if row["start_s"] is None else row["start_s"]
        end = math.inf if row["end_s"] is None else row["end_s"]
        inside = [f for f in range(total) if start <= f / fps + 1e-7 and f / fps + 1e-7 < end]
        assert info.first_frame >= 0 and info.first_frame + info.num_frames <= total
        if inside:
            assert (info.first_frame, info.num_frames) == (inside[0], len(inside))
        else:
            assert info.num_frames == 1
        assert (info.width, info.height) == [(64, 48), (96, 64)][video[0]["codec"]]
        lines = [line.strip() for line in (row["text"] or "").split("\n")]
        assert pack.captions(index) == tuple(line for line in lines if line)


def test_frames_are_located_as_the_rows_say(tmp_path):
    """Any frames, in any order, repeated; what is outside is an error."""
    folder, chunks, _ = make(tmp_path / "pack")
    pack, rng = Pack(folder), np.random.default_rng(1)
    for video in sorted(set(chunks["video"])):
        rows = rows_of(chunks, video)
        total = sum(r["frames"] for r in rows)
        for frames in (rng.integers(0, total, 9).tolist(), [total - 1], [0, 0], []):
            found = {}
            parts = pack.locate(video, frames)
            assert [p.chunk.offset for p in parts] == [
                r["offset"] for r in rows
                if any(r["start_frame"] <= f < r["start_frame"] + r["frames"] for f in frames)
            ]  # fmt: skip
            for part in parts:
                row = next(r for r in rows if r["offset"] == part.chunk.offset)
                c = part.chunk
                assert (c.size, c.table_offset, c.table_size, c.codec, c.frames) == tuple(
                    row[name] for name in ("size", "table_offset", "table_size", "codec", "frames")
                )
                assert c.file == c.table_file == str(folder.resolve() / "shards/0.tar")
                pairs = zip(part.rows, part.frames, strict=True)
                found |= {r: f + row["start_frame"] for r, f in pairs}
            assert [found[i] for i in range(len(frames))] == frames
        for frames in ([total], [-1], [0, total + 5]):
            with pytest.raises(IndexError, match=video):
                pack.locate(video, frames)
    with pytest.raises(PackError, match="other"):
        pack.locate("other", [0])


def test_columns_are_those_of_the_file(tmp_path):
    """By name, as a table, by rows; also columns of the annotations' own."""
    folder, _, samples = make(tmp_path / "pack")
    table = Pack(folder).samples
    assert table.column_names == list(samples) and table.num_rows == 150
    for name, values in samples.items():
        assert table.column(name).to_pylist() == values
        assert table.column(name)[7].as_py() == values[7]
    whole = table.select(table.column_names)
    assert whole.to_pydict() == samples and whole.schema.field("label").type == pa.string()
    more = table.append_column("asked", pa.array(range(150)))
    assert more.column("asked")[3].as_py() == 3 and "asked" not in table.column_names
    with pytest.raises(KeyError, match="nothing"):
        table.column("nothing")


def test_a_large_column_is_mapped_and_the_same(tmp_path, monkeypatch):
    """Its bytes lie in a file that has no name any more."""
    folder, _, samples = make(tmp_path / "pack")
    expected = Pack(folder).captions_of(np.arange(150))
    monkeypatch.setattr(table_file, "_IN_MEMORY", 100)
    monkeypatch.setattr(table_file, "_BATCH", 10)
    before = pa.total_allocated_bytes()
    pack = Pack(folder)
    held = pack.samples.column("text")
    assert held.num_chunks > 5 and held.to_pylist() == samples["text"]
    assert pack.captions_of(np.arange(150)) == expected
    maps = Path("/proc/self/maps").read_text()
    assert "matinee-column-" in maps and "(deleted)" in maps
    assert pa.total_allocated_bytes() - before < 60_000


@pytest.mark.parametrize(
    ("which", "column", "words"),
    [("train", "split", {"train"}), ("label=l3,l5", "label", {"l3", "l5"}),
     ("label=,l1", "label", {"", "l1"}), ("verb=w2", "verb", {"w2"}),
     ("score=0.5,1.0", "score", {"0.5", "1.0"}), ("sample=s3,s9,x", "sample", {"s3", "s9"}),
     ("video=v/1.mp4", "video", {"v/1.mp4"})],
)  # fmt: skip
def test_selections_are_those_of_the_cells_as_text(tmp_path, which, column, words):
    folder, _, samples = make(tmp_path / "pack")
    cells = ["" if value is None else str(value) for value in samples[column]]
    expected = [row for row, cell in enumerate(cells) if cell in words]
    found = Pack(folder).select(which)
    assert found.tolist() == expected and found.dtype == np.int64 and expected


def test_splits_are_counted_over_all_parts_of_the_table(tmp_path):
    folder, _, samples = make(tmp_path / "pack", groups=9)
    cells = [value or "" for value in samples["split"]]
    assert Pack(folder).splits() == {name: cells.count(name) for name in sorted(set(cells))}
    with pytest.raises(ConfigError, match="train, val"):
        Pack(folder).select("test")


@pytest.mark.parametrize(
    ("change", "words"),
    [({"video": (70, "lost.mp4")}, r"lost\.mp4"), ({"sample": (70, "twice"), "verb": (0, "x")}, ""),
     ({"start_s": (70, float("nan"))}, "start_s"), ({"end_s": (70, float("inf"))}, "end_s")],
)  # fmt: skip
def test_samples_that_cannot_be_are_refused_at_once(tmp_path, change, words):
    """An unknown video, a name twice, times that are no number."""
    if "sample" in change:
        change["sample"] = (70, make(tmp_path / "first")[2]["sample"][3])
        words = f"'{change['sample'][1]}' twice"
    folder, _, _ = make(tmp_path / "pack", **change)
    with pytest.raises(PackError, match=words):
        Pack(folder)


def test_text_that_is_no_utf8_is_damage(tmp_path):
    folder, _, _ = make(tmp_path / "pack")
    file = folder / "samples.parquet"
    table = pq.read_table(file)
    place = table.column_names.index("sample")
    odd = pa.array([b"\xff\xfe%d" % i for i in range(150)], pa.binary()).view(pa.string())
    table = table.set_column(place, table.schema.field("sample"), odd)
    pq.write_table(table, file)
    with pytest.raises(PackError, match=r"samples\.parquet"):
        Pack(folder)


def test_of_very_many_files_each_is_looked_at_when_it_is_needed(tmp_path, monkeypatch):
    """An index of a million originals opens without a million looks."""
    folder, chunks, _ = make(tmp_path / "pack")
    (folder / "shards" / "0.tar").unlink()
    with pytest.raises(PackError, match="gone"):
        Pack(folder)
    monkeypatch.setattr(location, "_LOOKED_AT", 0)
    pack = Pack(folder)
    assert pack.info(0).num_frames
    with pytest.raises(PackError, match="gone"):
        pack.locate(chunks["video"][0], [0])


def test_an_impossible_number_of_rows_is_refused(tmp_path, monkeypatch):
    folder, _, _ = make(tmp_path / "pack")
    monkeypatch.setattr(table_file, "_MAX_ROWS", 100)
    with pytest.raises(PackError, match="impossible size"):
        Pack(folder)
