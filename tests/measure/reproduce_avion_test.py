"""`matinee reproduce avion`: what its arms see, what its counters count, what its page holds."""

from __future__ import annotations

import json
import statistics
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import nn

from matinee.cli import reproduce as command
from matinee.errors import ConfigError, MissingExtra
from matinee.measure.plan import published as planned
from matinee.measure.plan import whole
from matinee.measure.plan.batch import BatchPlan
from matinee.measure.plan.cards import Fleet, read_cards
from matinee.measure.plan.data_side import typical_footage
from matinee.measure.plan.memory import predict_memory
from matinee.measure.reproduce.avion import Options, footage, predicted, reproduce
from matinee.measure.reproduce.avion.before import (
    BeforeClips,
    before_batches,
    open_decord,
    scaled,
    set_attention,
    to_float,
)
from matinee.measure.reproduce.avion.memory import Line, build, kept, kept_of_clip, num_tokens
from matinee.measure.reproduce.avion.steps import Loaders, clip_spec
from matinee.media.decode import Box
from matinee.pack.reading.clip import ClipReader
from matinee.recipes import RECIPES, tiny

pytest.importorskip("decord", reason="the extra [bench]")
TINY = "vit_tiny_patch16_224"


@pytest.fixture(scope="module")
def options(film, tmp_path_factory) -> Options:
    folder = tmp_path_factory.mktemp("videos")
    for number in range(2):
        film(folder / f"{number}.mp4", frames=40, size=(160, 90), seed=number)
    (folder / "notes.mp4").write_text("no video")
    return Options(
        quick=True, videos=folder, seconds=2, minutes=1, lines=90, rounds=1, size=32, frames=4,
        workers=1, batch=2, backbone=TINY, memory_backbone=TINY,
    )  # fmt: skip


@pytest.fixture(scope="module")
def made(options, tmp_path_factory) -> footage.Footage:
    return footage.make_footage(options, tmp_path_factory.mktemp("made"), lambda note: None)


def clip_of_pack(made, plan) -> torch.Tensor:
    """float32 [3, T, S, S] through matinee's decoder."""
    out = np.empty((len(plan.frames), 64 * 64 * 3), np.uint8)
    parts = made.pack.locate(plan.video, plan.frames)
    ClipReader(made.pack.formats).read(parts, out, box=plan.box, size=(64, 64), pixels="rgb")
    frames = out.reshape(-1, 64, 64, 3)
    return to_float(frames[:, :, ::-1].copy() if plan.flip else frames)


def test_before_and_after_see_the_same_frames_and_crops(options, made):
    spec = clip_spec(replace(options, size=64), 4, "random-resized")
    plans = Loaders(made, spec, 2, 1).plans()[:6]
    info = made.pack.info(0)
    for video in (made.original, made.chunk, made.copy, made.long_chunk):
        before = BeforeClips(video, plans, (info.width, info.height), 64, made.frames)
        for index, plan in enumerate(plans):
            clip, number = before[index]
            assert number == index and clip.shape == (3, 4, 64, 64) and clip.dtype == torch.float32
            after = clip_of_pack(made, plan)
            moved = replace(plan, frames=tuple((f + 4) % made.frames for f in plan.frames))
            mirrored = replace(plan, flip=not plan.flip)
            near = (clip - after).abs().mean()
            assert near < 0.35  # of normalised levels; two encoders and two scalers lie between
            for other in (moved, mirrored):
                assert (clip - clip_of_pack(made, other)).abs().mean() > 2 * near


def test_the_long_file_is_the_footage_again_and_again(made):
    once, long = open_decord(made.chunk), open_decord(made.long_chunk)
    assert len(once) == made.frames
    assert len(long) == made.frames * made.long_chunk.times
    last = (made.long_chunk.times - 1) * made.frames
    for frame in (0, 7, made.frames - 1):
        whole = once[frame].asnumpy()
        assert (long[frame].asnumpy() == whole).all()
        assert (long[last + frame].asnumpy() == whole).all()


def test_before_loader_hands_out_batches_of_its_plans_in_order(options, made):
    plans = Loaders(made, clip_spec(options, 4, "multi-scale"), 2, 1).plans()[:5]
    clips = BeforeClips(made.chunk, plans, (160, 90), 32, made.frames)
    texts = [f"text {i}" for i in range(5)]
    batches = list(before_batches(clips, batch=2, workers=0, texts=texts))
    assert [batch.samples for batch in batches] == [
        tuple(p.sample for p in plans[:2]), tuple(p.sample for p in plans[2:4]),
    ]  # fmt: skip
    assert batches[1].texts == ("text 2", "text 3")
    assert torch.equal(batches[1].video[0], clips[2][0])


