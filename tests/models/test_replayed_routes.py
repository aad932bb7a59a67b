"""Replayed routes: the experts are those that a batch names, their weights the model's own, with gradient."""

import re
from dataclasses import replace
from pathlib import Path
from types import MethodType

import numpy as np
import pytest
import torch
import transformers
from torch.nn import functional

import architectures
import naive
from penstock.core.errors import DataError, ModelError
from penstock.models.experts import ROUTES, again, check_routes, recorded, replayed, router_logits, routers_of, routes_of
from penstock.models.language_policy import LanguagePolicy
from penstock.models.packing import lay_out
from penstock.train.learner import Scoring
from route_examples import chosen, mixture, sets

LOGP = frozenset({"logp"})
PAGE = (Path(__file__).resolve().parents[2] / "docs/models.md").read_text()
MIXTURES = (
    "afmoe", "aria_text", "axk1", "beam", "cohere2_moe", "deepseek_v2", "deepseek_v3", "dots1", "ernie4_5_moe",
    "exaone_moe", "flex_olmo", "flint", "gemma4_text", "glm4_moe", "glm4_moe_lite", "gpt_oss", "granitemoe",
    "granitemoe_swa", "granitemoeshared", "hunyuan_v1_moe", "hy_v3", "kolibri1", "laguna", "longcat_flash", "mellum",
    "mimo_v2_flash", "minimax_m2", "minimax_m3_vl_text", "mixtral", "olmoe", "qwen2_moe", "qwen3_moe", "solar_open",
)  # fmt: skip
"""Types of transformers whose routes are recorded and replayed."""
SPARSE = {
    "beam": {"mlp_layer_types": ["sparse", "sparse"]},
    "flint": {"mlp_only_layers": []},
    "gemma4_text": {"enable_moe_block": True, "top_k_experts": 2},
}
"""What gives a type experts where a small one has none."""


def routed(rows, model, seed=0):
    """Rows with random routes, the same for the tokens that they share."""
    rng, prompt = np.random.default_rng(seed), int((~rows[0].action_T).sum())
    layers, width = chosen(model, rows[0].tokens_T).shape[1:]
    with router_logits(model.network) as logits:
        scored(LanguagePolicy(model), [(rows[0],)])
    experts_TLX = np.tile(np.arange(logits[0].shape[1]), (max(len(row.tokens_T) for row in rows), layers, 1))
    draws = [rng.permuted(experts_TLX, axis=-1)[..., :width].astype(np.int16) for _ in (*rows, 0)]
    parts = [
        np.concatenate([draws[-1][:prompt], own[prompt : len(row.tokens_T)]]) for row, own in zip(rows, draws, strict=False)
    ]
    return tuple(replace(row, columns={**row.columns, ROUTES: part}) for row, part in zip(rows, parts, strict=True))


def replaying(model, **options):
    policy = LanguagePolicy(model, **options)
    policy.replays = True
    return policy


def scored(policy, units, budget=8192):
    return Scoring(policy, budget).score(units, LOGP)["logp"]


def test_forced_experts_are_summed_by_the_gates_weights(text):
    """A block of Mixtral by hand: softmax over the logits of the named experts, and the gradient reaches the gate."""
    block = mixture(text).network.model.layers[0].mlp
    x_NH = torch.randn(5, 32, generator=torch.Generator().manual_seed(0), requires_grad=True)
    routes_NLK = torch.tensor([[6, 1], [0, 7], [3, 4], [2, 5], [5, 0]])[:, None]
    with replayed([(block.gate, 0)], routes_NLK):
        found_NH = block(x_NH[None])[0]
    assert not torch.allclose(found_NH, block(x_NH[None])[0])

    def expert(index, x_H):
        gate, up = functional.linear(x_H, block.experts.gate_up_proj[index]).chunk(2)
        return functional.linear(functional.silu(gate) * up, block.experts.down_proj[index])

    expected = []
    for n, (first, second) in enumerate(routes_NLK[:, 0].tolist()):
        logit_X = block.gate.weight @ x_NH[n]
        share = torch.sigmoid(logit_X[first] - logit_X[second])
        expected.append(share * expert(first, x_NH[n]) + (1 - share) * expert(second, x_NH[n]))
    expected_NH = torch.stack(expected)
    torch.testing.assert_close(found_NH, expected_NH)
    ways = [torch.autograd.grad(out.square().sum(), [block.gate.weight, x_NH]) for out in (found_NH, expected_NH)]
    for found, by_hand in zip(*ways, strict=True):
        torch.testing.assert_close(found, by_hand, rtol=1e-4, atol=1e-4)
    assert (ways[0][0].abs().sum(1) > 0).all(), "each expert was named, so each row of the gate has a gradient"


def test_unknown_routes_are_the_routers_own(text):
    block = mixture(text).network.model.layers[0].mlp
    x_1NH = torch.randn(1, 3, 32, generator=torch.Generator().manual_seed(0))
    with recorded([(block.gate, 0)]) as own:
        block(x_1NH)
    unknown = torch.tensor([[[6, 1]], [[-1, -1]], [[3, 4]]])
    with recorded([(block.gate, 0)]) as found, replayed([(block.gate, 0)], unknown):
        block(x_1NH)
    assert routes_of(found)[:, 0].tolist() == [[6, 1], own[0][1].tolist(), [3, 4]]


