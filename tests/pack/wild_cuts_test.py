"""Videos that were cut without encoding anew: what is there is read, what is missing is said."""

from __future__ import annotations

import contextlib
import struct

import av
import numpy as np
import pytest
from wild import (
    Lot,
    index_and_compare,
    make_lot,
    pack_and_compare,
    psnr,
    seen,
)
from wild_files import copy

X265 = {"preset": "ultrafast", "x265-params": "keyint=12:log-level=none:pools=none"}
OPEN = {"preset": "medium", "x264-params": "keyint=12:open-gop=1:bframes=3"}
# name → encoder, options
ENCODERS = {
    "H.264": ("libx264", {"preset": "medium", "g": "12"}),
    "H.264 open GOP": ("libx264", OPEN),
    "HEVC": ("libx265", X265),
    "HEVC open GOP": ("libx265", {**X265, "x265-params": X265["x265-params"] + ":open-gop=1"}),
    "MPEG-4": ("mpeg4", {"g": "12"}),
    "MPEG-4 with B-frames": ("mpeg4", {"g": "12", "bf": "2"}),
    "MPEG-2": ("mpeg2video", {"g": "12", "bf": "2"}),
    "VP9": ("libvpx-vp9", {"deadline": "realtime", "cpu-used": "8", "g": "12"}),
    "VP8": ("libvpx", {"deadline": "realtime", "cpu-used": "8", "g": "12"}),
}


ENDINGS = ("mkv", "mp4", "ts", "avi")


def original(tmp_path, film, name, frames=40):
    codec, options = ENCODERS[name]
    return film(tmp_path / f"{name}.mkv", frames=frames, codec=codec, options=options)


@pytest.fixture(scope="module")
def cuts(tmp_path_factory, film) -> Lot:
    """Of each encoder's film the packets from number 5 on ("lost"), and from its second keyframe on
    ("key"), in each container that takes it."""
    folder = tmp_path_factory.mktemp("cuts")
    paths = [film(folder / "sound.mp4", frames=2)]
    for name in ENCODERS:
        whole = original(folder, film, name)
        with av.open(str(whole)) as file:
            packets = [packet for packet in file.demux(video=0) if packet.size]
        keys = [number for number, packet in enumerate(packets) if packet.is_keyframe]
        for kind, first in (("lost", 5), ("key", keys[1])):
            for ending in ENDINGS:
                cut = folder / f"{name} {kind}.{ending}"
                with contextlib.suppress(av.FFmpegError, ValueError):  # FFmpeg does not write it
                    paths.append(copy(whole, cut, keep=lambda n, p, first=first: n >= first))
    return make_lot(folder, paths)


@pytest.mark.parametrize("ending", ENDINGS)
@pytest.mark.parametrize("name", ENCODERS)
def test_a_cut_that_lost_its_leading_keyframe_is_refused(name, ending, cuts):
    """`-ss 0.2 -c copy`: the first frames have nothing to refer to; some decoders paint them grey.

    An MP4 cut so says by its edit list which frames are not to be shown.
    """
    cut = f"{name} lost.{ending}"
    if cut not in cuts.paths:
        pytest.skip(f"FFmpeg does not write {name} to {ending}")
    reason = cuts.refused[cut]
    assert "keyframe" in reason or "does not decode" in reason or "no video stream" in reason
    assert cuts.not_indexed[cut]


@pytest.mark.parametrize("ending", ENDINGS)
@pytest.mark.parametrize("name", ENCODERS)
def test_a_cut_at_a_keyframe_shows_frames_of_the_original_or_is_refused(name, ending, cuts):
    """An open GOP's first frames cannot be shown; all others come in their order."""
    cut = f"{name} key.{ending}"
    if cut not in cuts.paths:
        pytest.skip(f"FFmpeg does not write {name} to {ending}")
    if cut in cuts.refused:  # MPEG-TS leaves MPEG-4 without its header, and knows no VP9
        assert "open" in name or ending == "ts", cuts.refused[cut]
        return
    frames = seen(cuts.paths[cut].with_name(f"{name}.mkv"), (64, 96)).frames
    clip = cuts.frames(cut)
    best = [int(np.argmax([psnr(picture, frame) for frame in frames])) for picture in clip]
    # AVI has places for the frames that are gone, during which the first is held.
    assert ending == "avi" or len(set(best)) == len(best)
    assert sorted(set(best)) == list(range(best[0], 40)) and best == sorted(best)
    assert 10 <= best[0] <= 24
    assert min(psnr(p, frames[b]) for p, b in zip(clip, best, strict=True)) > 38
    cuts.check_index(cut)


