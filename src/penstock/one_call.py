"""From a model and what is at hand (prompts and a reward, samples, samples with rewards, preferences) to a run of one stage.

The data says which algorithm: prompts are answered and rewarded (GRPO unless another is named), samples are imitated (SFT),
samples with rewards are improved on (ILQL), preferences are followed (DPO).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from penstock.config.elsewhere import alone, refusal
from penstock.config.run import DataSpec, EvaluationSpec, ModelSpec, Offline, Online, RewardSpec, Run, require_kind
from penstock.config.spec import convert, field_types, suggestion
from penstock.core.errors import SpecError
from penstock.data.held import held
from penstock.data.layouts import ASKING

PRESETS = ("1m", "3m", "10m")
"""Names of models built from scratch on the run's own data."""

USES = {
    "prompts": (("prompt",), "GRPO"),
    "samples": (("prompt", "completion"), "SFT"),
    "samples with rewards": (("prompt", "completion", "reward"), "ILQL"),
    "preferences": (("prompt", "chosen", "rejected"), "DPO"),
}
"""What can be learned from: the columns of its rows, and the algorithm if none is named."""

OF_DATA = ("prompt", "completion", "chosen", "rejected", "chat", "too_long", "shuffle", "split")
"""Fields of the data that a call may give; those that say how a row reads hold for held-out rows too."""

_OF_RUN = set(field_types(Run)) - {"stages"}

MakeData = Callable[[Any], DataSpec]
MakeReward = Callable[[Any], RewardSpec]


def compose(model: str | ModelSpec, given: Mapping[str, Any], rows: MakeData, reward: MakeReward) -> Run:
    """The run that one call describes.

    Args:
        model: a folder or hub name, a preset's name, or a spec.
        given: the call's keywords: ``prompts`` and ``reward`` (one or several), or ``samples`` (with ``rewards`` or
            without), or ``preferences``; ``algorithm`` and ``evaluation`` where wanted; and any field of the run, of the
            stage, or of a spec within the stage, by its own name.
        rows: makes data of rows.
        reward: makes a reward of a function.

    Raises:
        SpecError: nothing to learn from, things that do not go together, an unknown or ambiguous field.
    """
    left = dict(given)
    use, data = _material(left, rows)
    of_data = {name: convert(field_types(DataSpec)[name], left.pop(name), name) for name in OF_DATA if name in left}
    data = dataclasses.replace(data, **of_data)
    columns, usual = USES[use]
    values: dict[str, Any] = {"name": "train", "model": _model(model), "data": data}
    values["algorithm"] = left.pop("algorithm", None) or _usual(usual)
    if use == "prompts":
        many = left.pop("reward")
        many = many if isinstance(many, list | tuple) else [many]
        values["rewards"] = tuple(one if isinstance(one, RewardSpec) else reward(one) for one in many)
    require_kind("train", values["algorithm"], "samples" if use == "prompts" else "data")
    stage = Online if use == "prompts" else Offline
    if "value" in values["algorithm"].heads:
        values["learner"] = dataclasses.replace(stage.learner, critic="separate")
    if "evaluation" in left:
        held_out = left.pop("evaluation")
        reads = data
        if isinstance(left.get("data"), Mapping):  # how rows read holds for held-out rows too, wherever it is said
            reads = dataclasses.replace(data, **{name: one for name, one in left["data"].items() if name in OF_DATA[:5]})
        values["evaluation"] = _evaluation(held_out, reads, columns, rows)
    about_run = {name: convert(field_types(Run)[name], left.pop(name), name) for name in set(left) & _OF_RUN}
    for name, value in left.items():
        _set(stage, values, name, value)
    return Run(**{"name": "train", **about_run, "stages": (stage(**values),)})


def _evaluation(given: Any, data: DataSpec, columns: Sequence[str], rows: MakeData) -> EvaluationSpec:
    """Held-out rows, which read as the rows that are learned from do."""
    if isinstance(given, EvaluationSpec):
        known = isinstance(given.data, DataSpec)
        return given if known else dataclasses.replace(given, data=_evaluation(given.data, data, columns, rows).data)
    held_out = _data(given, "evaluation", columns, rows)
    if not isinstance(given, DataSpec):
        held_out = dataclasses.replace(held_out, **{name: getattr(data, name) for name in OF_DATA[:5]})
    return EvaluationSpec(data=held_out)


def _model(model: str | ModelSpec) -> ModelSpec:
    if isinstance(model, ModelSpec):
        return model
    if not isinstance(model, str) or not model:
        raise SpecError(f"model={model!r}; give a folder, a hub name, a preset ({', '.join(PRESETS)}) or a ModelSpec")
    return ModelSpec(preset=model) if model in PRESETS else ModelSpec(path=model)  # type: ignore[arg-type]


def _usual(name: str) -> Any:
    from penstock import algos

    return getattr(algos, name)()


