"""`matinee bench`: names, help, and one line for each bad input."""

import importlib
import inspect
import sys

import pytest

from matinee.cli import main
from matinee.cli.bench import BENCHMARKS


def test_the_list_names_every_benchmark(capsys):
    assert main(["bench", "--help"]) == 0
    said = capsys.readouterr().out
    assert all(name in said and what in said for name, what in BENCHMARKS.items())
    assert main(["bench"]) == 2


@pytest.mark.parametrize("name", BENCHMARKS)
def test_each_has_options_that_explain_themselves(name, capsys):
    """Every field has a docstring, which its help shows."""
    with pytest.raises(SystemExit) as end:
        main(["bench", name, "--help"])
    said = " ".join(capsys.readouterr().out.split())
    module = importlib.import_module(f"matinee.measure.bench.{name}")
    assert not end.value.code and "--out" in said and "--full" in said
    source = inspect.getsource(module.Options)
    for field in module.Options.__dataclass_fields__:
        assert '"""' in source.partition(f"    {field}: ")[2][:200], field


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (["nonsense"], "no benchmark 'nonsense'"),
        (["loader", "--data", "nowhere"], "nowhere is no pack"),
        (["loader", "--data", "x", "--clip", "16"], "--clip 16: say"),
        (["loader", "--data", "x", "--size", "7"], "--size 7: even"),
        (["loader", "--data", "x", "--decoders", "0"], "--decoders 0"),
        (["attention", "--tokens", "8"], "--tokens 8: two different"),
        (["attention", "--blocks", "1"], "--blocks 1"),
        (["attention", "--width", "10", "--heads", "3"], "heads divide the width"),
        (["models", "--networks", "tsmm"], "no network 'tsmm'"),
        (["models", "--networks", "resnet999:shift"], "resnet999"),
        (["models", "--precision", "fp8"], "--precision fp8"),
        (["models", "--networks", "tsm", "tsm"], "--networks"),
        (["models", "--batch", "0"], "--batch 0"),
        (["models", "--full", "--size", "96"], "--full takes 224², and --size 96"),
        (["scaling", "--ranks", "0"], "--ranks 0"),
        (["scaling", "--network", "tsmm"], "no network 'tsmm'"),
        (["scaling", "--steps", "0"], "--steps 0"),
        (["scaling", "--full", "--network", "tsm", "--batch", "2"], "--network tsm --batch 2 an"),
        (["ablation", "tsm", "--data", "x", "--full", "--epochs", "2"], "--epochs 2 others"),
        (["ablation", "tsm", "--data", "nowhere"], "nowhere is no pack"),
        (["scaling", "--device", "tpu"], "tpu"),
        (["allreduce", "--ranks", "1"], "--ranks 1"),
        (["allreduce", "--kib", "4"], "--kib 4"),
        (["io", "--path", "nowhere"], "nowhere: no such file"),
        (["io", "--path", ".", "--kib", "99999999"], "0 ranges"),
        (["io", "--path", ".", "--clip", "x"], "--clip x: say"),
        (["io", "--path", "ftp://host/x"], "packs open from"),
        (["io", "--path", ".", "--readers", "0"], "--readers 0"),
        (["io", "--path", ".", "--out", "/proc/version/x"], "/proc/version is a file"),
    ],
)
def test_bad_input_is_one_line_and_status_2(args, words, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main(["bench", *args]) == 2
    said = capsys.readouterr().err.strip()
    assert words in said and len(said.splitlines()) == 1, said
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    "args", [["bench", "io", "--path", "."], ["reproduce", "accelerating", "--cifar10", "."]]
)
def test_what_can_not_be_drawn_is_not_measured(args, tmp_path, monkeypatch, capsys):
    """Without matplotlib the command ends before it measures."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    monkeypatch.setattr(
        importlib.import_module("matinee.measure.bench.io"), "measure", lambda *a, **k: 1 / 0
    )
    monkeypatch.setattr(
        importlib.import_module("matinee.measure.reproduce.accelerating"), "reproduce",
        lambda *a, **k: 1 / 0,
    )  # fmt: skip
    assert main(args) == 2
    assert "matplotlib" in capsys.readouterr().err
