"""``harness.guarded()``: a compiled function that threads call as it was warmed up."""

import threading

import pytest
import torch

import harness


def in_thread(function):
    result = []

    def run():
        try:
            result.append(function())
        except Exception as error:  # noqa: BLE001
            result.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    return result[0]


def test_threads_call_it_in_the_context_of_its_warmup(make):
    x = torch.ones(3, requires_grad=True)
    guarded = harness.guarded(make("x @ x"))
    with torch.no_grad(), torch.autocast("cpu", dtype=torch.bfloat16), guarded:
        guarded(x)

    def call():
        with torch.enable_grad():
            result = guarded(x)
        return result, torch.is_grad_enabled(), torch.is_autocast_enabled("cpu")

    with harness.watching() as run:
        result, grad, autocast = in_thread(call)
    assert result.dtype is torch.bfloat16
    assert result.grad_fn is None
    assert (grad, autocast) == (True, False)
    assert run.verdict == "clean", run.report()
    assert run.diagnosis.counts.compiles == 0


def test_without_it_the_same_threads_compile(make):
    x = torch.ones(3, requires_grad=True)
    compiled = make("x @ x")
    with torch.no_grad():
        compiled(x)
    with harness.watching() as run:
        in_thread(lambda: compiled(x))
    assert run.diagnosis.counts.compiles == 1


def test_a_call_that_would_compile_raises_and_compiles_nothing(make):
    guarded = harness.guarded(make())
    with guarded:
        guarded(torch.ones(3))
    error = in_thread(lambda: guarded(torch.ones(3, dtype=torch.float64)))
    assert type(error).__name__ == "RecompileError"
    assert "dtype mismatch" in str(error)
    assert torch.equal(in_thread(lambda: guarded(torch.ones(3))), torch.ones(3).mul(2).sin())


def test_what_was_not_warmed_up_is_refused(make):
    guarded = harness.guarded(make())
    with pytest.raises(RuntimeError, match="was not warmed up"):
        guarded(torch.ones(3))
    with pytest.raises(ZeroDivisionError), guarded:
        _ = 1 / 0
    with pytest.raises(RuntimeError, match="was not warmed up"):
        guarded(torch.ones(3))


def test_while_one_thread_warms_it_up_another_does_not_compile(make):
    guarded = harness.guarded(make())
    with guarded:
        guarded(torch.ones(3))
        error = in_thread(lambda: guarded(torch.ones(3, dtype=torch.float64)))
    assert type(error).__name__ == "RecompileError"


def test_before_its_warmup_has_compiled_anything_another_thread_is_refused(make):
    guarded = harness.guarded(make())
    with harness.watching() as run, guarded:
        error = in_thread(lambda: guarded(torch.ones(3)))
    assert "was not warmed up" in str(error)
    assert run.diagnosis.counts.compiles == 0


def test_a_warmup_without_a_call_is_none(make):
    guarded = harness.guarded(make())
    with guarded:
        pass
    with pytest.raises(RuntimeError, match="was not warmed up"):
        guarded(torch.ones(3))


def test_the_autocast_cache_alone_makes_no_difference(make):
    guarded = harness.guarded(make())
    with guarded:
        guarded(torch.ones(3))

    def call():
        with torch.autocast("cpu", enabled=False, cache_enabled=False):
            return guarded(torch.ones(3)), torch.is_autocast_cache_enabled()

    result, cached = in_thread(call)
    assert torch.equal(result, torch.ones(3).mul(2).sin())
    assert cached is False


def test_what_cannot_be_called_is_refused():
    with pytest.raises(TypeError, match=r"guarded\(\) takes a compiled function, got None"):
        harness.guarded(None)
