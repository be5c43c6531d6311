"""A schedule as one printable word, with all that it takes to run it again.

``crh1.LENGTH.BODY.CHECK``: the schema, the number of characters of the body, the body (base64 for
URLs of compressed JSON) and the beginning of a SHA-256 over all that comes before. It can be
pasted into a shell, a ticket or a mail that breaks its lines.
"""

import base64
import binascii
import hashlib
import os
import re
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

import msgspec

from dflash_min.errors import UsageError
from harness.schedule.plan import Delays, Plan, Priorities, Schedule, parse_plan

TOKEN_SCHEMA = 1
_PREFIX = "crh"
_CHECK = 12
_LONGEST = 1 << 20
_HEAD = re.compile(rf"{_PREFIX}(\d+)\.")


class Versions(msgspec.Struct, frozen=True, kw_only=True):
    """What a run depends on; an empty text: not known, or not installed."""

    harness: str = ""
    torch: str = ""
    triton: str = ""
    python: str = ""


class Token(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What a token carries.

    Attributes:
        versions: of the run that it stands for.
        cache: whether that run's compile cache was fresh. In a warm one nothing is traced, and
            with that the races in tracing are gone.
        command: ``run`` (the built-in trainer; ``argv`` are its options) or ``watch`` (``argv`` is
            the program's command line without the interpreter, relative to the project's folder).
        argv: see ``command``.
        strategy: ``given``, ``pct`` or ``chaos``.
        holds: the holds, as they are written.
        seed, threads, points, depth: of ``pct`` (all) and ``chaos`` (the seed).
        name: the plan's name.
        apart: the plan's.
    """

    versions: Versions = Versions()
    cache: Literal["cold", "kept"] = "cold"
    command: Literal["run", "watch"] = "run"
    argv: tuple[str, ...] = ()
    strategy: Literal["given", "pct", "chaos"] = "given"
    holds: tuple[str, ...] = ()
    seed: int = 0
    threads: int = 0
    points: int = 0
    depth: int = 0
    name: str = ""
    apart: bool = False

    @property
    def schedule(self) -> Schedule:
        """The schedule. Raises UsageError for one that cannot be."""
        match self.strategy:
            case "pct":
                return Priorities(self.seed, self.threads, self.points, self.depth)
            case "chaos":
                return Delays(self.seed)
            case "given":
                return parse_plan(self.holds, name=self.name, apart=self.apart)


def token_of(
    schedule: Schedule,
    *,
    versions: Versions,
    command: Literal["run", "watch"],
    argv: Sequence[str],
    cache: Literal["cold", "kept"] = "cold",
) -> Token:
    """Make a token for a schedule of a command."""
    common = Token(versions=versions, cache=cache, command=command, argv=tuple(argv))
    match schedule:
        case Plan():
            return msgspec.structs.replace(
                common, holds=schedule.texts, name=schedule.name, apart=schedule.apart
            )
        case Priorities():
            return msgspec.structs.replace(
                common,
                strategy="pct",
                seed=schedule.seed,
                threads=schedule.threads,
                points=schedule.points,
                depth=schedule.depth,
            )
        case Delays():
            return msgspec.structs.replace(common, strategy="chaos", seed=schedule.seed)


def relative_argv(words: Sequence[str], project: Path) -> tuple[str, ...]:
    """A command line with paths below the project's folder made relative to it.

    A token is read elsewhere, where the project lies in another folder.
    """
    root = str(project.resolve())
    return tuple(
        os.path.relpath(word, root) if word == root or word.startswith(root + os.sep) else word
        for word in words
    )


def dump_token(token: Token) -> str:
    """The token as one word of letters, digits, ``-``, ``_`` and dots."""
    raw = zlib.compress(msgspec.json.encode(token), 9)
    body = base64.urlsafe_b64encode(raw).decode("ascii").rstrip("=")
    said = f"{_PREFIX}{TOKEN_SCHEMA}.{len(body)}.{body}"
    return f"{said}.{_check(said)}"


def parse_token(text: str) -> Token:
    """Read a token; spaces and line breaks in it do not count.

    Raises:
        UsageError: saying what is wrong: it is none, it has another schema, it is cut short, or it
            was altered.
    """
    word = "".join(text.split())
    head = _HEAD.match(word)
    if head is None:
        cut = bool(word) and re.match(rf"{_PREFIX}\d*$", word) is not None
        cut = cut or (bool(word) and _PREFIX.startswith(word))
        said = "the token is cut short" if cut else f"this is no token: one begins {_start()}"
        raise UsageError(said)
    if head[1] != str(TOKEN_SCHEMA):
        raise UsageError(
            f"the token has schema {head[1][:20]}, this version reads schema {TOKEN_SCHEMA} only"
        )
    return _decode(_body(word))


def check_versions(token: Token, here: Versions, *, cross_version: bool) -> tuple[str, ...]:
    """Refuse a token of another torch minor version; return what else differs, for people.

    A token of another schema has been refused by ``parse_token``.

    Args:
        token: the token.
        here: what is installed.
        cross_version: run it on another torch all the same.

    Raises:
        UsageError: naming both versions and the flag.
    """
    theirs, ours = _minor(token.versions.torch), _minor(here.torch)
    if theirs and theirs != ours and not cross_version:
        raise UsageError(
            f"the token is of torch {token.versions.torch}, here is "
            f"{f'torch {here.torch}' if here.torch else 'no torch'}; --cross-version runs it all "
            "the same"
        )
    return tuple(
        f"the token is of {name} {then}, here is {now or 'none'}"
        for name in Versions.__struct_fields__
        if (then := getattr(token.versions, name)) and then != (now := getattr(here, name))
    )


def _start() -> str:
    return f"{_PREFIX}{TOKEN_SCHEMA}."


def _body(word: str) -> str:
    """The body, once length and check fit it. Raises UsageError."""
    parts = word.split(".")
    size = parts[1] if len(parts) > 1 else ""
    whole = len(parts) > 2 and size.isascii() and size.isdigit() and len(size) <= len(str(_LONGEST))
    if not whole and (not size or (len(parts) == 2 and size.isdigit())):
        raise UsageError("the token is cut short")
    if not whole:
        raise UsageError("the token was altered: it does not say its length")
    wanted = len(_start()) + len(size) + 1 + int(size) + 1 + _CHECK
    if len(word) < wanted:
        raise UsageError(
            f"the token is cut short: it should have {wanted} characters, it has {len(word)}"
        )
    said, _, check = word.rpartition(".")
    if len(parts) != 4 or len(word) != wanted or check != _check(said):
        raise UsageError("the token was altered: its check sum does not fit")
    return parts[2]


def _decode(body: str) -> Token:
    try:
        raw = base64.b64decode(body + "=" * (-len(body) % 4), altchars=b"-_", validate=True)
        unpacker = zlib.decompressobj()
        plain = unpacker.decompress(raw, _LONGEST)
        token = msgspec.json.decode(plain, type=Token)
        token.schedule  # noqa: B018 - refuses holds that cannot be
    except UsageError as error:
        raise UsageError(f"the token holds no schedule: {error}") from error
    except (binascii.Error, zlib.error, ValueError, msgspec.DecodeError) as error:
        raise UsageError(f"the token cannot be read: {error}") from error
    return token


def _check(said: str) -> str:
    return hashlib.sha256(said.encode("utf-8", "replace")).hexdigest()[:_CHECK]


def _minor(version: str) -> str:
    match = re.match(r"\d+\.\d+", version)
    return match[0] if match else ""
