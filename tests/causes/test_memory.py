"""CR402, CR406, CR904: whose request failed, by its frame, its size or the error's text alone."""

import json

import pytest

from harness.causes.dense_memory import matches, need_of
from harness.diagnosis.build import diagnose
from harness.events.memory import size
from harness.timeline.memory import MAX_REQUESTS
from harness.timeline.recording import Recording

from .build import MAIN, Script, frames

A, B = 4001, 4002
MIB, GIB = 1 << 20, 1 << 30
SCORES = 2 * GIB
CPU_TEXT = (
    "[enforce fail at alloc_cpu.cpp:127] err == 0. DefaultCPUAllocator: can't allocate memory: you "
    "tried to allocate {} bytes. Error code 12 (Cannot allocate memory)"
)
CUDA_TEXT = (
    "CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 139.80 GiB of "
    "which 1.00 GiB is free."
)
FLEX = "/home/user/venv/torch/_higher_order_ops/flex_attention.py"


def dense(script, tid, device="cuda:0", count=1):
    """A dense call of 2 x 8 heads of 8192 queries and keys in bfloat16: 2 GiB of scores."""
    data = {
        "kind": "fallback",
        "shape": [2, 8, 8192, 64],
        "dtype": "torch.bfloat16",
        "device": device,
        "scores_bytes": SCORES,
        "count": count,
    }
    return script.add("dense_attention", tid, data, where=frames("attend"))


def failed(script, tid, asked, device="cuda:0", **data):
    described = {"device": device, "asked": asked, "seen": "allocator", "free": GIB, **data}
    return script.add("out_of_memory", tid, described, where=frames("attend"))


def cuda_error(script, tid, number=1, via="thread", **rest):
    return script.error(tid, via, "torch.OutOfMemoryError", CUDA_TEXT, number, **rest)


@pytest.fixture
def script(tmp_path):
    made = Script(tmp_path)
    made.compile(MAIN, "0/0")
    made.thread(A, "drafter-0")
    made.thread(B, "drafter-1")
    return made


def codes(report):
    return [(f.code, f.root, f.follows_from) for f in report.findings]


def statements(report, code):
    return next(f for f in report.findings if f.code == code).statements


def test_a_request_inside_the_dense_kernel_follows_from_the_fallback(script):
    call = dense(script, A)
    asked = failed(script, A, 4 * GIB, doing="dense_attention", sizes=[2, 8, 8192, 8192])
    error = cuda_error(script, A)
    report = diagnose(script.finish(1))
    assert codes(report)[:2] == [("CR401", True, ()), ("CR402", False, ("CR401",))]
    said = statements(report, "CR402")
    assert said[0].certainty == "observed"
    assert set(said[0].evidence) == {asked, error}
    assert said[1].certainty == "observed"
    assert call in said[1].evidence
    assert report.errors[0].explained_by == ("CR402",)


def test_the_size_of_the_scores_alone_makes_it_inferred(script):
    dense(script, A)
    failed(script, A, 4 * GIB + MIB)  # float32 scores, rounded up by the allocator
    cuda_error(script, A)
    report = diagnose(script.finish(1))
    assert [code for code, _, _ in codes(report)][:2] == ["CR401", "CR402"]
    assert statements(report, "CR402")[1].certainty == "inferred"


def test_another_size_is_another_matter(script):
    dense(script, A)
    failed(script, A, 3 * GIB)
    cuda_error(script, A)
    report = diagnose(script.finish(1))
    assert {code for code, root, _ in codes(report) if root} == {"CR401", "CR904"}


def test_the_scores_size_in_a_thread_without_a_dense_call_proves_nothing(script):
    dense(script, A)
    failed(script, B, 4 * GIB)
    cuda_error(script, B)
    report = diagnose(script.finish(1))
    assert "CR402" not in {code for code, _, _ in codes(report)}
    assert "CR904" in {code for code, _, _ in codes(report)}


