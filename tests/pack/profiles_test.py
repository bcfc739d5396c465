"""Profiles and their cost: the structure that is promised, what a clip feeds, and the choice."""

from __future__ import annotations

import io
import json
from dataclasses import replace
from fractions import Fraction

import av
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from matinee.cli import main as cli
from matinee.errors import ConfigError
from matinee.media.encode import ChunkEncoder
from matinee.pack import choose
from matinee.pack.choose import (
    CLOSE,
    ROOM,
    Scene,
    candidates,
    choose_profile,
    encoded_bytes,
    parse_budget,
    sample_scenes,
)
from matinee.pack.cost import (
    KINDS,
    ClipShape,
    estimate,
    gop_table,
    packets_fed,
    parse_clip,
    stored_costs,
)
from matinee.pack.profiles import NAMES, make_profile

SETTINGS = {"crf": 23, "preset": "ultrafast", "short_side": 64, "chunk_seconds": 5}
ALL = candidates(stored_costs(), ClipShape(16, 4), **SETTINGS)
OWN = [p for n in (3, 5, 16) for p in candidates(stored_costs(), ClipShape(16, n), **SETTINGS)]
OWN = [p for p in OWN if p not in ALL and p.gop <= 64]


def noise(count: int, size=(64, 48)) -> list[av.VideoFrame]:
    width, height = size
    frames = []
    for number in range(count):
        rng = np.random.default_rng(number // 9)
        picture = np.roll(rng.integers(0, 256, (height, width, 3), np.uint8), number, 1)
        frames.append(
            av.VideoFrame.from_ndarray(picture, format="rgb24").reformat(format="yuv420p")
        )
    return frames


def encode(profile, count: int):
    encoder = ChunkEncoder(
        fps=Fraction(25), size=(64, 48), matrix="bt601", settings=profile.encoder()
    )
    for frame in noise(count):
        encoder.add(frame)
    return encoder.finish()


# --- structure --------------------------------------------------------------------------------


@pytest.mark.parametrize("profile", ALL + OWN, ids=lambda p: f"{p.name}-{p.stride}-{p.gop}")
def test_the_cost_model_counts_on_the_table_that_the_encoder_makes(profile):
    """Order, keys and disposable frames of a real chunk, its last GOP cut short."""
    count = profile.gop + profile.gop // 2 + 7
    made, promised = encode(profile, count).table, gop_table(profile.stride, profile.gop, count)
    assert made.frame.tolist() == promised.frame.tolist()
    assert made.key.tolist() == promised.key.tolist()
    assert made.disposable.tolist() == promised.disposable.tolist()


def test_a_dense_clip_at_the_layers_stride_feeds_its_frames_and_the_way_to_them():
    """By hand: from the keyframe on, 0 … 7 references ahead of the clip's own 16."""
    fed = packets_fed(make_profile("layered", stride=4), ClipShape(16, 4))
    assert fed.total == pytest.approx(16 + 3.5)
    assert fed.packets["disposable"] == 0
    # 61 frames from the first to the last reach into 2 GOPs of 32 (start 0) or 3 (all others).
    assert fed.packets["key"] == fed.runs == pytest.approx((2 + 7 * 3) / 8)


def test_an_intra_clip_feeds_its_frames_alone():
    for clip in (ClipShape(8, 8), ClipShape(5, 0)):
        fed = packets_fed(make_profile("intra"), clip)
        assert fed.total == fed.packets["key"] == fed.runs == clip.frames


@given(
    spacing=st.integers(1, 8), gops=st.integers(1, 6), frames=st.integers(1, 12),
    stride=st.integers(1, 9),
)  # fmt: skip
def test_fed_packets_are_those_that_a_search_over_references_finds(spacing, gops, frames, stride):
    """Against a walk over the graph of references of such GOPs, for every aligned start."""
    gop = spacing * gops
    profile = make_profile("layered", stride=spacing, gop=gop)
    fed = packets_fed(profile, ClipShape(frames, stride))
    totals = []
    for start in range(0, np.lcm(gop, stride), stride):
        totals.append(len(reached([start + i * stride for i in range(frames)], spacing, gop)))
    assert fed.total == pytest.approx(np.mean(totals))


def reached(wanted: list[int], spacing: int, gop: int) -> set[int]:
    """A reference needs the one before; a frame between two needs both."""
    seen: set[int] = set()
    stack = list(wanted)
    while stack:
        frame = stack.pop()
        if frame in seen:
            continue
        seen.add(frame)
        key, inside = frame - frame % gop, frame % gop
        if not inside:
            continue
        before = (inside - 1) // spacing * spacing
        after = min(before + spacing, gop - 1)
        stack += [key + before, key + after]
    return seen


# --- costs ------------------------------------------------------------------------------------


def test_stored_costs_are_complete_and_not_negative():
    costs = stored_costs()
    assert {name for name, _, _ in costs.structures()} == set(NAMES) == set(costs.decode)
    for name in NAMES:
        assert min(costs.decode[name].values()) >= 0
        assert sum(costs.decode[name][kind] for kind in KINDS) > 0
    for profile in ALL:
        assert costs.bits[profile.name, profile.stride, profile.gop]["key"] > 0
    assert costs.machine["cpu"] and costs.machine["packages"]["av"]


def test_an_estimate_is_its_formula():
    """Written out for the layered profile with whole numbers."""
    costs = stored_costs()
    profile, clip, size = make_profile("layered", stride=4), ClipShape(16, 4), (512, 288)
    got = estimate(profile, clip, size, content=2.0)
    per, bits, pixels = costs.decode["layered"], costs.bits["layered", 4, 32], 512 * 288
    byte = {kind: 2.0 * bits[kind] * pixels / 8 for kind in KINDS}
    # 32 frames: 1 key, 7 references at the stride and one at the end, 23 between.
    assert got.bytes_per_frame == pytest.approx(
        (byte["key"] + 8 * byte["reference"] + 23 * byte["disposable"]) / 32
    )
    keys = (2 + 7 * 3) / 8
    micros = keys * per["run"] + 19.5 * per["packet"] + keys * per["key"] * pixels / 1e3
    micros += (19.5 - keys) * per["reference"] * pixels / 1e3
    micros += (keys * byte["key"] + (19.5 - keys) * byte["reference"]) / 1e3 * per["byte"]
    convert = costs.convert
    micros += convert["clip"] + 16 * (convert["frame"] + convert["pixel"] * pixels / 1e3)
    assert got.ms_per_clip == pytest.approx(micros / 1e3)


def test_an_unmeasured_structure_has_no_estimate():
    with pytest.raises(ConfigError, match="not measured"):
        estimate(make_profile("layered", stride=5, gop=35), ClipShape(8, 5), (512, 288))


# --- choice -----------------------------------------------------------------------------------

SCENES = [Scene(tuple(noise(1) * 100), Fraction(25), (512, 288), "bt601", 300)]


def table_bytes(profile, scenes, content=1.0) -> float:
    return cost(profile, ClipShape(1, 1), content).bytes_per_frame


def cost(profile, clip, content):
    return estimate(profile, clip, (512, 288), content=content, lengths=[100])


@pytest.mark.parametrize("clip", ["8x8", "16x4", "32x2", "16x1", "8xuniform"])
@pytest.mark.parametrize("content", [0.5, 1.0, 3.0])
def test_the_choice_is_that_of_a_search_over_all(clip, content):
    """Footage that needs `content` times the reference's bytes everywhere."""
    shape = parse_clip(clip)
    costs = {p: cost(p, shape, content) for p in ALL}
    for budget in (None, "2KB/frame", "4KB/frame", "20KB/frame", "10MB/min"):
        limit = ROOM * min(c.bytes_per_frame for c in costs.values())
        if budget:
            limit = {"2": 2000, "4": 4000, "20": 20000}.get(budget.split("K")[0], 1e7 / 60 / 25)
        inside = [p for p in ALL if costs[p].bytes_per_frame <= limit]

        def choose(budget=budget):
            return choose_profile(
                shape,
                SCENES,
                ALL,
                budget=parse_budget(budget) if budget else None,
                measure=lambda profile, scenes: table_bytes(profile, scenes, content),
            )

        if not inside:
            with pytest.raises(ConfigError, match="smallest profile"):
                choose()
            continue
        best = min(costs[p].ms_per_clip for p in inside)
        close = [p for p in inside if costs[p].ms_per_clip <= CLOSE * best]
        chosen = choose()
        assert chosen.profile == min(close, key=lambda p: costs[p].bytes_per_frame)
        assert chosen.content == pytest.approx(content)


def test_a_profile_that_turns_out_too_large_is_not_taken():
    """The table's favourite needs three times what the table says: the encode shows it."""
    clip, budget = ClipShape(16, 4), parse_budget("4KB/frame")
    first = choose_profile(clip, SCENES, ALL, budget=budget, measure=table_bytes).profile
    tried = []

    def measure(profile, scenes):
        tried.append(profile)
        return table_bytes(profile, scenes) * (3 if profile == first else 1)

    choice = choose_profile(clip, SCENES, ALL, budget=budget, measure=measure)
    assert first in tried and choice.profile in tried and choice.profile != first
    rows = {row.profile: row for row in choice.rows}
    assert not rows[first].fits and rows[first].encoded and rows[choice.profile].fits


def test_more_bytes_never_buy_a_slower_clip():
    clip = ClipShape(16, 4)
    found = [
        choose_profile(clip, SCENES, ALL, budget=parse_budget(f"{k}KB/frame"), measure=table_bytes)
        for k in (3, 5, 8, 12, 100)
    ]
    fastest = [min(r.estimate.ms_per_clip for r in c.rows if r.fits) for c in found]
    assert fastest == sorted(fastest, reverse=True)


def test_a_stride_between_the_measured_ones_gets_layers_of_its_own():
    """Fewer frames decoded than at any measured stride; none where the stride was measured."""
    clip = ClipShape(16, 3)
    profiles = candidates(stored_costs(), clip, **SETTINGS)
    assert profiles[: len(ALL)] == ALL
    assert [(p.name, p.stride, p.gop) for p in profiles[len(ALL) :]] == [
        ("layered", 3, gop) for gop in (6, 12, 24, 48)
    ]
    choice = choose_profile(
        clip, SCENES, profiles, budget=parse_budget("6KB/frame"), measure=table_bytes
    )
    assert choice.profile.stride == 3
    assert packets_fed(make_profile(stride=3), clip).total == 19.5
    assert candidates(stored_costs(), ClipShape(16, 0), **SETTINGS) == ALL
    for stride, own in ((8, set()), (32, {16}), (24, {12}), (17, set())):
        more = candidates(stored_costs(), ClipShape(4, stride), **SETTINGS)[len(ALL) :]
        assert {p.stride for p in more} == own


def test_bits_of_a_stride_lie_between_those_of_its_neighbours():
    """At the geometric mean of two strides, in the middle; a straight line beyond."""
    costs = stored_costs()
    four, eight = costs.bits["layered", 4, 32], costs.bits["layered", 8, 64]
    sixteen = costs.bits_of("layered", 16, 128)
    six = costs.bits_of("layered", 6, 48)
    for kind in KINDS:
        assert sixteen[kind] == pytest.approx(2 * eight[kind] - four[kind])
        low, high = sorted((four[kind], eight[kind]))
        assert low < six[kind] < high
    assert costs.bits_of("layered", 4, 32) is four
    assert costs.bits_of("layered", 6, 40) is None and costs.bits_of("intra", 2, 2) is None


def test_a_uniform_clip_spreads_over_the_sampled_videos():
    """Of long videos each frame lies in a GOP of its own, of short ones several share one."""
    clip = parse_clip("8xuniform")

    def chosen(length):
        scenes = [replace(SCENES[0], video_frames=n) for n in (length - 10, length + 10)]
        return choose_profile(clip, scenes, ALL, measure=table_bytes)

    for length in (40, 5000):
        choice = chosen(length)
        assert choice.video_frames == choice.as_dict()["frames_per_video"] == length
        for row in choice.rows:
            assert row.estimate.fed == packets_fed(row.profile, clip, video_frames=length)
    small = make_profile("small")
    assert packets_fed(small, clip, video_frames=40).runs == 1
    hour, longer = (packets_fed(small, clip, video_frames=n) for n in (10**5, 10**9))
    assert 7.8 < hour.runs <= 8 and longer.total == hour.total


def test_a_clip_longer_than_the_sampled_videos_is_said():
    def note(frames):
        scenes = [replace(SCENES[0], video_frames=frames)]
        return choose_profile(ClipShape(16, 4), scenes, ALL, measure=table_bytes).note

    assert note(61) is None and "span 61 frames" in note(60) and "have 60" in note(60)


def test_frames_that_are_too_large_to_hold_are_decoded_again(tmp_path, film, monkeypatch):
    path = film(tmp_path / "a.mp4", frames=200)
    (held,) = sample_scenes([path], 64)
    monkeypatch.setattr(choose, "HELD_BYTES", 3 * 20 * held.size[0] * held.size[1] * 3 // 2)
    (again,) = sample_scenes([path], 64)
    assert isinstance(held.frames, list) and not isinstance(again.frames, list)
    assert len(held.frames) == len(again.frames) == 100
    assert held.video_frames == again.video_frames == 200
    for _ in range(2):
        for one, other in zip(held.frames, again.frames, strict=True):
            assert np.array_equal(one.to_ndarray(), other.to_ndarray())


@pytest.mark.parametrize("text", ["9999x999", "102x100", "11x1000", "9999x2"])
def test_clips_beyond_any_video_are_refused_at_once(text):
    with pytest.raises(ConfigError, match=r"--for-clip .*(10,000|frames x stride)"):
        parse_clip(text)


def test_of_very_many_starts_evenly_spaced_ones_are_counted():
    """Strides prime to a GOP of 1000 frames have 1000 aligned starts."""
    profile, clip = make_profile("small", gop=1000), ClipShape(4, 7)
    starts = range(1000)
    total = np.mean([len(reached([s + i * 7 for i in range(4)], 4, 1000)) for s in starts])
    assert packets_fed(profile, clip).total == pytest.approx(total, rel=0.02)


@pytest.mark.parametrize("text", ["16", "x4", "16x0", "0x4", "16x4x2", "8xuni", "", "16×4"])
def test_clip_shapes_that_are_none_are_refused(text):
    with pytest.raises(ConfigError, match="--for-clip"):
        parse_clip(text)


@pytest.mark.parametrize("text", ["3KB", "0KB/frame", "-1KB/frame", "3/frame", "3KB/s", "KB/min"])
def test_budgets_that_are_none_are_refused(text):
    with pytest.raises(ConfigError, match="--budget"):
        parse_budget(text)


def test_budgets_by_frame_and_by_minute():
    assert parse_budget("2.5 kb/frame").bytes_per_frame(25) == 2500
    assert parse_budget("3MB/min").bytes_per_frame(25) == 2000


def test_sampled_bytes_are_those_of_the_files_themselves(tmp_path, film):
    """Chunk files and tables written out and weighed."""
    path = film(tmp_path / "a.mp4", frames=60)
    (scene,) = sample_scenes([path], 64)
    assert len(scene.frames) == 60
    profile = make_profile("layered", preset="ultrafast")
    encoder = ChunkEncoder(
        fps=scene.fps, size=scene.size, matrix="bt601", settings=profile.encoder()
    )
    for frame in scene.frames:
        encoder.add(frame)
    chunk = encoder.finish()
    (tmp_path / "c.mp4").write_bytes(chunk.data)
    (tmp_path / "c.npy").write_bytes(chunk.table.to_bytes())
    weight = sum((tmp_path / n).stat().st_size for n in ("c.mp4", "c.npy"))
    assert encoded_bytes(profile, [scene]) == weight / 60
    with av.open(io.BytesIO(chunk.data)) as file:
        assert sum(1 for _ in file.decode(video=0)) == 60


def test_videos_that_cannot_be_read_are_passed_over_by_the_sample(tmp_path, film):
    bad = tmp_path / "bad.mp4"
    bad.write_bytes(b"no video")
    good = film(tmp_path / "good.mp4", frames=20)
    assert len(sample_scenes([bad, good], 64)) == 1
    with pytest.raises(ConfigError, match=r"bad\.mp4"):
        sample_scenes([bad], 64)


# --- the command line -------------------------------------------------------------------------


@pytest.fixture(scope="module")
def films(tmp_path_factory, film):
    root = tmp_path_factory.mktemp("films")
    for label in ("a", "b"):
        for i in range(2):
            film(root / label / f"{i}.mp4", frames=40)
    return root


def test_pack_for_a_clip_takes_what_it_says_and_writes_the_table(films, tmp_path, capsys):
    args = [
        "pack", str(films), "--out", str(tmp_path / "p.pack"), "--for-clip", "8x2",
        "--workers", "1", "--preset", "ultrafast", "--json", str(tmp_path / "p.json"),
    ]  # fmt: skip
    assert cli(args) == 0
    printed = capsys.readouterr().out
    choice = json.loads((tmp_path / "p.json").read_text())["choice"]
    stored = json.loads((tmp_path / "p.pack" / "pack.json").read_text())["profile"]
    chosen = choice["chosen"]
    assert chosen == {
        "profile": stored["name"], "stride": stored["stride"], "gop": stored["gop"],
    }  # fmt: skip
    assert choice["clip"] == "8x2" and len(choice["table"]) == len(ALL)
    row = next(r for r in choice["table"] if {k: r[k] for k in chosen} == chosen)
    assert row["fits"] and row["bytes"].startswith("measured")
    assert f"--profile {chosen['profile']}" in printed and choice["reason"] in printed


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (["--for-clip", "16x4", "--profile", "intra"], "--profile"),
        (["--for-clip", "16x4", "--stride", "4"], "--stride"),
        (["--for-clip", "16x4", "--gop", "32"], "--gop"),
        (["--budget", "3KB/frame"], "--for-clip"),
        (["--for-clip", "16x4", "--budget", "3KB"], "--budget"),
        (["--for-clip", "16x4", "--budget", "1B/frame"], "raise --budget"),
        (["--profile", "small", "--stride", "2"], "--stride has no effect"),
        (["--profile", "intra", "--gop", "8"], "--gop has no effect"),
    ],
)
def test_contradictory_flags_are_refused_in_one_line(films, tmp_path, capsys, flags, said):
    args = ["pack", str(films), "--out", str(tmp_path / "p.pack"), "--preset", "ultrafast", *flags]
    assert cli(args) == 2
    error = capsys.readouterr().err.strip().splitlines()
    assert said in error[-1]
    assert not (tmp_path / "p.pack").exists()
