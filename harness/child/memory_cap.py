"""A bound on the memory that the program gets, so that running out of it harms nobody else.

Where a GPU is visible, the caching allocator of each is given a part of it
(``torch.cuda.set_per_process_memory_fraction``). Elsewhere the system bounds the process's data
segment, RLIMIT_DATA: the heap and private writable mappings, which tensors are made of
(setrlimit(2), Linux 4.7 and newer). Not the address space, RLIMIT_AS: libraries and thread stacks
that are only mapped take 2 GiB of it for a program of torch 2.13.0 (CPU) that holds 0.45 GiB of
data, and under 1 GiB libgomp cannot start its threads, where under RLIMIT_DATA the same program
runs.
"""

from typing import Any


def limit_data(cap: int) -> int:
    """Bound this process's data segment and those of processes that it starts.

    Args:
        cap: bytes.

    Returns:
        The bound in force: a lower one that was there stays.

    Raises:
        OSError, ValueError: the system refuses.
        ImportError: the system has no such limits.
    """
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_DATA)
    bounds = [cap, *(bound for bound in (soft, hard) if bound != resource.RLIM_INFINITY)]
    resource.setrlimit(resource.RLIMIT_DATA, (min(bounds), hard))
    return min(bounds)


def limit_gpus(cuda: Any, cap: int) -> dict[str, int]:
    """Bound what the caching allocator takes of each GPU.

    To be called in the thread that initialises CUDA, before it allocates. Every GPU gets a context.

    Args:
        cuda: ``torch.cuda``.
        cap: bytes of each GPU.

    Returns:
        The bound of each device in bytes, by its name; GPUs smaller than the cap have none.
    """
    bounds: dict[str, int] = {}
    # Setting a fraction leaves its device current (c10/cuda/CUDACachingAllocator.cpp).
    current = cuda.current_device()
    try:
        for index in range(cuda.device_count()):
            total = int(cuda.get_device_properties(index).total_memory)
            if cap < total:
                cuda.set_per_process_memory_fraction(cap / total, index)
                bounds[f"cuda:{index}"] = cap
    finally:
        cuda.set_device(current)
    return bounds
