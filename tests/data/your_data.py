"""Rows in the layouts that others publish, and the page that shows what each becomes (``python tests/data/your_data.py``).

Their shapes are those of the documentation that each names; their contents are short ones of our own.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from penstock.config.run import DataSpec
from penstock.core.errors import DataError
from penstock.core.types import PromptKey
from penstock.data.render import Renderer

PAGE = Path(__file__).resolve().parents[2] / "docs" / "your_data.md"


@dataclass(frozen=True)
class Published:
    """A row of a layout. ``kind``: what it is read as; ``given``: fields of the data spec besides."""

    layout: str
    source: str
    kind: str
    row: dict[str, Any]
    given: dict[str, Any] = field(default_factory=dict)


def user(text: str) -> dict[str, Any]:
    return {"role": "user", "content": text}


def model(text: str, **more: Any) -> dict[str, Any]:
    return {"role": "assistant", "content": text, **more}


TRL, AXOLOTL = "TRL, dataset formats", "Axolotl, dataset formats"
FACTORY, OPENAI = "LLaMA-Factory, data/README.md", "OpenAI, fine-tuning guide"
SKY, BLUE, GREEN = "What colour is the sky?", "It is blue.", "It is green."
CALL = {"type": "function", "function": {"name": "weather", "arguments": '{"city": "Paris"}'}}
TOOLS = [{"type": "function", "function": {"name": "weather", "parameters": {"type": "object", "properties": {}}}}]

ROWS = [
    Published("TRL prompt-only", TRL, "prompts", {"prompt": "The sky is"}),
    Published("TRL prompt-only, conversational", TRL, "prompts", {"prompt": [user(SKY)]}),
    Published("TRL language modeling", TRL, "examples", {"text": "The sky is blue."},
              {"prompt": "", "completion": "{{ text }}"}),
    Published("TRL language modeling, conversational", TRL, "examples", {"messages": [user(SKY), model(BLUE)]}),
    Published("TRL prompt-completion", TRL, "examples", {"prompt": "The sky is", "completion": " blue."}),
    Published("TRL prompt-completion, conversational", TRL, "examples", {"prompt": [user(SKY)], "completion": [model(BLUE)]}),
    Published("TRL preference", TRL, "pairs", {"prompt": "The sky is", "chosen": " blue.", "rejected": " green."}),
    Published("TRL preference, implicit prompt", TRL, "pairs", {"chosen": "The sky is blue.", "rejected": "The sky is green."}),
    Published("TRL preference, conversational", TRL, "pairs",
              {"prompt": [user(SKY)], "chosen": [model(BLUE)], "rejected": [model(GREEN)]}),
    Published("TRL preference, conversational, implicit prompt", TRL, "pairs",
              {"chosen": [user(SKY), model(BLUE)], "rejected": [user(SKY), model(GREEN)]}),
    Published("TRL unpaired preference", TRL, "labelled", {"prompt": "The sky is", "completion": " blue.", "label": True}),
    Published("TRL tool calling", TRL, "examples",
              {"messages": [user("How warm is Paris?"), {"role": "assistant", "tool_calls": [CALL]},
                            {"role": "tool", "name": "weather", "content": "21"}, model("21 degrees.")], "tools": TOOLS}),
    Published("UltraFeedback, binarized: the prompt is said twice", "HuggingFaceH4/ultrafeedback_binarized", "pairs",
              {"prompt": SKY, "chosen": [user(SKY), model(BLUE)], "rejected": [user(SKY), model(GREEN)]}),
    Published("HH-RLHF", "anthropics/hh-rlhf", "pairs",
              {"chosen": "\n\nHuman: Hello\n\nAssistant: Hi!", "rejected": "\n\nHuman: Hello\n\nAssistant: Go away."}),
    Published("HH-RLHF with a chat template", "anthropics/hh-rlhf", "pairs",
              {"chosen": "\n\nHuman: Hello\n\nAssistant: Hi!", "rejected": "\n\nHuman: Hello\n\nAssistant: Go away."},
              {"chat": True}),
    Published("OpenAI chat fine-tuning", OPENAI, "examples",
              {"messages": [{"role": "system", "content": "Be brief."}, user(SKY), model("Green.", weight=0), user("Sure?"),
                            model("Blue.", weight=1)]}),
    Published("OpenAI tool calls", OPENAI, "examples",
              {"messages": [user("How warm is Paris?"),
                            {"role": "assistant", "content": None, "tool_calls": [{**CALL, "id": "c1"}]}],
               "tools": TOOLS, "parallel_tool_calls": False}),
    Published("OpenAI preference", OPENAI, "pairs",
              {"input": {"messages": [user(SKY)], "tools": [], "parallel_tool_calls": True}, "preferred_output": [model(BLUE)],
               "non_preferred_output": [model(GREEN)]}),
    Published("OpenAI reinforcement fine-tuning", OPENAI, "prompts", {"messages": [user(SKY)], "reference": "blue"}),
    Published("verl, PPO and GRPO", "verl, prepare data", "prompts",
              {"data_source": "openai/gsm8k", "prompt": [user("2 + 2?")], "ability": "math",
               "reward_model": {"style": "rule", "ground_truth": "4"}, "extra_info": {"index": 0}}),
    Published("verl, SFT", "verl, multiturn SFT", "examples", {"messages": [user(SKY), model(BLUE)], "enable_thinking": None}),
    Published("ShareGPT", "ShareGPT exports", "examples",
              {"conversations": [{"from": "human", "value": SKY}, {"from": "gpt", "value": BLUE}]}),
    Published("LLaMA-Factory sharegpt with tools", FACTORY, "examples",
              {"conversations": [{"from": "human", "value": "How warm is Paris?"},
                                 {"from": "function_call", "value": '{"name": "weather", "arguments": {"city": "Paris"}}'},
                                 {"from": "observation", "value": "21"}, {"from": "gpt", "value": "21 degrees."}],
               "system": "Be brief.", "tools": json.dumps(TOOLS)}),
    Published("LLaMA-Factory sharegpt, preference", FACTORY, "pairs",
              {"conversations": [{"from": "human", "value": SKY}], "chosen": {"from": "gpt", "value": BLUE},
               "rejected": {"from": "gpt", "value": GREEN}}),
    Published("Alpaca", "tatsu-lab/stanford_alpaca", "examples",
              {"instruction": "Name the colour.", "input": "the sky", "output": "Blue."}),
    Published("LLaMA-Factory alpaca with history", FACTORY, "examples",
              {"instruction": "Sure?", "input": "", "output": "Yes.", "system": "Be brief.", "history": [[SKY, BLUE]]}),
    Published("LLaMA-Factory alpaca, preference", FACTORY, "pairs",
              {"instruction": SKY, "input": "", "chosen": BLUE, "rejected": GREEN}),
    Published("Axolotl chat_template", AXOLOTL, "examples", {"messages": [user(SKY), model(BLUE)]}),
    Published("Axolotl, turns with train", AXOLOTL, "examples", {"messages": [user(SKY), model(BLUE, train=False)]}),
    Published("Axolotl input_output", AXOLOTL, "examples",
              {"segments": [{"label": False, "text": "<s>Hi "}, {"label": True, "text": "there</s>"}]}),
    Published("GSM8K", "openai/gsm8k", "prompts", {"question": "2 + 2?", "answer": "2 + 2 = <<2+2=4>>4\n#### 4"}),
    Published("MATH", "hendrycks/competition_math", "examples",
              {"problem": "2 + 2?", "solution": "$\\boxed{4}$", "level": "1"}),
    Published("DAPO-Math-17k", "BytedTsinghua-SIA/DAPO-Math-17k", "prompts",
              {"data_source": "math_dapo", "prompt": [user("2 + 2? Answer: $Answer")], "ability": "MATH",
               "reward_model": {"style": "rule-lighteval/MATH_v2", "ground_truth": "4"}}),
    Published("UltraFeedback", "openbmb/UltraFeedback", "pairs",
              {"instruction": SKY, "models": ["a", "b"], "completions": [{"response": BLUE}, {"response": GREEN}]}),
    Published("Nectar", "berkeley-nest/Nectar", "pairs",
              {"prompt": "\n\nHuman: Hello\n\nAssistant: ", "answers": [{"answer": "Hi!", "rank": 1}]}),
    Published("HelpSteer2 preference", "nvidia/HelpSteer2", "pairs",
              {"prompt": SKY, "response_1": BLUE, "response_2": GREEN, "preference_strength": -2}),
    Published("HelpSteer3", "nvidia/HelpSteer3", "pairs",
              {"context": [user(SKY)], "response1": BLUE, "response2": GREEN, "overall_preference": -2}),
    Published("PKU-SafeRLHF", "PKU-Alignment/PKU-SafeRLHF", "pairs",
              {"prompt": SKY, "response_0": BLUE, "response_1": GREEN, "better_response_id": 0, "safer_response_id": 0}),
    Published("xLAM function calling", "Salesforce/xlam-function-calling-60k", "examples",
              {"query": "How warm is Paris?", "tools": "[]", "answers": '[{"name": "weather", "arguments": {}}]'}),
    Published("Glaive function calling", "glaiveai/glaive-function-calling-v2", "examples",
              {"system": "SYSTEM: …", "chat": "USER: Hi\n\n\nASSISTANT: Hello <|endoftext|>"}),
    Published("LLaMA-Factory kto_tag", FACTORY, "labelled",
              {"messages": [user(SKY), model(BLUE)], "kto_tag": True}),
]  # fmt: skip


def read(one: Published) -> Any:
    """What a row becomes: its prompt (text or messages) and what follows it."""
    renderer, key = Renderer(DataSpec(source="rows.jsonl", **one.given)), PromptKey("rows", 0, 0)
    made = {"prompts": renderer.prompt, "examples": renderer.example, "labelled": renderer.example, "pairs": renderer.pair}[
        one.kind
    ](key, one.row, 0)
    prompt = getattr(made, "prompt", made)
    said: dict[str, Any] = {"prompt": [dict(message) for message in prompt.messages] or prompt.text}
    if one.kind == "labelled":
        said |= {"label": prompt.columns["label"]}
    if one.kind == "examples" and made.conversation:
        said |= {"learned": [dict(turn) for _, turn in made.turns]}
    elif one.kind != "prompts":
        said |= {name: dict(turn) if prompt.messages else turn["content"] for name, turn in made.answers.items()}
    if "chat_template_kwargs" in prompt.columns:
        said |= {"chat template": sorted(prompt.columns["chat_template_kwargs"])}
    return said


def page() -> str:
    """``docs/your_data.md``."""
    lines = [
        "# Your data",
        "",
        "One row of each layout that others publish, and what Penstock makes of it (`data/layouts.py`). With templates of",
        'your own (`prompt="{{ question }}"`) columns are what the templates say. Messages are written by the model\'s chat',
        "template; a text stays a text unless `chat=true`. What is not recognised is an error that says what to do. The rows",
        "are those of `tests/data/your_data.py`, which writes this page. Prompts are answered by the model (GRPO, PPO);",
        "examples are imitated (SFT); labelled ones are for KTO, pairs for DPO and reward models.",
        "",
    ]
    lines += ["| layout | source | read as | |", "| --- | --- | --- | --- |"]
    shown: list[str] = []
    for one in ROWS:
        given = ", ".join(f"`{name}={value!r}`" for name, value in one.given.items())
        how = f"{one.kind}{', with ' * bool(given)}{given}"
        shown += [f"## {one.layout}", "", f"Source: {one.source}. Read as {how}.", ""]
        shown += ["```json", json.dumps(one.row, ensure_ascii=False), "```", ""]
        try:
            shown += ["becomes", "", "```json", json.dumps(read(one), ensure_ascii=False), "```", ""]
            done = "read"
        except DataError as error:
            shown += ["is refused:", "", "```text", str(error), "```", ""]
            done = "refused, with what would do"
        lines.append(f"| {one.layout} | {one.source} | {how} | {done} |")
    lines += ["", "The test of each row is its name in `tests/data/test_layouts.py`.", "", *shown]
    return "\n".join(lines)


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
