"""Calls that run eager, by every route, each told from a cache hit; and stances."""

import pytest

from harness.events import schema

PROGRAM = """
from torch.utils.flop_counter import FlopCounterMode

xs = [torch.ones(size) for size in range(2, 30)]
config = torch._dynamo.config

def compiled(function, **options):
    return torch.compile(function, backend="eager", dynamic=False, **options)

fast = compiled(lambda x: x.sin() + 1)
fast(xs[0])

def hits():
    for _ in range(20):
        fast(xs[0])

def broken(x):
    x = x.sin()
    print(end="")
    return x.cos()

def graph_break():
    call = torch.compile(broken, backend="eager")
    for _ in range(20):
        call(xs[0])

def nested():
    inner = compiled(lambda x: x.tan() + 4)
    outer = compiled(torch.compiler.disable(lambda x: inner(x)))
    for _ in range(20):
        outer(xs[0])

def limit():
    config.recompile_limit = 2
    call = compiled(lambda x: x.sin() + 2)
    for size in range(5):
        call(xs[size])
    call(xs[0])

def limit_with_fullgraph():
    config.recompile_limit = 2
    call = compiled(lambda x: x.sin() + 7, fullgraph=True)
    for size in range(4):
        try:
            call(xs[size])
        except Exception:
            pass

def empty():
    call = compiled(lambda x: x)
    for _ in range(3):
        call(xs[0])

def fails(graph, inputs):
    raise ValueError("no")

def suppressed():
    config.suppress_errors = True
    call = torch.compile(lambda x: x.sin() + 3, backend=fails)
    for _ in range(3):
        call(xs[0])
    config.suppress_errors = False

def raised():
    call = torch.compile(lambda x: x.sin() + 6, backend=fails)
    for _ in range(3):
        try:
            call(xs[0])
        except Exception:
            pass

def mode():
    call = compiled(lambda x: x.tan())
    for _ in range(20):  # until nobody looks any more
        call(xs[0])
    with FlopCounterMode(display=False):
        for _ in range(3):
            call(xs[0])
    for _ in range(2):
        call(xs[0])

def first_under_a_mode():
    for _ in range(20):
        fast(xs[0])
    call = compiled(lambda x: x.tan() + 2)
    with FlopCounterMode(display=False):
        for _ in range(2):
            call(xs[0])

def own_stance():
    with torch.compiler.set_stance("force_eager"):
        for _ in range(3):
            fast(xs[0])
    fast(xs[0])

def recompile_stances():
    torch.compiler.set_stance("eager_on_recompile")
    for number in (0, 9, 9):
        fast(xs[number])
    torch.compiler.set_stance("fail_on_recompile")
    for number in (9, 0, 9):
        try:
            fast(xs[number])
        except RuntimeError:
            pass
    torch.compiler.set_stance(skip_guard_eval_unsafe=True)
    for number in (0, 9, 0):
        try:
            fast(xs[number])
        except RuntimeError:
            pass
    torch.compiler.set_stance("default")
    fast(xs[0])

for function in (
    hits, graph_break, nested, limit, limit_with_fullgraph, empty, suppressed, raised, mode,
    first_under_a_mode, own_stance, recompile_stances,
):
    run(function, name=function.__name__)
    config.recompile_limit = 8

ready, set_, called, back = (threading.Event() for _ in range(4))

def victim():
    for _ in range(20):
        fast(xs[0])
    ready.set()
    wait_for(set_)
    for _ in range(3):
        fast(xs[0])
    called.set()
    wait_for(back)
    for _ in range(20):
        fast(xs[0])

thread = threading.Thread(target=victim, name="victim")
thread.start()
wait_for(ready)

def setter():
    with torch.compiler.set_stance("force_eager"):
        set_.set()
        wait_for(called)
    back.set()

run(setter, name="setter")
thread.join()
"""


@pytest.fixture(scope="module")
def watched(watch):
    done = watch(PROGRAM)
    assert done.code == 0, done.err
    return done


def routes(watched, thread):
    return [event.data.route for event in watched.of(schema.Eager, thread)]


def torch_version(watched):
    major, minor = watched.of(schema.Header)[0].data.torch.split(".")[:2]
    return int(major), int(minor)


@pytest.mark.parametrize(
    ("thread", "expected"),
    [
        ("MainThread", []),
        ("hits", []),
        ("graph_break", []),
        ("nested", []),
        ("limit", ["recompile_limit", "run_only", "run_only"]),
        ("limit_with_fullgraph", []),
        ("empty", ["no_graph"] * 3),
        ("suppressed", ["suppressed_error"] * 3),
        ("raised", []),
        ("first_under_a_mode", ["dispatch_mode"] * 2),
        ("own_stance", ["stance"] * 3),
        ("recompile_stances", ["stance"] * 2),
        ("victim", ["stance"] * 3),
        ("setter", []),
    ],
)
def test_each_route_is_told_from_a_cache_hit(watched, thread, expected):
    assert routes(watched, thread) == expected


def test_up_to_2_13_a_mode_leaves_the_function_eager_and_from_2_14_on_it_does_not(watched):
    afterwards = ["skipped_for_mode"] * 2 if torch_version(watched) <= (2, 13) else []
    assert routes(watched, "mode") == ["dispatch_mode"] * 3 + afterwards


def test_it_is_said_whose_doing_it_was(watched):
    (setter, *_) = watched.of(schema.Stance, "setter")
    for event in watched.of(schema.Eager, "victim"):
        assert (event.data.by_tid, event.data.detail) == (setter.tid, "force_eager")
    (own, *_) = watched.of(schema.Eager, "limit")
    assert own.data.by_tid == own.tid
    assert "recompile limit" in own.data.detail.lower()


def test_a_call_has_its_own_time_and_place(watched):
    first, second, _ = watched.of(schema.Eager, "victim")
    # What came of a call is known when the next one begins.
    assert first.data.began_ns < first.t_ns <= second.data.began_ns
    assert [event.data.count for event in watched.of(schema.Eager, "victim")] == [1, 2, 3]
    assert any(frame.function == "victim" for frame in first.where)


def test_a_call_under_a_stance_says_so(watched):
    under = [event for event in watched.of(schema.Wrapper, "victim") if event.data.stance]
    (setter, *_) = watched.of(schema.Stance, "setter")
    assert [(e.data.stance, e.data.stance_tid) for e in under] == [("force_eager", setter.tid)]
    skipping = {e.data.stance for e in watched.of(schema.Wrapper, "recompile_stances")}
    assert "skip_guard_eval_unsafe" in skipping


def test_stances_are_recorded_with_who_set_them_and_back(watched):
    events = watched.of(schema.Stance, "recompile_stances")
    assert [(e.data.stance, e.data.skip_guards) for e in events] == [
        ("eager_on_recompile", False),
        ("fail_on_recompile", False),
        ("default", True),
        ("default", False),
    ]
    assert watched.of(schema.Stance, "setter")[-1].data.stance == "default"
    assert all(any(frame.user for frame in event.where) for event in events)
