"""What the cache entries answer in each thread, on real torch, beside what the calls came to."""

import sys
from pathlib import Path

import pytest

from harness.certificate.coverage import Table
from harness.certificate.seen import seen
from harness.child import asking
from harness.supervise.launch import Launch, WatchSettings
from harness.supervise.process import supervise
from harness.timeline.recording import Recording

PROGRAM = str(Path(__file__).with_name("asked_program.py"))


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("run")
    ended = supervise(
        Launch((sys.executable, PROGRAM), folder, WatchSettings(ask=True), timeout_s=200.0)
    )
    assert ended.exit_code == 0, ended.stderr_tail
    return seen(Recording(folder))


def of(run, thread, name, *, ran=True):
    return [
        call
        for call in run.calls
        if (call.event.thread, call.ran) == (thread, ran)
        and call.event.data.code.name.endswith(name)
    ]


def test_a_thread_with_the_same_context_is_answered_that_an_entry_fits(run) -> None:
    for name in ("closed", "Block.forward"):
        (call,) = of(run, "same", name)
        assert (call.late, call.fits, call.missed, call.disagreed) == (True, True, False, False)


def test_a_thread_with_another_context_is_answered_which_guard_fails(run) -> None:
    (call,) = of(run, "autocast", "Block.forward")
    assert (call.fits, call.missed, call.disagreed) == (False, True, False)
    assert "autocast" in call.guards[0]


def test_an_entry_that_another_thread_adds_before_the_call_is_no_wrong_answer(run) -> None:
    (call,) = of(run, "overtaken", "shared")
    assert (call.fits, call.fits_late, call.missed) == (False, False, False)
    assert "grad_mode" in call.guards[0]
    assert call.raced
    assert not call.disagreed


def test_an_entry_that_was_still_to_be_added_when_its_compile_was_over_is_no_wrong_answer(
    run,
) -> None:
    (call,) = of(run, "too_early", "shared")
    assert (call.fits, call.fits_late, call.missed) == (False, False, False)
    assert any("dtype" in guard for guard in call.guards)
    assert call.raced
    assert not call.disagreed


def test_nobody_else_met_an_entry_on_its_way(run) -> None:
    assert {call.event.thread for call in run.calls if call.raced} == {"overtaken", "too_early"}


def test_a_thread_is_asked_about_calls_that_only_others_made(run) -> None:
    (asked,) = of(run, "longer", "Linear.forward", ran=False)
    assert [list(tensor.shape) for tensor in asked.event.data.inputs] == [[2, 4]]
    assert not asked.fits
    assert "grad_mode" in asked.guards[0]


def test_the_callables_have_the_names_that_the_program_gives_them(run) -> None:
    called = {call.event.data.code.name: call.event.data.called for call in run.calls}
    assert called["Block.forward"] == ("__main__", "block")
    assert called["Linear.forward"] == ("__main__", "linear")
    assert called["closed"] == ("__main__", "closed")


def test_arguments_are_told_as_they_were_given(run) -> None:
    call = of(run, "same", "closed")[0]
    told = [(a.name, a.kind, a.text, a.keyword) for a in call.event.data.arguments]
    assert told == [
        ("x", "tensor", "", ""),
        ("rest[0]", "value", "1", ""),
        ("k", "value", "5", "k"),
        ("more['z']", "value", "2", "z"),
    ]


def test_the_table_has_both_ways_of_knowing(run) -> None:
    table = Table()
    table.add(run)
    states = {
        (cell.callable.rpartition(".")[0] or cell.callable, cell.state) for cell in table.cells()
    }
    assert ("Block", "covered") in states
    assert ("Block", "not covered") in states
    assert not any(cell.disagreed for cell in table.cells())


def test_a_frame_begins_with_its_arguments_defaults_and_what_it_closes_over() -> None:
    captured = object()

    def function(a, b=2, *rest, c, d=4, **more):
        return captured

    code = function.__code__
    assert asking.bind(function, code, (1,), {"c": 3}) == {
        "a": 1,
        "b": 2,
        "rest": (),
        "c": 3,
        "d": 4,
        "more": {},
        "captured": captured,
    }
    given = asking.bind(function, code, (1, 5, 6), {"c": 3, "e": 7})
    assert (given["b"], given["rest"], given["more"]) == (5, (6,), {"e": 7})


def test_a_bound_method_begins_with_its_object() -> None:
    class Thing:
        def method(self, x):
            return x

    thing = Thing()
    assert asking.bind(thing.method, Thing.method.__code__, (1,), {}) == {"self": thing, "x": 1}
