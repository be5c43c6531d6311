"""Triton kernels of the fused pieces. Importing this module needs triton.

Rows are addressed with 64 bits: 8,192 rows of 151,936 logits are nearly 2**31 elements, and a
longer chunk would go beyond.
"""

# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator"

from __future__ import annotations

import triton  # type: ignore[import-untyped]
import triton.language as tl  # type: ignore[import-untyped]

UNIT: tl.constexpr = tl.constexpr(16)
"""Addresses in tables are multiples of so many bytes, sizes of so many elements.

The compiler has to know: of numbers that are loaded it knows nothing, and every access would be of
a single element.
"""


@triton.jit
def cross_entropy_kernel(
    logits_MV,
    labels_M,
    weights_M,
    losses_M,
    correct_M,
    VOCAB: tl.constexpr,
    WITH_GRADIENT: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Score one row of logits, and replace it by the gradient of its weighted loss.

    Two passes over the row: largest logit and sum of exponentials, then (softmax - label) * weight.
    A row of weight 0 is not read.
    """
    row = tl.program_id(0).to(tl.int64)
    logits = logits_MV + row * VOCAB
    label = tl.load(labels_M + row)
    weight = tl.load(weights_M + row).to(tl.float32)
    columns = tl.arange(0, BLOCK)
    if weight == 0.0:
        tl.store(losses_M + row, 0.0)
        tl.store(correct_M + row, 0)
        if WITH_GRADIENT:
            for start in range(0, VOCAB, BLOCK):
                at = start + columns
                zeros = tl.zeros((BLOCK,), dtype=logits_MV.dtype.element_ty)
                tl.store(logits + at, zeros, mask=at < VOCAB)
    else:
        labelled = tl.load(logits + label).to(tl.float32)
        largest = labelled
        total = 0.0
        beaten = tl.zeros((BLOCK,), dtype=tl.int32)
        for start in range(0, VOCAB, BLOCK):
            at = start + columns
            x = tl.load(logits + at, mask=at < VOCAB, other=-float("inf")).to(tl.float32)
            # Of equal logits the first counts as the likeliest, as in torch.argmax.
            beaten += ((x > labelled) | ((x == labelled) & (at < label))).to(tl.int32)
            larger = tl.maximum(largest, tl.max(x, axis=0))
            total = total * tl.exp(largest - larger) + tl.sum(tl.exp(x - larger), axis=0)
            largest = larger
        log_sum = largest + tl.log(total)
        tl.store(losses_M + row, log_sum - labelled)
        tl.store(correct_M + row, (tl.sum(beaten, axis=0) == 0).to(tl.int8))
        if WITH_GRADIENT:
            for start in range(0, VOCAB, BLOCK):
                at = start + columns
                inside = at < VOCAB
                x = tl.load(logits + at, mask=inside, other=-float("inf")).to(tl.float32)
                gradient = (tl.exp(x - log_sum) - (at == label).to(tl.float32)) * weight
                tl.store(logits + at, gradient.to(logits_MV.dtype.element_ty), mask=inside)


@triton.jit
def _places(tile, tensor, sizes_P, place_of_tile, BLOCK: tl.constexpr):
    """Return which elements of its tensor a tile holds, and which of them exist."""
    at = tl.load(place_of_tile + tile) * BLOCK + tl.arange(0, BLOCK)
    return at, at < tl.load(sizes_P + tensor) * UNIT


@triton.jit
def _elements(addresses_P, tensor, at, TYPE: tl.constexpr):
    """Return pointers to elements of a tensor of which the table has the address."""
    begin = tl.load(addresses_P + tensor).to(tl.pointer_type(TYPE))
    return tl.multiple_of(begin + at, UNIT)


@triton.jit
def sum_of_squares_kernel(
    gradients_P,
    sizes_P,
    tensor_of_tile,
    place_of_tile,
    partial_sums,
    BLOCK: tl.constexpr,
):
    """Add up the squares of one tile of one bfloat16 gradient.

    Args (of P tensors, and of one number a tile, int32, where not said otherwise):
        gradients_P: addresses, int64.
        sizes_P: elements, in units.
        tensor_of_tile: which tensor a tile is of.
        place_of_tile: its place among the tiles of that tensor.
        partial_sums: float32, written.
    """
    tile = tl.program_id(0)
    tensor = tl.load(tensor_of_tile + tile)
    at, inside = _places(tile, tensor, sizes_P, place_of_tile, BLOCK)
    gradient = _elements(gradients_P, tensor, at, tl.bfloat16)
    g = tl.load(gradient, mask=inside, other=0.0).to(tl.float32)
    tl.store(partial_sums + tile, tl.sum(g * g, axis=0))


@triton.jit
def adamw_kernel(
    gradients_P,
    parameters_P,
    masters_P,
    means_P,
    squares_P,
    sizes_P,
    tensor_of_tile,
    place_of_tile,
    gradient_scale,
    keep,
    step_size,
    root_correction,
    BETA1: tl.constexpr,
    BETA2: tl.constexpr,
    EPS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Update one tile of one parameter: float32 state, bfloat16 gradient and parameter.

    Tables as in `sum_of_squares_kernel`, the first five of addresses. gradient_scale is a tensor of
    one number, and nothing is updated where that is not above 0; keep is 1 - lr * weight_decay,
    step_size lr / (1 - beta1 ** t) and root_correction sqrt(1 - beta2 ** t), as in
    torch.optim.AdamW.
    """
    tile = tl.program_id(0)
    tensor = tl.load(tensor_of_tile + tile)
    at, inside = _places(tile, tensor, sizes_P, place_of_tile, BLOCK)
    master = _elements(masters_P, tensor, at, tl.float32)
    mean = _elements(means_P, tensor, at, tl.float32)
    square = _elements(squares_P, tensor, at, tl.float32)

    g = tl.load(_elements(gradients_P, tensor, at, tl.bfloat16), mask=inside, other=0.0)
    scale = tl.load(gradient_scale)
    g = g.to(tl.float32) * scale
    p = tl.load(master, mask=inside, other=0.0) * keep
    m = tl.load(mean, mask=inside, other=0.0)
    v = tl.load(square, mask=inside, other=0.0)
    m += (g - m) * (1.0 - BETA1)
    v = v * BETA2 + g * g * (1.0 - BETA2)
    p -= step_size * m / (tl.sqrt(v) / root_correction + EPS)
    # Of a norm that is infinite the scale is 0, and of one that is no number no number. In the mask
    # of the stores it would hide that whole units are written.
    if scale > 0.0:
        tl.store(master, p, mask=inside)
        tl.store(mean, m, mask=inside)
        tl.store(square, v, mask=inside)
        parameter = _elements(parameters_P, tensor, at, tl.bfloat16)
        tl.store(parameter, p.to(tl.bfloat16), mask=inside)
