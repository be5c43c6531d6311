"""Threads and CUDA graphs, on one GPU.

``trees_cold`` two threads make the first calls of code compiled with ``mode="reduce-overhead"``
at once: both compile, and what the second compiled asks for the graph trees' state in its thread.
``trees_one`` the same, made by one thread for all. ``trees_warm`` main warms it, then threads take
turns in calling it.

``shared`` two threads replay one graph in turn, each on a stream of its own, and read its output
after the other has replayed: the first sees what the second put in. ``own`` each has its graph.
``alone`` there is one of them.

``capture`` a thread allocates memory while another one captures a graph, ``capture_local`` with
``capture_error_mode="thread_local"``, ``capture_alone`` after the capture.
"""

import functools
import sys
import threading
from concurrent.futures import ThreadPoolExecutor

import torch
import torch._dynamo
import torch._inductor.compile_fx

MODE = sys.argv[1]
DEVICE = torch.device("cuda:0")
torch.cuda.init()


def in_threads(*bodies):
    threads = [threading.Thread(target=f, name=f"caller-{n}") for n, f in enumerate(bodies)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def trees():
    # No product of matrices: cuBLAS makes its handle at first use, which a capture does not allow.
    step = torch.compile(lambda x: x.sin().relu() + 1, mode="reduce-overhead", dynamic=False)
    turns = threading.Barrier(2)

    def call():
        x = torch.ones(8, 8, device=DEVICE)
        with torch.no_grad():
            torch.compiler.cudagraph_mark_step_begin()
            return step(x).clone()

    def at_once():
        turns.wait(120)
        call()

    def in_turn():
        for number in range(8):
            turns.wait(120)
            if number % 2 == int(threading.current_thread().name[-1]):
                call()

    if MODE == "trees_one":
        with ThreadPoolExecutor(1) as gpu:
            in_threads(*[lambda: [gpu.submit(call).result() for _ in range(4)] for _ in "ab"])
        return
    if MODE == "trees_cold":
        in_threads(at_once, at_once)
        return
    for _ in range(4):
        call()
    in_threads(in_turn, in_turn)


def captured(static, mode="global"):
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, capture_error_mode=mode):
        out = static * 2
    return graph, out


def replays():
    static = [torch.zeros(4, device=DEVICE) for _ in range(2)]
    made = [captured(tensor) for tensor in static]
    callers = 1 if MODE == "alone" else 2
    turns = threading.Barrier(callers)
    warm = torch.compile(lambda x: x.sin(), backend="eager")
    warm(torch.randn(3))
    wrong = []

    def caller(number):
        warm(torch.randn(3))
        place = number if MODE == "own" else 0
        graph, out = made[place]
        with torch.cuda.stream(torch.cuda.Stream()):
            for _ in range(4):
                for who in range(callers):
                    if who == number:
                        static[place].fill_(number + 1)
                        graph.replay()
                        torch.cuda.current_stream().synchronize()
                    turns.wait(60)
                wrong.append(out[0].item() != 2 * (number + 1))
                turns.wait(60)

    in_threads(*[functools.partial(caller, number) for number in range(callers)])
    print(sum(wrong), "of", len(wrong), "results were another thread's")


def capture():
    mode = "thread_local" if MODE == "capture_local" else "global"
    inside, allocated = threading.Event(), threading.Event()
    static = torch.zeros(4, device=DEVICE)
    warm = torch.compile(lambda x: x.sin(), backend="eager")
    warm(torch.randn(3))

    def capturing():
        warm(torch.randn(3))
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, capture_error_mode=mode):
            static.mul_(2)
            inside.set()
            if MODE != "capture_alone":
                allocated.wait(60)
        inside.set()

    def allocating():
        warm(torch.randn(3))
        inside.wait(60)
        if MODE == "capture_alone":
            threads[0].join()
        try:
            torch.empty(1 << 28, dtype=torch.uint8, device=DEVICE)  # more than the allocator holds
        finally:
            allocated.set()

    threads = [
        threading.Thread(target=capturing, name="captures"),
        threading.Thread(target=allocating, name="prefetches"),
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


with torch.cuda.device(DEVICE):
    {"trees": trees, "captu": capture}.get(MODE[:5], replays)()
