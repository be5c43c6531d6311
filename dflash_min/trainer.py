"""A whole run: build the replicas, warm up, train, save, and evaluate if asked to."""

from __future__ import annotations

import copy
import logging
import math
import threading
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import torch

# Both are imported lazily by torch, and two threads that do so at once can fail: one of them finds
# a module half made, or dies with _DeadlockError. So they are complete before any thread starts.
import torch._dynamo
import torch._inductor

from dflash_min import observe, tokens
from dflash_min.attention import CompiledAttention
from dflash_min.bounds import check_saving
from dflash_min.config import SaveConfig
from dflash_min.data import Text
from dflash_min.errors import SaveError, UsageError
from dflash_min.evaluation.curves import Curves
from dflash_min.evaluation.evaluate import Evaluator
from dflash_min.model import Drafter
from dflash_min.optim import Optimizer
from dflash_min.pipeline import GRACE_S, PATIENCE_S, Pipeline
from dflash_min.replica import Replica
from dflash_min.saving import resuming, run_folder
from dflash_min.saving.checkpoint import Record
from dflash_min.saving.run_folder import RunFolder
from dflash_min.targets import choice as targets
from dflash_min.warmup import warm_up

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from dflash_min.evaluation.evaluate import Evaluation
    from dflash_min.resolve import Resolved
    from dflash_min.saving.checkpoint import Checkpoint
    from dflash_min.step_report import StepReport
    from dflash_min.targets.interface import TargetModel

_LOG: Final = logging.getLogger(__name__)


@dataclass(frozen=True)
class Summary:
    """What a run came to, counted from where it began or was resumed."""

    steps: int
    tokens: int
    seconds: float
    """Training only, without the warm-up."""
    first_loss: float
    loss: float
    """Of the last step; nan, as the other figures, if there was none."""
    accept_len: float
    """Of the last step."""
    held_out_loss: float | None
    held_out_accept_len: float | None


