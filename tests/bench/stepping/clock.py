"""Time, memory and kernels of work on one device."""

import statistics
import time
from collections import Counter

import torch

GIB = 1 << 30

# What a kernel of each kind has in its name; the first that fits counts.
KINDS = (
    ("optimiser", ("adamw_kernel", "sum_of_squares", "multi_tensor")),
    ("cross-entropy", ("cross_entropy", "softmax", "nll_loss")),
    ("attention", ("triton_tem", "flex_attention", "fmha", "flash", "attention")),
    ("GEMM", ("gemm", "nvjet", "cutlass", "xmma", "splitk", "cublas")),
    ("elementwise", ("triton_", "elementwise", "reduce", "norm", "CatArray", "index", "embedding")),
    ("copies and fills", ("Memcpy", "Memset", "copy", "fill")),
)


class Clock:
    """Marks moments on a device: with events on a GPU, which wait for nothing."""

    def __init__(self, device):
        self.cuda = device.type == "cuda"
        self.device = device

    def now(self):
        if not self.cuda:
            return time.perf_counter()
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event

    def wait(self):
        if self.cuda:
            torch.cuda.synchronize(self.device)

    def ms(self, begin, end):
        """Milliseconds between two moments that both have passed."""
        return begin.elapsed_time(end) if self.cuda else 1e3 * (end - begin)

    def peak_gib(self, work):
        """Most memory that torch has given out while `work` ran; nan on a CPU."""
        if not self.cuda:
            work()
            return float("nan")
        self.wait()
        torch.cuda.reset_peak_memory_stats(self.device)
        work()
        self.wait()
        return torch.cuda.max_memory_allocated(self.device) / GIB

    def given_gib(self):
        """Memory that torch has given out now; nan on a CPU."""
        return torch.cuda.memory_allocated(self.device) / GIB if self.cuda else float("nan")

    def median_ms(self, work, *, count, first=3):
        """Median, least and most milliseconds of `work`, after a few that do not count."""
        for _ in range(first):
            work()
        moments = []
        for _ in range(count):
            begin = self.now()
            work()
            moments.append((begin, self.now()))
        self.wait()
        return spread([self.ms(*pair) for pair in moments])


def spread(values):
    """Median, least and most."""
    return {"median": statistics.median(values), "min": min(values), "max": max(values)}


def kind_of(kernel):
    """Which kind of work a kernel does, by its name."""
    for kind, words in KINDS:
        if any(word.lower() in kernel.lower() for word in words):
            return kind
    return "other"


def kernels(work, *, count):
    """Milliseconds of each kernel in one of `count` repetitions of `work`; none on a CPU."""
    activities = [torch.profiler.ProfilerActivity.CPU]
    if torch.cuda.is_available():
        activities.append(torch.profiler.ProfilerActivity.CUDA)
    with torch.profiler.profile(activities=activities) as profile:
        for _ in range(count):
            work()
        if torch.cuda.is_available():
            torch.cuda.synchronize()
    found = Counter()
    for event in profile.key_averages():
        # Compiled graphs leave a mark of their own over all of their kernels.
        on_gpu = event.device_type == torch.autograd.DeviceType.CUDA
        if on_gpu and not event.is_user_annotation and not event.key.startswith("##"):
            found[event.key] += event.self_device_time_total / 1e3 / count
    return found


def by_kind(found):
    """Add up `kernels` by kind, most first."""
    kinds = Counter()
    for kernel, ms in found.items():
        kinds[kind_of(kernel)] += ms
    return dict(kinds.most_common())