@pytest.mark.parametrize("behalf", [[A], [B], [A, B]])
def test_on_autograds_thread_it_may_be_for_those_that_it_works_for(script, behalf):
    """On a GPU a dense backward runs on autograd's thread, which serves all callers."""
    calls = {tid: dense(script, tid) for tid in (A, B)}
    where = [["/home/user/venv/torch/autograd/graph.py", 3, "backward", False]]
    script.add("autograd", 4090, {"behalf_tids": behalf, "device": "cuda:0"}, where=where)
    failed(script, 4090, 4 * GIB)
    cuda_error(script, behalf[0])
    said = statements(diagnose(script.finish(1)), "CR402")[1]
    assert {calls[tid] for tid in behalf} == set(said.evidence) & set(calls.values())
    assert ("for which of them is not known" in said.text) == (len(behalf) > 1)


def test_of_very_many_requests_the_largest_and_the_last_are_kept(script):
    for number in range(MAX_REQUESTS + 500):
        asked = 64 * GIB if number == 700 else 3 * GIB
        failed(script, A, asked)
    fatal = failed(script, B, 5 * GIB)
    (timeline,) = Recording(script.finish(1)).timelines()
    kept = timeline.memory.requests
    assert len(kept) == MAX_REQUESTS
    assert timeline.memory.left_out == 501
    assert kept[-1].seq == fatal
    assert max(request.data.asked for request in kept) == 64 * GIB
    assert [request.seq for request in kept] == sorted(request.seq for request in kept)


def test_on_the_processor_the_bound_is_on_what_is_reserved_and_no_gpu_is_spoken_of(script):
    """RLIMIT_DATA counts private writable mappings whole, so little need be resident."""
    failed(script, A, 3 * GIB, "cpu", allocated=512 * MIB, cap=2 * GIB, free=None)
    script.error(A, "thread", "RuntimeError", CPU_TEXT.format(3 * GIB))
    report = diagnose(script.finish(1))
    (finding,) = (f for f in report.findings if f.code == "CR904")
    assert "counts what is reserved and not yet used" in finding.statements[0].text
    assert "cuda" not in finding.remedy.text
    assert "--memory-cap" in finding.remedy.text


def test_on_a_gpu_the_remedy_names_its_allocator(script):
    failed(script, A, 3 * GIB, cap=20 * GIB)
    cuda_error(script, A)
    (finding, *_) = diagnose(script.finish(1)).findings
    assert "the process was bounded to 20.0 GiB" in finding.statements[0].text
    assert "torch.cuda.memory" in finding.remedy.text


def test_another_devices_dense_call_proves_nothing(script):
    dense(script, A, "cuda:1")
    failed(script, A, 4 * GIB)
    cuda_error(script, A)
    report = diagnose(script.finish(1))
    assert "CR402" not in {code for code, _, _ in codes(report)}


def test_the_kernel_that_a_backend_runs_on_purpose_is_no_fallback(script):
    failed(script, A, 4 * GIB, doing="reference_attention", sizes=[2, 8, 8192, 8192])
    cuda_error(script, A)
    report = diagnose(script.finish(1))
    assert [code for code, _, _ in codes(report)] == ["CR904"]


def test_a_dense_backward_that_the_program_survives_is_still_said(script):
    dense(script, A)
    failed(script, A, 4 * GIB, doing="dense_backward", sizes=[2, 8, 8192, 8192])
    report = diagnose(script.finish())
    assert codes(report)[1] == ("CR402", False, ("CR401",))
    assert "dense backward" in statements(report, "CR402")[1].text


def test_without_the_probe_the_text_and_the_frames_tell(script):
    dense(script, A, "cpu")
    where = [*frames("attend"), [FLEX, 273, "math_attention", False]]
    text = CPU_TEXT.format(4 * GIB)
    script.error(A, "thread", "RuntimeError", text, where=where)
    report = diagnose(script.finish(1))
    assert codes(report)[:2] == [("CR401", True, ()), ("CR402", False, ("CR401",))]
    (memory,) = report.memory
    assert (memory.requests[0].asked, memory.requests[0].device) == (4 * GIB, "cpu")
    assert statements(report, "CR402")[1].certainty == "inferred"


def test_the_sizes_that_are_observed_are_the_frames_own(script):
    dense(script, A)
    sizes = {"sizes": [2, 8, 4096, 16384], "dtype": "torch.bfloat16", "element_size": 2}
    failed(script, A, 4 * GIB, doing="dense_backward", **sizes)
    cuda_error(script, A)
    said = statements(diagnose(script.finish(1)), "CR402")[1]
    assert said.certainty == "observed"
    assert "B x H x Q x KV = 1,073,741,824 elements, 4.0 GiB" in said.text