def test_a_cut_whose_header_counts_more_frames_than_it_shows(tmp_path, film):
    """20 frames are in the file, and an edit list shows 17: those from 3 on."""
    whole = film(tmp_path / "whole.mkv", frames=40, options={"g": "12", "bf": "0"})
    cut = copy(
        whole, tmp_path / "cut.mp4", keep=lambda number, packet: number < 20, shift=-0.12,
        container={"avoid_negative_ts": "disabled", "use_editlist": "1"},
    )  # fmt: skip
    with av.open(str(cut)) as file:
        header = file.streams.video[0].frames
        shown = sum(1 for _ in file.decode(video=0))
    assert (header, shown) == (20, 17), "the test file has no edit list"
    pack = pack_and_compare(cut, tmp_path / "pack")
    assert pack.info(0).num_frames == 17
    frames = seen(whole, (64, 96)).frames
    first = pack.read(0, [0], pixels="i420")[0]
    assert int(np.argmax([psnr(first, frame) for frame in frames])) == 3
    assert not index_and_compare(cut, tmp_path / "index")


def test_an_avi_that_claims_more_frames_than_it_holds(tmp_path, film):
    """Both headers say 20; 17 are stored."""
    path = film(tmp_path / "a.avi", frames=17, codec="mpeg4", options={"g": "6"})
    data = bytearray(path.read_bytes())
    struct.pack_into("<I", data, data.index(b"avih") + 24, 20)
    struct.pack_into("<I", data, data.index(b"strh") + 40, 20)
    path.write_bytes(data)
    with av.open(str(path)) as file:
        assert file.streams.video[0].frames == 20
    assert pack_and_compare(path, tmp_path / "pack").info(0).num_frames == 17
    assert not index_and_compare(path, tmp_path / "index")


def test_an_edit_list_of_two_parts_shows_both(tmp_path, film):
    """Frames 5–9 and 20–29: as FFmpeg shows them, or refused; never the ones cut out."""
    path = film(tmp_path / "a.mp4", frames=40, options={"g": "5", "bf": "0"})
    data = path.read_bytes()
    at = data.index(b"elst") - 4
    (size,) = struct.unpack_from(">I", data, at)
    ticks = 12800 // 25  # of the media, a frame
    edits = [(200, 5 * ticks, 1 << 16), (400, 20 * ticks, 1 << 16)]
    new = struct.pack(">I4sII", 16 + 24, b"elst", 0, 2) + b"".join(
        struct.pack(">Iii", *edit) for edit in edits
    )
    grown = bytearray(data[:at] + new + data[at + size :])
    for parent in (b"edts", b"trak", b"moov"):
        place = grown.rindex(parent, 0, at) - 4
        (old,) = struct.unpack_from(">I", grown, place)
        struct.pack_into(">I", grown, place, old + len(new) - size)
    path.write_bytes(grown)
    with av.open(str(path)) as file:
        assert sum(1 for _ in file.decode(video=0)) == 15, "the test file has no such edit list"
    assert pack_and_compare(path, tmp_path / "pack").info(0).num_frames == 15
    index_and_compare(path, tmp_path / "index")


def test_a_truncated_mp4_is_refused(tmp_path, film):
    """With its index at the front the number of lost frames is told; at the end nothing is left."""
    front = film(tmp_path / "f.mp4", frames=40, container={"movflags": "faststart"}).read_bytes()
    end = film(tmp_path / "e.mp4", frames=40).read_bytes()
    paths = [film(tmp_path / "sound.mp4", frames=2)]
    for keep in (0.3, 0.7, 0.98):
        for where, data in (("front", front), ("end", end)):
            paths.append(tmp_path / f"{where} {keep}.mp4")
            paths[-1].write_bytes(data[: int(len(data) * keep)])
    lot = make_lot(tmp_path, paths)
    for path in paths[1:]:
        expected = "truncated" if path.stem in ("front 0.7", "front 0.98") else ""
        assert expected in lot.refused[path.name]
        assert expected in lot.not_indexed[path.name]


def test_a_truncated_stream_gives_the_whole_frames_that_are_there_or_is_refused(tmp_path, film):
    """Of containers without an index at the front; the last, cut frame never comes smeared."""
    paths, shown = [film(tmp_path / "sound.mp4", frames=2)], {}
    for ending in ("mkv", "ts", "avi", "flv"):
        path = film(tmp_path / f"a.{ending}", frames=40, options={"g": "8", "bf": "0"})
        data = path.read_bytes()
        for keep in (0.5, 0.64, 0.77, 0.91):
            paths.append(tmp_path / f"{keep}.{ending}")
            paths[-1].write_bytes(data[: int(len(data) * keep)])
            shown[paths[-1].name] = path
    lot = make_lot(tmp_path, paths)
    assert len(lot.refused) < len(shown)
    for name, path in shown.items():
        if name not in lot.refused:
            clip, whole = lot.frames(name), seen(path, (64, 96)).frames
            assert len(clip) < 40
            assert min(psnr(a, b) for a, b in zip(clip, whole, strict=False)) > 38
