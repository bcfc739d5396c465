"""What packets' headers tell, against FFmpeg's own parser, and what hostile ones do: nothing."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

import av
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from matinee.media.units import Picture, av1, headers_of, settle
from matinee.media.units.picture import Bits, OutOfBits

INTRA, BIDIRECTIONAL = 1, 3  # FFmpeg's AVPictureType
X265 = "log-level=none:pools=none:frame-threads=1:rc-lookahead=10"
LAYERS = (
    "ts_number_layers=3:ts_target_bitrate=30,60,100:ts_rate_decimator=4,2,1:ts_periodicity=4:"
    "ts_layer_id=0,2,1,2:ts_layering_mode=3"
)
# name → file ending, encoder, options
FILMS = {
    "x264": ("mp4", "libx264", {"preset": "medium", "g": "20"}),
    "x264 Annex B": ("h264", "libx264", {"preset": "medium", "g": "20"}),
    "x264 slices": ("mkv", "libx264", {"preset": "fast", "x264-params": "slices=3:keyint=9"}),
    "x265": ("mp4", "libx265", {"preset": "fast", "x265-params": f"keyint=12:{X265}"}),
    "x265 Annex B": ("hevc", "libx265", {"preset": "fast", "x265-params": f"keyint=12:{X265}"}),
    "x265 layers": (
        "mkv", "libx265",
        {"preset": "fast",
         "x265-params": f"keyint=24:bframes=7:b-adapt=0:temporal-layers=3:{X265}"},
    ),
    "x265 RADL": (
        "mp4", "libx265",
        {"preset": "fast",
         "x265-params": f"keyint=12:bframes=4:b-adapt=0:radl=2:no-open-gop=1:{X265}"},
    ),
    "VP9": (
        "webm", "libvpx-vp9",
        {"deadline": "good", "cpu-used": "8", "g": "20", "auto-alt-ref": "1",
         "lag-in-frames": "16"},
    ),
    "VP9 layers": (
        "webm", "libvpx-vp9",
        {"deadline": "realtime", "cpu-used": "8", "g": "20", "error-resilient": "1", "b": "100k",
         "lag-in-frames": "0", "ts-parameters": LAYERS},
    ),
    "VP9 layers that lean on each other": (
        "webm", "libvpx-vp9",
        {"deadline": "realtime", "cpu-used": "8", "g": "20", "b": "100k", "lag-in-frames": "0",
         "ts-parameters": LAYERS},
    ),
    "AV1": ("mp4", "libsvtav1", {"preset": "12", "g": "20"}),
    "AV1 forward keys": (
        "mp4", "libsvtav1", {"preset": "10", "g": "16", "svtav1-params": "irefresh-type=1"},
    ),
    "AV1 low delay": (
        "webm", "libsvtav1", {"preset": "12", "g": "20", "svtav1-params": "pred-struct=1"},
    ),
    "MPEG-2": ("mkv", "mpeg2video", {"bf": "2", "g": "12"}),
}  # fmt: skip


@dataclass
class Traced:
    """One packet, and the fields that FFmpeg's parser (trace_headers) finds in it, in order."""

    payload: bytes
    fields: list[tuple[str, int]]

    def all(self, name: str) -> list[int]:
        return [value for field, value in self.fields if field == name]


def traced(path: Path) -> tuple[str, bytes, list[Traced]]:
    packets: list[Traced] = []
    before = av.logging.get_level()
    with av.open(str(path)) as file:
        stream = file.streams.video[0]
        codec, extradata = stream.codec_context.name, stream.codec_context.extradata or b""
        tracer = av.bitstream.BitStreamFilterContext("trace_headers", in_stream=stream)
        av.logging.set_level(av.logging.INFO)
        try:
            for packet in file.demux(stream):
                if not packet.size:
                    continue
                payload = bytes(packet)
                with av.logging.Capture() as lines:
                    tracer.filter(packet)
                found = (re.fullmatch(r"\d+ +(\S+) +[01]* = (-?\d+)", t.strip()) for *_, t in lines)
                packets.append(Traced(payload, [(m[1], int(m[2])) for m in found if m]))
        finally:
            av.logging.set_level(before)
    return codec, extradata, packets


