"""A thread asks ``torch.compiler.is_compiling()`` in eager code while another compiles.

``race``: the compile is held in its backend until the other thread has asked, so the two overlap on
every run. ``serial``: it asks after the compile. ``fixed``: it asks ``is_dynamo_compiling()``,
which outside a trace is False whoever compiles.
"""

import sys
import threading

import torch
import torch._dynamo

MODE = sys.argv[1]
asks = torch.compiler.is_dynamo_compiling if MODE == "fixed" else torch.compiler.is_compiling
compiling, asked = threading.Event(), threading.Event()
fast = torch.compile(lambda x: x.sin().cos(), backend="eager")
fast(torch.randn(8))


def hold(graph, inputs):
    compiling.set()
    if MODE != "serial":
        asked.wait(60)
    return graph.forward


def compile_something():
    torch.compile(lambda x: x.tanh() + 1, backend=hold)(torch.randn(8))


def serve():
    compiling.wait(60)
    fast(torch.randn(8))
    scale = 0.0 if asks() else 1.0  # zero is for a trace, which computes nothing
    fast(torch.randn(8) * scale)
    asked.set()


first = threading.Thread(target=compile_something, name="compiler")
first.start()
if MODE == "serial":
    first.join()
second = threading.Thread(target=serve, name="server")
second.start()
for thread in (first, second):
    thread.join()