class Trainer:
    """Targets, drafter replicas, text and state of one run."""

    grace_s = GRACE_S
    """Seconds that a step under way has to end after `stop`."""
    patience_s = PATIENCE_S
    """Seconds that the other threads have to end after one has failed."""

    def __init__(self, resolved: Resolved, save: SaveConfig | None = None) -> None:
        """Read the text and build all models; no thread is started and nothing compiled.

        Args:
            resolved: what is run.
            save: what is saved, and whether a saved run goes on; nothing if not given. Nothing is
                written before `run`.

        Raises:
            UsageError: if torch does not know the backend, the text or the target cannot be used,
                or the run cannot be saved or resumed as asked.
        """
        self._save_config = SaveConfig() if save is None else save
        check_saving(self._save_config)
        backends = torch.compiler.list_backends(exclude_tags=())
        if resolved.backend not in backends:
            raise UsageError(f"--backend {resolved.backend} is none of {', '.join(backends)}")
        self.resolved = resolved
        self._beginning, resumed = run_folder.find(self._save_config)
        self.notes = list(self._beginning.notes)
        """For the user: what a run is resumed from, and what differs."""
        settings = resuming.settings(resolved)
        if resumed is not None:
            self.notes += resuming.check(resumed.record.settings, settings)
        self.text = Text.load(
            resolved.data,
            resolved.seed,
            max(resolved.seq_lens),
            tokens.of_target(resolved.target, resolved.model),
        )
        if resolved.eval_batches and not self.text.holds_out:
            raise UsageError("--eval-batches: there is too little text to hold some out")
        self.targets, self.replicas = _models(resolved)
        self.optimizers = [Optimizer(replica.parameters, resolved) for replica in self.replicas]
        self.evaluator = Evaluator(resolved, self.text, self.targets[0], self.replicas[0])
        self.finished = 0
        """Steps that all replicas have finished."""
        self.folder: RunFolder | None = None
        """The run folder, while `run` writes to it."""
        self._curves: Curves | None = None
        self._saving = threading.Lock()
        self._say: Callable[[str], None] = _LOG.warning
        self._saved_at = 0
        self._pipeline: Pipeline | None = None
        self._training = False
        if self._save_config.out is not None:
            self._settings, self._digests = settings, resuming.digests(self.text, self.targets[0])
        if resumed is not None:
            resuming.check(resumed.record.digests, self._digests)
            self._restore(resumed)

    def run(
        self,
        report: Callable[[StepReport], None],
        held_out: Callable[[Evaluation], None] | None = None,
        say: Callable[[str], None] = _LOG.warning,
    ) -> Summary:
        """Warm up, train for the steps that are left, and save what has been trained at the end.

        It is saved whatever the end is.

        Args:
            report: called after each step.
            held_out: called after each evaluation in training.
            say: called with a line where a curve of the run cannot be shown, or the end waits for a
                save that is under way.

        Raises:
            ExceptionGroup: holding every failed thread's exception.
            SaveError: if the state cannot be saved after the last step.
            UsageError: if the run folder cannot be used.
        """
        reports: list[StepReport] = []
        self._say = say

        def after_step(step: StepReport) -> None:
            reports.append(step)
            report(step)
            self._after_step(step, held_out)

        with (
            RunFolder.opened(self._save_config, self._beginning) as self.folder,
            Curves.opened(self._save_config.out, self.resolved, self.finished, say) as self._curves,
        ):
            began = time.perf_counter()
            if self.finished < self.resolved.steps:
                warm_up(self.resolved, self.targets[0], self.replicas)
                self.evaluator.warm_up()
                if self._evaluation_is_missing():
                    self._measure(self.finished, held_out)
                began = time.perf_counter()
                self._train(after_step)
            seconds = time.perf_counter() - began
            last = self._evaluate_at_the_end()
        return Summary(
            steps=len(reports),
            tokens=sum(step.tokens for step in reports),
            seconds=seconds,
            first_loss=reports[0].loss if reports else math.nan,
            loss=reports[-1].loss if reports else math.nan,
            accept_len=reports[-1].accept_len if reports else math.nan,
            held_out_loss=None if last is None else last.loss,
            held_out_accept_len=None if last is None else last.accept_len,
        )

    def stop(self) -> bool:
        """Let `run` end after the step that is under way, saved. May be called in a signal handler.

        Returns:
            Whether there is anything to wait for. If not, in the warm-up or an evaluation after
            training, nothing is lost by ending at once.
        """
        pipeline = self._pipeline
        if pipeline is None or not self._training:
            return False
        pipeline.stop()
        return True

    @property
    def newest(self) -> Path | None:
        """The newest checkpoint of this run, saved by it or resumed from."""
        return self._beginning.path if self.folder is None else self.folder.newest

    @property
    def left_behind(self) -> list[str]:
        """Names of the threads that did not end with training, as `Pipeline.run` has it."""
        return [] if self._pipeline is None else self._pipeline.left_behind

    @property
    def between_steps(self) -> bool:
        """Whether training ended in the midst of an update: nothing could be saved at its end."""
        return self._pipeline is not None and self._pipeline.finished_steps() is None

    def _train(self, after_step: Callable[[StepReport], None]) -> None:
        pipeline = Pipeline(
            self.resolved,
            self.text,
            self.targets,
            self.replicas,
            optimizers=self.optimizers,
            report=after_step,
            start=self.finished,
            grace_s=self.grace_s,
            patience_s=self.patience_s,
        )
        self._pipeline = pipeline
        self._training = True
        try:
            with observe.phase("train"):
                pipeline.run()
        except BaseException as error:
            self._save_in_spite_of(error, self._count(pipeline))
            raise
        else:
            self._save(self._count(pipeline))
        finally:
            self._training = False

    def _count(self, pipeline: Pipeline) -> int | None:
        """Return how many steps are whole after training; None if the replicas are between two."""
        done = pipeline.finished_steps()
        self.finished = self.finished if done is None else done
        return done

    def _after_step(self, step: StepReport, held_out: Callable[[Evaluation], None] | None) -> None:
        """Measure and save what is due, on the thread drafter-0, while no weight changes."""
        done = step.step + 1
        self.finished = done
        self._record(done, "train", step.values())
        saves = self.folder is not None and self.folder.due(done)
        measures = self.evaluator.due(done)
        if saves or measures:
            for optimizer in self.optimizers:
                optimizer.settle()
        if measures:
            self._measure(done, held_out)
        if saves:
            self._save(done)

    def _evaluation_is_missing(self) -> bool:
        """Whether the run that is resumed ended in the midst of an evaluation."""
        done, folder = self.finished, self.folder
        if not done or folder is None or not self.evaluator.due(done):
            return False
        return not folder.has(done, "eval")

    def _measure(self, done: int, held_out: Callable[[Evaluation], None] | None) -> None:
        evaluation = self.evaluator(done)
        self._record(done, "eval", evaluation.values())
        if held_out is not None:
            held_out(evaluation)

    def _record(self, step: int, kind: str, values: dict[str, object]) -> None:
        if self.folder is not None:
            self.folder.record(step, kind, values)
        if self._curves is not None:
            self._curves.write(step, kind, values)

    def _evaluate_at_the_end(self) -> Evaluation | None:
        resolved, done = self.resolved, self.finished
        if not resolved.eval_batches or done < resolved.steps:
            return None
        with observe.phase("evaluate"):
            evaluation = self.evaluator(done)
        # It is there if it was due in training, or if all this is a finished run resumed.
        if self.folder is not None and not self.folder.has(done, "eval"):
            self._record(done, "eval", evaluation.values())
        return evaluation

    def _save_in_spite_of(self, error: BaseException, done: int | None) -> None:
        """Save what is whole when training has failed, unless saving is what failed."""
        if isinstance(error, BaseExceptionGroup) and error.subgroup(SaveError) is not None:
            return
        try:
            self._save(done)
        except SaveError as second:
            error.add_note(str(second))

    def _save(self, done: int | None) -> None:
        """Save the state after so many finished steps, if that is still to be done.

        Raises:
            SaveError: if it cannot be written, or is not one state.
        """
        # Whoever saves after so many steps may be at it yet when training has ended.
        if not self._saving.acquire(timeout=self.grace_s):
            self._say("a checkpoint is still being written; Ctrl-C ends the run without it")
            self._saving.acquire()
        try:
            if self.folder is None or done is None or done == self._saved_at:
                return
            self._check_replicas()
            record = Record(
                step=done,
                seed=self.resolved.seed,
                target=self.resolved.target,
                config=self.resolved.model,
                settings=self._settings,
                digests=self._digests,
            )
            weights = self.replicas[0].drafter.state_dict()
            self.folder.save(record, weights, self.optimizers[0].state_dict())
            self._saved_at = done
        finally:
            self._saving.release()

    def _check_replicas(self) -> None:
        """Refuse to save replicas that differ.

        One is saved for all, since all have equal bits. If they have not, something is broken, a
        race or a device, and resuming would hide it: the others' weights would be replaced.
        """
        first, *others = self.replicas
        for rank, other in enumerate(others, start=1):
            pairs = zip(first.drafter.named_parameters(), other.parameters, strict=True)
            for (name, mine), theirs in pairs:
                if not _equal_bits(mine, theirs):
                    raise SaveError(
                        f"not saved: {name} differs between drafter-0 and drafter-{rank}, which "
                        "should be equal bit for bit"
                    )

    def _restore(self, checkpoint: Checkpoint) -> None:
        state = checkpoint.optimizer()
        for replica, optimizer in zip(self.replicas, self.optimizers, strict=True):
            replica.drafter.load_state_dict(checkpoint.weights)
            # torch's optimisers keep the tensors that they are given, where nothing is to be moved.
            optimizer.load_state_dict(copy.deepcopy(state))
        self.finished = self._saved_at = checkpoint.step


