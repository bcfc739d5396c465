"""Checkpoints of a run: written whole beside the training, checked before they are trusted.

# Note [Checkpoints]
`checkpoints/step-00000123.pt` is the state after 123 steps. `last.pt` and `best.pt` are links to
two of these files, for people and commands that want a name that stays. A save copies every tensor,
which is all that training waits for; a thread then writes the copy (see Note [Aside]), moves the
links, and removes what nobody needs any more, in this order. So at any moment the newest file in
the folder is whole, and no older than the last save that was completed.

A checkpoint is one file of whole tensors, whatever the ranks were: any number of them goes on from
it, and so does everything that reads weights. The sharded folders of torch.distributed.checkpoint
are written faster by thousands of ranks, but their metadata is a pickle that cannot be read with
`weights_only`, and no other tool takes them for weights.

What the names say counts, not the links: where a process was killed between two steps of a save, a
link may be one save behind. Runs from before there was a folder have a plain `last.pt` instead.
"""

from __future__ import annotations

import errno
import os
import re
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Literal

from matinee.errors import ConfigError, MatineeError
from matinee.files import link_whole, remove_asides
from matinee.training.state.checkpoint_file import (
    HELD,
    State,
    Unreadable,
    peek_step,
    read_checkpoint,
    write_checkpoint,
)
from matinee.training.state.snapshot import Snapshot

Name = Literal["last", "best"]

_STEP = re.compile(r"step-(\d{8}|[1-9]\d{8,})\.pt")
_LINK = re.compile(r"(last|best)\.pt")


class DamagedCheckpoint(UserWarning):
    """A checkpoint could not be read, and an older one was taken."""


@dataclass
class SaveStats:
    """What saves cost, in seconds.

    `waited_s` and `copied_s` held up the caller of the latest save: until the write before it had
    ended, and to copy the tensors. `written_s` is the whole write of `step` in the background, the
    newest that is on disk; None before the first.
    """

    waited_s: float = 0.0
    copied_s: float = 0.0
    written_s: float = 0.0
    step: int | None = None


