"""Full disks, simulated by the system's own limit on the size of a file."""

import subprocess
import sys
from pathlib import Path

import pytest

from matinee.errors import ConfigError
from matinee.files import write_whole

LIMITED = (
    "import resource, signal, sys\n"
    "signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
    "resource.setrlimit(resource.RLIMIT_FSIZE, (20000, 20000))\n"
)


def test_a_failed_write_keeps_the_old_file_and_leaves_nothing_beside(tmp_path):
    """And its error names the file."""
    path = tmp_path / "a.bin"
    write_whole(path, b"old")
    code = LIMITED + (
        "from pathlib import Path\nfrom matinee.files import write_whole\n"
        "try:\n    write_whole(Path(sys.argv[1]), bytes(100000))\n"
        "except OSError as error:\n    print(error.filename, error.strerror)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(path)], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == f"{path} File too large"
    assert path.read_bytes() == b"old" and list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("what", ["train", "sheet"])
def test_a_command_that_cannot_write_says_where_in_one_line(clips_pack, tmp_path, what):
    """A checkpoint and a contact sheet that do not fit."""
    args = {
        "train": ["train", "tsm", "--data", str(clips_pack), "--out", str(tmp_path / "run"),
                  "--model.backbone", "resnet10t", "--clip.size", "32", "--clip.frames", "2",
                  "--optim.batch-size", "4", "--optim.epochs", "1", "--progress", "none",
                  "--data.mode", "threads"],
        "sheet": ["info", str(clips_pack), "--sheet", str(tmp_path / "sheet.png")],
    }[what]  # fmt: skip
    code = LIMITED + f"from matinee.cli import main\nsys.exit(main({args!r}))\n"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    file = {
        "train": tmp_path / "run" / "checkpoints" / "step-00000003.pt",
        "sheet": tmp_path / "sheet.png",
    }[what]
    more = {
        "train": ": the checkpoint of step 3 could not be saved; there is no other: make room, or "
        "mend the folder, and go on with --resume",
        "sheet": "",
    }[what]
    assert done.returncode == 2, done.stderr
    assert done.stderr.strip() == f"matinee {args[0]}: {file}: File too large{more}"
    assert not list(tmp_path.rglob("*.tmp"))


def test_a_contact_sheet_of_another_kind_is_refused(clips_pack, tmp_path):
    """Before anything is drawn."""
    from matinee.measure.sheet import contact_sheet
    from matinee.pack.reading.reader import Pack

    for name in ("sheet.xyz", "sheet"):
        with pytest.raises(ConfigError, match=r"\.png or \.svg"):
            contact_sheet(Pack(clips_pack), Path(tmp_path / name))
    assert not list(tmp_path.iterdir())