def expected(codec: str, packets: list[Traced]) -> list[tuple[bool, bool]]:
    """(key, disposable) by the rules of each specification, from FFmpeg's fields."""
    rows: list[tuple[bool, bool]] = []
    top = max((max(p.all("nuh_temporal_id_plus1"), default=1) for p in packets), default=1)
    for number, packet in enumerate(packets):
        if codec == "h264":
            kinds = packet.all("nal_unit_type")
            ids = [r for r, k in zip(packet.all("nal_ref_idc"), kinds, strict=True) if 1 <= k <= 5]
            rows.append((5 in kinds, not any(ids)))
        elif codec == "hevc":
            slices = [k for k in packet.all("nal_unit_type") if k < 32]
            even = all(k < 16 and k % 2 == 0 for k in slices)
            layer = max(packet.all("nuh_temporal_id_plus1"))
            rows.append((all(16 <= k <= 21 for k in slices), even and layer == top))
        elif codec == "vp9":
            following = packets[number + 1] if number + 1 < len(packets) else None
            free = following is None or any(
                name in ("error_resilient_mode", "frame_type")
                and value == (name == "error_resilient_mode")
                for name, value in following.fields[: first_end(following)]
            )
            key = packet.all("frame_type")[:1] == [0]
            quiet = not key and not any(packet.all("refresh_frame_flags"))
            rows.append((key, quiet and free))
        elif codec == "libdav1d":
            again = any(packet.all("show_existing_frame"))
            key = packet.all("frame_type")[:1] == [0] and packet.all("show_frame")[0] == 1
            rows.append((key, not key and not again and not any(packet.all("refresh_frame_flags"))))
        else:
            kinds = packet.all("picture_coding_type")
            rows.append((kinds == [1], kinds == [3]))
    return rows


def first_end(packet: Traced) -> int:
    """Where the fields of a packet's first VP9 frame end."""
    starts = [i for i, (name, _) in enumerate(packet.fields) if name == "frame_marker"]
    return starts[1] if len(starts) > 1 else len(packet.fields)


@pytest.mark.parametrize("name", FILMS)
def test_keys_and_disposables_are_those_of_ffmpegs_header_parser(name, tmp_path, film):
    """Packet by packet, and both kinds occur where the film was made to hold them."""
    ending, encoder, options = FILMS[name]
    if encoder not in av.codecs_available:
        pytest.skip(f"this PyAV cannot encode {encoder}")
    path = film(tmp_path / f"a.{ending}", frames=40, size=(64, 48), codec=encoder, options=options)
    codec, extradata, packets = traced(path)
    reader = headers_of(codec, extradata, intra_only=False)
    assert reader is not None
    pictures = [reader.read(packet.payload) for packet in packets]
    found = list(zip((p.key for p in pictures), settle(pictures), strict=True))
    assert found == expected(codec, packets)
    assert sum(key for key, _ in found) >= 1 + (name != "AV1 forward keys")
    assert all(picture.shown == 1 for picture in pictures)
    assert any(quiet for _, quiet in found) or name == "VP9"


@pytest.mark.parametrize("encoder", ["mpeg4", "mpeg2video", "mpeg1video"])
def test_the_b_pictures_of_mpeg_are_the_disposable_ones(encoder, tmp_path, film):
    """As the decoder names the type of each frame."""
    path = film(tmp_path / "a.mkv", size=(64, 48), codec=encoder, options={"bf": "2", "g": "12"})
    with av.open(str(path)) as file:
        stream = file.streams.video[0]
        extradata = stream.codec_context.extradata or b""
        packets = {p.pts: bytes(p) for p in file.demux(stream) if p.size}
    with av.open(str(path)) as file:
        kinds = {f.pts: int(f.pict_type) for f in file.decode(video=0)}
    reader = headers_of(encoder, extradata, intra_only=False)
    assert reader is not None
    for pts, payload in packets.items():
        picture = reader.read(payload)
        assert picture.disposable == picture.backward == (kinds[pts] == BIDIRECTIONAL)
        assert picture.key == (kinds[pts] == INTRA)