@pytest.mark.parametrize(
    ("kind", "text", "device", "asked"),
    [
        ("MemoryError", "", "cpu", None),
        ("RuntimeError", CPU_TEXT.format(123), "cpu", 123),
        ("RuntimeError", "std::bad_alloc", "cpu", None),
        ("torch.OutOfMemoryError", CUDA_TEXT, "cuda:0", 2 * GIB),
        ("torch.AcceleratorError", "CUDA error: out of memory", "cuda", None),
    ],
)
def test_an_error_that_says_so_is_cr904_and_not_cr905(script, kind, text, device, asked):
    script.error(MAIN, "main", kind, text)
    report = diagnose(script.finish(1))
    assert codes(report) == [("CR904", True, ())]
    assert [(r.device, r.asked) for r in report.memory[0].requests] == [(device, asked)]


@pytest.mark.parametrize("text", ["memory of an elephant", "out of range", "no memory"])
def test_other_errors_are_left_to_others(script, text):
    script.error(MAIN, "main", "RuntimeError", text)
    assert codes(diagnose(script.finish(1))) == [("CR905", True, ())]


def test_one_exception_that_is_seen_twice_is_one_request(script):
    failed(script, A, GIB, "cpu", seen="error", error=7)
    text = CPU_TEXT.format(GIB)
    script.error(A, "future", "RuntimeError", text, 7, future=1)
    script.error(MAIN, "main", "RuntimeError", text, 7)
    report = diagnose(script.finish(1))
    (memory,) = report.memory
    assert len(memory.requests) == 1
    assert {tuple(e.explained_by) for e in report.errors} == {("CR904",)}


def test_a_request_that_the_program_survives_is_a_note(script):
    failed(script, A, 3 * GIB)
    report = diagnose(script.finish())
    assert codes(report) == []
    assert [note.code for note in report.notes] == ["CR904"]


def test_the_request_that_ended_a_thread_is_listed_after_a_hundred_that_were_survived(script):
    for _ in range(100):
        failed(script, A, 3 * GIB)
    fatal = failed(script, B, 5 * GIB)
    cuda_error(script, B)
    (memory,) = diagnose(script.finish(1)).memory
    assert len(memory.requests) + memory.left_out == 101
    assert fatal in memory.requests[-1].evidence
    assert not memory.requests[-1].survived


def test_what_concludes_a_finding_of_hundreds_of_statements_is_kept(script):
    for number in range(100):
        failed(script, A, 5 * GIB + number * MIB)
        cuda_error(script, A, number)
    said = statements(diagnose(script.finish(1)), "CR904")
    assert len(said) < 70
    assert sum("more statements like these" in s.text for s in said) == 1
    assert said[-1].certainty == "unknown"


def test_errors_of_two_threads_go_to_their_own_requests(script):
    first = failed(script, A, GIB)
    second = failed(script, B, 3 * GIB)
    late = cuda_error(script, B, 1)
    later = cuda_error(script, A, 2)
    report = diagnose(script.finish(1))
    (memory,) = report.memory
    assert [set(r.evidence) for r in memory.requests] == [{first, later}, {second, late}]


def test_a_block_mask_that_does_not_fit_says_how_large_it_is(script):
    failed(script, A, 16 * GIB, doing="block_mask", sizes=[1, 1, 131072, 131072])
    cuda_error(script, A)
    report = diagnose(script.finish(1))
    assert codes(report) == [("CR406", True, ())]
    assert "16.0 GiB as booleans" in statements(report, "CR406")[1].text


def test_a_block_mask_that_the_program_gives_up_is_a_note(script):
    failed(script, A, 16 * GIB, doing="block_mask", sizes=[1, 1, 131072, 131072])
    report = diagnose(script.finish())
    assert codes(report) == []
    assert [note.code for note in report.notes] == ["CR406"]


def test_what_dense_attention_needs_is_set_against_what_was_measured(script):
    dense(script, A)
    peak = {"device": "cuda:0", "scope": "dense_attention", "before": GIB, "peak": 14 * GIB}
    seq = script.add("memory_peak", A, peak)
    said = statements(diagnose(script.finish()), "CR401")
    need = next(s for s in said if "needs" in s.text)
    assert need.certainty == "inferred"
    assert "13.0 GiB for the forward and 26.0 GiB for a backward" in need.text
    measured = next(s for s in said if "Measured" in s.text)
    assert "13.0 GiB more than before" in measured.text
    assert seq in measured.evidence


