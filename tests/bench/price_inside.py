"""The program of ``price.py``, run under the watch: prints one JSON object a case.

Each arm is held against the bare program in blocks of four, bare, arm, arm, bare, so that a machine
that grows slower or faster adds nothing; ``off`` against ``off`` shows what is noise. A pass that
is not measured comes first each time that the watch was switched: Python's own caches in torch's
functions are for what was called there last, and a program has the watch on from its beginning.
"""

import argparse
import contextlib
import fcntl
import functools
import gc
import json
import logging
import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from unittest import mock

import usage

usage.under_the_watch(__doc__, "python tests/bench/price.py")

import torch
from pace import Pace
from room import roomy
from switch import Switch
from torch._inductor import config as inductor_config
from torch._inductor.utils import fresh_cache
from torch._logging import _internal as torch_logs

import dflash_min.trainer
from dflash_min import observe
from dflash_min.attention import build_block_mask, flex_attention_operator
from dflash_min.batches import training_batch
from dflash_min.config import TrainConfig
from dflash_min.optim import Optimizer
from dflash_min.resolve import resolve
from dflash_min.warmup import warm_up

Arm = Callable[[], contextlib.AbstractContextManager[object]]
WITH_DETAIL = ["off", "watched", "TORCH_LOGS=recompiles", "TORCH_TRACE"]
"""The arms of a case that compiles nothing, where detail makes no difference."""
FRAMES = 500
NULL = "/dev/null"


@dataclass(frozen=True)
class Asked:
    """What is asked of a case.

    Attributes:
        device: "cpu" or "cuda".
        arms: names of those that are wanted; all of the case's if there are none.
        blocks: how many of each arm.
        turn: a file that is locked while the wall is looked at, or none.
    """

    device: str
    arms: Sequence[str]
    blocks: int
    turn: Path | None


@dataclass(frozen=True)
class Clock:
    """What tells nanoseconds, and what of.

    Attributes:
        alone: other processes' work counts as well.
        pace: what evens out how fast the processor was.
    """

    name: str
    now: Callable[[], int]
    alone: bool = False
    pace: Pace | None = None

    def __call__(self, work):
        gc.collect()
        gc.disable()
        with self.pace or contextlib.nullcontext():
            start = self.now()
            roomy(work)
            spent = self.now() - start
        gc.enable()
        return self.pace.even(spent) if self.pace else spent


def wall_ns():
    """The wall, with the GPU's work waited for."""
    torch.cuda.synchronize()
    return time.perf_counter_ns()


def process_ns():
    """What all threads of this process have used."""
    torch.cuda.synchronize()
    return time.process_time_ns()


# Other work counts less in processor time. But a GPU's work takes none.
THREAD = Clock("processor time of the thread", time.thread_time_ns)
WALL = Clock("wall time", wall_ns, alone=True)
PROCESS = Clock("processor time of the process", process_ns)


def arms(switch: Switch) -> dict[str, Arm]:
    """What is compared with the bare program."""

    @contextlib.contextmanager
    def watched(*, detail: bool) -> Iterator[None]:
        switch.on(detail=detail)
        try:
            yield
        finally:
            switch.off()

    return {
        "off": contextlib.nullcontext,
        "watched": lambda: watched(detail=True),
        "watched, no compile detail": lambda: watched(detail=False),
        "TORCH_LOGS=recompiles": recompile_log,
        "TORCH_TRACE": trace_log,
    }


@contextlib.contextmanager
def recompile_log() -> Iterator[None]:
    """As with that variable, but into nothing, so that no terminal is measured."""
    stderr = sys.stderr
    with Path(NULL).open("w") as nothing:
        sys.stderr = nothing
        torch._logging.set_logs(recompiles=True)
        try:
            yield
        finally:
            torch._logging.set_logs()
            sys.stderr = stderr


@contextlib.contextmanager
def trace_log() -> Iterator[None]:
    """The handler that torch installs for that variable, writing to a folder as it does."""
    with tempfile.TemporaryDirectory() as folder:
        handler = torch_logs.LazyTraceHandler(folder)
        handler.setFormatter(torch_logs.TorchLogsFormatter(trace=True))
        log = logging.getLogger("torch.__trace")
        log.addHandler(handler)
        try:
            yield
        finally:
            log.removeHandler(handler)
            handler.close()


@contextlib.contextmanager
def turn(clock: Clock, asked: Asked) -> Iterator[None]:
    """Where processes begin side by side, each measures while the others wait for it."""
    if asked.turn is None or not clock.alone:
        yield
        return
    with asked.turn.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def blocks(clock, works, arms, names, asked, around=contextlib.nullcontext):
    """Nanoseconds of [bare, arm, arm, bare] for every arm, as often as asked, the arms in turn.

    ``works``: what a pass does, one of them in each block. ``around``: what each pass is made in.
    """

    def passes(name, work, times):
        with arms[name]():
            with around():
                work()
            measured = []
            for _ in range(times):
                with around():
                    measured.append(clock(work))
        return measured

    with turn(clock, asked):
        found = {name: [] for name in names}
        start = time.monotonic()
        for name in names:  # what each arm builds once
            passes(name, works[0], 0)
        # A collection before each measurement then looks at what was made since.
        gc.collect()
        gc.freeze()
        for number in range(asked.blocks):
            work = works[number % len(works)]
            # Passes right after the freeze take longer, and would all be the first arm's. And
            # what comes before is of another work.
            before = passes("off", work, 2)
            for name in names:
                middle, after = passes(name, work, 2), passes("off", work, 2)
                found[name].append([before[-1], *middle, after[0]])
                before = after
        gc.unfreeze()
        return {"blocks": found, "wall_s": time.monotonic() - start}


