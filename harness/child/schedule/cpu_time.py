"""CPU time of a thread, and of the processes below this one: inductor compiles in workers."""

import os


def helpers_cpu_s() -> float | None:
    """CPU seconds used so far by all processes below this one; None if it has none.

    Also None where there is no ``/proc``.
    """
    parents: dict[int, tuple[int, float]] = {}
    try:
        names = [name for name in os.listdir("/proc") if name.isdigit()]  # noqa: PTH208 - few imports
        tick = os.sysconf("SC_CLK_TCK")
    except (OSError, ValueError):
        return None
    for name in names:
        try:
            with open(f"/proc/{name}/stat", encoding="ascii", errors="replace") as file:  # noqa: PTH123
                # proc(5): after the command in brackets come state, ppid ... utime, stime.
                fields = file.read().rpartition(")")[2].split()
        except OSError:  # it has just ended
            continue
        parents[int(name)] = (int(fields[1]), (int(fields[11]) + int(fields[12])) / tick)
    own = os.getpid()
    below = [cpu for pid, (_, cpu) in parents.items() if _descends(pid, own, parents)]
    return sum(below) if below else None


def thread_cpu_s(tid: int) -> float | None:
    """CPU seconds used so far by a thread of this process; None where the kernel does not tell.

    The first number of ``schedstat`` (Linux, Documentation/scheduler/sched-stats.rst).
    """
    try:
        with open(f"/proc/self/task/{tid}/schedstat", encoding="ascii") as file:  # noqa: PTH123
            used_ns = int(file.read().split()[0])
    except (OSError, ValueError, IndexError):
        return None
    return used_ns / 1e9 or None  # all zero where the kernel keeps no such account


def _descends(pid: int, ancestor: int, parents: dict[int, tuple[int, float]]) -> bool:
    seen = set()
    while pid in parents and pid not in seen:
        seen.add(pid)
        pid = parents[pid][0]
        if pid == ancestor:
            return True
    return False
