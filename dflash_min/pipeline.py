"""The threads: targets make batches, drafters train on them, and all stop when one fails."""

from __future__ import annotations

import os
import threading
import time
from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, Generic, TypeVar

import torch
from torch._dynamo import config as dynamo_config

from dflash_min import observe
from dflash_min.errors import Stopped
from dflash_min.optim import Average, Optimizer
from dflash_min.replica import Batch, training_batch

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from dflash_min.config import Resolved
    from dflash_min.data import Text
    from dflash_min.replica import Replica
    from dflash_min.target import Target

_T = TypeVar("_T")


@dataclass(frozen=True)
class StepReport:
    """One optimiser step, over all drafters."""

    step: int
    loss: float
    accept_len: float
    """Mean number of tokens a block would have been accepted for, the free one included."""
    tokens: int
    seconds: float
    """Of the slowest drafter, waiting for targets included."""


class Channel(Generic[_T]):
    """A bounded queue from one thread to another, which a third can stop."""

    def __init__(self, depth: int) -> None:
        self._items: deque[_T] = deque()
        self._depth = depth
        self._changed = threading.Condition()
        self._stopped = False

    def put(self, item: _T) -> None:
        """Append an item, waiting for room.

        Raises:
            Stopped: after `stop`.
        """
        with self._changed:
            self._wait_for(lambda: len(self._items) < self._depth)
            self._items.append(item)
            self._changed.notify_all()

    def get(self) -> _T:
        """Take the oldest item, waiting for one.

        Raises:
            Stopped: after `stop`.
        """
        with self._changed:
            self._wait_for(lambda: bool(self._items))
            item = self._items.popleft()
            self._changed.notify_all()
            return item

    def stop(self) -> None:
        """End every wait, present and future, with `Stopped`."""
        with self._changed:
            self._stopped = True
            self._changed.notify_all()

    def _wait_for(self, ready: Callable[[], bool]) -> None:
        self._changed.wait_for(lambda: self._stopped or ready())
        if self._stopped:
            raise Stopped


def enter_thread(device: torch.device, resolved: Resolved) -> None:
    """Set what every thread that works for the trainer has to set for itself.

    The current CUDA device belongs to the thread, and a new one begins on device 0. So does the
    number of CPU threads that one operation may use, which dynamo guards on. From torch 2.12 on so
    do dynamo's settings; on CUDA, the thread on which autograd recomputes a checkpoint keeps their
    defaults.
    """
    if device.type == "cuda":
        torch.cuda.set_device(device)
    else:
        # The trainer's threads are its parallelism: more threads than cores only wait on another.
        layout = resolved.layout
        cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else 1
        torch.set_num_threads(max(1, cores // len(layout.targets + layout.drafters)))
    if resolved.nested_fx == "fallback":
        dynamo_config.error_on_nested_fx_trace = False


class Pipeline:
    """Target and drafter threads around one set of replicas. Runs once.

    Batches are numbered step * drafters + rank. Target i makes those whose number leaves i when
    divided by the number of targets, in order, and every drafter has a queue from each target: so
    which batch a drafter trains on never depends on who was faster. The queues are bounded and
    nothing can lock up: a target waits only for a drafter that still holds a batch.
    """

    def __init__(
        self,
        resolved: Resolved,
        text: Text,
        targets: Sequence[Target],
        replicas: Sequence[Replica],
        report: Callable[[StepReport], None],
    ) -> None:
        """Prepare the threads without starting them.

        Args:
            resolved: the run; its layout has as many targets and drafters as are given.
            text: where the windows come from.
            targets: one for each target thread.
            replicas: one for each drafter thread.
            report: called after each step on the thread drafter-0, while the others go on.
        """
        self._resolved = resolved
        self._text = text
        self._targets = targets
        self._replicas = replicas
        self._report = report
        self._average = Average(len(replicas))
        self._optimizers = [Optimizer(replica.parameters, resolved) for replica in replicas]
        self._channels: list[list[Channel[Batch]]] = [
            [Channel(resolved.queue_depth) for _ in targets] for _ in replicas
        ]
        self._errors: list[BaseException] = []
        self._errors_lock = threading.Lock()

    def run(self) -> None:
        """Train for all steps and return when every thread has ended.

        Raises:
            BaseExceptionGroup: holding what each failed thread raised, in order of time; an
                `ExceptionGroup` unless one of them is no `Exception`.
        """
        threads = [
            *(self._thread(f"target-{i}", self._produce, i) for i in range(len(self._targets))),
            *(self._thread(f"drafter-{i}", self._train, i) for i in range(len(self._replicas))),
        ]
        try:
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
        except BaseException:
            # Ctrl-C, or a thread that could not start.
            self._stop()
            for thread in threads:
                if thread.ident is not None:
                    thread.join()
            raise
        if self._errors:
            count = len(self._errors)
            raise BaseExceptionGroup(
                f"{count} thread{'s' if count > 1 else ''} failed", self._errors
            )

    def _thread(self, name: str, work: Callable[[int], None], index: int) -> threading.Thread:
        def body() -> None:
            try:
                work(index)
            except Stopped:
                return
            except BaseException as error:  # noqa: BLE001  # raised again by run
                self._fail(name, error)

        return threading.Thread(target=body, name=name)

    def _fail(self, name: str, error: BaseException) -> None:
        """Keep a thread's error for `run` and stop the other threads."""
        error.add_note(f"raised in thread {name}")
        with self._errors_lock:
            self._errors.append(error)
        self._stop()

    def _stop(self) -> None:
        self._average.abort()
        for row in self._channels:
            for channel in row:
                channel.stop()

    def _produce(self, index: int) -> None:
        resolved, target = self._resolved, self._targets[index]
        enter_thread(torch.device(resolved.layout.targets[index]), resolved)
        drafters = len(self._replicas)
        for number in range(index, resolved.steps * drafters, len(self._targets)):
            step, rank = divmod(number, drafters)
            batch = training_batch(resolved, self._text, target, step, rank)
            self._channels[rank][index].put(batch)

    def _train(self, rank: int) -> None:
        resolved, replica = self._resolved, self._replicas[rank]
        enter_thread(replica.device, resolved)
        for step in range(resolved.steps):
            began = time.perf_counter()
            number = step * len(self._replicas) + rank
            batch = self._channels[rank][number % len(self._targets)].get()
            totals = self._step(rank, batch)
            seconds = time.perf_counter() - began
            observe.step(step, batch.tokens, seconds)
            if rank == 0:
                weight, loss, accepted, drafted, tokens = totals
                self._report(
                    StepReport(
                        step,
                        loss=loss / (weight or 1.0),
                        accept_len=1 + accepted / (drafted or 1.0),
                        tokens=round(tokens),
                        seconds=seconds,
                    )
                )

    def _step(self, rank: int, batch: Batch) -> tuple[float, ...]:
        """Train one replica on its batch, in step with the others; return sums over all."""
        replica = self._replicas[rank]
        sums = replica.forward(batch)
        sums.weighted_sum.backward()  # type: ignore[no-untyped-call]
        totals = self._average.gather(
            rank,
            replica.parameters,
            (
                float(sums.weight_sum),
                float(sums.weighted_sum.detach()),
                float(sums.accepted),
                float(sums.blocks),
                float(batch.tokens),
            ),
        )
        self._optimizers[rank].step(batch.step)
        self._average.meet()
        return totals