def _models(resolved: Resolved) -> tuple[list[TargetModel], list[Replica]]:
    """Build a target for each device and a replica for each drafter thread."""
    layout = resolved.layout
    on_device = {
        name: targets.open_target(
            resolved.target, resolved.model, seed=resolved.seed, device=name, dtype=resolved.dtype
        )
        for name in set(layout.targets)
    }
    of_threads = [on_device[name] for name in layout.targets]
    attention = CompiledAttention(
        layout.drafters,
        dynamic=resolved.compile_dynamic,
        backend=resolved.backend,
        mode=None if resolved.compile_mode == "default" else resolved.compile_mode,
    )
    replicas = [
        Replica(
            Drafter(
                resolved.model,
                seed=resolved.seed,
                checkpoint_layers=resolved.activation_checkpointing,
            ).to(name, getattr(torch, resolved.dtype)),
            of_threads[rank % len(of_threads)],
            attention,
            resolved,
        )
        for rank, name in enumerate(layout.drafters)
    ]
    return of_threads, replicas


def _equal_bits(mine: torch.Tensor, theirs: torch.Tensor) -> bool:
    """Compare as bytes, so that nan equals nan and 0 does not equal -0."""
    here, there = (p.detach().contiguous().view(torch.uint8) for p in (mine, theirs))
    return torch.equal(here, there.to(here.device))
