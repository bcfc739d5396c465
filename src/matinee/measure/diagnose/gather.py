"""From a test stand and its readings to the facts that changes are looked for in."""

from __future__ import annotations

import time
from collections.abc import Sequence

import numpy as np
import torch

from matinee.data.decode_cost import DecodeCost
from matinee.data.loader import ClipLoader
from matinee.errors import ConfigError
from matinee.measure import machine
from matinee.measure.diagnose.facts import Facts, Loading, Stored
from matinee.measure.diagnose.readings import Round, loading_cost
from matinee.measure.diagnose.stand import WARM, Stand
from matinee.measure.diagnose.verdict import Stages
from matinee.measure.plan.batch import BatchPlan, fit_batch
from matinee.measure.plan.memory import RESERVE
from matinee.pack.mixture import Mixture
from matinee.pack.open import DataSet
from matinee.pack.reading.reader import Pack

_LOOKED_AT = 64  # samples whose video tells how long videos are


def gather_facts(
    stand: Stand, rounds: Sequence[Round], stages: Stages, hosts: Sequence[str]
) -> Facts:
    """Facts of rank 0, with the times of all ranks.

    Args:
        stages: typical seconds a step.
        hosts: each rank's machine.
    """
    ranks = stand.ranks
    own = "alone" if "alone" in rounds[0] else "synthetic"
    times = [
        float(np.median([arms[own][rank].step_s for arms in rounds])) for rank in range(ranks.world)
    ]
    idle = float(np.median([arms["whole"][0].idle_cores for arms in rounds]))
    trained = [p for p in stand.setup.task.parameters() if p.requires_grad]
    return Facts(
        stand.config, stages, ranks.device.type, stand.precision, ranks.world,
        gather_loading(stand, rounds), stored_of(stand.setup.pack),
        idle_cores=idle / ranks.local_world,
        room=find_room(stand),
        bf16_s=_saved_by_bf16(rounds),
        gradient_bytes=sum(p.numel() * p.element_size() for p in trained),
        ranks_s=tuple(times), hosts=tuple(hosts),
    )  # fmt: skip


def find_room(stand: Stand) -> BatchPlan | None:
    """What this device's memory would hold, predicted; None where nothing is cut or computed anew,
    or where that is not known.
    """
    config, ranks = stand.config, stand.ranks
    if stand.parts == 1 and not config.speed.recompute:
        return None
    free = machine.free_bytes(ranks.device)
    if ranks.device.type == "cpu":
        free //= ranks.local_world
    else:
        # What is free is told beside this process's context, which the prediction counts as well.
        free += RESERVE.context
    try:
        return fit_batch(
            config, free, ranks.world, device="cuda" if ranks.device.type == "cuda" else "cpu",
            precision=stand.precision, classes=max(1, len(stand.setup.vocabulary.classes)),
        )  # fmt: skip
    except ConfigError:  # simulated ranks, or nothing is thought to fit
        return None


def gather_loading(stand: Stand, rounds: Sequence[Round]) -> Loading | None:
    """Of the whole arm on the rank that waited longest; None for data that nobody decodes."""
    if not isinstance(stand.loader, ClipLoader):
        return None
    waited = [sum(arms["whole"][rank].span("data_wait") for arms in rounds)
              for rank in range(stand.ranks.world)]  # fmt: skip
    rank = waited.index(max(waited))
    costs = [loading_cost(arms, rank) for arms in rounds]
    return Loading(
        stand.loader.workers, stand.loader.mode, sum(costs, DecodeCost()),
        sum(WARM + len(arms["whole"][rank].steps) for arms in rounds),
    )  # fmt: skip


def stored_of(pack: DataSet) -> Stored | None:
    """How videos are stored, of a mixture those of its first pack; None for image sets."""
    one = pack.packs[0] if isinstance(pack, Mixture) else pack
    if not isinstance(one, Pack):
        return None
    info = one.info(0)
    chunk = one.locate(info.video, [info.first_frame])[0].chunk
    looked_at = np.unique(np.linspace(0, len(one) - 1, _LOOKED_AT).astype(int))
    frames = [one.info(int(row)).num_frames for row in looked_at]
    return Stored(
        str(pack.path), one.meta.get("profile"), info.width, info.height,
        one.formats[info.codec].codec, chunk.remote is not None,
        chunk.remote is not None and chunk.remote.cache is not None, max(1, int(np.median(frames))),
    )  # fmt: skip


def _saved_by_bf16(rounds: Sequence[Round]) -> float | None:
    if "bf16" not in rounds[0]:
        return None
    return float(np.median([_step(arms, "synthetic") - _step(arms, "bf16") for arms in rounds]))


def _step(arms: Round, name: str) -> float:
    return max(reading.step_s for reading in arms[name])


def bf16_gain(device: torch.device) -> float:
    """How many times less a matrix product takes in bf16 than in fp32, as it is computed here.

    Processors without such units compute bf16 many times slower.
    """
    # A GPU computes small products faster than they are launched.
    size = 4096 if device.type == "cuda" else 1024
    x = torch.randn(size, size, device=device)
    best: dict[torch.dtype, float] = {}
    for _ in range(6):  # in turn; the fastest of each, the first of which prepares kernels
        for kind in (torch.float32, torch.bfloat16):
            matrix = x.to(kind)
            _wait(device)
            begin = time.perf_counter()
            for _ in range(4):
                matrix @ matrix
            _wait(device)
            best[kind] = min(best.get(kind, float("inf")), time.perf_counter() - begin)
    return best[torch.float32] / best[torch.bfloat16]


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
