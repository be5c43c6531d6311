"""One program, warmed up without gradients and trained with them in two threads at once.

Then a second function, compiled once and called by threads that come and go.
"""

import pytest

from harness.child.attach import PROBES
from harness.events import schema

PROGRAM = """
from pathlib import Path
from torch._dynamo.backends.debugging import aot_eager

compiling = threading.Event()

def slow_aot_eager(graph, inputs):
    # The one compiles until the other has said that it stands at the compile lock.
    if threading.current_thread().name == "drafter-0":
        compiling.set()
        end = time.monotonic() + 120
        while b'"lock_wait"' not in Path(__file__).with_name("events.jsonl").read_bytes():
            if time.monotonic() > end:
                raise TimeoutError("nobody waits for the lock")
            time.sleep(0.005)
    return aot_eager(graph, inputs)

@torch.compile(backend=slow_aot_eager, dynamic=True)
def block(x, w):
    return torch.relu(x @ w).sum()

with torch.no_grad():
    for size in (8, 16):
        block(torch.randn(size, 4), torch.randn(4, 4))
gate, turn = threading.Barrier(2, timeout=120), threading.Lock()

def train():
    w = torch.randn(4, 4, requires_grad=True)
    if threading.current_thread().name == "drafter-1":
        wait_for(compiling)
    for size in (24, 40):
        loss = block(torch.randn(size, 4), w)
        gate.wait()  # a call, or a backward's compile, beside a compile is another subject
        with turn:
            loss.backward()
        gate.wait()

threads = [threading.Thread(target=train, name=name) for name in ("drafter-0", "drafter-1")]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()

def only_hits():
    for size in (24, 40):
        block(torch.randn(size, 4), torch.randn(4, 4, requires_grad=True))

run(only_hits, name="late")

fast = torch.compile(lambda x: x.sin(), backend="eager")
run(lambda: [fast(torch.ones(2)) for _ in range(20)], name="warms")
compiled, idents = threading.Event(), set()

def waits_first():
    torch._guards.TracingContext.try_get()  # uses torch's storage, and calls much later
    ready.set()
    compiled.wait()
    fast(torch.ones(2))

def calls_often():
    idents.add(threading.get_ident())
    for _ in range(20):
        fast(torch.ones(2))

ready = threading.Event()
waiting = threading.Thread(target=waits_first, name="waiting")
waiting.start()
ready.wait()
often = 0
while often < 6 or len(idents) == often:  # until the system gives an ident again
    run(calls_often, name=f"often-{often}")
    often += 1
compiled.set()
waiting.join()
print(often)
"""

DRAFTERS = ("drafter-0", "drafter-1")


@pytest.fixture(scope="module")
def watched(watch):
    done = watch(PROGRAM)
    assert done.code == 0, done.err
    return done


def test_all_probes_are_live(watched):
    states = watched.states()
    assert {states[name] for name in PROBES} - {"idle"} == {"live"}, watched.reasons()
    assert [name for name in PROBES if states[name] == "idle"] == ["workload"]


@pytest.mark.parametrize(
    ("thread", "grad"),
    [("MainThread", False), ("drafter-0", True), ("drafter-1", True), ("late", True)],
)
def test_each_threads_first_call_comes_with_its_context(watched, thread, grad):
    first, *later = watched.of(schema.Wrapper, thread)
    assert first.data.first
    assert first.data.code.name == "block"
    assert not first.data.code.internal
    assert first.data.context.grad_mode is grad
    assert first.data.context.default_dtype == "torch.float32"
    assert first.data.context.num_threads > 0
    assert not any(call.data.first for call in later)
    assert any(frame.user for frame in first.where)


def test_a_thread_that_only_hits_the_cache_is_seen_and_nothing_else_is(watched):
    others = [
        e for e in watched.of(schema.BaseEvent, "late") if not isinstance(e, schema.ThreadEnd)
    ]
    assert [type(event) for event in others] == [schema.Wrapper]


def test_threads_that_come_late_in_an_epoch_are_seen_whatever_they_did_before(watched):
    often = int(watched.out)
    assert often >= 6
    for name in ("waiting", *(f"often-{number}" for number in range(often))):
        (call,) = watched.of(schema.Wrapper, name)
        assert call.data.first


