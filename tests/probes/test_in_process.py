"""The parts that need no child: contexts, code objects, guard texts, the lock, missing symbols."""

import gc
import threading
import types
import weakref

import pytest
import torch

from harness.child import caches, codes, context, nesting
from harness.child import torch_symbols as symbols
from harness.child.probes import (
    Unavailable,
    attention,
    backward,
    block_mask,
    compiles,
    eager,
    fx,
    lock,
    stance,
    wrapper,
)
from harness.child.probes import guards as guards_probe
from harness.child.settings import Settings
from harness.events import schema

SETTINGS = Settings(folder="", harness="test")


def in_thread(function):
    result = []
    thread = threading.Thread(target=lambda: result.append(function()))
    thread.start()
    thread.join()
    return result[0]


def test_the_context_is_the_calling_threads():
    with torch.no_grad(), torch.autocast("cpu", dtype=torch.bfloat16), torch.device("meta"):
        mine, fresh = context.describe(), in_thread(context.describe)
    assert not mine["grad_mode"]
    assert mine["autocast"]["cpu"] == [True, "torch.bfloat16"]
    assert mine["default_device"] == "meta"
    assert mine["torch_function_modes"] == ["DeviceContext(meta)"]
    assert fresh["grad_mode"]
    assert fresh["autocast"]["cpu"][0] is False
    assert fresh["default_device"] == "cpu"
    assert fresh["torch_function_modes"] == []
    assert fresh["current_device"] is None or torch.cuda.is_initialized()
    with torch.inference_mode():
        inference = context.describe()
    assert inference["inference_mode"]
    assert not inference["grad_mode"]


def test_config_is_what_differs_from_the_defaults_in_this_thread():
    import torch._dynamo

    per_thread = torch.__version__ >= "2.12"
    with torch._dynamo.config.patch(recompile_limit=77, automatic_dynamic_shapes=False):
        mine, fresh = context.describe()["config"], in_thread(context.describe)["config"]
    expected = {"recompile_limit": 77, "automatic_dynamic_shapes": False}
    assert mine == expected
    assert fresh == ({} if per_thread else expected)
    assert context.describe()["config"] == {}


def test_inputs_are_tensors_among_locals_also_one_level_down():
    variables = {
        "x": torch.ones(2, 3, requires_grad=True),
        "args": (torch.ones(4, dtype=torch.int8), "text"),
        "kwargs": {"mask": torch.ones(5)},
        "n": 7,
    }
    found = {each["name"]: each for each in context.describe_inputs(variables)}
    assert list(found) == ["x", "args[0]", "kwargs['mask']"]
    assert found["x"]["shape"] == [2, 3]
    assert found["x"]["requires_grad"]
    assert found["args[0]"]["dtype"] == "torch.int8"
    many = {str(number): torch.ones(1) for number in range(40)}
    assert len(context.describe_inputs(many)) == 16


def test_two_functions_on_one_line_are_two_codes_and_a_dead_one_is_let_go():
    first, second = (lambda: 1), (lambda: 2)
    a, b = codes.describe_function(first), codes.describe_function(second)
    assert a["line"] == b["line"]
    assert a["id"] != b["id"]
    assert codes.describe_function(first) is a
    space: dict = {}
    exec("def f(): pass", space)
    code = space["f"].__code__
    number = codes.describe(code)["id"]
    key = (id(code), id(None))
    assert key in codes._known
    del code
    space.clear()
    gc.collect()
    assert key not in codes._known
    assert codes.describe_function(lambda: 3)["id"] > number


def test_what_differs_between_two_compiles_of_the_same_is_not_in_the_digest():
    text = (
        "TREE_GUARD_MANAGER:\n| +- GLOBAL_STATE: ___check_global_state() against "
        '{"grad_mode":true,"autocast_state":{"enabled":[false]}}  # here\n'
        "| +- ID_MATCH: ___check_obj_id(G['__builtins_dict___4']['iter'], 140620359045888)\n"
        "| | +- TENSOR_MATCH: check_tensor(L['x'], size=[8])  # x = <object at 0x7f01>\n"
        "| | +- NO_HASATTR: hasattr(L['x'], '_dynamo_dynamic_indices') == False  # x\n"
    )
    one = caches.describe_entry(text, "0/0")
    assert one["global_state"] == {"grad_mode": True, "autocast_state": {"enabled": [False]}}
    assert one["guards"][1:] == [
        "ID_MATCH: ___check_obj_id(G['__builtins_dict___4']['iter'], 140620359045888)",
        "TENSOR_MATCH: check_tensor(L['x'], size=[8])",
    ]
    text += "| +- ID_MATCH: ___check_obj_id(G['____x____4'], 7), G['f_140_c3'] == 0xcafe\n"
    one = caches.describe_entry(text, "0/0")
    same = text.replace("___4", "___12").replace("0x7f01", "0x7f02").replace("0xcafe", "0x0")
    same = same.replace("140_c3'", "140_c17'")
    assert caches.describe_entry(same, "0/1")["digest"] == one["digest"]
    others = (("size=[8]", "size=[9]"), ("045888", "045889"), ("____x____", "____y____"))
    for other in (text.replace(*pair) for pair in (*others, ("140_c", "141_c"))):
        assert caches.describe_entry(other, "0/2")["digest"] != one["digest"]


