"""Whose code a frame or a thread is."""

import pytest

from harness.events.values import Frame
from harness.timeline.frames import is_started_by_torch, is_torch

INSTALLED = "/home/user/venv/lib/python3.12/site-packages"
POOL = f"{INSTALLED}/torch/_inductor/compile_worker/subproc_pool.py"
EXECUTOR = "/usr/lib/python3.12/concurrent/futures/thread.py"


def frame(file, *, user=False):
    return Frame(file, 1, "f", user)


@pytest.mark.parametrize(
    ("file", "torchs"),
    [
        (POOL, True),
        (f"{INSTALLED}/triton/compiler.py", True),
        ("/src/pytorch/torch/_dynamo/eval_frame.py", True),
        ("/usr/lib/python3/dist-packages/torch/utils/checkpoint.py", True),
        ("/usr/lib/python3.12/threading.py", False),
        ("/srv/torch/lib/python3.12/threading.py", False),
        ("/srv/torch/lib/python3.12/site-packages/harness/run.py", False),
        ("<frozen runpy>", False),
    ],
)
def test_frames_of_torch(file, torchs):
    assert is_torch(frame(file)) == torchs


def test_a_users_frame_is_never_torchs():
    assert not is_torch(frame("/home/user/torch/train.py", user=True))


@pytest.mark.parametrize(
    ("files", "torchs"),
    [
        ([(POOL, False), ("/home/user/train.py", True)], True),
        ([(EXECUTOR, False), (POOL, False)], True),
        ([(EXECUTOR, False), ("/home/user/train.py", True), (POOL, False)], False),
        ([(EXECUTOR, False)], False),
        ([], False),
    ],
)
def test_whoever_is_nearest_started_the_thread(files, torchs):
    assert is_started_by_torch(frame(file, user=user) for file, user in files) == torchs
