"""How deep each thread is inside something: a dict from native thread id to depth.

Only a thread itself writes its own entry, so plain dict operations do without a lock.
"""

Depths = dict[int, int]


def enter(depths: Depths, tid: int) -> None:
    """Note that thread ``tid`` went one level deeper."""
    depths[tid] = depths.get(tid, 0) + 1


def leave(depths: Depths, tid: int) -> None:
    """Note that thread ``tid`` came one level up."""
    depth = depths.get(tid, 0) - 1
    if depth > 0:
        depths[tid] = depth
    else:
        depths.pop(tid, None)


def others(depths: Depths, tid: int) -> list[int]:
    """The threads besides ``tid`` that are inside."""
    return [other for other in list(depths) if other != tid] if depths else []


def inside(depths: Depths) -> list[int]:
    """All threads that are inside."""
    return list(depths)
