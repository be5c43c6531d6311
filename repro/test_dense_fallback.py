"""CR401: one thread calls flex attention outside ``torch.compile`` and gets the dense kernel."""

import pytest

pytestmark = pytest.mark.usefixtures("gpu")


def test_dense_fallback_fails(watch):
    result = watch("dense_fallback.py", "eager")
    assert result.verdict == "found"
    assert result.roots == {"CR401"}
    assert result.count("fallbacks") == 3


def test_dense_fallback_needs_no_second_thread(watch):
    result = watch("dense_fallback.py", "serial-eager")
    assert result.roots == {"CR401"}
    assert result.count("fallbacks") == 3


def test_dense_fallback_control_and_fix_is_to_call_the_compiled_function(watch):
    result = watch("dense_fallback.py", "compiled")
    assert result.verdict == "clean"
    assert result.count("fallbacks") == 0
