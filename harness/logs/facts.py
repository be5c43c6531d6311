"""What texts say, as typed facts; each knows the file and the line where it is said."""

from dataclasses import dataclass

from harness.events.values import Frame


@dataclass(frozen=True, slots=True)
class Place:
    """A line of a text, counted from 1; ``file`` is the name under which it was given."""

    file: str
    line: int

    def __str__(self) -> str:
        """``train.log:345``."""
        return f"{self.file}:{self.line}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Raised:
    """One exception of a traceback; ``frames`` run from the outermost to the innermost call.

    ``relation``: what it is to the exception that the traceback ends with.
    """

    type: str
    message: str
    frames: tuple[Frame, ...]
    relation: str = "self"


@dataclass(frozen=True, slots=True, kw_only=True)
class Traceback:
    """A printed exception with its chain, itself first. ``thread``: whom Python says it ended."""

    place: Place
    chain: tuple[Raised, ...]
    thread: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Function:
    """A function that dynamo compiles, as its messages name it."""

    name: str
    file: str
    line: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Recompile:
    """A call that no cache entry fitted. ``reasons`` are torch's, one for each entry.

    ``number``: the id of the compile that followed, such as ``0/1``; empty if not said.
    ``refused``: torch's error where the call raised instead. ``thread``: from the line's prefix.
    """

    place: Place
    function: Function
    reasons: tuple[str, ...]
    number: str = ""
    refused: str = ""
    thread: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class LimitHit:
    """The recompile limit was hit, which torch warns of once."""

    place: Place
    limit: int
    function: Function | None = None
    reason: str = ""
    number: str = ""
    thread: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Compiled:
    """A compile as the structured trace tells it; ``error`` is empty where it went well."""

    place: Place
    number: str
    function: Function
    reasons: tuple[str, ...] = ()
    error: str = ""
    where: tuple[Frame, ...] = ()
    ended: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Guards:
    """The guards of one compile's cache entry.

    ``digest``: of all their lines; ``state``: what GLOBAL_STATE was compared with, as JSON.
    """

    place: Place
    number: str
    digest: str
    lines: tuple[str, ...]
    state: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class GraphBreak:
    """Dynamo left a function in the middle."""

    place: Place
    where: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Said:
    """A line that says something by its words alone, which ``harness.causes.messages`` knows."""

    place: Place
    text: str
    thread: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class DumpedThread:
    """A thread of a dump of stacks, innermost frame first. ``tid`` is 0 where it is not told."""

    tid: int
    name: str
    frames: tuple[Frame, ...]
    active: bool = False
    place: Place


@dataclass(frozen=True, slots=True, kw_only=True)
class Dump:
    """The stacks of a process's threads. ``command``: its command line, if it is told.

    ``fatal``: what faulthandler says it died of, such as ``Segmentation fault``; ``text``: the dump
    as it stands there.
    """

    place: Place
    threads: tuple[DumpedThread, ...]
    pid: int = 0
    command: str = ""
    fatal: str = ""
    text: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Signalled:
    """A launcher, a shell or the runtime says that a signal ended the process."""

    place: Place
    signal: int
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Version:
    """The version of torch, said in the text."""

    place: Place
    torch: str


Fact = (
    Traceback
    | Recompile
    | LimitHit
    | Compiled
    | Guards
    | GraphBreak
    | Said
    | Dump
    | Signalled
    | Version
)


@dataclass(slots=True)
class Stream:
    """Whose lines these are. ``rank`` is empty where no prefix names one; ``pid`` 0 likewise."""

    rank: str = ""
    pid: int = 0
