"""Following a stream frame by frame, against the same frames read and classified offline."""

import json
from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest
import torch

from matinee.cli import main
from matinee.data.clips import View, plan_evaluation_clip
from matinee.data.device import after, color_change, to_video
from matinee.errors import ConfigError, MatineeError
from matinee.inference.live import live, summarise
from matinee.inference.load import load_run
from matinee.media.color import ycbcr_to_rgb
from matinee.models.live import causal_logits
from matinee.pack.annotations import Annotations, Sample, VideoFile
from matinee.pack.reading.reader import Pack
from matinee.pack.writing.index import index_videos


@pytest.fixture(scope="module")
def clip(film, tmp_path_factory):
    """41 frames, 25 a second, wider than high."""
    return film(tmp_path_factory.mktemp("live") / "clip.mp4", frames=41, size=(96, 64))


@pytest.fixture(scope="module")
def loaded(causal_run):
    return load_run(causal_run, device="cpu")


def offline(run, file, frames, folder):
    """float32 [1, 3, T, H, W]: the file indexed, and read as a pack."""
    one = Annotations((VideoFile("v", file),), (Sample("v", "v"),))
    index_videos(folder / "one.pack", one)
    pack, spec = Pack(folder / "one.pack"), run.config.clip
    info = pack.info(0)
    plan = plan_evaluation_clip(info, spec, View())
    size = (spec.size, spec.size)
    i420 = pack.read(0, frames, size=size, box=plan.box, pixels="i420")
    fmt = pack.formats[info.codec]
    affine = after(ycbcr_to_rgb(fmt.matrix, fmt.full_range), color_change(plan.color))
    return to_video(
        torch.from_numpy(i420)[None], torch.from_numpy(affine[None].astype(np.float32)), None,
        size=size, mean=run.normalisation.mean, std=run.normalisation.std,
    )  # fmt: skip


def test_each_frames_logits_are_those_of_the_offline_causal_network(loaded, clip, tmp_path):
    """Every third frame, as the run was trained; labels by the mean over the clip's length."""
    video = live(loaded, str(clip))
    frames = list(video)
    wanted = causal_logits(
        loaded.task.model.backbone, offline(loaded, clip, range(0, 41, 3), tmp_path)
    )[0]
    assert (video.every, video.interval) == (3, pytest.approx(0.12)) and "stride 3" in video.why
    assert len(frames) == 14
    np.testing.assert_allclose(np.stack([f.logits for f in frames]), wanted.numpy(), atol=1e-5)
    np.testing.assert_allclose([f.seconds for f in frames], np.arange(14) * 0.12, atol=1e-6)
    for i, frame in enumerate(frames):
        mean = wanted[max(0, i - 3) : i + 1].mean(dim=0).softmax(dim=0)
        assert frame.label == loaded.vocabulary.classes[int(mean.argmax())]
        assert frame.probability == pytest.approx(float(mean.max()), abs=1e-5)
        assert frame.milliseconds > 0


def test_differences_and_grey_are_made_as_in_evaluation(loaded, clip, tmp_path):
    """The first frame has none before it, so there is one prediction less."""
    spec = replace(loaded.config.clip, modality="difference", grayscale=1.0)
    run = replace(loaded, config=replace(loaded.config, clip=spec))
    frames = list(live(run, str(clip), every=5))
    pixels = offline(run, clip, range(0, 41, 5), tmp_path)
    wanted = causal_logits(run.task.model.backbone, pixels[:, :, 1:] - pixels[:, :, :-1])[0]
    assert len(frames) == 8
    np.testing.assert_allclose(np.stack([f.logits for f in frames]), wanted.numpy(), atol=1e-5)


def test_the_pace_of_uniform_sampling_is_that_of_the_training_samples(loaded, clip, clips_pack):
    """Median length over frames a clip, in seconds, at the stream's own rate."""
    spec = replace(loaded.config.clip, sampling="uniform")
    run = replace(loaded, config=replace(loaded.config, clip=spec))
    pack = Pack(clips_pack)
    seconds = [pack.info(row).num_frames / 25 for row in pack.select("train")]
    video = live(run, str(clip))
    assert video.every == round(np.median(seconds) / 4 * 25) and "median length" in video.why
    gone = replace(run.config, data=replace(run.config.data, path="gone.pack"))
    with pytest.raises(ConfigError, match=r"gone.pack is no pack.*: say with --every N"):
        live(replace(run, config=gone), str(clip))
    assert live(replace(run, config=gone), str(clip), every=2).why == "as asked"


def test_an_address_gives_what_its_file_gives(loaded, clip):
    """Opened as a stream, of which nothing is known before its first frame."""
    frames, wanted = list(live(loaded, f"file://{clip}")), list(live(loaded, str(clip)))
    assert [f.seconds for f in frames] == [f.seconds for f in wanted]
    assert all(np.array_equal(f.logits, w.logits) for f, w in zip(frames, wanted, strict=True))


