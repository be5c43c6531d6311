"""Python imports this at start-up because its folder is on PYTHONPATH.

It loads the harness's child package by path under a private name, so that nothing else of the
harness becomes importable in the program's environment, and then hands over to the sitecustomize
that would have been imported without it.
"""  # noqa: INP001 - a folder of its own on PYTHONPATH, not a package

import os
import sys

_HERE = os.path.dirname(os.path.abspath(__file__))  # noqa: PTH100, PTH120 - keep imports few


def _attach() -> None:
    if not os.environ.get("COMPILE_RACE_WATCH"):
        return
    try:
        from importlib.util import module_from_spec, spec_from_file_location

        package = os.path.dirname(_HERE)  # noqa: PTH120
        name = "_compile_race_child"
        spec = spec_from_file_location(
            name, f"{package}/__init__.py", submodule_search_locations=[package]
        )
        assert spec is not None
        assert spec.loader is not None
        module = module_from_spec(spec)
        sys.modules[name] = module
        spec.loader.exec_module(module)
        from _compile_race_child.boot import boot  # type: ignore[import-not-found]

        boot()
    except KeyboardInterrupt:
        _end_interrupted()
        raise  # SIGINT is blocked
    except Exception:  # noqa: BLE001 - the program must run all the same
        # Not even the package could be loaded; the parent sees that there is no recording.
        sys.modules.pop("_compile_race_child", None)


def _end_interrupted() -> None:
    """End by SIGINT: nothing of the program ran yet, and Python would print a traceback of ours."""
    import signal

    signal.signal(signal.SIGINT, signal.SIG_DFL)
    os.kill(os.getpid(), signal.SIGINT)


def _hand_over() -> None:
    from importlib.machinery import PathFinder
    from importlib.util import module_from_spec

    here = os.path.realpath(_HERE)
    elsewhere = [folder for folder in sys.path if os.path.realpath(folder or ".") != here]
    spec = PathFinder.find_spec("sitecustomize", elsewhere)
    if spec is None or spec.loader is None:
        return
    module = module_from_spec(spec)
    # The import system returns whatever is here once this module has run.
    sys.modules["sitecustomize"] = module
    spec.loader.exec_module(module)


_attach()
_hand_over()
