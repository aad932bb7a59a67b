"""Models on disk: what is written can be read by anybody, and what cannot be trusted is refused."""

import json
import shutil

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, BloomConfig, StableLmConfig

import tiny_models
from penstock.config.run import ModelSpec
from penstock.core.errors import ModelError
from penstock.models.files import load_model, load_text, save_model
from penstock.models.language_model import LanguageModel
from penstock.models.language_policy import LanguagePolicy
from penstock.models.scratch import build_model
from penstock.train.learner import Scoring

SMALL = {"vocab_size": 300, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4}
SENTENCES = ["3 + 4 = 7", "  12 - 5\n= 7", "the 1234 quick BROWN fox's", "<|im_start|>user\nhi<|im_end|>", "Zażółć 漢字 🙂"]


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """A model from scratch and the folder it was saved in."""
    model = build_model(ModelSpec(vocabulary=300, context=64), tiny_models.CORPUS, seed=1)
    return model, save_model(model, tmp_path_factory.mktemp("models") / "scratch")


@pytest.fixture
def folder(saved, tmp_path):
    """A copy of the saved folder to break."""
    return shutil.copytree(saved[1], tmp_path / "model")


def same_weights(one, other):
    found = dict(other.policy_weights())
    return all(torch.equal(tensor, found.pop(name)) for name, tensor in one.policy_weights()) and not found


def test_saving_and_loading_keeps_the_weights(saved):
    assert same_weights(saved[0], load_model(str(saved[1])))


@pytest.mark.parametrize("sentence", SENTENCES)
def test_the_saved_tokenizer_gives_the_same_tokens_here_and_in_plain_transformers(saved, sentence):
    model, path = saved
    plain, expected = AutoTokenizer.from_pretrained(path), model.text.encode(sentence)
    assert load_text(str(path)).encode(sentence) == expected
    assert plain.encode(sentence, add_special_tokens=False) == expected
    assert (plain.eos_token_id, plain.pad_token_id) == (model.text.end, model.text.pad)


def test_plain_transformers_reads_the_same_model(saved):
    model, path = saved
    tokens = model.text.encode("the sum of 3 + 4 is")
    plain = AutoModelForCausalLM.from_pretrained(path)
    theirs = plain(torch.tensor([tokens])).logits[0].log_softmax(-1)
    row = tiny_models.row(np.array(tokens[:1]), np.array(tokens[1:]))
    ours = Scoring(LanguagePolicy(model)).score([(row,)], frozenset({"logp"}))["logp"][0]
    expected = theirs[:-1].gather(-1, torch.tensor(tokens[1:])[:, None])[:, 0].detach().numpy()
    np.testing.assert_allclose(ours, expected, atol=1e-5)


def test_the_saved_config_names_nothing_of_ours(saved):
    assert "penstock" not in (saved[1] / "config.json").read_text()


def test_saving_again_replaces_the_folder_whole(saved, folder):
    (folder / "stale.safetensors").write_bytes(b"")
    save_model(saved[0], folder)
    assert not (folder / "stale.safetensors").exists()
    assert [path.name for path in folder.parent.iterdir()] == [folder.name]


@pytest.mark.parametrize("architecture", tiny_models.ARCHITECTURES)
def test_every_architecture_survives_saving(architecture, tiny, tmp_path):
    model = tiny(architecture)
    assert same_weights(model, load_model(str(save_model(model, tmp_path / architecture))))


def pickled(folder):
    (folder / "model.safetensors").unlink()
    torch.save({}, folder / "pytorch_model.bin")


def without_tokenizer(folder):
    for path in folder.glob("*token*"):
        path.unlink()


def without_end(folder):
    config = json.loads((folder / "tokenizer_config.json").read_text())
    (folder / "tokenizer_config.json").write_text(json.dumps(config | {"eos_token": None}))


def cut(folder):
    weights = folder / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:1000])


@pytest.mark.parametrize(
    ("spoil", "says"),
    [
        (pickled, r"weights are pickled \(pytorch_model.bin\).*save_pretrained"),
        (lambda folder: (folder / "model.safetensors").unlink(), r"no \*.safetensors weights"),
        (lambda folder: (folder / "config.json").unlink(), r"no config.json"),
        (without_tokenizer, r"no tokenizer \(tokenizer.json is missing\)"),
        (without_end, "set eos_token"),
        (cut, "cannot be loaded"),
    ],
    ids=["pickled weights only", "no weights", "no config", "no tokenizer", "no end token", "broken weights"],
)
def test_a_folder_that_cannot_be_trusted_or_read_is_refused(spoil, says, folder):
    spoil(folder)
    with pytest.raises(ModelError, match=says):
        load_model(str(folder))


