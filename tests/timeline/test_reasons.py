"""Torch's wordings of failed guards, as seen in runs of 2.11 to 2.15."""

import pytest

from harness.timeline.reasons import Guard, parse, parse_all

G = Guard


@pytest.mark.parametrize(
    ("text", "guards"),
    [
        ("0/0: GLOBAL_STATE changed: grad_mode ", {G.GRAD_MODE}),
        ("GLOBAL_STATE changed: grad_mode autocast(cuda)_enabled ", {G.GRAD_MODE, G.AUTOCAST}),
        ("0/1: GLOBAL_STATE changed: autocast(cpu)_dtype ", {G.AUTOCAST}),
        ("0/1: GLOBAL_STATE changed: autocast_cache_enabled ", {G.AUTOCAST}),
        ("0/1: GLOBAL_STATE changed: autocast ", {G.AUTOCAST}),
        ("0/0: GLOBAL_STATE changed: num_threads ", {G.NUM_THREADS}),
        ("0/0: GLOBAL_STATE changed: default_dtype allow_tf32 ", {G.NUMERIC}),
        ("0/0: GLOBAL_STATE changed: cuda_matmul_precision ", {G.NUMERIC}),
        ("0/0: GLOBAL_STATE changed: torch_function ", {G.TORCH_FUNCTION_MODE}),
        ("0/0: ___check_torch_function_mode_stack()", {G.TORCH_FUNCTION_MODE}),
        ("0/0: tensor 'key' size mismatch at index 2. expected 640, actual 2496", {G.SIZE}),
        ("0/0: tensor 'x' rank mismatch. expected 2, actual 3", {G.SIZE}),
        ("0/0: x.size()[0] % 128 == 0", {G.SIZE}),
        (
            "0/0: tensor 'mask_mod.__closure__[1].cell_contents' size mismatch at index 0",
            {G.CAPTURED},
        ),
        (
            "0/0: tensor 'key' Tensor device index mismatch. Expected \x00, actual \x01",
            {G.DEVICE},
        ),
        ("0/0: tensor 'x' dtype mismatch. expected Float, actual Half", {G.LAYOUT}),
        ("0/0: tensor 'x' stride mismatch at index 0. expected 8, actual 1", {G.LAYOUT}),
        ("0/0: tensor 'x' requires_grad mismatch. expected requires_grad=0", {G.REQUIRES_GRAD}),
        (
            "0/0: tensor 'x' dispatch key set mismatch. expected DispatchKeySet(CPU), actual D",
            {G.DISPATCH_KEYS},
        ),
        ("0/0: scale == 2", {G.VALUE}),
        ("0/1: Unexpected recompilation: runtime guards failed even though", {G.UNEXPECTED}),
        ("0/0: BACKEND_MATCH failure: torch.compile detected different", {G.BACKEND}),
    ],
)
def test_what_is_guarded(text, guards):
    assert parse(text).guards == guards


@pytest.mark.parametrize(
    ("text", "entry"),
    [("0/0: x", "0/0"), ("12/3: x", "12/3"), ("- 0/1_2: x", "0/1_2"), ("x: 0/0", None)],
)
def test_whose_entry_rejected_the_call(text, entry):
    assert parse(text).entry == entry


def test_a_user_stack_below_the_reason_is_not_read():
    text = "0/0: scale == 2\nUser stack trace:\n  File 'size mismatch.py'"
    assert parse(text).guards == {Guard.VALUE}


def test_empty_reasons_are_left_out():
    assert parse_all(("", " \n", "0/0: GLOBAL_STATE changed: grad_mode ")) == (
        parse("0/0: GLOBAL_STATE changed: grad_mode "),
    )