def test_long_guard_texts_are_cut():
    text = "".join(f"| +- EQUALS_MATCH: L['{'n' * 500}{number}'] == 1\n" for number in range(99))
    guards = caches.describe_entry(text, "0/0")["guards"]
    assert len(guards) == 40
    assert max(map(len, guards)) == 300


def test_depths_count_and_forget():
    depths: nesting.Depths = {}
    nesting.enter(depths, 1)
    nesting.enter(depths, 1)
    nesting.enter(depths, 2)
    nesting.leave(depths, 1)
    assert nesting.others(depths, 1) == [2]
    assert nesting.inside(depths) == [1, 2]
    nesting.leave(depths, 1)
    nesting.leave(depths, 1)
    assert depths == {2: 1}


def test_the_watched_lock_is_a_re_entrant_lock(recorder, recorded):
    real = threading.RLock()
    watched = lock.WatchedLock(real, recorder)
    with watched, watched:
        assert watched.acquire(timeout=1)
        assert in_thread(lambda: watched.acquire(blocking=False)) is False
        assert in_thread(lambda: watched.acquire(timeout=0.01)) is False
        assert in_thread(lambda: real.acquire(blocking=False)) is False
        watched.release()
        assert watched._is_owned()
        assert recorder.local.scratch[lock.CONTEXT]["grad_mode"]
    assert in_thread(lambda: (watched.acquire(), watched.release())[0]) is True
    with pytest.raises(RuntimeError):
        watched.release()
    assert (watched._owner, watched._depth) == (None, 0)
    waits = [event for event in recorded() if isinstance(event, schema.LockWait)]
    # Only the attempt that waited.
    assert [event.edge for event in waits] == ["enter", "exit"]
    assert waits[0].data.owner_tid == threading.get_native_id()


def test_who_is_waited_for_before_calls_go_unseen():
    new, epoch = wrapper._Thread(), object()
    much_later = new.since + 1000.0
    assert new.is_waited_for(epoch, new.since, much_later)  # its first call is still to come
    new.foreign = True
    assert new.is_waited_for(epoch, new.since, new.since + 1.0)
    assert not new.is_waited_for(epoch, new.since, much_later)
    called = wrapper._Thread()
    called.epoch = object()
    assert called.is_waited_for(epoch, called.since, called.since + 1.0)
    assert not called.is_waited_for(epoch, called.since, called.since + 1000.0)
    called.epoch, called.left = epoch, 0
    assert not called.is_waited_for(epoch, called.since, called.since)


def test_a_thread_that_ends_late_does_not_take_the_next_one_with_its_id_along():
    threads = {}
    old = threads[7] = wrapper._Thread()
    ended = wrapper._End(threads, 7, old)
    new = threads[7] = wrapper._Thread()
    kept = wrapper._End(threads, 7, new)
    del ended
    gc.collect()
    assert threads == {7: new}
    del kept
    gc.collect()
    assert threads == {}


def test_a_thread_that_ended_is_waited_for_no_more(recorder):
    watch = wrapper._Watch(recorder)
    alive = in_thread(lambda: (watch.expect(), dict(watch._threads))[1])
    assert len(alive) == 1
    assert watch._threads == {}


class InterruptedLock:
    """A re-entrant lock at whose second acquisition Ctrl-C comes, just after it succeeded."""

    def __init__(self):
        self.lock = threading.RLock()
        self.left = 2

    def acquire(self, *args, **kwargs):
        acquired = self.lock.acquire(*args, **kwargs)
        self.left -= 1
        if self.left == 0:
            raise KeyboardInterrupt
        return acquired

    def __getattr__(self, name):
        return getattr(self.lock, name)


