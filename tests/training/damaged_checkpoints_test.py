"""What is read when files are damaged, gone, or never were checkpoints."""

import os
import pickle
import re
import zipfile
from pathlib import Path

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from saves import assert_holds, everything, saved, state

from matinee.errors import MatineeError
from matinee.training.state import checkpoint_file
from matinee.training.state.checkpoints import Checkpoints


def flip(path: Path, place: int, bit: int = 3) -> None:
    data = bytearray(path.read_bytes())
    data[place] ^= 1 << bit
    path.write_bytes(data)


class Runs:
    """Unpickling it makes the file that it names."""

    def __init__(self, file: Path) -> None:
        self.file = file

    def __reduce__(self):
        return Path.touch, (self.file,)


def flipped(path: Path) -> None:
    """In the middle of a tensor: torch itself reads it without a word."""
    place = path.read_bytes().index(torch.arange(1000.0).mul(3).numpy().tobytes()) + 2000
    flip(path, place)
    assert not torch.equal(
        torch.load(path, weights_only=True)["state"]["model"]["weight"], torch.arange(1000.0) * 3
    )


def truncated(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:1000])


def emptied(path: Path) -> None:
    path.write_bytes(b"")


def folder_instead(path: Path) -> None:
    path.unlink()
    path.mkdir()


def pickled_code(path: Path) -> None:
    path.write_bytes(pickle.dumps(Runs(path.parent / "executed")))


def code_in_an_archive(path: Path) -> None:
    torch.save({"state": {"step": 3}, "vocabulary": Runs(path.parent / "executed")}, path)


def other_content(path: Path) -> None:
    torch.save({"weights": torch.zeros(3)}, path)


def other_archive(path: Path) -> None:
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("a.txt", "text")


DAMAGES = {
    flipped: "checksum of .* differs",
    truncated: "not a zip file",
    emptied: "not a zip file",
    folder_instead: "it is a folder",
    pickled_code: "not a zip file",
    code_in_an_archive: "Weights only load failed",
    other_content: "no checkpoint of matinee",
    other_archive: "",
}


@pytest.mark.parametrize("damage", DAMAGES, ids=lambda damage: damage.__name__)
def test_a_damaged_checkpoint_gives_way_to_the_one_before_aloud(tmp_path, damage):
    """File, reason and the step that is used are told; no code is run, nothing is changed."""
    checkpoints = saved(tmp_path, 1, 2, 3)
    damage(checkpoints.file(3))
    before = everything(tmp_path)
    found, notes = checkpoints.load()
    assert_holds(found, 2)
    (note,) = notes
    assert note.startswith(f"{checkpoints.file(3)} is damaged (")
    assert f"step 2 ({checkpoints.file(2)}) is used instead" in note
    assert re.search(DAMAGES[damage], note)
    assert everything(tmp_path) == before
    assert not (checkpoints.folder / "executed").exists()


@settings(max_examples=100, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.floats(0, 1, exclude_max=True), st.integers(0, 7))
def test_any_flipped_bit_is_noticed_or_harmless(tmp_path, place, bit):
    """Anywhere in the file, headers and padding included: never other numbers without a word."""
    if not (tmp_path / "checkpoints").exists():
        saved(tmp_path, 2, 3)
    checkpoints = Checkpoints(tmp_path)
    file = checkpoints.file(3)
    good = file.read_bytes()
    try:
        flip(file, int(place * len(good)), bit)
        found, notes = checkpoints.load()
        assert_holds(found, 2 if notes else 3)
    finally:
        file.write_bytes(good)


def test_several_damaged_checkpoints_are_all_named(tmp_path):
    checkpoints = saved(tmp_path, 1, 2, 3)
    emptied(checkpoints.file(3))
    truncated(checkpoints.file(2))
    found, notes = checkpoints.load()
    assert_holds(found, 1)
    assert [note.split(" is damaged")[0] for note in notes] == [
        str(checkpoints.file(3)),
        str(checkpoints.file(2)),
    ]
    emptied(checkpoints.file(1))
    with pytest.raises(MatineeError, match="no other checkpoint: put a copy back") as error:
        checkpoints.load()
    assert all(str(checkpoints.file(step)) in str(error.value) for step in (1, 2, 3))


def test_a_damaged_checkpoint_goes_with_the_next_save(tmp_path):
    """Else it would be the newest for ever: training went on from the one before it."""
    checkpoints = saved(tmp_path, 1, 2)
    checkpoints.save(state(3), 3, best=True, wait=True)
    flipped(checkpoints.file(3))
    again = Checkpoints(tmp_path, keep=10)
    found, notes = again.load()
    assert_holds(found, 2)
    again.begin(2)
    assert_holds(torch.load(again.last_file, weights_only=True), 2)
    assert len(notes) == len(again.load()[1]) == 1
    again.save(state(2), 2, wait=True)
    assert again.steps() == [1, 2] and again.load()[1] == []
    assert not os.path.lexists(again.best_file)


@pytest.mark.parametrize("target", [None, "nowhere.pt", "last.pt", "checkpoints/step-00000001.pt"])
def test_a_wrong_link_is_mended_from_the_folder(tmp_path, target):
    """Readers go by the folder; the next training sets the link."""
    checkpoints = saved(tmp_path, 1, 2)
    checkpoints.last_file.unlink()
    if target is not None:
        checkpoints.last_file.symlink_to(target)
    assert checkpoints.step() == 2
    assert_holds(checkpoints.load()[0], 2)
    checkpoints.begin(2, best=1)
    assert_holds(torch.load(checkpoints.last_file, weights_only=True), 2)
    assert_holds(checkpoints.load("best")[0], 1)
    assert checkpoints.last_file.readlink() == Path("checkpoints/step-00000002.pt")


def test_checkpoints_that_were_taken_away_are_no_fresh_run(tmp_path):
    checkpoints = saved(tmp_path, 1)
    checkpoints.file(1).unlink()
    for read in (checkpoints.load, checkpoints.step):
        with pytest.raises(MatineeError, match=r"last\.pt leads to checkpoints/.*, which is gone"):
            read()


def test_nothing_saved_yet(tmp_path):
    checkpoints = Checkpoints(tmp_path / "run")
    assert checkpoints.step() is None and checkpoints.best_step() is None
    with pytest.raises(MatineeError, match="no checkpoint yet"):
        checkpoints.load()
    with pytest.raises(MatineeError, match=r"no best\.pt"):
        checkpoints.load("best")


def test_nothing_stands_in_for_the_best(tmp_path):
    checkpoints = saved(tmp_path)
    checkpoints.save(state(3), 3, best=True, wait=True)
    checkpoints.save(state(4), 4, wait=True)
    flipped(checkpoints.file(3))
    with pytest.raises(MatineeError, match=r"best\.pt is damaged: .*checksum.*take last\.pt"):
        checkpoints.load("best")


def test_reading_while_a_training_removes_files(tmp_path, monkeypatch):
    """Between the listing and the reading, the newest is replaced by a newer one."""
    checkpoints = saved(tmp_path, 1, keep=1)
    read = checkpoint_file.read_checkpoint

    def late(path):
        if checkpoints.steps() == [1]:
            checkpoints.save(state(2), 2, wait=True)
        return read(path)

    monkeypatch.setattr("matinee.training.state.checkpoints.read_checkpoint", late)
    found, notes = Checkpoints(tmp_path).load()
    assert_holds(found, 2)
    assert notes == []
