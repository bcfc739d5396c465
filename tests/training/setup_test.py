"""From a config to a run: saved configs, splits, targets of every task, what is said at start."""

import json
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
import torch
from relabel import relabelled

from matinee.data.clips import ClipSpec
from matinee.errors import ConfigError
from matinee.models.config import Frames, Inflate, Joint, ModelConfig, Shift
from matinee.pack.reading.reader import Pack
from matinee.tasks.config import (
    ClassificationConfig,
    ClipTextConfig,
    ContrastiveConfig,
    MaskedConfig,
    SentenceTextConfig,
)
from matinee.training.config import DataConfig, OptimConfig, RunConfig, TrainConfig
from matinee.training.parallel.ranks import Ranks
from matinee.training.setup import choose_splits, prepare, training_loader, validation_loader
from matinee.training.stages import Stage

TEXT = ClipTextConfig(width=8, heads=2, layers=1)
VERBS = ["cut", "put", "take", "take | put"]
NOUNS = ["egg", "ham|egg", "pan", "ham", "oil"]
CPU = Ranks(0, 1, 1, torch.device("cpu"))


def make_config(pack, task=None, **data) -> TrainConfig:
    return TrainConfig(
        data=DataConfig(path=str(pack), workers=1, mode="threads", **data),
        run=RunConfig(out="unused", device="cpu"),
        model=ModelConfig("test_resnet", dropout=0.0),
        task=task or ClassificationConfig(),
        clip=ClipSpec(frames=2, size=32),
        optim=OptimConfig(batch_size=4),
    )


@pytest.fixture(scope="module")
def actions(clips_pack, tmp_path_factory):
    """Verbs, nouns and captions, two of each third sample, one of them very long."""
    captions = [f"number {i}" + (f"\nthe clip {i}\n" if i % 3 == 0 else "") for i in range(18)]
    captions[1] = "rain " * 200
    return relabelled(
        clips_pack,
        tmp_path_factory.mktemp("setup") / "actions.pack",
        verb=[VERBS[i % 4] for i in range(18)],
        noun=[NOUNS[i % 5] for i in range(18)],
        text=captions,
    )


TASKS = [
    ClassificationConfig(),
    ClassificationConfig(labels="verb+noun", label_smoothing=0.1, mixup=0.8, cutmix=1.0),
    ContrastiveConfig(),
    ContrastiveConfig(text=SentenceTextConfig("folder"), loss="max-margin", graded=True),
    MaskedConfig(mask_ratio=0.8, decode_ratio=0.5),
]
TEMPORALS = [Frames(), Shift("in-place", every=2, causal=True), Inflate("3x1x1"),
             Joint(tubelet=2, positions="sine")]  # fmt: skip


@pytest.mark.parametrize("task", TASKS)
@pytest.mark.parametrize("temporal", TEMPORALS)
def test_every_kind_of_task_and_network_survives_json(task, temporal):
    config = make_config("a.pack", task)
    config = replace(config, model=replace(config.model, temporal=temporal))
    again = TrainConfig.from_json(config.to_json())
    assert again == config
    assert type(again.task) is type(task) and type(again.model.temporal) is type(temporal)
    saved = json.loads(config.to_json())
    assert saved["task"]["kind"] == task.kind
    assert saved["model"]["temporal"]["kind"] == temporal.kind


def damaged(change) -> str:
    values = json.loads(make_config("a.pack", ContrastiveConfig()).to_json())
    change(values)
    return json.dumps(values)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda v: v["task"].pop("kind"), "no kind among classification, contrastive, masked"),
        (lambda v: v["task"].update(kind="mask"), "no kind among classification"),
        (lambda v: v["task"].update(kind=["masked"]), "does not fit"),
        (lambda v: v["task"].update(kind="masked"), "unknown setting"),
        (lambda v: v.update(task="contrastive"), "no kind among classification"),
        (lambda v: v["task"]["text"].update(kind="clop"), "no kind among clip, sentence"),
        (lambda v: v["model"]["temporal"].pop("kind"), "no kind among frames, shift"),
        (lambda v: v["model"]["temporal"].update(div="8"), "does not fit"),
        (lambda v: v["model"].update(kind="x"), "unknown setting 'kind'"),
        (lambda v: v.update(optim=[1]), "OptimConfig is no object"),
        (lambda v: v.pop("data"), "does not fit"),
        (lambda v: v["clip"].update(scale=None), "does not fit"),
        (lambda v: v["task"].update(temperature=0.001), "--task.temperature"),
    ],
)
def test_a_damaged_config_is_refused_in_one_line(change, words):
    with pytest.raises(ConfigError, match=words) as refused:
        TrainConfig.from_json(damaged(change))
    assert "\n" not in str(refused.value)


