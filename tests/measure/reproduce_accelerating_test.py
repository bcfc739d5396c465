"""The paper's grid on any pictures given, with what was not measured said, never guessed."""

import json

import numpy as np
import pytest
from ablation_test import Here
from PIL import Image

from matinee.errors import ConfigError
from matinee.measure.bench import ablation_grid
from matinee.measure.bench.ablation_levers import NO_GPU
from matinee.measure.reproduce.accelerating import Options, options, predicted, reproduce, run
from matinee.measure.reproduce.accelerating.sizes import FULL, QUICK, SMALL, network_config
from matinee.pack.images.writer import write_images
from matinee.recipes import tiny
from matinee.recipes.cifar import efficientnet_cifar, resnet50_cifar, vit_cifar
from matinee.training.search.space import put


def quiet(done, total, note):
    assert 0 <= done <= total and note


@pytest.fixture(scope="module")
def hundred(tmp_path_factory):
    """A made-up set of 100 classes as folders: shades of grey, one to train on, one to test on."""
    root = tmp_path_factory.mktemp("cifar100")
    rng = np.random.default_rng(1)
    for split in ("train", "test"):
        for label in range(100):
            folder = root / split / f"class{label:02}"
            folder.mkdir(parents=True)
            picture = 2 * label + rng.integers(0, 40, (32, 32, 3))
            Image.fromarray(picture.astype(np.uint8)).save(folder / "0.png")
    return root


@pytest.fixture
def small(monkeypatch):
    """Networks of seconds, in this process."""
    monkeypatch.setattr(ablation_grid, "WorkerPool", Here)

    def config(network, size, data):
        values = {"optim.batch_size": 48, "run.device": "cpu"}
        return put(tiny(network_config(network, size, data)), values)

    monkeypatch.setattr(run, "network_config", config)
    monkeypatch.setattr(predicted, "CELLS", {"none": (1, "fp32"), "AMP": (1, "fp16")})
    monkeypatch.setattr(predicted, "RECIPES", {"resnet50": resnet50_cifar})


def test_the_whole_table_is_there_with_pinned_memory_marked(hundred, tmp_path, small, monkeypatch):
    options = Options(cifar100=hundred, out=tmp_path, networks=("vit",), quick=True, epochs=1)
    result = reproduce(options, on_step=quiet)
    parts = {part.name: part for part in result.parts}
    assert list(parts) == ["levers", "cifar100-vit", "cifar10-missing", "predicted", "published"]
    assert "no data was given (--cifar10 PATH)" in parts["cifar10-missing"].text
    assert "200 (CIFAR-100) pictures" in parts["levers"].text
    assert parts["levers"].text.count("1 epochs") == 1 and result.data["size"]["epochs"] == 1
    (table,) = parts["cifar100-vit"].tables
    assert [row[0] for row in table.rows] == [
        "none", "GA", "AMP", "PM", "GA+AMP", "GA+PM", "AMP+PM", "GA+AMP+PM",
    ]  # fmt: skip
    for row in table.rows:
        assert (NO_GPU in row) == ("PM" in row[0])
        assert any(char.isdigit() for cell in row[1:] for char in cell) == ("PM" not in row[0])
    assert [row[0] for row in parts["levers"].tables[0].rows] == [
        f"ViT, CIFAR-100, {cell}" for cell in ("GA", "AMP", "GA+AMP")
    ]
    assert f"GA+AMP+PM: {NO_GPU}" in parts["levers"].tables[0].note
    rows = {row[0]: row for row in parts["published"].tables[0].rows}
    assert rows["ViT, CIFAR-100"][-1].endswith("(GA+AMP)")
    assert rows["ResNet50, CIFAR-10"][-1] == "not run"
    assert result.data["not_run"] == ["cifar10"]
    assert {run["cell"] for run in result.data["grids"]["cifar100/vit"]["runs"]} == {
        "none", "GA", "AMP", "GA+AMP",
    }  # fmt: skip
    json.dumps(result.data, allow_nan=False)
    plain, half = parts["predicted"].tables[0].rows
    assert (plain[0], half[0]) == ("ResNet-50, none", "ResNet-50, AMP")
    assert float(half[1]) < float(plain[1]) and float(half[3]) < float(plain[3])

    def no_process(*args):
        raise AssertionError("a finished run was run again")

    monkeypatch.setattr(ablation_grid, "WorkerPool", no_process)
    again = reproduce(options, on_step=quiet)
    assert again.data["grids"] == result.data["grids"]


@pytest.mark.parametrize(
    "more, said",
    [
        ({}, "no data was given: --cifar10 PATH.*cifar2png"),
        ({"full": True, "quick": True}, "contradict"),
        ({"networks": ()}, "at least one of"),
        ({"cifar10": "nowhere.tar.gz"}, "nothing is there"),
        ({"cifar10": "hundred"}, "has 100 classes, where 10 are expected"),
        ({"cifar100": "set"}, "image set of 200 pictures.*give the folder or archive"),
        ({"cifar100": "hundred", "epochs": 0}, "at least 1"),
    ],
)
def test_what_cannot_be_reproduced_is_refused(hundred, tmp_path, monkeypatch, more, said):
    write_images(tmp_path / "set.images", hundred)
    monkeypatch.setattr(
        options, "QUICK", QUICK.__class__("quick", 99, 1, published=False)
    )  # a part of what there is
    places = {"hundred": hundred, "set": tmp_path / "set.images", "nowhere.tar.gz": tmp_path / "x"}
    given = {key: places.get(value, value) if key.startswith("cifar") else value
             for key, value in more.items()}  # fmt: skip
    with pytest.raises(ConfigError, match=said):
        reproduce(Options(**{"out": tmp_path / "out", "quick": True, **given}), on_step=quiet)


def test_full_runs_the_recipes_as_they_are():
    for name, recipe in (
        ("resnet50", resnet50_cifar), ("vit", vit_cifar), ("efficientnet", efficientnet_cifar),
    ):  # fmt: skip
        # But for batches that are copied: on a GPU pinned memory shows only there.
        copied = put(recipe("p", "unused"), {"data.resident": False})
        assert network_config(name, FULL, "p") == copied
        assert network_config(name, SMALL, "p").optim.batch_size == 64
    assert (FULL.limit(10), SMALL.limit(10), SMALL.limit(100)) == (None, 100, 10)
