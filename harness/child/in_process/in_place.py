"""Functions that call another one while they stay the objects that they are."""

from collections.abc import Callable
from types import FunctionType
from typing import Any


def copy_of(function: Callable[[], Any]) -> Callable[[], Any]:
    """A function of its own that does what ``function``, of one of torch's modules, does now."""
    assert isinstance(function, FunctionType)
    return FunctionType(function.__code__, function.__globals__, function.__name__)


def answer_instead(function: Callable[[], Any], answer: Callable[[], Any]) -> None:
    """Have ``answer`` called by ``function``, which takes no arguments.

    What ``torch.compile`` returned earlier keeps ``is_fx_symbolic_tracing`` in its closure, and
    once dynamo has been imported it knows such functions by their identity: replaced, they would
    be traced. Undone by giving the function its code and its defaults back. A compiled function
    that calls it has a guard on its code object, and compiles once more.
    """
    assert isinstance(function, FunctionType)
    function.__defaults__ = (answer,)
    function.__code__ = _call_it.__code__


def _call_it(answer: Callable[[], Any]) -> Any:
    return answer()
