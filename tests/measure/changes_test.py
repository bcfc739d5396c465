"""What to change: from facts alone, with what it should save."""

import shlex
from dataclasses import replace

import pytest
import tyro

from matinee.cli.common import parse
from matinee.cli.train import TrainCommand
from matinee.data.clips import ClipSpec
from matinee.data.decode_cost import DecodeCost
from matinee.errors import ConfigError
from matinee.measure.diagnose.changes import Change, ranked
from matinee.measure.diagnose.facts import Facts, Loading, Stored
from matinee.measure.diagnose.suggest import suggest
from matinee.measure.plan.batch import BatchPlan
from matinee.measure.plan.memory import Memory
from matinee.pack.profiles import make_profile
from matinee.recipes import clip_ego4d, tsm
from matinee.training.config import ParallelConfig, SpeedConfig, TrainConfig

PROFILE = vars(make_profile("layered", stride=4))


def config(**more) -> TrainConfig:
    base = tsm("my.pack", "out")
    clip = ClipSpec(frames=16, sampling="dense", stride=4, size=224)
    return replace(base, clip=clip, optim=replace(base.optim, epochs=50), **more)


def loading(**more) -> Loading:
    """100 clips: 30 ms each, 2 of them reading, 22 decoding, 5 scaling."""
    cost = DecodeCost(
        clips=100, bytes=20_000_000, read_s=0.2, decode_s=2.2, scale_s=0.5, packets=6000,
        frames_decoded=6000, frames_used=1600, busy_s=3.0,
    )  # fmt: skip
    return replace(Loading(2, "processes", cost, 10), **more)


def facts(**more) -> Facts:
    stages = {"storage": 0.01, "decode": 0.3, "h2d": 0.02, "compute": 0.2, "communication": 0.0,
              "optimizer": 0.01, "stragglers": 0.0, "other": 0.0}  # fmt: skip
    stored = Stored("my.pack", None, 1280, 720)
    base = Facts(config(), stages, "cuda", "bf16", 1, loading(), stored, idle_cores=0.0)
    return replace(base, **more)


def by_flag(found, flag):
    return next((change for change in found if flag in change.flags), None)


def with_stage(**seconds: float) -> dict[str, float]:
    return {**dict.fromkeys(facts().stages, 0.0), **seconds}


def test_an_indexed_pack_is_re_packed_with_layers_at_the_training_stride():
    change = suggest(facts())[0]
    assert change.what.startswith("re-pack with stride 4 layers")
    assert "--profile layered --stride 4" in change.command
    assert change.pack is not None
    assert make_profile(**change.pack).stride == 4
    assert 0.2 < change.saves < 0.31


def test_re_packing_scales_the_model_to_this_machine():
    """Decoders twice as slow: twice the milliseconds, before and after."""
    slow = loading()
    double = DecodeCost(**{**vars(slow.cost), "decode_s": 4.4, "scale_s": 1.0, "busy_s": 5.8})

    def told(found):
        text = next(c.what for c in suggest(found) if "at" not in c.what.split(":")[0].split())
        before, after = text.split("decode ")[1].removesuffix(" ms a clip").split(" → ")
        return float(before), float(after)

    one, two = told(facts()), told(facts(loading=loading(cost=double)))
    assert two[0] == pytest.approx(2 * one[0], rel=0.01)
    assert two[1] == pytest.approx(2 * one[1], rel=0.02)


def test_a_pack_that_fits_is_not_re_packed():
    fits = Stored("my.pack", PROFILE, 384, 288)
    assert not [c for c in suggest(facts(stored=fits)) if "re-pack" in c.what]
    wide = replace(config(), clip=replace(config().clip, stride=16))  # a reference every 4 frames
    assert [c for c in suggest(facts(stored=fits, config=wide)) if "with stride 16" in c.what]


def test_more_decoders_only_where_cores_are_idle():
    assert by_flag(suggest(facts(idle_cores=0.0)), "data.workers") is None
    change = by_flag(suggest(facts(idle_cores=6.2)), "data.workers")
    assert change.flags["data.workers"] == 8
    # 6 more decoders: a quarter of the time, and the step cannot be shorter than without waiting.
    assert change.saves == pytest.approx(min(0.30, 0.54 * 0.75))


def test_waiting_for_storage_asks_for_a_cache_only_where_there_is_none():
    waits = DecodeCost(clips=100, bytes=10**8, read_s=9, decode_s=1, busy_s=10)
    stages = with_stage(storage=0.5, decode=0.05, compute=0.2)
    far = Stored("s3://b/my.pack", PROFILE, 384, 288, remote=True)
    found = suggest(facts(stages=stages, loading=loading(cost=waits), stored=far))
    assert by_flag(found, "data.cache") is not None
    assert by_flag(found, "data.workers").flags["data.workers"] == 4
    kept = replace(far, cached=True)
    found = suggest(facts(stages=stages, loading=loading(cost=waits), stored=kept))
    assert by_flag(found, "data.cache") is None


