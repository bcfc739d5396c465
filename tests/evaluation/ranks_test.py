"""Rows of several ranks come together once each; two real processes give what one gives."""

import subprocess
import sys
import textwrap

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.data import DistributedSampler

from matinee.errors import MatineeError
from matinee.evaluation.ranks import gather_rows, merge_rows


@given(st.integers(1, 40), st.integers(1, 7), st.booleans(), st.integers(0, 2**31))
def test_padding_of_torchs_sampler_is_counted_once(samples, ranks, shuffle, seed):
    """Every rank of DistributedSampler; the values belong to their index."""
    values = np.random.default_rng(seed).standard_normal((samples, 3))
    parts = []
    for rank in range(ranks):
        sampler = DistributedSampler(
            range(samples), num_replicas=ranks, rank=rank, shuffle=shuffle, seed=seed
        )
        index = np.array(list(sampler), dtype=np.int64)
        parts.append((index, values[index]))
    expected = np.random.default_rng(seed).permutation(samples)
    index, merged = merge_rows(parts, expected)
    assert sum(len(part[0]) for part in parts) % ranks == 0
    assert index.tolist() == list(range(samples))
    assert np.array_equal(merged, values)


def test_the_lowest_rank_wins_and_a_rank_may_have_nothing():
    """Rounding may differ between ranks; the result must not depend on who is faster."""
    none = (np.array([], dtype=np.int64), np.zeros((0,)))
    parts = [none, (np.array([7, 2]), np.array([1.0, 2.0])), (np.array([2, 7]), np.array([8.0, 9]))]
    index, values = merge_rows(parts, np.array([7, 2]))
    assert index.tolist() == [2, 7] and values.tolist() == [2.0, 1.0]


def test_samples_nobody_evaluated_or_nobody_asked_for_are_refused():
    """Counted, with the first."""
    part = (np.array([0, 1, 5]), np.zeros(3))
    with pytest.raises(MatineeError, match=r"2 of 4 samples .* the first is 2"):
        merge_rows([part], np.array([0, 1, 2, 3]))
    with pytest.raises(MatineeError, match=r"1 samples .* not in the set, the first is 5"):
        merge_rows([part], np.array([1, 0]))


def test_without_a_process_group_the_own_rows_are_all():
    """Sorted and checked just the same."""
    index, values = gather_rows(np.array([3, 1, 3]), np.array([30, 10, 31]), np.array([1, 3]))
    assert index.tolist() == [1, 3] and values.tolist() == [10, 30]
    with pytest.raises(MatineeError, match="on no rank"):
        gather_rows(np.array([3]), np.array([30]), np.array([1, 3]))


def test_two_processes_give_the_metrics_of_one(tmp_path):
    """gloo, 11 samples on two ranks: the sampler repeats one; both ranks hold the same rows."""
    program = textwrap.dedent("""
        import sys
        import numpy as np
        import torch.distributed as dist
        from torch.utils.data import DistributedSampler
        from matinee.errors import MatineeError
        from matinee.evaluation.ranks import gather_rows

        rank, folder = int(sys.argv[1]), sys.argv[2]
        dist.init_process_group(
            "gloo", init_method=f"file://{folder}/meet", rank=rank, world_size=2
        )
        every = np.random.default_rng(0).standard_normal((11, 4))
        own = np.array(list(DistributedSampler(range(11), shuffle=False)))
        index, values = gather_rows(own, every[own], np.arange(11))
        np.savez(f"{folder}/{rank}.npz", own=own, index=index, values=values)
        try:
            gather_rows(own, every[own], np.arange(12))
        except MatineeError as error:
            print(error)
        dist.destroy_process_group()
    """)
    ranks = [
        subprocess.Popen(
            [sys.executable, "-c", program, str(rank), str(tmp_path)],
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )
        for rank in range(2)
    ]  # fmt: skip
    for process in ranks:
        said, complaint = process.communicate(timeout=120)
        assert process.returncode == 0, complaint
        assert "1 of 12 samples were evaluated on no rank, the first is 11" in said
    every = np.random.default_rng(0).standard_normal((11, 4))
    alone = gather_rows(np.arange(11), every, np.arange(11))
    found = [np.load(tmp_path / f"{rank}.npz") for rank in range(2)]
    assert [len(part["own"]) for part in found] == [6, 6]
    for part in found:
        assert np.array_equal(part["index"], alone[0])
        assert np.array_equal(part["values"], alone[1])
