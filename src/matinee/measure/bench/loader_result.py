"""What `matinee bench loader` says: tables, plots, numbers."""

from __future__ import annotations

import os

from matinee.data.decode_cost import DecodeCost
from matinee.measure.arms import Spread
from matinee.measure.bench.loader import FLOOR, OURS, OURS_RGB, Measured
from matinee.measure.draw.figures import Bars, Lines, Series, Stacks
from matinee.measure.result import Part, Result, Table

_KINDS = {"processes": "matinee, processes", "threads": "matinee, threads"}


def result_of(found: Measured) -> Result:
    """Of everything that was measured."""
    options = found.options
    lead = (
        f"Clips of {options.clip} at {options.size}² from {found.pack.path}, random-resized "
        f"crops; {found.packed_bytes / 1024:.0f} KiB of packets and "
        f"{found.pixel_bytes / 1024:.0f} KiB of pixels a clip."
    )
    parts = [_one(found), _many(found), _whole(found)]
    return Result("loader", "Clips from a pack", lead, parts, _data(found))


def _peer_names(found: Measured) -> list[str]:
    return [name for name in found.one.values if name not in (OURS, OURS_RGB, FLOOR)]


def _one(found: Measured) -> Part:
    rows, one = [], found.one
    names = [FLOOR, OURS, OURS_RGB, *_peer_names(found)]
    for name in names:
        away = found.close.get(name)
        ratio = "" if name == OURS else str(one.ratio(name, OURS))
        rows.append([
            name, str(one.spread(name)), ratio, "" if away is None else f"{away:.1f}",
        ])  # fmt: skip
    rows += [[name, "left out", "", reason] for name, reason in found.absent.items()]
    note = (
        "Medians with quartiles. `times I420`: as long as matinee's I420, which is what the loader "
        "decodes to. Difference: of a peer's RGB from matinee's, mean over the picture, of 255."
    )
    table = Table(["reader", "ms a clip", "times I420", "difference"], rows, "", note)
    spreads = [one.spread(name) for name in names]
    series = Series(
        "ms", [], [s.median for s in spreads], [s.low for s in spreads], [s.high for s in spreads]
    )
    bars = Bars("Milliseconds a clip in one thread, by reader.", names, "ms a clip", [series])
    text = "Peers open the file for each clip, as with more files than can stay open."
    return Part("thread", "One thread", text, [table], {"ms": bars})


def _arms(found: Measured) -> list[str]:
    return list(next(iter(found.many.values())).turns.values)


def _many(found: Measured) -> Part:
    counts, arms = list(found.many), _arms(found)
    rows = [
        [_KINDS.get(arm, arm), *(str(found.many[count].spread(arm)) for count in counts)]
        for arm in arms
    ]  # fmt: skip
    columns = ["clips/s by decoders", *map(str, counts)]
    note = "Into batch memory: matinee I420, peers RGB. Medians with quartiles."
    cores = len(os.sched_getaffinity(0))
    text = f"On {cores} core{'s' * (cores > 1)}. {_saturation(found)}"
    series = []
    for arm in arms:
        spreads = [found.many[count].spread(arm) for count in counts]
        series.append(
            Series(
                _KINDS.get(arm, arm), counts, [s.median for s in spreads],
                [s.low for s in spreads], [s.high for s in spreads],
            )
        )  # fmt: skip
    first = found.many[counts[0]].spread("processes").median / counts[0]
    series.append(
        Series("as many times one", counts, [first * min(c, cores) for c in counts],
               style="dashed")
    )  # fmt: skip
    plot = Lines(
        "Clips a second against decoders; dashed: as many times one, up to the cores there are.",
        "decoders", "clips a second", series, x_log=True, x_ticks=counts, height=4.2,
    )  # fmt: skip
    tables = [Table(columns, rows, "", note), _where(found)]
    return Part("decoders", "Several decoders", text, tables, {"rate": plot, "split": _bars(found)})


def _split(cost: DecodeCost) -> dict[str, float]:
    """Milliseconds that a decoder spent on a clip, by what it did."""
    each = 1e3 / max(cost.clips, 1)
    named = {"read": cost.read_s, "decode": cost.decode_s, "scale": cost.scale_s}
    rest = max(0.0, cost.busy_s - sum(named.values()))
    return {name: each * seconds for name, seconds in (*named.items(), ("other", rest))}


def _where(found: Measured) -> Table:
    rows = []
    for count, many in found.many.items():
        ms = _split(many.cost)
        share = many.cost.frames_used / max(many.cost.frames_decoded, 1)
        rate = many.spread("processes").median
        rows.append([
            f"{count}", *(f"{v:.3g}" for v in ms.values()), f"{100 * share:.0f} %",
            f"{rate * found.packed_bytes / 1e6:.3g}", f"{rate * found.pixel_bytes / 1e6:.4g}",
        ])  # fmt: skip
    columns = [
        "processes", "read ms", "decode ms", "scale ms", "other ms", "frames used", "MB/s read",
        "MB/s pixels",
    ]  # fmt: skip
    note = (
        "Means of a clip in a decoder; where there are more decoders than cores, they wait for "
        "each other in all of it. Scale: crop and scale. Frames used: of those that the decoder "
        "gave. MB/s of all together: packets read, pixels written."
    )
    return Table(columns, rows, "Where a decoder's time goes", note)


def _bars(found: Measured) -> Stacks:
    names = [f"{count} decoding process{'es' * (count > 1)}" for count in found.many]
    return Stacks(
        "What a decoder spends on a clip: reading, decoding, cropping and scaling, the rest.",
        names, [_split(many.cost) for many in found.many.values()], "ms a clip",
        {"read": "#009e73", "decode": "#0072b2", "scale": "#d55e00", "other": "#a0a4ab"},
    )  # fmt: skip


def _saturation(found: Measured) -> str:
    """Where more processes stop paying."""
    rates = {count: many.spread("processes").median for count, many in found.many.items()}
    best = max(rates.values())
    enough = next(count for count, rate in rates.items() if rate >= 0.95 * best)
    many = "process reaches" if enough == 1 else "processes reach"
    return f"{enough} {many} 95 % of the most that was measured, {best:.4g} clips a second."


def _whole(found: Measured) -> Part:
    spread = found.whole.spread("loader")
    table = Table(["", "clips/s"], [["loader", str(spread)]], "", found.whole_note + ".")
    text = "Batches as training gets them: decoded, converted, normalised."
    return Part("whole", "The whole loader", text, [table])


def _data(found: Measured) -> dict[str, object]:
    options = found.options

    def spreads(of: dict[str, Spread]) -> dict[str, dict[str, float]]:
        return {name: spread.to_dict() for name, spread in of.items()}

    return {
        "clip": {"shape": options.clip, "size": options.size},
        "pack": str(found.pack.path),
        "profile": found.pack.meta.get("profile"),
        "rounds": options.turns,
        "packed_bytes_per_clip": found.packed_bytes,
        "pixel_bytes_per_clip": found.pixel_bytes,
        "ms_per_clip": spreads({n: found.one.spread(n) for n in found.one.values}),
        "clips_per_s": {
            str(count): spreads({n: many.spread(n) for n in many.turns.values})
            for count, many in found.many.items()
        },
        "ms_of_a_clip_in_processes": {
            str(count): _split(many.cost) for count, many in found.many.items()
        },
        "loader_clips_per_s": found.whole.spread("loader").to_dict(),
        "loader": found.whole_note,
        "difference_of_peers": found.close,
        "left_out": found.absent,
    }
