"""What stands in front of a line's own text: colours, ranks, times, loggers' names.

Torch's own loggers write glog's form: ``V1129 12:00:00.000000 123 torch/_dynamo/guards.py:5396]
[0/1] [__recompiles] text`` with the process id, and repeat it on each line of a message
(``torch/_logging/_internal.py``, ``TorchLogsFormatter``). Launchers put the rank before that.
"""

import re
from dataclasses import dataclass

_ANSI = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]{0,512}(?:\x07|\x1b\\)|[@-Z\\-_])")
_GLOG = re.compile(
    r"[VIWEF]\d{4} \d\d:\d\d:\d\d\.\d{1,9} {1,9}(?P<pid>\d{1,10}) {1,9}[^\s:]{1,200}:\d{1,9}\]"
)
_TAG = re.compile(r" \[(?P<tag>[\w/.\- ]{1,40})\](?= |$)")
_NUMBER = re.compile(r"-?\d+/-?\d+(?:_\d+)?$")
_RANK = re.compile(
    r"\[(?:rank|default)(?P<bracket>\d{1,6})\]:? ?"
    r"|(?P<bare>\d{1,4}): "
    r"|\((?P<actor>[\w.]{1,60}(?: rank=\d+)? pid=\d+)(?:, ip=[\d.]+)?\) ?"
)
_TIME = re.compile(
    r"[\[(]?(?:\d{4}[-/]\d\d[-/]\d\d[T ,]{1,2})?\d\d:\d\d:\d\d(?:[.,]\d{1,9})?"
    r"(?:Z|[+-]\d\d:?\d\d)?[\])]?(?: ?[|:,-])? ?(?:std(?:out|err) [FP] )?"
)
_THREAD = re.compile(
    r"\b(MainThread|Thread-\d+(?: \(\w+\))?|ThreadPoolExecutor-\d+_\d+|Dummy-\d+)\b"
)
_LEVEL = re.compile(
    r"[\[(|<]?\s?(?:DEBUG|INFO|WARNING|WARN|ERROR|CRITICAL|FATAL)\s*[\])|>]?[:\s|-]{1,4}"
)
_MAX_LAYERS = 8
_MAX_PREFIX = 240


@dataclass(frozen=True, slots=True)
class Clean:
    """A line without what stands before its own text.

    Attributes:
        text: the line's own text, its indentation kept.
        rank: whose it is among the ranks; empty if it does not say.
        pid: the process that glog's form names; 0 if it does not.
        number: compile id in the prefix.
        tag: torch's artifact, such as ``__recompiles``.
        thread: the thread that a logger's prefix names.
    """

    text: str
    rank: str = ""
    pid: int = 0
    number: str = ""
    tag: str = ""
    thread: str = ""


def clean(line: str) -> Clean:
    """Take the prefixes off a line. Takes time in proportion to the line."""
    if "\x1b" in line:
        line = _ANSI.sub("", line)
    line = line.rstrip("\r\n")
    if "\r" in line:  # a progress bar overwrites itself
        line = line[line.rfind("\r") + 1 :]
    rank, thread = "", ""
    for _ in range(_MAX_LAYERS):
        head = line[:1]
        if not head or head.isspace():
            break
        if head in "VIWEF" and (glog := _GLOG.match(line)):
            return _glog(line, glog, rank)
        if found := _RANK.match(line):
            rank = rank or next(part for part in found.groups() if part)
        elif (found := _TIME.match(line)) is None and (found := _LEVEL.match(line)) is None:
            break
        line = line[found.end() :]
    if "hread" in line[:_MAX_PREFIX] or "Dummy-" in line[:_MAX_PREFIX]:
        named = _THREAD.search(line, 0, _MAX_PREFIX)
        thread = named[1] if named and not line.startswith(("Exception in", "Thread ")) else ""
    return Clean(line, rank=rank, thread=thread)


def _glog(line: str, glog: "re.Match[str]", rank: str) -> Clean:
    number, tag, at = "", "", glog.end()
    while found := _TAG.match(line, at):
        if _NUMBER.match(found["tag"]):
            number = found["tag"]
        else:
            tag = found["tag"]
        at = found.end()
    text = line[at + 1 :] if line[at : at + 1] == " " else line[at:]
    return Clean(text, rank=rank, pid=int(glog["pid"]), number=number, tag=tag)
