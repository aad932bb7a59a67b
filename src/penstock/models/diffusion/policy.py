"""Denoisers as losses and learners see them: rows are trajectories, actions the transitions that may be trained on.

A trajectory's columns have one entry a state: ``state_TD`` (float32, from the first noise to the picture), ``time_T``, and
``prompt_TC``, the same prompt in each. As with tokens, an action is where its result is: that of entry k is the state ``k``,
sampled from what the policy makes of entry ``k - 1``.
"""

from __future__ import annotations

import hashlib
import itertools
import math
import struct
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from penstock.core.contracts import Batch, Policy
from penstock.core.errors import SpecError, TrainingError
from penstock.core.types import Row, Unit
from penstock.models.diffusion import kernels
from penstock.models.diffusion.model import DenoisingModel
from penstock.models.lora import adapter_off
from penstock.models.packing import check_fields, fields_of
from penstock.models.uploads import uploaded

KEY = "noise_key"
"""The field of a row that its times and noise follow from; rows with the same key have the same."""


def times_and_noise(
    key_B: NDArray[np.float32], row_A: NDArray[np.int32], shape: Sequence[int], stream: torch.Generator | None
) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """For each action of each row a time, spread evenly from 0 to 1 over the row, and noise: ``[A]`` and ``[A, *shape]``.

    They follow from the row's key and from the state of a random stream, which is left as it is; without one, from the
    key alone.
    """
    now = b"" if stream is None else hashlib.blake2b(stream.get_state().numpy().tobytes()).digest()
    times, noise = [], []
    for key, count in zip(key_B.tolist(), np.bincount(row_A, minlength=len(key_B)).tolist(), strict=True):
        digest = hashlib.blake2b(now + struct.pack("<d", key), digest_size=16).digest()
        draw = np.random.Generator(np.random.Philox(key=int.from_bytes(digest, "little")))
        times.append((np.arange(count) + draw.random(count)) / count)
        noise.append(draw.standard_normal((count, *shape), np.float32))
    return np.concatenate(times).astype(np.float32), np.concatenate(noise)


STATES, TIMES, PROMPTS = "state_TD", "time_T", "prompt_TC"
PICTURE = "picture"
"""The extra of a trajectory of latents: its decoded picture, uint8 ``[H, W, C]``."""
DROP = "prompt_drop"
"""The field of a row that is to be learned from: how probable it is that its prompt is not read (classifier-free guidance)."""
ERROR = "denoising_error"
"""The output that a denoiser is pre-trained by: its squared error at a random time, in the mean over a picture's values."""
JUDGED = "judged"
"""The output, one a row, of a differentiable reward of the picture that the row's transitions lead to."""


@dataclass(frozen=True, kw_only=True)
class DenoisingBatch(Batch):
    """Transitions of trajectories, one an action: where each comes from, where it went, and under which prompt."""

    state_AD: NDArray[Any]
    reached_AD: NDArray[Any]
    time_A: NDArray[Any]
    next_A: NDArray[Any]
    prompt_AC: NDArray[Any]


