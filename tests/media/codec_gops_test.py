"""Random GOP structures of every codec: random access equals sequential decoding, bit for bit."""

from __future__ import annotations

import tempfile
from dataclasses import dataclass
from pathlib import Path

import av
import numpy as np
import pytest
from hypothesis import HealthCheck, Phase, given, reject, settings
from hypothesis import strategies as st

from matinee.media.convert import frame_bytes
from matinee.media.decode import ClipDecoder
from matinee.media.packets import VideoFormat, scan_packets
from matinee.media.units import headers_of

COUNT, SIZE = 40, (64, 48)


@dataclass(frozen=True)
class Encoding:
    """What an encoder is told."""

    encoder: str
    ending: str
    options: dict[str, str]


def joined(options: dict[str, object]) -> str:
    return ":".join(f"{name}={value}" for name, value in options.items())


def options(**choices: object) -> st.SearchStrategy[dict[str, object]]:
    """One of each list of choices; underscores stand for hyphens."""
    return st.fixed_dictionaries(
        {name.replace("_", "-"): st.sampled_from(values) for name, values in choices.items()}
    )


X264 = st.builds(
    lambda ending, preset, direct, params: Encoding(
        "libx264", ending,
        {"preset": preset, "direct-pred": direct, "x264-params": joined(params)},
    ),
    st.sampled_from(["mp4", "mkv", "mov", "flv"]),
    st.sampled_from(["ultrafast", "fast", "medium"]),
    st.sampled_from(["spatial", "temporal", "auto"]),
    options(
        keyint=[1, 2, 5, 12, 30], scenecut=[0, 40], bframes=[0, 1, 3, 6], b_adapt=[0, 2],
        b_pyramid=["none", "strict", "normal"], ref=[1, 3, 6], open_gop=[0, 1],
        intra_refresh=[0, 0, 1], slices=[1, 3], weightp=[0, 2], rc_lookahead=[10],
    ),
)  # fmt: skip
X265 = st.builds(
    lambda ending, layers, params: Encoding(
        "libx265", ending,
        {"preset": "superfast",
         # x265 divides by zero where it refreshes every frame or every other one.
         "x265-params": joined(params | {"intra-refresh": params["intra-refresh"]
                                         if params["keyint"] > 2 else 0})
         + (f":temporal-layers={layers}" if layers and params["bframes"] >= 3 else "")
         + ":log-level=none:pools=none:frame-threads=1:rc-lookahead=10"},
    ),
    st.sampled_from(["mp4", "mkv"]),
    st.sampled_from([0, 0, 2, 3]),
    options(
        keyint=[1, 2, 6, 12, 30], scenecut=[0, 40], bframes=[0, 2, 4, 8], b_adapt=[0, 2],
        b_pyramid=[0, 1], ref=[1, 3, 5], open_gop=[0, 1], intra_refresh=[0, 0, 1],
    ),
)  # fmt: skip
LAYERS = {
    2: "ts_number_layers=2:ts_target_bitrate=60,100:ts_rate_decimator=2,1:ts_periodicity=2:"
       "ts_layer_id=0,1:ts_layering_mode=2",
    3: "ts_number_layers=3:ts_target_bitrate=30,60,100:ts_rate_decimator=4,2,1:ts_periodicity=4:"
       "ts_layer_id=0,2,1,2:ts_layering_mode=3",
}  # fmt: skip


def vpx(encoder: str) -> st.SearchStrategy[Encoding]:
    offline = st.builds(
        lambda params: Encoding(encoder, "webm", {"deadline": "good", "cpu-used": "5", **params}),
        options(g=["1", "7", "20", "60"], auto_alt_ref=["0", "1"], lag_in_frames=["0", "8", "20"],
                b=["0", "60k"], error_resilient=["0", "1"]),
    )  # fmt: skip
    layered = st.builds(
        lambda params, layers: Encoding(
            encoder, "webm",
            {"deadline": "realtime", "cpu-used": "8", "lag-in-frames": "0", "b": "100k",
             "ts-parameters": LAYERS[layers], **params},
        ),
        options(g=["7", "20", "60"], error_resilient=["0", "1"]),
        st.sampled_from([2, 3]),
    )  # fmt: skip
    return offline | layered


AV1 = st.builds(
    lambda ending, params, more: Encoding(
        "libsvtav1", ending, {"preset": "12", **params, "svtav1-params": joined(more)}
    ),
    st.sampled_from(["mp4", "mkv", "webm"]),
    options(g=["1", "6", "16", "60"]),
    options(pred_struct=[1, 2], hierarchical_levels=[2, 3, 4, 5], irefresh_type=[1, 2],
            lookahead=[10]),
)  # fmt: skip
MPEG4 = st.builds(
    lambda ending, params: Encoding("mpeg4", ending, params),
    st.sampled_from(["mp4", "mkv", "avi", "mov"]),
    options(g=["1", "5", "12", "40"], bf=["0", "1", "3"], flags=["+mv4", "+qpel", "+aic"],
            sc_threshold=["0", "1000000000"]),
)  # fmt: skip
MPEG2 = st.builds(
    Encoding,
    st.sampled_from(["mpeg2video", "mpeg1video"]),
    st.sampled_from(["mkv", "avi", "mov"]),
    options(g=["1", "5", "12", "40"], bf=["0", "1", "3"], b_strategy=["0", "1"]),
)
CODECS = {
    "H.264": X264, "HEVC": X265, "VP8": vpx("libvpx"), "VP9": vpx("libvpx-vp9"), "AV1": AV1,
    "MPEG-4": MPEG4, "MPEG-1 and 2": MPEG2,
}  # fmt: skip


