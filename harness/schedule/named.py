"""Plans by name: each makes one race certain in a program whose threads do what it takes."""

from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

from dflash_min.errors import UsageError
from harness.schedule.plan import Plan, parse_plan, read_plan, serial


def _fx_flag() -> Plan:
    """A call of compiled code while another thread is inside an FX trace (CR301).

    B's call reads the flag while A is held with its flag still set. Up to torch 2.12 a compile is
    such a trace; on 2.13 one made with ``make_fx`` or ``symbolic_trace`` is.
    """
    return parse_plan(
        ["A:fx_trace:enter", "B:wrapper:enter", "B:wrapper:exit", "A:fx_trace:exit"],
        name="fx-flag",
    )


def _fx_flag_sticky() -> Plan:
    """The FX flag saved inside another thread's trace and restored after it (CR302).

    B builds a block mask, and then calls an operator of higher order uncompiled, as an uncompiled
    ``flex_attention`` or ``cond`` is: it saves the flag with A in the middle of a trace, and is
    held, where it calls what it compiles for itself, until A has left the trace and come to its
    next call of compiled code. Up to torch 2.13.
    """
    return parse_plan(
        [
            "A:fx_trace:enter",
            "B:block_mask:enter",
            "B:wrapper:enter",
            "A:fx_trace:exit",
            "A:wrapper:enter",
            "B:wrapper:exit",
        ],
        name="fx-flag-sticky",
    )


def _is_compiling() -> Plan:
    """Code outside the compiler that reads ``torch.compiler.is_compiling()`` as True (CR304).

    A is held inside its compile; B goes from one call of compiled code to the next meanwhile, and
    what it reads in between is A's. From torch 2.13 on.
    """
    return parse_plan(
        ["A:backend_call:enter", "B:wrapper:enter", "B:wrapper:enter", "A:backend_call:exit"],
        name="is-compiling",
    )


def _stampede() -> Plan:
    """Two threads that miss the cache before either has compiled (CR303).

    A waits before the compile lock until B, which has missed as well, stands there too.
    """
    return parse_plan(
        [
            "A:wrapper:enter",
            "B:wrapper:enter",
            "B:lock_wait:enter",
            "A:dynamo_compile:exit",
            "B:dynamo_compile:exit",
        ],
        name="stampede",
    )


def _fx_annotation() -> Plan:
    """A block mask begun inside another thread's compile and finished after it (CR310).

    B, at a call of compiled code just before it builds its mask, waits for A to be in a trace. It
    adds its key to the metadata that A's trace has put in place, and takes it back from what A's
    compile has put back. From torch 2.13 on.
    """
    return parse_plan(
        [
            "A:joint_trace:enter",
            "B:wrapper:enter",
            "B:block_mask:enter",
            "A:joint_trace:exit",
            "A:dynamo_compile:exit",
            "B:block_mask:exit",
        ],
        name="fx-annotation",
    )


def _fx_patcher() -> Plan:
    """Two FX traces of which the first to begin is the first to end (CR308).

    Each puts back what it found when it began, so what the first one patched stays. B, which builds
    a block mask before it traces, begins once A is inside its trace; A has left that, and come to
    its next call of compiled code, before B leaves its own.
    """
    return parse_plan(
        [
            "A:fx_trace:enter",
            "B:block_mask:enter",
            "B:fx_trace:enter",
            "A:fx_trace:exit",
            "A:wrapper:enter",
            "B:fx_trace:exit",
        ],
        name="fx-patcher",
    )


_MAKERS = (_fx_flag, _fx_flag_sticky, _is_compiling, _stampede, _fx_annotation, _fx_patcher)

_CONTROL = "-serial"
#: The named plans, by name.
NAMED: Mapping[str, Plan] = MappingProxyType({plan.name: plan for plan in (m() for m in _MAKERS)})


def plan_of(text: str) -> Plan:
    """The plan that ``--schedule`` names: one of ``NAMED``, or a TOML file.

    With ``-serial`` behind it a name means the plan's control, in which the threads take turns.

    Raises:
        UsageError: there is none, or the file is no plan.
    """
    if text in NAMED:
        return NAMED[text]
    if text.removesuffix(_CONTROL) in NAMED:
        return serial(NAMED[text.removesuffix(_CONTROL)])
    if text.endswith(".toml") or Path(text).exists():
        return read_plan(Path(text))
    raise UsageError(f"--schedule: there is no plan {text}; {', '.join(NAMED)}, or a file .toml")
