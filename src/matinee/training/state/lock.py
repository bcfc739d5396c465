"""One session trains in a folder at a time."""

from __future__ import annotations

import errno
import fcntl
import time
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO

from matinee.errors import ConfigError

_ENDING_S = 5.0  # in which a session that was killed a moment ago may end


def lock_folder(folder: Path, say: Callable[[str], None]) -> BinaryIO:
    """Take the folder of a run, until the file is closed or the process ends, however it does.

    Args:
        say: told in one line if the file system has no locks.

    Raises:
        ConfigError: another session trains there.
    """
    folder.mkdir(parents=True, exist_ok=True)
    file = (folder / "lock").open("ab")
    end = time.monotonic() + _ENDING_S
    while True:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() > end:
                file.close()
                raise ConfigError(
                    f"{folder} is being trained in by another process: wait for its end, or take "
                    "another --out"
                ) from None
            time.sleep(0.1)
        except OSError as error:
            if error.errno not in (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP):
                raise
            say(f"{folder}: its file system has no locks ({error.strerror}): train there once only")
            return file
        else:
            return file
