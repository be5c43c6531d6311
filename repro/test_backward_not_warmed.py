"""CR207: the warm-up ran forward with gradients on but never backward.

Only with static shapes: where symbolic sizes are saved for backward, AOTAutograd compiles the
backward together with the forward, and the same warm-up is enough.
"""

import pytest


def test_backward_not_warmed_fails(train, training_length):
    static = ("--dynamic", "false", "--warmup-lens", training_length, "--seq-lens", training_length)
    result = train("--threads", "3", "--warmup", "grad_forward", *static)
    assert result.verdict == "found"
    assert result.roots == {"CR207"}
    assert result.own_codes == {"CR207"}


@pytest.mark.slow
def test_backward_not_warmed_control_dynamic_shapes_compile_it_with_the_forward(train):
    result = train("--threads", "3", "--warmup", "grad_forward", "--dynamic", "true")
    assert result.verdict == "clean"


def test_backward_not_warmed_fix_is_to_call_backward_in_the_warmup(train, training_length):
    static = ("--dynamic", "false", "--warmup-lens", training_length, "--seq-lens", training_length)
    result = train("--threads", "3", "--warmup", "grad", *static)
    assert result.verdict == "clean"
    assert result.count("compiles_after_warmup") == 0
