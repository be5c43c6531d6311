"""How findings follow from each other, as lines such as CR101 -> CR303 -> CR301."""

from collections.abc import Sequence

from harness.diagnosis.report import Finding


def paths(findings: Sequence[Finding]) -> list[tuple[str, ...]]:
    """Every way from a root to a finding that nothing follows from, in the findings' order.

    A step that a longer way spells out is left out: where CR301 follows from CR303 and from CR101,
    and CR303 from CR101, there is one path. Codes that are not among the findings are ignored, and
    the members of a circle stand alone.
    """
    order = list(dict.fromkeys(finding.code for finding in findings))
    direct = _direct(findings)

    def ways(code: str) -> list[tuple[str, ...]]:
        later = [way for late in order if code in direct[late] for way in ways(late)]
        return [(code, *way) for way in later] or [(code,)]

    return [way for code in order if not direct[code] for way in ways(code)]


def _direct(findings: Sequence[Finding]) -> dict[str, set[str]]:
    """For each code the codes that it follows from without another one between."""
    given: dict[str, set[str]] = {finding.code: set() for finding in findings}
    for finding in findings:
        given[finding.code] |= set(finding.follows_from) & given.keys()

    def earlier(code: str) -> set[str]:
        seen: set[str] = set()
        todo = list(given[code])
        while todo:
            step = todo.pop()
            if step not in seen:
                seen.add(step)
                todo += given[step]
        return seen

    before = {code: earlier(code) for code in given}
    circle = {code for code in given if code in before[code]}
    direct: dict[str, set[str]] = {}
    for code, causes in given.items():
        real = set() if code in circle else causes - circle
        direct[code] = {
            cause for cause in real if not any(cause in before[other] for other in real - {cause})
        }
    return direct
