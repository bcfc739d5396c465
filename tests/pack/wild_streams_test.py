"""Files of several streams, of none that moves, and streams that change on the way."""

from __future__ import annotations

from fractions import Fraction

import av
import numpy as np
import pytest
from wild import annotate, index_refusal, make_lot, pack_and_compare, psnr, refusal, seen

from matinee.errors import ClipError, PackError
from matinee.media.packets import scan_packets
from matinee.pack.reading.reader import Pack
from matinee.pack.writing.index import index_videos

H264 = {"preset": "veryfast", "g": "12", "bf": "0"}


def joined(path, *parts):
    """The packets of several films in one stream of the first one's kind, one after another."""
    with av.open(str(parts[0])) as first, av.open(str(path), "w") as file:
        stream = file.add_stream_from_template(first.streams.video[0])
        count = 0
        for part in parts:
            with av.open(str(part)) as source:
                for packet in source.demux(video=0):
                    if packet.size:
                        packet.pts = packet.dts = 40 * count
                        packet.time_base, packet.stream = Fraction(1, 1000), stream
                        file.mux(packet)
                        count += 1
    return path


def test_the_first_of_two_videos_is_read(tmp_path, film):
    """As players do; the second, of another size, leaves no trace."""
    first = film(tmp_path / "1.mkv", frames=12, options=H264)
    second = film(tmp_path / "2.mkv", frames=20, size=(64, 48), options=H264, seed=5)
    path = tmp_path / "a.mkv"
    with av.open(str(path), "w") as file, av.open(str(first)) as a, av.open(str(second)) as b:
        streams = [file.add_stream_from_template(x.streams.video[0]) for x in (a, b)]
        packets = [
            (packet, stream)
            for source, stream in ((a, streams[0]), (b, streams[1]))
            for packet in source.demux(video=0)
            if packet.size
        ]
        for packet, stream in sorted(packets, key=lambda entry: entry[0].dts):
            packet.stream = stream
            file.mux(packet)
    assert pack_and_compare(path, tmp_path / "pack").info(0).num_frames == 12


def test_cover_art_before_the_video_is_passed_over(tmp_path, film):
    """A still marked as attached picture is stream 0; the film is stream 1."""
    source = film(tmp_path / "source.mkv", frames=12, options=H264)
    path = tmp_path / "a.mp4"
    still = av.VideoFrame.from_ndarray(np.full((48, 64, 3), 90, np.uint8), format="rgb24")
    encoder = av.CodecContext.create("mjpeg", "w")
    encoder.width, encoder.height, encoder.pix_fmt = 64, 48, "yuvj420p"
    encoder.time_base = Fraction(1, 25)
    cover = b"".join(bytes(p) for p in encoder.encode(still.reformat(format="yuvj420p")))
    with av.open(str(path), "w") as file, av.open(str(source)) as original:
        art = file.add_stream("mjpeg", rate=1)
        art.width, art.height, art.pix_fmt = 64, 48, "yuvj420p"
        art.disposition = av.stream.Disposition.attached_pic
        stream = file.add_stream_from_template(original.streams.video[0])
        packet = av.Packet(cover)
        packet.stream, packet.pts, packet.dts = art, 0, 0
        packet.time_base, packet.is_keyframe = Fraction(1, 1), True
        file.mux(packet)
        for packet in original.demux(video=0):
            if packet.size:
                packet.stream = stream
                file.mux(packet)
    info = pack_and_compare(path, tmp_path / "pack").info(0)
    assert (info.width, info.height, info.num_frames) == (96, 64, 12)


def test_sound_alone_is_refused(tmp_path):
    path = tmp_path / "a.m4a"
    with av.open(str(path), "w") as file:
        sound = file.add_stream("aac", rate=44100, layout="mono")
        frame = av.AudioFrame.from_ndarray(np.zeros((1, 1024), np.float32), "fltp", "mono")
        frame.sample_rate = 44100
        file.mux([*sound.encode(frame), *sound.encode(None)])
    assert "no video stream" in refusal(path, tmp_path / "pack")
    assert "no video stream" in index_refusal(path, tmp_path / "index")


