"""``penstock generate MODEL --prompt TEXT``: let a model answer."""

from __future__ import annotations

import json
import sys
import unicodedata
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

from tyro.conf import Positional

from penstock.cli.command import Command, Device, Dtype, called, require
from penstock.core.errors import DataError, ModelError, SpecError


@dataclass(kw_only=True)
class Generate(Command):
    """Let a model answer."""

    model: Positional[Annotated[str, called("MODEL")]]
    """A model folder (runs/NAME/model), a run folder such as runs/NAME, or a hub name."""
    prompt: Annotated[str, called("TEXT")] = ""
    """What to answer."""
    prompts: Annotated[str, called("FILE.txt|FILE.jsonl")] = ""
    """Several prompts instead of --prompt: one a line, or rows, whose media are in their columns image, video and audio."""
    template: Annotated[str, called("TEXT")] = "{{ prompt }}"
    """Jinja template of the prompt of a row, such as '<image>{{ question }}'."""
    media: Literal["none", "vision", "hearing"] = "none"
    """What the model reads of rows besides text: pictures and films, or sounds."""
    out: Annotated[str, called("FILE.jsonl")] = ""
    """Write each prompt or row with its answers (a list in the column answers) to this new file, instead of printing."""
    samples: int = 1
    """Answers to each prompt."""
    temperature: float = 1.0
    """Of sampling; 0 takes the likeliest token."""
    max_new_tokens: int = 64
    """Tokens of an answer at most."""
    top_p: float = 1.0
    """Sample from the likeliest tokens that have this probability together."""
    stop: Annotated[str, called("TEXT")] = ""
    """An answer ends with this text."""
    seed: int = 0
    """Seed of sampling."""
    chat: bool = False
    """Put each prompt as a user's message into the model's chat template."""
    device: Device = "auto"
    dtype: Dtype = "float32"
    """Arithmetic of the model: bfloat16 for GPUs; mixed for processors that multiply bfloat16 faster."""
    best_by: Annotated[str, called("REWARD")] = ""
    """Show only the best of the samples: by model:FOLDER (a reward model), the name of a reward, or FILE.py:FUNCTION."""
    corrections: Annotated[str, called("STORE")] = ""
    """Put approved corrections of a product's users before each prompt (docs/feedback_product.md), but in the control arm."""
    tenant: Annotated[str, called("NAME")] = ""
    """The product whose corrections they are."""
    request: Annotated[str, called("ID")] = ""
    """The request, which decides the arm (default: derived from the prompt)."""
    embedder: Annotated[str, called("hashed|FOLDER")] = "hashed"
    """How corrections are found: by hashed words (default) or the hidden states of a model."""

    def __post_init__(self) -> None:
        if self.samples < 1:
            raise SpecError(f"--samples={self.samples}; ask for at least 1")

    def run(self) -> None:
        """Generate and print."""
        of_rows = self.prompts.endswith((".jsonl", ".jsonl.gz"))
        if of_rows and (self.prompt or self.corrections):
            raise SpecError("rows are prompts of their own; leave out --prompt and --corrections")
        if self.media != "none" and not of_rows:
            raise SpecError(f"--media {self.media} is of rows; give --prompts FILE.jsonl")
        if self.out and Path(self.out).exists():
            raise SpecError(f"--out {self.out} is there already; name a new file")
        texts = [] if of_rows else read_prompts(self.prompt, self.prompts)
        from penstock.config.media import READ
        from penstock.config.run import DataSpec
        from penstock.core.types import Sampling
        from penstock.runtime.answers import answer, asked, asked_of_rows, opened

        sampling = Sampling(
            temperature=self.temperature,
            top_p=self.top_p,
            max_new_tokens=self.max_new_tokens,
            stop=(self.stop,) if self.stop else (),
            seed=self.seed,
        )
        given = with_corrections(texts, self)
        model = opened(model_path(self.model), self.device, self.dtype, READ[self.media])
        rows: Sequence[Mapping[str, Any]] = [{"prompt": text} for text in texts]
        prompts = asked(given, self.chat)
        if of_rows:
            rows, prompts = asked_of_rows(DataSpec(source=self.prompts, prompt=self.template, chat=self.chat), model.text)
            texts = [prompt.text for prompt in prompts]
        if self.out and any("answers" in row for row in rows):
            raise SpecError("a row has a column answers already; rename it, for --out writes one")
        found = answer(model, prompts, sampling, self.samples, self.best_by)
        if self.out:
            write_rows(Path(self.out), rows, found)
            return
        for text, answers in zip(texts, found, strict=True):
            for reply in answers:
                shown = f"{text}{reply}" if not self.chat else reply
                print(harmless(shown) if sys.stdout.isatty() else shown)


