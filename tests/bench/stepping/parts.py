"""What is measured: each part yields (name, figures) as soon as a figure is known."""

import itertools

import torch
from stepping.clock import GIB, by_kind, kernels
from stepping.shapes import operations

from dflash_min.attention import attend_dense, dense_mask, plain_attention
from dflash_min.config import PIECES
from dflash_min.fused.mask import block_mask

FORWARD = "fwd_BLOCK_M", "fwd_BLOCK_N", "fwd_num_stages", "fwd_num_warps"
BACKWARD = (
    *("bwd_BLOCK_M1", "bwd_BLOCK_N1", "bwd_BLOCK_M2", "bwd_BLOCK_N2"),
    *("bwd_num_stages", "bwd_num_warps"),
)
KERNEL_OPTIONS = {
    "as torch has them": {},
    **{
        f"forward {m} x {n}, {stages} stages, {warps} warps": dict(
            zip(FORWARD, (m, n, stages, warps), strict=True)
        )
        for m, n, stages, warps in (
            *((128, 128, 2, 8), (128, 128, 3, 8), (128, 64, 4, 8)),
            *((64, 128, 3, 4), (64, 64, 3, 4)),
        )
    },
    **{
        f"backward {m1} x {n1}, {m2} x {n2}, {stages} stages, {warps} warps": dict(
            zip(BACKWARD, (m1, n1, m2, n2, stages, warps), strict=True)
        )
        for m1, n1, m2, n2, stages, warps in (
            *((64, 128, 128, 64, 2, 8), (64, 64, 64, 64, 2, 4)),
            *((64, 64, 64, 64, 3, 4), (32, 64, 64, 32, 3, 4)),
        )
    },
    "scaled before": {"PRESCALE_QK": True},
    "TMA": {"USE_TMA": True},
}


def ceiling(work, options):
    """The fastest that this device multiplies and copies, measured like everything else."""
    tiny = work.device.type == "cpu"
    size = 256 if tiny else 8192
    a, b = (torch.randn(size, size, device=work.device, dtype=torch.bfloat16) for _ in "ab")
    ms = work.clock.median_ms(lambda: a @ b, count=options.steps)["median"]
    yield "matmul", {"tflops": 2 * size**3 / ms / 1e9, "size": size}
    source = torch.empty(1 << (20 if tiny else 30), device=work.device, dtype=torch.uint8)
    target = torch.empty_like(source)
    ms = work.clock.median_ms(lambda: target.copy_(source), count=options.steps)["median"]
    yield "copy", {"tb_per_s": 2 * source.numel() / ms / 1e9}


def step(work, options):
    """The fast step at the main lengths; the first one with everything compiled anew."""
    stepper, seconds = work.first(work.batches(work.shape.lengths[0])[0])
    yield "first step", {"seconds": seconds}
    for length in work.shape.lengths:
        batches = work.batches(length)
        figures = stepper.measure(batches, count=options.steps)
        figures["model_tflops"] = rate(work.shape, length, work.shape.anchors, figures)
        work.fast[length] = figures
        yield f"S={length}", figures


