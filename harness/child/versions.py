"""Which Python, torch and triton an interpreter has, found without importing them.

Also a script: the parent runs this file in the interpreter that it is going to use, optionally with
the name of a module to look for, and reads one line of JSON.
"""

from __future__ import annotations  # an older Python must get far enough to say which one it is

import sys

_FIELDS = {"__version__": "version", "cuda": "cuda", "hip": "hip"}


def torch_version() -> tuple[str, str]:
    """Return torch's version and the CUDA or ROCm version it was built for; empty if not there."""
    found = _assignments("torch", "version.py")
    cuda = found.get("cuda", "")
    hip = found.get("hip", "")
    return found.get("version", ""), cuda or (f"hip {hip}" if hip else "")


def triton_version() -> str:
    """Return triton's version; empty if not there."""
    return _assignments("triton", "__init__.py").get("version", "")


def python_version() -> str:
    """Return Python's version as ``3.11.7``."""
    return sys.version.split()[0]


def _assignments(package: str, file: str) -> dict[str, str]:
    """Read ``name = 'literal'`` lines of a package's file. Its folder is found, nothing is run."""
    from importlib.machinery import PathFinder

    spec = PathFinder.find_spec(package)
    found: dict[str, str] = {}
    for folder in (spec and spec.submodule_search_locations) or ():
        try:
            with open(f"{folder}/{file}", encoding="utf-8") as lines:  # noqa: PTH123
                for line in lines:
                    name, equals, value = line.partition("=")
                    field = _FIELDS.get(name.split(":")[0].strip())
                    if equals and field is not None and field not in found:
                        found[field] = _literal(value)
        except OSError:
            continue
    return found


def _literal(text: str) -> str:
    text = text.partition("#")[0].strip()
    quoted = len(text) > 1 and text[0] in "'\"" and text[-1] == text[0]
    return text[1:-1] if quoted else ""


def _has_module(name: str) -> bool:
    """Whether ``python -m name`` would find the module's top-level package; nothing is run."""
    import os
    from importlib.util import find_spec

    sys.path[0] = os.getcwd()  # noqa: PTH109 - as -m does, instead of this script's folder
    return find_spec(name.partition(".")[0]) is not None


if __name__ == "__main__":
    import json

    torch, cuda = torch_version()
    answer = {"python": python_version(), "torch": torch, "cuda": cuda}
    print(json.dumps({**answer, "module": all(map(_has_module, sys.argv[1:2]))}))
