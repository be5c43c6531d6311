"""Head and cross-entropy whose gradient is made where the loss is, chunk by chunk.

The head is frozen, so that the only gradient is the drafter's output's, and it can be made while a
chunk's logits are there: (softmax - label) * weight, times the head. Making it in the backward
needs the logits a second time, which is a third product of chunk x D x V beside the two.

Only slots after the anchor are scored: slot 0 of each block has weight 0 in every batch, and 1/K of
the work is dropped with it by a view. See `dflash_min.model` for the legend of shape suffixes; M
are the scored slots of a batch, C those of a chunk.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F
from torch import Tensor

from dflash_min.loss import LossSums, sums_over_blocks

if TYPE_CHECKING:
    from torch.autograd.function import FunctionCtx


def fused_loss(
    hidden_BQD: Tensor,
    lm_head_VD: Tensor,
    labels_BQ: Tensor,
    weights_BQ: Tensor,
    chunk: int,
    *,
    block_size: int,
) -> LossSums:
    """Return what `loss.chunked_loss` returns for the same arguments.

    The weight of every block's slot 0 must be 0, as `blocks.targets` has it; it is not looked at.

    Raises:
        ValueError: if `chunk` is below 1, or the head is to be trained.
    """
    if chunk < 1:
        raise ValueError(f"a chunk needs at least 1 slot, got {chunk}")
    if lm_head_VD.requires_grad:
        raise ValueError("the head's gradient is not made: it is the target's, and frozen")

    def scored(slots_BQ: Tensor) -> Tensor:
        slots = slots_BQ.view(len(slots_BQ), -1, block_size, *slots_BQ.shape[2:])
        return slots[:, :, 1:].flatten(0, 2)

    weighted_sum, correct_M = _HeadLoss.apply(  # type: ignore[no-untyped-call]
        scored(hidden_BQD),
        lm_head_VD,
        scored(labels_BQ),
        scored(weights_BQ),
        chunk,
        torch.is_grad_enabled() and hidden_BQD.requires_grad,
    )
    correct_MK = F.pad(correct_M.view(-1, block_size - 1), (1, 0))
    return sums_over_blocks(weighted_sum, correct_MK, weights_BQ.view(-1, block_size))


class _HeadLoss(torch.autograd.Function):
    @staticmethod
    def forward(  # noqa: PLR0917  # autograd functions take no keywords
        ctx: FunctionCtx,
        hidden_MD: Tensor,
        lm_head_VD: Tensor,
        labels_M: Tensor,
        weights_M: Tensor,
        chunk: int,
        with_gradient: bool,  # noqa: FBT001
    ) -> tuple[Tensor, Tensor]:
        """Return the sum of w * CE, and for each slot whether the likeliest token is right."""
        slots, vocab = len(labels_M), len(lm_head_VD)
        head_input_MD = hidden_MD.to(lm_head_VD.dtype)
        buffer_CV = lm_head_VD.new_empty(min(chunk, slots), vocab)
        gradient_MD = torch.empty_like(head_input_MD) if with_gradient else None
        losses_M = torch.empty(slots, dtype=torch.float32, device=hidden_MD.device)
        correct_M = torch.empty(slots, dtype=torch.bool, device=hidden_MD.device)
        for begin in range(0, slots, chunk):
            part = slice(begin, min(begin + chunk, slots))
            logits_CV = buffer_CV[: part.stop - begin]
            torch.mm(head_input_MD[part], lm_head_VD.t(), out=logits_CV)
            losses_M[part], correct_M[part] = score_(
                logits_CV, labels_M[part], weights_M[part], with_gradient=with_gradient
            )
            if gradient_MD is not None:
                torch.mm(logits_CV, lm_head_VD, out=gradient_MD[part])
        if gradient_MD is not None:
            ctx.save_for_backward(gradient_MD.to(hidden_MD.dtype))
        ctx.mark_non_differentiable(correct_M)
        return (weights_M * losses_M).sum(), correct_M

    @staticmethod
    def backward(
        ctx: FunctionCtx, grad_sum: Tensor, grad_correct: Tensor
    ) -> tuple[Tensor | None, ...]:
        """Scale the gradient that the forward has made."""
        del grad_correct
        (gradient_MD,) = ctx.saved_tensors  # type: ignore[attr-defined]
        return gradient_MD * grad_sum.to(gradient_MD.dtype), None, None, None, None, None


def score_(
    logits_CV: Tensor, labels_C: Tensor, weights_C: Tensor, *, with_gradient: bool
) -> tuple[Tensor, Tensor]:
    """Score logits, and replace them by the gradient of the weighted loss if asked to.

    Softmax and loss are computed in float32 whatever the logits are. On a GPU, what has weight 0 is
    not looked at: its loss is 0 there, and no slot of it correct.

    Returns:
        Cross-entropy (float32) and whether the first of the largest logits is the label's.
    """
    if logits_CV.is_cuda:
        return _score_on_gpu(logits_CV, labels_C, weights_C, with_gradient=with_gradient)
    wide_CV = logits_CV.float()
    label_C1 = labels_C[:, None]
    log_sum_C1 = wide_CV.logsumexp(dim=-1, keepdim=True)
    losses_C = (log_sum_C1 - wide_CV.gather(1, label_C1))[:, 0]
    correct_C = wide_CV.argmax(dim=-1) == labels_C
    if with_gradient:
        gradient_CV = (wide_CV - log_sum_C1).exp_()
        gradient_CV.scatter_add_(1, label_C1, gradient_CV.new_full(label_C1.shape, -1.0))
        logits_CV.copy_(gradient_CV.mul_(weights_C[:, None]))
    return losses_C, correct_C


def _score_on_gpu(
    logits_CV: Tensor, labels_C: Tensor, weights_C: Tensor, *, with_gradient: bool
) -> tuple[Tensor, Tensor]:
    from dflash_min.fused import kernels

    losses_C = torch.empty(len(labels_C), dtype=torch.float32, device=logits_CV.device)
    correct_C = torch.empty(len(labels_C), dtype=torch.int8, device=logits_CV.device)
    with torch.cuda.device_of(logits_CV):  # type: ignore[no-untyped-call]
        kernels.cross_entropy_kernel[len(labels_C),](
            logits_CV,
            labels_C,
            weights_C,
            losses_C,
            correct_C,
            VOCAB=logits_CV.shape[1],
            WITH_GRADIENT=with_gradient,
            BLOCK=8192,
            num_warps=16,
        )
    return losses_C, correct_C.bool()
