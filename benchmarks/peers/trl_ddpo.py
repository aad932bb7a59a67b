"""TRL's side of ``benchmarks/denoising.py``; run by a Python that has ``trl==0.23.1`` (the last with DDPO).

The denoiser, its weights, the prompts' tokens, the schedule of noise and the reward are those of our recipe ``digits``; the
loop, the transitions, the log-probs and the update are TRL's DDPOTrainer. The last transition adds no noise and is not among
those that the trainer gets: under this schedule its deviation is so small that ratios overflow and nothing is learned
(``--last`` shows it). Prints one line of JSON.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import itertools
import json
import math
import random
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from accelerate import PartialState
from diffusers import DDIMScheduler
from safetensors.torch import load_file
from sklearn.datasets import load_digits
from sklearn.neural_network import MLPClassifier
from sklearn.svm import SVC
from trl import DDPOConfig, DDPOTrainer
from trl.models.modeling_sd_base import DDPOPipelineOutput, scheduler_step

DENOISER = Path(__file__).resolve().parents[2] / "src/penstock/models/diffusion/denoiser.py"
TIMES, LEAST_SIGNAL = 1000, 1e-4


def our_denoiser(folder: Path) -> torch.nn.Module:
    """The network of a folder that our run has saved, with its weights."""
    found = importlib.util.spec_from_file_location("denoiser", DENOISER)
    assert found
    assert found.loader
    module = importlib.util.module_from_spec(found)
    found.loader.exec_module(module)
    config = json.loads((folder / "config.json").read_text())
    of = {name: config[name] for name in ("shape", "vocab_size", "context", "width", "layers")}
    network: torch.nn.Module = module.Denoiser(**of, pad=0)
    network.load_state_dict(
        {name.removeprefix("network."): value for name, value in load_file(folder / "model.safetensors").items()}
    )
    return network


class Net(torch.nn.Module):
    """The denoiser as TRL calls it: integer times, the prompt's tokens where it has embeddings."""

    def __init__(self, network: torch.nn.Module) -> None:
        super().__init__()
        self.network = network

    def forward(self, latents: Any, timesteps: Any, prompts: Any) -> Any:
        times = (timesteps.float() + 1) / TIMES
        return SimpleNamespace(sample=self.network(latents, times.expand(len(latents)), prompts[:, 0].long()))


class Pipeline:
    """TRL's interface of a pipeline, over pictures without latents."""

    def __init__(self, network: torch.nn.Module, tokens: dict[str, list[int]], last: bool) -> None:
        self.last = last
        left = [LEAST_SIGNAL + (1 - LEAST_SIGNAL) * math.cos(k / TIMES * math.pi / 2) ** 2 for k in range(TIMES + 1)]
        betas = [1 - after / before for before, after in itertools.pairwise(left)]
        self.scheduler = DDIMScheduler(
            TIMES, trained_betas=betas, clip_sample=True, timestep_spacing="trailing", set_alpha_to_one=True
        )
        self.unet, self.vae, self.autocast, self.use_lora = Net(network), torch.nn.Identity(), contextlib.nullcontext, False
        self.text_encoder = Embedded()
        self.tokenizer = Tokens(tokens)

    def __call__(self, prompt_embeds: Any, num_inference_steps: int, eta: float, **_: Any) -> DDPOPipelineOutput:
        self.scheduler.set_timesteps(num_inference_steps + (not self.last))
        state = torch.randn(len(prompt_embeds), *self.unet.network.shape)
        states, logp = [state], []
        with torch.no_grad():
            for when in self.scheduler.timesteps:
                times = when.repeat(len(state))
                quiet = not self.last and when == self.scheduler.timesteps[-1]
                moved = self.scheduler_step(self.unet(state, times, prompt_embeds).sample, times, state, 0.0 if quiet else eta)
                state = moved.latents
                if not quiet:
                    states.append(state)
                    logp.append(moved.log_probs)
        self.scheduler.timesteps = self.scheduler.timesteps[: len(logp)]
        return DDPOPipelineOutput(state, states, logp)

    def scheduler_step(self, *given: Any, **named: Any) -> Any:
        return scheduler_step(self.scheduler, *given, **named)

    def get_trainable_layers(self) -> torch.nn.Module:
        return self.unet

    def set_progress_bar_config(self, **_: Any) -> None:
        pass

    def save_checkpoint(self, *_: Any) -> None:
        pass

    load_checkpoint = save_checkpoint


class Embedded(torch.nn.Module):
    """Tokens as they are, ``[B, 1, C]``."""

    def forward(self, tokens: Any) -> Any:
        return (tokens[:, None].float(),)


