"""The threads: targets make batches, drafters train on them, and all stop when one fails."""

from __future__ import annotations

import math
import os
import queue
import threading
import time
from collections import deque
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Final, Generic, Literal, TypeVar

import torch
from torch._dynamo import config as dynamo_config

from dflash_min import observe
from dflash_min.errors import NotFiniteError, Stopped
from dflash_min.optim import Average, lr_share
from dflash_min.replica import training_batch
from dflash_min.updates import Updates

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from dflash_min.data import Text
    from dflash_min.loss import LossSums
    from dflash_min.optim import Optimizer
    from dflash_min.replica import Batch, Replica
    from dflash_min.resolve import Resolved
    from dflash_min.targets import TargetModel

_T = TypeVar("_T")
_Mail = Literal["stop", "ended"]


GRACE_S: Final = 5.0
"""Seconds in which a step that is under way when a stop is asked for may end."""


@dataclass(frozen=True)
class StepReport:
    """One optimiser step, over all drafters."""

    step: int
    """From 0."""
    loss: float
    accept_len: float
    """Mean number of tokens a block would have been accepted for, the free one included."""
    tokens: int
    seconds: float
    """Of the slowest drafter, waiting for targets included."""
    lr: float
    """Learning rate of the step."""
    accuracy: float
    """Share of the scored slots that are correct; nan where none was scored."""
    slot_accuracy: tuple[float, ...]
    """The same by slot: of the first one after the anchor, and so on."""

    def values(self) -> dict[str, object]:
        """Return all figures by name, without the step."""
        values = asdict(self)
        del values["step"]
        return values


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

    Batches are numbered as `Resolved.batch_number` has it. Target i makes those whose number leaves
    i when divided by the number of targets, in order, and every drafter has a queue from each
    target: so which batch a drafter trains on never depends on who was faster. The queues are
    bounded and nothing can lock up: a target waits only for a drafter that still holds a batch.
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
            grace_s: how long a step may take to end once a stop is asked for.
        """
        self._resolved = resolved
        self._text = text
        self._targets = targets
        self._replicas = replicas
        self._optimizers = optimizers
        self._report = report
        self._start = start
        self._grace_s = grace_s
        self._average = Average(len(replicas), mean=not optimizers[0].divides)
        self._updates = Updates(len(replicas), start)
        self._channels: list[list[Channel[Batch]]] = [
            [Channel(resolved.queue_depth) for _ in targets] for _ in replicas
        ]
        self._errors: list[BaseException] = []
        self._errors_lock = threading.Lock()
        self._stopping = False
        # Its put may be called in a signal handler that interrupts its get.
        self._mail: queue.SimpleQueue[_Mail] = queue.SimpleQueue()

    def run(self) -> None:
        """Train for the steps that are left, or until `stop`, and return when all threads ended.

        After `stop`, a thread that does not end in time, in a compile that takes minutes for
        example, is left behind; it will not change any weight.

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
            if self._all_end(len(threads)):
                for thread in threads:
                    thread.join()
        except BaseException:
            # Ctrl-C, or a thread that could not start.
            self._halt()
            for thread in threads:
                if thread.ident is not None:
                    thread.join()
            raise
        if self._errors:
            count = len(self._errors)
            raise BaseExceptionGroup(
                f"{count} thread{'s' if count > 1 else ''} failed", self._errors
            )

    def stop(self) -> None:
        """Ask for an end after the step that is under way. May be called in a signal handler."""
        self._stopping = True
        self._mail.put("stop")

    def finished_steps(self) -> int | None:
        """Return how many steps all replicas have finished, once `run` has ended.

        None where an error in the middle of an update has left the replicas between two steps.
        """
        return self._updates.hold(timeout=0)

    def _all_end(self, threads: int) -> bool:
        """Wait until so many threads end; False if some do not in time after `stop`."""
        until = math.inf
        while threads:
            left = until - time.monotonic()
            try:
                mail = self._mail.get(timeout=None if until == math.inf else max(left, 0.0))
            except queue.Empty:
                self._halt()
                return False
            if mail == "ended":
                threads -= 1
            else:
                until = min(until, time.monotonic() + self._grace_s)
        return True

    def _thread(self, name: str, work: Callable[[int], None], index: int) -> threading.Thread:
        def body() -> None:
            try:
                work(index)
            except Stopped:
                return
            except BaseException as error:  # noqa: BLE001  # raised again by run
                self._fail(name, error)
            finally:
                self._mail.put("ended")

        return threading.Thread(target=body, name=name)

    def _fail(self, name: str, error: BaseException) -> None:
        """Keep a thread's error for `run` and stop the other threads."""
        error.add_note(f"raised in thread {name}")
        with self._errors_lock:
            self._errors.append(error)
        self._halt()

    def _halt(self) -> None:
        """End all threads between two steps, or, where that is not possible, anyhow."""
        # First: a meeting that is broken off while some have left it would divide the replicas.
        self._updates.hold(self._grace_s)
        self._average.abort()
        for row in self._channels:
            for channel in row:
                channel.stop()

    def _produce(self, index: int) -> None:
        resolved, target, targets = self._resolved, self._targets[index], len(self._targets)
        enter_thread(torch.device(resolved.layout.targets[index]), resolved)
        begin = resolved.batch_number(self._start, 0, 0)
        end = resolved.batch_number(resolved.steps, 0, 0)
        for number in range(begin + (index - begin) % targets, end, targets):
            step, rank, micro = resolved.batch_place(number)
            batch = training_batch(resolved, self._text, target, step, rank, micro=micro)
            self._channels[rank][index].put(batch)

    def _train(self, rank: int) -> None:
        resolved, replica = self._resolved, self._replicas[rank]
        enter_thread(replica.device, resolved)
        for step in range(self._start, resolved.steps):
            began = time.perf_counter()
            mine = self._gradient(rank, step)
            totals = self._average.gather(rank, replica.parameters, mine)
            with self._updates.update(rank):
                self._optimizers[rank].step(step, totals[_WEIGHT])
            try:
                self._average.meet()
            finally:  # a meeting that is broken off is one of replicas whose steps are done
                seconds = time.perf_counter() - began
                observe.step(step, round(mine[_TOKENS]), seconds)
                if rank == 0:
                    self._report(_step_report(resolved, step, totals, seconds))
            if rank == 0 and self._stopping:
                self._halt()

    def _gradient(self, rank: int, step: int) -> tuple[float, ...]:
        """Differentiate the sum of one replica's losses of a step; return `_numbers`, summed."""
        resolved, replica = self._resolved, self._replicas[rank]
        parts = []
        for micro in range(resolved.accumulate):
            number = resolved.batch_number(step, rank, micro)
            batch = self._channels[rank][number % len(self._targets)].get()
            sums = replica.forward(batch)
            sums.weighted_sum.backward()  # type: ignore[no-untyped-call]
            numbers = _numbers(sums, batch.tokens)
            if not math.isfinite(numbers[_LOSS]):
                raise NotFiniteError(self._describe(number, numbers[_LOSS]))
            parts.append(numbers)
        return tuple(sum(column) for column in zip(*parts, strict=True))

    def _describe(self, number: int, loss: float) -> str:
        step, rank, _ = self._resolved.batch_place(number)
        length = self._resolved.length(step)
        starts = self._text.starts(number, length, self._resolved.batch_size)
        return (
            f"the loss is {loss} in step {step + 1}, thread drafter-{rank}, batch {number} "
            f"({length} tokens of the training text from token {', '.join(map(str, starts))} on)"
        )