def test_vp8_keys_are_those_that_are_shown(tmp_path, film):
    """Key frames by the container's flag; hidden frames are none of the film's frames."""
    path = film(
        tmp_path / "a.webm", size=(64, 48), codec="libvpx",
        options={"deadline": "realtime", "cpu-used": "8", "g": "16"},
    )  # fmt: skip
    reader = headers_of("vp8", b"", intra_only=False)
    assert reader is not None
    with av.open(str(path)) as file:
        for packet in file.demux(video=0):
            if packet.size:
                picture = reader.read(bytes(packet))
                assert (picture.key, picture.shown) == (packet.is_keyframe, 1)
                hidden = reader.read(bytes([bytes(packet)[0] & 0xEF]) + bytes(packet)[1:])
                assert (hidden.key, hidden.shown) == (False, 0)


def test_av1_refresh_flags_are_read_from_their_place(tmp_path, film, monkeypatch):
    """The eight bits themselves, of every frame that codes them."""
    if "libsvtav1" not in av.codecs_available:
        pytest.skip("this PyAV cannot encode AV1")
    path = film(tmp_path / "a.mp4", frames=40, size=(64, 48), codec="libsvtav1",
                options={"preset": "12", "g": "20"})  # fmt: skip
    codec, extradata, packets = traced(path)
    found: list[int] = []

    def read_frame(*args):
        frame = original(*args)
        if not frame.existing and not (frame.kind == 0 and frame.shown):
            found.append(frame.refreshes)
        return frame

    original = av1._read_frame
    monkeypatch.setattr(av1, "_read_frame", read_frame)
    reader = headers_of(codec, extradata, intra_only=False)
    assert reader is not None
    for packet in packets:
        reader.read(packet.payload)
    assert found == [flags for p in packets for flags in p.all("refresh_frame_flags")]
    assert len(set(found)) > 3


def test_an_av1_key_frame_that_is_shown_later_is_no_key():
    """Frames between may refer to what came before it."""
    reader = av1.AV1(b"")
    reader._sequence = av1._Sequence(reduced=False)
    shown = bits("00110 0 1 0 00000010") + bits("0 00 1") + bytes(1)
    later = bits("00110 0 1 0 00000100") + bits("0 00 0 1 1 0 0 0 00000001") + bytes(1)
    assert reader.read(shown) == Picture(key=True)
    assert reader.read(later) == Picture(shown=0)


def test_vp9_superframes_are_taken_apart():
    """A hidden reference and a shown frame in one packet; two shown ones; an index cut short."""
    hidden, shown = bits("10 00 0 1 0 1 0 00000001"), bits("10 00 0 1 1 1 00000000")
    leaning, key = bits("10 00 0 1 1 0 00 00000000"), bits("10 00 0 0 1 0") + bytes(8)
    reader = headers_of("vp9", b"", intra_only=False)
    assert reader is not None

    def packet(*frames: bytes) -> bytes:
        marker = bytes([0xC0 | len(frames) - 1])
        return b"".join(frames) + marker + bytes(map(len, frames)) + marker

    assert reader.read(shown) == Picture(disposable=True)
    assert reader.read(leaning) == Picture(disposable=True, resets=False)
    assert reader.read(hidden).shown == 0 and not reader.read(hidden).disposable
    assert reader.read(packet(hidden, shown)) == Picture()
    assert reader.read(packet(shown, shown)) == Picture(disposable=True, shown=2)
    assert reader.read(packet(key, hidden)) == Picture(key=True)
    assert not reader.read(packet(hidden, key)).key
    assert reader.read(b"\xc1\xff\xff\xc1") == Picture(resets=False)


