"""What a command is: a dataclass whose fields are its arguments and flags. tyro reads them and writes the help.

Nothing heavy is imported here, nor when a module of ``commands`` is imported: help answers at once.
"""

from __future__ import annotations

import contextlib
import dataclasses
import importlib
import inspect
import io
import itertools
import re
import socket
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Annotated, Any, ClassVar, Literal, Self, Union, get_type_hints

import tyro
from tyro.conf import subcommand
from tyro.constructors import ConstructorRegistry, StructTypeInfo

from penstock.config.spec import suggestion
from penstock.core.errors import SpecError

HELP = ("-h", "--help")
Device = Annotated[Literal["auto", "cpu", "cuda"], tyro.conf.arg(help="Where the model runs.")]
Dtype = Literal["float32", "bfloat16", "mixed"]
READING = ConstructorRegistry()
"""The rules by which tyro reads commands."""


def called(name: str) -> Any:
    """What help calls the value of an argument or flag."""
    return tyro.conf.arg(metavar=name)


def hinted(kind: Any, text: str | Callable[[], str | None] | None = None) -> Any:
    """The type of an argument or flag whose help shows its default, unless that is empty or its ``text`` already names it."""

    def hint(default: str) -> str:
        said = (text() if callable(text) else text) or ""
        return "" if default in ("None", "''", "") or "(default" in said else f"(default: {default})"

    return Annotated[kind, tyro.conf.arg(help_behavior_hint=hint)]


@READING.struct_rule
def hinted_fields(info: StructTypeInfo) -> Any:
    """A dataclass as tyro reads it, with every field's type hinted."""
    if hinted_fields in info.markers or not dataclasses.is_dataclass(info.type):
        return None  # tyro's own rules read it
    read: Any = ConstructorRegistry.get_struct_spec(dataclasses.replace(info, markers=(*info.markers, hinted_fields)))
    fields = (dataclasses.replace(field, type=hinted(field.type, field.helptext)) for field in read.fields)
    return dataclasses.replace(read, fields=tuple(fields))


@dataclass(kw_only=True)
class Command(ABC):
    """Base of the commands. A field is a flag with its default, or an argument if it is ``Positional``; its docstring is help.

    A field whose value cannot be is refused in ``__post_init__``.
    """

    NEEDS: ClassVar[Sequence[str]] = ()
    """The extra that brings the packages this command imports, and those packages."""

    @classmethod
    def start(cls, words: Sequence[str], program: str) -> int:
        """Run the command with the words after its name, which errors and help call ``program``; gives the exit code.

        Raises SpecError if an argument or flag is unknown, missing or of another type, or a package is missing.
        """
        read = cls.read(words, program)
        if read is None:
            return 0
        if cls.NEEDS:
            require(program, *cls.NEEDS)
        return read.run() or 0

    @classmethod
    def read(cls, words: Sequence[str], program: str) -> Self | None:
        """The command of these words; None where they asked for help, which was printed."""
        found = parse(cls, words, program)
        if found is not None and found[1]:
            raise unknown(found[1][0], program, cls)
        return found[0] if found is not None else None

    @abstractmethod
    def run(self) -> int | None:
        """Do it; gives the exit code, 0 if None."""


@dataclass(frozen=True)
class Group:
    """Commands under one name."""

    about: str
    commands: Mapping[str, str]
    """The name of each, and the ``MODULE:CLASS`` or ``MODULE:GROUP`` that is imported when it is used."""

    def load(self, name: str) -> type[Command] | Group:
        """The command of a name."""
        module, _, attribute = self.commands[name].partition(":")
        found: type[Command] | Group = getattr(importlib.import_module(f"penstock.cli.commands.{module}"), attribute)
        return found

    def listed(self, name: str) -> Any:
        """A command as the list of all shows it: its name and the first line of its help."""
        command = self.load(name)
        about = command.about if isinstance(command, Group) else inspect.getdoc(command) or ""
        return Annotated[dataclasses.make_dataclass(name, ()), subcommand(name=name, description=about.partition("\n")[0])]

    def start(self, words: Sequence[str], program: str) -> int:
        """Run the command that the first word names, or show what there is; gives the exit code. Raises SpecError."""
        if not words or words[0] in HELP:
            parse(Union[tuple(map(self.listed, self.commands))], ["--help"], program, description=self.about)  # noqa: UP007
            return 0
        if words[0] not in self.commands:
            name = f"{program} {words[0]}".partition(" ")[2]
            raise SpecError(f'unknown command "{name}"{suggestion(words[0], self.commands)}')
        return self.load(words[0]).start(words[1:], f"{program} {words[0]}")


def parse(kind: Any, words: Sequence[str], program: str, description: str | None = None) -> tuple[Any, list[str]] | None:
    """What ``kind`` makes of the words, and the words it does not know; None where they asked for help, which was printed.

    ``description`` is what help says first, if not the docstring of ``kind``. Raises SpecError if a value is missing or of
    another type.
    """
    said = io.StringIO()
    try:
        with contextlib.redirect_stderr(said):
            return tyro.cli(
                kind,
                args=list(words),
                prog=program,
                return_unknown_args=True,
                description=description,
                config=(tyro.conf.HelptextFromCommentsOff,),
                registry=READING,
            )
    except SystemExit as ended:
        if ended.code:
            raise SpecError(_one_line(said.getvalue(), program)) from None
        return None
    except tyro.constructors.UnsupportedTypeAnnotationError as error:
        raise SpecError(f"{program}: {error}") from error


def _one_line(box: str, program: str) -> str:
    """tyro writes a title, a rule, the error, a rule and what help says, in a box where the terminal can; this is the error."""
    text = re.sub(r"\x1b\[[0-9;]*m|[│╭╮╰╯]", "", box)
    parts = [" ".join(part.split()).removesuffix(".") for part in re.split(r"─+|-{3,}", text)]
    errors = [part for part in parts if part and not part.startswith(("Argument helptext", "For full helptext"))]
    number = re.compile(r"Error parsing (\S+): .*?invalid literal for int\(\) with base 10: ('.*?')")
    return number.sub(r"\1 \2: give a whole number", "; ".join(errors[1:])) + f"; see {program} --help"


def unknown(word: str, program: str, kind: type[Command]) -> SpecError:
    """The error of a word that a command does not take."""
    if not word.startswith("-"):
        return SpecError(f'{program} takes no "{word}"; see {program} --help')
    flag = word.partition("=")[0]
    return SpecError(f"unknown flag {flag}{suggestion(flag, ['--help', *flags_of(kind)])}")


def flags_of(kind: Any) -> list[str]:
    """A command's flags, as they are written; those of a group of options are flags of its own."""
    fields = [field.name for field in dataclasses.fields(kind) if field.init and "Positional" not in str(field.type)]
    groups = {name: found for name, found in get_type_hints(kind).items() if dataclasses.is_dataclass(found)}
    flags = (flags_of(groups[name]) if name in groups else ["--" + name.replace("_", "-")] for name in fields)
    return list(itertools.chain.from_iterable(flags))


def address(listening: socket.socket) -> str:
    """Where a socket listens, as a link has it: by this machine's name, if it listens on all its addresses."""
    host, port = listening.getsockname()[:2]
    host = socket.gethostname() if host in ("0.0.0.0", "::") else host
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def require(program: str, extra: str, *packages: str) -> None:
    """Raises SpecError, with what to install, unless all packages of an extra are there."""
    missing = [package for package in packages if find_spec(package) is None]
    if missing:
        raise SpecError(f"{program} needs {', '.join(missing)}: pip install 'penstock[{extra}]'")
