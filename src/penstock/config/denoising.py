"""How a diffusion policy draws: the steps of a trajectory and the noise of each."""

from __future__ import annotations

from typing import Literal

from penstock.config.spec import Positive, PositiveShare, Whole, require, spec

Prediction = Literal["velocity", "noise"]
"""What a denoiser predicts: the velocity of a flow (time from 1 to 0), or the noise in a picture (Ho et al. 2020)."""

KERNELS: dict[str, Prediction] = {"flow": "velocity", "dance": "velocity", "ddim": "noise"}


@spec
class Pictures:
    """A denoiser from scratch: what it draws, and what it predicts. The preset of its model spec is its size."""

    shape: tuple[int, int, int] = (1, 8, 8)
    """Channels, height and width."""
    prediction: Prediction = "velocity"

    def __post_init__(self) -> None:
        require(min(self.shape) >= 1, f"denoiser.shape={list(self.shape)}; give channels, height and width")


@spec
class Denoising:
    """A trajectory goes from noise to a picture in ``steps`` transitions, each a Gaussian whose mean the policy decides.

    The last transition adds no noise, since its own would stay in the picture, and is not trained on. With
    ``Sampling.temperature=0`` no transition adds any; the draw is then a function of the first noise alone.
    """

    kernel: Literal["flow", "dance", "ddim"] = "flow"
    """``flow``: Flow-GRPO's (arXiv 2505.05470); ``dance``: DanceGRPO's, the same noise at all times (arXiv 2505.07818); both
    of flows. ``ddim``: DDIM's (arXiv 2010.02502), as DDPO draws (arXiv 2305.13301), of denoisers that predict noise."""
    steps: int = 10
    noise: Positive = 0.7
    """Flow-GRPO's a, DanceGRPO's η (0.3 in its paper), DDIM's η (1 in DDPO's)."""
    window: int = 0
    """Transitions in a row that have noise and are trained on, at a random place that the samples of a prompt share
    (Flow-GRPO-Fast); 0: all but the last. The others cost the learner nothing."""
    slide: Whole = 0
    """Batches after which the window moves on by one transition (MixGRPO, arXiv 2507.21802: 25); 0: a random place."""
    trained: PositiveShare = 1.0
    """Share of the transitions with noise that is trained on, others in each sample (DanceGRPO: 0.6)."""
    same_start: bool = False
    """Whether the samples of a prompt have one first noise (DanceGRPO)."""
    quiet_steps: Whole = 0
    """Steps at temperature 0, in evaluations; 0: as many as ``steps``."""
    shift: Positive = 1.0
    """How much longer a trajectory stays in much noise (Esser et al. 2024, arXiv 2403.03206; 3 for SD3); 1: even steps. That of
    a published pipeline is its scheduler's."""
    guidance: Positive = 1.0
    """w of classifier-free guidance (Ho & Salimans 2022, arXiv 2207.12598): what is predicted is that for an empty prompt plus
    w times what the prompt adds, in sampling and in learning alike; 1: none. A model that was distilled to take it as an input
    (FLUX.1-dev, 3.5) reads the number instead of a second pass."""
    negative: str = ""
    """What guidance leads away from, instead of the empty prompt."""
    guidance_gradient: bool = False
    """Whether gradients flow through the prediction for the empty prompt too; Flow-GRPO's code detaches it since 2025-07."""
    size: Whole = 0
    """Height and width in pixels of what a published pipeline draws; 0: what it was published for."""
    clip: bool = False
    """Clip the picture that ``ddim`` sees in a state to values from -1 to 1, as pictures have them and latents do not."""

    def __post_init__(self) -> None:
        require(not self.clip or self.kernel == "ddim", f'denoising.clip is for kernel="ddim", not "{self.kernel}"')
        require(self.steps >= 2, f"denoising.steps={self.steps}; at least 2, since the last one adds no noise")
        require(
            0 <= self.window < self.steps,
            f"denoising.window={self.window}: of {self.steps} steps the last has no noise; use at most {self.steps - 1}, or 0",
        )
        require(not self.slide or self.window > 0, f"denoising.slide={self.slide} moves a window; set denoising.window=4")
        require(not self.negative or self.guidance != 1, "denoising.negative is for guidance; set denoising.guidance=4.5")
        require(
            self.kernel != "ddim" or self.noise <= 1,
            f'denoising.noise={self.noise} is more than all noise that kernel="ddim" may add; use at most 1',
        )

    @property
    def prediction(self) -> Prediction:
        """What the kernel needs a denoiser to predict."""
        return KERNELS[self.kernel]

    def times(self, quiet: bool) -> list[float]:
        """The times of a trajectory's states, from 1 (all noise) to 0 (none)."""
        count = self.quiet_steps or self.steps if quiet else self.steps
        even = [1 - index / count for index in range(count + 1)]
        return [self.shift * t / (1 + (self.shift - 1) * t) for t in even]
