"""What holds a run up, and which change would help, from the account of its roles' time."""

from __future__ import annotations

from dataclasses import dataclass

from penstock.observe.timeline import Account, kind_of

WAITS, PUBLISHES, SAVES, EVALUATES = 0.3, 0.1, 0.1, 0.2
"""Shares of time from which on something counts as a bottleneck."""


@dataclass(frozen=True)
class Bottleneck:
    """What takes ``share`` of the time of ``role``, and what to change."""

    role: str
    share: float
    what: str
    change: str

    def __str__(self) -> str:
        return f"{self.role} {self.what} {self.share:.0%} of its time: {self.change}"


def bottleneck(found: Account) -> Bottleneck | None:
    """What takes most of the learner's time, or else what generators wait for; None where nothing is recorded.

    The learner's shares are of its time; where it takes batches, without what lies before its first wait only for the wait
    itself. Generators and reward workers are each taken together.
    """
    learner = next((role for role in found.roles if role.role == "learner"), None)
    if learner is None or learner.alive <= 0:
        return None
    waits, idle = found.learner_waits or 0.0, found.generators_idle
    unscored = found.waits.get("learner", {}).get("reward", 0.0) / learner.alive
    publishes, saves, evaluates = (learner.seconds.get(kind, 0.0) / learner.alive for kind in ("publish", "save", "evaluate"))
    rules = (
        (publishes > PUBLISHES, "learner", publishes, "publishes weights",
         "another roles.channel, or adapters (learner.lora), which are small"),
        (saves > SAVES, "learner", saves, "saves", "a larger checkpoint.every"),
        (evaluates > EVALUATES, "learner", evaluates, "evaluates", "a larger evaluation.every, or roles.evaluator"),
        (unscored > WAITS, "learner", unscored, "waits for rewards", "more roles.rewards, or quicker rewards"),
        (waits > WAITS >= unscored and idle is not None and idle > WAITS, "learner", waits,
         "waits for groups while generators idle", "a larger max_lag (with runtime procs or ray), so that both work at a time"),
        (waits > WAITS >= unscored, "learner", waits, "waits for groups", "more roles.generators, or a faster engine"),
        (idle is not None and idle > WAITS, "generators", idle or 0.0, "idle",
         "a larger max_lag, a faster learner (more ranks), "
         "or fewer generators"),
    )  # fmt: skip
    if held := [rule[1:] for rule in rules if rule[0]]:
        return Bottleneck(*max(held, key=lambda rule: (rule[0] == "learner", rule[1])))
    trains = (learner.seconds.get("train", 0.0) + learner.seconds.get("label", 0.0)) / learner.alive
    return Bottleneck(
        "learner", trains, "trains", "nothing holds it up; a faster learner (more ranks, bfloat16) is what is left"
    )


def times(found: Account) -> dict[str, dict[str, float]]:
    """By kind of role, learner and generators, the shares of its time: ``computing``, ``moving weights``, ``waiting for`` each
    other kind, and ``idle`` where nobody worked."""
    shares: dict[str, dict[str, float]] = {}
    for kind in ("learner", "generator"):
        roles = [role for role in found.roles if kind_of(role.role) == kind]
        alive = sum(role.alive for role in roles)
        if alive <= 0:
            continue
        moving = sum(role.seconds.get(name, 0.0) for role in roles for name in ("publish", "update"))
        seconds = {"computing": sum(role.work for role in roles) - moving, "moving weights": moving}
        waits = found.waits.get(kind, {})
        seconds |= {f"waiting for {whom}s": spent for whom, spent in sorted(waits.items()) if whom}
        seconds["idle"] = waits.get("", 0.0)
        shares[kind] = {name: spent / alive for name, spent in seconds.items()}
    return shares
