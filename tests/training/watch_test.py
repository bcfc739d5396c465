"""Ranks that watch each other: the first cause ends all, and who hangs is named."""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
import time
from datetime import timedelta

import pytest
import torch
import torch.distributed as dist
from hypothesis import given
from hypothesis import strategies as st

from matinee.training.parallel import watch as watch_module
from matinee.training.parallel.environment import RankEnvironment
from matinee.training.parallel.watch import (
    TOLD,
    TRY_AGAIN,
    Beat,
    Seen,
    Watch,
    claim,
    find_hang,
    is_lost_connection,
    watch_name,
)

WORLD = 3


class Group:
    """Real processes that have met in a store, which this process holds as torchrun's agent."""

    def __init__(self, timeout_s: float = 60.0, interval_s: float = 0.05) -> None:
        self.server = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
        self.timeout_s, self.interval_s = timeout_s, interval_s
        self.processes: list[multiprocessing.process.BaseProcess] = []

    def store(self, rank: int):
        environment = RankEnvironment(
            rank=rank, world=WORLD, address="127.0.0.1", port=self.server.port, agent_store=True
        )
        return environment.open_store(watch_name(0), 10.0)

    def start(self, act) -> None:
        """Forked, for torch is imported already; each joins a Gloo group and calls `act`."""
        context = multiprocessing.get_context("fork")
        for rank in range(WORLD):
            process = context.Process(target=self._run, args=(rank, act))
            process.start()
            self.processes.append(process)

    def _run(self, rank: int, act) -> None:
        torch.set_num_threads(1)
        store = dist.TCPStore("127.0.0.1", self.server.port, wait_for_workers=False)
        dist.init_process_group(
            "gloo", store=store, rank=rank, world_size=WORLD, timeout=timedelta(seconds=60)
        )
        watch = Watch(
            self.store(rank), rank, WORLD, timeout_s=self.timeout_s, interval_s=self.interval_s
        )
        status = act(rank, watch)
        sys.stderr.flush()
        os._exit(status)

    def statuses(self) -> list[int | None]:
        for process in self.processes:
            process.join(30)
        return [process.exitcode for process in self.processes]

    def kill(self) -> None:
        for process in self.processes:
            if process.is_alive():
                process.kill()
                process.join()


@pytest.fixture
def group(request):
    made = Group(**getattr(request, "param", {}))
    yield made
    made.kill()


def wait_for_all(watch) -> int:
    try:
        dist.all_reduce(torch.ones(1))
    except RuntimeError as error:
        assert is_lost_connection(error)
        watch.lost("a rank is lost")
    return 0


@pytest.mark.parametrize("unwinds_s", [0.0, 1.0])
def test_error_of_one_rank_ends_those_that_wait_for_it(group, capfd, unwinds_s):
    # At once, the others find their connections broken; later, they hang in the collective.
    def act(rank, watch):
        if rank != 1:
            return wait_for_all(watch)
        assert watch.fail("no such file")
        print("matinee train: no such file", file=sys.stderr)
        time.sleep(unwinds_s)
        return 2

    group.start(act)
    assert group.statuses() == [TOLD] * 3
    assert capfd.readouterr() == ("", "matinee train: no such file\n")


def test_of_several_errors_one_is_told(group, capfd):
    def act(rank, watch):
        dist.barrier()
        if watch.fail(f"error {rank}"):
            print(f"error {rank}", file=sys.stderr)
        return 2

    group.start(act)
    assert group.statuses() == [TOLD] * 3
    assert len(capfd.readouterr().err.splitlines()) == 1


def test_rank_that_raised_and_hangs_on_its_way_out_is_ended(group, monkeypatch):
    monkeypatch.setattr(watch_module, "_TO_PRINT_S", 0.2)

    def act(rank, watch):
        if rank == 1:
            watch.fail("error")
            time.sleep(60)
        return wait_for_all(watch)

    group.start(act)
    assert group.statuses() == [TOLD] * 3


@pytest.mark.parametrize("group", [{"timeout_s": 1.0}], indirect=True)
def test_rank_that_keeps_the_others_waiting_is_named(group, capfd):
    def act(rank, watch):
        watch.step, watch.arrivals = 57, 3
        if rank == 2:
            watch.phase = "data_wait"
            time.sleep(60)
        watch.phase, watch.arrivals = "comm", 4
        return wait_for_all(watch)

    group.start(act)
    assert group.statuses() == [TRY_AGAIN] * 3
    (line,) = capfd.readouterr().err.splitlines()
    assert line.startswith("matinee train: rank 2 (host ")
    assert ") has been in data_wait of step 57 for 1 s while the others wait for it: " in line


@pytest.mark.parametrize("group", [{"timeout_s": 2.0}], indirect=True)
@pytest.mark.parametrize("silent", [0, 2])
def test_rank_that_stands_still_is_named_even_if_it_is_the_one_that_looks(group, capfd, silent):
    def act(rank, watch):
        watch.phase, watch.arrivals = "forward", 5
        if rank == silent:
            dist.barrier()
            time.sleep(0.3)
            os.kill(os.getpid(), signal.SIGSTOP)
        dist.barrier()
        return wait_for_all(watch)

    group.start(act)
    others = [rank for rank in range(WORLD) if rank != silent]
    for rank in others:
        group.processes[rank].join(30)
    group.kill()
    assert [group.statuses()[rank] for rank in others] == [TRY_AGAIN] * 2
    (line,) = capfd.readouterr().err.splitlines()
    assert f"rank {silent} (host " in line
    assert "has not been heard of for 2 s, last in forward of step 0" in line


