"""A race of torch's own, forced and prevented by holds: an FX trace against a cached call.

Up to torch 2.13 the FX-tracing flag is one for the process (fixed in 2.14), so a call of compiled
code in one thread fails while another one traces.
"""

import threading

import pytest

from harness.child.recorder import Recorder
from harness.child.schedule.controller import Controller
from harness.schedule.plan import parse_plan, serial

ROUNDS = 20
PLAN = parse_plan(["A:fx_trace:enter", "B:wrapper:enter", "B:wrapper:exit", "A:fx_trace:exit"])


@pytest.fixture(scope="module")
def compiled():
    import torch

    function = torch.compile(lambda x: x * 2 + 1, backend="eager")
    function(torch.ones(3))
    return function


def one_round(folder, plan, compiled):
    """Trace in one thread, call in another; return the call's error, and how the holds went."""
    import torch

    folder.mkdir()
    recorder = Recorder(str(folder))
    scheduler = Controller(recorder, plan.holds, patience_s=1000.0, apart=plan.apart)
    errors = []

    def traced(x):
        scheduler.reach("fx_trace", "enter")
        scheduler.reach("fx_trace", "exit")
        return x + 1

    def trace():
        torch.fx.symbolic_trace(traced)

    def call():
        scheduler.reach("wrapper", "enter")
        try:
            compiled(torch.ones(3))
        except RuntimeError as error:
            errors.append(str(error))
        scheduler.reach("wrapper", "exit")

    threads = [threading.Thread(target=body) for body in (call, trace)]
    for thread in threads:
        scheduler.number_thread(thread)
        thread.start()
    for thread in threads:
        thread.join(60)
        assert not thread.is_alive()
    return errors, scheduler._order.reached


def test_the_fx_error_is_certain_under_the_plan(tmp_path, compiled) -> None:
    import torch

    version = tuple(map(int, torch.__version__.split(".")[:2]))
    outcomes = [one_round(tmp_path / str(n), PLAN, compiled) for n in range(ROUNDS)]
    assert [reached for _, reached in outcomes] == [4] * ROUNDS
    raised = sum(any("symbolically trace" in text for text in errors) for errors, _ in outcomes)
    assert raised == (ROUNDS if version < (2, 14) else 0)


def test_its_control_is_clean(tmp_path, compiled) -> None:
    outcomes = [one_round(tmp_path / str(n), serial(PLAN), compiled) for n in range(ROUNDS)]
    assert outcomes == [([], 4)] * ROUNDS
