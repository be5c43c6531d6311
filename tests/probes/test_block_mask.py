"""Block masks: counted, traced through as without the probe, and at odds with a compile."""

import pytest

from harness.events import schema

PROGRAM = """
from torch.nn.attention.flex_attention import create_block_mask

def causal(b, h, q, k):
    return q >= k

def build():
    create_block_mask(causal, 1, 1, 128, 128, device="cpu")

run(lambda: [build() for _ in range(5)], name="alone")

traced = torch.compile(create_block_mask, fullgraph=True, backend="eager", dynamic=False)
run(lambda: traced(causal, 1, 1, 128, 128, device="cpu"), name="traced")

compiling, done = threading.Event(), threading.Event()

def backend(graph, inputs):
    compiling.set()
    wait_for(done)
    return graph.forward

compiler = threading.Thread(
    target=torch.compile(lambda x: x.sin(), backend=backend), args=(torch.ones(2),), name="compiler"
)
compiler.start()
wait_for(compiling)

def tried():
    try:
        build()
    except KeyError as error:
        print("raised", error)

run(tried, name="meanwhile")
done.set()
compiler.join()
"""


@pytest.fixture(scope="module")
def watched(watch):
    done = watch(PROGRAM)
    assert done.code == 0, done.err
    return done


def test_building_is_counted_in_powers_of_two(watched):
    events = watched.of(schema.BlockMask, "alone")
    assert [event.data.count for event in events] == [*range(1, 9), 16]  # four parts a mask
    assert {event.data.compiling_tids for event in events} == {()}


def test_a_compiled_mask_is_traced_in_one_graph_and_not_counted(watched):
    (_, end) = watched.of(schema.Compile, "traced")
    assert end.data.ok
    assert watched.of(schema.BlockMask, "traced") == []


def test_building_while_another_thread_compiles_names_that_thread(watched):
    (compiler, _) = watched.of(schema.Compile, "compiler")
    events = watched.of(schema.BlockMask, "meanwhile")
    assert events
    assert {event.data.compiling_tids for event in events} == {(compiler.tid,)}
    errors = [event.data.error for event in events if event.data.error]
    assert bool(errors) is ("raised" in watched.out)
    assert all(error.startswith("KeyError") for error in errors)
