"""Time of an all-reduce against its bytes and ranks, with latency and bandwidth fitted."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from matinee.errors import ConfigError
from matinee.measure.arms import Spread, take_turns
from matinee.measure.bench.fits import MessageCost, fit_messages, ring_terms
from matinee.measure.bench.ranks import Place, RankGroup, backend_of, check_ranks
from matinee.measure.draw.figures import Lines, Series
from matinee.measure.process import wait
from matinee.measure.result import Part, Result, Table
from matinee.training.precision import pick_device

KIB = 1024
_SIZES = (1, 16, 256, 1024, 4096, 16384, 65536)
_FULL = (1, 4, 16, 64, 256, 1024, 4096, 16384, 65536, 102400, 262144)
_AIM_S = 0.1  # of one turn
_MOST = 50  # all-reduces of one turn


@dataclass(frozen=True)
class Options:
    """Time of an all-reduce of float32 values between the ranks of this machine: NCCL where there
    are GPUs, Gloo on a CPU. Sizes and numbers of ranks take turns. The time of one is that of its
    slowest rank. Latency and bandwidth are fitted by least squares and written to allreduce.json
    as `matinee plan` reads them.
    """

    out: Path = Path("bench/allreduce")
    """Folder for allreduce.json, plots and page."""
    ranks: tuple[int, ...] = (2, 4)
    """How many processes take part; with GPUs each takes one."""
    kib: tuple[int, ...] = ()
    """Sizes of the message in KiB; without, a few from 1 KiB to 64 MiB."""
    rounds: int = 7
    """Turns of each size."""
    device: str = "auto"
    """auto, cpu or cuda."""
    full: bool = False
    """More sizes (without --kib), from 1 KiB to 256 MiB, and at least 15 turns of each."""

    def __post_init__(self) -> None:
        if self.rounds < 1:
            raise ConfigError(f"--rounds {self.rounds}: at least 1")
        if self.kib and (min(self.kib) < 1 or len(set(self.kib)) < 2):
            given = " ".join(map(str, self.kib))
            raise ConfigError(f"--kib {given}: two different sizes or more, each at least 1 KiB")

    @property
    def sizes(self) -> tuple[int, ...]:
        """Bytes, rising."""
        chosen = self.kib or (_FULL if self.full else _SIZES)
        return tuple(sorted({size * KIB for size in chosen}))


@dataclass(frozen=True)
class Measured:
    """One number of ranks: seconds by bytes, and the fit."""

    ranks: int
    seconds: dict[int, Spread]
    cost: MessageCost

    @property
    def bus_factor(self) -> float:
        """Bytes that each link carries, as a part of the message's."""
        return 2 * (self.ranks - 1) / self.ranks


def measure(options: Options, *, on_step: Callable[[int, int, str], None]) -> Result:
    """Run all sizes on all numbers of ranks.

    Raises:
        ConfigError: numbers of ranks that cannot run here.
        MatineeError: a rank failed.
    """
    kind = options.device.partition(":")[0]
    device = pick_device(kind)
    check_ranks(options.ranks, device, least=2)
    rounds = max(options.rounds, 15) if options.full else options.rounds
    with RankGroup(options.ranks, f"{__name__}:Reduce", device=device) as group:

        def arm(world: int, size: int) -> Callable[[], float]:
            def once() -> float:
                seconds: list[float] = group(world, (size, repeats[world, size]))
                return max(seconds)

            return once

        repeats = {(world, size): 1 for world in options.ranks for size in options.sizes}
        arms = {f"{w}x{s}": arm(w, s) for w, s in repeats}
        for (world, size), name in zip(repeats, arms, strict=True):
            on_step(0, 1, f"{world} ranks, {_bytes(size)}")
            arms[name]()
            repeats[world, size] = max(1, min(_MOST, round(_AIM_S / arms[name]())))
        turns = take_turns(arms, rounds, on_turn=lambda done, all_: on_step(done, all_, ""))
    found = []
    for world in options.ranks:
        spreads = {size: turns.spread(f"{world}x{size}") for size in options.sizes}
        medians = [spread.median for spread in spreads.values()]
        found.append(Measured(world, spreads, fit_messages(options.sizes, medians)))
    return _result(found, device, rounds)


