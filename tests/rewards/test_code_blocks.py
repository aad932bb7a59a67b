"""Right answers in the shapes that models write: the code of each is found."""

# ruff: noqa: E501 - answers as they were written

from __future__ import annotations

import pytest

from penstock.rewards.code import find_code

CODE = "def add(a, b):\n    return a + b"
FENCED = f"```python\n{CODE}\n```"
WRONG = "```python\ndef add(a, b):\n    return 0\n```"


def indented(text: str, by: str) -> str:
    return "\n".join(by + line for line in text.splitlines())


ANSWERS = {
    "code alone": CODE,
    "code alone with a newline before it": f"\n{CODE}\n",
    "a block": FENCED,
    **{f"a block marked {tag!r}": f"```{tag}\n{CODE}\n```" for tag in ("py", "python3", "Python", "PYTHON", "Py", "py3", " python", "python ", "python3.11", "", "ipython", "{.python}", "python title=add.py", "{python}", "python:add.py", "python,run")},
    "words around it": f"Here is the function:\n\n{FENCED}\n\nIt adds.",
    "words right before and after it": f"Here:\n{FENCED}\nDone.",
    "tildes": f"~~~python\n{CODE}\n~~~",
    "a longer fence": f"````python\n{CODE}\n````",
    "a fence of five around one of three in a text": f'`````python\n{CODE}\nTEXT = """\n```\n"""\n`````',
    "lines that end as on Windows": f"Here:\r\n\r\n```python\r\n{CODE.replace(chr(10), chr(13) + chr(10))}\r\n```\r\nDone.\r\n",
    "unclosed": f"Here:\n```python\n{CODE}",
    "unclosed after a closed wrong one": f"{WRONG}\nNo:\n```python\n{CODE}\n",
    "a wrong one first": f"{WRONG}\nBetter:\n{FENCED}",
    "a wrong one first, unmarked": f"```\ndef add(a, b): return 1\n```\nBetter:\n{FENCED}",
    "bash before": f"```bash\npip install nothing\n```\n{FENCED}",
    "bash after": f"{FENCED}\nRun it:\n```bash\npython add.py\n```",
    "sh and console after": f"{FENCED}\n```sh\npython add.py\n```\n```console\n$ 3\n```",
    "text before": f"```text\n1 2 -> 3\n```\n{FENCED}",
    "output after": f"{FENCED}\nOutput:\n```output\n3\n```",
    "unmarked output after": f"{FENCED}\nOutput:\n```\n3\n```",
    "unmarked output of several lines after": f"{FENCED}\nOutput:\n```\n3\nHello World\n[1, 2]\n```",
    "unmarked words after": f"{FENCED}\n```\nAll tests passed\n```",
    "an unmarked list after an unmarked block": f"```\n{CODE}\n```\nIt gives\n```\n[1, 2, 3]\n```",
    "a table of JSON after": f'{FENCED}\n```json\n{{"a": 3}}\n```',
    "C++ before": f"```cpp\nint add(int a, int b);\n```\nIn Python:\n{FENCED}",
    "a diff after": f"{FENCED}\n```diff\n-a\n+b\n```",
    "an example of use after": f"{FENCED}\nUse it:\n```python\nprint(add(1, 2))\n```",
    "an unmarked example of use after": f"{FENCED}\nUse it:\n```\nadd(1, 2)\n```",
    "in a list": f"1. Write it:\n\n{indented(FENCED, '   ')}\n\n2. Done.",
    "in a list without empty lines": f"- Write it:\n{indented(FENCED, '  ')}\n- Done.",
    "in a list, deep": f"1. Write it:\n{indented(FENCED, '       ')}\n2. Done.",
    "in a list of a list": f"1. First\n   - Write it:\n{indented(FENCED, '     ')}",
    "indented by four": f"Here:\n\n{indented(FENCED, '    ')}\n\nDone.",
    "indented by four, right after words": f"Here:\n{indented(FENCED, '    ')}\nDone.",
    "indented by a tab": f"Here:\n\n{indented(FENCED, chr(9))}\n",
    "in a quote": indented(FENCED, "> "),
    "in a quote after words": f"As they say:\n\n{indented(FENCED, '> ')}\n\nDone.",
    "after thoughts": f"<think>\nMaybe\n{WRONG}\nor not.\n</think>\n\n{FENCED}",
    "right after thoughts": f"<think>\nHm.\n</think>\n{FENCED}",
    "after thoughts that the prompt began": f"Maybe\n{WRONG}\n</think>\n{FENCED}",
    "after thoughts with an open block": f"<think>\n```python\nwrong = (\n</think>\nHere:\n{FENCED}",
    "after thoughts without a block": f"<think>Just add.</think>\n{CODE}",
    "in a tag": f"<answer>\n{FENCED}\n</answer>",
    "in a solution's tag right after words": f"<solution>{chr(10)}Here\n{FENCED}\n</solution>",
    "after a heading": f"# Answer\n{FENCED}",
    "after a rule": f"Words\n---\n{FENCED}\n---\nWords",
    "in details": f"<details>\n<summary>Code</summary>\n{FENCED}\n</details>",
    "opened at the end of a line": f"Here is the code: ```python\n{CODE}\n```\nDone.",
    "closed at the end of a line": f"```python\n{CODE}```\nThat is all.",
    "with backticks in words": f"The function `add` (```add```) takes `a`:\n\n{FENCED}\n\nwhere `b` is added.",
    "with a backtick that is not closed": f"It`s easy:\n\n{FENCED}",
    "with a link's definition": f"[1]: http://x.y\n{FENCED}",
    "in bold words": f"**Solution**\n{FENCED}\n**Explanation**: adds",
    "with code that speaks of thoughts": f'```python\n{CODE}\nTAG = "</think>"\n```',
    "with an empty block after": f"{FENCED}\n```python\n```",
}  # fmt: skip


