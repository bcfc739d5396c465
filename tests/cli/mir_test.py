"""`matinee mir`: the numbers it prints, and one line for each bad matrix."""

import json
import pickle

import numpy as np
import pytest

from matinee.cli.mir import main
from matinee.errors import ConfigError
from matinee.evaluation.epic100 import mir_chance, mir_metrics, relevancy_matrix


@pytest.fixture
def tables(tmp_path):
    """Four clips, three sentences."""
    (tmp_path / "clips.csv").write_text(
        "narration_id,narration,verb_class,all_noun_classes\n"
        'a,take cup,0,"[13]"\nb,put cup,1,"[13]"\nc,cut bread,7,"[2, 9]"\nd,take mug,0,"[13]"\n'
    )
    (tmp_path / "sentences.csv").write_text(
        "narration_id,narration\na,take cup\nb,put cup\nc,cut bread\n"
    )
    return tmp_path


def run(folder, *more):
    return main(
        [str(folder / "s.npy"), "--videos", str(folder / "clips.csv"),
         "--sentences", str(folder / "sentences.csv"), *more]
    )  # fmt: skip


@pytest.mark.parametrize("variant", ["graded", "binary"])
def test_the_report_holds_metrics_and_chance(tables, capsys, variant):
    """Equal to the functions on the same classes."""
    similarity = np.random.default_rng(0).random((4, 3), dtype=np.float32)
    np.save(tables / "s.npy", similarity)
    assert run(tables, "--map", variant, "--json", "-") == 0
    report = json.loads(capsys.readouterr().out)
    verbs, nouns = [{0}, {1}, {7}, {0}], [{13}, {13}, {2, 9}, {13}]
    relevancy = relevancy_matrix(verbs, nouns, verbs[:3], nouns[:3])
    assert report["metrics"] == pytest.approx(mir_metrics(similarity, relevancy, variant))
    assert report["chance"] == pytest.approx(mir_chance(relevancy, variant))
    assert (report["clips"], report["sentences"], report["map"]) == (4, 3, variant)
    assert run(tables, "--map", variant) == 0
    shown = capsys.readouterr().out
    assert "4 clips × 3 sentences" in shown and f"{report['metrics']['v2t_map']:.3f}" in shown


@pytest.mark.parametrize(
    ("write", "message"),
    [
        (lambda p: np.save(p, np.zeros((3, 4))), r"\(4, 3\) was expected; transpose it"),
        (lambda p: np.save(p, np.zeros((4, 4))), r"shape \(4, 4\), but .* 4 clips and 3 sentences"),
        (lambda p: np.save(p, np.zeros((4, 3), np.int32)), "must be floats"),
        (lambda p: np.save(p, np.full((4, 3), np.nan)), "NaN"),
        (
            lambda p: np.save(p, np.array([print]), allow_pickle=True),
            r"not a \.npy file of numbers",
        ),
        (lambda p: p.write_bytes(pickle.dumps(print)), r"not a \.npy file of numbers"),
        (lambda p: p.write_bytes(b""), r"not a \.npy file of numbers"),
        (lambda p: np.save(p, np.zeros((4, 0))), r"shape \(4, 0\)"),
    ],
)
def test_a_matrix_that_does_not_fit_is_refused(tables, write, message):
    write(tables / "s.npy")
    with pytest.raises(ConfigError, match=message):
        run(tables)


def test_a_truncated_matrix_is_refused(tables):
    """The header promises more than the file holds."""
    np.save(tables / "s.npy", np.zeros((4, 3)))
    content = (tables / "s.npy").read_bytes()
    (tables / "s.npy").write_bytes(content[:-8])
    with pytest.raises(ConfigError, match=r"not a \.npy file of numbers"):
        run(tables)