def test_a_box_is_the_same_part_of_a_larger_picture():
    assert scaled(Box(10, 20, 30, 40), (100, 100), (200, 300)) == (20, 60, 80, 180)
    assert scaled(Box(0, 0, 568, 320), (568, 320), (1920, 1080)) == (0, 0, 1920, 1080)


def test_bytes_kept_are_those_of_a_perceptron_on_paper():
    network = nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.Linear(16, 4))
    x = torch.randn(5, 8)
    # GELU keeps its input, the second layer too; the first layer's is the given one.
    assert kept(network, x, precision="fp32") == 2 * 5 * 16 * 4


@pytest.mark.parametrize("way", ["explicit", "fused", "recomputed"])
def test_bytes_kept_are_those_of_a_step_that_goes_backwards(way):
    network = build(TINY, 2, size=32, way=way)
    clip = torch.randn(1, 3, 2, 32, 32)
    beside = {t.untyped_storage().data_ptr() for t in (clip, *network.parameters())}
    beside |= {t.untyped_storage().data_ptr() for t in network.buffers()}
    sizes: dict[int, int] = {}

    def pack(tensor):  # all are alive until the backward pass, so that addresses differ
        storage = tensor.untyped_storage()
        sizes[storage.data_ptr()] = storage.nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        loss = network(clip).sum()
    expected = sum(size for place, size in sizes.items() if place not in beside)
    loss.backward()
    assert kept(network, clip, precision="fp32") == expected
    assert all(p.grad is not None for p in network.backbone.blocks.parameters())


def test_explicit_attention_keeps_a_matrix_a_head_and_block():
    more, tokens = [], []
    for frames in (2, 4):
        explicit, fused, recomputed = (
            kept_of_clip(TINY, frames, size=64, way=way, precision="fp32").total
            for way in ("explicit", "fused", "recomputed")
        )
        assert recomputed < fused / 3 < explicit / 3
        more.append(explicit - fused)
        tokens.append(num_tokens(build(TINY, frames, size=64, way="fused")))
    assert tokens[1] == 2 * tokens[0]
    # What grows with the square of tokens: 12 blocks of 3 heads in float32.
    assert more[1] - 2 * more[0] == 2 * tokens[0] ** 2 * 12 * 3 * 4


@pytest.mark.parametrize("way", ["explicit", "recomputed"])
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_two_blocks_tell_what_twelve_keep(way, precision):
    whole, told = (
        kept_of_clip(TINY, 2, size=32, way=way, precision=precision, whole=whole)
        for whole in (True, False)
    )
    assert told == whole


def test_bytes_of_a_clip_do_not_hold_copies_of_weights_in_half_precision():
    sizes = [
        kept_of_clip(TINY, 2, size=32, way="fused", precision=p).total for p in ("bf16", "fp32")
    ]
    assert 0.4 * sizes[1] < sizes[0] < sizes[1]


def test_a_fitted_line_is_the_line():
    line = Line.fit([1, 2, 4], [5, 7, 11])
    assert (line.start, line.slope) == (pytest.approx(3), pytest.approx(2))
    assert line.unexplained == pytest.approx(0, abs=1e-9)
    square = Line.fit([100, 200, 400], [10_000, 40_000, 160_000])
    assert square.exponent == pytest.approx(2) and square.unexplained > 0.05


def test_attention_computes_the_same_either_way():
    network = build(TINY, 2, size=32, way="fused").eval()
    clip = torch.randn(1, 3, 2, 32, 32)
    fused = network(clip)
    assert set_attention(network, explicit=True) == 12
    assert (network(clip) - fused).abs().max() < 1e-4
    with pytest.raises(ConfigError, match="no attention layers"):
        set_attention(nn.Linear(2, 2), explicit=True)


def small_plan() -> whole.Plan:
    """Of a small network, in place of the published ones."""
    config = tiny(RECIPES["clip_ego4d"]("", ""))
    config = replace(config, optim=replace(config.optim, batch_size=8, accumulate=1, epochs=1))
    places = typical_footage(1000, 1, fps=30, profile="small", height=288, stride=4)
    memory = predict_memory(config, micro_batch=4, world=2, precision="bf16", classes=1)
    batch = BatchPlan(4, 1, 0, "ddp", memory, 0.0, "As given.")
    fleet = Fleet(read_cards()["A5000"], 2, 2)
    return whole.plan_run(whole.Wish(config, fleet, places, classes=1, batch=batch))


def test_a_predicted_run_is_none_of_those_that_tell_how_busy_devices_are(monkeypatch):
    monkeypatch.setattr(planned, "_with_explicit_attention", lambda *args: None)
    monkeypatch.setattr(planned, "compute_seconds", lambda *args: SimpleNamespace(total=1.0))
    every = {run.what: run.published / run.predicted for run in planned.busy_runs()}
    others = [busy for what, busy in every.items() if what != planned.VIDEOMAE]
    assert len(others) == len(every) - 1
    assert planned.busy_without(planned.VIDEOMAE) == statistics.median(others)
    monkeypatch.setattr(predicted, "busy_without", {planned.VIDEOMAE: 0.5}.__getitem__)
    monkeypatch.setattr(predicted, "predict_memory", lambda *args, **settings: None)
    monkeypatch.setattr(predicted, "plan_run", lambda wish: wish)
    assert predicted.videomae_plan().take.busy == 0.5


