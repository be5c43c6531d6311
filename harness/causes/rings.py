"""Rings of threads that wait for each other's locks, as far as stacks and sources show them."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from harness.causes.endings import holder, number_of, open_waits
from harness.events.ended import Ended, ThreadWait
from harness.statements import Statement
from harness.timeline.timeline import Timeline

COMPILE_LOCK = "dynamo's compile lock"


@dataclass(frozen=True)
class Link:
    """A thread ``who`` that waits for the lock ``what``; ``compile``: dynamo's compile lock."""

    who: str
    what: str
    compile: bool


@dataclass(frozen=True)
class _Node:
    name: str
    wants: str
    holds: frozenset[str]


def ring(timeline: Timeline, ended: Ended) -> tuple[Link, ...]:
    """The shortest ring: each waits for a lock that the next one holds, the last for the first's.

    Empty if none is seen. Locks are told apart by what the program calls them.
    """
    nodes = list(_nodes(timeline, ended))
    best: tuple[_Node, ...] = ()
    for node in nodes:
        found = _back_to(node, nodes)
        if found and (not best or len(found) < len(best)):
            best = found
    return tuple(Link(node.name, node.wants, node.wants == COMPILE_LOCK) for node in best)


def in_words(links: Sequence[Link]) -> str:
    """``a` waited for `x`, held by `b`, which waited for `y`, held by `a```."""
    said = [f"`{links[0].who}` waited for {_lock(links[0])}"]
    said += [f"held by `{link.who}`, which waited for {_lock(link)}" for link in links[1:]]
    return ", ".join([*said, f"held by `{links[0].who}`"])


def statement(links: Sequence[Link]) -> Statement:
    """That they wait for each other."""
    text = (
        f"{in_words(links)}: none of them can go on. Who holds what is read off the source, by the "
        "`with` statements and `acquire` calls that each thread is in."
    )
    return Statement(text, "inferred")


def _lock(link: Link) -> str:
    return link.what if link.compile else f"`{link.what}`"


def _nodes(timeline: Timeline, ended: Ended) -> Iterator[_Node]:
    compiling = {compile_.on for compile_ in timeline.open_compiles()}
    owners = {holder(timeline, wait) for wait in open_waits(timeline)} & compiling
    for wait in ended.waits:
        number = number_of(timeline, wait)
        name = timeline.name(number) if number else wait.thread
        holds = set(wait.holds)
        if number in owners:
            holds.add(COMPILE_LOCK)
        if wait.what == COMPILE_LOCK or is_named(wait):
            yield _Node(name, wait.what.strip("`"), frozenset(holds))


def is_named(wait: ThreadWait) -> bool:
    """Whether a thread waits for what the program has a name for, as it has for a lock.

    It is in backticks then; a method or words are not.
    """
    return wait.read and wait.what.startswith("`") and wait.what.endswith("`")


def _back_to(start: _Node, nodes: Sequence[_Node]) -> tuple[_Node, ...]:
    """The shortest way from a thread over the holders of what it waits for back to itself."""
    ways: list[tuple[_Node, ...]] = [(start,)]
    seen: set[int] = {id(start)}
    while ways:
        longer: list[tuple[_Node, ...]] = []
        for way in ways:
            for node in nodes:
                if way[-1].wants not in node.holds:
                    continue
                if node is start:
                    # One name twice in a thread, such as `self.lock`, is two locks as a rule.
                    if len(way) > 1:
                        return way
                    continue
                if id(node) not in seen:
                    seen.add(id(node))
                    longer.append((*way, node))
        ways = longer
    return ()
