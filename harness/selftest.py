"""A program that makes every probe speak, run as a script in the interpreter to be examined.

It needs torch and nothing else, and prints one JSON line: the GPUs that torch sees.
"""

import concurrent.futures
import json
import threading
import warnings
from typing import Any


def main() -> None:
    """Make each probe speak: compile, miss, run eager, go backward, wait, build a mask, ..."""
    import torch
    from torch.nn.attention.flex_attention import create_block_mask, flex_attention

    gpus = [torch.cuda.get_device_name(index) for index in range(torch.cuda.device_count())]
    compiled = torch.compile(lambda x: x.sin(), backend="aot_eager", dynamic=False)
    for size in (4, 5):  # the second size misses the guards; each backward is compiled by itself
        compiled(torch.randn(size, requires_grad=True)).sum().backward()
    with torch.compiler.set_stance("force_eager"):
        for _ in range(2):  # what came of a call is known at the next one
            compiled(torch.randn(4, requires_grad=True))
    _wait_for_lock()
    create_block_mask(lambda _b, _h, q, k: q >= k, 1, 1, 128, 128, device="cpu")
    query = torch.randn(1, 1, 128, 16)
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that it is dense is the point
        flex_attention(query, query, query)
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        pool.submit(_fail).exception()
    print(json.dumps({"gpus": gpus}))


def _wait_for_lock() -> None:
    import torch

    value = torch.ones(3)
    other = torch.compile(lambda x: x.cos(), backend="eager")

    def backend(graph: Any, _inputs: Any) -> Any:  # noqa: ANN401 - torch is not imported above
        # Dynamo holds its lock here, so the other thread's first call has to wait for it.
        thread.start()
        thread.join(1.0)
        return graph.forward

    thread = threading.Thread(target=other, args=(value,))
    torch.compile(lambda x: x.tan(), backend=backend)(value)
    thread.join()


def _fail() -> None:
    raise ValueError("raised on purpose by the self-test")


if __name__ == "__main__":
    main()
