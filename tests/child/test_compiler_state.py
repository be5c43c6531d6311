"""What a piece of a program leaves behind of the compiler's state, and what is another's doing."""

import threading

import pytest
import torch
import torch._dynamo
import torch.fx._symbolic_trace as symbolic_trace

from harness.child import torch_symbols as symbols
from harness.child.in_process import compiler_state
from harness.child.probes.invariants import invariants


@pytest.fixture(autouse=True, scope="module")
def main_has_compiled():
    """CUDA builds of torch up to 2.13 crash without a GPU where the first compile is a thread's."""
    torch.compile(lambda x: x.cos(), backend="eager")(torch.ones(1))


@pytest.fixture
def compiling_elsewhere():
    """Another thread is inside a compile until the function that this gives is called."""
    inside, go_on = threading.Event(), threading.Event()

    def backend(graph, inputs):
        inside.set()
        assert go_on.wait(60)
        return graph.forward

    compiled = torch.compile(lambda x: x.sin() + 3, backend=backend, dynamic=False)
    thread = threading.Thread(target=compiled, args=(torch.ones(2),))

    def leave():
        go_on.set()
        thread.join()

    thread.start()
    assert inside.wait(60)
    yield leave
    leave()


def is_seen_from_here():
    """Whether this torch shows another thread's compile in its process-wide state."""
    return False in invariants().values() or (
        symbols.config_is_of_process() and bool(symbols.config_overrides())
    )


def test_nothing_changed_is_nothing():
    before = compiler_state.state()
    assert compiler_state.changes(before, compiler_state.state()) == []


def test_a_compile_in_the_background_is_nobodys_leaving(compiling_elsewhere):
    during = compiler_state.state()
    assert is_seen_from_here(), "the test shows nothing on this torch"
    compiling_elsewhere()
    after = compiler_state.state()
    assert compiler_state.changes(compiler_state.State(), during) == []
    assert compiler_state.changes(after, during) == []
    assert compiler_state.changes(during, after) == []


def test_what_is_a_threads_own_is_told_beside_a_compile_in_the_background(
    compiling_elsewhere,
):
    before = compiler_state.state()
    with torch._dynamo.config.patch(recompile_limit=79):
        said = compiler_state.changes(before, compiler_state.state())
    if symbols.config_is_of_process():
        assert said == []
    else:
        assert said == ["torch._dynamo.config.recompile_limit was the default and is 79"]


def test_state_that_is_left_set_is_told_once_nobody_compiles(monkeypatch):
    before = compiler_state.state()
    monkeypatch.setattr(symbolic_trace, "CURRENT_PATCHER", object())
    said = compiler_state.changes(before, compiler_state.state())
    assert said == ["an FX patcher is left behind"]


def test_a_stance_is_told(monkeypatch):
    before = compiler_state.state()
    with torch.compiler.set_stance("force_eager"):
        during = compiler_state.state()
    assert compiler_state.changes(before, during) == [
        "the stance was 'default' and is 'force_eager'"
    ]
    assert compiler_state.changes(before, compiler_state.state()) == []
