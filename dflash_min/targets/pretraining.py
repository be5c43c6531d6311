"""The training loop of the built-in decoder: next token, AdamW, cosine, held-out bits per byte."""

from __future__ import annotations

import math
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import torch
import torch.nn.functional as F

from dflash_min.errors import NotFiniteError
from dflash_min.lr import rise_and_fall
from dflash_min.targets.builtin import Target

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor

    from dflash_min.config import ModelConfig
    from dflash_min.data import Text

_BYTES: Final = 256
"""Ids below are bytes; the others mark ends and roles, and are no text."""
_LEAST: Final = 0.02
"""Share of the peak learning rate that the rise begins with."""


@dataclass(frozen=True)
class Recipe:
    """How long and how to train. One of `steps` and `seconds` is set."""

    steps: int | None
    seconds: float | None
    seq_len: int
    batch_size: int
    lr: float
    lr_warmup: float
    weight_decay: float
    eval_batches: int
    """Batches of held-out text that an evaluation takes."""
    evaluations: int
    """Over the run, evenly spaced; the last one is after the last step."""
    threads: int
    """Shares that a batch is dealt into, each worked on by a thread of its own."""
    seed: int


@dataclass(frozen=True)
class Progress:
    """Where the training is, after a step."""

    step: int
    share: float
    """Of the steps or of the time, 0 to 1."""
    loss: float
    """Mean cross-entropy of the step's tokens, in nats."""
    tokens: int
    """So far."""
    seconds: float
    """So far, evaluations included."""
    bits_per_byte: float | None
    """On held-out text, where this step was followed by an evaluation."""


class Pretraining:
    """A decoder and its optimiser.

    On a CPU the threads share the weights, and each takes its share of a batch with single-threaded
    operations: at these sizes that keeps cores busier than threads inside an operation, and does
    not stall where cores are shared with other programs. The gradients are added in the order of
    the shares, so that results depend on the seed and the number of threads, not on timing.
    """

    def __init__(self, config: ModelConfig, text: Text, recipe: Recipe, device: str) -> None:
        """Build the decoder with random weights of the recipe's seed."""
        self.target = Target(config, seed=recipe.seed).to(device)
        self._text = text
        self._recipe = recipe
        self._device = torch.device(device)
        self._parameters = list(self.target.parameters())
        matrices = [p for layer in self.target.layers for p in layer.parameters() if p.ndim > 1]
        decayed = {id(p) for p in matrices}
        others = [p for p in self._parameters if id(p) not in decayed]
        self._adamw = torch.optim.AdamW(
            [
                {"params": matrices, "weight_decay": recipe.weight_decay},
                {"params": others, "weight_decay": 0.0},
            ],
            lr=recipe.lr,
            betas=(0.9, 0.95),
        )

    def run(self, report: Callable[[Progress], None], stop: Callable[[], bool]) -> None:
        """Train to the end, or until `stop`, asked before each step, says so.

        Afterwards the decoder is frozen and in eval mode again.

        Raises:
            NotFiniteError: if a gradient or an evaluation is not finite: the training has diverged.
        """
        recipe, began = self._recipe, time.monotonic()
        step = tokens = evaluated = 0
        done = 0.0
        self.target.requires_grad_(requires_grad=True).train()
        try:
            with self._workers() as workers:
                while done < 1.0 and not stop():
                    loss = self._step(workers, step, done)
                    step += 1
                    tokens += recipe.batch_size * recipe.seq_len
                    done = self._share(step, time.monotonic() - began)
                    bits = None
                    if done >= (evaluated + 1) / recipe.evaluations:
                        evaluated = int(done * recipe.evaluations)
                        bits = self._bits_per_byte(workers)
                        if not math.isfinite(bits):
                            raise NotFiniteError(f"after step {step}: {bits} bits per byte")
                    seconds = time.monotonic() - began
                    report(Progress(step, done, loss, tokens, seconds, bits))
        finally:
            self.target.requires_grad_(requires_grad=False).eval()

    def bits_per_byte(self) -> float:
        """Return the mean over held-out windows of bits for each byte, by the bytes before it.

        A window begins without context. Marks between documents cost bits and are no bytes.
        """
        with self._workers() as workers:
            return self._bits_per_byte(workers)

    def _workers(self) -> ThreadPoolExecutor:
        if self._device.type == "cuda":
            return ThreadPoolExecutor(1)
        return ThreadPoolExecutor(
            self._recipe.threads, initializer=torch.set_num_threads, initargs=(1,)
        )

    def _bits_per_byte(self, workers: ThreadPoolExecutor) -> float:
        recipe = self._recipe

        def nats_and_bytes(number: int) -> tuple[float, int]:
            ids_BS, _ = self._text.held_out_batch(number, recipe.seq_len, recipe.batch_size)
            with torch.no_grad():
                return float(self._loss_sum(ids_BS)), int((ids_BS[:, 1:] < _BYTES).sum())

        sums = list(workers.map(nats_and_bytes, range(recipe.eval_batches)))
        return sum(nats for nats, _ in sums) / math.log(2) / sum(count for _, count in sums)

    def _share(self, steps: int, seconds: float) -> float:
        recipe = self._recipe
        if recipe.steps is not None:
            return steps / recipe.steps
        return min(1.0, seconds / (recipe.seconds or math.inf))

    def _step(self, workers: ThreadPoolExecutor, step: int, done: float) -> float:
        recipe = self._recipe
        ids_BS, _ = self._text.batch(step, recipe.seq_len, recipe.batch_size)
        predicted = ids_BS.shape[0] * (ids_BS.shape[1] - 1)
        shares = ids_BS.chunk(1 if self._device.type == "cuda" else recipe.threads)
        results = list(workers.map(self._gradients, shares))
        for p, *grads in zip(self._parameters, *(grads for _, grads in results), strict=True):
            p.grad = sum(grads[1:], start=grads[0]).div_(predicted)
        norm = torch.nn.utils.clip_grad_norm_(self._parameters, 1.0)
        if not math.isfinite(norm):
            raise NotFiniteError(f"step {step + 1}: the norm of the gradients is {float(norm)}")
        rise = recipe.lr_warmup
        for group in self._adamw.param_groups:
            # The first update is made when nothing is done yet, and is not to be lost.
            group["lr"] = recipe.lr * rise_and_fall(max(done, _LEAST * rise), rise)
        self._adamw.step()
        return sum(loss for loss, _ in results) / predicted

    def _gradients(self, ids_BS: Tensor) -> tuple[float, tuple[Tensor, ...]]:
        """Return the sum of a share's losses and its gradients, leaving `grad` alone."""
        loss = self._loss_sum(ids_BS)
        return float(loss.detach()), torch.autograd.grad(loss, self._parameters)

    def _loss_sum(self, ids_BS: Tensor) -> Tensor:
        """Return the summed cross-entropy of every token but the first of a window, in float32."""
        ids_BS = ids_BS.to(self._device)
        with torch.autocast("cuda", torch.bfloat16, enabled=self._device.type == "cuda"):
            logits_BSV = self.target.lm_head(self.target(ids_BS[:, :-1]))
        return F.cross_entropy(
            logits_BSV.float().flatten(0, 1), ids_BS[:, 1:].flatten(), reduction="sum"
        )
