"""Experts that a model chooses for the tokens of a sample, and small mixtures of experts to look at."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

import architectures
from penstock.core.types import Sample
from penstock.models.attention import single_row_plan
from penstock.models.experts import ROUTES, Routes, recorded, routers_of, routes_of
from penstock.models.language_model import LanguageModel

SIZE: dict[str, Any] = {"num_experts": 8, "num_local_experts": 8, "n_routed_experts": 8}


def mixture(text: Any, model_type: str = "mixtral", **changes: Any) -> LanguageModel:
    """A small mixture of 8 experts, of which 2 are chosen, with windows longer than the tests' rows."""
    known = architectures.config_of(model_type).to_dict()
    named = {name: value for name, value in (SIZE | {"sliding_window": None}).items() if name in known}
    return architectures.built(model_type, text, **(named | changes))


@torch.no_grad()
def chosen(model: LanguageModel, tokens_T: np.ndarray) -> Routes:
    """``[T, L, K]``: what the routers of a model choose for one sequence read at once."""
    tokens = torch.from_numpy(np.asarray(tokens_T, np.int64))[None]
    with recorded(routers_of(model.network)) as found:
        model.hidden(tokens, torch.arange(tokens.shape[1])[None], single_row_plan(tokens.shape[1]))
    return routes_of(found)


def sets(routes: Routes) -> list[Any]:
    """Routes without the order of a token's experts."""
    return np.sort(routes, -1).tolist()


def assert_routes_are_those_of(model: LanguageModel, sample: Sample, first: int = 0) -> None:
    """All tokens from ``first`` on but the last, which nobody read, went through the experts that the model chooses."""
    routes = sample.columns[ROUTES]
    assert routes.dtype == np.int16
    assert (routes[-1] == -1).all()
    assert sets(routes[first:-1]) == sets(chosen(model, sample.tokens_T)[first:-1])