@pytest.mark.parametrize("answer", ANSWERS)
def test_no_right_answer_is_lost(answer):
    space: dict = {}
    exec(find_code(ANSWERS[answer], {"add"}), space)
    assert space["add"](2, 3) == 5


PROGRAM = "n = int(input())\nprint(n * 2)"


@pytest.mark.parametrize(
    "answer",
    [
        f"```python\n{PROGRAM}\n```\nInput:\n```\n4\n```\nOutput:\n```\n8\n```",
        f"```\n4\n```\nis the input.\n```\n{PROGRAM}\n```",
        f"```py\n{PROGRAM}\n```\n```bash\necho 4 | python x.py\n```",
        f"<think>{PROGRAM}</think>{PROGRAM}",
    ],
)
def test_a_program_without_a_name_is_the_last_block_of_python(answer):
    assert find_code(answer).strip() == PROGRAM


def test_the_last_block_counts_also_one_that_is_cut_off():
    assert find_code("```\na = 1\n```\ntext\n```\nb = 2\n```").strip() == "b = 2"
    assert find_code("```python\na = 1\n```\nComplexity:\n```\nO(n)\n```").strip() == "a = 1"
    assert find_code("```python\na = 1\n```\nruns as:\n```\nmain()\n```").strip() == "a = 1"
    assert find_code("So: <answer>\ndef f(): return 1\n</answer>").strip() == "def f(): return 1"
    assert find_code("```py\na\nb").strip() == "a\nb"
    assert find_code("x = 1") == "x = 1"


def test_thoughts_without_an_end_hold_no_answer():
    assert find_code(f"<think>\n{FENCED}").strip() == ""


def test_the_last_of_two_definitions_counts():
    assert "return 0" in find_code(f"{FENCED}\nor\n{WRONG}", {"add"})


def test_a_continuation_keeps_its_indentation():
    assert find_code("    return a + b\n") == "    return a + b\n"


@pytest.mark.parametrize(
    "text", ["(" * 100_000, "-" * 100_000 + "1", ">" * 20_000 + "```py\n1", "```\n" + "[" * 50_000, "\0```py\nx\0"]
)
def test_no_text_breaks_the_reader(text):
    assert isinstance(find_code(text), str)
