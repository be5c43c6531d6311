"""Which torch versions can show which race, from the sources of 2.9 to 2.15 and from runs."""

Version = tuple[int, int]
"""(major, minor). Each constant below is the first version of which its name is true."""

UNKNOWN: Version = (0, 0)
FX_FLAG_PER_THREAD: Version = (2, 14)
FX_FLAG_MASKED: Version = (2, 13)
CONFIG_PER_THREAD: Version = (2, 12)
IS_COMPILING_HELD: Version = (2, 13)
MODE_MARKS_NO_CODE: Version = (2, 14)
DEVICE_GUARD_REPLACED: Version = (2, 10)
DEVICE_GUARD_KEPT: Version = (2, 12)


def frees_device_guard(version: Version, cuda: str) -> bool:
    """Whether a compile without a GPU leaves a device guard that is freed with its thread (CR320).

    Args:
        version: torch's (major, minor).
        cuda: the CUDA version that it was built for; empty for a CPU build. One for ROCm ("hip"
            and a version) is none: whether it does the same has not been measured.
    """
    is_cuda = bool(cuda) and not cuda.startswith("hip")
    return is_cuda and DEVICE_GUARD_REPLACED <= version < DEVICE_GUARD_KEPT


def fx_flag(version: Version, name: str) -> str:
    """Whether torch can raise the FX error in one thread because another compiles or traces.

    Args:
        version: torch's (major, minor); (0, 0) if not known.
        name: torch's full version, for the sentence.
    """
    if version == UNKNOWN:
        return "The torch version is not known, so nor is whether it can raise the FX error."
    if version >= FX_FLAG_PER_THREAD:
        return (
            f"torch {name} cannot raise the FX error in `compile_wrapper` because of another "
            "thread: since 2.14 the FX-tracing flag is thread-local."
        )
    if version >= FX_FLAG_MASKED:
        return (
            f"torch {name} hides the FX-tracing flag while dynamo compiles, so these compiles "
            "cannot raise the FX error in another thread; an FX trace outside a compile can "
            "(fixed in 2.14)."
        )
    return (
        f"torch {name} can raise the FX error (`Detected that you are using FX to symbolically "
        "trace a dynamo-optimized function`) in any thread whose cached call comes while one of "
        "these compiles traces; it did not happen in this run (fixed in 2.14)."
    )