def test_the_page_has_every_part_and_its_numbers(options, tmp_path, monkeypatch, capsys):
    plan = small_plan()
    monkeypatch.setattr(predicted, "avion_plan", lambda: plan)
    monkeypatch.setattr(predicted, "videomae_plan", lambda: plan)
    out = tmp_path / "out"
    flags = {
        "videos": options.videos, "seconds": 2, "minutes": 1, "lines": 90, "rounds": 1, "size": 32,
        "frames": 4, "workers": 1, "backbone": TINY, "memory-backbone": TINY, "out": out,
    }  # fmt: skip
    args = [word for name, value in flags.items() for word in (f"--{name}", str(value))]
    assert command.main(["avion", "--quick", *args]) == 0
    page = (out / "avion.html").read_text()
    names = ["summary", "memory", "chunks", "fusion", "augmentation", "loaders", "videomae",
             "contrastive", "published-size"]  # fmt: skip
    assert [name for name in names if f'<section id="{name}"' not in page] == []
    assert page.count("<svg") >= 7
    data = json.loads((out / "avion.json").read_text())
    arms = data["videomae"]["seconds_a_step"]
    assert list(arms)[2:] == ["+ matinee's loader", "+ SDPA", "+ bf16"]
    assert all(arm["median"] > 0 for arm in arms.values())
    assert "+ blocks recomputed" in data["contrastive"]["seconds_a_step"]
    assert data["augmentation"]["bytes_a_clip"] == {"float32 RGB": 49152, "8-bit I420": 6144}
    assert "data_wait" in next(iter(data["videomae"]["spans"].values()))
    assert "995" in page and "1536" in page and "2309.16669" in page
    assert page.count("6.7×") == 2  # in the list of what was published and in its note alone
    assert (out / "avion-memory-tokens.png").stat().st_size > 1000
    assert "In short" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"rounds": 0}, "--rounds 0"),
        ({"frames": 5}, "even number"),
        ({"size": 100}, "multiple of 16"),
        ({"lines": 33}, "--lines 33"),
        ({"seconds": 1, "frames": 16}, "shorter than two clips"),
    ],
)
def test_options_that_cannot_be_used_are_refused(wrong, said):
    with pytest.raises(ConfigError, match=said):
        Options(**wrong)


def test_folders_without_video_and_kept_files_of_others_are_refused(options, made, tmp_path):
    with pytest.raises(ConfigError, match="no such folder"):
        reproduce(replace(options, videos=tmp_path / "none"), on_step=lambda *_: None)
    (tmp_path / "a.txt").write_text("text")
    with pytest.raises(ConfigError, match=r"no readable video in it \(a.txt"):
        reproduce(replace(options, videos=tmp_path), on_step=lambda *_: None)
    with pytest.raises(ConfigError, match="holds other files"):
        footage.make_footage(options, tmp_path, lambda note: None)
    with pytest.raises(ConfigError, match="holds other footage"):
        footage.make_footage(replace(options, lines=80), made.chunk.path.parent, lambda note: None)


@pytest.mark.parametrize("field", ["backbone", "memory_backbone"])
@pytest.mark.parametrize(("name", "said"), [("vit_smal", "no model"), ("resnet18", "ViT")])
def test_a_network_that_is_no_vit_is_refused_at_once(options, field, name, said):
    told = []
    with pytest.raises(ConfigError, match=said):
        reproduce(replace(options, **{field: name}), on_step=lambda *step: told.append(step))
    assert not told


def test_kept_footage_is_used_again(options, made):
    folder: Path = made.chunk.path.parent
    before = {p: p.stat().st_mtime_ns for p in folder.glob("*.mp4")}
    again = footage.make_footage(options, folder, lambda note: None)
    assert before and {p: p.stat().st_mtime_ns for p in folder.glob("*.mp4")} == before
    assert again.frames == made.frames and len(again.pack) == len(made.pack)
    for other in ({"minutes": 2}, {"frames": 8}):
        with pytest.raises(ConfigError, match="holds other footage"):
            footage.make_footage(replace(options, **other), folder, lambda note: None)


@pytest.mark.parametrize(("package", "extra"), [("decord", "bench"), ("timm", "train")])
def test_a_missing_package_is_said_with_its_extra(options, monkeypatch, package, extra):
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(MissingExtra, match=rf"matinee\[{extra}\]"):
        reproduce(options, on_step=lambda *_: None)
