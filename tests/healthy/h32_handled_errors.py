"""Errors of the program's own, raised in compiled code in threads and handled there."""

from concurrent.futures import ThreadPoolExecutor

import torch


@torch.compile(backend="aot_eager")
def check(x, limit):
    return x.clamp(max=limit)


def handle(row):
    try:
        if row % 3 == 0:
            int(f"row {row}")
        check(torch.ones(4), 2.0)
    except ValueError:
        return False
    else:
        return True


check(torch.ones(4), 2.0)
with ThreadPoolExecutor(3) as pool:
    print(sum(pool.map(handle, range(12))))
