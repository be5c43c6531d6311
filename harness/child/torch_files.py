"""Files, folders and functions of torch by which a code object or a frame is told.

Paths are below torch's own folder. Read in the wheels of 2.11.0, 2.13.0 and 2.14.1.
"""

import os

#: Where inductor's CUDA graph trees capture and replay.
GRAPH_TREES_FILE = os.path.join("_inductor", "cudagraph_trees.py")  # noqa: PTH118

# Functions of torch's flex_attention that hold B x H x Q x KV elements, and what for.
MEMORY_FRAMES = {
    "math_attention": "dense_attention",
    "sdpa_dense_backward": "dense_backward",
    "create_mask": "block_mask",
    "create_block_mask": "block_mask",
    "_convert_mask_to_block_mask": "block_mask",
}
FLEX_FILES = (
    os.path.join("_higher_order_ops", "flex_attention.py"),  # noqa: PTH118
    os.path.join("nn", "attention", "flex_attention.py"),  # noqa: PTH118
)

HOP_WRAPPER = "_flex_attention_hop_wrapper"
MODULE_CALLS = frozenset({"_call_impl", "_wrapped_call_impl"})
MODULE_FOLDERS = (os.path.join("nn", "modules"),)  # noqa: PTH118
# What dynamo does with a whole file is decided by these folders of torch: the first hold functions
# that torch compiles for its own use, the second the code that runs a compiled graph.
INTERNAL_FOLDERS = ("_higher_order_ops", "_inductor", "_functorch", "_dynamo", "_export")
# What torch.func's transforms return is defined there, and is the program's when it compiles that.
TRANSFORMS = (f"_functorch{os.sep}apis.py", f"_functorch{os.sep}eager_transforms.py")
GRAPH_RUNNERS = (
    os.path.join("_functorch", "_aot_autograd"),  # noqa: PTH118
    os.path.join("fx", "interpreter.py"),  # noqa: PTH118
    os.path.join("fx", "graph_module.py"),  # noqa: PTH118
)
AOT_RUNTIME = GRAPH_RUNNERS[:1]

#: A thread with a frame in one of these may have the compiler's process-wide state set: it compiles
#: or traces, or it annotates a block mask.
COMPILER = (
    os.path.join("_dynamo", "convert_frame.py"),  # noqa: PTH118
    os.path.join("_inductor", "compile_fx.py"),  # noqa: PTH118
    os.path.join("fx", "_symbolic_trace.py"),  # noqa: PTH118
    os.path.join("fx", "experimental", "proxy_tensor.py"),  # noqa: PTH118
    os.path.join("fx", "traceback.py"),  # noqa: PTH118
    *FLEX_FILES,
)

#: The folder of the higher-order operators.
OPERATORS = (f"_higher_order_ops{os.sep}",)

#: What FX calls the file of the code that it generates.
GENERATED_GRAPH = "<eval_with_key>"