def test_a_frame_of_a_lower_layer_is_not_disposable():
    """HEVC: TSA_N of sub-layer 1 may be a reference of sub-layer 2; only the highest are free."""
    low = Picture(disposable=True, layer=1)
    high = Picture(disposable=True, layer=2)
    assert settle([Picture(key=True), low, high]) == [False, False, True]
    assert settle([Picture(key=True), low]) == [False, True]


def test_what_the_next_frame_inherits_is_not_disposable():
    """VP9: a frame that refreshes nothing still hands on its motion vectors."""
    quiet = Picture(disposable=True)
    assert settle([quiet, Picture(resets=False), quiet]) == [False, False, True]


def nal(kind: int, *, layer: int = 0, view: int = 0, first: bool = True) -> bytes:
    """An HEVC unit behind a start code."""
    head = bytes([kind << 1 | view >> 5, (view & 31) << 3 | layer + 1])
    return b"\0\0\1" + head + bytes([0x80 if first else 0, 0x55])


def hevc(*payloads: bytes) -> list[Picture]:
    reader = headers_of("hevc", b"", intra_only=False)
    assert reader is not None
    return [reader.read(payload) for payload in payloads]


def test_rasl_pictures_are_hidden_where_decoding_began_at_their_cra():
    """At the start, behind an end of sequence, and of a BLA; not behind a CRA amid the stream."""
    cra, bla, rasl, radl, trail, end = nal(21), nal(16), nal(9), nal(7), nal(1), nal(36)
    assert [p.shown for p in hevc(cra, rasl, radl, trail, cra, rasl)] == [1, 0, 1, 1, 1, 1]
    assert [p.shown for p in hevc(nal(19), trail + end, cra, rasl, trail)] == [1, 1, 1, 0, 1]
    assert [p.shown for p in hevc(nal(19), bla, rasl, trail)] == [1, 1, 0, 1]


def test_h264_packets_of_odd_make():
    """A reference field beside one that is none; an IDR that claims to be no reference; none."""
    reader = headers_of("h264", b"", intra_only=False)
    assert reader is not None

    def unit(kind: int, reference: int) -> bytes:
        return b"\0\0\1" + bytes([reference << 5 | kind, 0xB8, 0x55])

    assert not reader.read(unit(1, 2) + unit(1, 0)).disposable
    assert reader.read(unit(1, 0) + unit(1, 0)).disposable
    idr = reader.read(unit(5, 0))
    assert idr.key and not idr.disposable
    assert reader.read(unit(6, 0)).shown == 0


def test_hevc_packets_of_odd_make():
    """Two pictures, pictures of another view only, a mixture of slice types, and none at all."""
    two, other, mixed, none = hevc(
        nal(1) + nal(1), nal(1) + nal(0, view=1), nal(0) + nal(1, first=False), nal(39)
    )
    assert two.shown == 2
    assert other == Picture()
    assert not mixed.disposable and mixed.shown == 1
    assert none.shown == 0


def test_a_repeated_mpeg4_picture_gives_no_frame():
    """A VOP that is not coded; and two VOPs in a packet, as packed B-frames are, give two."""
    vol = b"\0\0\1\x20" + bits("0 00000001 0 0001 0 00 1 0000000000011001 1 0")
    vop = {
        (kind, coded): b"\0\0\1\xb6" + bits(f"{kind:02b} 0 1 00001 1 {coded} 0000000000")
        for kind in range(3)
        for coded in (0, 1)
    }
    reader = headers_of("mpeg4", vol, intra_only=False)
    assert reader is not None
    assert reader.read(vop[0, 1]) == Picture(key=True)
    assert reader.read(vop[1, 1]) == Picture()
    assert reader.read(vop[2, 1]) == Picture(disposable=True, backward=True)
    assert reader.read(vop[1, 0]) == Picture(shown=0)
    assert reader.read(vop[1, 1] + vop[2, 1]) == Picture(shown=2)
    without = headers_of("mpeg4", b"", intra_only=False)
    assert without is not None and without.read(vop[0, 1]) == Picture()


