"""The threads: targets make batches, drafters train on them, and all stop when one fails."""

from __future__ import annotations

import contextlib
import functools
import math
import os
import time
from typing import TYPE_CHECKING, Final

import torch
from torch._dynamo import config as dynamo_config

from dflash_min import lanes, observe
from dflash_min.batches import training_batch
from dflash_min.channel import Channel
from dflash_min.dealing import made_by, maker, taken_by
from dflash_min.errors import NotFiniteError
from dflash_min.exchange import Exchange
from dflash_min.gradients import Accumulator, Average
from dflash_min.step_report import LOSS, TOKENS, WEIGHT, read_sums, step_numbers, step_report
from dflash_min.thread_group import ThreadGroup
from dflash_min.updates import Updates

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from dflash_min.batches import Batch
    from dflash_min.data import Text
    from dflash_min.optim import Optimizer
    from dflash_min.replica import Replica
    from dflash_min.resolve import Resolved
    from dflash_min.step_report import StepReport
    from dflash_min.targets.interface import TargetModel

GRACE_S: Final = 5.0
"""Seconds in which a step that is under way when a stop is asked for may end, and then updates that
have begun by then."""
PATIENCE_S: Final = 60.0
"""Seconds in which the other threads may end once one has failed. More than for a stop: a thread
that fails later, at the end of a compile for example, tells what else was wrong."""
_WAKING_SHARE: Final = 0.05
"""Of the time for a stop, the end: it is for threads to end that only wait, and are told then."""


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

    Which batch a drafter trains on never depends on who was faster, and nothing can lock up: see
    `dflash_min.dealing`. The queues are bounded.
    """

    def __init__(
        self,
        resolved: Resolved,
        text: Text,
        targets: Sequence[TargetModel],
        replicas: Sequence[Replica],
        *,
        optimizers: Sequence[Optimizer],
        report: Callable[[StepReport], None],
        start: int = 0,
        grace_s: float = GRACE_S,
        patience_s: float = PATIENCE_S,
    ) -> None:
        """Prepare the threads without starting them.

        Args:
            resolved: the run; its layout has as many targets and drafters as are given.
            text: where the windows come from.
            targets: one for each target thread.
            replicas: one for each drafter thread.
            optimizers: one for each replica.
            report: called after each step on the thread drafter-0. The others go on meanwhile, but
                all replicas' weights and optimisers stay as the step left them until it returns.
            start: steps that are finished already.
            grace_s: seconds from when a stop is asked for until `run` returns at the latest.
            patience_s: the same from when the first thread fails.
        """
        self._resolved = resolved
        self._text = text
        self._targets = targets
        self._replicas = replicas
        self._optimizers = optimizers
        self._report = report
        self._start = start
        self._grace_s = grace_s
        parameters = [replica.parameters for replica in replicas]
        during = resolved.exchange == "during" and len(replicas) > 1
        self._exchange = Exchange(parameters) if during else None
        self._average = Average(parameters, mean=not optimizers[0].divides, road=self._exchange)
        self._updates = Updates(len(replicas), start)
        self._channels: list[list[Channel[Batch]]] = [
            [Channel(resolved.queue_depth) for _ in targets] for _ in replicas
        ]
        self._finished: int | None = None
        self._unreported: tuple[int, Callable[[], None]] | None = None
        """A step after which drafter-0 was stopped before the others had finished it."""
        works = {
            **{f"target-{i}": functools.partial(self._produce, i) for i in range(len(targets))},
            **{f"drafter-{i}": functools.partial(self._train, i) for i in range(len(replicas))},
        }
        self._threads = ThreadGroup(works, self._halt, grace_s=grace_s, patience_s=patience_s)

    def run(self) -> None:
        """Train for the steps that are left, or until `stop`, and return when all threads ended.

        After `stop`, after a failure and after Ctrl-C, a thread that does not end in time, in a
        compile that takes minutes for example, is left behind; it will not change any weight.

        Raises:
            BaseExceptionGroup: holding what each failed thread raised, in order of time; an
                `ExceptionGroup` unless one of them is no `Exception`.
            BaseException: what interrupts it, as Ctrl-C does, or keeps a thread from starting; its
                cause is that group if threads had failed. `finished_steps` counts as ever.
        """
        with contextlib.nullcontext() if self._exchange is None else self._exchange.sending():
            try:
                self._threads.run()
            except BaseException as error:
                self._conclude()
                if (failure := self._threads.failure()) is not None:
                    raise error from failure
                raise
        if self._exchange is not None and not self.left_behind:
            self._exchange.release()
        self._conclude()
        if (failure := self._threads.failure()) is not None:
            raise failure

    @property
    def left_behind(self) -> list[str]:
        """Names of the threads that have not ended."""
        return self._threads.left_behind

    def stop(self) -> None:
        """Ask for an end after the step that is under way. May be called in a signal handler."""
        self._threads.stop()

    def finished_steps(self) -> int | None:
        """Return how many steps all replicas have finished, once `run` has ended.

        None where an error in the middle of an update has left the replicas between two steps, or
        their devices no longer tell.
        """
        return self._finished

    def _conclude(self) -> None:
        """Count the steps that are finished, for good, and report the last if nobody has."""
        finished = self._updates.hold(timeout=0)
        try:
            for optimizer in self._optimizers:
                optimizer.settle()
        except NotFiniteError as error:
            self._threads.add(error)
            # In no replica has the last step changed anything.
            finished = None if finished is None else finished - 1
        except RuntimeError as error:  # of CUDA
            self._threads.add(error)
            finished = None
        self._finished = finished
        if finished is None or self._unreported is None:
            return
        step, report = self._unreported
        if step < finished:
            try:
                report()
            except Exception as error:  # noqa: BLE001  # raised with the others
                self._threads.add(error)

    def _halt(self, until: float) -> None:
        """End all threads between two steps, or, where that is not possible in time, anyhow."""
        # First: a meeting that is broken off while some have left it would divide the replicas.
        waking_s = _WAKING_SHARE * self._grace_s
        self._updates.hold(max(until - waking_s - time.monotonic(), 0.0))
        self._average.abort()
        for row in self._channels:
            for channel in row:
                channel.stop()

    def _produce(self, index: int) -> None:
        resolved, target = self._resolved, self._targets[index]
        device, drafters = torch.device(resolved.layout.targets[index]), resolved.layout.drafters
        enter_thread(device, resolved)
        ways = {name: lanes.between(device, torch.device(name)) for name in set(drafters)}
        for number in made_by(resolved, index, self._start):
            step, rank, micro = resolved.batch_place(number)
            lane = ways[drafters[rank]]
            batch = training_batch(resolved, self._text, target, step, rank, micro=micro, lane=lane)
            with observe.waiting("room"):
                self._channels[rank][index].put(batch)

    def _train(self, rank: int) -> None:
        resolved, replica = self._resolved, self._replicas[rank]
        enter_thread(replica.device, resolved)
        for step in range(self._start, resolved.steps):
            began = time.perf_counter()
            mine = self._gradient(rank, step)
            totals = self._average.gather(rank, mine)
            with self._updates.update(rank):
                self._optimizers[rank].step(step, totals[WEIGHT])
            try:
                self._average.meet()
            finally:  # a meeting may be broken off when all have come, or before
                report = functools.partial(
                    self._tell, rank, step, mine, totals, time.perf_counter() - began
                )
                if self._updates.finished(step):
                    report()
                elif rank == 0:
                    self._unreported = step, report
            if rank == 0 and self._threads.stopping:
                self._threads.halt()
        self._optimizers[rank].settle()

    def _tell(
        self,
        rank: int,
        step: int,
        mine: tuple[float, ...],
        totals: tuple[float, ...],
        seconds: float,
    ) -> None:
        """Tell of a step that is finished."""
        observe.step(step, round(mine[TOKENS]), seconds)
        if rank == 0:
            self._report(step_report(self._resolved, step, totals, seconds))

    def _make_room(self, rank: int) -> None:
        """Let the targets make a replica's next batches.

        Not sooner: while a drafter gives its device a forward and a backward, a target that does so
        too holds it up, as both need the interpreter. Now it waits for its device.
        """
        for channel in self._channels[rank]:
            channel.release()

    def _gradient(self, rank: int, step: int) -> tuple[float, ...]:
        """Differentiate the sum of a replica's losses of a step; return `step_numbers`, summed."""
        resolved, replica = self._resolved, self._replicas[rank]
        parts = []
        gradients = Accumulator(replica.parameters if resolved.accumulate > 1 else ())
        for number in taken_by(resolved, rank, step):
            with observe.waiting("batch"):
                batch = self._channels[rank][maker(resolved, number)].get()
            sums = replica.forward(batch)
            found = read_sums(sums)
            sums.weighted_sum.backward()  # type: ignore[no-untyped-call]
            gradients.add()
            self._make_room(rank)
            numbers = step_numbers(found, batch.tokens)
            if not math.isfinite(numbers[LOSS]):
                raise NotFiniteError(self._describe(number, numbers[LOSS]))
            parts.append(numbers)
        gradients.finish()
        return tuple(sum(column) for column in zip(*parts, strict=True))

    def _describe(self, number: int, loss: float) -> str:
        step, rank, _ = self._resolved.batch_place(number)
        length = self._resolved.length(step)
        starts = self._text.starts(number, length, self._resolved.batch_size)
        return (
            f"the loss is {loss} in step {step + 1}, thread drafter-{rank}, batch {number} "
            f"({length} tokens of the training text from token {', '.join(map(str, starts))} on)"
        )