def test_what_is_on_is_not_proposed():
    fast = SpeedConfig(compile="default", stages=("0.5=8x112",))
    found = suggest(facts(config=config(speed=fast), bf16_s=None))
    for flag in ("speed.compile", "speed.recompute", "speed.pinned", "speed.fused",
                 "speed.precision", "speed.channels_last", "speed.stages"):  # fmt: skip
        assert by_flag(found, flag) is None
    off = SpeedConfig(pinned=False, side_stream=False, fused=False, channels_last=False,
                      recompute=1)  # fmt: skip
    found = suggest(facts(config=config(speed=off)))
    for flag in ("speed.compile", "speed.recompute", "speed.pinned", "speed.fused",
                 "speed.side_stream", "speed.channels_last"):  # fmt: skip
        assert by_flag(found, flag) is not None


def room(micro_batch, parts, recompute, anew) -> BatchPlan:
    memory = Memory(*[0] * 11, "backward")
    return BatchPlan(micro_batch, parts, recompute, "ddp", memory, anew, "12 GiB of 24 GiB.")


def test_checkpointing_goes_off_where_memory_holds_what_it_spared():
    held = facts().stages["compute"]
    cut = config(speed=SpeedConfig(recompute=1))
    cut = replace(cut, optim=replace(cut.optim, batch_size=96, accumulate=4))
    change = by_flag(suggest(facts(config=cut, room=room(96, 1, 0, 0.0))), "speed.recompute")
    assert change.what == "checkpointing off, 96 clips at a time"
    assert change.flags == {"speed.recompute": 0, "optim.accumulate": 1}
    assert change.saves == pytest.approx(held / 4)  # a pass of four
    half = by_flag(suggest(facts(config=cut, room=room(24, 4, 2, 0.5))), "speed.recompute")
    assert half.what.startswith("checkpointing every second block")
    assert half.saves == pytest.approx(held / 8)
    assert by_flag(suggest(facts(config=cut, room=room(24, 4, 1, 1.0))), "speed.recompute") is None


def test_pairs_that_fit_at_once_are_not_embedded_twice():
    pairs = clip_ego4d("my.pack", "out")
    pairs = replace(pairs, speed=SpeedConfig(), optim=replace(pairs.optim, accumulate=4))
    change = by_flag(suggest(facts(config=pairs, room=room(256, 1, 0, 0.0))), "optim.accumulate")
    assert change.saves == pytest.approx(facts().stages["compute"] / 4) and not change.learns


def test_larger_micro_batches_are_for_gpus():
    cut = replace(config(), optim=replace(config().optim, accumulate=4))
    fits = room(64, 1, 0, 0.0)
    change = by_flag(suggest(facts(config=cut, room=fits)), "optim.accumulate")
    assert change.saves is None and change.learns  # batch normalisation sees micro-batches
    on_cpu = suggest(facts(config=cut, room=fits, device="cpu"))
    assert by_flag(on_cpu, "optim.accumulate") is None


def test_a_cpu_is_not_told_to_copy_or_compile():
    found = suggest(facts(device="cpu", precision="fp32", bf16_s=0.1))
    assert by_flag(found, "speed.precision").saves == 0.1
    assert by_flag(found, "speed.precision").basis == "measured"
    assert not {"speed.compile", "data.mode"} & {flag for c in found for flag in c.flags}


def test_ranks_compress_and_the_slow_one_is_named():
    stages = with_stage(compute=0.1, communication=0.3, stragglers=0.1)
    found = suggest(
        facts(stages=stages, world=4, gradient_bytes=100 << 20, ranks_s=(0.1, 0.1, 0.2, 0.1),
              hosts=("a", "a", "b", "b"))
    )  # fmt: skip
    assert by_flag(found, "parallel.hook").flags["parallel.hook"] == "bf16"
    assert by_flag(found, "parallel.hook").saves == pytest.approx(0.15)
    assert any(c.what.startswith("rank 2 on b takes 100 ms longer") for c in found)
    sent = config(parallel=ParallelConfig(hook="bf16"))
    assert by_flag(suggest(facts(stages=stages, world=4, config=sent)), "parallel.hook") is None
    one = suggest(facts(stages=stages, world=1))
    assert not [c for c in one if c.stage in ("communication", "stragglers")]


def test_what_changes_learning_is_marked():
    found = suggest(facts())
    assert by_flag(found, "data.crops").learns
    assert by_flag(found, "speed.stages").learns
    assert not by_flag(found, "speed.compile").learns


def test_larger_batches_of_pairs_pay_for_embedding_them_twice():
    """Cut in two, each pair passes forwards once more: a third of what is computed now."""
    pairs = replace(clip_ego4d("my.pack", "out"), speed=SpeedConfig())
    pairs = replace(pairs, optim=replace(pairs.optim, accumulate=1))
    stages = with_stage(compute=0.3, communication=0.4)
    change = by_flag(suggest(facts(config=pairs, stages=stages, world=2)), "optim.batch_size")
    assert change.saves == pytest.approx(0.4 / 2 - 0.3 / 3)
    assert "twice" in change.why
    cut = replace(pairs, optim=replace(pairs.optim, accumulate=2))  # they pass twice already
    change = by_flag(suggest(facts(config=cut, stages=stages, world=2)), "optim.batch_size")
    assert change.saves == pytest.approx(0.2)
    stages = with_stage(compute=0.6, communication=0.3)  # a loss
    found = suggest(facts(config=pairs, stages=stages, world=2))
    assert by_flag(found, "optim.batch_size") is None


