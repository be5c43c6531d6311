"""Whose a frame is, what of a deep stack is kept, and in which order."""

import json
import sys
import sysconfig
import threading

import pytest

from harness.child import stacks
from harness.child.stacks import frames_of, is_user_file, user_stack


def test_innermost_first_with_plain_names() -> None:
    class Model:
        def forward(self):
            return user_stack()

    kept = Model().forward()
    assert [frame[2] for frame in kept[:2]] == ["forward", "test_innermost_first_with_plain_names"]
    assert kept[0][0] == __file__
    assert kept[0][3] is True


def test_skip_leaves_out_the_innermost() -> None:
    def inner():
        return user_stack(skip=1)

    assert inner()[0][2] == "test_skip_leaves_out_the_innermost"
    assert user_stack(skip=10_000) == []


@pytest.mark.parametrize(
    ("path", "user"),
    [
        (threading.__file__, False),
        (json.__file__, False),
        (stacks.__file__, False),
        ("<frozen importlib._bootstrap>", False),
        ("<eval_with_key>.12", False),
        ("<string>", True),
        ("<stdin>", True),
        ("<ipython-input-3-abc>", True),
        (pytest.__file__, True),
        (__file__, True),
        ("/srv/app/torchlike/train.py", True),
        ("/tmp/torchinductor_me/ab/cabc.py", False),
        (sysconfig.get_path("purelib") + "/somewhere/else.py", True),
    ],
)
def test_whose_file_it_is(path, user) -> None:
    assert is_user_file(path) is user


def test_torch_is_known_by_where_it_was_imported_from(run, tmp_path) -> None:
    torch = tmp_path / "src" / "torch"
    torch.mkdir(parents=True)
    (torch / "__init__.py").write_text("def call(f): return f()\n")
    program = """
        import sys
        sys.path.insert(0, sys.argv[1])
        from _compile_race_child.stacks import is_user_file, user_stack
        import torch
        def mine(): return user_stack()
        for frame in torch.call(mine): print(frame[2], frame[3])
        print(is_user_file(sys.argv[1] + "/torchvision/ops.py"))
    """
    child = run(program, str(tmp_path / "src"))
    assert child.out.splitlines() == ["mine True", "call False", "<module> True", "True"], child.err


def test_generated_code_in_a_run_of_its_own_cache_is_nobodys(run, tmp_path) -> None:
    program = """
        import sys
        from _compile_race_child.stacks import is_user_file
        print(is_user_file(sys.argv[1] + "/xy/cxyz.py"))
    """
    cache = str(tmp_path / "cache")
    assert run(program, cache, TORCHINDUCTOR_CACHE_DIR=cache).out == "False\n"


def _library(depth: int, then):
    """Recurse in a function that counts as the standard library's."""
    scope: dict = {}
    text = "def call(depth, then):\n    return call(depth - 1, then) if depth else then()\n"
    exec(compile(text, "<frozen library>", "exec"), scope)
    return scope["call"](depth, then)


def test_of_a_long_run_of_library_frames_both_ends_are_kept() -> None:
    def user():
        return user_stack(limit=12)

    kept = _library(100, user)
    assert kept[0][2] == "user"
    assert [frame[2] for frame in kept[1:9]] == ["call"] * 8
    assert kept[9][2] == "_library"
    assert len(kept) <= 12


def test_the_limit_holds_for_user_frames() -> None:
    def deep(depth):
        return user_stack(limit=10) if depth == 0 else deep(depth - 1)

    kept = deep(50)
    assert [frame[2] for frame in kept] == ["deep"] * 10


def test_a_traceback_runs_from_the_outermost_call() -> None:
    def inner():
        raise ZeroDivisionError

    def outer():
        inner()

    with pytest.raises(ZeroDivisionError) as caught:
        outer()
    frames = frames_of(caught.value.__traceback__)
    assert [frame[2] for frame in frames] == [sys._getframe().f_code.co_name, "outer", "inner"]


def test_of_a_very_deep_traceback_the_middle_is_cut() -> None:
    def deep(depth):
        if depth == 0:
            raise ZeroDivisionError
        deep(depth - 1)

    with pytest.raises(ZeroDivisionError) as caught:
        deep(200)
    frames = frames_of(caught.value.__traceback__)
    assert len(frames) == 60
    assert frames[0][2] == sys._getframe().f_code.co_name
    assert frames[-1][1] == deep.__code__.co_firstlineno + 2
    assert frames_of(None) == []