def bits(text: str) -> bytes:
    text = text.replace(" ", "")
    text += "0" * (-len(text) % 8)
    return int(text, 2).to_bytes(len(text) // 8, "big")


def test_mpeg2_pictures_that_change_what_lasts():
    """An I-picture without a sequence header is no key; a B with matrices is not disposable."""
    sequence, extension = b"\0\0\1\xb3" + b"\1" * 8, b"\0\0\1\xb5\x30\1\1"
    picture = {kind: b"\0\0\1\0" + bytes([0, kind << 3, 0, 0]) for kind in (1, 2, 3)}
    coding = b"\0\0\1\xb5\x8f\xff"
    reader = headers_of("mpeg2video", b"", intra_only=False)
    assert reader is not None
    assert reader.read(sequence + picture[1]).key
    assert not reader.read(picture[1]).key
    assert reader.read(picture[3]).disposable
    assert not reader.read(picture[3] + extension).disposable
    field, frame = coding + b"\xf1", coding + b"\xf3"
    assert reader.read(picture[3] + field + picture[3] + field).shown == 1
    assert reader.read(picture[1] + frame + picture[2] + frame).shown == 2


def test_a_codec_whose_headers_are_not_known_has_no_reader():
    """None, and not a guess; one that codes every frame alone needs none."""
    assert headers_of("theora", b"", intra_only=False) is None
    intra = headers_of("prores", b"", intra_only=True)
    assert intra is not None and intra.read(b"x") == Picture(key=True)


def test_bits_end_in_an_error():
    """Fields beyond the data, and codes longer than any value."""
    reader = Bits(b"\x80")
    assert reader.golomb() == 0 and reader.read(7) == 0
    with pytest.raises(OutOfBits):
        reader.read(1)
    with pytest.raises(OutOfBits):
        Bits(bytes(100)).golomb()
    assert Bits(bits("00101 1")).golomb() == 4


CODECS = ["h264", "hevc", "vp8", "vp9", "libdav1d", "mpeg4", "mpeg2video"]
LENGTHS = b"\1" + b"\xff" * 22  # avcC or hvcC that says: lengths of 4 bytes
AV1C = b"\x81\4\x0c\0\x0a\x0b\0\0\0\x24\xcf\xff"
PIECES = [b"\0\0\1", b"\xb6", b"\xb3", b"\0", b"\xff", b"\x12\0", b"\x32"]
NOISE = st.binary(max_size=80)
HALF_NOISE = st.lists(st.sampled_from(PIECES) | st.binary(max_size=4), max_size=30).map(b"".join)


@settings(max_examples=400)
@given(
    st.sampled_from(CODECS),
    st.sampled_from([b"", LENGTHS, AV1C]) | NOISE,
    st.lists(NOISE | HALF_NOISE, max_size=4),
)
@example("h264", LENGTHS, [b"\0\0\0\0" * 50, b"\xff\xff\xff\xff", b"\0\0\0\1"])
@example("vp9", b"", [b"\xc0\0\xc0", b"\xdf" * 30, b""])
@example("libdav1d", b"", [b"\x12\x80\x80\x80\x80\x80\x80\x80\x80\x80", b"\x12\0" * 5000])
@example("mpeg2video", b"", [b"\0\0\1" * 70_000])
def test_hostile_packets_give_an_answer_and_no_error(codec, extradata, payloads):
    """Whatever the bytes, a Picture comes back, soon; nothing empty is a key or disposable."""
    reader = headers_of(codec, extradata, intra_only=False)
    assert reader is not None
    pictures = [reader.read(payload) for payload in payloads]
    for picture, payload in zip(pictures, payloads, strict=True):
        assert not (picture.key and picture.disposable)
        assert payload or not (picture.key or picture.disposable)
    assert len(settle(pictures)) == len(pictures)