@pytest.mark.parametrize("thread", DRAFTERS)
def test_a_miss_names_the_code_the_context_and_how_many_entries_there_were(watched, thread):
    (miss,) = watched.of(schema.GuardMiss, thread)
    assert miss.data.code.name == "block"
    assert miss.data.context.grad_mode
    assert miss.data.entries == 1


@pytest.mark.parametrize("thread", DRAFTERS)
def test_a_recompile_tells_why_with_what_and_what_came_of_it(watched, thread):
    enter, end = watched.of(schema.Compile, thread)
    assert (enter.edge, end.edge) == ("enter", "exit")
    assert enter.compile_id == end.compile_id
    assert enter.data.context.grad_mode
    assert enter.data.limit == 8
    names = {tensor.name: tensor for tensor in enter.data.inputs}
    assert names["x"].shape == (24, 4)
    assert names["w"].requires_grad
    assert "Autograd" in names["w"].dispatch_keys
    assert (names["x"].dtype, names["x"].device) == ("torch.float32", "cpu")
    assert end.data.ok
    assert "0/0: GLOBAL_STATE changed: grad_mode" in end.data.reasons
    assert end.data.entry.compile_id == end.compile_id
    assert bytes(end.data.entry.global_state["grad_mode"]) == b"true"
    assert any(
        line.startswith("TENSOR_MATCH: check_tensor(L['x']") for line in end.data.entry.guards
    )


def test_the_first_compile_has_no_reason_and_found_no_entry(watched):
    enter, end = watched.of(schema.Compile, "MainThread")
    assert enter.data.entries == 0
    assert end.data.reasons == ()
    assert bytes(end.data.entry.global_state["grad_mode"]) == b"false"


def test_the_thread_behind_the_lock_says_whom_it_waited_for(watched):
    owner, waiter = DRAFTERS
    assert watched.of(schema.LockWait, owner) == []
    enter, end = watched.of(schema.LockWait, waiter)
    assert (enter.edge, end.edge) == ("enter", "exit")
    (compiled, _) = watched.of(schema.Compile, owner)
    assert enter.data.owner_tid == compiled.tid != enter.tid
    assert enter.data.lock == "torch._dynamo.convert_frame.compile_lock"


def test_a_stampedes_entries_have_one_digest_and_the_warm_ups_another(watched):
    (cache,) = (e for e in watched.of(schema.Caches) if e.data.code.name == "block")
    warm, *stampede = cache.data.entries
    assert len(stampede) == 2
    if watched.config_is_per_thread:
        # Before, dynamic=True was a patch of config that the two threads undid for each other.
        assert len({entry.digest for entry in stampede}) == 1
    assert warm.digest != stampede[0].digest
    made = {
        end.data.entry.compile_id: end.data.entry.digest
        for end in watched.of(schema.Compile, edge="exit")
        if end.data.code.name == "block"
    }
    assert {entry.compile_id: entry.digest for entry in cache.data.entries} == made


def test_traces_are_told_as_part_of_the_compile(watched):
    enter, end = watched.of(schema.FxTrace, "drafter-0")[:2]
    assert (enter.edge, end.edge) == ("enter", "exit")
    assert enter.data.tracer == "PythonKeyTracer"
    assert enter.data.in_compile
    compiled = watched.of(schema.Compile, "drafter-0")
    assert enter.compile_id == compiled[0].compile_id


def test_backward_calls_are_counted_for_the_threads_that_made_them(watched):
    for thread in DRAFTERS:
        assert [event.data.count for event in watched.of(schema.Backward, thread)] == [1, 2]
    # AOTAutograd differentiates while it traces: that is no call of the program's.
    assert not watched.of(schema.Backward, "MainThread")


def test_the_two_counts_of_compiles_agree(watched):
    (detail,) = watched.of(schema.CompileDetail)
    assert detail.data.metrics == detail.data.compiles == 4


def test_the_idle_invariants_hold(watched):
    (found,) = watched.of(schema.Invariants)
    assert found.data.fx_flag_clear
    assert found.data.is_compiling_clear
    assert found.data.module_call_original
    assert found.data.patcher_clear
    assert found.data.current_meta_empty
    assert found.data.busy_tids == ()