class Tokens:
    """Prompts that are looked up; each has the same number of tokens."""

    def __init__(self, of: dict[str, list[int]]) -> None:
        self.of, self.model_max_length = of, len(next(iter(of.values())))
        self.names = {tuple(ids): name for name, ids in of.items()}

    def __call__(self, prompts: Any, **_: Any) -> Any:
        asked = [prompts] if isinstance(prompts, str) else prompts
        return SimpleNamespace(input_ids=torch.tensor([self.of.get(prompt, [0] * self.model_max_length) for prompt in asked]))

    def batch_decode(self, ids: Any, **_: Any) -> Any:
        return np.array([self.names[tuple(row)] for row in ids.tolist()])


def flat(pictures: Any) -> Any:
    """Values from -1 to 1 as the data set has them, from 0 to 16."""
    seen = np.round((np.clip(pictures, -1, 1) + 1) * 127.5)
    return seen.reshape(len(seen), -1) * (16 / 255)


def judges() -> tuple[Any, Any]:
    """The reward's network, trained on the first half of the pictures, and the gold machine, on the second."""
    found: Any = load_digits()
    pictures = (found.images * (255 / 16)).round().reshape(len(found.images), -1) * (16 / 255)
    first, second = slice(0, None, 2), slice(1, None, 2)
    reward = MLPClassifier((64,), max_iter=400, random_state=0).fit(pictures[first], found.target[first])
    return reward, SVC(gamma=0.02 / 16).fit(pictures[second], found.target[second])


def prompts(samples: int) -> Any:
    """Digits in an order that is shuffled each time around, each for a group of samples."""
    while True:
        order = [str(digit) for digit in range(10)]
        random.shuffle(order)
        for digit in order:
            yield from [digit] * samples


def settings(given: argparse.Namespace, steps: int) -> DDPOConfig:
    """16 prompts x 16 samples, four updates a batch of nine transitions; gradients are as they are, as ours."""
    return DDPOConfig(
        seed=given.seed, sample_num_steps=steps, sample_eta=1.0, sample_guidance_scale=1.0, sample_batch_size=256,
        sample_num_batches_per_epoch=1, train_batch_size=64, train_gradient_accumulation_steps=1, train_num_inner_epochs=1,
        train_cfg=False, train_learning_rate=3e-4, train_clip_range=1e-3, train_timestep_fraction=0.9 if given.last else 1.0,
        train_adv_clip_max=5.0,
        per_prompt_stat_tracking=True, train_max_grad_norm=1e9, train_adam_weight_decay=0.0, mixed_precision="no",
        log_with=None, num_epochs=given.steps, save_freq=10**9,
    )  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("--steps", type=int, required=True)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--last", action="store_true", help="with the last transition among those that are trained on")
    parser.add_argument("--warm", type=int, default=2)
    given = parser.parse_args()
    PartialState(cpu=True)  # TRL logs before it makes one
    random.seed(given.seed)
    torch.manual_seed(given.seed)
    tokens = json.loads((given.folder / "prompts.json").read_text())
    pipeline = Pipeline(our_denoiser(given.folder), tokens, given.last)
    reward, gold = judges()
    asked = prompts(16)

    def rewards(images: Any, wanted: Any, _: Any) -> Any:
        seen = reward.predict_proba(flat(images.numpy()))
        return seen[np.arange(len(wanted)), [int(digit) for digit in wanted]], {}

    steps = 10 if given.last else 9
    trainer = DDPOTrainer(settings(given, steps), rewards, lambda: (next(asked), {}), pipeline)
    generated: list[float] = []
    generating = trainer._generate_samples

    def timed(**named: Any) -> Any:
        began = time.perf_counter()
        try:
            return generating(**named)
        finally:
            generated.append(time.perf_counter() - began)

    trainer._generate_samples = timed
    whole, used, at = [], [], 0
    for epoch in range(given.steps):
        began, cpu = time.perf_counter(), time.process_time()
        at = trainer.step(epoch, at)
        whole.append(time.perf_counter() - began)
        used.append(time.process_time() - cpu)
    wanted = [str(digit) for digit in range(10) for _ in range(32)]
    drawn = pipeline(pipeline.text_encoder(pipeline.tokenizer(wanted).input_ids)[0], steps, 1.0).images
    right = gold.predict(flat(drawn.numpy())) == np.array([int(digit) for digit in wanted])
    kept = slice(given.warm, None)
    print(
        json.dumps(
            {
                "images": 256 * len(whole[kept]),
                "seconds": sum(whole[kept]),
                "cpu_seconds": sum(used[kept]),
                "generating": sum(generated[kept]),
                "gold": float(right.mean()),
            }
        )
    )


if __name__ == "__main__":
    main()
