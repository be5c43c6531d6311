"""From a schedule that forces a race to a script that shows the race by itself, with torch alone.

The order of the threads is forced by hooks that users have: a backend, a function that is traced, a
mode that sees torch functions. For each race there is a template; what it is filled with (backend,
shapes, number of threads, where the trace comes from) is taken from the program and its recording.
"""

import math
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType

import jinja2

from harness.diagnosis.report import Finding
from harness.events import schema
from harness.schedule.plan import Plan, Schedule
from harness.timeline.recording import Recording

#: Lines of the longest script.
MOST_LINES = 68
_WIDTH = 100
_TRACING = frozenset({"fx_trace", "joint_trace", "backend_call", "dynamo_compile"})
_TRACED = ("aot_eager", "inductor")
_MOST_ELEMENTS = 1 << 20


@dataclass(frozen=True)
class _Template:
    """A template, and what a schedule has to be like for its race to be the template's.

    ``points``: the schedule names one of them. ``crossing``: whether two of its threads are held in
    FX traces; None: it does not matter. ``own``: a schedule that names one of these is about this
    race, whatever else came of it.
    """

    file: str
    points: frozenset[str]
    crossing: bool | None = None
    own: frozenset[str] = frozenset()

    def is_meant(self, plan: Plan) -> bool:
        """Whether the schedule is about this race."""
        return any(hold.point in self.own for hold in plan.holds)

    def fits(self, plan: Plan) -> bool:
        """Whether the race may be this one."""
        tracing = {hold.thread for hold in plan.holds if hold.point == "fx_trace"}
        crossing = self.crossing in {None, len(tracing) > 1}
        return crossing and any(hold.point in self.points for hold in plan.holds)


_TEMPLATES: Mapping[str, _Template] = MappingProxyType(
    {
        "CR301": _Template("fx_flag.py.j2", _TRACING),
        "CR302": _Template("fx_flag_sticky.py.j2", _TRACING, crossing=False),
        "CR303": _Template(
            "stampede.py.j2",
            frozenset({"lock_wait", "dynamo_compile"}),
            own=frozenset({"lock_wait"}),
        ),
        "CR304": _Template("is_compiling.py.j2", _TRACING | {"wrapper"}),
        "CR308": _Template("fx_patcher.py.j2", _TRACING, crossing=True),
        "CR310": _Template("fx_annotation.py.j2", _TRACING | {"block_mask"}),
    }
)


@dataclass(frozen=True)
class Parts:
    """What a template is filled with.

    Attributes:
        torch, python: versions that the race was seen with.
        backend: of the compile that is traced; one that does not trace is replaced by
            ``aot_eager``.
        dynamic: ``torch.compile``'s; None: its default.
        shape: of the input.
        in_compile: the FX trace is that of a compile, not one of the program's.
    """

    torch: str
    python: str
    backend: str = "aot_eager"
    dynamic: bool | None = None
    shape: tuple[int, ...] = (8,)
    in_compile: bool = False


@dataclass(frozen=True)
class Script:
    """A script that shows a race, and the code of the finding that it is of."""

    code: str
    text: str


class NoScript(Exception):  # noqa: N818 - an answer
    """There is no script; why, in words."""


def script_for(
    findings: Iterable[Finding], schedule: Schedule | None, recording: Recording, parts: Parts
) -> Script:
    """Make the script of what a schedule forced.

    Of what was found it takes the first that has a template and that the schedule's holds can
    force: the one that the schedule is about, roots before what follows from them.

    Args:
        findings: of the run, in the report's order.
        schedule: which the run was under.
        recording: the run.
        parts: what is known of the program otherwise.

    Raises:
        NoScript: nothing was found, there are no holds, or no template is about it.
        OSError: the recording cannot be read.
    """
    found = sorted(
        findings, key=lambda finding: (not _is_meant(finding, schedule), not finding.root)
    )
    if not found:
        raise NoScript("nothing was found")
    if not isinstance(schedule, Plan) or not schedule.holds:
        raise NoScript("only a schedule of holds says what to force")
    for finding in found:
        template = _TEMPLATES.get(finding.code)
        if template is not None and template.fits(schedule):
            parts = _from_recording(finding, recording, parts)
            return Script(finding.code, _fill(template.file, schedule, parts))
    codes = " ".join(dict.fromkeys(finding.code for finding in found))
    raise NoScript(
        f"there is no template for {codes} under {schedule}; there is one for "
        f"{', '.join(_TEMPLATES)}"
    )


def _is_meant(finding: Finding, schedule: Schedule | None) -> bool:
    template = _TEMPLATES.get(finding.code)
    return template is not None and isinstance(schedule, Plan) and template.is_meant(schedule)


def _from_recording(finding: Finding, recording: Recording, parts: Parts) -> Parts:
    """Shapes, and whether the trace was a compile's, from the finding's evidence."""
    evidence = set(finding.evidence)
    traces: list[bool] = []
    shapes: list[Sequence[int]] = []
    compiled = False
    for event in recording.events():
        if event.pid != finding.pid or event.seq not in evidence:
            continue
        if isinstance(event, schema.FxTrace):
            traces.append(event.data.in_compile)
        elif isinstance(event, schema.Compile):
            compiled = True
            shapes += [i.shape for i in event.data.inputs if i.shape]
    fitting = (s for s in shapes if math.prod(s) <= _MOST_ELEMENTS and min(s) > 0)
    return replace(
        parts,
        in_compile=all(traces) if traces else compiled,
        shape=tuple(next(fitting, parts.shape)),
    )


def _fill(file: str, plan: Plan, parts: Parts) -> str:
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("harness.schedule"),
        undefined=jinja2.StrictUndefined,
        autoescape=False,  # noqa: S701 - it makes Python, not a page
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    dynamic = "" if parts.dynamic is None else f", dynamic={parts.dynamic}"
    backend = parts.backend if parts.backend in _TRACED else _TRACED[0]
    return environment.get_template(file).render(
        torch=parts.torch,
        python=parts.python,
        holds=_wrapped(plan),
        shape=", ".join(map(str, parts.shape)),
        in_compile=parts.in_compile,
        dynamic=dynamic,
        options=f'backend="{backend}"{dynamic}',
        threads=len(plan.threads),
    )


def _wrapped(plan: Plan) -> str:
    return textwrap.fill(f"The order of the threads is that of {plan}.", _WIDTH)
