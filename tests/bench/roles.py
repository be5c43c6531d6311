"""Who waits for whom: the trainer with one thread for each GPU, targets and drafters.

``python tests/bench/roles.py`` trains with one target and one drafter, then with five and three, at
the sizes of a drafter for Qwen3-4B, and prints for each layout tokens a second, milliseconds a
step, what was compiled after the warm-up, and for each thread the share of its time that it waited:
a target for room in a queue, a drafter for a batch and for the other drafters. These are waits of
the host, which is ahead of its GPU: a batch is in a queue as soon as its kernels are launched. So
the last column is the share of time in which no kernel ran on the thread's GPU, of any process, as
NVML has it: over a sixth of a second to a second each time it is asked, which is ten times a second
(needs nvidia-ml-py; not measured on a CPU).

The first steps, in which queues fill, are left out, and training is stopped before the targets have
nothing left to make. A target has random weights and three layers more than the drafter;
--target-layers 36 gives it those of Qwen3-4B.

Takes a few minutes a layout on GPUs, nearly all of them to make random weights, and half a minute
in all with --device cpu, of tiny sizes. Ctrl-C ends it and keeps the layouts that were measured;
--json is written after each.
"""

import json
import statistics
import sys
import threading
import time
from collections import defaultdict
from contextlib import contextmanager
from dataclasses import dataclass, field, replace

import usage
from figures import machine

from harness import interrupts

LAYOUTS = ("1+1", "5+3")
SETTLE = 3
"""Steps that are left out even if queues are short."""
SAMPLE_S = 0.1
SIZES = {"cuda": "qwen3-4b", "cpu": "tiny"}
MORE_LAYERS = 3
"""Layers of a target beyond the drafter's; with fewer the drafter could not take its features."""


class Waits:
    """An observer of the trainer that keeps every wait of every thread."""

    def __init__(self):
        self._spans = defaultdict(list)

    @contextmanager
    def phase(self, name):
        yield

    def step(self, step, tokens, seconds):
        pass

    @contextmanager
    def waiting(self, what):
        span = [what, time.perf_counter(), float("inf")]
        self._spans[threading.current_thread().name].append(span)
        try:
            yield
        finally:
            span[2] = time.perf_counter()

    def shares(self, begin, end):
        """What part of the time between two moments each thread waited for what."""
        found = {}
        for thread, spans in sorted(self._spans.items()):
            shares = found.setdefault(thread, defaultdict(float))
            for what, since, until in spans:
                shares[what] += max(0.0, min(until, end) - max(since, begin)) / (end - begin)
        return {thread: dict(shares) for thread, shares in found.items()}


class Idle:
    """Samples how busy GPUs are, on a thread of its own, from `start` to the first `stop`."""

    def __init__(self, devices):
        self._devices = [name for name in devices if name.startswith("cuda")]
        self._busy = {name: [] for name in self._devices}
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._sample, name="idle")
        self.why = "" if self._devices else "on a CPU"
        """Why nothing is measured, if so."""

    def start(self):
        self._thread.start()

    def stop(self):
        """End and return each GPU's idle share; none where it could not be measured."""
        self._ended.set()
        if self._thread.ident is not None:
            self._thread.join()
        return {name: 1 - statistics.fmean(busy) / 100 for name, busy in self._busy.items() if busy}

    def _sample(self):
        import torch

        # NVML's first answer is of the time before.
        while self._devices and not self._ended.wait(SAMPLE_S):
            try:
                for name in self._devices:
                    self._busy[name].append(torch.cuda.utilization(name))
            except (ModuleNotFoundError, RuntimeError) as error:
                self.why = str(error).splitlines()[0]
                return


@dataclass
class Window:
    """The steps that are measured: begins and ends at reports of the trainer."""

    first: int
    count: int
    idle: Idle
    stop: object
    tokens: int = 0
    shares: dict = field(default_factory=dict)
    begin: float = 0.0
    end: float = 0.0

    def __call__(self, report):
        if report.step < self.first or self.end:
            return
        if report.step == self.first:
            self.begin = time.perf_counter()
            self.idle.start()
            return
        self.tokens += report.tokens
        if report.step == self.first + self.count:
            self.end = time.perf_counter()
            self.shares = self.idle.stop()
            self.stop()


