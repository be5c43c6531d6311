"""A pytest plugin: tests that compile after their warm-up fail, and bodies run in several threads.

Imports neither torch nor the rest of the harness before a test asks for it.
"""

from __future__ import annotations

import inspect
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import harness

if TYPE_CHECKING:
    from collections.abc import Generator

_NAME = "compile_race"
_MARKER = (
    f"{_NAME}(threads=1, expect='clean'): run the test's body in so many threads at once, under "
    "the watch; expect: clean, or the codes of the roots that must be found. A body that makes no "
    "call of compiled code fails: nothing ran"
)


@dataclass(frozen=True)
class Asked:
    """What a test's marker asks for."""

    threads: int = 1
    expect: tuple[str, ...] = ("clean",)

    @classmethod
    def of(cls, item: pytest.Item) -> Asked | None:
        """The marker of a test; None if it has none.

        Raises:
            pytest.UsageError: it makes no sense; one line that says why.
        """
        marker = item.get_closest_marker(_NAME)
        if marker is None:
            return None
        if marker.args or not marker.kwargs.keys() <= {"threads", "expect"}:
            raise pytest.UsageError(f"{_NAME} takes threads=N and expect=...")
        threads = marker.kwargs.get("threads", 1)
        if type(threads) is not int or not 1 <= threads <= 1024:
            raise pytest.UsageError(f"{_NAME}: threads must be 1 to 1024")
        if threads > 1 and not _plain(item):
            raise pytest.UsageError(
                f"{_NAME}: threads run plain test functions, neither async ones nor unittest's"
            )
        return cls(threads, _expected(marker.kwargs.get("expect", "clean")))


class CompileRace:
    """The fixture ``compile_race``."""

    @staticmethod
    def warmup_done() -> None:
        """Say that the test's warm-up is over: from here on nothing may be compiled."""
        harness.warmup_done()


@pytest.fixture(name=_NAME)
def compile_race() -> CompileRace:
    """``compile_race.warmup_done()`` says that the test's warm-up is over."""
    return CompileRace()


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the options."""
    group = parser.getgroup("compile-race", "races of torch.compile")
    group.addoption(
        "--compile-race-check",
        action="store_true",
        help="watch each test; one fails that compiles or falls back after its declared warm-up, "
        "leaves compiler state changed behind, or in which a race is found",
    )
    group.addoption(
        "--compile-race-out",
        metavar="DIR",
        help="keep the recordings and reports of watched tests in folders below this one",
    )


def pytest_configure(config: pytest.Config) -> None:
    """Register the marker."""
    config.addinivalue_line("markers", _MARKER)


# First, since a failure that comes after pytest has seen ``xfail`` counts as an expected one.
@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Refuse a marker that makes no sense, before the test's fixtures are made.

    Not at collection: an error there ends every test, and pytest-xdist's workers without a word.
    """
    try:
        Asked.of(item)
    except pytest.UsageError as error:
        raise pytest.fail.Exception(str(error), pytrace=False) from None


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, object, object]:
    """Watch the test's body, if that was asked for."""
    asked = Asked.of(item)
    if asked is None and not item.config.getoption("--compile-race-check"):
        return (yield)
    from harness.child.in_process import compiler_state
    from harness.pytest_check import judge, show

    before = compiler_state.state()
    out = item.config.getoption("--compile-race-out")
    watching = harness.watching(None if out is None else Path(out))
    try:
        with watching:
            result = yield
    except BaseException:
        show(item, watching, before)
        raise
    failure = judge(item, watching, asked.expect if asked else None, before)
    if failure:
        pytest.fail(failure, pytrace=False)
    return result


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> object:
    """Run the body in several threads, if its marker says so."""
    asked = Asked.of(pyfuncitem)
    if asked is None or asked.threads == 1:
        return None
    from harness.pytest_check import run_in_threads

    names = pyfuncitem._fixtureinfo.argnames  # noqa: SLF001 - as pytest's own hook does it
    arguments: dict[str, Any] = {name: pyfuncitem.funcargs[name] for name in names}
    # Errors are what such a test expects, where it expects a cause at all.
    run_in_threads(pyfuncitem, arguments, asked.threads, tolerant=asked.expect != ("clean",))
    return True


def _plain(item: pytest.Item) -> bool:
    """Whether a call of the test's function is all that running it takes."""
    if not isinstance(item, pytest.Function) or hasattr(item.cls, "setUpClass"):
        return False
    return not (inspect.iscoroutinefunction(item.obj) or inspect.isasyncgenfunction(item.obj))


def _expected(expect: object) -> tuple[str, ...]:
    from dflash_min.errors import UsageError
    from harness.causes import CAUSES
    from harness.expect import check_expectations

    given = expect.split(",") if isinstance(expect, str) else expect
    names = tuple(given) if isinstance(given, list | tuple | set | frozenset) else ()
    if not names or not all(isinstance(name, str) for name in names):
        raise pytest.UsageError(f"{_NAME}: expect must be clean or codes such as CR101")
    try:
        check_expectations(names, (), [cause.EXPLANATION.code for cause in CAUSES])
    except UsageError as error:
        raise pytest.UsageError(f"{_NAME}: {str(error).removeprefix('--')}") from None
    return names
