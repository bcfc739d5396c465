"""A folder is trained in by one session at a time."""

import subprocess
import sys

import pytest

from matinee.errors import ConfigError
from matinee.training.state import lock
from matinee.training.state.lock import lock_folder

HOLD = (
    "import sys, time\nfrom pathlib import Path\n"
    "from matinee.training.state.lock import lock_folder\n"
    "held = lock_folder(Path(sys.argv[1]), print)\nprint('held', flush=True)\ntime.sleep(100)\n"
)


def test_a_second_session_is_refused_until_the_first_has_ended(tmp_path, monkeypatch):
    """Even by SIGKILL, which leaves the file there."""
    monkeypatch.setattr(lock, "_ENDING_S", 0.3)
    command = [sys.executable, "-c", HOLD, str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as other:
        assert other.stdout is not None and other.stdout.readline() == "held\n"
        with pytest.raises(ConfigError, match="is being trained in by another process"):
            lock_folder(tmp_path, print)
        other.kill()
        other.wait()
        lock_folder(tmp_path, print).close()
    first = lock_folder(tmp_path, print)
    with pytest.raises(ConfigError, match="another --out"):
        lock_folder(tmp_path, print)
    first.close()
    lock_folder(tmp_path, print).close()