def test_what_dividing_the_update_saves_is_not_known_before():
    """For it sends weights in return."""
    found = suggest(facts(stages=with_stage(compute=0.1, optimizer=0.3), world=4))
    assert by_flag(found, "parallel.strategy").saves is None


def many_facts():
    """Runs that lack different things."""
    stages = with_stage(storage=0.2, decode=0.2, h2d=0.2, compute=0.2, communication=0.2,
                        optimizer=0.2, stragglers=0.2)  # fmt: skip
    off = SpeedConfig(pinned=False, side_stream=False, fused=False, channels_last=False,
                      recompute=1, tf32=False)  # fmt: skip
    slow = replace(config(speed=off), clip=replace(config().clip, align=False))
    base = facts(config=slow, stages=stages, world=2, gradient_bytes=1 << 20, bf16_s=0.1,
                 precision="fp32", idle_cores=4, loading=loading(mode="threads"))  # fmt: skip
    whole = replace(slow, parallel=ParallelConfig(strategy="fsdp"))
    parts = replace(slow, optim=replace(slow.optim, accumulate=2),
                    parallel=ParallelConfig(no_sync=False))  # fmt: skip
    waits = DecodeCost(clips=100, bytes=10**8, read_s=9, decode_s=1, busy_s=10)
    far = Stored("s3://b/p", PROFILE, 384, 288, remote=True)
    return [
        base, replace(base, config=whole), replace(base, config=parts, room=room(64, 1, 0, 0.0)),
        replace(base, stored=far), replace(base, stored=far, loading=loading(cost=waits)),
    ]  # fmt: skip


def test_what_is_printed_can_be_typed():
    """Each change's flags, as a shell splits them, through the parser of `matinee train`."""
    typed = {}
    for known in many_facts():
        for change in suggest(known):
            if change.flags:
                typed.setdefault(tuple(change.flags.items()), (known.config, change))
    flags = {flag for changed in typed for flag, _ in changed}
    assert flags >= {
        "speed.fused", "speed.pinned", "speed.side_stream", "speed.channels_last", "speed.tf32",
        "speed.stages", "speed.recompute", "speed.compile", "speed.precision", "clip.align",
        "data.workers", "data.crops", "data.cache", "data.mode", "parallel.hook",
        "parallel.strategy", "parallel.bucket_mb", "parallel.no_sync", "optim.batch_size",
    }  # fmt: skip
    off = Change("x", "compute", 1, "model", "", flags={"speed.fused": False})
    for before, change in [*typed.values(), (config(), off)]:
        command = parse(
            TrainCommand, shlex.split(change.how), "train tsm", default=TrainCommand(before),
            config=(tyro.conf.AvoidSubcommands,),
        )  # fmt: skip
        assert command.config == change.apply(before)


def test_every_proposed_setting_is_one_that_a_recipe_takes():
    stages = with_stage(storage=0.2, decode=0.2, h2d=0.2, compute=0.2, communication=0.2,
                        optimizer=0.2, stragglers=0.2)  # fmt: skip
    off = SpeedConfig(pinned=False, side_stream=False, fused=False, channels_last=False,
                      recompute=1, tf32=False)  # fmt: skip
    slow = replace(config(speed=off), clip=replace(config().clip, align=False))
    far = Stored("s3://b/p", PROFILE, 384, 288, remote=True)
    found = suggest(
        facts(config=slow, stages=stages, precision="fp32", bf16_s=0.1, world=2, stored=far,
              idle_cores=4, gradient_bytes=1 << 20, ranks_s=(1, 2))
    )  # fmt: skip
    assert len(found) > 12
    for change in found:
        changed = change.apply(slow)
        assert (changed == slow) == (not change.flags)
        assert change.why
        assert change.how
    with pytest.raises(ConfigError, match="nothing"):
        Change("x", "decode", 1, "model", "y", flags={"nothing": 1}).apply(slow)


def test_greatest_savings_first_unknown_last_trifles_not():
    def change(saves):
        return Change(str(saves), "decode", saves, "model", "")

    order = ranked([change(0.1), change(None), change(0.001), change(0.5)], step_s=1.0)
    assert [c.saves for c in order] == [0.5, 0.1, None]


def test_unaligned_clips_are_told_what_alignment_brings():
    loose = replace(config(), clip=replace(config().clip, align=False))
    pack = Stored("my.pack", PROFILE, 384, 288)
    change = by_flag(suggest(facts(config=loose, stored=pack)), "clip.align")
    # 16 frames from a random start: 1.7 times the packets of an aligned one, by the packet plan.
    assert "1.7 times" in change.why
    assert by_flag(suggest(facts(stored=pack)), "clip.align") is None
