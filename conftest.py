"""Settings of all tests and scenarios."""

import signal

from harness.causes.versions import frees_device_guard
from harness.child.versions import torch_version

# A shell's background job and nohup ignore these, and what a process ignores its children inherit:
# programs that tests interrupt would never hear of it.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:
    signal.signal(signal.SIGHUP, signal.SIG_DFL)


def pytest_sessionstart() -> None:
    """Compile in the main thread first, where torch would crash after a test's own thread (CR320).

    Tests train and compile in threads of this process, and the next one compiles again.
    """
    version, cuda = torch_version()
    if not cuda:
        return
    major, minor = (int(part) for part in version.split(".")[:2])
    if not frees_device_guard((major, minor), cuda):
        return
    import torch

    torch.compile(lambda x: x + 1, backend="eager")(torch.ones(1))
