"""CR501, CR503, CR504: CUDA graphs and threads, on one GPU."""

import pytest
import torch

pytestmark = pytest.mark.gpus(1)
CONSEQUENCE = {"CR901"}  # the thread dies and the program goes on
TREES_OF_PROCESS = tuple(int(part) for part in torch.__version__.split(".")[:2]) <= (2, 12)
only_shared_trees = pytest.mark.skipif(
    not TREES_OF_PROCESS, reason="from torch 2.13 on each thread has graph trees of its own"
)


@only_shared_trees
def test_cuda_graph_trees_cold_fails(watch):
    result = watch("cuda_graphs.py", "trees_cold")
    assert result.verdict == "found"
    assert "CR501" in result.codes
    assert result.codes <= {"CR501", "CR208", "CR303"} | CONSEQUENCE


@only_shared_trees
def test_cuda_graph_trees_warmed_fails(watch):
    """No error, as a rule; now and then the process dies of it instead."""
    result = watch("cuda_graphs.py", "trees_warm")
    assert result.verdict == "found"
    assert result.roots in ({"CR504"}, {"CR502"}, {"CR501"}, {"CR502", "CR504"})


def test_cuda_graph_trees_fix_is_one_thread_for_all_calls(watch):
    assert watch("cuda_graphs.py", "trees_one").verdict == "clean"


def test_cuda_graph_replay_fails(watch):
    result = watch("cuda_graphs.py", "shared")
    assert result.verdict == "found"
    assert result.codes == {"CR504"}


def test_cuda_graph_replay_control_one_thread(watch):
    assert watch("cuda_graphs.py", "alone").verdict == "clean"


def test_cuda_graph_replay_fix_is_a_graph_for_each_thread(watch):
    assert watch("cuda_graphs.py", "own").verdict == "clean"


def test_cuda_graph_capture_clash_fails(watch):
    result = watch("cuda_graphs.py", "capture")
    assert result.verdict == "found"
    assert result.roots == {"CR503"}
    assert result.codes <= {"CR503"} | CONSEQUENCE


def test_cuda_graph_capture_clash_control_after_the_capture(watch):
    assert watch("cuda_graphs.py", "capture_alone").verdict == "clean"


def test_cuda_graph_capture_clash_fix_is_the_mode_of_the_thread(watch):
    assert watch("cuda_graphs.py", "capture_local").verdict == "clean"