class DiffusionPolicy(Policy):
    """A denoiser as a policy. Outputs by name, each an entry an action: "logp" and "entropy" (in the mean over a state's
    dimensions), "divergence" (the KL of the transition to that of a frozen reference, likewise), ERROR, and "prediction"
    ``[A, ...]``, what is predicted at a random time, with "prediction/old" by the slow copy and "prediction/reference", if
    there are such, "prediction/wanted" and the "prediction/time"; "transition" ``[A, ...]``, the mean of each, with
    "transition/deviation" and the "transition/span" of time ``[A]``; and, an entry a row, JUDGED."""

    def __init__(self, model: DenoisingModel) -> None:
        self.model = model
        self.teacher: Callable[[Question], Tensor] | None = None
        """What a frozen reference answers."""
        self.judge: Callable[[Tensor, Sequence[str]], Tensor] | None = None
        """From pictures ``[B, C, H, W]``, values from about -1 to 1, and their prompts to a number each, with gradient."""
        self._noise: torch.Generator | None = None
        self._read: torch.Generator | None = None
        """The stream whose state the noise of this optimizer step follows from."""

    @property
    def module(self) -> DenoisingModel:
        return self.model

    @property
    def per_row(self) -> frozenset[str]:
        return frozenset({JUDGED})

    def weights(self) -> Iterator[tuple[str, Tensor]]:
        yield from ((name, tensor.detach()) for name, tensor in self.model.sampler.plain_weights())

    def prepare(self, spec: Any, seed: int) -> None:
        """Raises SpecError where the spec asks for what denoisers have not."""
        spec = self.model.adapted(spec, seed)
        super().prepare(spec, seed)
        asked = {"dtype": "float32", "gradient_checkpointing": False, "router_loss": 0.0, "replay_routes": False}
        for name, usual in asked.items():
            if getattr(spec, name) != usual:
                raise SpecError(f"learner.{name}={getattr(spec, name)} is not known to denoisers; set it to {usual}")

    def lay_out(self, units: Sequence[Unit], budget: int, coupled: bool = True) -> list[DenoisingBatch]:
        """Units as micro-batches of at most ``budget`` passes, one a transition or two under guidance; what is larger is
        alone."""
        check_fields([row for unit in units for row in unit])
        places = itertools.count()
        numbered = [tuple((next(places), row) for row in unit) for unit in units]
        packs: list[list[tuple[tuple[int, Row], ...]]] = []
        room = 0
        for part in numbered if coupled else [(one,) for unit in numbered for one in unit]:
            cost = self.model.passes * sum(int(row.action_T.sum()) for _, row in part)
            if not packs or cost > room:
                packs.append([])
                room = budget
            packs[-1].append(part)
            room -= cost
        return [batch_of(pack, self.model.text.pad) for pack in packs]

    @contextmanager
    def dropout(self, spec: Any, noise: torch.Generator) -> Iterator[None]:
        """Within it the noise of ERROR comes from the learner's random stream, else from one of its own."""
        self._noise = noise
        try:
            yield
        finally:
            self._noise = None

    def stepped(self, updates: int) -> None:
        """The slow copy follows, and the next step has other noise."""
        if self.model.slow is not None:
            self.model.slow.follow(updates, self.model)
        if self._read is not None:
            torch.rand(1, generator=self._read)
            self._read = None

    def slow(self) -> list[tuple[str, Tensor]]:
        """The weights of the slow copy."""
        return list(self.model.slow.weights()) if self.model.slow is not None else []

    def outputs(self, batch: DenoisingBatch, needs: frozenset[str]) -> dict[str, Tensor]:
        found: dict[str, Tensor] = {}
        if ERROR in needs:
            found[ERROR] = self._error(batch)
        if JUDGED in needs:
            found[JUDGED] = self._judged(batch)
        if needs & {"logp", "entropy", "divergence", "transition"}:
            mean_AD, deviation_A = self.gaussian(batch)
            span_A = self._up(batch.time_A - batch.next_A)
            found |= {"transition": mean_AD, "transition/deviation": deviation_A, "transition/span": span_A}
            found["logp"] = kernels.log_prob(self._up(batch.reached_AD), mean_AD, deviation_A)
            found["entropy"] = deviation_A.log() + 0.5 * (1 + math.log(2 * math.pi))
            if "divergence" in needs:
                assert self.teacher is not None
                other_AD = self.teacher(lambda policy: policy.gaussian(batch)[0])
                found["divergence"] = kernels.divergence(mean_AD, other_AD, deviation_A)
        if "prediction" in needs:
            found |= self._predictions(batch)
        return {name: tensor for name, tensor in found.items() if name.partition("/")[0] in needs}

    def teaching(self, between: Any) -> Callable[[Question], Tensor]:
        """This policy as the reference of another. Two Gaussians of the same deviation have one KL, whatever ``between`` is."""

        @torch.no_grad()
        def asked(question: Question) -> Tensor:
            return question(self)

        return asked

    def gaussian(self, batch: DenoisingBatch) -> kernels.Gaussian:
        time_A, next_A = self._up(batch.time_A), self._up(batch.next_A)
        return transition(self.model, self._up(batch.state_AD), time_A, next_A, self._up(batch.prompt_AC, torch.int64))

    def _judged(self, batch: DenoisingBatch) -> Tensor:
        """From the state before a row's first transition through all of them, without noise; each row has as many.

        Raises:
            TrainingError: the judge gives something else than one number a picture.
        """
        assert self.judge is not None
        first = np.flatnonzero(np.diff(batch.row_A, prepend=-1))
        state_BD, prompt_BC = self._up(batch.state_AD[first]), self._up(batch.prompt_AC[first], torch.int64)
        for step in range(len(batch.row_A) // len(first)):
            time_B, next_B = (self._up(time_A[first + step]) for time_A in (batch.time_A, batch.next_A))
            state_BD, _ = transition(self.model, state_BD, time_B, next_B, prompt_BC, torch.ones_like(time_B, dtype=torch.bool))
        judged_B = self.judge(self.model.decoded(state_BD), [self.model.text.decode(row) for row in prompt_BC.tolist()])
        if judged_B.shape != (len(first),):
            raise TrainingError(f"the judge gives {list(judged_B.shape)} for {len(first)} pictures; give one number a picture")
        return judged_B

    def _predictions(self, batch: DenoisingBatch) -> dict[str, Tensor]:
        """At times and with noise that follow from the rows' field KEY; guided if a slow copy draws so in its place."""
        picture_AD, prompt_AC = self.model.encoded(self._up(batch.reached_AD)), self._up(batch.prompt_AC, torch.int64)
        self._read = self._noise
        chosen = times_and_noise(batch.fields[KEY], batch.row_A, picture_AD.shape[1:], self._noise)
        time_A, noise_AD = (self._up(array) for array in chosen)
        noisy_AD, wanted_AD = kernels.mixed(picture_AD, noise_AD, time_A, self.model.prediction, self.model.signal)
        slow = self.model.slow

        def predicted(model: DenoisingModel) -> Tensor:
            found: Tensor = (model.predicted if slow is not None else model.network)(noisy_AD, time_A, prompt_AC)
            return found

        found = {"prediction": predicted(self.model), "prediction/wanted": wanted_AD, "prediction/time": time_A}
        if slow is not None:
            with torch.no_grad():
                found["prediction/old"] = predicted(slow.model)
        if self.teacher is not None:
            found["prediction/reference"] = self.teacher(lambda policy: predicted(policy.model))
        return found

    def _error(self, batch: DenoisingBatch) -> Tensor:
        """At times that are spread evenly over the micro-batch, each with an offset of its own."""
        picture_AD, count = self.model.encoded(self._up(batch.reached_AD)), len(batch.reached_AD)
        stream = self._noise if self._noise is not None else torch.Generator().manual_seed(count)
        time_A = (torch.arange(count) + torch.rand(count, generator=stream)) / count
        time_A = time_A[torch.randperm(count, generator=stream)].to(picture_AD.device)
        noise_AD = torch.randn(picture_AD.shape, generator=stream).to(picture_AD.device)
        noisy_AD, wanted_AD = kernels.mixed(picture_AD, noise_AD, time_A, self.model.prediction, self.model.signal)
        prompt_AC = self._up(batch.prompt_AC, torch.int64)
        if DROP in batch.fields and self._noise is not None:
            dropped_A = torch.rand(count, generator=stream) < torch.from_numpy(batch.fields[DROP])
            empty_AC = self.model.prompts("", *prompt_AC.shape)
            prompt_AC = torch.where(dropped_A.to(prompt_AC.device)[:, None], empty_AC, prompt_AC)
        predicted_AD = self.model.network(noisy_AD, time_A, prompt_AC)
        return (predicted_AD - wanted_AD).square().flatten(1).mean(1)

    def _up(self, array: NDArray[Any], dtype: torch.dtype = torch.float32) -> Tensor:
        return uploaded(array, self.model.device, dtype)


class AdapterOffDiffusion(DiffusionPolicy):
    """A denoiser as it was before its low-rank adapters: the reference of a policy that trains them."""

    def outputs(self, batch: DenoisingBatch, needs: frozenset[str]) -> dict[str, Tensor]:
        with adapter_off(self.model.network):
            return super().outputs(batch, needs)

    def teaching(self, between: Any) -> Callable[[Question], Tensor]:
        taught = super().teaching(between)

        def asked(question: Question) -> Tensor:
            with adapter_off(self.model.network):
                return taught(question)

        return asked


Question = Callable[[DiffusionPolicy], Tensor]
"""What a policy is asked as the reference of another."""


def transition(
    model: DenoisingModel, state_AD: Tensor, time_A: Tensor, next_A: Tensor, prompt_AC: Tensor, quiet_A: Tensor | None = None
) -> kernels.Gaussian:
    """The Gaussian that each state's next one is sampled from, at the model's noise; none where ``quiet_A``."""
    predicted_AD = model.predicted(state_AD, time_A, prompt_AC)
    noise_A = torch.full_like(time_A, model.denoising.noise)
    if quiet_A is not None:
        noise_A = torch.where(quiet_A, 0.0, noise_A)
    more = {"clip": model.denoising.clip, "signal": model.signal} if model.prediction == "noise" else {}
    return kernels.KERNELS[model.denoising.kernel](state_AD, predicted_AD, time_A, next_A, noise_A, **more)


def batch_of(pack: Sequence[Sequence[tuple[int, Row]]], pad: int) -> DenoisingBatch:
    """Rows with their positions, unit by unit, as one micro-batch; prompts are filled up with ``pad``."""
    rows = [row for part in pack for _, row in part]
    reached = [np.flatnonzero(row.action_T) for row in rows]
    before = [np.maximum(index - 1, 0) for index in reached]  # a picture to be learned from has nothing before it
    prompts, counts = [row.columns[PROMPTS][0] for row in rows], [len(index) for index in reached]
    prompt_BC = np.full((len(rows), max(map(len, prompts))), pad, np.int32)
    for place, prompt in enumerate(prompts):
        prompt_BC[place, : len(prompt)] = prompt

    def together(name: str, index: Sequence[Any]) -> NDArray[Any]:
        return np.concatenate([row.columns[name][i] for row, i in zip(rows, index, strict=True)])

    return DenoisingBatch(
        row_A=np.repeat(np.arange(len(rows)), counts).astype(np.int32),
        unit_B=np.concatenate([np.full(len(part), place) for place, part in enumerate(pack)]).astype(np.int32),
        fields=fields_of(rows),
        row_ids=tuple(place for part in pack for place, _ in part),
        state_AD=together(STATES, before),
        reached_AD=together(STATES, reached),
        time_A=together(TIMES, before),
        next_A=together(TIMES, reached),
        prompt_AC=np.repeat(prompt_BC, counts, axis=0),
    )
