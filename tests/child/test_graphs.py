"""Which call came from a compiled graph of the program, by stacks made by hand."""

import gc
from dataclasses import dataclass, field
from types import CodeType
from typing import Any

import pytest
import torch

from harness.child import graphs
from harness.child.graphs import in_compiled_graph

TORCH = torch.__file__.removesuffix("__init__.py")


def code(name: str, file: str) -> CodeType:
    made: dict[str, Any] = {}
    exec(compile(f"def {name}(): pass", file, "exec"), made)
    found: CodeType = made[name].__code__
    return found


@dataclass
class Frame:
    """As much of a frame as is looked at."""

    f_code: CodeType
    f_locals: dict[str, Any] = field(default_factory=dict)


def wrapper(name: str = "program", file: str = "program.py") -> Frame:
    made: dict[str, Any] = {}
    exec(compile(f"def {name}(): pass", file, "exec"), made)
    return Frame(code("compile_wrapper", f"{TORCH}_dynamo/eval_frame.py"), {"fn": made[name]})


def generated() -> Frame:
    return Frame(code("forward", "<eval_with_key>.7"))


OPERATOR = Frame(code("sdpa_dense", f"{TORCH}_higher_order_ops/flex_attention.py"))
INTERPRETER = Frame(code("run_node", f"{TORCH}fx/interpreter.py"))
AOT = Frame(code("call", f"{TORCH}_functorch/_aot_autograd/utils.py"))
PROGRAM = Frame(code("main", "program.py"))
OF_THE_OPERATOR = wrapper("_flex_attention_hop_wrapper", f"{TORCH}nn/attention/flex_attention.py")


@pytest.fixture(autouse=True)
def none_known(monkeypatch):
    monkeypatch.setattr(graphs, "_known", {})


@pytest.mark.parametrize(
    ("callers", "expected"),
    [
        ([PROGRAM], False),
        ([wrapper(), PROGRAM], False),  # the call ran eager
        ([generated(), wrapper(), PROGRAM], True),
        ([INTERPRETER, wrapper(), PROGRAM], True),
        ([generated(), AOT, PROGRAM], True),  # a backward, on autograd's thread
        ([generated(), PROGRAM], False),  # the program calls a traced module itself
        ([generated(), OF_THE_OPERATOR, PROGRAM], False),
        ([generated(), OF_THE_OPERATOR, generated(), wrapper(), PROGRAM], False),
    ],
)
def test_the_nearest_compiled_call_decides(callers, expected):
    for _ in range(2):  # the second time the graph is known
        assert in_compiled_graph([OPERATOR, *callers]) is expected


def test_of_a_known_graph_no_caller_is_looked_at():
    graph = generated()

    def callers():
        yield from (OPERATOR, graph)
        raise AssertionError("a caller of the graph was asked for")

    assert in_compiled_graph([OPERATOR, graph, AOT, wrapper(), PROGRAM])
    assert in_compiled_graph(callers())


def test_a_graph_beyond_another_compiled_call_is_not_the_one_that_is_known():
    outer = generated()
    through = [OPERATOR, OF_THE_OPERATOR, outer, wrapper(), PROGRAM]  # run by inductor, say
    assert not in_compiled_graph(through)
    assert in_compiled_graph([OPERATOR, outer, wrapper(), PROGRAM])
    assert not in_compiled_graph(through)


def test_a_traceback_that_ends_before_the_compiled_call_settles_nothing():
    graph = generated()
    assert not in_compiled_graph([OPERATOR, graph])
    assert in_compiled_graph([OPERATOR, graph, wrapper(), PROGRAM])


def test_a_graph_that_is_gone_is_forgotten_and_its_identity_proves_nothing():
    graph = generated()
    assert in_compiled_graph([OPERATOR, graph, wrapper()])
    (number,) = graphs._known
    reference, _ = graphs._known[number]
    other = generated()
    graphs._known[id(other.f_code)] = (reference, True)  # as if it had got the identity
    assert not in_compiled_graph([OPERATOR, other, OF_THE_OPERATOR])
    del graph, other
    gc.collect()
    assert not graphs._known
