"""Two models of one class in two threads, each compiled and warmed by its own thread in turn."""

import threading

import torch


def work(model, compiled, warm, go):
    compiled(torch.randn(2, 4)).sum().backward()
    warm.set()
    go.wait()
    for _ in range(4):
        compiled(torch.randn(2, 4)).sum().backward()


go, threads = threading.Event(), []
for kind in (torch.nn.Linear, torch.nn.Bilinear):
    if kind is torch.nn.Linear:
        model = kind(4, 4)
    else:
        model = torch.nn.Sequential(torch.nn.Linear(4, 2), torch.nn.Sigmoid())
    warm = threading.Event()
    compiled = torch.compile(model, backend="aot_eager")
    threads.append(threading.Thread(target=work, args=(model, compiled, warm, go)))
    threads[-1].start()
    warm.wait()
go.set()
for thread in threads:
    thread.join()
