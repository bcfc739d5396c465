"""How many processes and threads decode follows from the cores, and says why."""

import os

import pytest
from hypothesis import given
from hypothesis import strategies as st

from matinee.data.decoders import Cores, cgroup_limit, plan_decoders, rank_cores, share_cores
from matinee.errors import ConfigError


@pytest.mark.parametrize(
    ("allowed", "there", "limit", "ranks", "own", "count", "words"),
    [
        (8, 8, None, 1, False, 8, "8 cores"),
        (4, 64, None, 1, False, 4, "4 of 64 cores may be used"),
        (8, 8, 2.5, 1, False, 2, "8 cores, the container is limited to 2.5"),
        (8, 8, 16.0, 1, False, 8, "8 cores"),
        (8, 8, 0.5, 1, False, 1, "8 cores, the container is limited to 0.5"),
        (64, 64, None, 8, False, 8, "64 cores, shared by 8 ranks"),
        (64, 64, 24.0, 8, False, 3, "64 cores, the container is limited to 24, shared by 8 ranks"),
        (8, 64, None, 8, True, 8, "8 of 64 cores may be used, bound to this rank"),
        (2, 2, None, 8, False, 1, "2 cores, shared by 8 ranks"),
    ],
)
def test_a_rank_gets_its_share_of_what_is_allowed(allowed, there, limit, ranks, own, count, words):
    """By hand: affinity, container limit, ranks of the machine, a scheduler's binding."""
    assert share_cores(allowed, there, limit, ranks, own=own) == Cores(count, words)


def test_ranks_that_torchrun_started_share_the_cores():
    """As LOCAL_WORLD_SIZE says, unless the caller knows; never fewer than one core."""
    alone = rank_cores(environ={})
    assert rank_cores(environ={"LOCAL_WORLD_SIZE": "1"}) == alone
    many = rank_cores(environ={"LOCAL_WORLD_SIZE": "1000"})
    assert many.count == 1 and "shared by 1000 ranks" in many.reason
    assert rank_cores(1, environ={"LOCAL_WORLD_SIZE": "1000"}) == alone


def test_cores_that_slurm_bound_to_a_task_are_not_shared_again():
    """SLURM_CPUS_PER_TASK cores are there: they are this rank's own."""
    allowed = len(os.sched_getaffinity(0))
    bound = {"SLURM_LOCALID": "0", "SLURM_CPUS_PER_TASK": str(allowed)}
    assert "bound to this rank" in rank_cores(4, environ=bound).reason
    assert "shared by 4 ranks" in rank_cores(4, environ={}).reason


def test_limits_of_control_groups_are_read_in_both_versions(tmp_path):
    """The smallest from the own group up to the root; "max" and -1 are none."""
    own = tmp_path / "cgroup"
    two, one = tmp_path / "two", tmp_path / "one"
    (two / "jobs" / "mine").mkdir(parents=True)
    own.write_text("0::/jobs/mine\n")
    assert cgroup_limit(two, own) is None
    (two / "jobs" / "mine" / "cpu.max").write_text("max 100000\n")
    assert cgroup_limit(two, own) is None
    (two / "jobs" / "cpu.max").write_text("150000 100000\n")
    assert cgroup_limit(two, own) == 1.5
    (two / "jobs" / "mine" / "cpu.max").write_text("50000 100000\n")
    assert cgroup_limit(two, own) == 0.5
    (one / "cpu,cpuacct" / "docker").mkdir(parents=True)
    own.write_text("5:memory:/docker\n4:cpu,cpuacct:/docker\n1:name=systemd:/docker\n")
    (one / "cpu,cpuacct" / "docker" / "cpu.cfs_quota_us").write_text("-1\n")
    (one / "cpu,cpuacct" / "docker" / "cpu.cfs_period_us").write_text("100000\n")
    assert cgroup_limit(one, own) is None
    (one / "cpu,cpuacct" / "docker" / "cpu.cfs_quota_us").write_text("300000\n")
    assert cgroup_limit(one, own) == 3
    assert cgroup_limit(one, tmp_path / "nowhere") is None


@given(st.integers(1, 512), st.one_of(st.none(), st.integers(1, 64)),
       st.one_of(st.none(), st.integers(1, 8)))  # fmt: skip
def test_decoders_are_at_least_as_many_as_wanted_and_by_less_than_a_process_more(
    cores, workers, threads
):
    """One a core up to 16; set numbers hold, rounded up to whole processes."""
    plan = plan_decoders(Cores(cores, "so"), workers=workers, threads=threads)
    wanted = min(cores, 16) if workers is None else workers
    assert wanted <= plan.count < wanted + plan.processes
    assert threads is None or plan.threads <= threads
    alone = plan_decoders(Cores(cores, "so"), mode="threads", workers=workers)
    assert (alone.processes, alone.threads, alone.mode) == (0, wanted, "threads")


@pytest.mark.parametrize(
    ("cores", "settings", "words"),
    [
        (1, {}, "1 decoding process (one a core: so)"),
        (4, {}, "4 decoding processes (one a core: so)"),
        (12, {}, "6 decoding processes of 2 threads each (one a core: so; beyond 8 decoders, pairs "
                 "share a process to save memory)"),
        (99, {"threads": 4}, "4 decoding processes of 4 threads each (at most 16 unless set: so)"),
        (2, {"workers": 3, "threads": 3}, "1 decoding process of 3 threads (as set)"),
        (2, {"mode": "threads"}, "2 decoding threads in the training process (one a core: so)"),
    ],
)  # fmt: skip
def test_a_plan_says_what_and_why(cores, settings, words):
    """As the first lines of a run print it."""
    assert str(plan_decoders(Cores(cores, "so"), **settings)) == words


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"workers": 0}, "workers 0: at least 1"), ({"threads": 0}, "threads 0: at least 1"),
        ({"mode": "fork"}, "mode 'fork'"), ({"mode": "threads", "threads": 2}, "set workers"),
    ],
)  # fmt: skip
def test_plans_that_cannot_be_are_refused(settings, words):
    """With what was given."""
    with pytest.raises(ConfigError, match=words):
        plan_decoders(Cores(4, "so"), **settings)
