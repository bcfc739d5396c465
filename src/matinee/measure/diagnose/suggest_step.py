"""Changes that make the step itself cheaper: arithmetic, what ranks send, the update.

Pure: facts in, changes out. What is on already is not proposed.
"""

from __future__ import annotations

from collections.abc import Iterator

from matinee.measure.diagnose.changes import Change
from matinee.measure.diagnose.facts import Facts
from matinee.tasks.config import ContrastiveConfig

_COMPILED = 1.38
"""Times as fast as without torch.compile: mean over timm's networks on an A100, as PyTorch 2.0's
announcement has it."""
_PASSES = 3
"""Of a step, in forward passes: one, and a backward of two (arXiv 1604.06174)."""
_FUSED = ("sgd", "adam", "adamw")


def suggest_step(facts: Facts) -> Iterator[Change]:
    """Changes to compute, communication, optimizer and stragglers."""
    yield from _compute(facts)
    if facts.world > 1:
        yield from _communication(facts)
        yield from _stragglers(facts)
    yield from _optimizer(facts)


def _compute(facts: Facts) -> Iterator[Change]:
    config, speed, held = facts.config, facts.config.speed, facts.stage("compute")
    if facts.bf16_s is not None:
        yield Change(
            "bf16 instead of fp32",
            "compute",
            facts.bf16_s,
            "measured",
            "the same steps in bf16 took turns with those in fp32, on data that were there",
            flags={"speed.precision": "bf16"},
        )
    if facts.device == "cuda" and not speed.tf32 and facts.precision == "fp32":
        yield Change(
            "TF32 products", "compute", None, "model",
            "tensor cores take fp32 with 10 bits of mantissa", flags={"speed.tf32": True},
        )  # fmt: skip
    yield from _batches(facts, held)
    if speed.compile == "none" and facts.device == "cuda":
        yield Change(
            "compile the network",
            "compute",
            held * (1 - 1 / _COMPILED),
            "published",
            f"{_COMPILED} times as fast on average over timm's networks on an A100 (PyTorch 2.0); "
            "compiling takes minutes",
            flags={"speed.compile": "default"},
        )
    if not speed.channels_last and not config.model.backbone.startswith("vit"):
        yield Change(
            "channels innermost", "compute", None, "model",
            "as fast convolutions read them", flags={"speed.channels_last": True},
        )  # fmt: skip
    yield from _smaller_at_first(facts, held)


def _batches(facts: Facts, held: float) -> Iterator[Change]:
    """Less computed anew, larger micro-batches, where memory holds them."""
    config, room = facts.config, facts.room
    recompute, parts = config.speed.recompute, config.optim.accumulate
    twice = isinstance(config.task, ContrastiveConfig) and parts > 1
    anew = twice + (1 / recompute if recompute else 0)
    if room is None:
        if recompute:
            yield Change(
                "checkpointing off", "compute", held * (1 / recompute) / (_PASSES + anew), "model",
                "activations are kept instead of computed again; if memory no longer holds them, "
                "take a smaller micro-batch (--optim.accumulate)", flags={"speed.recompute": 0},
            )  # fmt: skip
        return
    fewer = room.parts < parts and facts.device == "cuda"  # larger kernels, fewer of them
    if room.anew >= anew and not fewer:
        return
    what = f"{room.micro_batch} clips at a time"
    flags: dict[str, object] = {}
    if room.recompute != recompute:
        what = f"checkpointing {'every second block' if room.recompute else 'off'}, {what}"
        flags["speed.recompute"] = room.recompute
    if room.parts != parts:
        flags["optim.accumulate"] = room.parts
    yield Change(
        what, "compute",
        held * (anew - room.anew) / (_PASSES + anew) if room.anew < anew else None,
        "model", room.reason.rstrip("."), flags=flags,
        learns=room.parts != parts and not config.model.backbone.startswith("vit"),
    )  # fmt: skip


def _smaller_at_first(facts: Facts, held: float) -> Iterator[Change]:
    """Multigrid's long cycle, in its simplest form."""
    clip, config = facts.config.clip, facts.config
    frames, size = clip.frames // 2, clip.size // 2 // 2 * 2
    if config.speed.stages or config.optim.epochs < 4 or frames < 2 or size < 56:
        return
    share = (frames * size * size) / (clip.frames * clip.size * clip.size)
    loading = facts.waiting * (1 - share)  # a decoder's work falls with frames
    yield Change(
        f"half of the epochs on {frames} frames of {size}²",
        "compute",
        0.5 * held * (1 - share),
        "model",
        f"{share:.0%} of the pixels at first; a mean over the run"
        + (", as far as loading keeps up" if loading > 0.1 * facts.step_s else ""),
        flags={"speed.stages": (f"0.5={frames}x{size}",)},
        learns=True,
    )


