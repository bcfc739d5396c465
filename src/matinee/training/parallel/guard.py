"""An error on one rank ends all of them, with its cause told once."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count

from matinee.errors import first_line
from matinee.spans import OwnPulse, Pulse
from matinee.training.parallel.environment import RankEnvironment
from matinee.training.parallel.ranks import Ranks
from matinee.training.parallel.watch import TOLD, Watch, is_lost_connection, watch_name

_WATCHED = count()
"""Of runs; one after the other in the same processes must not find each other's beats."""


@contextmanager
def guarded(ranks: Ranks, timeout_s: float) -> Iterator[Pulse]:
    """Watch the other ranks while inside; gives what the loop tells about itself.

    An error inside goes on to the caller on the rank that met it first; the others end without a
    word. See watch.py.
    """
    environment = RankEnvironment.read()
    if ranks.world == 1 or not environment.address:  # or a process group that the caller made
        yield OwnPulse()
        return
    store = environment.open_store(watch_name(next(_WATCHED)), timeout_s)
    watch = Watch(
        store, ranks.rank, ranks.world, timeout_s=timeout_s, hosts_store=environment.hosts_store
    )
    try:
        with watch:
            yield watch
    except BaseException as error:
        if is_lost_connection(error):
            watch.lost(f"rank {ranks.rank} lost its connection to another: {first_line(error)}")
        if not watch.fail(str(error)):
            os._exit(TOLD)
        raise
