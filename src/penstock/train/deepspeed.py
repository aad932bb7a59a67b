"""A rank's part of a learner through DeepSpeed's ZeRO (arXiv:1910.02054). The only file that imports deepspeed.

Stage 2 shards gradients and optimizer, stage 3 parameters as well. The optimizer is torch's AdamW over the shards. DeepSpeed
averages gradients over ranks; losses have the whole batch's denominator, so each is multiplied by the number of ranks.
"""

from __future__ import annotations

import os
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor, nn

from penstock.config.learner import LearnerSpec
from penstock.config.strategies import DeepSpeed
from penstock.core.contracts import FULL_STEP, Caution, State
from penstock.core.errors import CheckpointError, LargeGradientError, NonFiniteStepError, TrainingError
from penstock.core.types import Metrics
from penstock.train.optimizer import SAMPLED, groups_of, strided
from penstock.train.part import Part, Pass, Table
from penstock.train.skeleton import fill, materialise, tensors_of
from penstock.train.world import World

MOMENTS = ("exp_avg", "exp_avg_sq")

UNUSED = "deepspeed_shm_comm"
"""DeepSpeed's own sum over the processes of a machine, for inference; training sums by gloo."""


def imported(world: World) -> Any:
    """The package. Raises TrainingError where it is missing, or where this process has used it with ranks that have ended."""
    on_cpu = world.device.type == "cpu"
    os.environ["LOCAL_RANK"] = str(world.rank)
    if on_cpu:
        os.environ.setdefault("DS_ACCELERATOR", "cpu")
    try:
        import deepspeed
        from deepspeed import comm, ops
        from deepspeed.utils import logger
    except ImportError as error:
        raise TrainingError(
            f"strategy=DeepSpeed needs the deepspeed package ({error}); run: pip install penstock[deepspeed]"
        ) from error
    logger.setLevel("ERROR")
    backend: Any = comm.comm.cdb
    group = torch.distributed.group.WORLD
    if backend is None:
        # Or it is compiled, where there is a compiler, under a lock that a killed process leaves behind: nobody gets past it.
        ops.__compatible_ops__[UNUSED] = False
        deepspeed.init_distributed(dist_backend="gloo" if on_cpu else "nccl", auto_mpi_discovery=False)
        made: Any = comm.comm.cdb
        made.penstock_group = group
    elif getattr(backend, "penstock_group", None) is not group:
        raise TrainingError("DeepSpeed keeps its first ranks while a process lives, and those have ended; start a new process")
    return deepspeed


