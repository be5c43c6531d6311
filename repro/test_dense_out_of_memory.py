"""CR402 and CR406: attention, or its block mask, outside compiled code runs out of memory.

Each under a bound on memory, so that nobody else's runs out: 20 GiB of a GPU, or 2 GiB of a CPU
program's data. The control and the fix, the same calls compiled, fit under the same bound.
"""

import math

import pytest

PROGRAM = "dense_out_of_memory.py"
GIB = 1 << 30
CPU_CAP = ("--memory-cap", "2")
GPU_CAP = ("--memory-cap", "20")


def failed_request(result):
    """The one request that failed, from the report's section on memory."""
    (memory,) = result.report["memory"]
    (request,) = memory["requests"]
    return request


def scores_of(request):
    """Bytes of the scores in float32."""
    return 4 * math.prod(request["sizes"])


@pytest.fixture
def no_gpu(monkeypatch):
    """Hide GPUs: the bound is then one on the program's own data."""
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")


@pytest.mark.usefixtures("no_gpu")
def test_dense_out_of_memory_fails(watch):
    result = watch(PROGRAM, "eager", flags=CPU_CAP)
    assert result.verdict == "found"
    assert result.roots == {"CR401"}
    assert "CR402" in result.codes
    request = failed_request(result)
    assert (request["doing"], request["device"]) == ("dense_attention", "cpu")
    assert request["sizes"] == [1, 8, 4096, 4096]
    assert request["cap"] == 2 * GIB
    assert request["asked"] in {scores_of(request), scores_of(request) // 4}


@pytest.mark.usefixtures("no_gpu")
def test_dense_out_of_memory_control_and_fix_is_to_call_the_compiled_function(watch):
    result = watch(PROGRAM, "compiled", flags=CPU_CAP)
    assert result.verdict == "clean"
    (memory,) = result.report["memory"]
    assert memory["requests"] == []
    assert memory["devices"][0]["cap"] == 2 * GIB


@pytest.mark.usefixtures("no_gpu")
def test_block_mask_out_of_memory_fails(watch):
    result = watch(PROGRAM, "eager-mask", flags=CPU_CAP)
    assert result.roots == {"CR406"}
    assert failed_request(result)["doing"] == "block_mask"


@pytest.mark.usefixtures("no_gpu")
def test_block_mask_out_of_memory_control_and_fix_is_to_compile_it(watch):
    result = watch(PROGRAM, "compiled-mask", flags=CPU_CAP)
    assert result.verdict == "clean"


@pytest.mark.gpus(1)
def test_dense_out_of_memory_on_a_gpu_fails(watch):
    result = watch(PROGRAM, "eager", flags=GPU_CAP)
    assert result.verdict == "found"
    assert result.roots == {"CR401"}
    assert "CR402" in result.codes
    request = failed_request(result)
    assert (request["doing"], request["device"]) == ("dense_attention", "cuda:0")
    assert request["sizes"] == [1, 32, 8192, 8192]
    # The allocator asks CUDA for multiples of 2 MiB, which the scores' size is.
    assert request["asked"] in {scores_of(request), scores_of(request) // 4}
    assert request["cap"] == pytest.approx(20 * GIB, rel=1e-6)
    assert request["total"] > request["cap"]
    assert request["allocated"] <= request["reserved"] <= request["cap"]


@pytest.mark.gpus(1)
def test_dense_out_of_memory_on_a_gpu_control_and_fix_is_the_compiled_function(watch):
    result = watch(PROGRAM, "compiled", flags=GPU_CAP)
    assert result.verdict == "clean"
    (memory,) = result.report["memory"]
    gpu = next(device for device in memory["devices"] if device["device"] == "cuda:0")
    assert 0 < gpu["peak_allocated"] < 2 * GIB


@pytest.mark.gpus(1)
def test_block_mask_out_of_memory_on_a_gpu_fails(watch):
    result = watch(PROGRAM, "eager-mask", flags=GPU_CAP)
    assert result.roots == {"CR406"}
    assert failed_request(result)["sizes"] == [1, 1, 1 << 18, 1 << 18]


@pytest.mark.gpus(1)
def test_block_mask_out_of_memory_on_a_gpu_control_and_fix_is_to_compile_it(watch):
    result = watch(PROGRAM, "compiled-mask", flags=GPU_CAP)
    assert result.verdict == "clean"
