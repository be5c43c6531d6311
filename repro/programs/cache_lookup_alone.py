"""The race of ``cache_lookup.py``, unwatched: 1 if a warmed function compiled again, else 0."""

import sys
import threading

import torch

overtaking, walking, overtaken = (threading.Event() for _ in range(3))
compiles = []


def backend(graph, inputs):
    compiles.append(threading.current_thread().name)
    return graph.forward


class Labelled(torch.Tensor):
    """A tensor with a label that is guarded on."""

    @staticmethod
    def __new__(cls, inner, label):
        self = torch.Tensor._make_wrapper_subclass(cls, inner.shape)  # noqa: SLF001
        self.inner, self.label = inner, label
        return self

    def __tensor_flatten__(self):
        return ["inner"], self.label

    @classmethod
    def __tensor_unflatten__(cls, inner, label, size, stride):
        return cls(inner["inner"], label)

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        return cls(func(args[0].inner), args[0].label)

    @classmethod
    def __metadata_guard__(cls, guarded, label):
        at = (threading.current_thread().name, guarded)
        if at == ("overtaker", "a"):  # behind b so far; this hit will move it to the front
            overtaking.set()
            walking.wait(60)
        elif at == ("walker", "b"):  # the first entry; a, which fits, comes next
            walking.set()
            overtaken.wait(60)
        return guarded == label


step = torch.compile(lambda x: x.sin(), backend=backend)
a, b = Labelled(torch.ones(2), "a"), Labelled(torch.ones(2), "b")
step(a), step(b)
warm = len(compiles)
overtaker = threading.Thread(target=lambda: (step(a), overtaken.set()), name="overtaker")
walker = threading.Thread(target=lambda: (overtaking.wait(60), step(a)), name="walker")
overtaker.start()
walker.start()
overtaker.join(), walker.join()
print(torch.__version__, "compiled again by", compiles[warm:])
sys.exit(len(compiles) > warm)