def test_a_config_that_is_no_object_is_refused():
    with pytest.raises(ConfigError, match="damaged"):
        TrainConfig.from_json("[]")


def test_the_usual_splits_are_found(clips_pack, tmp_path):
    config = make_config("x")
    found = choose_splits(Pack(clips_pack), config)
    assert (found.train, found.val) == ("train", "val") and "validate on val" in found.note
    names = ["train"] * 9 + ["test"] * 9
    found = choose_splits(Pack(relabelled(clips_pack, tmp_path / "a", split=names)), config)
    assert (found.train, found.val) == ("train", "test")
    found = choose_splits(Pack(relabelled(clips_pack, tmp_path / "b", split=[None] * 18)), config)
    assert (found.train, found.val) == (None, None) and "nothing" in found.note
    other = Pack(relabelled(clips_pack, tmp_path / "c", split=["fold1"] * 9 + ["fold2"] * 9))
    with pytest.raises(ConfigError, match=r"no split 'train' but fold1, fold2: .* --data.train-s"):
        choose_splits(other, config)
    config = make_config("x", train_split="split=fold1", val_split="fold2")
    assert choose_splits(other, config).val == "fold2"


def test_single_labels_reach_the_batches(clips_pack):
    setup = prepare(Pack(clips_pack), make_config(clips_pack), CPU)
    assert setup.vocabulary.classes == ("left", "right")
    with validation_loader(setup, 6) as loader:
        (batch,) = loader
    labels = setup.pack.samples.column("label")
    named = [setup.vocabulary.classes[t] for t in batch.target.tolist()]
    assert named == [labels[int(row)].as_py() for row in batch.index]


def test_several_labels_reach_the_batches(clips_pack, tmp_path):
    cells = [["red", "red | blue", "blue|red|green", "green"][i % 4] for i in range(18)]
    pack = Pack(relabelled(clips_pack, tmp_path / "multi.pack", label=cells))
    setup = prepare(pack, make_config("x", ClassificationConfig(labels="multi")), CPU)
    assert setup.vocabulary.classes == ("blue", "green", "red")
    with training_loader(setup, Stage(1, 2, 32, 4), 1) as loader:
        for batch in loader:
            for row, target in zip(batch.index.tolist(), batch.target.tolist(), strict=True):
                wanted = [float(name in cells[row]) for name in ("blue", "green", "red")]
                assert target == wanted


def test_pairs_that_training_never_saw_are_allowed(clips_pack, tmp_path):
    """Their verbs and nouns still count; a single label of that kind is refused."""
    split = ["train"] * 12 + ["val"] * 6
    pack = Pack(
        relabelled(
            clips_pack, tmp_path / "pairs.pack", split=split, label=[None] * 18,
            verb=["take", "put"] * 6 + ["take"] * 6, noun=["cup", "pan"] * 6 + ["pan"] * 6,
        )
    )  # fmt: skip
    setup = prepare(pack, make_config("x", ClassificationConfig(labels="verb+noun")), CPU)
    assert setup.vocabulary.classes == ("put pan", "take cup", "take pan")
    assert Counter(setup.targets.tolist()) == {0: 6, 1: 6, 2: 6}
    assert setup.task.model(torch.zeros(1, 3, 2, 32, 32)).shape == (1, 3)