class ZeroPart(Part):
    """A rank's part in DeepSpeed's engine."""

    def _made_ready(self) -> Any:
        assert isinstance(self.spec.strategy, DeepSpeed)
        self.deepspeed = imported(self.world)
        materialise(self.model, self.world.device)
        fill(tensors_of(self.model), self._source, self.world)
        passing = Pass(self.policy)
        self.names = {name: parameter for name, parameter in self.model.named_parameters() if parameter.requires_grad}
        groups = groups_of(self.model, [(p, p) for p in self.names.values()], self.spec.optimizer.weight_decay)
        if self.spec.strategy.stage == 3:
            head = self.model.network.get_output_embeddings()  # read where its module is not called
            if head is not None:
                self.deepspeed.zero.register_external_parameter(passing, head.weight)
        engine: Any = self.deepspeed.initialize(
            model=passing,
            optimizer=torch.optim.AdamW(
                groups, lr=self.spec.learning_rate, betas=self.spec.optimizer.betas, eps=self.spec.optimizer.epsilon
            ),
            config=config_of(self.spec, self.world),
            dist_init_required=False,
        )[0]
        self.engine = engine
        self._gathered = 0
        return SimpleNamespace(drop=self._drop)  # all that a part asks of its masters

    def _drop(self) -> None:
        """Forget the gradients gathered so far; stage 2 holds sums of its own besides."""
        outer = self.engine.optimizer
        outer.zero_grad(set_to_none=True)
        if self.spec.strategy.stage == 2:
            outer.micro_step_id = -1
            for held in (outer.averaged_gradients, outer.all_grad_tensors):
                held.update(dict.fromkeys(held))
            if outer.cpu_offload:
                outer.reset_cpu_buffers()
        self._gathered = 0

    def outputs(self, batch: Any, needs: frozenset[str]) -> dict[str, Tensor]:
        found: dict[str, Tensor] = self.engine(self.policy.tensors(batch, needs), needs)
        return found

    def backward(self, value: Tensor) -> None:
        self.engine.backward(value * self.world.size)
        self._gathered += 1

    def optimise(self, caution: Caution = FULL_STEP) -> Metrics:
        """One step of DeepSpeed's optimizer, which knows the norm once it is taken: of limits, 0 alone is kept.

        Raises:
            LargeGradientError: the limit is 0; gradients are dropped.
            NonFiniteStepError: a gradient was not finite. DeepSpeed says so after its step: go on from a checkpoint.
        """
        if not self._gathered:
            raise TrainingError("optimizer step without any gradient: nothing was accumulated")
        if not caution.limit:
            self._drop()
            raise LargeGradientError("no gradient may be taken; the step was not taken")
        rate = self.rate(caution)
        for group in self.engine.optimizer.param_groups:
            group["lr"] = rate
        before = strided(self._partitions(), SAMPLED * len(self.names))
        self.engine.step()
        self._gathered = 0
        norm = float(self.engine.get_global_grad_norm())
        if not torch.isfinite(torch.tensor(norm)):
            raise NonFiniteStepError(f"gradient norm is {norm}; DeepSpeed took the step: go on from the last checkpoint")
        self.updates += 1
        moved = strided(self._partitions(), SAMPLED * len(self.names)) - before
        return {"gradient_norm": norm, "update_size": self.world.mean_square(moved) ** 0.5, "learning_rate": rate}

    def _partitions(self) -> list[Tensor]:
        """This rank's part of the float32 weights, flat, one a group of the optimizer."""
        outer = self.engine.optimizer
        second = hasattr(outer, "single_partition_of_fp32_groups")
        return list(outer.single_partition_of_fp32_groups if second else outer.fp32_partitioned_groups_flat)

    def table(self) -> Table:
        shapes = {name: tuple(getattr(p, "ds_shape", p.shape)) for name, p in self.names.items()}
        found: dict[str, tuple[str, tuple[int, ...]]] = {}
        for name, shape in shapes.items():
            found[f"master.{name}"] = ("float32", shape)
            if self.updates:
                found |= {f"{moment}.{name}": ("float32", shape) for moment in MOMENTS}
                found[f"step.{name}"] = ("float32", ())
        return found

    @torch.no_grad()
    def whole(self, name: str) -> Tensor:
        from deepspeed.utils import safe_get_full_fp32_param, safe_get_full_optimizer_state

        kind, _, of = name.partition(".")
        if kind == "step":
            return torch.tensor(float(self.updates))
        self._link_moments()
        found = (
            safe_get_full_fp32_param(self.names[of])
            if kind in ("parameter", "master")
            else safe_get_full_optimizer_state(self.names[of], kind)
        )
        if found is None:
            raise CheckpointError(f"DeepSpeed has no {name}")
        return torch.as_tensor(found).detach().clone()

    @torch.no_grad()
    def load_state(self, state: State) -> None:
        """Take a whole state; each tensor goes to its shards in turn."""
        self.masters.drop()
        self.updates = int(state.values["updates"])
        self._fresh_moments()
        for name, parameter in self.names.items():
            saved = state.arrays.get(f"master.{name}")
            if saved is None or tuple(saved.shape) != tuple(getattr(parameter, "ds_shape", parameter.shape)):
                raise CheckpointError(f'checkpoint does not fit the model: parameter "{name}" is missing or has another shape')
            with self.deepspeed.zero.GatheredParameters([parameter], modifier_rank=0):
                parameter.data.copy_(saved)
            self._set(parameter, saved)
            for moment in MOMENTS if self.updates else ():
                self._set(parameter, state.arrays[f"{moment}.{name}"], moment)
        self.noise.set_state(state.arrays["noise"])

    def _set(self, parameter: nn.Parameter, whole: Tensor, moment: str | None = None) -> None:
        """Give a parameter's shards their part of a whole master or moment."""
        if not hasattr(parameter, "ds_tensor"):
            parameter.set_full_hp_param(whole, moment)  # type: ignore[attr-defined]
            return
        each = parameter.ds_tensor.numel()  # shards are of one size, the last ends with zeros
        padded = torch.nn.functional.pad(whole.flatten(), (0, each * self.world.size - whole.numel()))
        own = padded.narrow(0, each * self.world.rank, each)
        parameter._z3_optimizer.set_local_hp_param(own, parameter, moment)  # type: ignore[attr-defined]

    def _fresh_moments(self) -> None:
        """Moments of zero after ``updates`` steps, in the shapes of the shards."""
        outer = self.engine.optimizer
        for flat in self._partitions():
            outer.optimizer.state.pop(flat, None)
            if self.updates:
                moments = {moment: torch.zeros_like(flat) for moment in MOMENTS}
                outer.optimizer.state[flat] = {"step": torch.tensor(float(self.updates)), **moments}
        self._link_moments()

    def _link_moments(self) -> None:
        """Let stage 2 find the moments of each parameter anew: it looks once, which may be too early."""
        if hasattr(self.engine.optimizer, "_hp_optimizer_states_linked"):
            self.engine.optimizer._hp_optimizer_states_linked = False
            self.engine.optimizer._lazy_init_hp_params_optimizer_state()


def config_of(spec: LearnerSpec, world: World) -> dict[str, Any]:
    """DeepSpeed's configuration of a spec."""
    assert isinstance(spec.strategy, DeepSpeed)
    zero: dict[str, Any] = {"stage": spec.strategy.stage, "overlap_comm": False, "contiguous_gradients": True}
    if spec.strategy.offload:
        zero["offload_optimizer"] = {"device": "cpu"}
        zero |= {"offload_param": {"device": "cpu"}} if spec.strategy.stage == 3 else {}
    if spec.strategy.stage == 3:
        zero["stage3_param_persistence_threshold"] = 0
    return {
        "train_micro_batch_size_per_gpu": 1,
        "gradient_accumulation_steps": 1,
        "managed_gradient_accumulation": False,  # as many micro-batches as a batch makes
        "gradient_clipping": spec.clip_norm,
        "zero_optimization": zero,
        "zero_allow_untested_optimizer": True,
        "zero_force_ds_cpu_optimizer": False,
        "bf16": {"enabled": spec.dtype == "bfloat16"},
        "data_types": {"grad_accum_dtype": "fp32"},
        "steps_per_print": 1 << 30,
    }
