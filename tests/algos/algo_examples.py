"""Small things the tests of algorithms share: samples written down by hand, and a model one can differentiate by hand.

The model is a table: logits and Q values of a token depend on the token before it, a value and the score of a step on the token
before an action, the score of a row on its last token but one, since rows end alike. It is enough to see whether losses,
weights and denominators add up, and it is exact in float64.
"""

from dataclasses import replace
from itertools import pairwise
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from hypothesis import strategies as st

from penstock.algos import Divergence
from penstock.core.contracts import Denominator
from penstock.core.types import Group, Prompt, PromptKey, Sample, SampleKey

VOCABULARY = 7


class Letters:
    """A tokenizer of the letters a to e; 6 ends an answer."""

    end = 6
    ends = frozenset({6})

    def encode(self, text):
        return ["abcde".index(letter) + 1 for letter in text]

    def prompt(self, text):
        return self.encode(text)

    def pair(self, prompt, completion):
        return self.prompt(prompt), self.encode(completion)


def tensor(*values):
    return torch.tensor(values, dtype=torch.float64)


def sample(actions, reward, *, prompt=(1,), place=0, logp=-1.0, error=None):
    """A sample that answered ``prompt`` with ``actions``; ``reward`` is a number, one per action, or None."""
    tokens_T = np.array([*prompt, *actions], np.int32)
    action_T = np.arange(len(tokens_T)) >= len(prompt)
    logp_T = np.zeros(len(tokens_T), np.float32)
    logp_T[action_T] = logp
    key = SampleKey(PromptKey("test", 0, 0), place)
    made = Sample(key, {"tokens_T": tokens_T}, action_T, logp_T, np.where(action_T, 0, -1).astype(np.int32), "stop")
    made = made if reward is None else made.scored(reward)
    return made if error is None else made.failed(error)


def group(*samples, ordinal=0):
    key = PromptKey("test", 0, ordinal)
    renamed = tuple(replace(item, key=SampleKey(key, place)) for place, item in enumerate(samples))
    return Group(Prompt(key, "prompt"), renamed)


def count(units):
    """The denominators of a whole batch."""
    rows = [row for unit in units for row in unit]
    return Denominator(tokens=sum(int(row.action_T.sum()) for row in rows), rows=len(rows), units=len(units))


def lay_out(units, order=None):
    """Index arrays and field tensors of one micro-batch; ``order`` permutes its rows."""
    rows = [(row, unit) for unit, members in enumerate(units) for row in members]
    rows = rows if order is None else [rows[place] for place in order]
    actions = [np.flatnonzero(row.action_T) for row, _ in rows]
    tokens = [(row.tokens_T[at - 1], row.tokens_T[at]) for (row, _), at in zip(rows, actions, strict=True)]
    batch = SimpleNamespace(
        row_A=torch.tensor([place for place, at in enumerate(actions) for _ in at], dtype=torch.int64),
        unit_B=torch.tensor([unit for _, unit in rows]),
        before_A=torch.tensor(np.concatenate([before for before, _ in tokens]), dtype=torch.int64),
        target_A=torch.tensor(np.concatenate([target for _, target in tokens]), dtype=torch.int64),
        late_B=torch.tensor([int(row.tokens_T[-2]) for row, _ in rows]),
    )
    fields = {}
    for name in rows[0][0].fields:
        values = [np.atleast_1d(np.asarray(row.fields[name], np.float64)) for row, _ in rows]
        fields[name] = torch.tensor(np.concatenate(values))
    return batch, fields


def evaluated(algorithm, units, order=None, **outputs):
    """Loss and metrics of units for outputs that are given by hand, as numbers in the order of the rows or as tensors."""
    batch, fields = lay_out(units, order)
    found = {name: torch.as_tensor(value, dtype=torch.float64) for name, value in outputs.items()}
    return algorithm.loss()(found, fields, batch, count(units))


