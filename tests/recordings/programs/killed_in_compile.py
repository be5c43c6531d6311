"""Somebody ends the program from outside while one thread compiles and another waits for it."""

import os
import subprocess
import sys
import threading

import torch

compiling = threading.Event()
never = threading.Event()


def backend(gm, inputs):
    compiling.set()
    never.wait()
    return gm.forward


slow = torch.compile(lambda x: x.sin(), backend=backend)
fast = torch.compile(lambda x: x.cos(), backend="eager")


def compiler():
    slow(torch.randn(4))


def waiter():
    compiling.wait()
    fast(torch.randn(4))


threads = [threading.Thread(target=f, name=f.__name__) for f in (compiler, waiter)]
for thread in threads:
    thread.start()
compiling.wait()
subprocess.run([sys.executable, "-c", f"import os; os.kill({os.getpid()}, 15)"], check=True)
for thread in threads:
    thread.join()
