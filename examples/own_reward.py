"""An own reward on own rows: a small model from scratch sees six answers in SFT, then GRPO teaches it to get them right."""

import penstock
from penstock import GRPO, SFT, LearnerSpec, ModelSpec, Offline, Online, Run, Sampling


def colours():
    things = {"grass": "green", "snow": "white", "coal": "black", "blood": "red", "the sky": "blue", "the sun": "yellow"}
    return [{"prompt": f"{thing} is ", "answer": colour} for thing, colour in things.items()]


def right(sample, row):
    return 1.0 if sample.text == row["answer"] else -len(sample.text) / 20


def run(steps: int = 12) -> Run:
    """SFT on six rows, then GRPO with an own reward; seconds on a laptop CPU."""
    data, learner = penstock.rows(colours, completion="{{ answer }}"), LearnerSpec(learning_rate=3e-3)
    new = ModelSpec(preset="1m", layers=1, vocabulary=300, context=64)
    sft = Offline(name="sft", model=new, data=data, algorithm=SFT(), learner=learner, batch=6, steps=3)
    grpo = Online(name="grpo", model=ModelSpec(path="@sft"), data=data, rewards=(penstock.reward(right),), algorithm=GRPO(),
                  learner=learner, sampling=Sampling(max_new_tokens=8), samples=8, batch=6, steps=steps)  # fmt: skip
    return Run(name="own-reward", stages=(sft, grpo), threads=1)


if __name__ == "__main__":
    result = penstock.train(run())
    print("reward", [round(event["values"]["reward/mean"], 2) for event in result.metrics if event["stage"] == "grpo"])