def _communication(facts: Facts) -> Iterator[Change]:
    parallel, held = facts.config.parallel, facts.stage("communication")
    optim = facts.config.optim
    megabytes = facts.gradient_bytes / 2**20  # 0 where only a log is there
    travels = f"{megabytes:.0f} MiB of gradients travels" if megabytes else "the gradients travels"
    if parallel.hook == "none" and parallel.strategy != "fsdp":
        yield Change(
            "send gradients in bf16",
            "communication",
            held / 2,
            "model",
            f"half of {travels}",
            flags={"parallel.hook": "bf16"},
        )
        yield Change(
            "send gradients as matrices of rank 2",
            "communication",
            None,
            "model",
            f"a few percent of {travels} (PowerSGD, arXiv 1905.13727), from step 1,000 on",
            flags={"parallel.hook": "powersgd"},
            learns=True,
        )
    if parallel.strategy == "fsdp":
        yield Change(
            "whole weights on each rank",
            "communication",
            held / 3,
            "model",
            "weights are not gathered: two passes of messages instead of three "
            "(arXiv 1910.02054, §7); needs memory for them",
            flags={"parallel.strategy": "ddp"},
        )
    elif megabytes and parallel.bucket_mb > megabytes / 2:
        smaller = max(1.0, round(megabytes / 8, 1))
        if smaller < parallel.bucket_mb:
            yield Change(
                f"buckets of {smaller:g} MiB instead of {parallel.bucket_mb:g}",
                "communication",
                None,
                "model",
                f"all {megabytes:.0f} MiB travel in one or two, after the backward pass instead of "
                "beside it",
                flags={"parallel.bucket_mb": smaller},
            )
    if optim.accumulate > 1 and not parallel.no_sync:
        yield Change(
            "average gradients once a step",
            "communication",
            held * (1 - 1 / optim.accumulate),
            "model",
            f"not after each of {optim.accumulate} parts",
            flags={"parallel.no_sync": True},
        )
    if held >= facts.stage("optimizer"):  # else proposed there
        yield _larger_batch(facts, "communication", held)


def _larger_batch(facts: Facts, stage: str, held: float) -> Change:
    """Half of `held` seconds; trifles and losses are dropped by `ranked`."""
    config, optim = facts.config, facts.config.optim
    saves, why = held / 2, "once for twice the clips"
    if isinstance(config.task, ContrastiveConfig) and optim.accumulate == 1:
        # Pairs of several parts are embedded twice: a forward pass more than now.
        passes = _PASSES + (1 / config.speed.recompute if config.speed.recompute else 0)
        saves -= facts.stage("compute") / passes
        why += ", less a forward pass, for parts embed their clips twice"
    return Change(
        f"batches of {2 * optim.batch_size} in {2 * optim.accumulate} parts",
        stage,
        saves,
        "model",
        f"{why}; seconds saved are those of as many clips as now",
        flags={"optim.batch_size": 2 * optim.batch_size, "optim.accumulate": 2 * optim.accumulate},
        learns=True,
    )


def _optimizer(facts: Facts) -> Iterator[Change]:
    optim, held = facts.config.optim, facts.stage("optimizer")
    if not facts.config.speed.fused and optim.name in _FUSED:
        yield Change(
            "one kernel for the update", "optimizer", None, "model",
            "weights are read and written once", flags={"speed.fused": True},
        )  # fmt: skip
    if facts.world > 1 and facts.config.parallel.strategy == "ddp":
        yield Change(
            "each rank updates its share of the weights",
            "optimizer",
            None,  # sending may take longer than what updating less saves
            "model",
            f"one part in {facts.world} of the update on each, which then sends its weights to all "
            "(ZeRO, arXiv 1910.02054)",
            flags={"parallel.strategy": "zero1"},
        )
    if held > max(0.1 * facts.step_s, facts.stage("communication")):
        yield _larger_batch(facts, "optimizer", held)


def _stragglers(facts: Facts) -> Iterator[Change]:
    if len(facts.ranks_s) < 2:
        return
    slow = max(range(len(facts.ranks_s)), key=lambda rank: facts.ranks_s[rank])
    host = f" on {facts.hosts[slow]}" if len(facts.hosts) == len(facts.ranks_s) else ""
    held = facts.stage("stragglers")
    yield Change(
        f"rank {slow}{host} takes {1000 * held:.3g} ms longer than the median rank",
        "stragglers",
        held,
        "measured",
        "its own work, without waiting for others; look for another job on its machine, a device "
        "that is hot or clocked down, fewer cores",
        command="nvidia-smi -q -d CLOCK,PERFORMANCE" if facts.device == "cuda" else "top",
    )
