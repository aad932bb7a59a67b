"""Bytes that move between the processes of a run."""

from __future__ import annotations

from penstock.config.run import Online, Run

TOKEN_BYTES = 13
"""Of a token on its way: id and version in 4 bytes, log-prob in 4, a flag in 1."""


def moved(stage: Online, run: Run, weights: float) -> list[tuple[str, float, str]]:
    """(what, bytes, which way) between the processes of a run in one step of a stage whose weights take ``weights`` bytes."""
    counts, answers = run.roles, stage.batch * stage.samples * stage.sampling.max_new_tokens * TOKEN_BYTES
    ways = 3 if not counts.references else 4
    readers = "the reward workers" + (", the references" if counts.references else "")
    return [
        ("weights", weights * counts.generators, f"from the learner to {counts.generators} generator(s) by {counts.channel}"),
        (
            "answers",
            float(answers * ways),
            f"at most: to the hub, and from it to {readers} and the learner; prompts with them",
        ),
    ]
