"""A drafter at given sizes, features given, and its whole step in several forms."""

import itertools
import time
from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F
from stepping.clock import Clock, spread
from torch import nn

from dflash_min import blocks
from dflash_min.attention import CompiledAttention, dense_mask, repeat_heads
from dflash_min.batches import Batch
from dflash_min.config import PIECES, TrainConfig
from dflash_min.fused.layers import FusedDrafter
from dflash_min.gradients import Average
from dflash_min.loss import sums_over_blocks
from dflash_min.model import Drafter
from dflash_min.optim import Optimizer
from dflash_min.replica import Replica
from dflash_min.resolve import resolve
from dflash_min.step_report import LOSS, read_sums, step_numbers

BATCHES = 2
"""Different anchors, taken in turn."""


@dataclass(frozen=True)
class Tables:
    """What a replica takes of a target."""

    embed_VD: torch.Tensor
    lm_head_VD: torch.Tensor


class Workload:
    """One drafter in bfloat16, of which every form of the step is made."""

    def __init__(self, shape, device):
        self.shape = shape
        self.device = torch.device(device)
        self.clock = Clock(self.device)
        self.generator = torch.Generator(self.device).manual_seed(0)
        self.resolved = settings(shape, self.device)
        self.drafter = self._drafter()
        self.fast = {}
        """Figures of the fast step by context length, once they are measured."""
        table = shape.vocab, shape.hidden
        self.target = Tables(self._normal(*table), self._normal(*table).div_(shape.hidden**0.5))

    def stepper(self, *, fused=PIECES, chunk=None, anchors=None, kernel_options=None):
        """The trainer's own step, with pieces of it fused."""
        resolved = replace(
            self.resolved,
            fused=tuple(fused),
            loss_chunk=chunk or self.resolved.loss_chunk,
            anchors=anchors or self.resolved.anchors,
        )
        torch._dynamo.reset()
        attention = CompiledAttention([self.device], backend=resolved.backend)
        replica = Replica(self.drafter, self.target, attention, resolved)
        if kernel_options and "layers" in fused:
            replica._layers = FusedDrafter(
                self.drafter, backend=resolved.backend, kernel_options=kernel_options
            )
        return Stepper(self, replica, Optimizer(replica.parameters, resolved), replica.forward)

    def first(self, batch):
        """The trainer's own step once it was taken, and the seconds to there.

        All compiling is in them: the optimiser's kernels are compiled where it is made.
        """
        began = time.perf_counter()
        stepper = self.stepper()
        stepper.step(batch)
        self.clock.wait()
        return stepper, time.perf_counter() - began

    def plain(self, anchors=None):
        """The plain approach: a dense mask, whole logits, one operation after another."""
        resolved = replace(self.resolved, fused=(), anchors=anchors or self.resolved.anchors)
        attention = CompiledAttention([self.device], backend=resolved.backend)
        replica = Replica(self.drafter, self.target, attention, resolved)
        replica._sum_loss = whole_loss

        def forward(batch):
            mask = dense_mask(
                batch.anchors_BN,
                batch.keep_BN,
                batch.input_ids_BS.shape[1],
                self.shape.block_size,
            )
            return replica._forward(batch, lambda q, k, v: attend_repeated(q, k, v, mask))

        return Stepper(self, replica, Optimizer(replica.parameters, resolved), forward)

    def batches(self, length, anchors=None):
        """Sequences of `length` random tokens, all of them counted in the loss."""
        return [self._batch(length, anchors or self.shape.anchors, i) for i in range(BATCHES)]

    def _batch(self, length, anchors, number):
        loss_mask_BS = torch.ones(1, length, dtype=torch.bool)
        chance = torch.Generator().manual_seed(number)
        anchors_BN, keep_BN = blocks.sample_anchors(loss_mask_BS, anchors, chance)
        width = self.shape.layers * self.shape.hidden
        return Batch(
            step=number,
            tokens=length,
            input_ids_BS=torch.randint(
                self.shape.vocab, (1, length), generator=self.generator, device=self.device
            ),
            loss_mask_BS=loss_mask_BS.to(self.device),
            anchors_BN=anchors_BN.to(self.device),
            keep_BN=keep_BN.to(self.device),
            features_BSF=self._normal(1, length, width),
        )

    def _drafter(self):
        # Half a billion weights from the CPU's generator would take a minute.
        with torch.device("meta"):
            drafter = Drafter(self.resolved.model)
        drafter.to(torch.bfloat16).to_empty(device=self.device)
        with torch.no_grad():
            for part in drafter.modules():
                if isinstance(part, nn.Linear):
                    part.weight.normal_(0.0, part.in_features**-0.5, generator=self.generator)
                elif hasattr(part, "weight"):
                    part.weight.fill_(1.0)
        return drafter

    def _normal(self, *size):
        return torch.randn(
            *size, generator=self.generator, device=self.device, dtype=torch.bfloat16
        )


