"""The steps of gpu_check.sh: each in a process of its own with a limit of time, all in one JSON.

`--device cpu --small` goes through the same steps on a machine without GPU, to check the script.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

TOTAL_S = 470
ROOT = Path(__file__).resolve().parents[1]
TASKS = {
    "classification": ["tsm", "--speed.precision", "bf16"],
    "classification fp16": ["tsm", "--speed.precision", "fp16"],
    "contrastive": ["clip_ego4d", "--speed.precision", "bf16"],
    "masked": ["videomae_kinetics", "--speed.precision", "bf16"],
}
PACK = """
import sys
from pathlib import Path
from matinee.demo.combinations import write_combinations
from matinee.pack.annotations import read_table
from matinee.pack.profiles import make_profile
from matinee.pack.writing.writer import write_pack
folder = Path(sys.argv[1])
labels = write_combinations(folder / "clips", copies=1, held_out=16)
write_pack(folder / "clips.pack", read_table(labels, folder / "clips"), make_profile("layered"))
"""
MACHINE = """
import json, torch
names = [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())]
print(json.dumps({"torch": torch.__version__, "cuda": torch.version.cuda, "gpus": names}))
"""


class Check:
    """Runs steps one after the other and keeps what they said."""

    def __init__(self, file: Path) -> None:
        self.file, self.begin = file, time.monotonic()
        self.content: dict[str, Any] = {"steps": []}

    def step(self, name: str, *command: str, limit_s: float) -> bool:
        """Run a step unless the time is over; whether it ended well."""
        left = TOTAL_S - (time.monotonic() - self.begin)
        if left < 5:
            self._note(name, "left out", 0.0, f"{TOTAL_S} s are over")
            return False
        print(f"{name} …", flush=True)
        begin = time.monotonic()
        try:
            done = subprocess.run(
                command, cwd=ROOT, capture_output=True, text=True, check=False,
                timeout=min(limit_s, left),
            )  # fmt: skip
            status = "passed" if done.returncode == 0 else f"status {done.returncode}"
            said = done.stdout + done.stderr
        except subprocess.TimeoutExpired as over:
            status, said = "too slow", str(over.stdout or "")
        self._note(name, status, time.monotonic() - begin, said[-3000:])
        return status == "passed"

    def _note(self, name: str, status: str, seconds: float, said: str) -> None:
        entry = {"step": name, "status": status, "seconds": round(seconds, 1), "said": said}
        self.content["steps"].append(entry)
        print(f"{name}: {status}, {seconds:.0f} s", flush=True)
        if status != "passed":
            print(said[-800:], flush=True)
        self.write()

    def write(self) -> None:
        self.file.write_text(json.dumps(self.content, indent=1) + "\n")


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--json", type=Path, default=Path("gpu_check.json"))
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--small", action="store_true")
    options = parser.parse_args()
    check, python = Check(options.json.resolve()), sys.executable
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        if check.step("machine", python, "-c", MACHINE, limit_s=60):
            check.content |= json.loads(check.content["steps"][0]["said"].splitlines()[0])
        if options.device == "cuda" and not check.content.get("gpus"):
            print("torch sees no GPU here", file=sys.stderr)
            return 2
        pytest = [python, "-m", "pytest", "-q", "-m", "gpu", "-p", "no:cacheprovider"]
        waiting = "tests/training/no_waiting_test.py"
        check.step("no step waits", *pytest, waiting, limit_s=90)
        check.step("tests", *pytest, "--ignore", waiting, limit_s=120)
        if check.step("pack", python, "-c", PACK, str(folder), limit_s=60):
            for task, (recipe, *flags) in TASKS.items():
                out = folder / task.replace(" ", "-")
                ok = check.step(
                    f"train {task}", python, "-m", "matinee", "train", recipe, "--tiny",
                    "--data", str(folder / "clips.pack"), "--out", str(out),
                    "--run.device", options.device, *flags, limit_s=60,
                )  # fmt: skip
                if ok:
                    check.content.setdefault("runs", {})[task] = last_rows(out)
        table = folder / "throughput.json"
        small = ["--small", "--steps", "2", "--rounds", "2"] if options.small else []
        check.step(
            "throughput", python, "benchmarks/gpu_throughput.py", "--device", options.device,
            "--json", str(table), "--seconds", "200", *small, limit_s=260,
        )  # fmt: skip
        if table.exists():
            check.content["throughput"] = json.loads(table.read_text())
    check.content["seconds"] = round(time.monotonic() - check.begin, 1)
    check.write()
    failed = [s["step"] for s in check.content["steps"] if s["status"] != "passed"]
    print(f"{len(failed)} steps did not pass: {', '.join(failed)}" if failed else "all passed")
    return 1 if failed else 0


def last_rows(out: Path) -> dict[str, Any]:
    """The last line of training and of validation of a run."""
    rows = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    return {row["kind"]: row for row in rows}


if __name__ == "__main__":
    sys.exit(main())
