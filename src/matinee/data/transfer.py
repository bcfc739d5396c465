"""From batch memory to the device, without making the host wait.

# Note [Copies ahead]
A GPU copies page-locked memory by itself, while the host prepares the next work and the GPU's
kernels run; pageable memory has to pass through the driver's own buffer first, by the hand of the
CPU. A copy on the stream of the training step still waits for that step's kernels; on a stream of
its own it does not, so the next batch arrives during this one. What is left in order are two
things: the step waits for the copy (an event), and the slot of batch memory is not written again
before the copy has read it (the same event, asked for, not waited for).
"""

from __future__ import annotations

import contextlib
import functools
import logging
import weakref
from collections.abc import Callable
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from matinee.data.batch import Batch

log = logging.getLogger("matinee.data")


class Sent(Protocol):
    """A batch on its way."""

    def done(self) -> bool:
        """Whether its slot of memory has been read and may be written again."""

    def wait(self) -> None:
        """Until it is done."""

    def hand_out(self) -> Batch:
        """The batch, for work on the current stream; once, and then it is not kept here."""


class Transfer(Protocol):
    """Takes batches to the device.

    `ahead`: whether the next batch is better sent while this one is worked on. `spare`: how many
    slots of memory may be on their way while all others are decoded into.
    """

    ahead: bool
    spare: int

    def attach(self, memory: NDArray[np.uint8]) -> None:
        """Prepare the memory that batches come from."""

    def begin(self, make: Callable[[], Batch]) -> Sent:
        """Send what `make` makes of a slot; it must not wait for the device either."""

    def close(self) -> None:
        """Wait until the memory is no longer read, and let it go."""


def make_transfer(device: torch.device, *, pinned: bool, side_stream: bool) -> Transfer:
    """How batches get to `device`.

    Args:
        pinned: page-lock the batch memory of a GPU.
        side_stream: copy to a GPU on a stream of its own, ahead.
    """
    if device.type == "cuda":
        return _ToCuda(device, pinned=pinned, side_stream=side_stream)
    return _OnHost()


def send(tensor: Tensor, device: torch.device, *, pinned: bool = True) -> Tensor:
    """Copy a CPU tensor to a device. A GPU's stream gets it in order, and if it starts from
    page-locked memory (`pinned`) nobody waits.
    """
    if device.type != "cuda" or not pinned:
        return tensor.to(device)
    # The allocator of page-locked memory keeps the copy's source until it has been read.
    return tensor.pin_memory().to(device, non_blocking=True)


class _OnHost:
    ahead, spare = False, 0

    def attach(self, memory: NDArray[np.uint8]) -> None:
        pass

    def begin(self, make: Callable[[], Batch]) -> Sent:
        return _Made(make())

    def close(self) -> None:
        pass


class _Made:
    def __init__(self, batch: Batch) -> None:
        self._batch: Batch | None = batch

    def done(self) -> bool:
        return True

    def wait(self) -> None:
        pass

    def hand_out(self) -> Batch:
        batch, self._batch = self._batch, None
        assert batch is not None
        return batch


class _ToCuda:
    spare = 1

    def __init__(self, device: torch.device, *, pinned: bool, side_stream: bool) -> None:
        self.ahead, self._device, self._pinned = side_stream, device, pinned
        self._stream: torch.cuda.Stream | None = None
        if side_stream:
            self._stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        self._unpin: Callable[[], Any] = _nothing

    def attach(self, memory: NDArray[np.uint8]) -> None:
        if not self._pinned:
            return
        try:
            _page_lock(memory, self._device)
        except RuntimeError as error:
            _warn_pageable(str(error).splitlines()[0])
            return
        # Also if nobody closes: a registration that outlives its memory would be in the way of
        # whatever the system puts at the same address next.
        unpin = weakref.finalize(self, _release, memory, self._device)
        unpin.atexit = False  # the driver does it then
        self._unpin = unpin

    def begin(self, make: Callable[[], Batch]) -> Sent:
        stream = self._stream or torch.cuda.current_stream(self._device)
        with torch.cuda.stream(stream):
            batch = make()
            return _OnStream(batch, stream.record_event(), self._device)

    def close(self) -> None:
        torch.cuda.synchronize(self._device)
        self._unpin()
        self._unpin = _nothing


class _OnStream(_Made):
    def __init__(self, batch: Batch, event: torch.cuda.Event, device: torch.device) -> None:
        super().__init__(batch)
        self._event, self._device = event, device

    def done(self) -> bool:
        return bool(self._event.query())  # type: ignore[no-untyped-call]

    def wait(self) -> None:
        self._event.synchronize()

    def hand_out(self) -> Batch:
        batch = super().hand_out()
        stream = torch.cuda.current_stream(self._device)
        stream.wait_event(self._event)
        for value in vars(batch).values():
            if isinstance(value, Tensor) and value.is_cuda:
                # Its memory belongs to the side stream, which may not take it back while the
                # current one still works with it.
                value.record_stream(stream)
        return batch


def _nothing() -> None:
    pass


def _page_lock(memory: NDArray[np.uint8], device: torch.device) -> None:
    """Register memory with the driver, for copies without the CPU.

    Raises:
        RuntimeError: the driver refuses.
    """
    with torch.cuda.device(device):
        driver: Any = torch.cuda.cudart()  # type: ignore[no-untyped-call]
        code = driver.cudaHostRegister(memory.ctypes.data, memory.nbytes, 0)
        try:
            torch.cuda.check_error(code)
        except RuntimeError:
            # The runtime also keeps the error for the next kernel's launch to report: take it away.
            with contextlib.suppress(RuntimeError):
                torch.zeros(1, device=device)
            raise


def _release(memory: NDArray[np.uint8], device: torch.device) -> None:
    torch.cuda.synchronize(device)
    driver: Any = torch.cuda.cudart()  # type: ignore[no-untyped-call]
    driver.cudaHostUnregister(memory.ctypes.data)


@functools.cache
def _warn_pageable(reason: str) -> None:
    log.warning("batch memory stays pageable, copies to the GPU take longer: %s", reason)
