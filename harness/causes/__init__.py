"""Causes: one module each, a pure function from a timeline to findings."""

from typing import cast

from harness.causes import (
    cr101_grad_mode,
    cr102_inference_mode,
    cr103_autocast,
    cr104_torch_function_mode,
    cr107_config_per_thread,
    cr201_new_shape,
    cr202_captured_tensor,
    cr204_device_not_warmed,
    cr207_backward_not_warmed,
    cr208_cold_start,
    cr301_fx_flag_seen,
    cr302_fx_flag_left_set,
    cr303_compile_stampede,
    cr304_is_compiling_seen,
    cr308_fx_patcher_leak,
    cr310_fx_annotation,
    cr312_stance_leak,
    cr318_dispatch_mode_skip,
    cr401_dense_attention,
    cr402_out_of_memory_from_fallback,
    cr403_recompile_limit_eager,
    cr404_checkpoint_recompute_mismatch,
    cr405_fallback_warning_swallowed,
    cr406_block_mask_out_of_memory,
    cr901_thread_error_swallowed,
    cr902_native_crash,
    cr903_hang,
    cr904_out_of_memory,
    cr905_program_failed,
    cr906_killed_from_outside,
)
from harness.causes.base import Cause

CAUSES: tuple[Cause, ...] = tuple(
    cast("Cause", module)
    for module in (
        cr101_grad_mode,
        cr102_inference_mode,
        cr103_autocast,
        cr104_torch_function_mode,
        cr107_config_per_thread,
        cr208_cold_start,
        cr204_device_not_warmed,
        cr202_captured_tensor,
        cr201_new_shape,
        cr207_backward_not_warmed,
        cr303_compile_stampede,
        cr301_fx_flag_seen,
        cr302_fx_flag_left_set,
        cr304_is_compiling_seen,
        cr308_fx_patcher_leak,
        cr310_fx_annotation,
        cr312_stance_leak,
        cr318_dispatch_mode_skip,
        cr403_recompile_limit_eager,
        cr401_dense_attention,
        cr402_out_of_memory_from_fallback,
        cr406_block_mask_out_of_memory,
        cr405_fallback_warning_swallowed,
        cr404_checkpoint_recompute_mismatch,
        cr902_native_crash,
        cr903_hang,
        cr906_killed_from_outside,
        cr904_out_of_memory,
        # Errors last: what is left when everything else has accounted for its own.
        cr901_thread_error_swallowed,
        cr905_program_failed,
    )
)
"""Every cause, in the order in which they are asked: what is nearer to the root comes first."""
