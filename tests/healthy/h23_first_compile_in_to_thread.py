"""The event loop's pool makes the only calls, one at a time, from whichever thread is free."""

import asyncio

import torch

compiled = torch.compile(lambda x: x.tanh() + 1, backend="aot_eager")


async def main():
    for _ in range(6):
        await asyncio.to_thread(compiled, torch.randn(8))


asyncio.run(main())