class Reduce:
    """A rank's part: all-reduces of one size, one after the other."""

    def __init__(self) -> None:
        self._memory: dict[int, torch.Tensor] = {}

    def __call__(self, place: Place, payload: tuple[int, int]) -> float:
        """Mean seconds of `repeats` all-reduces of `size` bytes: payload is (size, repeats)."""
        size, repeats = payload
        if size not in self._memory:
            self._memory[size] = torch.zeros(size // 4, device=place.device)
        values = self._memory[size]
        dist.all_reduce(values, group=place.group)  # all are here
        wait(place.device)
        begin = time.perf_counter()
        for _ in range(repeats):
            dist.all_reduce(values, group=place.group)
        wait(place.device)
        return (time.perf_counter() - begin) / repeats


def _result(found: list[Measured], device: torch.device, rounds: int) -> Result:
    cores = len(os.sched_getaffinity(0))
    backend = backend_of(device)
    where = (
        f"{backend} between the GPUs of one machine"
        if device.type == "cuda"
        else f"{backend} between processes of one machine, by its loopback network, on {cores} "
        f"core{'s' * (cores > 1)}"
    )
    crowded = [m.ranks for m in found if device.type == "cpu" and m.ranks > cores]
    text = (
        f"Median of {rounds} turns; what a training step pays once for its gradients. `bus` is the "
        "bandwidth of each link if p ranks form a ring: 2 (p - 1) / p of the message by its time."
    )
    if crowded:
        text += (
            f"\n\n{' and '.join(map(str, crowded))} ranks share {cores} cores: they wait for each "
            "other's turn, which ranks on machines of their own do not."
        )
    part = Part(
        "allreduce", "All-reduce", text, tables=[_times(found), _fits(found)],
        plots={"time": _plot(found, backend)},
    )  # fmt: skip
    return Result(
        "allreduce", "All-reduce between ranks", f"Measured with {where}.", [part],
        {
            "backend": backend, "device": device.type, "dtype": "float32", "cores": cores,
            "rounds": rounds,
            "model": "seconds = latency_s + bytes * s_per_byte; read as a ring of p ranks: "
            "2 (p - 1) alpha_s + 2 (p - 1) / p * bytes * beta_s_per_byte",
            "fits": [_fit_data(m, backend, m.ranks in crowded) for m in found],
            "measured": [
                {
                    "ranks": m.ranks, "bytes": size, "seconds": spread.to_dict(),
                    "bus_bytes_per_s": m.bus_factor * size / spread.median,
                }
                for m in found for size, spread in m.seconds.items()
            ],
        },
    )  # fmt: skip


def _fit_data(m: Measured, backend: str, crowded: bool) -> dict[str, Any]:
    """`crowded`: more ranks than cores, so that they also waited for these."""
    return {
        "ranks": m.ranks, "backend": backend, **asdict(ring_terms(m.cost, m.ranks)),
        "latency_s": m.cost.start_s, "s_per_byte": m.cost.per_byte_s,
        "median_error": m.cost.error, "worst_error": m.cost.worst, "crowded": crowded,
    }  # fmt: skip


def _times(found: list[Measured]) -> Table:
    columns = ["message"]
    for m in found:
        columns += [f"{m.ranks} ranks: ms", "fit", "bus"]
    rows = []
    for size in found[0].seconds:
        row = [_bytes(size)]
        for m in found:
            spread = m.seconds[size]
            row += [
                f"{1e3 * spread.median:.3g} "
                f"({1e3 * spread.low:.3g}–{1e3 * spread.high:.3g})",
                f"{1e3 * m.cost.seconds(size):.3g}",
                f"{m.bus_factor * size / spread.median / 1e6:,.4g} MB/s",
            ]  # fmt: skip
        rows.append(row)
    return Table(columns, rows, "Time by message", "In brackets the quartiles.")


def _fits(found: list[Measured]) -> Table:
    rows = []
    for m in found:
        terms = ring_terms(m.cost, m.ranks)
        slope = m.cost.per_byte_s
        bandwidth = f"{m.bus_factor / slope / 1e9:.3g} GB/s" if slope else "too fast to see"
        rows.append([
            f"{m.ranks} ranks", f"{1e3 * m.cost.start_s:.3g} ms", bandwidth,
            f"{1e3 * terms.alpha_s:.3g} ms", f"{1e9 * terms.beta_s_per_byte:.3g} ns",
            f"{100 * m.cost.error:.0f} % ({100 * m.cost.worst:.0f} %)",
        ])  # fmt: skip
    columns = ["", "latency", "bus bandwidth", "α a message", "β a byte", "deviation"]
    note = (
        "Least squares of relative deviations. α and β are those of one message of a ring. "
        "Deviation: median of the sizes (largest): where it is large, the line is a poor model."
    )
    return Table(columns, rows, "Latency and bandwidth", note)


def _plot(found: list[Measured], backend: str) -> Lines:
    series: list[Series] = []
    for m in found:
        sizes = list(m.seconds)
        at = [size / 2**20 for size in sizes]
        series.append(
            Series(
                f"{m.ranks} ranks", at, [1e3 * s.median for s in m.seconds.values()],
                [1e3 * s.low for s in m.seconds.values()],
                [1e3 * s.high for s in m.seconds.values()], style="dots",
            )
        )  # fmt: skip
        fitted = [1e3 * m.cost.seconds(size) for size in sizes]
        series.append(Series(f"fit, {m.ranks} ranks", at, fitted, style="dashed"))
    return Lines(
        f"Time of an all-reduce ({backend}) against the size of the message, with the fit.",
        "message, MiB", "time, ms", series, x_log=True, y_log=True,
    )  # fmt: skip


def _bytes(size: int) -> str:
    return f"{size // 2**20} MiB" if size >= 2**20 else f"{size // KIB} KiB"