def write_rows(out: Path, rows: Sequence[Mapping[str, Any]], found: Sequence[list[str]]) -> None:
    """Rows with their answers as JSON lines in a new file."""
    with out.open("x", encoding="utf-8") as file:
        file.writelines(
            json.dumps({**row, "answers": one}, ensure_ascii=False) + "\n" for row, one in zip(rows, found, strict=True)
        )
    print(f"{out}: {len(rows)} rows")


def harmless(text: str) -> str:
    """Text for a terminal: control characters, which could restyle or command it, as ``�``; line ends and tabs stay."""
    return "".join("�" if unicodedata.category(sign) == "Cc" and sign not in "\n\t" else sign for sign in text)


def read_prompts(prompt: str, file: str) -> list[str]:
    """The prompts of a command line. Raises DataError for a missing or empty file, SpecError if there is none."""
    if prompt and file:
        raise SpecError("give either --prompt or --prompts, not both")
    if not file:
        if not prompt:
            raise SpecError("generate needs a prompt: --prompt TEXT or --prompts FILE.txt")
        return [prompt]
    if not Path(file).is_file():
        raise DataError(f"{Path(file).absolute()}: no such file")
    from penstock.data.files import text_rows

    found = [row["text"] for row in text_rows(Path(file))]
    if not found:
        raise DataError(f"{file}: no prompts in it")
    return found


def with_corrections(texts: Sequence[str], asked: Generate) -> list[str]:
    """The prompts after what was corrected before, each in the arm of its request, which is printed on standard error."""
    if not asked.corrections:
        if asked.tenant or asked.request:
            raise SpecError("--tenant and --request go with --corrections STORE")
        return list(texts)
    if not asked.tenant:
        raise SpecError("--corrections needs --tenant NAME: corrections are shown to nobody but their own product")
    require("penstock generate --corrections", "feedback", "sqlalchemy", "alembic")
    from penstock.cli.commands.feedback import opened
    from penstock.feedback.records import digest
    from penstock.models.files import load_text
    from penstock.product.forms import embedder_of
    from penstock.product.search import Corrections
    from penstock.product.tenants import tenant

    marks, made = load_text(model_path(asked.model)).marks, []
    with opened(asked.corrections) as store:
        corrections = Corrections(store, tenant(store, asked.tenant), embedder_of(asked.embedder, Path.cwd()))
        for index, text in enumerate(texts):
            request = asked.request or digest(text)[:16]
            request += f"/{index}" if len(texts) > 1 else ""
            found = corrections.retrieve(text, request, marks)
            print(f"request {request}: {found.arm}, {len(found.used)} used", file=sys.stderr)
            made.append(found.text + text)
    return made


def model_path(name: str) -> str:
    """A run folder stands for the model in it. Raises ModelError where a run has none yet."""
    if not (Path(name) / "run.json").exists():
        return name
    inside = Path(name) / "model"
    if not inside.is_dir():
        raise ModelError(f"{name}: the run has no model yet; finish it with penstock train --resume {name}")
    return str(inside)