def test_graded_margins_get_the_verbs_and_nouns_of_each_clip(actions):
    """Float32 zeros and ones, verbs first, by the cells themselves."""
    task = ContrastiveConfig(text=TEXT, embed_dim=4, loss="max-margin", graded=True)
    setup = prepare(Pack(actions), make_config(actions, task), CPU)
    verbs, nouns = ("cut", "put", "take"), ("egg", "ham", "oil", "pan")
    assert (setup.vocabulary.verbs, setup.vocabulary.nouns) == (verbs, nouns)
    assert setup.vocabulary.classes == () and setup.task.verbs == 3
    assert setup.targets.dtype == np.float32 and setup.targets.shape == (18, 7)
    for i in range(18):
        held = [float(v in VERBS[i % 4]) for v in verbs] + [float(n in NOUNS[i % 5]) for n in nouns]
        assert setup.targets[i].tolist() == held
    with training_loader(setup, Stage(1, 2, 32, 4), 1) as loader:
        batch = next(iter(loader))
    assert np.array_equal(batch.target.numpy(), setup.targets[batch.index.numpy()])
    relevancy = setup.task.relevancy(batch.target)
    assert torch.isfinite(relevancy).all() and torch.equal(relevancy.diagonal(), torch.ones(4))
    loss = setup.task(batch).loss
    assert torch.isfinite(loss)


def test_graded_margins_without_their_columns_are_refused(clips_pack, actions, tmp_path):
    """And training clips without a verb or a noun, whose relevancy is undefined."""
    task = ContrastiveConfig(text=TEXT, embed_dim=4, loss="max-margin", graded=True)
    with pytest.raises(ConfigError, match=r"'noun' is not among .*sample.*: add it"):
        prepare(Pack(clips_pack), make_config("x", task), CPU)
    pack = Pack(actions)
    train, val = pack.select("train"), pack.select("val")
    nouns = ["egg"] * 18
    nouns[val[0]] = ""
    blank = relabelled(actions, tmp_path / "val.pack", noun=nouns)
    prepare(Pack(blank), make_config("x", task), CPU)
    nouns[train[2]], nouns[train[5]] = " | ", None
    blank = relabelled(actions, tmp_path / "train.pack", noun=nouns)
    name = pack.samples.column("sample")[int(train[2])].as_py()
    with pytest.raises(ConfigError, match=rf"2 of 12 samples of split 'train' .* noun.* '{name}'"):
        prepare(Pack(blank), make_config("x", task), CPU)


def test_captions_and_those_too_long_are_counted_at_the_start(actions):
    """Every line of a caption is one; only those of the training split."""
    pack = Pack(actions)
    setup = prepare(pack, make_config(actions, ContrastiveConfig(text=TEXT, embed_dim=4)), CPU)
    rows = pack.select("train").tolist()
    count = sum(2 if i % 3 == 0 else 1 for i in rows)
    cut = "1 longer than 77 tokens and cut to them" if 1 in rows else "none longer than 77 tokens"
    assert setup.notes[-1] == f"{count} captions of 12 clips; {cut}"
    assert 1 in rows  # or the test would show little


@pytest.mark.parametrize(
    "task",
    [ClassificationConfig(), ContrastiveConfig(text=TEXT, embed_dim=4), MaskedConfig(
        mask_ratio=0.75, decoder_depth=1, decoder_width=32, decoder_heads=2)],
)  # fmt: skip
def test_weights_depend_on_the_seed_alone(actions, task):
    found = []
    for state, seed in ((0, 3), (1, 3), (1, 4)):
        config = make_config(actions, task)
        config = replace(config, run=replace(config.run, seed=seed))
        if isinstance(task, MaskedConfig):
            vit = ModelConfig("test_vit", Joint(tubelet=2, positions="sine"), patch_size=8)
            config = replace(config, model=vit)
        torch.manual_seed(state)
        found.append(prepare(Pack(actions), config, CPU).task.state_dict())
    assert all(torch.equal(value, found[1][key]) for key, value in found[0].items())
    assert any(not torch.equal(value, found[2][key]) for key, value in found[1].items())
