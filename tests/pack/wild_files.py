"""Files as the wild has them, made from sound ones: copied packet by packet, cut, shifted."""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from pathlib import Path

import av


def copy(
    source: Path,
    target: Path,
    *,
    keep: Callable[[int, av.Packet], bool] = lambda number, packet: True,
    change: Callable[[int, av.Packet], None] | None = None,
    shift: float = 0.0,
    container: dict[str, str] | None = None,
) -> Path:
    """As `ffmpeg -i source -c copy target`: the packets that `keep` takes, in their order.

    `change` alters a packet before it is written; `shift` moves all times by so many seconds.
    """
    with (
        av.open(str(source)) as original,
        av.open(str(target), "w", options=container or {}) as file,
    ):
        theirs = original.streams.video[0]
        stream = file.add_stream_from_template(theirs)
        number = -1
        for packet in original.demux(theirs):
            if not packet.size:
                continue
            number += 1
            if not keep(number, packet):
                continue
            if shift:
                ticks = round(Fraction(shift) / packet.time_base)
                packet.pts = None if packet.pts is None else packet.pts + ticks
                packet.dts = None if packet.dts is None else packet.dts + ticks
            if change is not None:
                change(number, packet)
            packet.stream = stream
            file.mux(packet)
    return target
