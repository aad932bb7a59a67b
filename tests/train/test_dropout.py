"""Token dropout: which embeddings it zeroes and which it leaves."""

import torch

from penstock.models.language_policy import dropped


def test_token_dropout_never_zeroes_an_end_token(tiny):
    model = tiny()
    tokens_BN = torch.arange(200)[None] % 100
    tokens_BN[0, ::10] = model.text.end
    embed = model.network.get_input_embeddings()
    with dropped(model, 0.5, 0.0, torch.Generator().manual_seed(0)):
        zero_N = (embed(tokens_BN)[0] == 0).all(-1)
    assert not zero_N[tokens_BN[0] == model.text.end].any()
    assert 0.35 < zero_N[tokens_BN[0] != model.text.end].float().mean() < 0.65


def test_hooks_are_gone_afterwards(tiny):
    model = tiny()
    with dropped(model, 0.9, 0.9, torch.Generator().manual_seed(0)):
        pass
    assert not (model.network.get_input_embeddings()(torch.arange(50)) == 0).all(-1).any()
