"""A whole run: build the replicas, warm up, train, and evaluate if asked to."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

# Both are imported lazily by torch, and two threads that do so at once can fail: one of them finds
# a module half made, or dies with _DeadlockError. So they are complete before any thread starts.
import torch._dynamo
import torch._inductor

from dflash_min import observe
from dflash_min.attention import CompiledAttention
from dflash_min.config import UsageError
from dflash_min.data import Text
from dflash_min.model import Drafter
from dflash_min.pipeline import Pipeline
from dflash_min.replica import Replica, held_out_batch
from dflash_min.target import Target
from dflash_min.warmup import warm_up

if TYPE_CHECKING:
    from collections.abc import Callable

    from dflash_min.config import Resolved
    from dflash_min.pipeline import StepReport


@dataclass(frozen=True)
class Summary:
    """What a run came to."""

    steps: int
    tokens: int
    seconds: float
    """Training only, without the warm-up."""
    first_loss: float
    loss: float
    """Of the last step."""
    accept_len: float
    """Of the last step."""
    held_out_loss: float | None
    held_out_accept_len: float | None


class Trainer:
    """Targets, drafter replicas and text of one run."""

    def __init__(self, resolved: Resolved) -> None:
        """Read the text and build all models; no thread is started and nothing compiled.

        Raises:
            UsageError: if torch does not know the backend, or the text cannot be used.
        """
        backends = torch.compiler.list_backends(exclude_tags=())
        if resolved.backend not in backends:
            raise UsageError(f"--backend {resolved.backend} is none of {', '.join(backends)}")
        self.resolved = resolved
        self.text = Text.load(resolved.data, resolved.seed, max(resolved.seq_lens))
        if resolved.eval_batches and not self.text.holds_out:
            raise UsageError("--eval-batches: there is too little text to hold some out")
        model, layout = resolved.model, resolved.layout
        on_device = {
            name: Target(model, seed=resolved.seed).to(name) for name in set(layout.targets)
        }
        self.targets = [on_device[name] for name in layout.targets]
        attention = CompiledAttention(
            layout.drafters,
            dynamic=resolved.compile_dynamic,
            backend=resolved.backend,
            mode=None if resolved.compile_mode == "default" else resolved.compile_mode,
        )
        self.replicas = [
            Replica(
                Drafter(
                    model,
                    seed=resolved.seed,
                    checkpoint_layers=resolved.activation_checkpointing,
                ).to(name),
                self.targets[rank % len(self.targets)],
                attention,
                resolved,
            )
            for rank, name in enumerate(layout.drafters)
        ]

    def run(self, report: Callable[[StepReport], None]) -> Summary:
        """Warm up and train, and call `report` after each step.

        Raises:
            ExceptionGroup: holding every failed thread's exception.
        """
        reports: list[StepReport] = []

        def keep(step: StepReport) -> None:
            reports.append(step)
            report(step)

        warm_up(self.resolved, self.targets[0], self.replicas)
        pipeline = Pipeline(self.resolved, self.text, self.targets, self.replicas, keep)
        began = time.perf_counter()
        with observe.phase("train"):
            pipeline.run()
        seconds = time.perf_counter() - began
        held_out = self.evaluate() if self.resolved.eval_batches else (None, None)
        return Summary(
            steps=len(reports),
            tokens=sum(step.tokens for step in reports),
            seconds=seconds,
            first_loss=reports[0].loss,
            loss=reports[-1].loss,
            accept_len=reports[-1].accept_len,
            held_out_loss=held_out[0],
            held_out_accept_len=held_out[1],
        )

    def evaluate(self) -> tuple[float, float]:
        """Return loss and acceptance length of the first replica on held-out text.

        Attention is dense here: calling the compiled one without gradients would be a recompile.
        """
        replica, target = self.replicas[0], self.targets[0]
        with observe.phase("evaluate"), torch.no_grad():
            sums = [
                replica.forward_dense(
                    held_out_batch(self.resolved, self.text, target, number, replica.device)
                ).detached()
                for number in range(self.resolved.eval_batches)
            ]
        total = sum(sums[1:], start=sums[0])
        return float(total.loss), float(total.accept_len)
