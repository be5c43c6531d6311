"""One thread resets dynamo while another one is inside a call of compiled code.

``race``: inside a call. ``serial``: the reset comes between two calls, while nobody calls.
``fixed``: the caller has ended. ``crash``: calls in a loop, and resets until the process dies of
SIGSEGV, or a time is over.
"""

import sys
import threading
import time

import torch

MODE = sys.argv[1]
inside, reset_done = threading.Event(), threading.Event()


@torch.compiler.disable
def read_sensor():
    if MODE == "race" and threading.current_thread() is not threading.main_thread():
        inside.set()
        reset_done.wait(60)


def step(x):
    x = x.sin()
    read_sensor()
    return x.cos()


compiled = torch.compile(step, backend="eager")
compiled(torch.randn(8))
fast = torch.compile(lambda x, y, z: (x.sin() + y) * z, backend="eager")
tensors = [torch.randn(4) for _ in range(3)]
fast(*tensors)
stop = threading.Event()


def serve():
    if MODE == "crash":
        while not stop.is_set():
            fast(*tensors)
        return
    compiled(torch.randn(8))
    if MODE == "serial":
        inside.set()
        reset_done.wait(60)
        compiled(torch.randn(8))


threads = [threading.Thread(target=serve, name="serve") for _ in range(2 if MODE == "crash" else 1)]
for thread in threads:
    thread.start()
if MODE == "crash":
    end = time.monotonic() + 20
    while time.monotonic() < end:
        torch.compiler.reset()
    stop.set()
elif MODE == "fixed":
    threads[0].join()
else:
    inside.wait(60)
torch.compiler.reset()
reset_done.set()
for thread in threads:
    thread.join()
