"""Signals that ask a run to save and end."""

from __future__ import annotations

import os
import signal
import threading

import pytest

from matinee.training import stop as stop_module
from matinee.training.stop import SIGNALS, StopRequest


@pytest.fixture
def clock(monkeypatch):
    """Seconds that pass only when told."""
    now = [100.0]
    monkeypatch.setattr(stop_module.time, "monotonic", lambda: now[0])
    return now


def send(number: signal.Signals) -> None:
    os.kill(os.getpid(), number)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGUSR1])
def test_signal_is_noted_and_the_process_goes_on(number):
    before = {s: signal.getsignal(s) for s in SIGNALS}
    with StopRequest() as stop:
        assert stop.name == ""
        send(number)
        assert stop.name == number.name
    assert {s: signal.getsignal(s) for s in SIGNALS} == before


def test_first_signal_is_the_reason():
    with StopRequest() as stop:
        for number in (signal.SIGUSR1, signal.SIGTERM, signal.SIGUSR1, signal.SIGTERM):
            send(number)
        assert stop.name == "SIGUSR1"


def test_second_ctrl_c_ends_at_once(clock):
    with StopRequest() as stop:
        send(signal.SIGINT)
        with pytest.raises(KeyboardInterrupt):
            send(signal.SIGINT)
        assert stop.name == "SIGINT"


def test_ctrl_c_that_comes_twice_through_a_launcher_is_one(clock):
    with StopRequest(launched=True) as stop:
        send(signal.SIGINT)
        clock[0] += 2.9
        send(signal.SIGINT)
        assert stop.name == "SIGINT"
        clock[0] += 0.2
        with pytest.raises(KeyboardInterrupt):
            send(signal.SIGINT)


def test_outside_of_the_main_thread_signals_are_left_alone():
    before = signal.getsignal(signal.SIGUSR1)

    def enter() -> None:
        with StopRequest():
            inside.append(signal.getsignal(signal.SIGUSR1))

    inside: list[object] = []
    thread = threading.Thread(target=enter)
    thread.start()
    thread.join()
    assert inside == [before]
