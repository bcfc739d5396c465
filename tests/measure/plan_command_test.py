"""`matinee plan`, as it is called."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from matinee.cli import main

HEADINGS = (
    "Memory of a GPU",
    "A step",
    "Cores, storage, bandwidth",
    "Hours and money",
    "If a number were different",
    "More GPUs",
    "What is taken for granted",
)
SMALL = ("plan", "tsm", "--tiny", "--samples", "4k")


def planned(capsys: pytest.CaptureFixture[str], *args: str) -> dict[str, object]:
    capsys.readouterr()
    assert main([*SMALL, *args, "--json", "-"]) == 0
    found: dict[str, object] = json.loads(capsys.readouterr().out)
    return found


def refused(capsys: pytest.CaptureFixture[str], *args: str) -> str:
    capsys.readouterr()
    assert main(list(args)) == 2
    told = capsys.readouterr().err
    assert told.count("\n") == 1 and told.startswith("matinee plan: ")
    return told


def test_a_plan_tells_memory_time_cores_storage_hours_and_money(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main([*SMALL, "--hours", "10", "--gpus", "2x4090", "--price", "0.5"]) == 0
    told = capsys.readouterr().out
    for heading in HEADINGS:
        assert heading in told
    assert "cores for decoding" in told and "10,000" in told and "--assume.busy" in told


def test_numbers_follow_from_each_other(capsys: pytest.CaptureFixture[str]) -> None:
    plan = planned(
        capsys, "--gpus", "2xA5000", "--hours", "10", "--price", "2", "--optim.epochs", "3"
    )
    stage = plan["stages"][0]  # type: ignore[index]
    assert stage["steps"] == 3 * (4000 // 4)
    parts = ("compute", "loader", "straggler", "exposed")
    step = sum(stage["step"][part] for part in parts)
    assert plan["hours"] == pytest.approx(stage["steps"] * step / 3600)
    assert plan["gpu_hours"] == pytest.approx(2 * plan["hours"])  # type: ignore[operator]
    assert plan["money"] == pytest.approx(2 * plan["gpu_hours"])  # type: ignore[operator]
    data = plan["data"]
    assert data["stored"] == pytest.approx(  # type: ignore[index]
        10 * 3600 * 30 * data["bytes_per_frame"]  # type: ignore[index]
    )


def test_too_few_cores_set_the_pace(capsys: pytest.CaptureFixture[str]) -> None:
    free = planned(capsys, "--gpus", "H200")
    few = planned(capsys, "--gpus", "H200", "--cores", "0.01")
    needed = free["data"]["cores_needed"]  # type: ignore[index]
    assert few["binds"] == "loader" and needed > 0.01
    slow = planned(capsys, "--gpus", "H200", "--disk-gb-s", "1e-6")
    assert slow["binds"] == "storage"


def test_stages_are_planned_one_by_one(capsys: pytest.CaptureFixture[str]) -> None:
    plan = planned(capsys, "--optim.epochs", "2", "--speed.stages", "0.5=2x32@8")
    first, last = plan["stages"]  # type: ignore[misc]
    assert (first["frames"], first["batch"], first["steps"]) == (2, 8, 500)
    assert last["steps"] == 1000
    assert plan["hours"] == pytest.approx(first["hours"] + last["hours"])


def test_shorter_clips_of_early_stages_are_decoded_read_and_sent_as_such(
    capsys: pytest.CaptureFixture[str],
) -> None:
    flags = ("--gpus", "H200", "--optim.epochs", "2", "--speed.stages", "0.5=2x32")
    whole = ("--gpus", "H200", "--optim.epochs", "2", "--clip.frames", "2", "--clip.size", "32")
    for few in (("--cores", "0.01"), ("--disk-gb-s", "1e-6")):
        first, last = planned(capsys, *flags, *few)["stages"]  # type: ignore[misc]
        (short,) = planned(capsys, *whole, *few)["stages"]  # type: ignore[misc]
        assert first["step"]["loader"] > 0 and first["step"]["rate"] > last["step"]["rate"]
        assert first["step"]["rate"] == pytest.approx(short["step"]["rate"])


def test_assumptions_and_cards_of_ones_own_count(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    usual = planned(capsys, "--gpus", "4xA5000")
    busier = planned(capsys, "--gpus", "4xA5000", "--assume.busy", "1")
    assert busier["hours"] < usual["hours"]  # type: ignore[operator]
    uneven = planned(capsys, "--gpus", "4xA5000", "--jitter", "lognormal:0.3")
    assert uneven["hours"] > usual["hours"]  # type: ignore[operator]
    own = tmp_path / "cards.toml"
    own.write_text('["A5000"]\nreaches = 0.1\nmemory_gb_s = 50\n')
    slower = planned(capsys, "--gpus", "4xA5000", "--cards", str(own))
    assert slower["hours"] > usual["hours"]  # type: ignore[operator]


def test_a_folder_gets_page_plots_and_numbers(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    assert main([*SMALL, "--out", str(tmp_path)]) == 0
    names = {path.name for path in tmp_path.iterdir()}
    assert {"plan.html", "plan.json", "plan-scaling-speed.svg", "plan-scaling-efficiency.png",
            "plan-scaling-parts.svg", "plan-step-parts.svg"} <= names  # fmt: skip
    assert json.loads((tmp_path / "plan.json").read_text())["scaling"]


def test_cards_are_listed_with_their_sources(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", "cards"]) == 0
    told = capsys.readouterr().out
    assert "A100-80GB" in told and "data sheet" in told
    assert main(["plan", "cards", "--json", "-"]) == 0
    assert json.loads(capsys.readouterr().out)["H200"]["memory_rate"] == 4.8e12


@pytest.mark.parametrize(
    ("args", "told"),
    [(("plan", "tsm"), "give --data PACK, or --samples"),
     (("plan", "nothing", "--samples", "1k"), "no recipe 'nothing'"),
     ((*SMALL, "--gpus", "8xA5001"), "did you mean A5000"),
     ((*SMALL, "--samples", "many"), "--samples 'many'"),
     ((*SMALL, "--samples", "0"), "at least 1"),
     ((*SMALL, "--samples", "3"), "fewer than one batch"),
     ((*SMALL, "--hours", "-1"), "--hours -1"),
     ((*SMALL, "--fps", "0"), "--fps 0"),
     ((*SMALL, "--price", "0"), "--price 0"),
     ((*SMALL, "--jitter", "none.json"), "none.json"),
     ((*SMALL, "--jitter", "lognormal:9"), "at most 2"),
     ((*SMALL, "--all-reduce", "none.json"), "none.json"),
     ((*SMALL, "--cards", "none.toml"), "none.toml"),
     ((*SMALL, "--gpus-per-node", "0"), "--gpus-per-node 0"),
     ((*SMALL, "--gpus", "V100", "--speed.precision", "bf16"), "no bf16 units"),
     ((*SMALL, "--assume.busy", "2"), "--assume.busy 2"),
     ((*SMALL, "--data", "my.pack"), "--samples: for data without a pack"),
     (("plan", "tsm", "--data", "my.pack", "--fps", "25", "--profile", "small", "--height", "200",
       "--classes", "4"), "--fps, --profile, --height, --classes: for data without a pack")],
)  # fmt: skip
def test_what_cannot_be_planned_is_refused_in_a_line(
    capsys: pytest.CaptureFixture[str], args: tuple[str, ...], told: str
) -> None:
    assert told in refused(capsys, *args)
