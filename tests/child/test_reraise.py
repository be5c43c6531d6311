"""An exception that came where none may pass is raised again in the program's next function."""

import gc
import random
import sys
import threading
import weakref
from collections.abc import Iterator

import pytest

from harness.child.reraise import raise_outside


def entered() -> None:
    """A function of the program's."""


def barred(error: BaseException) -> None:
    """Stands for the hook: what it calls may not raise either."""
    raise_outside(barred.__code__, error)
    entered()


@pytest.fixture(autouse=True)
def own_profile() -> Iterator[None]:
    """Whatever happens, no test leaves its profile function."""
    before = sys.getprofile()
    yield
    sys.setprofile(before)


def test_it_is_that_exception_and_comes_in_the_next_function_once():
    error, reached = KeyboardInterrupt(), []

    def program() -> None:
        barred(error)
        reached.append("after the hook")
        entered()
        reached.append("too far")

    with pytest.raises(KeyboardInterrupt) as caught:
        program()
    assert caught.value is error
    assert "entered" in [entry.name for entry in caught.traceback]
    assert reached == ["after the hook"]
    assert sys.getprofile() is None
    entered()


def test_not_in_random_which_dynamo_calls_around_a_compile():
    state, reached = random.getstate(), []

    def program() -> None:
        barred(SystemExit(7))
        random.setstate(state)
        reached.append("after random")
        entered()

    with pytest.raises(SystemExit):
        program()
    assert reached == ["after random"]


def test_not_in_what_python_calls_as_objects_die():
    """What that raises is printed and forgotten; a collection can come at any allocation."""
    seen: set[str] = set()
    references: list[object] = []
    others = gc.callbacks[:]

    class Dies:
        def __init__(self) -> None:
            self.generator = self.generate()
            next(self.generator)
            weakref.finalize(self, note, "finalizer")
            references.append(weakref.ref(self, callback))
            references.append(weakref.ref(self, Callback().called))
            references.append(weakref.ref(self, lambda *_: note("any arguments")))

        def generate(self) -> Iterator[None]:  # keeps the object, so that it takes a collection
            try:
                yield
            finally:
                seen.add("generator")

        def __del__(self) -> None:
            note("__del__")

    class Callback:
        def called(self, reference: weakref.ref[Dies]) -> None:
            note("method")

        def __call__(self, phase: str, info: dict[str, int]) -> None:
            note(f"{phase} for an object")

    def callback(reference: weakref.ref[Dies], of: str = "function") -> None:
        note(of)

    def note(what: str) -> None:
        seen.add(what)

    def collecting(phase: str, info: dict[str, int]) -> None:
        note(phase)

    def program() -> None:
        dies = Dies()
        barred(SystemExit(7))
        del dies
        gc.collect()
        seen.add("after it")
        entered()

    gc.callbacks += (collecting, Callback())
    try:
        with pytest.raises(SystemExit) as caught:
            program()
    finally:
        gc.callbacks[:] = others
    assert caught.traceback[-2].name == "entered"
    collection = {"start", "stop", "start for an object", "stop for an object"}
    dying = {"finalizer", "generator", "__del__", "function", "method", "any arguments"}
    assert seen == {*collection, *dying, "after it"}


def test_while_another_exception_is_being_handled():
    error = KeyboardInterrupt()

    def program() -> None:
        try:
            int("no number")
        except ValueError:
            barred(error)
            entered()

    with pytest.raises(KeyboardInterrupt) as caught:
        program()
    assert caught.value is error
    assert isinstance(error.__context__, ValueError)


def test_only_in_the_thread_that_it_came_to():
    error, caught, others = KeyboardInterrupt(), [], []
    came, done = threading.Event(), threading.Event()

    def receives() -> None:
        try:
            barred(error)
            came.set()
            done.wait()
        except KeyboardInterrupt as raised:
            caught.append(raised)
            came.set()

    thread = threading.Thread(target=receives)
    thread.start()
    came.wait()
    try:
        entered()
    except KeyboardInterrupt as raised:
        others.append(raised)
    done.set()
    thread.join()
    assert caught == [error]
    assert not others