def _material(left: dict[str, Any], rows: MakeData) -> tuple[str, DataSpec]:
    """What is learned from, and its data; taken out of ``left``. A whole number as ``samples`` is how many to draw."""
    there = [name for name in ("prompts", "samples", "preferences") if name in left and not isinstance(left[name], int)]
    if len(there) != 1:
        raise SpecError(
            "train learns from one of prompts=… (with reward=…), samples=… (with or without rewards=…) and preferences=…; "
            f"got {' and '.join(there) or 'none of them'}"
        )
    source = there[0]
    if source == "prompts" and "reward" not in left:
        raise SpecError("prompts=… are answered by the model, and reward=… must score the answers; it is missing")
    for name, wanted in (("reward", "prompts"), ("rewards", "samples")):
        if name in left and source != wanted:
            raise SpecError(f"{name}=… goes with {wanted}=…, not with {source}=…")
    given = left.pop(source)
    if "rewards" not in left:
        return source, _data(given, source, USES[source][0], rows)
    use, rewards = "samples with rewards", held(left.pop("rewards"), "rewards")
    if isinstance(given, DataSpec | str | Path) or callable(given):
        raise SpecError(
            "rewards=… goes with samples at hand; rows from elsewhere bring theirs in a column, with algorithm=ILQL()"
        )
    samples = [_row(sample, USES[source][0], number) for number, sample in enumerate(held(given, source))]
    if len(samples) != len(rewards):
        raise SpecError(f"{len(samples)} samples but {len(rewards)} rewards; give one reward each")
    return use, rows([sample | {"reward": value} for sample, value in zip(samples, rewards, strict=True)])


def _data(given: Any, name: str, columns: Sequence[str], rows: MakeData) -> DataSpec:
    if isinstance(given, DataSpec):
        return given
    if isinstance(given, str | Path) or callable(given):
        return rows(str(given) if isinstance(given, Path) else given)
    return rows([_row(item, columns, number) for number, item in enumerate(held(given, name))])


def _row(item: Any, columns: Sequence[str], number: int) -> dict[str, Any]:
    """A row of one thing at hand: a mapping, a tuple in the order of ``columns``, or a text (a prompt, or a completion)."""
    if isinstance(item, Mapping):
        alone = "completion" in item and not {*ASKING, "messages", "conversations"} & item.keys()
        return {"prompt": "", **item} if alone else dict(item)
    if isinstance(item, str) and len(columns) <= 2:
        return {"prompt": "", columns[-1]: item}
    if isinstance(item, tuple | list) and len(item) == len(columns):
        return dict(zip(columns, item, strict=True))
    raise SpecError(f"row {number} is {item!r:.60}; give a mapping with {', '.join(columns)}, or a tuple in this order")


def _set(stage: type, values: dict[str, Any], name: str, value: Any) -> None:
    """Set a field of the stage, or of a spec within it, that is called ``name``."""
    while "." in name:  # a path is a mapping of one field
        name, _, field = name.rpartition(".")
        value = {field: value}
    known = field_types(stage)
    held = {field: values.get(field, getattr(stage, field, None)) for field in known}
    of_call = {field: getattr(Run, field, "") for field in (*_OF_RUN, "folder", "resume", "take_over")}
    if said := refusal(name, value, {**of_call, **held}):
        raise SpecError(said)
    if name in known:
        values[name] = _merged(held[name], value, known[name], name)
        return
    inside = {field: one for field, one in held.items() if field not in ("data", "evaluation", "rewards")}
    homes = [field for field, one in inside.items() if _is_spec(one) and name in field_types(type(one))]
    if not isinstance(value, int | float):  # a pair, or None, as ``clip`` is the algorithm's, a number may be that of rewards
        homes = [home for home in homes if home == "algorithm"] or homes
    if len(homes) != 1:
        every = {*known, *(inner for one in inside.values() if _is_spec(one) for inner in field_types(type(one)))}
        each = " or ".join(alone(home, inside[home], name) for home in homes)
        raise SpecError(
            f'"{name}" is a field of {" and of ".join(homes)}; say {each}'
            if homes
            else f'unknown field "{name}"{suggestion(name, sorted(every))}'
        )
    values[homes[0]] = _merged(inside[homes[0]], {name: value}, known[homes[0]], homes[0])


def _is_spec(value: Any) -> bool:
    return dataclasses.is_dataclass(value) and not isinstance(value, type)


def _merged(current: Any, value: Any, kind: Any, path: str) -> Any:
    """``value`` checked against its annotation; a mapping changes single fields of the spec that is there."""
    if not (isinstance(value, Mapping) and _is_spec(current)) or "kind" in value.keys() - field_types(type(current)).keys():
        return convert(kind, value, path)
    known = field_types(type(current))
    if unknown := sorted(set(value) - set(known)):
        raise SpecError(f'{path}: unknown field "{unknown[0]}"{suggestion(unknown[0], known)}')
    return dataclasses.replace(
        current, **{name: _merged(getattr(current, name), item, known[name], f"{path}.{name}") for name, item in value.items()}
    )
