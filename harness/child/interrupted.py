"""Whether a KeyboardInterrupt comes from SIGINT or from a ``raise`` of the program's own."""

import opcode
import signal
from collections.abc import Iterator

from .stacks import is_user_file


def is_raised_by_program(error: KeyboardInterrupt) -> bool:
    """Whether statements of the program raised it, and every other one that it came of.

    Python's own handler of SIGINT raises between two instructions and never at a ``raise`` (CPython
    handles signals where a function begins, a loop goes back or a call has returned). A handler of
    the program's may well raise by statement, so where there is one this cannot be told, and the
    answer is no; so it is for a statement of a library of Python's, such as asyncio, which takes
    SIGINT and raises later.
    """
    if signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
        return False
    return all(_by_statement(one) for one in _origins(error) if isinstance(one, KeyboardInterrupt))


def _origins(error: BaseException) -> Iterator[BaseException]:
    """An exception, its causes, its contexts (suppressed or not) and its members, each once."""
    seen: set[int] = set()
    todo: list[BaseException | None] = [error]
    while todo:
        one = todo.pop()
        if one is None or id(one) in seen:
            continue
        seen.add(id(one))
        yield one
        todo += [one.__cause__, one.__context__]
        if isinstance(one, BaseExceptionGroup):
            todo += one.exceptions


def _by_statement(error: BaseException) -> bool:
    traceback = error.__traceback__
    if traceback is None:
        return False
    while traceback.tb_next is not None:
        traceback = traceback.tb_next
    code = traceback.tb_frame.f_code
    instruction = opcode.opname[code.co_code[traceback.tb_lasti]]
    return instruction == "RAISE_VARARGS" and is_user_file(code.co_filename)
