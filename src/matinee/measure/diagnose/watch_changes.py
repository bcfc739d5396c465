"""What to change in a loop that was watched, whose settings are not known. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from matinee.data.decode_cost import DecodeCost
from matinee.measure.diagnose.changes import Change, ranked
from matinee.measure.diagnose.verdict import Stages, typical

_IDLE = 0.7  # of the time that decoders are busy, below which they are not what is waited for
_WASTE = 1.5  # frames decoded for each that is used, from which another encoding is worth it


@dataclass(frozen=True)
class Watched:
    """What is known of a loop.

    `cost` is what decoders did in `wall_s` seconds of steps: nothing without a ClipLoader, of whose
    `mode` they are. `loaders` are names of types, `workers` how many processes or threads load.
    `spanned`: parts of the step have spans.
    """

    device: str
    spanned: bool
    cost: DecodeCost
    mode: str
    loaders: tuple[str, ...]
    workers: int
    wall_s: float
    steps: int

    @property
    def busy(self) -> float:
        """Part of the time that decoders worked, 0 … 1."""
        return min(1.0, self.cost.busy_s / max(1e-9, self.wall_s * max(1, self.workers)))


def suggest_watched(watched: Watched, rounds: Sequence[Stages]) -> tuple[Change, ...]:
    """Changes, best first. Gains are what waiting would save at most, where they are known."""
    stages = typical(rounds)
    return ranked([*_data(watched, stages), *_step(watched, stages)], sum(stages.values()))


def _data(watched: Watched, stages: Stages) -> Iterator[Change]:
    held = {name: stages.get(name, 0.0) for name in ("storage", "decode", "data", "h2d")}
    cost = watched.cost
    if cost.clips and cost.frames_used:
        wasted = cost.frames_decoded / cost.frames_used
        read, work = (1000 * s / cost.clips for s in (cost.read_s, cost.busy_s - cost.read_s))
        if wasted > _WASTE:
            part = cost.decode_s / cost.busy_s
            yield Change(
                "re-pack with layers at the stride of your clips", "decode",
                held["decode"] * part * (1 - 1 / wasted), "model",
                f"{wasted:.1f} frames are decoded for each that is used; a clip takes {work:.3g} "
                "ms of a decoder",
                command="matinee pack VIDEOS --out new.pack --profile layered --stride STRIDE",
            )  # fmt: skip
        if watched.busy > _IDLE:
            yield Change(
                f"more decoders than {watched.workers}", "decode",
                held["decode"] / 2, "model",
                f"they are busy {watched.busy:.0%} of the time; twice as many, if there are cores "
                "for them",
                command=f"ClipLoader(workers={2 * watched.workers})",
            )  # fmt: skip
        yield Change(
            "a local disk, or a cache on one", "storage", held["storage"], "model",
            f"a clip waits {read:.3g} ms for its bytes",
            command="matinee.open_data(path, cache=FOLDER)",
        )  # fmt: skip
    if held["data"]:
        workers = max(1, watched.workers)
        yield Change(
            f"more workers than {watched.workers}", "data", held["data"] * 0.5, "model",
            f"{' and '.join(watched.loaders)} holds the loop up; twice as many, if there are cores "
            "for them",
            command=f"DataLoader(num_workers={2 * workers})",
        )  # fmt: skip
    if watched.device == "cuda" and held["h2d"]:
        yield Change(
            "copy from pinned memory, without waiting", "h2d", None, "model",
            "then copies overlap with kernels",
            command="DataLoader(pin_memory=True), batch.to(device, non_blocking=True)",
        )  # fmt: skip


def _step(watched: Watched, stages: Stages) -> Iterator[Change]:
    if not watched.spanned:
        return
    if stages.get("compute", 0.0):
        yield Change(
            "bf16, or a compiled network", "compute", None, "model",
            "`matinee diagnose RECIPE` measures both",
            command='torch.autocast(device, torch.bfloat16), torch.compile(model)',
        )  # fmt: skip
    if stages.get("communication", 0.0):
        yield Change(
            "gradients in bf16, or averaged once in several parts", "communication",
            stages["communication"] / 2, "model", "half as many bytes travel",
            command="register_comm_hook(None, bf16_compress_hook), or no_sync() with accumulation",
        )  # fmt: skip
    if stages.get("optimizer", 0.0):
        yield Change(
            "one kernel for the update", "optimizer", None, "model",
            "weights are read and written once", command="torch.optim.AdamW(fused=True)",
        )  # fmt: skip
