"""Which call came from a compiled graph of the program, by stacks made by hand."""

import gc
from dataclasses import dataclass, field
from types import CodeType, FunctionType
from typing import Any

import pytest
import torch
from torch.nn.attention.flex_attention import flex_attention

from harness.child import graphs, torch_code, torch_symbols
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
    monkeypatch.setattr(graphs, "_ways", ())


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


def calling(name: str, file: str) -> CodeType:
    made: dict[str, Any] = {}
    exec(compile(f"def {name}(fn): return inner()", file, "exec"), made)
    found: CodeType = made[name].__code__
    return found


DENSE = calling("sdpa_dense", f"{TORCH}_higher_order_ops/flex_attention.py")
CALL = calling("__call__", f"{TORCH}_higher_order_ops/flex_attention.py")
WRAPPER = calling("compile_wrapper", f"{TORCH}_dynamo/eval_frame.py")
MAIN = calling("main", "program.py")


def graph() -> CodeType:
    return calling("forward", "<eval_with_key>.8")


def asked(*callers: CodeType, runs: Frame | None = None) -> bool:
    """The answer to real frames of these codes, innermost first; what wrappers run is ``runs``'."""

    def inner() -> bool:
        return graphs.caller_in_compiled_graph(1)

    function = (runs or wrapper()).f_locals["fn"]
    for caller in callers:
        inner = FunctionType(caller, {"inner": inner}, caller.co_name, (function,))
    return inner()


def test_a_known_graph_is_found_where_it_called_before(monkeypatch):
    known = graph()
    assert asked(DENSE, CALL, known, WRAPPER, MAIN)
    assert graphs._ways == ((1, CALL),)
    monkeypatch.setattr(torch_code, "outwards", lambda _: pytest.fail("every frame is looked at"))
    assert asked(DENSE, CALL, known, WRAPPER, MAIN)


def test_what_is_not_known_is_looked_for_from_the_inside():
    assert asked(DENSE, CALL, graph(), WRAPPER, MAIN)
    assert not asked(DENSE, CALL, graph(), MAIN)
    assert not asked(DENSE, CALL, MAIN)
    assert not asked(DENSE)
    assert asked(DENSE, CALL, graph(), WRAPPER, MAIN)
    assert graphs._ways == ((1, CALL),)


def test_a_known_graph_that_has_called_something_else_is_not_the_answer():
    known = graph()
    assert asked(DENSE, CALL, known, WRAPPER, MAIN)
    # As far out as before; in between an operator that was not compiled compiles itself.
    assert not asked(DENSE, WRAPPER, known, MAIN, runs=OF_THE_OPERATOR)


def test_a_graph_that_has_called_something_else_of_torchs_is_not_where_to_look():
    known, custom = graph(), calling("__call__", f"{TORCH}_ops.py")
    assert asked(DENSE, CALL, MAIN, MAIN, custom, known, WRAPPER, MAIN)
    # Another custom operator of the same graph calls what is not compiled, from as far in.
    assert not asked(DENSE, CALL, WRAPPER, MAIN, custom, known, MAIN, runs=OF_THE_OPERATOR)


def test_a_stack_that_is_not_as_deep_is_no_error(monkeypatch):
    monkeypatch.setattr(graphs, "_ways", ((10_000, CALL),))
    assert asked(DENSE, CALL, graph(), WRAPPER, MAIN)


def test_a_real_graph_is_found_without_the_frames_in_between(monkeypatch):
    answers = []

    def math_attention(*args: Any, **kwargs: Any) -> Any:
        if not torch_code.is_fake(type(args[0])):
            answers.append(graphs.caller_in_compiled_graph(1))
        return original(*args, **kwargs)

    original = torch_symbols.MATH_ATTENTION.get()
    torch_symbols.MATH_ATTENTION.replace(math_attention)
    try:
        attend = torch.compile(flex_attention, backend="aot_eager", dynamic=False)
        inputs = [torch.randn(1, 1, 16, 16) for _ in range(3)]
        for _ in range(2):
            attend(*inputs)
        monkeypatch.setattr(torch_code, "outwards", lambda _: pytest.fail("every frame"))
        attend(*inputs)
    finally:
        torch_symbols.MATH_ATTENTION.replace(original)
        torch._dynamo.reset()
    assert answers == [True] * 3


def test_of_several_ways_only_so_many_are_kept(monkeypatch):
    monkeypatch.setattr(graphs, "_WAYS", 2)
    for dispatches in range(4):
        assert asked(*[DENSE] * dispatches, CALL, graph(), WRAPPER)
    assert [depth for depth, _ in graphs._ways] == [2, 3]


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
