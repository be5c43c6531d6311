"""What differs between two contexts, and how a context is named."""

import msgspec
import pytest

from harness.events.values import Context, TensorInput
from harness.timeline.contexts import describe, differing, shapes
from harness.timeline.reasons import Guard

PLAIN = Context(
    grad_mode=True, autocast={"cpu": (False, "torch.bfloat16")}, num_threads=2, default_device="cpu"
)


def other(**changes):
    return msgspec.structs.replace(PLAIN, **changes)


@pytest.mark.parametrize(
    ("changes", "guards"),
    [
        ({}, set()),
        ({"grad_mode": False}, {Guard.GRAD_MODE}),
        ({"inference_mode": True}, {Guard.INFERENCE_MODE}),
        ({"autocast": {"cpu": (True, "torch.bfloat16")}}, {Guard.AUTOCAST}),
        ({"autocast": {"cpu": (False, "torch.float16")}}, {Guard.AUTOCAST}),
        ({"autocast_cache": False}, {Guard.AUTOCAST}),
        ({"torch_function_modes": ("DeviceContext(cuda)",)}, {Guard.TORCH_FUNCTION_MODE}),
        ({"torch_function": False}, {Guard.TORCH_FUNCTION_MODE}),
        ({"num_threads": 4}, {Guard.NUM_THREADS}),
        ({"default_dtype": "torch.float64"}, {Guard.NUMERIC}),
        ({"numeric_flags": {"allow_tf32": True}}, {Guard.NUMERIC}),
        ({"config": {"recompile_limit": 64}}, set()),
        ({"current_device": 1}, set()),
        ({"autocast": {"cpu": (False, "torch.bfloat16"), "xpu": (False, "x")}}, set()),
    ],
)
def test_only_what_dynamo_guards_on_differs(changes, guards):
    assert differing(PLAIN, other(**changes)) == guards
    assert differing(other(**changes), PLAIN) == guards


def test_described():
    text = describe(
        other(grad_mode=False, autocast={"cuda": (True, "torch.bfloat16")}, deterministic=True)
    )
    assert text == "grad off, autocast cuda torch.bfloat16, deterministic algorithms, num_threads 2"
    assert describe(other(inference_mode=True)).startswith("inference mode")
    assert describe(None) == "context not recorded"


def test_shapes_are_cut():
    tensors = tuple(
        TensorInput(name=f"t{n}", shape=(n, 2), dtype="torch.float32", device="cpu")
        for n in range(9)
    )
    assert shapes(tensors[:1]) == "t0 [0, 2] float32 cpu"
    assert shapes(tensors).endswith(", 3 more")
