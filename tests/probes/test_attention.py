"""Dense attention: where it is a fallback and where a backend runs the operator on purpose."""

import pytest

from harness.events import schema

PROGRAM = """
from torch.nn.attention.flex_attention import create_block_mask, flex_attention
from torch.utils.checkpoint import checkpoint

operator = torch.ops.higher_order.flex_attention
mask = create_block_mask(lambda b, h, q, k: q >= k, 1, 1, 128, 128, device="cpu")
options = {
    "BACKEND": "AUTO", "PRESCALE_QK": False, "ROWS_GUARANTEED_SAFE": False,
    "BLOCKS_ARE_CONTIGUOUS": False, "WRITE_DQ": True, "OUTPUT_LOGSUMEXP": True,
    "OUTPUT_MAX": False,
}

def score(score, b, h, q, k):
    return score

def attend(q, k, v):
    return operator(q, k, v, score, mask.as_tuple(), 0.25, options)[0]

def qkv(heads=2, grad=True):
    return [torch.randn(1, heads, 128, 16, requires_grad=grad) for _ in range(3)]

compiled = torch.compile(attend, backend="aot_eager", dynamic=False)
run(lambda: compiled(*qkv()).sum().backward(), name="compiled")
run(lambda: compiled(*qkv()).sum().backward(), name="cached")
run(
    lambda: checkpoint(compiled, *qkv(), use_reentrant=False).sum().backward(),
    name="recomputed-outside",
)
inside = torch.compile(
    lambda q, k, v: checkpoint(attend, q, k, v, use_reentrant=False), backend="aot_eager"
)
run(lambda: inside(*qkv()).sum().backward(), name="recomputed-inside")
with_eager = torch.compile(flex_attention, backend="eager")
run(lambda: with_eager(*qkv(grad=False), block_mask=mask), name="backend-eager")

run(lambda: attend(*qkv(grad=False)), name="operator")
run(lambda: attend(*qkv()).sum().backward(), name="operator-with-gradients")
run(lambda: flex_attention(*qkv(grad=False), block_mask=mask), name="flex")

def limited():
    torch._dynamo.config.recompile_limit = 1
    fast = torch.compile(
        lambda q, k, v: flex_attention(q, k, v, block_mask=mask), backend="aot_eager", dynamic=False
    )
    for heads in (3, 4, 5):  # not 2: for that, flex_attention itself was compiled above
        fast(*qkv(heads, grad=False))

run(limited, name="limited")
torch._dynamo.config.recompile_limit = 8
st = torch.fx._symbolic_trace

def flag_left_set():
    torch._dynamo.config.error_on_nested_fx_trace = False
    set_flag = getattr(st, "_set_is_fx_tracing", lambda on: setattr(st, "_is_fx_tracing_flag", on))
    set_flag(True)
    torch.compile(lambda q, k, v: attend(q, k, v), backend="aot_eager")(*qkv(grad=False))
    set_flag(False)

run(flag_left_set, name="flag-left-set")
"""


@pytest.fixture(scope="module")
def watched(watch):
    done = watch(PROGRAM)
    assert done.code == 0, done.err
    return done


@pytest.mark.parametrize(
    ("thread", "kinds"),
    [
        ("compiled", ["reference"]),
        ("cached", ["reference"]),
        ("recomputed-outside", ["reference"] * 2),
        ("recomputed-inside", ["reference"] * 2),
        ("backend-eager", ["reference"]),
        ("operator", ["fallback"]),
        ("operator-with-gradients", ["fallback"]),
        ("flex", ["fallback"]),
        ("limited", ["reference", "fallback", "fallback"]),
        ("flag-left-set", ["fallback"]),
    ],
)
def test_a_fallback_is_told_from_the_reference_kernel(watched, thread, kinds):
    assert [event.data.kind for event in watched.of(schema.DenseAttention, thread)] == kinds


def test_the_shape_and_the_size_of_the_scores_are_recorded(watched):
    (event,) = watched.of(schema.DenseAttention, "flex")
    assert event.data.shape == (1, 2, 128, 16)
    assert event.data.dtype == "torch.float32"
    assert event.data.scores_bytes == 1 * 2 * 128 * 128 * 4
    assert any(frame.user for frame in event.where)


def test_what_uncompiled_flex_attention_compiles_is_not_the_programs(watched):
    (enter, _) = watched.of(schema.Compile, "flex")
    assert enter.data.code.internal
    assert enter.data.code.name.endswith("_flex_attention_hop_wrapper")
    (enter, _) = watched.of(schema.Compile, "backend-eager")
    assert not enter.data.code.internal
    assert enter.data.code.name == "flex_attention"