class Table:
    """The model. ``grad()`` stacks the gradients of its tables."""

    def __init__(self, seed=0):
        generator = torch.Generator().manual_seed(seed)

        def table(*shape):
            return torch.randn(*shape, generator=generator, dtype=torch.float64)

        self.logits = table(VOCABULARY, VOCABULARY).requires_grad_()
        self.values = table(VOCABULARY).requires_grad_()
        self.scores = table(VOCABULARY).requires_grad_()
        self.q = table(2, VOCABULARY, VOCABULARY).requires_grad_()
        self.parts = (self.logits, self.values, self.scores, self.q)
        self.target = table(2, VOCABULARY, VOCABULARY)
        self.teacher = table(VOCABULARY, VOCABULARY)

    def outputs(self, batch, needs=None):
        """What a loss needs; without ``needs`` all there is."""
        before, chosen = batch.before_A, batch.target_A
        logp_AV = self.logits[before].log_softmax(-1)
        ways = {
            "logp": lambda: logp_AV.gather(-1, chosen[:, None])[:, 0],
            "entropy": lambda: -(logp_AV.exp() * logp_AV).sum(-1),
            "divergence": lambda: Divergence()(logp_AV, self.teacher[before].log_softmax(-1)),
            "value": lambda: self.values[before],
            "score": lambda: self.scores[batch.late_B],
            "step": lambda: self.scores[before],
            "q": lambda: self.q[:, before, chosen].T,
            "q/logsumexp": lambda: self.q[:, before].logsumexp(-1).T,
            "q/target": lambda: self.target[:, before, chosen].T,
            "q/state_value": lambda: self.values[before],
        }
        return {name: way() for name, way in ways.items() if needs is None or name.split("/")[0] in needs}

    def grad(self):
        return torch.cat([(torch.zeros_like(part) if part.grad is None else part.grad).flatten() for part in self.parts])

    def accumulate(self, loss, micro_batches, denominator, order=None):
        """Loss, metrics and gradient over micro-batches, combined as the learner has to."""
        for part in self.parts:
            part.grad = None
        total, metrics = 0.0, {}
        for units in micro_batches:
            batch, fields = lay_out(units, order)
            share, found = loss(self.outputs(batch, loss.needs), fields, batch, denominator)
            share.backward()
            total += share.item()
            for name, value in found.items():
                known = metrics.get(name, 0.0)
                metrics[name] = max(known, float(value)) if name.startswith("max/") else known + float(value)
        return total, metrics, self.grad()


def assert_split_changes_nothing(loss, units, cuts, seed):
    """Micro-batches cut after the units ``cuts`` give the loss, metrics and gradient of the whole batch."""
    model = Table(seed)
    pieces = [units[a:b] for a, b in pairwise([0, *sorted(cuts), len(units)])]
    whole, whole_metrics, whole_grad = model.accumulate(loss, [units], count(units))
    total, metrics, grad = model.accumulate(loss, pieces, count(units))
    assert total == pytest.approx(whole, abs=1e-6)
    assert metrics == pytest.approx(whole_metrics, abs=1e-6)
    torch.testing.assert_close(grad, whole_grad, atol=1e-6, rtol=1e-6)


def assert_order_changes_nothing(loss, units, data):
    """Rows in any order that hypothesis draws from ``data`` give the same loss and gradient."""
    model = Table()
    order = data.draw(st.permutations(range(sum(len(unit) for unit in units))))
    whole, _, whole_grad = model.accumulate(loss, [units], count(units))
    total, _, grad = model.accumulate(loss, [units], count(units), order)
    assert total == pytest.approx(whole, abs=1e-9)
    torch.testing.assert_close(grad, whole_grad, atol=1e-9, rtol=1e-9)


def assert_a_step_descends(loss, units, rate):
    """The gradient is not zero, and a small step against it lowers the loss."""
    model = Table()
    before, _, grad = model.accumulate(loss, [units], count(units))
    with torch.no_grad():
        for part in model.parts:
            part -= rate * part.grad if part.grad is not None else 0
    after, _, _ = model.accumulate(loss, [units], count(units))
    assert grad.abs().max() > 0
    assert after < before
