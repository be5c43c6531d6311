"""Calls of every form, in contexts that differ by thread. Nothing orders the threads but joins."""

import sys
import threading

import torch

scale = 3.0


def make(weight):
    def closed(x, *rest, k=2, **more):
        return x.sin() * weight * scale + k

    return closed


class Block(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = torch.nn.Linear(4, 4)

    def forward(self, x, flag=True):
        return self.inner(x) if flag else x


@torch.compile(backend="eager")
def shared(x):
    return x.cos()


closed = torch.compile(make(torch.ones(1)), backend="eager")
block = torch.compile(Block(), backend="eager")
linear = torch.compile(torch.nn.Linear(4, 4), backend="eager")

x = torch.randn(2, 4, requires_grad=True)
for _ in range(2):
    closed(x * 1, 1, k=5, z=2)
    block(x, flag=True)
    linear(x)
    shared(x)


def same():
    closed(x * 1, 1, k=5, z=2)
    block(x)


def autocast():
    with torch.autocast("cpu", dtype=torch.bfloat16):
        block(x)


def longer():
    with torch.no_grad():
        linear(torch.randn(3, 4))


def overtaking():
    with torch.no_grad():
        shared(x)


def overtaken():
    """Another thread adds the entry that fits after this one's entries have been read."""
    asking = sys.modules["_compile_race_child.asking"]
    answers = asking._answers

    def add_one_first(entries, variables):
        asking._answers = answers
        run(overtaking)
        return answers(entries, variables)

    asking._answers = add_one_first
    with torch.no_grad():
        shared(x)


def adding():
    """Its entry is added when another thread has read the entries, and its compile is over."""
    convert_frame = sys.modules["torch._dynamo.convert_frame"]
    compile_ = convert_frame._compile

    def compile_and_wait(*args, **kwargs):
        convert_frame._compile = compile_
        result = compile_(*args, **kwargs)
        early.start()
        read.wait()
        return result

    convert_frame._compile = compile_and_wait
    shared(doubles)
    added.set()
    early.join()


def too_early():
    asking = sys.modules["_compile_race_child.asking"]
    answers = asking._answers

    def answer_late(entries, variables):
        asking._answers = answers
        read.set()
        added.wait()
        return answers(entries, variables)

    asking._answers = answer_late
    shared(doubles)


def run(target):
    thread = threading.Thread(target=target, name=target.__name__)
    thread.start()
    thread.join()


doubles = torch.randn(2, 4, dtype=torch.float64)
read, added = threading.Event(), threading.Event()
early = threading.Thread(target=too_early, name="too_early")
for target in (same, autocast, longer, overtaken, adding):
    run(target)
