"""The warm-up that covers what a program's threads missed, as Python code for that program."""

from collections.abc import Iterator, Sequence
from pathlib import Path

from harness.certificate.model import Suggestion
from harness.certificate.seen import Call, arguments_of
from harness.events.values import Context, TensorInput
from harness.supervise.program import Program

WRAPPER = "with_warmup.py"
_MARKER = "harness.warmup_done()"
_FLOATS = ("float", "bfloat", "complex")
_PLACE = f"in the main thread, before the threads start (where {_MARKER} is, say)"


def warmup_code(missed: Sequence[Call]) -> Suggestion | None:
    """Code for the calls that missed; None if there are none.

    ``obstacle`` says what keeps it from being run as it is.
    """
    if not missed:
        return None
    blocks = dict.fromkeys(tuple(_block(call)) for call in missed)
    lines = ("import torch", *_imports(missed), "", *(line for block in blocks for line in block))
    return Suggestion(lines=lines, why=f"To be run {_PLACE}.", obstacle=_obstacle(missed))


def with_warmup(
    folder: Path, program: Program, suggestion: Suggestion, *, marked: bool
) -> Suggestion:
    """Write a program into ``folder`` that runs the given one with the warm-up put in.

    Returns the suggestion with the words that run it, or with what stands in the way.
    """
    obstacle = suggestion.obstacle
    words = list(program.words)
    at = next((n for n, word in enumerate(words) if not word.startswith("-")), len(words))
    plain = program.module is None and at < len(words) and Path(words[at]).is_file()
    if not obstacle and not marked:
        obstacle = (
            f"the program does not say where its warm-up ends: call {_MARKER} there, so that the "
            "code can be put before it"
        )
    if not obstacle and not (plain and all(word.startswith("-") for word in words[:at])):
        obstacle = "the program is no script that can be run from another one"
    if obstacle:
        return _with(suggestion, obstacle=obstacle)
    path = folder / WRAPPER
    path.write_text(_wrapper(suggestion.lines, Path(words[at]).resolve()), encoding="utf-8")
    return _with(suggestion, argv=(*words[:at], str(path), *words[at + 1 :]))


def _with(suggestion: Suggestion, *, obstacle: str = "", argv: tuple[str, ...] = ()) -> Suggestion:
    return Suggestion(lines=suggestion.lines, why=suggestion.why, argv=argv, obstacle=obstacle)


def _wrapper(lines: Sequence[str], script: Path) -> str:
    code = "\n".join(lines)
    return f'''"""Runs a script with a warm-up of its compiled code put in before {_MARKER}."""

import runpy
import sys

import harness

SCRIPT = {str(script)!r}
WARM_UP = {code!r}

said = harness.warmup_done
ran = []


def warmup_done():
    if not ran:
        ran.append(True)
        exec(compile(WARM_UP, "warm-up", "exec"), dict(vars(sys.modules["__main__"])))
    said()


harness.warmup_done = warmup_done
sys.argv[0] = SCRIPT
sys.path[0] = SCRIPT.rpartition("/")[0]
runpy.run_path(SCRIPT, run_name="__main__")
'''


def _imports(missed: Sequence[Call]) -> list[str]:
    named = dict.fromkeys(call.event.data.called for call in missed)
    return [
        f"from {called[0]} import {called[1]}"
        for called in named
        if len(called) == 2 and called[0] != "__main__"
    ]


def _obstacle(missed: Sequence[Call]) -> str:
    for call in missed:
        data = call.event.data
        if len(data.called) != 2:
            return f"no global name of the program's stands for the compiled `{data.code.name}`"
        for argument, _ in arguments_of(call):
            if argument.kind == "other":
                return (
                    f"argument {argument.name} of `{data.code.name}` is a {argument.text}, which "
                    "only the program can make"
                )
        if data.dispatch_modes or data.stance:
            what = ", ".join(data.dispatch_modes) or f"the stance {data.stance}"
            return f"`{data.code.name}` was called under {what}, which no warm-up covers"
        odd = [m for m in data.context.torch_function_modes if not m.startswith("DeviceContext")]
        if odd:
            return f"`{data.code.name}` was called under {', '.join(odd)}, which the program makes"
    return ""


def _block(call: Call) -> Iterator[str]:
    context = call.event.data.context
    depth = 0
    for manager in _managers(context):
        yield f"{'    ' * depth}with {manager}:"
        depth += 1
    indent = "    " * depth
    for argument, _ in arguments_of(call):
        if argument.kind == "other":
            name = _placeholder(argument.name)
            yield f"{indent}# {name}: a {argument.text}, as the program makes it"
    expression = _expression(call)
    grad = context.grad_mode and not context.inference_mode
    if grad and call.backward:
        yield f"{indent}out = {expression}"
        yield f"{indent}(out if isinstance(out, torch.Tensor) else out[0]).sum().backward()"
    else:
        yield f"{indent}{expression}"


def _managers(context: Context) -> Iterator[str]:
    if context.inference_mode:
        yield "torch.inference_mode()"
    else:
        yield "torch.enable_grad()" if context.grad_mode else "torch.no_grad()"
    for device, (enabled, dtype) in sorted(context.autocast.items()):
        if enabled:
            yield f'torch.autocast("{device}", dtype={dtype})'
    for mode in context.torch_function_modes:
        if mode.startswith("DeviceContext"):
            yield f'torch.device("{context.default_device}")'
    # Threads of the system's own settings each begin with the defaults of torch's config.
    for name, value in sorted(context.config.items()):
        yield f"torch._dynamo.config.patch({name}={value!r})"


def _expression(call: Call) -> str:
    data = call.event.data
    name = data.called[1] if len(data.called) == 2 else data.code.name
    words = []
    for argument, tensor in arguments_of(call):
        text = argument.text if tensor is None else _example(tensor)
        if argument.kind == "other":
            text = _placeholder(argument.name)
        words.append(f"{argument.keyword}={text}" if argument.keyword else text)
    return f"{name}({', '.join(words)})"


def _placeholder(name: str) -> str:
    return "".join(c if c.isalnum() else "_" for c in name).strip("_")


def _example(tensor: TensorInput) -> str:
    shape, dtype = list(tensor.shape), tensor.dtype
    floating = dtype.removeprefix("torch.").startswith(_FLOATS)
    make = "randn" if floating else "zeros"
    where = f', device="{tensor.device}"' if tensor.device != "cpu" else ""
    kind = f", dtype={dtype}" if dtype != "torch.float32" else ""
    grad = ", requires_grad=True" if tensor.requires_grad else ""
    return f"torch.{make}({shape}{kind}{where}{grad})"
