"""Odd and broken files of the wild: each is packed or refused with a reason."""

from __future__ import annotations

import av
import numpy as np

from matinee.errors import ClipError, MediaError
from matinee.media.packets import scan_packets
from matinee.media.probe import probe
from matinee.pack.annotations import Annotations, Sample, VideoFile
from matinee.pack.index import index_videos
from matinee.pack.profiles import make_profile
from matinee.pack.reader import Pack
from matinee.pack.writer import write_pack


def all_files(real_data) -> Annotations:
    root = real_data / "awkward"
    files = sorted(p for p in root.rglob("*") if p.is_file() and p.name != "manifest.csv")
    videos = tuple(VideoFile(str(path.relative_to(root)), path) for path in files)
    samples = tuple(Sample(v.id, v.id, label="x", split="train") for v in videos)
    return Annotations(videos, samples)


def test_every_awkward_file_is_packed_or_refused(real_data, tmp_path):
    """Nothing escapes as another exception, and every clip of the pack can be read."""
    annotations = all_files(real_data)
    profile = make_profile(preset="ultrafast", short_side=64)
    report = write_pack(tmp_path / "pack", annotations, profile, workers=1)
    assert report.videos + len(report.refused) == len(annotations.videos) >= 70
    assert all(failure.reason for failure in report.refused)
    assert report.videos >= 25
    pack = Pack(tmp_path / "pack")
    for index in range(len(pack)):
        last = pack.info(index).num_frames - 1
        assert pack.read(index, [0, last // 2, last]).shape[0] == 3


def test_every_awkward_file_is_probed_and_scanned_or_refused(real_data):
    """Only MediaError."""
    for video in all_files(real_data).videos:
        for action in (probe, scan_packets):
            try:
                action(video.path)
            except MediaError as error:
                assert str(error), video.id


def test_indexed_awkward_files_read_as_decoded_from_the_start(real_data, tmp_path, sequential):
    """Those that can be indexed give the same frames as PyAV, or are refused."""
    annotations = all_files(real_data)
    index_videos(tmp_path / "pack", annotations)
    pack = Pack(tmp_path / "pack")
    paths = {video.id: video.path for video in annotations.videos}
    wrong: list[str] = []
    for index in range(len(pack)):
        info = pack.info(index)
        if info.width * info.height * info.num_frames > 40_000_000:
            continue  # long: seconds of decoding for nothing new
        if info.width % 2 or info.height % 2 or pack.formats[info.codec].pix_fmt != "yuv420p":
            continue  # compared as stored, so only where nothing is converted
        try:
            frames = sequential(paths[info.video])
        except av.FFmpegError:
            continue  # damaged, and indexing does not decode: reading tells
        wanted = sorted({0, info.num_frames // 3, info.num_frames // 2, info.num_frames - 1})
        if len(frames) != info.num_frames:
            wrong.append(f"{info.video}: {info.num_frames} frames, {len(frames)} decode")
            continue
        try:
            clip = pack.read(index, wanted, pixels="i420")
        except ClipError as error:
            wrong.append(str(error))
            continue
        for row, frame in zip(clip, wanted, strict=True):
            if not np.array_equal(row, frames[frame]):
                wrong.append(f"{info.video}: frame {frame}")
    assert not wrong, "\n".join(wrong)