_WEIGHT, _LOSS, _ACCEPTED, _BLOCKS, _TOKENS, _SLOTS = range(6)
"""Where in `_numbers` what is; from _SLOTS on correct slots by index, then scored ones."""


def _numbers(sums: LossSums, tokens: int) -> list[float]:
    """Return what is summed over the replicas, with one copy from the device."""
    scalars = torch.stack(
        [
            part.detach().double()
            for part in (sums.weight_sum, sums.weighted_sum, sums.accepted, sums.blocks)
        ]
    )
    slots = torch.cat([sums.slot_correct, sums.slot_scored]).double()
    numbers: list[float] = torch.cat([scalars, slots]).tolist()
    return [*numbers[:_TOKENS], float(tokens), *numbers[_TOKENS:]]


def _step_report(
    resolved: Resolved, step: int, totals: tuple[float, ...], seconds: float
) -> StepReport:
    slots = totals[_SLOTS:]
    correct, scored = slots[: len(slots) // 2], slots[len(slots) // 2 :]
    return StepReport(
        step,
        loss=totals[_LOSS] / (totals[_WEIGHT] or 1.0),
        accept_len=1 + totals[_ACCEPTED] / (totals[_BLOCKS] or 1.0),
        tokens=round(totals[_TOKENS]),
        seconds=seconds,
        lr=resolved.lr * lr_share(step, resolved.steps, resolved.lr_warmup),
        accuracy=_share(sum(correct), sum(scored)),
        slot_accuracy=tuple(map(_share, correct[1:], scored[1:])),
    )


def _share(part: float, whole: float) -> float:
    return part / whole if whole else math.nan