def ahead(resolved):
    """Steps that targets can be ahead of the drafters: full queues, and a batch in each hand."""
    targets, drafters = len(resolved.layout.targets), len(resolved.layout.drafters)
    batches = targets * (drafters * resolved.queue_depth + 1)
    return -(-batches // (drafters * resolved.accumulate))


def measure(resolved, steps):
    """Train, and return a layout's figures."""
    import torch
    from stepping.compile_counts import compiles

    from dflash_min import observe
    from dflash_min.trainer import Trainer

    torch._dynamo.reset()
    waits, first = Waits(), ahead(resolved) + SETTLE
    devices = dict(
        [
            *((f"target-{i}", name) for i, name in enumerate(resolved.layout.targets)),
            *((f"drafter-{i}", name) for i, name in enumerate(resolved.layout.drafters)),
        ]
    )
    trainer = Trainer(replace(resolved, steps=first + steps + ahead(resolved) + SETTLE))
    window = Window(first, steps, Idle(dict.fromkeys(devices.values())), trainer.stop)
    observe.set_observer(waits)
    try:
        with compiles() as counts:
            trainer.run(window)
    finally:
        observe.set_observer(None)
        window.idle.stop()
    seconds = window.end - window.begin
    shares = waits.shares(window.begin, window.end)
    return {
        "tokens_per_s": window.tokens / seconds,
        "step_ms": 1e3 * seconds / steps,
        "compiles_after_warmup": sum(counts[thread] for thread in devices),
        "compiles": sum(counts.values()),
        "threads": {
            thread: {"device": device, "waits": shares[thread]}
            for thread, device in devices.items()
        },
        "idle": window.shares,
        "idle_not_measured": window.idle.why,
    }


def lines(figures):
    """What is printed of a layout."""
    yield (
        f"{figures['tokens_per_s']:,.0f} tokens/s, {figures['step_ms']:.1f} ms a step, "
        f"{figures['compiles_after_warmup']} compiles after the warm-up"
    )
    yield f"{'thread':12} {'device':8} {'room':>6} {'batch':>6} {'drafters':>9} {'GPU idle':>9}"
    for thread, of in figures["threads"].items():
        cells = [of["waits"].get(what) for what in ("room", "batch", "drafters")]
        cells.append(figures["idle"].get(of["device"]))
        room, batch, drafters, idle = ("-" if c is None else f"{c:.1%}" for c in cells)
        yield f"{thread:12} {of['device']:8} {room:>6} {batch:>6} {drafters:>9} {idle:>9}"
    if figures["idle_not_measured"]:
        yield f"GPU idle: not measured, {figures['idle_not_measured']}"


def settings(options, layout, gpus):
    """The run of which a layout is measured: the fast preset, at one length."""
    import torch
    from stepping.shapes import SHAPES
    from stepping.workload import settings as of_shape

    from dflash_min.layout import deal

    shape = SHAPES[SIZES[options.device]]
    resolved = of_shape(shape, torch.device(options.device))
    layers = options.target_layers or shape.layers + MORE_LAYERS
    length = options.length or shape.lengths[0]
    return replace(
        resolved,
        model=replace(resolved.model, target_layers=layers),
        layout=deal(options.device, gpus, threads=None, counts=layout, targets=None, drafters=None),
        seq_lens=(length,),
        warmup_lens=(length,),
        exchange="during" if options.exchange else "after",
    )


def arguments():
    """The command line's parser."""
    parser = usage.parser(__doc__)
    parser.add_argument(
        *("--layouts", "--layout"),
        nargs="+",
        type=usage.layout,
        default=LAYOUTS,
        metavar="T+D",
        help=f"target and drafter threads ({' '.join(LAYOUTS)})",
    )
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda")
    parser.add_argument(
        "--steps", type=usage.whole(3, 100_000), default=50, help="steps that are measured (50)"
    )
    parser.add_argument(
        "--length", type=usage.whole(16, 1_000_000), help="tokens of a sequence (3072, CPU 256)"
    )
    parser.add_argument(
        "--target-layers", type=usage.whole(1, 1000), help="layers of the targets (from 8, CPU 5)"
    )
    parser.add_argument(
        "--exchange", action="store_true", help="send gradients while the backward still runs"
    )
    parser.add_argument("--json", type=usage.writable, help="write the figures to this file too")
    return parser


def check(parser, options):
    """End the command where the device does not have what is asked for; return the GPUs it has."""
    import torch
    from stepping.shapes import SHAPES

    least = SHAPES[SIZES[options.device]].layers + MORE_LAYERS
    if options.target_layers is not None and options.target_layers < least:
        parser.error(
            f"argument --target-layers: a whole number from {least} to 1000 is needed, "
            f"not {options.target_layers}"
        )
    gpus = torch.cuda.device_count() if options.device == "cuda" else 0
    for layout in options.layouts if options.device == "cuda" else ():
        # Roles that share a GPU are another thing than what is asked for.
        if (needed := sum(map(int, layout.split("+")))) > gpus:
            parser.error(f"--layouts {layout}: {needed} GPUs are needed, {gpus} are visible")
    return gpus


def measure_all(options, gpus):
    """Measure each layout, print it, and compare each with the first."""
    import torch

    name = torch.cuda.get_device_name() if gpus else "CPU"
    print(machine(torch.__version__, name), flush=True)
    results = {
        "torch": torch.__version__,
        "device": name,
        "steps": options.steps,
        "exchange": options.exchange,
        "layouts": {},
    }
    for layout in options.layouts:
        print(f"\n== {layout}", flush=True)
        figures = measure(settings(options, layout, gpus), options.steps)
        results["layouts"][layout] = figures
        print("\n".join(lines(figures)), flush=True)
        if options.json:
            options.json.write_text(json.dumps(results, indent=1) + "\n")
    first, *others = results["layouts"].items()
    for layout, figures in others:
        ratio = figures["tokens_per_s"] / first[1]["tokens_per_s"]
        print(f"\n{layout} to {first[0]}: {ratio:.2f} times the tokens/s")


def main():
    """Measure each layout and print it; returns the exit code."""
    interrupts.be_usual()
    parser = arguments()
    options = parser.parse_args()
    try:
        measure_all(options, check(parser, options))
    except KeyboardInterrupt:
        print("interrupted: the figures are of the layouts that had ended", file=sys.stderr)
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