def test_launcher_that_saw_a_rank_die_ends_the_others_without_a_word(group, capfd):
    def act(rank, watch):
        if rank == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        time.sleep(60)
        return 0

    group.start(act)
    group.processes[1].join(30)
    assert claim(group.store(0), 1, TRY_AGAIN, "rank 1 was killed")
    assert group.statuses() == [TRY_AGAIN, -signal.SIGKILL, TRY_AGAIN]
    assert capfd.readouterr().err == ""


def test_lost_connection_is_told_only_if_nobody_knows_better(group, capfd, monkeypatch):
    monkeypatch.setattr(watch_module, "_LOST_S", 0.5)

    def act(rank, watch):
        if rank == 1:
            os._exit(0)  # without a word
        return wait_for_all(watch)

    group.start(act)
    assert group.statuses() == [TRY_AGAIN, 0, TRY_AGAIN]
    assert capfd.readouterr().err == "matinee train: a rank is lost\n"


@pytest.mark.parametrize("group", [{"interval_s": 30.0}], indirect=True)
def test_lost_connection_after_an_error_ends_with_the_errors_status(group, capfd):
    def act(rank, watch):
        if rank == 1:
            assert watch.fail("told")
            return TOLD
        return wait_for_all(watch)  # finds out before its thread looks

    group.start(act)
    assert group.statuses() == [TOLD] * 3
    assert capfd.readouterr().err == ""


def test_ranks_end_quietly_when_their_store_is_gone(group, capfd):
    def act(rank, watch):
        time.sleep(60)
        return 0

    group.start(act)
    for rank in range(WORLD):
        group.store(0).get(f"beat/{rank}")  # waits for it
    del group.server
    assert group.statuses() == [TRY_AGAIN] * 3
    assert "matinee" not in capfd.readouterr().err


def test_ranks_that_are_done_do_not_alarm_the_slower_ones(capfd):
    group = Group(timeout_s=0.3)

    def act(rank, watch):
        watch.arrivals = 5
        with watch:
            if rank == 1:
                for _ in range(15):
                    time.sleep(0.1)
                    watch.arrivals += 1
        return 0

    group.start(act)
    assert group.statuses() == [0] * 3
    assert capfd.readouterr().err == ""


def test_only_errors_of_collectives_mean_a_lost_connection():
    assert is_lost_connection(dist.DistBackendError("NCCL error"))
    assert not is_lost_connection(RuntimeError("CUDA out of memory"))
    assert not is_lost_connection(ValueError("gloo"))


def seen(arrivals=9, still=0.0, silent=0.0, phase="comm", done=False) -> Seen:
    return Seen(Beat(5, arrivals, 57, phase, "a", done), silent, still)


def test_ranks_that_all_wait_are_told_apart_by_where_they_are():
    same = find_hang({r: seen(still=70) for r in range(3)}, 60)
    assert same is not None
    assert same.startswith("all ranks have been in comm of step 57 for 70 s, none is behind")
    ranks = {**{r: seen(still=70 + r) for r in range(8)}, 3: seen(still=65, phase="forward")}
    apart = find_hang(ranks, 60)
    assert apart is not None
    assert apart.startswith("no rank has moved for 65 s")
    assert "rank 3 in forward of step 57" in apart
    assert "ranks 0, 1, 2, 4 and 3 more in comm of step 57" in apart


def test_furthest_behind_is_named_first():
    hang = find_hang({0: seen(9, 90), 1: seen(8, 70), 2: seen(7, 80), 3: seen(7, 99)}, 60)
    assert hang is not None and hang.startswith(
        "rank 3 (host a) has been in comm of step 57 for 99"
    )


def test_saving_and_the_first_step_may_take_six_times_as_long():
    for slow in (seen(8, 359, phase="save"), seen(1, 359), seen(0, 359, silent=359)):
        ranks = {0: seen(still=359), 1: slow}
        assert find_hang(ranks, 60) is None
    assert find_hang({0: seen(), 1: seen(8, 361, phase="save")}, 60) is not None
    assert find_hang({0: seen(9, 99, phase="save"), 1: seen(9, 99)}, 60) is None


RANKS = st.builds(
    seen,
    st.integers(2, 5),
    st.floats(0, 200),
    st.floats(0, 100),
    st.sampled_from(["comm", "data_wait"]),
    st.booleans(),
)


@given(st.lists(RANKS, min_size=1, max_size=6))
def test_run_hangs_if_a_rank_is_silent_or_late_or_nobody_moves(ranks):
    running = [r for r in ranks if not r.beat.done]
    silent = any(r.silent_s >= 100 for r in running)
    # Whoever is not ahead of anybody has stood still for too long.
    last = [r for r in running if not any(o.beat.arrivals < r.beat.arrivals for o in running)]
    stuck = bool(last) and min(r.still_s for r in last) >= 100
    hang = find_hang(dict(enumerate(ranks)), 100)
    assert (hang is not None) == (silent or stuck)


@given(st.lists(RANKS, min_size=2, max_size=6))
def test_named_rank_is_one_of_those_that_hang(ranks):
    hang = find_hang(dict(enumerate(ranks)), 100)
    if hang is not None and hang.startswith("rank "):
        named = ranks[int(hang.split()[1])]
        assert not named.beat.done
        assert named.still_s >= 100 or named.silent_s >= 100
