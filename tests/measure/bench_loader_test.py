"""Clips for readers: the same frames for all, and what is written about their speed."""

import json
from pathlib import Path

import av
import numpy as np
import pytest

from matinee.errors import ConfigError
from matinee.measure.bench import loader, loader_readers
from matinee.measure.bench.loader_clips import clip_spec, draw_clips, parse_shape, write_files
from matinee.measure.result import write_result
from matinee.media.decode import Box
from matinee.pack.reading.reader import Pack

SIZE = 64


@pytest.fixture(scope="module")
def pack(clips_pack):
    return Pack(clips_pack)


@pytest.fixture(scope="module")
def clips(pack):
    return draw_clips(pack, clip_spec(parse_shape("4x2"), SIZE), 6)


def sequential(path, frames):
    """RGB of some frames, every one decoded in order by PyAV and scaled by FFmpeg."""
    with av.open(str(path)) as file:
        whole = [f for i, f in enumerate(file.decode(video=0)) if i in frames]
    return np.stack([f.reformat(SIZE, SIZE, "rgb24").to_ndarray() for f in whole])


def test_files_for_peers_hold_the_clips_frames(pack, clips, tmp_path):
    files = write_files(pack, clips, tmp_path)
    clip = clips[0]
    fmt = pack.formats[clip.chunk.codec]
    ours = loader_readers.pack_reader(pack, SIZE, "rgb")(
        type(clip)(clip.parts, Box(0, 0, fmt.width, fmt.height), clip.frames, 0, clip.fps)
    )
    other = sequential(files[clip.chunk], clip.frames)
    assert np.abs(ours.astype(float) - other).mean() < loader_readers.CLOSE


def test_an_original_file_is_opened_where_it_lies(film, tmp_path):
    from matinee.pack.annotations import Annotations, Sample, VideoFile
    from matinee.pack.writing.index import index_videos

    path = film(tmp_path / "a.mp4", frames=40, size=(64, 48))
    index_videos(tmp_path / "i.pack", Annotations((VideoFile("a", path),), (Sample("a", "a"),)))
    indexed = Pack(tmp_path / "i.pack")
    clips = draw_clips(indexed, clip_spec(parse_shape("4x2"), SIZE), 2)
    assert list(write_files(indexed, clips, Path("nowhere")).values()) == [path]


def test_peers_must_give_the_same_frames(pack, clips, tmp_path):
    """Right ones are taken; a frame too late, another size, absent or broken ones are not."""
    files = write_files(pack, clips, tmp_path)

    def reads(shift=0, size=SIZE):
        return lambda: (
            lambda clip: sequential(files[clip.chunk], [frame + shift for frame in clip.frames])[
                :, :size
            ]
        )

    def absent():
        raise ModuleNotFoundError("no module named 'other'")

    def broken():
        raise RuntimeError("damaged")

    makers = {
        "right": reads(), "late": reads(shift=8), "small": reads(size=8), "absent": absent,
        "broken": broken,
    }  # fmt: skip
    clip = min(clips, key=lambda c: max(c.frames))
    close, refused = loader_readers.usable_peers(makers, pack, clip, SIZE)
    assert list(close) == ["right"] and set(refused) == {"late", "small", "absent", "broken"}
    assert "gives other frames" in refused["late"] and "(4, 8, 64, 3)" in refused["small"]
    assert "pip install 'matinee[bench]'" in refused["absent"] and "damaged" in refused["broken"]


def test_packets_of_a_clip_are_counted_in_bytes(pack, clips, tmp_path):
    """No more than its chunk, and no less than the wanted frames' own packets."""
    files = write_files(pack, clips, tmp_path)
    for clip in clips:
        with av.open(str(files[clip.chunk])) as file:
            packets = sorted((p for p in file.demux(video=0) if p.size), key=lambda p: p.pts)
        sizes = [p.size for p in packets]
        assert sum(sizes[f] for f in clip.frames) <= clip.num_bytes <= sum(sizes)
        assert len(set(clip.frames)) == len(clip.frames) == 4


def test_samples_shorter_than_a_clip_are_refused(pack):
    with pytest.raises(ConfigError, match="shorter than clips of 64 frames"):
        draw_clips(pack, clip_spec(parse_shape("64x4"), SIZE), 2)


def test_the_whole_is_measured_and_drawn(clips_pack, tmp_path):
    options = loader.Options(
        data=str(clips_pack), out=tmp_path, clip="4x2", size=SIZE, decoders=(2, 1), rounds=1,
        device="cpu",
    )  # fmt: skip
    write_result(loader.measure(options, on_step=lambda *_: None), tmp_path)
    data = json.loads((tmp_path / "loader.json").read_text())
    ours = {"matinee, I420", "matinee, RGB", "decoding alone"}
    assert ours <= set(data["ms_per_clip"])
    peers = set(data["ms_per_clip"]) - ours
    assert peers == set(data["difference_of_peers"])
    assert peers | set(data["left_out"]) == {
        "torchcodec", "torchcodec, approximate", "decord", "spdl-io"
    }  # fmt: skip
    assert list(data["clips_per_s"]) == ["1", "2"]
    for rates in data["clips_per_s"].values():
        assert set(rates) == {"processes", "threads"} | peers
        assert all(rate["median"] > 0 for rate in rates.values())
    split = data["ms_of_a_clip_in_processes"]["2"]
    assert set(split) == {"read", "decode", "scale", "other"} and split["decode"] > 0
    assert data["loader_clips_per_s"]["median"] > 0
    assert data["pixel_bytes_per_clip"] == 4 * SIZE * SIZE * 3 // 2
    for plot in ("thread-ms", "decoders-rate", "decoders-split"):
        assert (tmp_path / f"loader-{plot}.png").stat().st_size > 3000
