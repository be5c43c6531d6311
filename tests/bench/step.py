"""The drafter's whole step, features given: mask, loss, clipping and optimiser included.

``python tests/bench/step.py`` measures, on one GPU at the sizes of a drafter for Qwen3-4B, what the
GPU multiplies and copies at most, the fast step beside that, where its time goes, the plain
approach, each piece off in turn, options of the attention kernels, chunks of the loss, a table over
context lengths and anchors, and attention's memory. Each figure is printed when it is known; those
of a part whose time is over are left out, and said to be.

Takes at most ten minutes on an H200, and a minute with --device cpu, of tiny sizes. --only replicas
runs the trainer itself on two GPUs.
"""

import json
import math
import os
import platform
import sys
import tempfile
import time
from importlib import metadata
from pathlib import Path

import usage

BUDGETS_S = {
    "ceiling": 15,
    "step": 90,
    "profile": 60,
    "plain": 45,
    "pieces": 90,
    "options": 120,
    "chunks": 45,
    "table": 120,
    "memory": 40,
    "replicas": 300,
}
"""Seconds after which a part begins no further figure."""


def main():
    parser = usage.parser(__doc__)
    parser.add_argument(
        "--shapes", choices=["qwen3-4b", "tiny"], help="sizes (qwen3-4b, and tiny on a CPU)"
    )
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda")
    parser.add_argument("--only", nargs="+", choices=list(BUDGETS_S), help="some of the parts")
    parser.add_argument(
        "--steps", type=usage.whole(3, 1000), default=20, help="steps of a figure (20)"
    )
    parser.add_argument(
        "--warm", action="store_true", help="use the compilers' caches, for a first step too"
    )
    parser.add_argument("--out", type=usage.writable, help="a JSON file of all figures")
    options = parser.parse_args()
    options.shapes = options.shapes or ("tiny" if options.device == "cpu" else "qwen3-4b")
    with tempfile.TemporaryDirectory() as cold:
        if not options.warm:
            os.environ["TORCHINDUCTOR_CACHE_DIR"] = str(Path(cold, "inductor"))
            os.environ["TRITON_CACHE_DIR"] = str(Path(cold, "triton"))
        return run(parser, options)


def run(parser, options):
    """Measure, print and write."""
    import torch

    if options.device == "cuda" and not torch.cuda.is_available():
        parser.error("--device cuda: no GPU is visible")
    torch.manual_seed(0)
    if options.device == "cpu":
        torch.set_num_threads(1)  # small tensors take longer on several
    from stepping.parts import PARTS
    from stepping.shapes import SHAPES
    from stepping.workload import Workload

    results = {"machine": machine(torch, options), "shapes": options.shapes, "parts": {}}
    print(json.dumps(results["machine"]), flush=True)
    work = Workload(SHAPES[options.shapes], options.device)
    # Two replicas leave no room beside a drafter that is measured already, so they are asked for.
    for name in options.only or [name for name in BUDGETS_S if name != "replicas"]:
        results["parts"][name] = measure(name, PARTS[name](work, options))
        if options.out is not None:
            options.out.write_text(json.dumps(results, indent=1))
    return 0


def measure(name, figures):
    """Print a part's figures as they come, until its time is over."""
    print(f"\n== {name}", flush=True)
    found = {}
    began = time.monotonic()
    for label, values in figures:
        found[label] = values
        print(f"{label:40} {'  '.join(f'{k} {shown(v)}' for k, v in values.items())}", flush=True)
        if time.monotonic() - began > BUDGETS_S[name]:
            print(f"(after {BUDGETS_S[name]} s nothing more of {name} is begun)", flush=True)
            break
    return found


def shown(value):
    """A figure as it stands in a table."""
    if isinstance(value, dict) and set(value) == {"median", "min", "max"}:
        return f"{value['median']:.1f} ({value['min']:.1f}-{value['max']:.1f})"
    if isinstance(value, dict):
        return "".join(f"\n    {ms:8.3f}  {name[:110]}" for name, ms in value.items())
    if isinstance(value, float) and math.isnan(value):
        return "not measured"
    return f"{value:.2f}" if isinstance(value, float) else str(value)


def machine(torch, options):
    """What the figures are of."""
    name = torch.cuda.get_device_name() if options.device == "cuda" else f"{os.cpu_count()} cores"
    versions = {"torch": torch.__version__, "python": platform.python_version()}
    if options.device == "cuda":
        versions["triton"] = metadata.version("triton")
    cores = len(os.sched_getaffinity(0))
    return {"device": name, **versions, "cores": cores, "warm": options.warm}


if __name__ == "__main__":
    sys.exit(main())
