"""Memory on real torch: what is seen of requests that fail, of peaks, and of the bound."""

import sys

import pytest

from harness.child import memory
from harness.child import torch_symbols as symbols
from harness.child.probes import Unavailable
from harness.child.probes import memory as probe
from harness.child.settings import Settings
from harness.events import schema

GIB = 1 << 30

PROGRAM = """
import concurrent.futures
from torch.nn.attention.flex_attention import create_block_mask, flex_attention
from torch.utils.checkpoint import checkpoint

operator = torch.ops.higher_order.flex_attention
small = create_block_mask(lambda b, h, q, k: q >= k, 1, 1, 128, 128, device="cpu")
options = {
    "BACKEND": "AUTO", "PRESCALE_QK": False, "ROWS_GUARANTEED_SAFE": False,
    "BLOCKS_ARE_CONTIGUOUS": False, "WRITE_DQ": True, "OUTPUT_LOGSUMEXP": True,
    "OUTPUT_MAX": False,
}
compiled = torch.compile(
    lambda q, k, v: operator(q, k, v, lambda s, b, h, m, n: s, small.as_tuple(), 0.25, options)[0],
    backend="aot_eager", dynamic=True,
)

def attend(call, length, **rest):
    q, k, v = (torch.randn(1, 4, length, 16) for _ in range(3))
    with torch.no_grad():
        call(q, k, v, **rest)

def survived(function, *args):
    try:
        function(*args)
    except RuntimeError as error:
        print("survived", str(error)[-60:])

def in_future(function, *args):
    with concurrent.futures.ThreadPoolExecutor(1, thread_name_prefix="pool") as pool:
        pool.submit(function, *args).exception()

big = 3 * 2**30 // 2
run(attend, flex_attention, 1024, name="fits")
run(survived, attend, flex_attention, 8192, name="dense-survived")
run(attend, compiled, 128, name="compiled-small")
run(survived, attend, compiled, 8192, name="reference-survived")
run(lambda: create_block_mask(lambda b, h, q, k: q >= k, None, 3, 16384, 16384, device="cpu"),
    name="block-mask")
run(lambda: torch.empty(big, dtype=torch.uint8), name="plain")
run(lambda: survived(lambda: torch.empty(big, dtype=torch.uint8)), name="plain-survived")
run(lambda: bytearray(big), name="python")
in_future(lambda: torch.empty(big, dtype=torch.uint8))
print("initialised", torch.cuda.is_initialized())
"""


@pytest.fixture(scope="module")
def watched(watch):
    done = watch(PROGRAM, memory_cap=GIB)
    assert done.code == 0, done.err
    return done


def test_the_bound_is_set_before_the_program_allocates_and_is_recorded(watched):
    (event,) = watched.of(schema.MemoryCap)
    assert (event.data.device, event.data.bytes, event.data.by) == ("cpu", GIB, "RLIMIT_DATA")
    (header,) = watched.of(schema.Header)
    assert header.data.memory_cap == GIB
    first = watched.of(schema.DenseAttention)[0]
    assert event.seq < first.seq


@pytest.mark.parametrize(
    ("thread", "doing", "sizes"),
    [
        ("dense-survived", "dense_attention", (1, 4, 8192, 8192)),
        ("reference-survived", "reference_attention", (1, 4, 8192, 8192)),
        ("block-mask", "block_mask", (1, 3, 16384, 16384)),
        ("plain", "", ()),
        ("python", "", ()),
        ("pool_0", "", ()),
    ],
)
def test_a_failed_request_says_what_it_was_for(watched, thread, doing, sizes):
    (event,) = watched.of(schema.OutOfMemory, thread)
    data = event.data
    assert (data.device, data.doing, data.sizes) == ("cpu", doing, sizes)
    assert data.cap == GIB
    assert data.allocated
    assert any(frame.user for frame in event.where)


def test_the_size_asked_for_is_exact_on_a_cpu(watched):
    asked = {e.thread: e.data.asked for e in watched.of(schema.OutOfMemory)}
    assert asked["dense-survived"] == 4 * 8192 * 8192 * 4
    assert asked["plain"] == 3 * GIB // 2
    assert asked["python"] is None


def test_outside_dense_attention_a_request_that_the_program_survives_is_not_seen(watched):
    assert "survived" in watched.out
    assert watched.of(schema.OutOfMemory, "plain-survived") == []


def test_the_events_number_is_that_of_the_exception(watched):
    (event,) = watched.of(schema.OutOfMemory, "plain")
    (error,) = watched.of(schema.ThreadError, "plain")
    assert event.data.error == error.data.chain[0].id
    assert event.seq < error.seq


def test_a_dense_call_is_measured_against_what_it_needs(watched):
    (event,) = watched.of(schema.MemoryPeak, "fits")
    (call,) = watched.of(schema.DenseAttention, "fits")
    assert (event.data.scope, event.data.device) == ("dense_attention", call.data.device)
    assert event.data.exact
    took = event.data.peak - event.data.before
    # Three copies in float32 and a boolean each, and what else happens to be resident by then.
    needs = call.data.scores_bytes // 4 * 13
    assert 0.8 * needs < took < 1.5 * needs + (64 << 20)


def test_the_run_ends_with_its_peak(watched):
    peaks = [e for e in watched.of(schema.MemoryPeak) if e.data.scope == "program"]
    assert [e.data.device for e in peaks] == ["cpu"]
    assert 0 < peaks[0].data.peak < 2 * GIB


