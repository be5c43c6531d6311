"""Which side of dynamo's lookup a thread is on, told by its stack, with threads that are held."""

import contextlib
import threading

import pytest

from harness.child.lookups import Lookups

CODE = {"id": 1}
OTHER = {"id": 2}


def function(step):
    """What is compiled."""
    step("inside")


def hooked(step):
    """Python that runs within the lookup: a guard of a subclass's, say."""
    step("in a guard")


namespace: dict = {}
SOURCE = """
def compile_wrapper(before, function, after, step):
    before()
    if function is not None:
        function(step)
    after()
"""
exec(compile(SOURCE, "torch/_dynamo/eval_frame.py", "exec"), namespace)
compile_wrapper = namespace["compile_wrapper"]


@pytest.fixture
def lookups():
    return Lookups()


@contextlib.contextmanager
def held(body):
    """Another thread that has come to where ``body(stop)`` calls ``stop``, and waits there."""
    there, go = threading.Event(), threading.Event()

    def stop(*_):
        there.set()
        assert go.wait(60)

    thread = threading.Thread(target=body, args=(stop,))
    thread.start()
    try:
        assert there.wait(60)
        yield thread
    finally:
        go.set()
        thread.join()


def ask(lookups, numbers, described=CODE):
    def before():
        lookups.arrives()
        numbers.append(lookups.asks(function.__code__, described))

    return before


def nothing(*_):
    pass


def test_a_call_is_waiting_until_its_function_runs(lookups) -> None:
    numbers: list[int] = []
    asks = ask(lookups, numbers)
    with held(lambda stop: compile_wrapper(lambda: (asks(), stop()), function, nothing, nothing)):
        assert lookups.waiting(CODE) == numbers == [1]
        assert lookups.waiting(OTHER) == []
    with held(lambda stop: compile_wrapper(asks, hooked, nothing, stop)):
        assert lookups.waiting(CODE) == [2]
    with held(lambda stop: compile_wrapper(asks, function, nothing, stop)):
        assert lookups.waiting(CODE) == []


def test_a_call_that_has_returned_waits_for_nothing(lookups) -> None:
    asks = ask(lookups, [])

    def body(stop):
        compile_wrapper(asks, function, nothing, nothing)
        stop()

    with held(body):
        assert lookups.waiting(CODE) == []


def test_ones_own_call_is_none_of_the_others(lookups) -> None:
    seen = []
    asks = ask(lookups, [])
    compile_wrapper(lambda: (asks(), seen.append(lookups.waiting(CODE))), None, nothing, nothing)
    assert seen == [[]]


def test_an_entry_is_being_added_until_its_thread_runs_it_or_is_gone(lookups) -> None:
    def compiles(*_):
        lookups.compiled(function.__code__, CODE, "0/1")

    with held(lambda stop: compile_wrapper(lambda: (compiles(), stop()), None, nothing, nothing)):
        assert lookups.adding(CODE) == ["0/1"]
        assert lookups.adding(OTHER) == []
    assert lookups.adding(CODE) == []
    with held(lambda stop: compile_wrapper(compiles, function, nothing, stop)):
        assert lookups.adding(CODE) == []


def test_what_a_thread_did_before_is_over_when_it_comes_to_another_call(lookups) -> None:
    """The thread, or a new one that has got the identifier of one that has ended."""
    asks = ask(lookups, [])

    def compiles():
        asks()
        lookups.compiled(function.__code__, CODE, "0/1")

    def body(stop):
        compile_wrapper(compiles, function, nothing, nothing)
        compile_wrapper(lambda: (lookups.arrives(), stop()), None, nothing, nothing)

    with held(body):
        assert lookups.waiting(CODE) == []
        assert lookups.adding(CODE) == []