def test_ctrl_c_at_the_watched_lock_leaves_it_free(recorder, monkeypatch):
    real = InterruptedLock()
    watched = lock.WatchedLock(real, recorder)
    with watched:
        pass
    with pytest.raises(KeyboardInterrupt), watched:
        pytest.fail("entered")
    assert not real._is_owned()

    def interrupted():
        raise KeyboardInterrupt

    monkeypatch.setattr(context, "describe", interrupted)
    with pytest.raises(KeyboardInterrupt), watched:
        pytest.fail("entered")
    assert not real._is_owned()
    assert (watched._owner, watched._depth) == (None, 0)


def entries(number):
    """Stand-ins for dynamo's cache entries, newest first."""
    return [
        types.SimpleNamespace(guard_manager=f"guards {n}", compile_id=f"0/{n}")
        for n in reversed(range(number))
    ]


@pytest.fixture
def caches_at_exit(recorder, recorded, monkeypatch):
    """Record one code object with 40 entries and return the ``caches`` events."""
    monkeypatch.setattr(caches, "_MAX_SECONDS", 60.0)  # however busy the machine is

    def record():
        code = record.__code__
        described = codes.describe(code)
        monkeypatch.setattr(caches, "_compiled", {1: (weakref.ref(code), described)})
        monkeypatch.setattr(caches, "entries_of", lambda code, described: entries(40))
        caches.record_all(recorder)
        return [event for event in recorded() if isinstance(event, schema.Caches)]

    return record


def test_of_many_entries_the_newest_are_told_and_the_others_counted(caches_at_exit):
    (event,) = caches_at_exit()
    assert [entry.compile_id for entry in event.data.entries] == [f"0/{n}" for n in range(8, 40)]
    assert event.data.left_out == 8


def test_telling_the_entries_ends_in_time(caches_at_exit, monkeypatch):
    monkeypatch.setattr(caches, "_MAX_SECONDS", 0.0)
    (event,) = caches_at_exit()
    assert (event.data.entries, event.data.left_out) == ((), 40)


def test_entries_are_not_read_while_another_thread_compiles(caches_at_exit, recorder):
    nesting.enter(recorder.compiling, recorder.local.tid + 1)
    assert caches_at_exit() == []


@pytest.mark.parametrize(
    ("probe", "symbol"),
    [
        (fx.PROBE, "FX_TRACE"),
        (compiles.PROBE, "COMPILE"),
        (lock.PROBE, "COMPILE_LOCK"),
        (backward.PROBE, "INSTALL_CALLBACKS"),
        (eager.PROBE, "PUSH_MODE"),
        (eager.PROBE, "STANCE"),
        (stance.PROBE, "SET_STANCE"),
        (stance.PROBE, "SET_STANCE_BY_NAME"),
        (attention.PROBE, "MATH_ATTENTION"),
        (block_mask.PROBE, "DENSE_TO_ORDERED"),
        (guards_probe.PROBE, "SET_GUARD_HOOK"),
    ],
)
def test_a_missing_symbol_is_named_and_nothing_is_patched(monkeypatch, recorder, probe, symbol):
    import torch._dynamo
    import torch.nn.attention.flex_attention

    there = getattr(symbols, symbol)
    before = there.get()
    gone = symbols.Symbol(there.module, there.name + "_gone", until="2.12")
    monkeypatch.setattr(symbols, symbol, gone)
    with pytest.raises(Unavailable, match=rf"{there.name}_gone \(torch 2.11 to 2.12; this is"):
        probe.install(recorder, SETTINGS)
    assert there.get() is before
    assert torch.autograd._engine_run_backward is torch.autograd.graph._engine_run_backward
    assert not hasattr(torch.autograd._engine_run_backward, "__wrapped__")


def test_a_guard_hook_of_somebody_else_is_left_alone(recorder):
    set_hook = symbols.SET_GUARD_HOOK.get()

    def theirs(hit):
        return hit

    assert set_hook(theirs) is None
    try:
        with pytest.raises(guards_probe.Conflict, match="theirs"):
            guards_probe.PROBE.install(recorder, SETTINGS)
    finally:
        assert set_hook(None) is theirs


def test_symbols_of_modules_that_are_not_imported_are_unavailable():
    with pytest.raises(Unavailable, match=r"torch\.never is not imported"):
        symbols.Symbol("torch.never", "thing").get()
    assert symbols.Symbol("torch.never", "thing").find("nothing") == "nothing"