def test_cuda_is_not_initialised_by_watching(watched):
    assert "initialised False" in watched.out
    assert watched.states()["memory"] == "live"


class Gpus:
    """Puts a torch in place that has two GPUs, and keeps what is asked of it."""

    def __init__(self, monkeypatch):
        import torch

        self.observers, self.fractions, self.current = [], {}, 0
        self.waiting = []
        observer = symbols.OOM_OBSERVER
        owner = sys.modules[observer.module]
        monkeypatch.setattr(owner, observer.name, self.observers.append, raising=False)
        cuda = torch.cuda
        monkeypatch.setattr(torch.version, "cuda", "13.0")
        monkeypatch.setattr(memory, "_totals", {})
        monkeypatch.setattr(cuda, symbols.INIT_CUDA_CALL.name, self.waiting.append)
        monkeypatch.setattr(cuda, "is_initialized", lambda: not self.waiting)
        monkeypatch.setattr(cuda, "device_count", lambda: 2)
        monkeypatch.setattr(cuda, "current_device", lambda: self.current)
        monkeypatch.setattr(cuda, "set_device", lambda index: setattr(self, "current", index))
        monkeypatch.setattr(cuda, "get_device_properties", self.properties)
        monkeypatch.setattr(cuda, "set_per_process_memory_fraction", self.bound)
        monkeypatch.setattr(cuda, "memory_stats_as_nested_dict", lambda _index: {})
        monkeypatch.setattr(probe.gpus, "gpu_is_visible", lambda _build: True)

    def properties(self, index):
        return type("Properties", (), {"total_memory": (index + 1) * 40 * GIB})

    def bound(self, fraction, index):
        self.fractions[index], self.current = fraction, index

    def initialise(self):
        """What torch does when the program first needs a GPU."""
        waiting, self.waiting = self.waiting, []
        for call in waiting:
            call()


@pytest.fixture
def gpus(monkeypatch):
    return Gpus(monkeypatch)


def install(recorder, folder, cap=None):
    settings = Settings(folder=str(folder), harness="test", memory_cap=cap)
    probe.MemoryProbe().install(recorder, settings)


def test_the_observer_and_the_bound_wait_until_cuda_is_initialised(
    gpus, recorder, recorded, tmp_path
):
    install(recorder, tmp_path, 20 * GIB)
    assert (gpus.observers, gpus.fractions) == ([], {})
    gpus.initialise()
    assert gpus.fractions == {0: 0.5, 1: 0.25}
    assert gpus.current == 0
    bounds = [e.data for e in recorded() if isinstance(e, schema.MemoryCap)]
    assert [(b.device, b.bytes) for b in bounds] == [("cuda:0", 20 * GIB), ("cuda:1", 20 * GIB)]
    (observer,) = gpus.observers
    assert observer(1, 8 * GIB, 20 * GIB, 60 * GIB) is None
    (event,) = [e for e in recorded() if isinstance(e, schema.OutOfMemory)]
    assert (event.data.device, event.data.asked, event.data.free) == ("cuda:1", 8 * GIB, 60 * GIB)
    assert (event.data.total, event.data.cap) == (80 * GIB, 20 * GIB)


def test_a_gpu_build_without_the_observer_is_said_to_lack_it(gpus, recorder, tmp_path, monkeypatch):
    owner = sys.modules[symbols.OOM_OBSERVER.module]
    monkeypatch.delattr(owner, symbols.OOM_OBSERVER.name)
    with pytest.raises(Unavailable, match="out_of_memory_observer"):
        install(recorder, tmp_path)


def test_what_goes_wrong_when_cuda_is_initialised_is_reported_and_not_raised(
    gpus, recorder, recorded, tmp_path, monkeypatch
):
    import torch

    def broken(_index):
        raise RuntimeError("no such device")

    install(recorder, tmp_path, 20 * GIB)
    monkeypatch.setattr(torch.cuda, "get_device_properties", broken)
    gpus.initialise()
    (event,) = [e for e in recorded() if isinstance(e, schema.Probe)]
    assert (event.data.name, event.data.state) == ("memory", "failed")
    assert "no such device" in event.data.reason


def test_a_request_in_a_dense_kernel_is_told_by_its_frames(gpus, recorder, recorded, tmp_path):
    """The observer is called below the kernel's frame, as it is when the kernel allocates."""
    import importlib

    import torch

    install(recorder, tmp_path)
    gpus.initialise()
    (observer,) = gpus.observers
    module = importlib.import_module(symbols.MATH_ATTENTION.module)

    def score(value, _b, _h, _q, _k):
        observer(0, 2 << 20, 40 * GIB, 0)
        return value

    query = torch.ones(1, 2, 16, 8)
    key = torch.ones(1, 1, 32, 8)
    mask = (*(None,) * 12, lambda _b, _h, q, k: q >= k)
    kernel = getattr(module, symbols.MATH_ATTENTION.name)
    kernel(query, key, key, score, mask, 1.0, {})
    (event,) = [e for e in recorded() if isinstance(e, schema.OutOfMemory)]
    assert event.data.doing == "dense_attention"
    assert event.data.sizes == (1, 2, 16, 32)
    assert (event.data.dtype, event.data.element_size) == ("torch.float32", 4)