class Checkpoints:
    """The checkpoints of the run in `folder`. See Note [Checkpoints].

    One process writes, any number read. Reading changes nothing in the folder.

    Args:
        keep: how many of the newest stay, beside the best one. With 1 there is none to fall back
            on.
    """

    def __init__(self, folder: Path, *, keep: int = 2) -> None:
        if keep < 1:
            raise ConfigError(f"checkpoints to keep: {keep}, but at least 1 must stay")
        self.run = folder
        self.folder = folder / "checkpoints"
        self.last_file = folder / "last.pt"
        self.best_file = folder / "best.pt"
        self.keep = keep
        self.stats = SaveStats()
        self._snapshot = Snapshot()
        self._writer: threading.Thread | None = None
        self._failed: Exception | None = None

    def file(self, step: int) -> Path:
        """Where the state after `step` steps is, or would be."""
        return self.folder / f"step-{step:08d}.pt"

    def begin(self, step: int, *, best: int | None = None) -> None:
        """Make the folder ready for a training that goes on from `step` (0: from the start).

        What killed processes left half-written is removed; `last.pt` leads to the file of `step`
        and `best.pt` to that of `best`, where there are such files.

        Raises:
            ConfigError: the file system has no symbolic links.
        """
        self.folder.mkdir(parents=True, exist_ok=True)
        remove_asides(self.folder, _STEP)
        remove_asides(self.run, _LINK)
        probe = self.run / f"last.pt.{os.getpid()}.tmp"
        try:
            probe.symlink_to("nothing")
        except OSError as error:
            if error.errno not in (errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS):
                raise
            raise ConfigError(
                f"--run.out {self.run}: its file system has no symbolic links, which last.pt and "
                f"best.pt are ({error.strerror}): take a folder on another one"
            ) from None
        probe.unlink()
        for link, at in ((self.last_file, step), (self.best_file, best)):
            if at is not None and self.file(at).is_file() and not _leads_to(link, self.file(at)):
                self._link(link, at)

    def save(self, state: State, step: int, *, best: bool = False, wait: bool = False) -> None:
        """Save `state` (Note [Snapshot]) as that after `step` steps, and as the best so far.

        Returns once the tensors are copied; a write that is still going on is waited for before.
        Files of later steps, which a training that fell back on an older checkpoint has left
        behind, go when this one is written.

        Args:
            wait: return when the checkpoint is on disk.

        Raises:
            MatineeError: a write failed, this one (with `wait`) or the one before.
            TypeError: the state holds what could not be read again.
        """
        assert set(state) >= HELD, sorted(state)
        begin = time.perf_counter()
        self.wait()
        waited = time.perf_counter()
        held = self._snapshot.take(state)
        self.stats.waited_s = waited - begin
        self.stats.copied_s = time.perf_counter() - waited
        # Not a daemon: a process that ends without `close` still ends the write.
        self._writer = threading.Thread(
            target=self._work, args=(held, step, best), name="checkpoint"
        )
        self._writer.start()
        if wait:
            self.wait()

    def wait(self) -> None:
        """Until the write that is going on has ended.

        Raises:
            MatineeError: it failed.
        """
        if self._writer is not None:
            self._writer.join()
            self._writer = None
        failed, self._failed = self._failed, None
        if failed is not None:
            raise failed

    def close(self) -> None:
        """Wait, and give the memory of the copies back.

        Raises:
            MatineeError: the last write failed.
        """
        try:
            self.wait()
        finally:
            self._snapshot = Snapshot()

    def __enter__(self) -> Checkpoints:
        return self

    def __exit__(
        self, _: type[BaseException] | None, error: BaseException | None, __: TracebackType | None
    ) -> None:
        try:
            self.close()
        except MatineeError as failed:
            if error is None:
                raise
            error.add_note(f"and {failed}")  # the first cause is not hidden

    def load(self, name: Name = "last") -> tuple[State, list[str]]:
        """The newest checkpoint that can be read, or the best; tensors on the CPU.

        The second value has a sentence for each damaged file that an older one stands in for; the
        user must see them. Nothing stands in for the best.

        Raises:
            MatineeError: there is none, or none that can be read.
        """
        if name == "best":
            return self._load_best(), []
        tried: dict[Path, str] = {}
        # Listed anew each time: a training that goes on may have removed what was there.
        while file := next((f for f in self._newest_first() if f not in tried), None):
            try:
                state = read_checkpoint(file)
            except FileNotFoundError:
                tried[file] = ""
            except Unreadable as error:
                tried[file] = str(error)
            else:
                damaged = {other: why for other, why in tried.items() if why}
                step = _step(file)
                which = file if step is None else f"step {step} ({file})"
                return state, [
                    f"{other} is damaged ({why}): {which} is used instead"
                    for other, why in damaged.items()
                ]
        damaged = {file: why for file, why in tried.items() if why}
        if not damaged:
            raise MatineeError(
                f"{self.run} has no checkpoint yet: train it, or resume it with --resume"
            )
        told = "; ".join(f"{file} is damaged: {why}" for file, why in damaged.items())
        raise MatineeError(
            f"{told}; {self.run} has no other checkpoint: put a copy back, or start anew with "
            "another --out"
        )

    def step(self) -> int | None:
        """Steps that the newest checkpoint has done, without reading its tensors; None without one.

        Raises:
            MatineeError: last.pt leads to nothing, or is from before there was a folder and
                damaged.
        """
        newest = next(iter(self._newest_first()), None)
        if newest is None:
            return None
        step = _step(newest) if newest != self.last_file else peek_step(newest)
        if step is None:
            raise MatineeError(f"{newest} is damaged: it is no checkpoint of matinee")
        return step

    def steps(self) -> list[int]:
        """Of the files in the folder, in order; they may be damaged."""
        try:
            steps = [_step(file) for file in self.folder.iterdir()]
        except FileNotFoundError:
            return []
        return sorted(step for step in steps if step is not None)

    def best_step(self) -> int | None:
        """Of the file that best.pt points to, None without one."""
        try:
            return _step(self.best_file.readlink())
        except OSError:
            return None

    def _load_best(self) -> State:
        try:
            return read_checkpoint(self.best_file)
        except FileNotFoundError:
            raise MatineeError(
                f"{self.run} has no best.pt, or what it pointed to is gone: take last.pt"
            ) from None
        except Unreadable as error:
            raise MatineeError(f"{self.best_file} is damaged: {error}: take last.pt") from None

    def _newest_first(self) -> list[Path]:
        """Files to read, in this order; among them last.pt, if it is none of those in the folder.

        Raises:
            MatineeError: there is nothing but a last.pt that leads to nothing.
        """
        files = {step: self.file(step) for step in reversed(self.steps())}
        if self.last_file.exists():
            if not any(_leads_to(self.last_file, file) for file in files.values()):
                own = peek_step(self.last_file) or 0
                newer = sum(step >= own for step in files)
                order = list(files.values())
                return [*order[:newer], self.last_file, *order[newer:]]
        elif not files and self.last_file.is_symlink():
            raise MatineeError(
                f"{self.last_file} leads to {self.last_file.readlink()}, which is gone: put it "
                "back, or start anew with another --out"
            )
        return list(files.values())

    def _link(self, link: Path, step: int) -> None:
        link_whole(link, f"{self.folder.name}/{self.file(step).name}")

    def _work(self, state: State, step: int, best: bool) -> None:
        """What the thread does; its error waits for the next call."""
        begin = time.perf_counter()
        file = self.file(step)
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            write_checkpoint(state, file)
            self._link(self.last_file, step)
            if best:
                self._link(self.best_file, step)
            self._prune(step)
        except OSError as error:
            kept = [other for other in self.steps() if other != step][-1:]
            untouched = f"that of step {kept[0]} is untouched" if kept else "there is no other"
            self._failed = MatineeError(
                f"{error.filename or file}: {error.strerror}: the checkpoint of step {step} could "
                f"not be saved; {untouched}: make room, or mend the folder, and go on with --resume"
            )
            self._failed.__cause__ = error
        except Exception as error:
            self._failed = error
        else:
            self.stats.written_s = time.perf_counter() - begin
            self.stats.step = step

    def _prune(self, step: int) -> None:
        """After `step`: later files go, then all but the newest `keep` and the best."""
        best = self.best_step()
        steps = [other for other in self.steps() if self.file(other).is_file()]
        if best is not None and best > step:
            self.best_file.unlink(missing_ok=True)
            best = None
        newest = [other for other in steps if other <= step][-self.keep :]
        for other in steps:
            if other not in newest and other != best:
                self.file(other).unlink(missing_ok=True)


def _step(file: Path) -> int | None:
    found = _STEP.fullmatch(file.name)
    return int(found[1]) if found else None


def _leads_to(link: Path, file: Path) -> bool:
    try:
        return link.samefile(file)
    except OSError:  # nothing there, or a circle of links
        return False
