"""The recipe on a CPU: a target, a drafter for it, and tau on held-out text.

The target is pretrained on the default data, goes on from windows of it, once by its likeliest
tokens and once by chance, and the drafter is trained on what it said.

``python tests/bench/recipe.py`` takes under a quarter of an hour on two free cores, and needs no
download. Everything is done by the commands that a user has; their output streams to stderr, and
the figures to stdout. ``--out`` keeps target and run for ``dflash_min.generate``; ``--measure``
measures again what an earlier call left there.

tau is the mean number of tokens that a run of the target commits, its own one included. Beside it
stand what tells whether it means something: the target's bits per byte on held-out text, the share
of distinct 4-grams in what it generates (a target stuck in a loop makes any drafter look good), and
tau of guesses made without the trained drafter.
"""

import json
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import usage
from figures import interval, machine

PRETRAIN = ("--steps", "2000")
REGENERATE = ("--windows", "3072", "--prompt-tokens", "128", "--new-tokens", "128")
TEMPERATURES = ("0", "1")
TRAIN = (
    *("--steps", "3000", "--layout", "1+2", "--batch-size", "2", "--anchors", "24"),
    *("--seq-lens", "192", "--warmup-lens", "192", "--loss-chunk", "2048", "--lr", "3e-3"),
    *("--no-activation-checkpointing", "--eval-batches", "8", "--eval-every", "250"),
)
PROMPT = 128
TOKENS = 96
PROMPTS = 24
LEAST_DISTINCT = 0.6
"""A window of held-out text with fewer distinct 4-grams is left out: half of that text are rows of
locale.py's tables, 30 spaces each, where repeating the last byte would be a good drafter."""
NGRAM = 6
"""Tokens of the longest context that the n-gram model counts."""


def command(module, *words):
    """Run one of the trainer's commands; return its wall and CPU seconds."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    began = time.monotonic()
    subprocess.run([sys.executable, "-m", module, *words], check=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return round(time.monotonic() - began, 1), round(cpu, 1)


@dataclass
class Row:
    """One way of guessing, over all prompts."""

    name: str
    taus: list
    accepted: list
    seconds: float
    tokens: int
    equal: int
    """Prompts with the plain text, token for token."""

    @property
    def tau(self):
        """Over all cycles of all prompts."""
        return sum(self.accepted) / len(self.accepted) + 1

    def line(self):
        low, high = interval(self.taus, statistics.mean)
        return (
            f"  {self.name:28} tau {self.tau:5.2f}  by prompt {low:.2f}..{high:.2f} "
            f"(min {min(self.taus):.2f}, max {max(self.taus):.2f})  "
            f"{self.tokens / self.seconds:6.0f} tokens/s  equal {self.equal}/{len(self.taus)}"
        )


def decoded(name, target, proposer, prompts, sampler, plain=None):
    """Decode all prompts with fresh proposers."""
    from dflash_min.decoding.speculate import Decoding

    texts, row = [], Row(name, [], [], 0.0, 0, 0)
    for index, prompt in enumerate(prompts):
        decoding = Decoding(target, proposer(), prompt, TOKENS, sampler=sampler)
        began = time.perf_counter()
        texts.append(decoding.run())
        row.seconds += time.perf_counter() - began
        row.tokens += len(decoding.tokens)
        row.taus.append(decoding.tau)
        row.accepted += decoding.accepted
        row.equal += plain is None or texts[-1] == plain[index]
    return texts, row


def distinct(texts, order=4):
    """The share of n-grams in all texts that are no repetition of an earlier one."""
    grams = [tuple(text[i : i + order]) for text in texts for i in range(len(text) - order + 1)]
    return len(set(grams)) / len(grams)


def varied_windows(text, count):
    """Draw windows of held-out text that do not repeat themselves, and how many it took."""
    windows, drawn = [], 0
    while len(windows) < count:
        window = text.held_out_batch(drawn, PROMPT + TOKENS, 1)[0][0].tolist()
        drawn += 1
        if distinct([window]) >= LEAST_DISTINCT:
            windows.append(window)
    return windows, drawn


def lead(target, prompt, text, at):
    """How far the target's choice at a position of a text leads over the next, in logits."""
    import torch

    ids = torch.tensor([[*prompt, *text[:at]]])
    best = target.extend(ids, target.cache(1))[0][0, -1].topk(2).values
    return float(best[0] - best[1])


