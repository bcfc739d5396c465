"""Mutated tables, packets and files: refused or read, never a crash, a hang or a stray write.

MATINEE_FUZZ=10000 sets how many of each kind; a failure names its case, which
`python tests/media/fuzz_cases.py KIND FOLDER NUMBER 1` runs again.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from hostile import how_many, survive

X265 = {"preset": "ultrafast", "x265-params": "keyint=6:log-level=none:pools=none"}
VP9 = {"deadline": "realtime", "cpu-used": "8", "g": "6"}
# file → encoder, options
FILMS = {
    "a.mp4": ("libx264", {"preset": "veryfast", "g": "6"}),
    "b.mp4": ("libx264", {"preset": "medium", "g": "6", "bf": "3"}),
    "c.mkv": ("libx264", {"preset": "veryfast", "g": "6"}),
    "d.ts": ("libx264", {"preset": "veryfast", "g": "6"}),
    "e.avi": ("mpeg4", {"g": "6"}),
    "f.mov": ("libx265", X265),
    "g.webm": ("libvpx-vp9", VP9),
    "h.mkv": ("libvpx", VP9),
    "i.avi": ("mjpeg", {}),
    "j.flv": ("libx264", {"preset": "veryfast", "g": "6"}),
    "k.mp4": ("libsvtav1", {"preset": "12"}),
    "l.mpg": ("mpeg2video", {"g": "6", "bf": "2"}),
}


@pytest.fixture(scope="module")
def films(tmp_path_factory, film) -> Path:
    folder = tmp_path_factory.mktemp("films")
    for name, (codec, options) in FILMS.items():
        pix_fmt = "yuvj420p" if codec == "mjpeg" else "yuv420p"
        film(folder / name, frames=12, size=(64, 64), codec=codec, options=options, pix_fmt=pix_fmt)
    film(
        folder / "m.mp4", frames=12, size=(64, 64),
        container={"movflags": "frag_keyframe+empty_moov+default_base_moof"},
    )  # fmt: skip
    return folder


def test_mutated_packet_tables_are_refused_or_safe_to_use(films):
    """What is accepted points into the file and nowhere else."""
    outcome = survive("tables", films, how_many(10_000))
    assert 0 < outcome.accepted < outcome.run


def test_mutated_packets_decode_or_are_refused(films):
    """Of eight codecs, with checksums that fit; nothing is written beside the rows."""
    outcome = survive("packets", films, how_many(1000))
    assert outcome.accepted < outcome.run


def test_mutated_files_are_read_or_refused(films):
    """Of six containers, headers above all: in bounded time and memory."""
    outcome = survive("files", films, how_many(400))
    assert outcome.accepted < outcome.run and outcome.peak_mb < 2000


def test_a_case_that_ends_its_process_is_found(films, monkeypatch, tmp_path):
    """The watch itself: a signal, a hang and a stray exception each name their case."""
    import hostile

    script = tmp_path / "cases.py"
    monkeypatch.setattr(hostile, "CASES", script)
    monkeypatch.setattr(hostile, "STILL", 1)
    for body, words in (
        ("os.kill(os.getpid(), 11)", "case 5 ended the process .signal 11"),
        ("raise KeyError('x')", "case 5 ended the process .status 1.*\n.*KeyError"),
        ("import time; time.sleep(60)", "case 5 hangs"),
    ):
        script.write_text(f"import os\nos.write(1, b'4\\n5\\n')\n{body}\n")
        with pytest.raises(AssertionError, match=f"(?s){words}"):
            survive("any", films, 10)