def test_a_peak_that_the_call_did_not_raise_says_so(script):
    dense(script, A)
    peak = {"device": "cuda:0", "scope": "dense_attention", "before": GIB, "peak": 14 * GIB}
    script.add("memory_peak", A, {**peak, "exact": False})
    said = statements(diagnose(script.finish()), "CR401")
    assert any("was not passed by it" in s.text for s in said)


def test_the_peak_of_another_call_is_not_taken_for_the_largest_ones(script):
    dense(script, A)
    dense(script, A, count=2)  # the larger one, the first, ended unmeasured
    script.add(
        "memory_peak",
        A,
        {"device": "cuda:0", "scope": "dense_attention", "before": 0, "peak": GIB},
    )
    said = statements(diagnose(script.finish()), "CR401")
    assert not any("Measured" in s.text for s in said)


@pytest.mark.parametrize(
    ("dtype", "own", "forward", "backward"),
    [
        # Bytes an element, as the allocator's events add up on CPU (see dense_memory).
        ("torch.float32", 4, 13.135, 28.515),
        ("torch.bfloat16", 2, 13.072, 26.202),
        ("torch.float16", 2, 13.072, 26.202),
        ("torch.float64", 8, 25.268, 56.901),
    ],
)
def test_the_estimate_is_within_a_twentieth_of_what_was_counted(dtype, own, forward, backward):
    elements = 8 * 1024 * 1024
    need = need_of(elements * own, dtype)
    assert need.elements == elements
    assert need.forward / elements == pytest.approx(forward, rel=0.05)
    assert need.backward / elements == pytest.approx(backward, rel=0.05)


def test_a_text_in_gibibytes_matches_and_half_as_much_does_not():
    assert matches(round(2.01 * GIB), [2 * GIB], 0)
    assert matches(2 * GIB + 2 * MIB, [2 * GIB], 2 * MIB)
    assert not matches(GIB, [2 * GIB], 2 * MIB)
    assert not matches(round(2.2 * GIB), [2 * GIB], 2 * MIB)


@pytest.mark.parametrize(
    ("number", "said"),
    [
        (0, "0 bytes"),
        (1023, "1023 bytes"),
        (1024, "1 KiB"),
        (MIB - 1, "1 MiB"),
        (512 * MIB, "512 MiB"),
        (3 * GIB // 2, "1.5 GiB"),
        (105 * GIB, "105.0 GiB"),
    ],
)
def test_sizes_in_words(number, said):
    assert size(number) == said


def test_peaks_of_devices_and_phases_reach_the_report(script):
    script.add("memory_cap", MAIN, {"device": "cuda:0", "bytes": 20 * GIB, "by": "fraction"})
    phase = {"device": "cuda:0", "scope": "phase", "name": "warmup", "before": 0}
    script.add("memory_peak", MAIN, {**phase, "peak": 2 * GIB, "peak_reserved": 3 * GIB})
    script.add("memory_peak", MAIN, {**phase, "peak": GIB})
    run = {"device": "cuda:0", "scope": "program", "peak": 5 * GIB, "total": 140 * GIB}
    last = script.add("memory_peak", MAIN, run)
    (memory,) = diagnose(script.finish()).memory
    (device,) = memory.devices
    assert (device.peak_allocated, device.peak_reserved) == (5 * GIB, 3 * GIB)
    assert (device.total, device.cap, device.evidence) == (140 * GIB, 20 * GIB, last)
    assert [(p.name, p.peak) for p in memory.phases] == [("warmup", 2 * GIB)]


def test_samples_alone_tell_the_peak_of_a_program_that_was_killed(script):
    folder = script.finish(None, end=False, signal=9)
    line = {
        "point": "memory",
        "t_ns": script.t + 1,
        "seq": script.seq + 1,
        "pid": MAIN,
        "tid": A,
        "thread": "drafter-0",
        "data": {"device": "cuda:0", "allocated": GIB, "peak_allocated": 3 * GIB},
    }
    (folder / f"steady-{MAIN}-000001.jsonl").write_text(json.dumps(line) + "\n")
    (memory,) = diagnose(folder).memory
    assert memory.devices[0].peak_allocated == 3 * GIB