def test_damage_ends_a_file_with_its_time(loaded, film, tmp_path, capsys):
    """What came before it was predicted."""
    path = film(tmp_path / "bad.mp4", frames=120, size=(96, 64), options={"g": "10"})
    data = bytearray(path.read_bytes())
    middle = len(data) * 6 // 10
    data[middle : middle + 400] = bytes(400)
    path.write_bytes(data)
    seen = []
    with pytest.raises(MatineeError, match=r"bad.mp4 is damaged or broke off after [\d.]+ s: "):
        for frame in live(loaded, str(path)):
            seen.append(frame)
    assert 0 < len(seen) < 40
    assert main(["predict", str(loaded.folder.path), "--live", str(path), "--device", "cpu"]) == 2
    said = capsys.readouterr()
    assert said.out.splitlines()[-1].startswith(f"{len(seen)} frames; from frame to prediction")
    assert "damaged or broke off" in said.err.strip().splitlines()[-1]
    text = tmp_path / "text.mp4"
    text.write_text("no video")
    with pytest.raises(MatineeError, match=r"text\.mp4 cannot be opened as video"):
        live(loaded, str(text))


def test_what_cannot_be_followed_is_refused(loaded, contrastive_run, clip, film, tmp_path):
    both_ways = replace(
        loaded,
        config=replace(
            loaded.config,
            model=replace(
                loaded.config.model, temporal=replace(loaded.config.model.temporal, causal=False)
            ),
        ),
    )
    with pytest.raises(ConfigError, match=r"not causal: .*--model.temporal.causal"):
        live(both_ways, str(clip))
    with pytest.raises(ConfigError, match="is a run of contrastive: live prediction needs"):
        live(contrastive_run, str(clip), device="cpu")
    with pytest.raises(ConfigError, match=r"gone.mp4: no such file or device; .*rtsp://"):
        live(loaded, str(tmp_path / "gone.mp4"))
    with pytest.raises(ConfigError, match="--every 0: at least 1"):
        live(loaded, str(clip), every=0)
    wide = film(tmp_path / "wide.mp4", frames=6, stream={"sample_aspect_ratio": Fraction(4, 3)})
    with pytest.raises(MatineeError, match=r"wide.mp4 must be given square pixels first, .*--live"):
        list(live(loaded, str(wide)))


def test_the_command_prints_a_line_a_frame_and_a_summary(causal_run, clip, tmp_path, capsys):
    args = ["predict", str(causal_run), "--live", str(clip), "--device", "cpu", "--json"]
    assert main([*args, str(tmp_path / "live.json")]) == 0
    said = capsys.readouterr()
    lines = said.out.strip().splitlines()
    assert len(lines) == 15 and lines[1].split()[:2] == ["0.12", "s"] and lines[0].endswith(" ms")
    assert lines[-1].startswith("14 frames; from frame to prediction mean ")
    assert "taking every 3rd frame, 0.120 s apart: the run's --clip.stride 3" in said.err
    saved = json.loads((tmp_path / "live.json").read_text())
    assert len(saved["frames"]) == saved["summary"]["frames"] == 14
    spent = [frame["milliseconds"] for frame in saved["frames"]]
    assert saved["summary"]["mean_ms"] == pytest.approx(np.mean(spent))
    assert saved["summary"]["p95_ms"] == pytest.approx(np.quantile(spent, 0.95))
    assert saved["summary"]["max_ms"] == max(spent)
    assert main(["predict", str(causal_run), str(clip), "--live", str(clip)]) == 2
    assert "leave out" in capsys.readouterr().err
    assert main(["predict", str(causal_run), str(clip), "--every", "2"]) == 2
    assert "without --live" in capsys.readouterr().err


def test_ctrl_c_ends_with_the_summary(causal_run, clip, monkeypatch, capsys):
    """As SIGINT does: status 130."""

    def interrupted(*args, **kwargs):
        video = live(*args, **kwargs)
        frames = video.frames

        def two():
            yield next(frames)
            yield next(frames)
            raise KeyboardInterrupt

        video.frames = two()
        return video

    monkeypatch.setattr("matinee.cli.predict.live", interrupted)
    assert main(["predict", str(causal_run), "--live", str(clip), "--device", "cpu"]) == 130
    assert capsys.readouterr().out.splitlines()[-1].startswith("2 frames; ")


def test_a_summary_of_nothing():
    assert summarise([]) == {
        "frames": 0, "mean_ms": None, "p50_ms": None, "p95_ms": None, "max_ms": None,
    }  # fmt: skip
