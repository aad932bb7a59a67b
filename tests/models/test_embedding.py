"""Texts to points by the mean of a model's hidden states."""

import numpy as np
import pytest

import tiny_t5
from penstock.core.errors import ModelError
from penstock.models.embedding import ModelEmbedder
from penstock.models.files import save_model

TEXTS = ["one two three", "a", "four five six seven eight nine ten", ""]


@pytest.fixture(scope="module")
def folder(built, tmp_path_factory):
    return save_model(built["qwen2"], tmp_path_factory.mktemp("embedding") / "model")


def test_a_point_is_the_mean_of_the_last_hidden_states(built, folder):
    import torch
    from transformers import AutoModel

    text = TEXTS[0]
    tokens = torch.tensor([built["qwen2"].text.encode(text)])
    with torch.no_grad():
        hidden_TD = AutoModel.from_pretrained(folder)(input_ids=tokens).last_hidden_state[0]
    mean_D = hidden_TD.mean(0).numpy()
    np.testing.assert_allclose(ModelEmbedder(str(folder))([text])[0], mean_D / np.linalg.norm(mean_D), atol=1e-5)


def test_a_text_has_the_same_point_whatever_stands_beside_it(folder):
    embedder = ModelEmbedder(str(folder))
    together = embedder(TEXTS)
    alone = np.concatenate([embedder([text]) for text in TEXTS])
    np.testing.assert_allclose(together, alone, atol=1e-5)
    np.testing.assert_allclose(np.linalg.norm(together, axis=1), [1, 1, 1, 0], atol=1e-5)


def test_the_encoder_of_an_encoder_decoder_embeds_too(text, tmp_path):
    point_ND = ModelEmbedder(str(save_model(tiny_t5.build(text), tmp_path / "t5")))(TEXTS[:2])
    np.testing.assert_allclose(np.linalg.norm(point_ND, axis=1), 1, atol=1e-5)


def test_an_encoder_alone_embeds(text, tmp_path):
    from transformers import BertConfig, BertModel

    config = BertConfig(
        vocab_size=len(text), hidden_size=32, num_hidden_layers=1, num_attention_heads=2, intermediate_size=64,
        max_position_embeddings=16,
    )  # fmt: skip
    BertModel(config).save_pretrained(tmp_path, safe_serialization=True)
    text.tokenizer.save_pretrained(tmp_path)
    point_ND = ModelEmbedder(str(tmp_path))(["short", "a text that is longer than the model's context " * 3])
    np.testing.assert_allclose(np.linalg.norm(point_ND, axis=1), 1, atol=1e-5)


def test_the_name_is_of_what_the_folder_holds(folder, tmp_path, tiny):
    other = tiny("qwen2")
    next(iter(other.network.parameters())).data.mul_(2)
    changed = save_model(other, tmp_path / "model")
    assert ModelEmbedder(str(folder)).name == ModelEmbedder(str(folder)).name
    assert ModelEmbedder(str(folder)).name != ModelEmbedder(str(changed)).name


def test_a_folder_without_a_model_is_refused(tmp_path):
    with pytest.raises(ModelError, match=r"no config\.json"):
        ModelEmbedder(str(tmp_path))
    with pytest.raises(ModelError, match="no such folder"):
        ModelEmbedder(str(tmp_path / "none"))
