"""Chat templates written here in the formats that model families publish, over one small tokenizer.

They are what the tests need of a format (marks, roles, where thoughts and tools go), not the families' own files.
"""

from __future__ import annotations

from typing import Any

CHATML = (
    "{% if tools %}<|im_start|>system\n# Tools\n{% for tool in tools %}{{ tool | tojson }}\n{% endfor %}<|im_end|>\n{% endif %}"
    "{% for m in messages %}"
    "{% if m.role == 'tool' %}"
    "{% if loop.first or messages[loop.index0 - 1].role != 'tool' %}<|im_start|>user{% endif %}"
    "{{ '\n<tool_response>\n' + m.content + '\n</tool_response>' }}"
    "{% if loop.last or messages[loop.index0 + 1].role != 'tool' %}<|im_end|>\n{% endif %}"
    "{% else %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)

QWEN3 = (
    "{% set ns = namespace(last=-1) %}{% for m in messages %}{% if m.role == 'user' %}{% set ns.last = loop.index0 %}"
    "{% endif %}{% endfor %}{% for m in messages %}{% if m.role == 'assistant' %}"
    "{% set thought = m.content.split('</think>')[0].split('<think>')[-1].strip('\n') if '</think>' in m.content else '' %}"
    "{% set rest = m.content.split('</think>')[-1].lstrip('\n') %}<|im_start|>assistant\n"
    "{% if thought and loop.index0 > ns.last %}<think>\n{{ thought }}\n</think>\n\n{{ rest }}{% else %}{{ rest }}{% endif %}"
    "<|im_end|>\n{% elif m.role == 'tool' %}<|im_start|>user\n<tool_response>\n{{ m.content }}\n</tool_response><|im_end|>\n"
    "{% else %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)

LLAMA3 = (
    "<|begin_of_text|>{% for m in messages %}"
    "<|start_header_id|>{{ 'ipython' if m.role == 'tool' else m.role }}<|end_header_id|>\n\n{{ m.content | trim }}<|eot_id|>"
    "{% endfor %}{% if add_generation_prompt %}<|start_header_id|>assistant<|end_header_id|>\n\n{% endif %}"
)

MISTRAL = (
    "<s>{% set asked = messages | selectattr('role', 'equalto', 'user') | list %}{% for m in messages %}"
    "{% if m.role == 'user' %}{% if tools and m == asked[-1] %}[AVAILABLE_TOOLS]{{ tools | tojson }}"
    "[/AVAILABLE_TOOLS]{% endif %}[INST]{{ m.content }}[/INST]"
    "{% elif m.role == 'tool' %}[TOOL_RESULTS]{{ m.content }}[/TOOL_RESULTS]"
    "{% else %}{{ m.content }}</s>{% endif %}{% endfor %}"
)

GEMMA = (
    "<bos>{% for m in messages %}{% if (m.role == 'user') != (loop.index0 % 2 == 0) %}"
    "{{ raise_exception('Conversation roles must alternate user/assistant') }}{% endif %}"
    "<start_of_turn>{{ 'model' if m.role == 'assistant' else m.role }}\n{{ m.content | trim }}<end_of_turn>\n{% endfor %}"
    "{% if add_generation_prompt %}<start_of_turn>model\n{% endif %}"
)

FAMILIES: dict[str, tuple[str, str]] = {
    "chatml": (CHATML, "<|im_end|>"),
    "qwen3": (QWEN3, "<|im_end|>"),
    "llama-3": (LLAMA3, "<|eot_id|>"),
    "mistral": (MISTRAL, "</s>"),
    "gemma": (GEMMA, "<end_of_turn>"),
}
"""Template and the mark that ends a turn, by family."""

MARKS = (
    "<|begin_of_text|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>", "<s>", "</s>", "[INST]", "[/INST]",
    "[TOOL_RESULTS]", "[/TOOL_RESULTS]", "[AVAILABLE_TOOLS]", "[/AVAILABLE_TOOLS]", "[TOOL_CALLS]", "<|python_tag|>", "<bos>",
    "<start_of_turn>", "<end_of_turn>", "<think>", "</think>",
)  # fmt: skip


def family(name: str, corpus: list[str]) -> Any:
    """A tokenizer with the template of a family, whose turns end with its mark."""
    from penstock.models.text import Text, train_tokenizer

    template, end = FAMILIES[name]
    made = train_tokenizer(corpus, 400, MARKS).tokenizer
    made.eos_token = end
    made.chat_template = template
    return Text(made)