@pytest.mark.parametrize("path", ["/nowhere/at/all", "./missing", "../a/b", "~/missing-model"])
def test_a_missing_folder_is_named_in_full(path):
    with pytest.raises(ModelError, match=r"/.*: no such folder"):
        load_model(path)


@pytest.fixture
def _no_hub(monkeypatch):
    monkeypatch.setenv("HF_ENDPOINT", "https://hub.invalid")
    for name in ("https_proxy", "all_proxy"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)


@pytest.mark.usefixtures("_no_hub")
def test_a_name_is_not_asked_for_again_and_again_of_a_hub_that_cannot_be_reached():
    with pytest.raises(ModelError, match="mistyped: no such folder, the hub cannot be reached"):
        load_model("mistyped")


def test_a_tokenizer_larger_than_the_embeddings_is_refused(text, tmp_path):
    network = AutoModelForCausalLM.from_config(tiny_models.config_of("llama", 280))
    path = save_model(LanguageModel(network, text), tmp_path / "small")
    with pytest.raises(ModelError, match="tokenizer has 300 pieces but the model embeds only 280"):
        load_model(str(path))


@pytest.mark.parametrize(
    ("config", "reason"),
    [
        (BloomConfig(vocab_size=300, hidden_size=32, n_layer=2, n_head=4), "attends 0 times through transformers' attention"),
        (StableLmConfig(**SMALL), "did not pass on the attention plan"),
    ],
    ids=["bloom ignores the registry", "stablelm"],
)
def test_an_architecture_that_we_would_compute_wrongly_is_refused(config, reason, text, tmp_path):
    network = AutoModelForCausalLM.from_config(config)
    network.save_pretrained(tmp_path)
    text.tokenizer.save_pretrained(tmp_path)
    with pytest.raises(ModelError, match=reason):
        load_model(str(tmp_path))


def test_a_score_head_is_put_on_the_trunk_of_a_causal_model(saved):
    model, path = saved
    scorer = load_model(str(path), "score")
    ours, theirs = dict(scorer.policy_weights()), dict(model.policy_weights())
    assert scorer.head == "score"
    assert all(torch.equal(ours[name], tensor) for name, tensor in theirs.items() if name in ours)
    assert set(ours) - set(theirs) == {"score.weight"}


def test_a_new_score_head_is_the_same_every_time(saved):
    heads = []
    for seed in (1, 2):
        torch.manual_seed(seed)
        heads.append(load_model(str(saved[1]), "score").network.score.weight)
    assert torch.equal(*heads)


def test_a_score_head_survives_saving(saved, tmp_path):
    scorer = load_model(str(saved[1]), "score")
    torch.nn.init.normal_(scorer.network.score.weight)
    again = load_model(str(save_model(scorer, tmp_path / "rm")), "score")
    assert same_weights(scorer, again)


@pytest.mark.parametrize(
    ("head", "says"),
    [("scores", "train a reward model first"), ("values", r"set learner.critic=shared or separate")],
)
def test_a_head_that_is_not_there_has_nothing_to_give(saved, head, says):
    with pytest.raises(ModelError, match=says):
        getattr(saved[0], head)(torch.zeros(1, 128))


def test_a_value_head_is_saved_beside_the_model_and_loaded(tiny, tmp_path):
    model = tiny()
    model.add_critic("shared")
    torch.nn.init.normal_(model.value_head.linear.weight)
    again = load_model(str(save_model(model, tmp_path / "critic")))
    assert torch.equal(again.value_head.linear.weight, model.value_head.linear.weight)


def test_a_new_value_head_says_zero(tiny):
    model = tiny()
    model.add_critic("separate")
    assert model.values(torch.ones(2, 32)).tolist() == [0.0, 0.0]


def test_adapters_without_a_model_are_named_with_what_to_do(folder):
    (folder / "adapter_config.json").write_text(json.dumps({"base_model_name_or_path": "some/base", "r": 8}))
    with pytest.raises(ModelError, match=r"low-rank adapters in peft's format for some/base, not a model; merge them"):
        load_model(str(folder))


def test_a_classifier_of_two_labels_is_no_reward_model(folder):
    config = json.loads((folder / "config.json").read_text())
    config |= {"architectures": ["Qwen2ForSequenceClassification"], "id2label": {"0": "bad", "1": "good"}}
    (folder / "config.json").write_text(json.dumps(config))
    with pytest.raises(ModelError, match=r"a classifier of 2 labels \(bad, good\), and a reward model has one score"):
        load_model(str(folder), "score")
