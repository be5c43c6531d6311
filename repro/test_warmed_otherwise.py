"""CR105, CR106, CR203, CR205, CR206, CR209: the warm-up's calls differed from the threads' in one.

One program for all; ``-k num_threads``, ``-k dtype`` and so on run one kind's failure. Controls
and fixes of all kinds have a process each.
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
# A kind that shares its cause with another has its failure here, and no control.
FULL = [kind for kind in KINDS if kind not in {"dispatch_keys", "layout"}]


@pytest.mark.parametrize("kind", KINDS)
def test_warmed_otherwise_fails(watch, kind):
    result = watch("warmed_otherwise.py", kind, "fails")
    assert result.verdict == "found"
    assert result.roots == {KINDS[kind]}
    assert result.codes <= {KINDS[kind], "CR303"}


def test_warmed_otherwise_control_nobody_else_calls(in_turn):
    result = in_turn("warmed_otherwise.py", *(f"{kind} alone" for kind in FULL))
    assert result.verdict == "clean"


def test_warmed_otherwise_fix_is_to_warm_up_so(in_turn):
    result = in_turn("warmed_otherwise.py", *(f"{kind} fixed" for kind in FULL))
    assert result.verdict == "clean"
    assert result.count("compiles_after_warmup") == 0
