"""An agent on OpenAI's client: it answers a question with the help of a calculator. Nothing in it knows of training."""

from __future__ import annotations

import json
import os
import re
import sys
from typing import Any

from openai import AsyncOpenAI

CALCULATOR = {
    "type": "function",
    "function": {
        "name": "calculate",
        "description": "The value of a sum, a difference or a product of two whole numbers.",
        "parameters": {
            "type": "object",
            "properties": {"expression": {"type": "string", "description": "such as 12*7"}},
            "required": ["expression"],
        },
    },
}


def calculate(expression: str) -> str:
    found = re.fullmatch(r"(\d{1,6})([-+*])(\d{1,6})", expression)
    if found is None:
        return "error: write two numbers with +, - or * between them, such as 12*7"
    one, sign, other = int(found[1]), found[2], int(found[3])
    return str({"+": one + other, "-": one - other, "*": one * other}[sign])


async def answered(question: str, base_url: str, api_key: str) -> str:
    """The agent's answer to a question."""
    async with AsyncOpenAI(base_url=base_url, api_key=api_key) as client:
        messages: list[Any] = [{"role": "user", "content": question}]
        for _ in range(3):
            answer = await client.chat.completions.create(model="policy", messages=messages, tools=[CALCULATOR])  # type: ignore[list-item]
            said = answer.choices[0].message
            if not said.tool_calls:
                return said.content or ""
            messages.append(said.model_dump(exclude_none=True))
            for call in said.tool_calls:
                try:
                    result = calculate(str(json.loads(call.function.arguments).get("expression")))  # type: ignore[union-attr]
                except ValueError as error:
                    result = f"error: {error}"
                messages.append({"role": "tool", "tool_call_id": call.id, "content": result})
    return ""


async def main(row: dict[str, Any], base_url: str, api_key: str) -> float:
    """The reward of one episode: whether the answer is right."""
    return float(await answered(row["question"], base_url, api_key) == row["answer"])


if __name__ == "__main__":
    import asyncio

    print(asyncio.run(answered(sys.argv[1], os.environ["OPENAI_BASE_URL"], os.environ["OPENAI_API_KEY"])))