def test_a_picture_that_changes_on_the_way_is_refused_or_read_right(tmp_path, film):
    """Its size, or how its pixels are stored, within one stream of JPEG images."""
    jpeg = {"codec": "mjpeg", "frames": 6, "options": {}, "stream": {"color_range": 2}}
    one = film(tmp_path / "one.mkv", pix_fmt="yuvj420p", **jpeg)
    size = film(tmp_path / "size.mkv", pix_fmt="yuvj420p", size=(64, 48), **jpeg)
    kind = film(tmp_path / "kind.mkv", pix_fmt="yuvj444p", **jpeg)
    lot = make_lot(
        tmp_path,
        [
            one,
            joined(tmp_path / "to size.mkv", one, size),
            joined(tmp_path / "to kind.mkv", one, kind),
        ],
    )
    lot.check("one.mkv")
    assert "changes" in lot.refused["to size.mkv"]
    if "to kind.mkv" in lot.refused:
        assert "changes" in lot.refused["to kind.mkv"]
    else:
        assert lot.check("to kind.mkv").num_frames == 12
    if "to size.mkv" not in lot.not_indexed:
        row = lot.index.samples.column("sample").to_pylist().index("to size.mkv")
        with pytest.raises(ClipError, match="size"):
            lot.index.read(row, [8])
    lot.check_index("to kind.mkv")


@pytest.mark.parametrize(
    ("first", "then"),
    [
        ({"color_range": 2, "colorspace": 6}, {"color_range": 1, "colorspace": 6}),
        ({"color_range": 1, "colorspace": 6}, {"color_range": 2, "colorspace": 6}),
        ({"colorspace": 6}, {"colorspace": 1}),
    ],
    ids=["full to limited", "limited to full", "bt601 to bt709"],
)
def test_colours_that_change_on_the_way_are_refused_or_read_by_their_own(
    tmp_path, film, first, then
):
    """Parameter sets in the stream say it; without a word, half of the film would be off colour."""
    options = {"preset": "veryfast", "x264-params": "repeat-headers=1:annexb=1:bframes=0:keyint=12"}
    parts = [
        film(tmp_path / f"{n}.h264", frames=24, options=options, stream=tags)
        for n, tags in enumerate((first, then))
    ]
    path = joined(tmp_path / "a.mkv", *parts)
    assert "colour" in refusal(path, tmp_path / "pack")
    try:
        index_videos(tmp_path / "index", annotate(path))
    except PackError:
        return
    pack = Pack(tmp_path / "index")
    pack.read(0, [3])
    with pytest.raises(ClipError, match="colours"):
        pack.read(0, [40])


@pytest.mark.parametrize("codec", ["libx264", "mpeg4", "mpeg2video"])
def test_noise_in_packets_is_refused_where_it_shows_in_the_stream(codec, tmp_path, film):
    """Half of a packet's bytes are noise: decoders that notice do not hand on a smeared picture."""
    options = {"libx264": {"preset": "veryfast", "g": "12", "bf": "0", "coder": "0"}}.get(
        codec, {"g": "12"}
    )
    good = film(tmp_path / "good.mp4", frames=24, codec=codec, options=options)
    table, data = scan_packets(good).table, good.read_bytes()
    rng = np.random.default_rng(0)
    paths = [film(tmp_path / "sound.mp4", frames=2)]
    for number in range(0, 24, 4):
        noisy = bytearray(data)
        packet = int(table.packet_of[number])
        at, length = int(table.offset[packet]), int(table.size[packet])
        noisy[at + length // 2 : at + length] = rng.bytes(length - length // 2)
        paths.append(tmp_path / f"{number}.mp4")
        paths[-1].write_bytes(noisy)
    lot = make_lot(tmp_path, paths)
    noticed = [p.name for p in paths[1:] if "damaged" in lot.refused.get(p.name, "")]
    assert len(noticed) >= 2, lot.refused
    whole = seen(good, (64, 96)).frames
    for path in paths[1:]:
        if path.name not in lot.refused:  # arithmetic codes have no redundancy to tell by
            clip = lot.frames(path.name)
            assert len(clip) == 24
            before = int(path.stem)
            assert all(psnr(a, b) > 38 for a, b in zip(clip[:before], whole, strict=False))


def test_a_video_stream_without_a_decoder_is_refused(tmp_path, film):
    """The sample entry's name is unknown."""
    path = film(tmp_path / "a.mp4", frames=5)
    path.write_bytes(path.read_bytes().replace(b"avc1", b"zzzz").replace(b"avcC", b"zzzC"))
    assert refusal(path, tmp_path / "pack")
    with pytest.raises(PackError):
        index_videos(tmp_path / "index", annotate(path))
