"""A trainer in the foreground of a terminal that goes away: ``hangup``, ``alone`` or ``nohup``."""

import os
import signal
import subprocess
import sys
import threading

import torch

THREADS = 2


def main() -> None:
    mode = sys.argv[1]
    # Ignored is what the command nohup makes it, and what a program that it started inherits.
    signal.signal(signal.SIGHUP, signal.SIG_IGN if mode == "nohup" else signal.SIG_DFL)
    step = torch.compile(lambda x: (x * x).sum(), backend="eager")
    step(torch.randn(8))  # the warm-up
    at_work, go_on = threading.Barrier(THREADS + 1), threading.Event()

    def train() -> None:
        step(torch.randn(8))
        at_work.wait()
        go_on.wait()
        step(torch.randn(8))

    threads = [threading.Thread(target=train) for _ in range(THREADS)]
    for thread in threads:
        thread.start()
    at_work.wait()
    if mode != "alone":
        code = f"import os; os.kill({os.getpid()}, {int(signal.SIGHUP)})"
        subprocess.run([sys.executable, "-c", code], check=True)
    go_on.set()
    for thread in threads:
        thread.join()


main()
