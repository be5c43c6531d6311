"""The trainer itself, with its threads and targets, at the sizes of a bench."""

import itertools
import time
from dataclasses import replace

import torch
from stepping.clock import spread
from stepping.compile_counts import compiles

from dflash_min.trainer import Trainer


def train(work, drafters, *, steps, exchange=False):
    """Tokens a second of so many drafters, and what was compiled in their threads."""
    torch._dynamo.reset()
    names = [f"{work.device.type}:{i}" if work.device.type == "cuda" else "cpu" for i in range(2)]
    length = work.shape.lengths[0]
    resolved = replace(
        work.resolved,
        # The features come from the first layers alone; the rest of a target is not run.
        model=replace(work.resolved.model, target_layers=work.shape.layers + 3),
        layout=replace(
            work.resolved.layout,
            targets=tuple(names[:drafters]),
            drafters=tuple(names[:drafters]),
        ),
        seq_lens=(length,),
        warmup_lens=(length,),
        steps=steps,
        exchange="during" if exchange else "after",
    )
    moments = []
    with compiles() as counts:
        Trainer(resolved).run(lambda report: moments.append((time.perf_counter(), report)))
    # The first steps find empty queues and cold allocators.
    begin = len(moments) // 3
    tokens = sum(report.tokens for _, report in moments[begin + 1 :])
    seconds = moments[-1][0] - moments[begin][0]
    gaps = [1e3 * (end - start) for (start, _), (end, _) in itertools.pairwise(moments[begin:])]
    return {
        "tokens_per_s": tokens / seconds,
        "step_ms": spread(gaps),
        "compiles_after_warmup": sum(
            count for thread, count in counts.items() if thread.startswith(("drafter", "target"))
        ),
        "compiles": sum(counts.values()),
    }


def road(work):
    """How fast the gradients of one replica go to another GPU, alone and both ways at once."""
    size = sum(p.numel() * p.element_size() for p in work.drafter.parameters())
    here, there = (
        [torch.empty(size, dtype=torch.uint8, device=f"cuda:{i}") for _ in range(2)]
        for i in range(2)
    )
    streams = [torch.cuda.Stream(f"cuda:{i}") for i in range(2)]

    def copy(target, source):
        back = source.device.index
        with torch.cuda.stream(streams[1 - back]), torch.cuda.stream(streams[back]):
            target.copy_(source, non_blocking=True)

    def seconds(both):
        for stream in streams:
            stream.synchronize()
        began = time.perf_counter()
        copy(there[0], here[0])
        if both:
            copy(here[1], there[1])
        for stream in streams:
            stream.synchronize()
        return time.perf_counter() - began

    found = {"gradients_gb": size / 1e9, "direct": torch.cuda.can_device_access_peer(0, 1)}
    for name, both in (("one_way", False), ("both_ways", True)):
        found[f"{name}_gb_per_s"] = size / min(seconds(both) for _ in range(5)) / 1e9
    return found