def plain(work, options):
    """A dense mask, whole logits and nothing fused, from the same weights."""
    stepper = work.plain()
    for length in work.shape.lengths:
        figures = stepper.measure(work.batches(length), count=max(3, options.steps // 4))
        figures["model_tflops"] = rate(work.shape, length, work.shape.anchors, figures)
        yield f"S={length}", figures
        if length in work.fast:
            yield f"S={length}, plain to fast", ratios(figures, work.fast[length])


def pieces(work, options):
    """The step with one piece after another as it is without the preset, and with none."""
    length = work.shape.lengths[0]
    batches = work.batches(length)
    for name, fused in {
        "all": PIECES,
        **{f"without {piece}": [p for p in PIECES if p != piece] for piece in PIECES},
        "none": (),
    }.items():
        yield name, work.stepper(fused=fused).measure(batches, count=max(3, options.steps // 2))


def profile(work, options):
    """Where a step's time goes: kernels by kind, and what is left of it outside of kernels."""
    stepper = work.stepper()
    for length in work.shape.lengths:
        batches = work.batches(length)
        figures = stepper.measure(batches, count=3)
        found = kernels(lambda: stepper.step(batches[0]), count=3)  # noqa: B023  # called here
        busy = sum(found.values())
        yield (
            f"S={length}",
            {
                **by_kind(found),
                "outside kernels": figures["step_ms"]["median"] - busy,
                "kernels": dict(found.most_common(25)),
            },
        )


def options(work, options):
    """Attention alone, forward and backward, with other tiles, stages and warps of its kernels."""
    for (name, chosen), length in itertools.product(KERNEL_OPTIONS.items(), work.shape.lengths):
        torch._dynamo.reset()
        attend = torch.compile(
            plain_attention(work.device, chosen), backend=work.resolved.backend, dynamic=False
        )
        try:
            forward, both = attention_ms(work, attend, length, options)
        except Exception as error:  # noqa: BLE001  # an option that this torch or this GPU does not take
            yield f"{name}, S={length}", {"error": str(error).splitlines()[0][:120]}
            continue
        yield f"{name}, S={length}", {"forward_ms": forward, "backward_ms": both - forward}


def chunks(work, options):
    """The step with other chunks of the loss."""
    batches = work.batches(work.shape.lengths[0])
    for chunk in work.shape.chunks:
        figures = work.stepper(chunk=chunk).measure(batches, count=max(3, options.steps // 2))
        yield f"chunk {chunk}", figures


def table(work, options):
    """Step time and peak memory over context lengths and numbers of anchors."""
    for anchors in work.shape.grid_anchors:
        stepper = work.stepper(anchors=anchors)
        for length in work.shape.grid_lengths:
            figures = stepper.measure(
                work.batches(length, anchors), count=max(3, options.steps // 4), first=2
            )
            yield (
                f"S={length} N={anchors}",
                {"step_ms": figures["step_ms"]["median"], "peak_gib": figures["peak_gib"]},
            )


def memory(work, options):
    """What attention takes beside its inputs, output and their gradients: sparse and dense."""
    del options
    torch._dynamo.reset()
    attend = torch.compile(
        plain_attention(work.device), backend=work.resolved.backend, dynamic=True
    )
    for length in work.shape.grid_lengths:
        figures = {}
        for name in ("sparse", "dense"):
            q, k, v, anchors_BN, keep_BN = attention_inputs(work, length)

            def run(name=name, q=q, k=k, v=v, anchors_BN=anchors_BN, keep_BN=keep_BN):
                size = work.shape.block_size
                if name == "sparse":
                    mask = block_mask(anchors_BN, keep_BN, length, size, work.device)  # noqa: B023
                    out = attend(q, k, v, mask)
                else:
                    dense = dense_mask(anchors_BN, keep_BN, length, size)  # noqa: B023
                    out = attend_dense(q, k, v, dense)
                torch.autograd.grad(out.sum(), (q, k, v))

            try:
                run()
            except torch.OutOfMemoryError:
                figures[f"{name}_gib"] = float("inf")
                continue
            before = work.clock.given_gib()
            # The output and the gradients of the three inputs, which are there in any case.
            needed = sum(x.numel() * x.element_size() for x in (q, q, k, v)) / GIB
            figures[f"{name}_gib"] = work.clock.peak_gib(run) - before - needed
        yield f"S={length}", figures


def replicas(work, options):
    """The trainer itself with one and with two drafters, each with a target on its own GPU.

    With two, once with gradients that are exchanged after the backward and once during it.
    """
    from stepping.replicas import road, train

    count = torch.cuda.device_count()
    if work.device.type == "cuda" and count < 2:
        yield "not measured", {"gpus": count}
        return
    if work.device.type == "cuda":
        yield "from one GPU to the other", road(work)
    rates = []
    for name, drafters, exchange in (
        ("1 drafter", 1, False),
        ("2 drafters", 2, False),
        ("2 drafters, exchange", 2, True),
    ):
        # Of a run's seconds most are its beginning's, and a few slow steps are a part of its rate.
        figures = train(work, drafters, steps=3 * options.steps, exchange=exchange)
        rates.append(figures["tokens_per_s"])
        yield name, figures
    yield "to one drafter", {"2 drafters": rates[1] / rates[0], "exchange": rates[2] / rates[0]}


PARTS = {
    part.__name__: part
    for part in (ceiling, step, profile, plain, pieces, options, chunks, table, memory, replicas)
}


def ratios(plain, fast):
    """How many times as long and as large the plain step is."""
    time, memory = plain["step_ms"]["median"] / fast["step_ms"]["median"], plain["peak_gib"]
    return {"step_ms": time, "peak_gib": memory / fast["peak_gib"]}


def rate(shape, length, anchors, figures):
    """Model TFLOP/s of measured steps."""
    return operations(shape, length, anchors).step / figures["step_ms"]["median"] / 1e9


def attention_inputs(work, length):
    shape = work.shape
    slots = shape.anchors * shape.block_size

    def heads(count, size):
        x = torch.randn(1, count, size, shape.head_dim, device=work.device, dtype=torch.bfloat16)
        return x.requires_grad_()

    batch = work.batches(length)[0]
    q, k, v = (
        heads(shape.heads, slots),
        heads(shape.kv_heads, length + slots),
        heads(shape.kv_heads, length + slots),
    )
    return q, k, v, batch.anchors_BN, batch.keep_BN


def attention_ms(work, attend, length, options):
    """Median milliseconds of attention's forward, and of forward and backward."""
    q, k, v, anchors_BN, keep_BN = attention_inputs(work, length)
    mask = block_mask(anchors_BN, keep_BN, length, work.shape.block_size, work.device)
    grad = torch.ones_like(q)

    def both():
        torch.autograd.grad(attend(q, k, v, mask), (q, k, v), grad)

    count = max(3, options.steps // 2)
    forward = work.clock.median_ms(lambda: attend(q, k, v, mask), count=count)["median"]
    return forward, work.clock.median_ms(both, count=count)["median"]
