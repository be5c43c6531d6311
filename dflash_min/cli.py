"""A command line made from a dataclass, and the way back: arguments from an instance.

Every command parses through here, so that lists, flags and errors look the same everywhere. Fields
that are dataclasses themselves are groups in the help; their flags carry no prefix.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import io
import operator
import os
import shlex
import sys
from typing import (
    TYPE_CHECKING,
    Annotated,
    Any,
    Final,
    NoReturn,
    TypeVar,
    get_args,
    get_origin,
    get_type_hints,
)

import tyro
from tyro.constructors import (
    ConstructorRegistry,
    PrimitiveConstructorSpec,
    PrimitiveTypeInfo,
    StructConstructorSpec,
    StructFieldSpec,
    StructTypeInfo,
    UnsupportedTypeAnnotationError,
)

from dflash_min import standard_streams
from dflash_min.errors import OutputError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from _typeshed import DataclassInstance

    _T = TypeVar("_T", bound=DataclassInstance)
else:
    _T = TypeVar("_T")

_registry = ConstructorRegistry()

_NOTHING: Final = [""]
"""How a default is written for which there are no words: what no command line can say."""
_PASSED_ON: Final = "passed on"
"""Marks a dataclass that `_dataclass` has handed to tyro."""


def parse(cls: type[_T], argv: Sequence[str], *, prog: str, description: str) -> _T:
    """Build an instance of a dataclass from command-line arguments.

    Lists of ints or strings take commas, spaces or both; written as `--x=VALUE`, where there are
    positional arguments, they take that word alone. Booleans are `--x` and `--no-x`. An empty
    word is refused: it is what a shell leaves of a variable that is not set.

    Raises:
        SystemExit: with code 0 after `--help`; with code 2 after one line on stderr for arguments
            that do not fit.
        OutputError: if the help cannot be printed.
    """
    if any(word in {"-h", "--help"} for word in argv):
        with printing():
            return _build(cls, argv, prog, description)
    _refuse_empty(argv, prog)
    # tyro draws its box with other characters where stdout is not UTF-8.
    said = io.TextIOWrapper(io.BytesIO(), encoding="utf-8")
    try:
        with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said), _wide():
            return _build(cls, argv, prog, description)
    except SystemExit as stop:
        if stop.code == 0:
            raise
        said.seek(0)
        fail(prog, _first_paragraph(said.read()))


def _refuse_empty(argv: Sequence[str], prog: str) -> None:
    flag = ""
    for word in argv:
        if word.startswith("--"):
            flag, equals, value = word.partition("=")
            empty = bool(equals) and not value
        else:
            empty = not word
        if empty:
            fail(prog, f"{flag or 'an argument'} is empty")
        if "\0" in word:
            fail(prog, f"{flag or 'an argument'} holds a NUL character")


def fail(prog: str, message: str) -> NoReturn:
    """End the command for an error of use: one line on stderr, exit code 2."""
    say(prog, f"error: {message}")
    raise SystemExit(2)


def say(prog: str, message: str) -> None:
    """Print a message as one line on stderr, whatever characters it holds, if that takes it."""
    # What was typed comes back in messages, line breaks and terminal codes included.
    line = "".join(c if c.isprintable() else ascii(c)[1:-1] for c in " ".join(message.split()))
    standard_streams.tell(f"{prog}: {line}")


def show(text: str, end: str = "\n") -> None:
    """Print a result on stdout at once. Raises OutputError if that takes nothing more."""
    with printing():
        print(text, end=end)


@contextlib.contextmanager
def printing() -> Iterator[None]:
    """Put all that the block prints on stdout there before it ends, by SystemExit too.

    Raises:
        OutputError: if stdout takes nothing more: a full disk, a closed pipe.
    """
    try:
        try:
            yield
        finally:
            sys.stdout.flush()
    except OSError as error:
        raise OutputError(error.strerror or str(error)) from error


def to_argv(config: DataclassInstance) -> list[str]:
    """Return arguments from which `parse` builds an equal instance, defaults left out.

    Raises:
        ValueError: for what the command line cannot carry: None where it is not the default, and
            a list of strings of which one is blank at an edge or has a comma.
    """
    argv: list[str] = []
    for field in dataclasses.fields(config):
        value = getattr(config, field.name)
        if dataclasses.is_dataclass(value) and not isinstance(value, type):
            argv += to_argv(value)
        elif value != _default(field):
            argv += _flag(field.name.replace("_", "-"), value)
    return argv


def _flag(name: str, value: object) -> list[str]:
    if value is None:
        raise ValueError(f"--{name} cannot carry None")
    if isinstance(value, bool):
        return [f"--{name}" if value else f"--no-{name}"]
    if not isinstance(value, tuple):
        return [f"--{name}={value}"]
    words = [str(item) for item in value]
    if all(isinstance(item, int | str) for item in value) and words:
        if any(not word or word != word.strip() or "," in word for word in words):
            raise ValueError(f"--{name} cannot carry these items: {words}")
        return [f"--{name}={','.join(words)}"]
    # A path may hold a comma; one that begins with a dash would be taken for a flag.
    return [f"--{name}", *(f"./{word}" if word.startswith("-") else word for word in words)]


def _default(field: dataclasses.Field[Any]) -> object:
    if field.default_factory is not dataclasses.MISSING:
        return field.default_factory()
    return field.default


def _build(cls: type[_T], argv: Sequence[str], prog: str, description: str) -> _T:
    return tyro.cli(
        cls,
        args=_positional_first(cls, argv),
        prog=prog,
        description=description.replace("``", "`"),  # it may be a docstring
        config=(tyro.conf.OmitArgPrefixes,),
        registry=_registry,
    )


def _positional_first(cls: type[DataclassInstance], argv: Sequence[str]) -> list[str]:
    """Put the words that no option takes before the options, lest a list takes them for its own."""
    hints = get_type_hints(cls, include_extras=True)
    if not any(
        tyro.conf.Positional in getattr(each, "__metadata__", ()) for each in hints.values()
    ):
        return list(argv)
    switches = {name.replace("_", "-") for name, hint in hints.items() if hint is bool}
    switches = {f"--{no}{name}" for name in switches for no in ("", "no-")}
    end = list(argv).index("--") if "--" in argv else len(argv)
    positional: list[str] = []
    options: list[str] = []
    takes = False
    for word in argv[:end]:
        if word.startswith("-") and word != "-":
            takes = "=" not in word and word.replace("_", "-") not in switches
            options.append(word)
        else:
            (options if takes else positional).append(word)
    return [*positional, *options, *argv[end:]]


@contextlib.contextmanager
def _wide() -> Iterator[None]:
    """Keep tyro from breaking the words of an error to the width of the terminal."""
    before = os.environ.get("COLUMNS")
    os.environ["COLUMNS"] = "10000"
    try:
        yield
    finally:
        if before is None:
            del os.environ["COLUMNS"]
        else:
            os.environ["COLUMNS"] = before


def _first_paragraph(boxed: str) -> str:
    """Reduce an error that tyro drew in a box to what it says first."""
    lines = [line.strip("│").rstrip("│ ") for line in boxed.splitlines()]
    body = [line for line in lines if not line.startswith(("╭", "╰"))]
    paragraph: list[str] = []
    for line in body:
        if not line.strip() or line.strip().startswith("─"):
            break
        paragraph.append(line)
    if paragraph and paragraph[0].strip().startswith("Missing from"):
        return f"missing: {', '.join(_at_the_left(paragraph[1:]))}"
    return " ".join(line.strip() for line in paragraph)


def _at_the_left(lines: Sequence[str]) -> list[str]:
    """Lines that are not indented below others: names of arguments without their help."""
    indents = [len(line) - len(line.lstrip()) for line in lines]
    left = min(indents, default=0)
    return [line.strip() for line, indent in zip(lines, indents, strict=True) if indent == left]


@_registry.struct_rule
def _dataclass(info: StructTypeInfo) -> StructConstructorSpec | None:
    """Read a dataclass as tyro does, and mend what help says of its fields."""
    if not dataclasses.is_dataclass(info.type) or _PASSED_ON in info.markers:
        return None
    passed_on = dataclasses.replace(info, markers=(*info.markers, _PASSED_ON))
    spec = ConstructorRegistry.get_struct_spec(passed_on)
    if not isinstance(spec, StructConstructorSpec):
        return None
    return dataclasses.replace(spec, fields=tuple(map(_with_plain_help, spec.fields)))


def _with_plain_help(field: StructFieldSpec) -> StructFieldSpec:
    annotated: Any = Annotated[field.type, tyro.conf.arg(help_behavior_hint=_default_in_help)]
    return dataclasses.replace(
        field, type=annotated, helptext=functools.partial(_in_one_paragraph, field.helptext)
    )


def _default_in_help(words: str) -> str:
    """Say nothing of an absent default: the text before tells what leaving the flag out means."""
    return "" if words == shlex.join(_NOTHING) else f"(default: {words})"


def _in_one_paragraph(text: str | Callable[[], str | None] | None) -> str | None:
    """Join the lines of a docstring: tyro keeps the breaks before those that are indented."""
    said = text() if callable(text) else text
    return None if said is None else " ".join(said.split())


@_registry.primitive_rule
def _optional(info: PrimitiveTypeInfo) -> PrimitiveConstructorSpec[Any] | None:
    """Read `X | None` as X: None is what leaving the flag out means, and cannot be said."""
    args = get_args(info.type)
    if type(None) not in args:
        return None
    inner: Any = functools.reduce(operator.or_, (arg for arg in args if arg is not type(None)))
    spec = ConstructorRegistry.get_primitive_spec(PrimitiveTypeInfo.make(inner, info.markers))
    if isinstance(spec, UnsupportedTypeAnnotationError):
        return None
    return dataclasses.replace(
        spec,
        is_instance=lambda value: value is None or spec.is_instance(value),
        str_from_instance=lambda value: (
            _NOTHING if value is None else spec.str_from_instance(value)
        ),
    )


@_registry.primitive_rule
def _list(info: PrimitiveTypeInfo) -> PrimitiveConstructorSpec[Any] | None:
    """Read a list of ints or strings that is divided by spaces, commas or both."""
    args = get_args(info.type)
    if get_origin(info.type) is not tuple or args not in {(int, ...), (str, ...)}:
        return None
    return _items(args[0], least=0)


def _items(item: type[int | str], *, least: int) -> PrimitiveConstructorSpec[Any]:
    def read(words: Sequence[str]) -> tuple[int | str, ...]:
        parts = [part.strip() for word in words for part in word.split(",")]
        values = tuple(item(part) for part in parts if part)
        if len(values) < least:
            raise ValueError("it names nothing")
        return values

    name = item.__name__.upper()
    return PrimitiveConstructorSpec(
        nargs="*",
        metavar=f"{name}[,{name}...]",
        instance_from_str=read,
        is_instance=lambda value: (
            isinstance(value, tuple) and all(isinstance(part, item) for part in value)
        ),
        str_from_instance=lambda value: [",".join(str(part) for part in value)],
    )


def _words(name: str) -> PrimitiveConstructorSpec[Any]:
    return PrimitiveConstructorSpec(
        nargs="*",
        metavar=f"{name} [{name} ...]",
        instance_from_str=tuple,
        is_instance=lambda value: isinstance(value, tuple),
        str_from_instance=lambda value: list(value) or _NOTHING,
    )


Files = Annotated[tuple[str, ...], _words("FILE")]
"""Files as they were typed: a comma may be a part of a name."""

Names = Annotated[tuple[str, ...], _items(str, least=1)]
"""A list of strings that is left out where nothing is to be named: the flag alone is refused."""