def measure(out, prompts_count):
    """Print all figures of a target and a run; return them."""
    import torch

    from dflash_min.data import Text
    from dflash_min.decoding.ngram import NgramModel, PromptLookup
    from dflash_min.decoding.speculate import BlockProposer, Nothing, Sampler
    from dflash_min.model import Drafter
    from dflash_min.saving import checkpoint
    from dflash_min.targets import choice as targets

    torch.set_num_threads(1)  # one token at a time is too little to share
    found = checkpoint.read(out / "run")
    config = found.config
    target = targets.open_target(found.target, config, seed=found.seed, device="cpu")
    trained, untrained = Drafter(config, seed=found.seed), Drafter(config, seed=found.seed)
    trained.load_state_dict(found.weights)
    text = Text.load((), found.seed, PROMPT + TOKENS)
    windows, drawn = varied_windows(text, prompts_count)
    prompts, real = [w[:PROMPT] for w in windows], [w[PROMPT:] for w in windows]
    grams = NgramModel(
        text._train._tokens, vocab=config.vocab, order=NGRAM, count=config.block_size - 1
    )
    ways = {
        "trained drafter": lambda: BlockProposer(trained, target),
        "untrained drafter": lambda: BlockProposer(untrained, target),
        f"n-grams of the text, to {NGRAM + 1}": lambda: grams,
        "prompt lookup": lambda: PromptLookup(longest=NGRAM, count=config.block_size - 1),
    }
    bits = json.loads((out / "target" / "config.json").read_text())["dflash_min"]
    figures = {"held_out_bits_per_byte": bits["held_out_bits_per_byte"], "curve": bits["curve"]}
    print(f"target: {bits['held_out_bits_per_byte']:.3f} bits per byte on held-out text")
    print(
        f"{len(prompts)} prompts of {PROMPT} bytes of held-out text, {drawn - len(prompts)} of "
        f"tables left out; {TOKENS} tokens each, B={config.block_size}; distinct 4-grams of the "
        f"real continuations: {distinct(real):.2f}"
    )
    for temperature in (0.0, 1.0):
        sampler = Sampler(temperature, seed=0)
        plain, row = decoded("plain", target, Nothing, prompts, sampler)
        different = distinct(plain)
        print(f"temperature {temperature:g}: distinct 4-grams {different:.2f}\n{row.line()}")
        rates = {"plain": row.tokens / row.seconds}
        entry = figures[f"temperature {temperature:g}"] = {"distinct_4_grams": different}
        for name, proposer in ways.items():
            texts, row = decoded(name, target, proposer, prompts, sampler, plain)
            print(row.line(), flush=True)
            rates[name] = row.tokens / row.seconds
            entry[name] = {"tau": row.tau, "equal": row.equal, "tokens_per_s": rates[name]}
            for prompt, mine, its in zip(prompts, texts, plain, strict=True):
                if mine != its and temperature == 0:
                    at = next(
                        i for i, pair in enumerate(zip(mine, its, strict=True)) if len({*pair}) > 1
                    )
                    print(f"    differs at token {at}: lead {lead(target, prompt, its, at):.1e}")
        entry["speed-up"] = rates["trained drafter"] / rates["plain"]
        print(f"  speed-up with the trained drafter: {entry['speed-up']:.2f}")
    return figures


def main():
    parser = usage.parser(__doc__)
    parser.add_argument("--out", type=Path, help="folder to keep target, run and figures.json in")
    parser.add_argument("--prompts", type=usage.whole(1, 10000), default=PROMPTS)
    parser.add_argument("--measure", action="store_true", help="train nothing: measure --out again")
    parser.add_argument("--quick", action="store_true", help="a few steps: to see that all works")
    options = parser.parse_args()
    if options.measure and not (options.out and (options.out / "run").is_dir()):
        parser.error("--measure needs the --out of an earlier call")
    if options.out and not options.measure and (options.out / "target").exists():
        parser.error(f"--out {options.out} holds a target already: name another, or --measure")
    with tempfile.TemporaryDirectory() as scratch:
        out = (options.out or Path(scratch)).absolute()
        times = {} if options.measure else train(out, options.quick)
        figures = measure(out, options.prompts) | {"seconds": times, "machine": about()}
        (out / "figures.json").write_text(json.dumps(figures, indent=2) + "\n")
    for name, (wall, cpu) in times.items():
        print(f"{name}: {wall:.0f} s wall, {cpu:.0f} s CPU")
    print(f"together: {sum(wall for wall, _ in times.values()):.0f} s wall")
    print(about())
    return 0


def train(out, quick):
    """Make target, text and drafter by the commands; return wall and CPU seconds of each."""
    target = str(out / "target")
    made = ("--device", "cpu", "--target", target)
    # What a target of a few steps says by chance is no text.
    temperatures = TEMPERATURES[:1] if quick else TEMPERATURES
    said = {t: str(out / f"said-{t}.jsonl") for t in temperatures}
    times = {
        "pretrain": command(
            "dflash_min.pretrain",
            *(*PRETRAIN, "--device", "cpu", "--out", target),
            *(("--steps", "20") if quick else ()),
        )
    }
    for temperature, path in said.items():
        times[f"regenerate at {temperature}"] = command(
            "dflash_min.regenerate",
            *(*REGENERATE, "--temperature", temperature, "--seed", temperature),
            *(*made, "--out", path),
            *(("--windows", "32") if quick else ()),
        )
    times["train"] = command(
        "dflash_min.train",
        *(*TRAIN, *made, "--data", *said.values(), "--out", str(out / "run")),
        *(("--steps", "4") if quick else ()),
    )
    return times


def about():
    """The machine, in one line."""
    import importlib.metadata

    return machine(importlib.metadata.version("torch"), "cpu")


if __name__ == "__main__":
    sys.exit(main())