@pytest.mark.parametrize("model_type", MIXTURES)
def test_routes_of_a_type_are_replayed(model_type, text):
    """Its own routes in another order change nothing; others change it; each layer's gate has a gradient."""
    model = architectures.built(model_type, text, **SPARSE.get(model_type, {}))
    assert check_routes(model) is None
    rows = architectures.rows()
    own = tuple(replace(row, columns={**row.columns, ROUTES: chosen(model, row.tokens_T)[..., ::-1]}) for row in rows)
    expected, policy = scored(LanguagePolicy(model), [tuple(rows)]), replaying(model)
    for one, other in zip(scored(policy, [own]), expected, strict=True):
        np.testing.assert_allclose(one, other, atol=1e-4)
    forced = routed(rows, model)
    assert max(np.abs(one - other).max() for one, other in zip(scored(policy, [forced]), expected, strict=True)) > 1e-3
    (batch,) = policy.lay_out([forced], 8192)
    policy.outputs(batch, LOGP)["logp"].square().sum().backward()
    for router, _ in routers_of(model.network):
        assert any(p.grad is not None and p.grad.abs().max() > 0 for p in router.parameters())


def test_no_type_that_is_right_is_forgotten():
    right = re.findall(r"^\| `([\w.-]+)` \| right", PAGE, re.M)
    classes = {one: getattr(transformers, architectures.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES[one]) for one in right}
    recording = {one for one, kind in classes.items() if "router_logits" in (kind._can_record_outputs or {})}
    assert recording - set(MIXTURES) == {"jetmoe"}, "which is refused"


def forced_network(model, rows):
    """Plain transformers over one row whose gates are Mixtral's by hand, with the routes of the row."""
    network = naive.plain(model)
    (row,) = rows
    for layer, block in enumerate(network.model.layers):
        index_NK = torch.from_numpy(row.columns[ROUTES][:, layer].astype(np.int64))

        def forward(gate, hidden, index_NK=index_NK):
            logits = functional.linear(hidden.reshape(-1, 32), gate.weight)
            return logits, logits.gather(1, index_NK).softmax(-1), index_NK

        block.mlp.gate.forward = MethodType(forward, block.mlp.gate)
    return network


@pytest.mark.parametrize("share", [True, False])
@pytest.mark.parametrize("budget", [8192, 60, 30])
def test_packed_rows_are_rows_one_by_one_with_the_same_routes(share, budget, text):
    model = mixture(text)
    units = [routed(architectures.rows(), model), routed(architectures.rows((24, 12), seed=1), model, 1)]
    found = scored(replaying(model, share_prefix=share), units, budget)
    for row, logp_A in zip([row for unit in units for row in unit], found, strict=True):
        expected = naive.token_outputs(forced_network(model, [row]), [row])[0][0]
        np.testing.assert_allclose(logp_A, expected.detach(), atol=1e-4)
    backwards = scored(replaying(model), [unit[::-1] for unit in units[::-1]], budget)
    for one, other in zip(found, backwards[::-1], strict=True):
        np.testing.assert_allclose(one, other, atol=1e-4)


def test_a_prefix_is_shared_as_far_as_its_routes_are(text):
    model = mixture(text)
    rows = list(routed(architectures.rows(), model))
    (batch,) = lay_out([tuple(rows)], 8192, True, routes=True)
    assert len(batch.tokens_N) == 21 + 17 + 26 - 2 * 9
    other = rows[1].columns[ROUTES].copy()
    other[4, 1] = other[4, 1][::-1]
    rows[1] = replace(rows[1], columns={**rows[1].columns, ROUTES: other})
    (batch,) = lay_out([tuple(rows)], 8192, True, routes=True)
    assert len(batch.tokens_N) == 21 + 17 + 26 - 2 * 4
    assert batch.routes_N.shape == (len(batch.tokens_N), 2, 2)


def test_rows_without_routes_are_refused(text):
    model = mixture(text)
    with pytest.raises(DataError, match=r"^row 0: no column routes_T; generate it .* or set learner\.replay_routes=false$"):
        replaying(model).lay_out([tuple(architectures.rows())], 8192)


def test_other_policies_choose_for_themselves(text):
    model = mixture(text)
    rows = tuple(architectures.rows())
    plain, named = (scored(LanguagePolicy(model), [unit]) for unit in (rows, routed(rows, model)))
    for one, other in zip(plain, named, strict=True):
        np.testing.assert_array_equal(one, other)


GROUPS = {"n_group": 4, "topk_group": 1}


def test_nothing_is_left_of_a_replay(text):
    model = mixture(text)
    routers = routers_of(model.network)
    with pytest.raises(KeyError), replayed(routers, torch.zeros(1, 2, 2, dtype=torch.int64)):
        raise KeyError
    assert all("forward" not in vars(module) for module, _ in routers)
    assert again()[1].__class__.__name__ == "nullcontext"


@pytest.mark.parametrize(
    ("model_type", "changes", "why"),
    [
        ("llama", {}, "LlamaForCausalLM has no experts"),
        ("jetmoe", {}, "JetMoeForCausalLM has routers that do not give the experts that they choose"),
        (
            "deepseek_v2",
            {"n_group": 4, "topk_group": 1, "topk_method": "group_limited_greedy"},
            "that weigh no experts but those",
        ),
        ("deepseek_v3", GROUPS | {"topk_group": 2}, "chooses in 2 steps that look alike"),
    ],
)
def test_a_type_that_cannot_replay_is_refused_by_name(model_type, changes, why, text):
    with pytest.raises(ModelError, match=rf"{why}.*; set learner\.replay_routes=false$"):
        check_routes(mixture(text, model_type, **changes))


def test_groups_of_experts_are_replayed_where_their_choice_is_another(text):
    model = mixture(text, "deepseek_v3", n_group=4, topk_group=3)
    assert check_routes(model) is None
    rows = routed(architectures.rows((24,)), model)
    policy = replaying(model)
    policy.narrow = False
    with recorded(routers_of(model.network)) as found:
        scored(policy, [rows])
    assert sets(routes_of(found)[:9]) == sets(rows[0].columns[ROUTES][:9])