def said(case, unit, per, clock, found):
    """What a case prints: its figures, of what, and by which clock."""
    return {"case": case, "unit": unit, "per": per, "clock": clock.name, **found}


def guarded_frame(switch, asked):
    clock = WALL if asked.device == "cuda" else THREAD
    # It computes something: for a function that does not dynamo evaluates no guards. What it
    # computes is left out by the backend, so that a call is dynamo's part of it and little else.
    function = torch.compile(lambda x: x + 1, backend=lambda graph, inputs: lambda x: (x,))
    value = torch.zeros(1, device=asked.device)

    def calls():
        for _ in range(FRAMES):
            function(value)

    switch.on()
    for _ in range(4):  # past the calls that are looked at
        calls()
    switch.learn()
    switch.off()
    found = blocks(clock, [calls], arms(switch), asked.arms or WITH_DETAIL, asked)
    return said("guarded frame", "ns", FRAMES, clock, found)


def training_step(switch, asked):
    """One step of one drafter of ``dflash_min``: mask, forward, backward, optimiser.

    In each block of four the same step again, of another sequence length in the next one.
    """
    clock = WALL if asked.device == "cuda" else THREAD
    config = TrainConfig(threads=1, device=asked.device, steps=1000)
    resolved = resolve(config, torch.cuda.device_count())
    trainer = dflash_min.trainer.Trainer(resolved)
    replica, optimizer = trainer.replicas[0], None
    switch.on()
    warm_up(resolved, trainer.targets[0], trainer.replicas[:1])
    optimizer = Optimizer(replica.parameters, resolved)
    batches = [
        training_batch(resolved, trainer.text, trainer.targets[0], number, 0)
        for number in range(len(resolved.seq_lens))
    ]

    def step(number, batch):
        began = time.perf_counter()
        sums = replica.forward(batch)
        (sums.weighted_sum / sums.weight_sum).backward()
        optimizer.step(batch.step)
        observe.step(number, batch.tokens, time.perf_counter() - began)

    works = [functools.partial(step, number, batch) for number, batch in enumerate(batches)]
    for work in 4 * works:
        work()
    switch.learn()
    switch.off()
    found = blocks(clock, works, arms(switch), asked.arms or WITH_DETAIL, asked)
    return said("training step", "%", 1, clock, found)


def cold_compile(switch, asked):
    """Attention of the trainer's shape compiled without gradients, then again with them.

    On a GPU it ends where Triton would begin: that takes most of the seconds, other ones each time,
    and nothing of the watch is in it. So Triton finds what it made in the pass before; in this
    process, not in workers, whose time would not be counted.
    """
    device = asked.device
    clock = PROCESS if device == "cuda" else THREAD
    clock = Clock(f"{clock.name} at an even pace", clock.now, pace=Pace())
    block_size, anchors, length = 16, 16, 256
    queries = block_size * anchors
    places = (torch.arange(anchors) * (length - 1) // anchors).view(1, -1)
    kept = torch.ones_like(places, dtype=torch.bool)
    mask = build_block_mask(places, kept, length, block_size, device)
    query = torch.randn(1, 4, queries, 32, device=device, requires_grad=True)
    key, value = torch.randn(2, 1, 4, length + queries, 32, device=device).unbind(0)

    def once():
        function = torch.compile(
            fresh_attention(device),
            dynamic=True,
            backend="inductor" if device == "cuda" else "aot_eager",
        )
        with torch.no_grad():
            function(query, key, value, mask)
        function(query, key, value, mask).sum().backward()

    switch.off()
    every = arms(switch)
    with inductor_config.patch(compile_threads=1), tempfile.TemporaryDirectory() as kernels:
        found = blocks(
            clock, [once], every, asked.arms or list(every), asked, around=lambda: fresh(kernels)
        )
    return said("cold compile", "%", 1, clock, found)


@contextlib.contextmanager
def fresh(kernels: str) -> Iterator[None]:
    """Dynamo reset and caches of its own, but for Triton's."""
    torch._dynamo.reset()
    with fresh_cache(), mock.patch.dict(os.environ, TRITON_CACHE_DIR=kernels):
        yield
    torch._dynamo.reset()


def fresh_attention(device):
    """A function with a code object that dynamo has never seen."""
    text = "def attention(q, k, v, mask):\n    return attend(q, k, v, mask)\n"
    names = {"attend": flex_attention_operator if device == "cpu" else flex_on_gpu}
    exec(compile(text, __file__, "exec"), names)
    return names["attention"]


def flex_on_gpu(query, key, value, block_mask):
    return torch.nn.attention.flex_attention.flex_attention(
        query, key, value, block_mask=block_mask
    )


CASES = {"frame": guarded_frame, "step": training_step, "compile": cold_compile}


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--device", required=True)
    parser.add_argument("--arm", action="append", help="those of a case, if not given")
    parser.add_argument("--turn", type=Path, help="locked while the wall is looked at")
    parser.add_argument("cases", nargs="+", metavar="CASE=BLOCKS")
    options = parser.parse_args()
    if options.device == "cpu":
        torch.set_num_threads(1)  # so that the thread's own time is all the time there is
    switch = Switch()
    gpu = torch.cuda.get_device_name() if options.device == "cuda" else "CPU, one thread"
    replaced = [place[0] for place in switch.places]
    print(json.dumps({"torch": torch.__version__, "device": gpu, "replaced": replaced}))
    for word in options.cases:
        name, _, count = word.partition("=")
        asked = Asked(options.device, options.arm or (), int(count), options.turn)
        found = CASES[name](switch, asked)
        print(json.dumps({"name": name, **found}))


if __name__ == "__main__":
    main()
