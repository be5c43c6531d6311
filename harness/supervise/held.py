"""Which locks a thread holds, read off the source around the lines that it is in."""

import ast
import functools
from collections.abc import Iterator
from pathlib import Path

_MAX_FILE = 1 << 20
_MAX_HELD = 8
_SCOPES = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)
_NAMES = (ast.Name, ast.Attribute, ast.Subscript)


def held_in(file: str, line: int, function: str) -> tuple[str, ...]:
    """What a line is run with, as the program calls it.

    That is what the ``with`` statements whose body the line is in have entered, and what the same
    function has called ``acquire`` of before that line, and not ``release`` since. Names,
    attributes and elements, such as ``locks[0]``; not calls, which make what they enter. A context
    manager that is no lock is among them: only whoever waits for one of that name tells.

    Args:
        file: the file, which is read.
        line: the line in which a frame is.
        function: the frame's function, qualified or not; ``<module>`` at a module's top level.
    """
    tree = _parsed(file)
    if tree is None:
        return ()
    node, entered = _around(tree, line, function.rpartition(".")[2])
    if node is None:
        return ()
    return tuple(list(dict.fromkeys([*entered, *_acquired(node, line)]))[:_MAX_HELD])


def _acquired(scope: ast.AST, line: int) -> list[str]:
    """What a scope has acquired by calls before a line and not released since, by line numbers."""
    calls: list[tuple[int, str, str]] = []
    todo = list(ast.iter_child_nodes(scope))
    while todo:
        node = todo.pop()
        if isinstance(node, _SCOPES):
            continue
        todo += ast.iter_child_nodes(node)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            of = node.func.value
            if node.func.attr in {"acquire", "release"} and isinstance(of, _NAMES):
                calls.append((node.lineno, node.func.attr, ast.unparse(of)))
    held: dict[str, None] = {}
    for at, what, name in sorted(calls):
        if at >= line:
            break
        if what == "acquire":
            held[name] = None
        else:
            held.pop(name, None)
    return list(held)


def _around(tree: ast.Module, line: int, function: str) -> tuple[ast.AST | None, list[str]]:
    """The innermost function of that name around a line, None if there is none, and the names."""
    best: list[str] = []
    scope: ast.AST | None = None
    level: list[tuple[ast.AST, list[str], ast.AST | None]]
    level = [(tree, [], tree if function == "<module>" else None)]
    while level:
        node, held, inside = level.pop()
        if inside is not None and (isinstance(node, ast.Module) or _has(node, line)):
            best, scope = held, inside
        for child, entered in _children(node, line):
            if isinstance(child, _SCOPES):
                own = getattr(child, "name", "<lambda>") == function
                level.append((child, [], child if own else None))
            else:
                level.append((child, [*held, *entered], inside))
    return scope, best


def _children(node: ast.AST, line: int) -> Iterator[tuple[ast.AST, list[str]]]:
    """What a line is in of what a node consists of, and what it is entered with."""
    entered: list[str] = []
    body: set[int] = set()
    if isinstance(node, ast.With | ast.AsyncWith):
        items = (item.context_expr for item in node.items)
        entered = [ast.unparse(item) for item in items if isinstance(item, _NAMES)]
        # A line that has both the header and the body may still be waiting in the header.
        last = max(item.context_expr.end_lineno or node.lineno for item in node.items)
        body = {id(child) for child in node.body if child.lineno > last}
    for child in ast.iter_child_nodes(node):
        if _has(child, line):
            yield child, entered if id(child) in body else []


def _has(node: ast.AST, line: int) -> bool:
    first = getattr(node, "lineno", None)
    if first is None:  # a match case, an exception handler's parts and the like have no line
        return any(_has(child, line) for child in ast.iter_child_nodes(node))
    return bool(first <= line <= (getattr(node, "end_lineno", None) or first))


@functools.lru_cache(maxsize=64)
def _parsed(file: str) -> ast.Module | None:
    try:
        path = Path(file)
        if not path.is_file() or path.stat().st_size > _MAX_FILE:
            return None
        return ast.parse(path.read_bytes())
    except (OSError, ValueError, SyntaxError, RecursionError, MemoryError):
        return None
