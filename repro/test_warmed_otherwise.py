"""CR105, CR106, CR203, CR205, CR206, CR209: the warm-up's calls differed from the threads' in one.

One program for all; ``-k num_threads``, ``-k dtype`` and so on run one kind.
"""

import pytest

KINDS = {
    "num_threads": "CR105",
    "numeric_flags": "CR106",
    "requires_grad": "CR203",
    "dispatch_keys": "CR203",
    "dtype": "CR205",
    "layout": "CR205",
    "python_value": "CR206",
    "dynamic_marking": "CR209",
}
# A kind that shares its cause with another has its failure here, and no control of its own.
FULL = [kind for kind in KINDS if kind not in {"dispatch_keys", "layout"}]


@pytest.mark.parametrize("kind", KINDS)
def test_warmed_otherwise_fails(watch, kind):
    result = watch("warmed_otherwise.py", kind, "fails")
    assert result.verdict == "found"
    assert result.roots == {KINDS[kind]}
    assert result.codes <= {KINDS[kind], "CR303"}


@pytest.mark.parametrize("kind", FULL)
def test_warmed_otherwise_control_nobody_else_calls(watch, kind):
    assert watch("warmed_otherwise.py", kind, "alone").verdict == "clean"


@pytest.mark.parametrize("kind", FULL)
def test_warmed_otherwise_fix_is_to_warm_up_so(watch, kind):
    result = watch("warmed_otherwise.py", kind, "fixed")
    assert result.verdict == "clean"
    assert result.count("compiles_after_warmup") == 0
