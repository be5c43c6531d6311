"""Compiles that fail, are skipped, hit the limit or happen inside one another, and the counts."""

import pytest

from harness.events import schema

PROGRAM = """
torch._dynamo.config.recompile_limit = 64

@torch.compile(backend="eager", dynamic=False)
def many(x):
    return torch.tanh(x).sum()

many(torch.randn(2))

def shapes():
    for size in range(3, 30):
        many(torch.randn(size))

run(shapes, name="many-shapes")

def own_limit():
    of_its_own = {} if "2.11" in torch.__version__ else {"recompile_limit": 3}
    if not of_its_own:
        torch._dynamo.config.recompile_limit = 3
    fast = torch.compile(
        lambda x: x.cos(), backend="eager", dynamic=False, fullgraph=True, **of_its_own
    )
    try:
        for size in range(2, 9):
            fast(torch.randn(size))
    except Exception as error:
        print(type(error).__name__)

run(own_limit, name="own-limit")

def broken():
    def backend(graph, inputs):
        raise ValueError("no backend today")
    try:
        torch.compile(lambda x: x + 1, backend=backend)(torch.ones(2))
    except Exception as error:
        print(type(error).__name__)
    with torch._dynamo.config.patch(suppress_errors=True):
        torch.compile(lambda x: x + 2, backend=backend)(torch.ones(2))

run(broken, name="broken")

def skipped():
    torch.compile(lambda x: x, backend="eager")(torch.ones(2))     # no graph in it
    torch.compile(lambda n: n + 1, backend="eager")(3)             # no tensor in it
    @torch.compile(backend="eager")
    def breaks(x):
        x = x + 1
        torch._dynamo.graph_break()
        return x * 2
    breaks(torch.ones(2))

run(skipped, name="skipped")

def nested():
    inner = torch.compile(lambda x: x.exp(), backend="eager")
    def backend(graph, inputs):
        inner(torch.ones(7))
        return graph.forward
    torch.compile(lambda x: x.sin(), backend=backend)(torch.ones(2))

run(nested, name="nested")

def refused():
    with torch._dynamo.config.patch(error_on_recompile=True):
        fast = torch.compile(lambda x: x.log(), backend="eager", dynamic=False)
        fast(torch.ones(2))
        try:
            fast(torch.ones(3))
        except Exception as error:
            print(type(error).__name__)

run(refused, name="refused")

def shared():
    torch.compile(torch.nn.Sequential(torch.nn.Linear(2, 2)), backend="eager")(torch.ones(1, 2))
    torch.compile(torch.nn.ReLU(), backend="eager")(torch.ones(1, 2))

run(shared, name="shared")
"""


@pytest.fixture(scope="module")
def watched(watch):
    done = watch(PROGRAM)
    assert done.code == 0, done.err
    return done


def exits(watched, thread):
    return [event.data for event in watched.of(schema.Compile, thread, "exit")]


def test_the_limit_is_the_one_that_the_thread_has(watched):
    (main,) = watched.of(schema.Compile, "MainThread", "enter")
    assert main.data.context.config["recompile_limit"] == main.data.limit == 64
    limits = {event.data.limit for event in watched.of(schema.Compile, "many-shapes", "enter")}
    assert limits == {8 if watched.config_is_per_thread else 64}
    own = {event.data.limit for event in watched.of(schema.Compile, "own-limit", "enter")}
    assert own == {3}


def test_the_compile_that_hits_the_limit_says_so_and_none_follows(watched):
    assert exits(watched, "own-limit")[-1].limit_hit
    assert "FailOnRecompileLimitHit" in watched.out
    if not watched.config_is_per_thread:
        assert not any(data.limit_hit for data in exits(watched, "many-shapes"))
        return
    *made, last = exits(watched, "many-shapes")
    assert all(data.ok and not data.limit_hit for data in made)
    assert not last.ok
    assert last.limit_hit
    assert last.entry is None
    assert "recompile limit exceeded" in last.error
    assert watched.of(schema.GuardMiss, "many-shapes")[-1].data.count == 16  # 27 misses were seen