def decoder_of(path: Path, data: bytes):
    """`decode(frames)` by the packets of the file; and its table."""
    scan = scan_packets(path)
    fmt = VideoFormat(scan.codec, *SIZE, "yuv420p", scan.extradata, "bt601", False)
    decoder, size = ClipDecoder(), SIZE[::-1]

    def decode(frames: list[int]) -> np.ndarray:
        out = np.zeros((len(frames), frame_bytes(size)), np.uint8)
        decoder.decode(fmt, scan.table, lambda a, b: data[a:b], frames, out, size=size)
        return out

    return scan, decode


@pytest.mark.parametrize("codec", CODECS)
def test_any_frames_of_any_gop_structure_are_those_of_sequential_decoding(codec, film, sequential):
    """Each frame alone, random sets, and all that are not disposable without those that are."""
    seen: set[bool] = set()

    # No shrinking: encoding takes long, and the example that fails names its options.
    @settings(
        max_examples=8, phases=[Phase.generate], suppress_health_check=list(HealthCheck),
        database=None, derandomize=True,
    )  # fmt: skip
    @given(CODECS[codec], st.integers(0, 99), st.sampled_from([5, 17, 60]), st.data())
    def check(encoding, seed, scene, data) -> None:
        if encoding.encoder not in av.codecs_available:
            pytest.skip(f"this PyAV cannot encode {encoding.encoder}")
        with tempfile.TemporaryDirectory() as folder:
            try:
                path = film(
                    Path(folder) / f"a.{encoding.ending}", frames=COUNT, size=SIZE,
                    codec=encoding.encoder, options=encoding.options,
                    content=moving(COUNT, SIZE, seed, scene),
                )  # fmt: skip
            except av.ArgumentError:
                reject()  # options that the encoder does not take together
            frames = np.stack(sequential(path))
            scan, decode = decoder_of(path, path.read_bytes())
        table = scan.table
        assert table.num_frames == len(frames) == COUNT
        wishes = [[frame] for frame in range(COUNT)]
        wishes.append(table.frame[~table.disposable & (table.frame >= 0)].tolist())
        some = st.lists(st.integers(0, COUNT - 1), min_size=2, max_size=9)
        wishes += data.draw(st.lists(some, min_size=6, max_size=6))
        for wanted in wishes:
            assert np.array_equal(decode(wanted), frames[wanted]), wanted
        seen.add(bool(table.disposable.any()))

    check()
    assert True in seen or codec == "VP8", "nothing was ever left out"


def moving(count: int, size: tuple[int, int], seed: int, scene: int):
    """Blocky noise that pans and turns into other noise, so that frames differ from each other."""
    width, height = size
    for number in range(count):
        rng = np.random.default_rng((seed, number // scene))
        coarse = rng.integers(0, 256, (height // 8 + 2, width // 8 + 2, 3), dtype=np.uint8)
        picture = coarse.repeat(8, 0).repeat(8, 1)[:height, :width]
        picture = np.roll(picture, (number, 3 * number), (0, 1))
        picture[number % (height - 8) :][:8, :8] = (number * 6, 255 - number * 6, 128)
        yield picture


@pytest.mark.parametrize("codec", ["H.264", "HEVC", "VP9", "AV1", "MPEG-4", "MPEG-1 and 2"])
def test_damaged_packets_of_real_streams_give_an_answer_and_no_error(codec, tmp_path, film):
    """Bytes changed, cut and doubled: headers are read or not, and nothing else happens."""
    rng = np.random.default_rng(0)
    name, ending, options = {
        "H.264": ("libx264", "mp4", {"preset": "fast"}),
        "HEVC": ("libx265", "mp4", {"preset": "superfast", "x265-params": "log-level=none"}),
        "VP9": ("libvpx-vp9", "webm", {"deadline": "good", "cpu-used": "8"}),
        "AV1": ("libsvtav1", "mp4", {"preset": "12"}),
        "MPEG-4": ("mpeg4", "mp4", {"bf": "2"}),
        "MPEG-1 and 2": ("mpeg2video", "mkv", {"bf": "2"}),
    }[codec]
    if name not in av.codecs_available:
        pytest.skip(f"this PyAV cannot encode {name}")
    path = film(tmp_path / f"a.{ending}", frames=20, size=SIZE, codec=name, options=options)
    with av.open(str(path)) as file:
        stream = file.streams.video[0]
        kind, extradata = stream.codec_context.name, stream.codec_context.extradata or b""
        packets = [bytes(packet) for packet in file.demux(stream) if packet.size]
    for _ in range(60):
        reader = headers_of(kind, extradata, intra_only=False)
        assert reader is not None
        for payload in packets:
            broken = bytearray(payload)
            for place in rng.integers(0, min(len(broken), 40), rng.integers(1, 4)):
                broken[place] = rng.integers(256)
            picture = reader.read(bytes(broken)[: rng.integers(1, len(broken) + 1)])
            assert not (picture.key and picture.disposable) and picture.shown >= 0
