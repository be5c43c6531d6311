"""A server of asyncio's: one warm-up, then calls by asyncio.to_thread, one after another."""

import asyncio

import torch

compiled = torch.compile(torch.nn.Linear(8, 2).eval(), backend="aot_eager")


def infer(x):
    with torch.inference_mode():
        return compiled(x)


async def main():
    await asyncio.to_thread(infer, torch.randn(4, 8))
    for _ in range(3):
        await asyncio.gather(*(asyncio.to_thread(infer, torch.randn(4, 8)) for _ in range(4)))


asyncio.run(main())
