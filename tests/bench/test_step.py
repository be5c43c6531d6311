"""The bench of the step: its count of operations, its kinds of kernels, and a run of its parts."""

import importlib
import json
import math
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

HERE = Path(__file__).parent


@pytest.fixture(autouse=True)
def _as_a_program(monkeypatch):
    monkeypatch.syspath_prepend(str(HERE))
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)
    for name in [name for name in sys.modules if name.partition(".")[0] == "stepping"]:
        del sys.modules[name]


@pytest.mark.parametrize(("length", "tflop"), [(3072, 41.56), (8192, 48.19)])
def test_operations_are_those_of_the_published_sizes(length, tflop):
    # Qwen3-4B's drafter: 5 layers, blocks of 16, 512 anchors, counted by hand.
    shapes = importlib.import_module("stepping.shapes")
    count = shapes.operations(shapes.SHAPES["qwen3-4b"], length, 512)
    assert count.step / 1e12 == pytest.approx(tflop, abs=0.005)
    assert (count.dense / 1e12, count.head / 1e12) == pytest.approx((8.268, 6.373), abs=0.001)


@pytest.mark.parametrize(
    ("kernel", "kind"),
    [
        ("nvjet_tst_128x256_64x4_1x2_h_bz_coopA_NNT", "GEMM"),
        ("sm90_xmma_gemm_bf16bf16_bf16f32_f32_tn_n_tilesize128x128x64", "GEMM"),
        ("triton_tem_fused_flex_attention_backward_0", "attention"),
        ("triton_poi_fused__to_copy_mul_silu_3", "elementwise"),
        ("triton_red_fused_mean_mul_pow_rsqrt_1", "elementwise"),
        (
            "void at::native::vectorized_elementwise_kernel<4, at::native::FillFunctor>",
            "elementwise",
        ),
        ("adamw_kernel", "optimiser"),
        ("cross_entropy_kernel", "cross-entropy"),
        ("Memcpy DtoH (Device -> Pageable)", "copies and fills"),
        ("something", "other"),
    ],
)
def test_kernels_are_told_apart_by_name(kernel, kind):
    assert importlib.import_module("stepping.clock").kind_of(kernel) == kind


def test_parts_are_measured_and_written(monkeypatch, tmp_path, capsys):
    step = importlib.import_module("step")
    monkeypatch.setattr(step, "BUDGETS_S", dict.fromkeys(step.BUDGETS_S, math.inf))
    out = tmp_path / "figures.json"
    words = "--shapes tiny --device cpu --steps 3 --warm --only ceiling step plain memory --out"
    monkeypatch.setattr(sys, "argv", ["step.py", *words.split(), str(out)])
    assert step.main() == 0
    parts = json.loads(out.read_text())["parts"]
    assert list(parts) == ["ceiling", "step", "plain", "memory"]
    assert parts["ceiling"]["matmul"]["tflops"] > 0
    assert set(parts["step"]) == {"first step", "S=256", "S=384"}
    ratio = parts["plain"]["S=384, plain to fast"]["step_ms"]
    fast, plain = parts["step"]["S=384"], parts["plain"]["S=384"]
    for figures in (fast, plain):
        spread = figures["step_ms"]
        assert 0 < spread["min"] <= spread["median"] <= spread["max"]
        assert figures["backward_ms"] > 0
    assert ratio == pytest.approx(plain["step_ms"]["median"] / fast["step_ms"]["median"])
    assert "== memory" in capsys.readouterr().out


def test_a_part_begins_no_further_figure_after_its_time(monkeypatch, capsys):
    step = importlib.import_module("step")
    monkeypatch.setitem(step.BUDGETS_S, "table", 0)
    figures = step.measure("table", iter([("one", {"ms": 1.0}), ("two", {"ms": 2.0})]))
    assert figures == {"one": {"ms": 1.0}}
    assert "nothing more of table is begun" in capsys.readouterr().out


def test_the_first_step_is_timed_from_before_the_optimiser_compiles(monkeypatch):
    workload = importlib.import_module("stepping.workload")
    shapes = importlib.import_module("stepping.shapes")
    work = workload.Workload(shapes.SHAPES["tiny"], "cpu")
    clock = [0.0]
    made = workload.Optimizer

    def compiles(*args):
        clock[0] += 7.0
        return made(*args)

    monkeypatch.setattr(workload, "Optimizer", compiles)
    monkeypatch.setattr(workload, "time", SimpleNamespace(perf_counter=lambda: clock[0]))
    stepper, seconds = work.first(work.batches(256)[0])
    assert seconds == 7.0
    assert len(stepper.losses) == 1


def test_the_plain_and_the_fast_step_have_the_same_loss():
    workload = importlib.import_module("stepping.workload")
    shapes = importlib.import_module("stepping.shapes")
    work = workload.Workload(shapes.SHAPES["tiny"], "cpu")
    batch = work.batches(256)[0]
    losses = []
    for stepper in (work.stepper(), work.plain()):
        state = {name: value.clone() for name, value in work.drafter.state_dict().items()}
        stepper.step(batch)
        work.drafter.load_state_dict(state)
        losses += stepper.losses
    # The same weights; activations are rounded to 8 bits in other places.
    assert losses[0] == pytest.approx(losses[1], rel=0.01)
