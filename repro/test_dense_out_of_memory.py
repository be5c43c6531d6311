"""CR402 and CR406: attention, or its block mask, outside compiled code runs out of memory.

Each under a bound on memory, so that nobody else's runs out: 20 GiB of a GPU, or 2 GiB of a CPU
program's data. The control and the fix, the same calls compiled, fit under the same bound.
"""

import math

import pytest

PROGRAM = "dense_out_of_memory.py"
GIB = 1 << 30
CPU_CAP = ("--memory-cap", "2", "--keep-cache")
GPU_CAP = ("--memory-cap", "20")


def failed_request(result):
    """The one request that failed, from the report's section on memory."""
    (memory,) = result.report["memory"]
    (request,) = memory["requests"]
    return request


def scores_of(request):
    """Bytes of the scores in float32."""
    return 4 * math.prod(request["sizes"])


def compiled_functions(result):
    """Names of the functions that compiled calls were seen of."""
    return {covered["code"]["name"] for covered in result.report["coverage"]}


@pytest.fixture(scope="module")
def no_gpu(tmp_path_factory):
    """Hide GPUs: the bound is then one on the program's own data.

    The runs share a compile cache, since none of them is about compiling: what the control
    compiled, half a minute of C++, the failures load.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("CUDA_VISIBLE_DEVICES", "")
        patch.setenv("TORCHINDUCTOR_VEC_ISA_OK", "1")  # or torch tries that first, in more C++
        patch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.fixture(scope="module")
def control(no_gpu, watch_once):
    """Attention and block mask, both compiled, under the bound that neither fits uncompiled."""
    return watch_once(PROGRAM, "compiled", "compiled-mask", flags=CPU_CAP)


def test_dense_out_of_memory_fails(control, watch):
    result = watch(PROGRAM, "eager", flags=CPU_CAP)
    assert result.verdict == "found"
    assert result.roots == {"CR401"}
    assert "CR402" in result.codes
    request = failed_request(result)
    assert (request["doing"], request["device"]) == ("dense_attention", "cpu")
    assert request["sizes"] == [1, 8, 4096, 4096]
    assert request["cap"] == 2 * GIB
    assert request["asked"] in {scores_of(request), scores_of(request) // 4}


def test_dense_out_of_memory_control_and_fix_is_to_call_the_compiled_function(control):
    assert control.verdict == "clean"
    assert "flex_attention" in compiled_functions(control)
    (memory,) = control.report["memory"]
    assert memory["requests"] == []
    assert memory["devices"][0]["cap"] == 2 * GIB


def test_block_mask_out_of_memory_fails(control, watch):
    result = watch(PROGRAM, "eager-mask", flags=CPU_CAP)
    assert result.roots == {"CR406"}
    assert failed_request(result)["doing"] == "block_mask"


def test_block_mask_out_of_memory_control_and_fix_is_to_compile_it(control):
    assert control.verdict == "clean"
    assert "create_block_mask" in compiled_functions(control)


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
