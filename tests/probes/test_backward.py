"""Backward graphs compiled when first needed, and on whose behalf."""

import _thread
import threading

import pytest

from harness.child.probes import backward as probe
from harness.events import schema

PROGRAM = """
from torch._dynamo.backends.common import aot_autograd
from functorch.compile import nop

net = torch.compile(lambda x: x.sin(), backend="aot_eager", dynamic=False)
net(torch.ones(3, requires_grad=True))
outer = net(torch.ones(3, requires_grad=True)).sum()
run(lambda: outer.backward(), name="trainer")

def fails(graph, inputs):
    raise ValueError("no backward today")

broken = torch.compile(
    lambda x: x.cos(), backend=aot_autograd(fw_compiler=nop, bw_compiler=fails), dynamic=False
)

def caught():
    try:
        broken(torch.ones(3, requires_grad=True)).sum().backward()
    except ValueError:
        pass
    for _ in range(11):
        torch.ones(2, requires_grad=True).sum().backward()

run(caught, name="broken")
"""


@pytest.fixture(scope="module")
def watched(watch):
    done = watch(PROGRAM)
    assert done.code == 0, done.err
    return done


def test_a_lazy_backward_is_the_callers_with_the_forwards_id(watched):
    enter, end = watched.of(schema.BackwardCompile, "trainer")
    assert (enter.edge, end.edge) == ("enter", "exit")
    assert enter.data.behalf_tids == (enter.tid,)
    assert end.data.ok
    (forward,) = watched.of(schema.Compile, "MainThread", "exit")
    assert enter.compile_id == end.compile_id == forward.compile_id


def test_a_failing_one_keeps_the_error(watched):
    _, end = watched.of(schema.BackwardCompile, "broken")
    assert end.data.ok is False
    assert "no backward today" in end.data.error


def test_backward_calls_are_counted_per_thread_in_powers_of_two(watched):
    events = watched.of(schema.Backward, "broken")
    assert [event.data.count for event in events if not event.data.error] == [*range(1, 9)]


def test_a_backward_that_fails_is_told_with_its_error_and_counted_once(watched):
    (failed,) = [e for e in watched.of(schema.Backward, "broken") if e.data.error]
    assert "no backward today" in failed.data.error
    assert failed.data.count == 1
    assert failed.data.in_backward_tids == ()
    assert [event.data.count for event in watched.of(schema.Backward, "trainer")] == [1]


def test_autograds_own_thread_works_for_whoever_is_in_a_backward_call():
    asked: dict[str, list[int]] = {}
    done = threading.Event()

    def ask() -> None:
        tid = threading.get_native_id()
        asked["alone"] = probe._on_behalf_of(tid, {})
        asked["callers"] = probe._on_behalf_of(tid, {7: 1, 8: 2})
        # A backward nested in the callers' is run by autograd's thread itself.
        asked["nested"] = probe._on_behalf_of(tid, {7: 1, tid: 1})
        done.set()

    _thread.start_new_thread(ask, ())  # like a thread of C++, it has no Thread object
    assert done.wait(60)
    assert asked == {"alone": [], "callers": [7, 8], "nested": [7]}
    tid = threading.get_native_id()
    assert probe._on_behalf_of(tid, {7: 1, tid: 1}) == [tid]