class Stepper:
    """Takes whole steps: mask, forward, loss, backward, clipping and optimiser."""

    def __init__(self, workload, replica, optimizer, forward):
        self.clock = workload.clock
        self._replica = replica
        self._optimizer = optimizer
        self._average = Average([replica.parameters], mean=not optimizer.divides)
        self._forward = forward
        self._steps = 0
        self.losses = []

    def step(self, batch):
        """Take one step as the trainer's pipeline does, and return the moments of its parts."""
        moments = [self.clock.now()]
        sums = self._forward(batch)
        found = read_sums(sums)
        moments.append(self.clock.now())
        sums.weighted_sum.backward()
        moments.append(self.clock.now())
        weight, loss = step_numbers(found, batch.tokens)[: LOSS + 1]
        weight, loss = self._average.gather(0, (weight, loss))
        self._optimizer.step(self._steps, weight)
        self._average.meet()
        moments.append(self.clock.now())
        self._steps += 1
        self.losses.append(loss / weight)
        return moments

    def measure(self, batches, *, count, first=3):
        """Milliseconds of a step and of its parts, and its peak memory, over `count` steps."""
        for turn in range(first):
            self.step(batches[turn % len(batches)])
        taken = []
        peak = self.clock.peak_gib(
            lambda: taken.extend(self.step(batches[i % len(batches)]) for i in range(count))
        )
        parts = [
            [self.clock.ms(begin, end) for begin, end in itertools.pairwise(moments)]
            for moments in taken
        ]
        forward, backward, optimiser = (
            spread(column)["median"] for column in zip(*parts, strict=True)
        )
        return {
            "step_ms": spread([sum(row) for row in parts]),
            "forward_ms": forward,
            "backward_ms": backward,
            "optimiser_ms": optimiser,
            "peak_gib": peak,
        }


def settings(shape, device):
    """The run of which a step is measured: the fast preset at these sizes."""
    config = TrainConfig(
        preset="fast",
        device=device.type,
        threads=1,
        hidden=shape.hidden,
        heads=shape.heads,
        kv_heads=shape.kv_heads,
        head_dim=shape.head_dim,
        mlp=shape.mlp,
        layers=shape.layers,
        target_layers=shape.target_layers,
        block_size=shape.block_size,
        anchors=shape.anchors,
        seq_lens=shape.lengths,
        warmup_lens=shape.lengths,
        steps=1_000_000,
        lr=1e-5,
    )
    resolved = resolve(config, gpus=torch.cuda.device_count())
    sizes = replace(resolved.model, vocab=shape.vocab, mask_token_id=shape.mask_token_id)
    return replace(resolved, model=sizes)


def attend_repeated(q_BHQE, k_BGTE, v_BGTE, mask):
    """SDPA with a dense mask, key heads repeated, as kernels with a mask need it."""
    keys, values = (repeat_heads(x, q_BHQE.shape[1]) for x in (k_BGTE, v_BGTE))
    return F.scaled_dot_product_attention(q_BHQE, keys, values, attn_mask=mask)


def whole_loss(hidden_BQD, lm_head_VD, labels_BQ, weights_BQ, chunk, *, block_size):
    """Head and cross-entropy over all slots at once."""
    del chunk
    logits_MV = F.linear(hidden_BQD.flatten(0, 1), lm_head_VD).float()
    losses_M = F.cross_entropy(logits_MV, labels_BQ.flatten(), reduction="none")
    correct_M = logits_MV.detach().argmax(dim=-1) == labels_BQ.flatten()
    return sums_over_blocks(
        (weights_BQ.flatten() * losses_M).sum(),
        correct_M.view(-1, block_size),
        weights_BQ.view(-1, block_size),
    )
