"""Draws chains: which finding made which other one possible, and which are roots."""

from collections.abc import Mapping, Sequence

from harness.causes.base import Explanation, Found
from harness.diagnosis.report import Finding
from harness.statements import Statement

MAX_STATEMENTS = 64
_LAST = 4
"""So many of them are the last ones, which conclude from those before."""


def draw(
    found: Sequence[Found], explanations: Mapping[str, Explanation], pid: int
) -> list[Finding]:
    """Findings with their chains, roots first, each followed by what follows from it.

    A finding follows from another one if an event that made it possible is one that the other
    accounts for, its explanation allows that, and the other does not follow from it already.
    """
    follows: dict[int, list[int]] = {number: [] for number in range(len(found))}
    for number, finding in enumerate(found):
        if finding.independent:
            continue
        for other, cause in enumerate(found):
            if (
                other != number
                and finding.because & cause.explains
                and cause.code.startswith(explanations[finding.code].may_follow or ("-",))
                and not _reaches(follows, other, number)
            ):
                follows[number].append(other)
    order = _in_order(follows)
    return [_finding(found, number, follows, explanations, pid) for number in order]


def _reaches(follows: Mapping[int, Sequence[int]], start: int, goal: int) -> bool:
    todo, seen = [start], {start}
    while todo:
        number = todo.pop()
        if number == goal:
            return True
        new = [other for other in follows[number] if other not in seen]
        seen.update(new)
        todo += new
    return False


def _in_order(follows: Mapping[int, Sequence[int]]) -> list[int]:
    """Roots in the order found, each before what follows from it, each finding once."""
    order: list[int] = [number for number, causes in follows.items() if not causes]
    while len(order) < len(follows):
        order += [
            number
            for number, causes in follows.items()
            if number not in order and all(cause in order for cause in causes)
        ]
    return order


def _finding(
    found: Sequence[Found],
    number: int,
    follows: Mapping[int, Sequence[int]],
    explanations: Mapping[str, Explanation],
    pid: int,
) -> Finding:
    finding = found[number]
    explanation = explanations[finding.code]
    statements = _some(finding.statements)
    evidence = {seq for statement in statements for seq in statement.evidence}
    return Finding(
        code=finding.code,
        title=explanation.title,
        root=not follows[number],
        pid=pid,
        follows_from=tuple(dict.fromkeys(found[cause].code for cause in follows[number])),
        statements=statements,
        evidence=tuple(sorted(evidence)),
        remedy=finding.remedy or explanation.remedy,
        threads=finding.threads,
        stacks=tuple(stack for stack in finding.stacks if stack.frames),
        shared_state=finding.shared_state,
    )


def _some(statements: tuple[Statement, ...]) -> tuple[Statement, ...]:
    """The statements, unless hundreds of threads have one each."""
    if len(statements) <= MAX_STATEMENTS:
        return statements
    first, more = statements[: MAX_STATEMENTS - _LAST], statements[MAX_STATEMENTS - _LAST : -_LAST]
    observed = all(statement.certainty == "observed" for statement in more)
    left_out = Statement(
        f"{len(more):,} more statements like these, on other threads or calls, are not listed.",
        "observed" if observed else "inferred",
        more[0].evidence,
    )
    return (*first, left_out, *statements[-_LAST:])
