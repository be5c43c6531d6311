"""AdamW, with the learning rate of each step."""

from __future__ import annotations

import math
import threading
from typing import TYPE_CHECKING, Any

import torch

from dflash_min.errors import NotFiniteError
from dflash_min.fused.adamw import FusedAdamW, fits
from dflash_min.gradients import gradient_of
from dflash_min.lr import lr_share
from dflash_min.readback import Readback

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import Any

    from torch import Tensor
    from torch.nn import Parameter

    from dflash_min.resolve import Resolved


class Optimizer:
    """AdamW on one replica's parameters, with gradients clipped by their global norm.

    Parameters in bfloat16 are the rounded copies of float32 masters, which are what is trained: an
    update of less than 1/256 of a weight would otherwise be lost.
    """

    def __init__(self, parameters: Sequence[Parameter], resolved: Resolved) -> None:
        """Make the masters, and moments of 0, on the parameters' device."""
        self._parameters = list(parameters)
        self._resolved = resolved
        self.divides = resolved.dtype != "float32"
        """Whether `step` divides the gradients by the weight, so that `Average` need not."""
        self._masters: list[Tensor] = [
            p.detach().float() if self.divides else p for p in self._parameters
        ]
        self._adamw = torch.optim.AdamW(
            self._masters, lr=resolved.lr, weight_decay=resolved.weight_decay
        )
        self._unsettled: tuple[int, Readback] | None = None
        """The last step and its norm, not looked at yet."""
        self._refusal = ""
        """Why the last step, of those that were looked at later, changed nothing."""
        self._looking = threading.Lock()
        self._fused: FusedAdamW | None = None
        self._fuse()

    def step(self, step: int, weight: float = 1.0) -> None:
        """Apply the gradients of step `step` (from 0) and drop them.

        Fused kernels apply none that is not finite, whether anybody knows by then or not. So a GPU
        need not stand still until it is known here, and is asked by `settle`, or by the next step.

        Args:
            step: sets the learning rate.
            weight: what the gradients have yet to be divided by, if this optimiser `divides`.

        Raises:
            NotFiniteError: if a gradient is not finite, of this step or of the one before; no
                weight has changed by it. This step has not been taken in either case.
        """
        if self._unsettled is not None:
            self.settle()
        self._refusal = ""
        resolved = self._resolved
        for group in self._adamw.param_groups:
            group["lr"] = resolved.lr * lr_share(step, resolved.steps, resolved.lr_warmup)
        if self._fused is None:
            self._step(step, weight or 1.0)
        else:
            self._step_fused(self._fused, step, weight or 1.0)
        for p in (*self._parameters, *self._masters):
            p.grad = None

    def settle(self) -> None:
        """Wait until it is known whether the last step was taken. Any thread may call it.

        Raises:
            NotFiniteError: it was not, by kernels that had been given it: nothing has changed.
        """
        self._look()
        if self._refusal:
            raise NotFiniteError(self._refusal)

    def state_dict(self) -> dict[str, Any]:
        """Return tensors and numbers from which `load_state_dict` goes on with equal bits."""
        self._look()
        state: dict[str, Any] = {"adamw": self._adamw.state_dict()}
        if self.divides:
            state["masters"] = self._masters
        return state

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take over a state of an optimiser of the same parameters, whatever device it was on.

        Raises:
            ValueError: if the state is of other parameters.
        """
        masters = state.get("masters", [])
        if [m.shape for m in masters] != [m.shape for m in self._masters if self.divides]:
            raise ValueError("the optimiser's state is of weights of other sizes or another dtype")
        self._unsettled, self._refusal = None, ""
        self._adamw.load_state_dict(state["adamw"])
        for mine, loaded in zip(self._masters, masters, strict=False):
            mine.copy_(loaded)
        self._fuse()

    def _step(self, step: int, weight: float) -> None:
        """Take one operation after another, as torch has them."""
        if self.divides:
            for master, p in zip(self._masters, self._parameters, strict=True):
                master.grad = None if p.grad is None else p.grad.float().div_(weight)
                p.grad = None
        norm = torch.nn.utils.clip_grad_norm_(self._masters, self._resolved.max_grad_norm)
        if not math.isfinite(norm):
            raise NotFiniteError(_not_finite(float(norm), step))
        self._adamw.step()
        if self.divides:
            for master, p in zip(self._masters, self._parameters, strict=True):
                p.detach().copy_(master)

    def _step_fused(self, fused: FusedAdamW, step: int, weight: float) -> None:
        group = self._adamw.param_groups[0]
        norm = fused.clip(
            [gradient_of(p) for p in self._parameters],
            weight=weight,
            max_norm=self._resolved.max_grad_norm,
        )
        found = Readback(norm[None])
        fused.update(
            t=int(next(iter(self._adamw.state.values()))["step"]) + 1,
            lr=group["lr"],
            weight_decay=group["weight_decay"],
            betas=group["betas"],
            eps=group["eps"],
        )
        self._unsettled = step, found

    def _look(self) -> None:
        with self._looking:
            if self._unsettled is None:
                return
            step, found = self._unsettled
            norm = found.tolist()[0]
            if math.isfinite(norm):
                for state in self._adamw.state.values():
                    state["step"] += 1
            else:
                self._refusal = _not_finite(norm, step)
            self._unsettled = None

    def _fuse(self) -> None:
        """Let the kernels work on AdamW's own state, if they are asked for and can be used."""
        on_gpu = self._masters[0].device.type == "cuda"
        if not (on_gpu and "optimizer" in self._resolved.fused and fits(self._parameters)):
            return
        states = [self._adamw.state[master] for master in self._masters]
        for master, state in zip(self._masters, states, strict=True):
            state.setdefault("step", torch.tensor(0.0))
            state.setdefault("exp_avg", torch.zeros_like(master))
            state.setdefault("exp_avg_sq", torch.zeros_like(master))
        self._fused = FusedAdamW(
            [p.detach() for p in self._parameters],
            self._masters,
            [state["exp_avg"] for state in states],
            [state["exp_avg_sq"] for state in states],
        )


def _not_finite(norm: float, step: int) -> str:
    return f"step {step + 1}: the norm of the gradients is {norm}"
