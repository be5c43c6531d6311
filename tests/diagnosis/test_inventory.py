"""The cache inventory: entries, which guard of which entry rejected a call, and eager calls."""

import io
from pathlib import Path

from rich.console import Console

from harness.diagnosis.build import diagnose
from harness.diagnosis.inventory import accepts
from harness.render.terminal import print_report

RECORDINGS = Path(__file__).parent.parent / "recordings"


def printed(name: str, **options) -> str:
    file = io.StringIO()
    print_report(diagnose(RECORDINGS / name), Console(file=file, width=200), **options)
    return file.getvalue()


def test_why_no_entry_was_used():
    (cache,) = diagnose(RECORDINGS / "limit_used_up").caches
    assert [entry.compile_id for entry in cache.entries] == [f"0/{n}" for n in range(8)]
    assert cache.entries[3].inputs == "x [5] float32 cpu"
    first = cache.rejections[0]
    assert (first.thread.name, first.entry) == ("long", "0/0")
    assert first.guard.startswith("tensor 'x' size mismatch at index 0. expected 2, actual 3")
    told = [(use.thread.name, use.reason, use.by and use.by.name) for use in cache.eager]
    used_up = "no entry fitted, and the recompile limit had been hit"
    assert told == [
        ("long", "the recompile limit was hit", None),
        ("long", used_up, None),
        ("short", used_up, "long"),
    ]
    assert all(use.evidence for use in cache.eager)


def test_a_stance_is_named_as_what_kept_entries_from_being_used():
    uses = [use for cache in diagnose(RECORDINGS / "stance_leak").caches for use in cache.eager]
    assert {use.reason for use in uses} == {"the stance was `force_eager`"}
    assert any(use.by is not None for use in uses)


def test_the_terminal_prints_it_when_asked_to():
    assert "Compiled functions" not in printed("limit_used_up")
    text = printed("limit_used_up", caches=True)
    assert "step, project/limit_used_up.py:11" in text
    assert "0/3     grad on, num_threads 2; x [5] float32 cpu; made by long" in text
    assert "missed  long: entry 0/2 did not fit: tensor 'x' size mismatch" in text
    assert "eager   short: 4 calls or more ran eager: no entry fitted" in text
    text = printed("new_shape", caches=True)
    assert "x [16, 16] float32 cpu; takes x [?, 16] float32; made by drafter-0" in text
    assert "its guards are those of 0/1" in text


def test_what_guards_accept():
    keys = "DispatchKeySet(CUDA, BackendSelect, ADInplaceOrView, AutogradCUDA)"
    guard = (
        "TENSOR_MATCH: check_tensor({}, Tensor, {}, torch.{}, device={}, requires_grad={}, "
        "size={}, stride=[1])"
    )
    guards = (
        guard.format("L['x']", keys, "bfloat16", "0", "True", "[None, 8]"),
        guard.format("G['w']", keys, "float32", "0", "True", "[8]"),
        guard.format("L['args'][0]", keys, "int64", "None", "False", "[]"),
        "LAMBDA_GUARD: 2 <= L['x'].size()[0]",
    )
    assert accepts(guards) == "x [?, 8] bfloat16 device 0 grad, args[0] [] int64"
    assert accepts(()) == ""
