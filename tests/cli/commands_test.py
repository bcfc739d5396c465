"""The command line: the README's commands, and one clear line for each bad input."""

import json
import os
import signal
import subprocess
import sys
import time

import pytest

from matinee.cli import COMMANDS, main

TINY = [
    "--model.backbone",
    "resnet10t",
    "--clip.size",
    "32",
    "--clip.frames",
    "4",
    "--optim.batch-size",
    "4",
    "--optim.epochs",
    "1",
    "--data.workers",
    "1",
    "--progress",
    "none",
]


def matinee(*args, check=True, **more):
    """A real process; returns (status, stdout, stderr)."""
    done = subprocess.run(
        [sys.executable, "-m", "matinee", *map(str, args)], capture_output=True, text=True,
        check=False, **more,
    )  # fmt: skip
    if check:
        assert done.returncode == 0, done.stderr
    return done.returncode, done.stdout, done.stderr


def one_line(text):
    assert len(text.strip().splitlines()) == 1 and "Traceback" not in text, text
    return text.strip()


@pytest.fixture(scope="module")
def clips(film, tmp_path_factory):
    """Two classes of three short films."""
    root = tmp_path_factory.mktemp("cli") / "clips"
    for label in ("a", "b"):
        for i in range(5):
            film(root / label / f"{i}.mp4", frames=24, size=(64, 48), seed=i)
    return root


def test_the_readme_from_folder_to_prediction(clips, tmp_path):
    """pack, info, train, eval, predict, report, each as its own process."""
    run = lambda *args: matinee(*args, cwd=tmp_path)[1]  # noqa: E731
    assert "10 samples of 10 videos" in run("pack", clips, "--out", "my.pack")
    said = run("info", "my.pack", "--sheet", "sheet.png", "--json", "info.json")
    assert "10 samples" in said and (tmp_path / "sheet.png").stat().st_size > 5000
    facts = json.loads((tmp_path / "info.json").read_text())
    assert facts["splits"] == {"train": 8, "val": 2}
    said = run("train", "tsm", "--data", "my.pack", "--out", "runs/a", *TINY)
    assert "report: runs/a/report.html" in said
    page = tmp_path / "runs" / "a" / "report.html"
    assert "<html" in page.read_text()
    page.unlink()
    run("eval", "runs/a", "--views", "3x1", "--json", "eval.json")
    report = json.loads((tmp_path / "eval.json").read_text())
    assert report["samples"] == 2 and set(report["per_class"]) == {"a", "b"}
    said = run("predict", "runs/a", clips / "a" / "0.mp4", "--json", "-")
    assert len(json.loads(said)[0]["classes"]) == 2
    run("report", "runs/a")
    assert "<html" in page.read_text()


def test_help_needs_no_heavy_import():
    """Neither torch nor av nor pyarrow nor rich."""
    code = (
        "import sys\nfrom matinee.cli import main\nassert main(['--help']) == 0\n"
        "heavy = {'torch', 'av', 'pyarrow', 'numpy', 'rich', 'tyro'} & set(sys.modules)\n"
        "assert not heavy, heavy"
    )
    subprocess.run([sys.executable, "-c", code], check=True, capture_output=True)


@pytest.mark.parametrize("name", list(COMMANDS))
def test_every_command_explains_itself(name, capsys):
    """--help exits 0 and says more than the names of options."""
    try:
        status = main([name, "--help"])
    except SystemExit as end:
        status = end.code
    assert not status and len(capsys.readouterr().out.split()) > 30


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (["nonsense"], "no command 'nonsense'"),
        (["info", "nowhere"], "nowhere is no pack"),
        (["train", "tsmm", "--data", "x"], "no recipe 'tsmm'"),
        (["train", "tsm", "--data", "nowhere", "--out", "r"], "nowhere is no pack"),
        (["train", "tsm", "--data", "x", "--out", "r", "--clip.frames", "0"], "--clip.frames 0"),
        (["eval", "nowhere"], "nowhere is no run"),
        (["eval", "nowhere", "--views", "3"], "TEMPORALxSPATIAL"),
        (["predict", "nowhere", "x.mp4"], "nowhere is no run"),
        (["report", "nowhere"], "nowhere"),
        (["pack", "nowhere", "--out", "p"], "nowhere: no such folder"),
        (["pack", ".", "--out", "p", "--labels", "gone.csv"], "gone.csv: no such file"),
        (["pack", ".", "--out", "p", "--crf", "99"], "crf 99"),
        (["train", "tsm", "--data", "x", "--out", "r", "--run.device", "tpu9"], "--run.device"),
    ],
)
def test_bad_input_is_one_line_and_status_2(args, words, tmp_path):
    """On standard error, without a traceback."""
    status, _, err = matinee(*args, check=False, cwd=tmp_path)
    assert status == 2 and words in one_line(err)


def test_debug_shows_the_traceback(tmp_path):
    """For whoever wants to know where."""
    status, _, err = matinee("info", tmp_path / "x", "--debug", check=False)
    assert status == 1 and "Traceback" in err and "is no pack" in err


def test_refused_files_give_status_1_unless_skipped(film, tmp_path):
    """Listed with their reasons either way."""
    for label in ("a", "b"):
        film(tmp_path / "clips" / label / "ok.mp4", frames=10)
    (tmp_path / "clips" / "a" / "empty.mp4").touch()
    (tmp_path / "clips" / "a" / "notes.txt").write_text("beside")
    status, out, _ = matinee("pack", tmp_path / "clips", "--out", tmp_path / "p", check=False)
    assert status == 1 and "1 refused" in out and "is empty (0 bytes)" in out
    rows = (tmp_path / "p" / "failures.csv").read_text()
    assert "empty.mp4,refused,is empty (0 bytes)" in rows and "notes.txt,ignored" in rows
    status, _, _ = matinee("pack", tmp_path / "clips", "--out", tmp_path / "p", "--skip-bad")
    assert status == 0


@pytest.mark.parametrize("name", ["SIGINT", "SIGTERM"])
def test_a_signal_saves_the_run_and_resume_ends_it(clips, tmp_path, name):
    """128 + signal, and the line says how to go on."""
    matinee("pack", clips, "--out", tmp_path / "my.pack")
    command = [sys.executable, "-m", "matinee", "train", "tsm", "--data", tmp_path / "my.pack",
               "--out", tmp_path / "run", *TINY, "--optim.epochs", "400"]  # fmt: skip
    child = subprocess.Popen(
        [str(part) for part in command], stderr=subprocess.PIPE, text=True, start_new_session=True
    )
    deadline = time.monotonic() + 120
    while not (tmp_path / "run" / "last.pt").exists():
        assert time.monotonic() < deadline and child.poll() is None
        time.sleep(0.05)
    os.killpg(child.pid, getattr(signal, name))
    _, err = child.communicate(timeout=60)
    assert child.returncode == 128 + getattr(signal, name), err
    assert f"stopped by {name} after step" in err and "--resume" in err
    assert (tmp_path / "run" / "last.pt").exists()


def test_a_missing_extra_is_one_line_with_the_install_command(clips, tmp_path):
    """timm hidden by an empty module path hook."""
    matinee("pack", clips, "--out", tmp_path / "my.pack")
    code = (
        "import sys; sys.modules['timm'] = None\n"
        "from matinee.cli import main\n"
        f"sys.exit(main(['train', 'tsm', '--data', {str(tmp_path / 'my.pack')!r}, '--out', "
        f"{str(tmp_path / 'run')!r}, '--progress', 'none']))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "pip install 'matinee[train]'" in one_line(done.stderr)
    assert not (tmp_path / "run").exists()
