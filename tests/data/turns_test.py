"""Short turns last as long as a batch is being prepared, and leave the interpreter as it was."""

from __future__ import annotations

import sys
import threading

import pytest

from matinee.data.turns import ShortTurns, short_turns


@pytest.fixture(autouse=True)
def _restored():
    before = sys.getswitchinterval()
    yield
    sys.setswitchinterval(before)


def test_the_interval_is_short_inside_and_as_before_outside():
    """Also after an exception, and where it was shorter already."""
    for before in (0.005, 1e-5):
        sys.setswitchinterval(before)
        with pytest.raises(KeyError), short_turns:
            assert sys.getswitchinterval() <= 50e-6 + 1e-9
            raise KeyError
        assert sys.getswitchinterval() == pytest.approx(before)


def test_the_last_thread_to_leave_restores_it():
    """Two loaders in two threads that overlap."""
    sys.setswitchinterval(0.004)
    turns = ShortTurns()
    entered, leave = threading.Event(), threading.Event()

    def other() -> None:
        with turns:
            entered.set()
            leave.wait(10)

    thread = threading.Thread(target=other)
    with turns:
        thread.start()
        assert entered.wait(10)
    assert sys.getswitchinterval() < 1e-3
    leave.set()
    thread.join(10)
    assert sys.getswitchinterval() == pytest.approx(0.004)