def test_entries_grow_until_the_limit(watched):
    entries = [e.data.entries for e in watched.of(schema.Compile, "many-shapes", "enter")]
    assert entries == list(range(1, 9 if watched.config_is_per_thread else 28))


def test_a_failed_compile_keeps_the_error_even_where_dynamo_suppresses_it(watched):
    raised, suppressed = exits(watched, "broken")
    for data in (raised, suppressed):
        assert not data.ok
        assert not data.limit_hit
        assert "no backend today" in data.error
    assert "BackendCompilerFailed" in watched.out


def test_a_frame_without_graph_is_no_success_and_no_error_of_the_program(watched):
    names = [(data.code.name, data.ok) for data in exits(watched, "skipped")]
    assert ("breaks", True) in names
    assert any(name.startswith("torch_dynamo_resume_in_breaks") and ok for name, ok in names)
    assert all(data.error == "" or not data.ok for data in exits(watched, "skipped"))


def test_a_compile_inside_a_compile_is_recorded_as_such(watched):
    edges = [(e.edge, e.compile_id) for e in watched.of(schema.Compile, "nested")]
    assert [edge for edge, _ in edges] == ["enter", "enter", "exit", "exit"]
    assert edges[0][1] == edges[3][1] != edges[1][1] == edges[2][1]


def test_callables_that_share_a_code_object_have_ids_names_and_entries_of_their_own(watched):
    first, second = watched.of(schema.Compile, "shared", "enter")
    assert (first.data.code.name, second.data.code.name) == ("Sequential.forward", "ReLU.forward")
    assert first.data.code.id != second.data.code.id
    assert "modules/container.py" in first.data.code.file
    assert (first.data.entries, second.data.entries) == (0, 0)
    # The one's entry does not fit the other: no reason for a finding.
    assert [data.reasons for data in exits(watched, "shared")] == [(), ()]
    caches = {cache.data.code.name: cache.data.entries for cache in watched.of(schema.Caches)}
    assert len(caches["Sequential.forward"]) == len(caches["ReLU.forward"]) == 1


def test_both_ways_of_counting_see_all_of_this(watched):
    (detail,) = watched.of(schema.CompileDetail)
    assert detail.data.metrics == detail.data.compiles
    ended = watched.of(schema.Compile, edge="exit")
    # The nested one has no metrics of its own.
    assert detail.data.compiles == len(ended) - 1


SILENCED = """
import logging
fast = torch.compile(lambda x: x.sin(), backend="eager", dynamic=False)
fast(torch.ones(2))
logging.getLogger("torch.__trace").handlers.clear()
for size in (3, 4):
    fast(torch.ones(size))
"""


def test_a_silenced_trace_log_is_a_disagreement_at_once_and_at_the_end(watch):
    watched = watch(SILENCED)
    counts = [(e.data.metrics, e.data.compiles) for e in watched.of(schema.CompileDetail)]
    assert counts == [(1, 2), (1, 3)]


def test_without_compile_detail_nothing_is_compared_and_no_reason_known(watch):
    watched = watch(SILENCED, compile_detail=False)
    assert watched.of(schema.CompileDetail) == []
    ended = [event.data for event in watched.of(schema.Compile, edge="exit")]
    assert [data.ok for data in ended] == [True] * 3
    assert {data.reasons for data in ended} == {()}


BYPASSED = """
from torch._dynamo import convert_frame
convert_frame._compile = convert_frame._compile.__wrapped__
torch.compile(lambda x: x.sin(), backend="eager")(torch.ones(2))
torch.compiler.set_enable_guard_collectives(True)
"""


@pytest.fixture(scope="module")
def bypassed(watch):
    return watch(BYPASSED)


def test_a_compile_that_the_wrap_did_not_see_is_a_disagreement(bypassed):
    (detail,) = bypassed.of(schema.CompileDetail)
    assert (detail.data.metrics, detail.data.compiles) == (1, 0)


def test_a_hook_that_the_program_puts_over_ours_is_a_conflict(bypassed):
    assert bypassed.states()["guards"] == "conflict"
    assert "guard_collectives_hook" in bypassed.reasons()["guards"]
