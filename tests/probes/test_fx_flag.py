"""Calls of compiled code while another thread traces with FX."""

import pytest

from harness.events import schema

PROGRAM = """
import torch.fx
fast = torch.compile(lambda x: x.sin(), backend="eager")
fast(torch.ones(2))
tracing, done = threading.Event(), threading.Event()

class Held(torch.nn.Module):
    def forward(self, x):
        tracing.set()
        wait_for(done)
        return x + 1

thread = threading.Thread(target=torch.fx.symbolic_trace, args=(Held(),), name="tracer")
thread.start()
wait_for(tracing)
for eager in (False, True):
    torch._dynamo.config.error_on_nested_fx_trace = not eager
    for _ in range(20):
        try:
            fast(torch.ones(2))
        except RuntimeError:
            pass
done.set()
thread.join()
torch._dynamo.config.error_on_nested_fx_trace = True
fast(torch.ones(2))
st = torch.fx._symbolic_trace
print(hasattr(st, "_is_fx_tracing_flag"))

# From here on nothing is left as it was.
call = torch.nn.Module.__call__
torch.nn.Module.__call__ = lambda self, *args: call(self, *args)
if hasattr(st, "_is_fx_tracing_flag"):
    st._is_fx_tracing_flag = True
else:
    st._set_is_fx_tracing(True)
st.CURRENT_PATCHER = object()
torch.compiler._is_compiling_flag = True
torch.fx.traceback.current_meta["stack_trace"] = "left behind"
started = threading.Event()

class HeldToTheEnd(torch.nn.Module):
    def forward(self, x):
        started.set()
        time.sleep(600)

args = (HeldToTheEnd(),)
threading.Thread(target=torch.fx.symbolic_trace, args=args, name="held", daemon=True).start()
wait_for(started)
"""


@pytest.fixture(scope="module")
def watched(watch):
    done = watch(PROGRAM)
    assert done.code == 0, done.err
    return done


def test_the_trace_is_recorded_with_its_tracer_and_thread(watched):
    enter, end = watched.of(schema.FxTrace, "tracer")
    assert (enter.edge, end.edge) == ("enter", "exit")
    assert enter.data.tracer == "Tracer"
    assert not enter.data.in_compile


def test_calls_meanwhile_saw_the_flag_and_who_had_set_it(watched):
    flagged = [event for event in watched.of(schema.Wrapper) if event.data.fx_flag]
    if "True" not in watched.out:  # from torch 2.14 on the flag is each thread's own
        assert flagged == []
        return
    (tracer,) = {event.tid for event in watched.of(schema.FxTrace, "tracer")}
    for outcome in ("raise", "eager"):
        seen = [event for event in flagged if event.data.nested == outcome]
        # The first eight, then powers of two, of twenty.
        assert [event.data.count for event in seen] == [*range(1, 9), 16]
        assert {event.data.tracing_tids for event in seen} == {(tracer,)}
        assert {event.thread for event in seen} == {"MainThread"}
        assert any(frame.user for frame in seen[0].where)


def test_a_flag_and_a_module_left_patched_break_the_invariants(watched):
    (found,) = watched.of(schema.Invariants)
    assert found.data.fx_flag_clear is False
    assert found.data.is_compiling_clear is False
    assert found.data.module_call_original is False
    assert found.data.patcher_clear is False
    assert found.data.current_meta_empty is False
    (held,) = watched.of(schema.FxTrace, "held")
    assert found.data.busy_tids == (held.tid,)


def test_a_program_without_torch_has_nothing_to_say(watch, tmp_path):
    script = tmp_path / "plain.py"
    script.write_text("print('plain')\n")
    watched = watch(script)
    assert watched.code == 0
    assert watched.of(schema.Invariants) == []
    assert {watched.states()[name] for name in ("wrapper", "guards", "compiles")} == {"idle"}
