"""The rules that keep the rooms apart, each read off the code."""

import ast
import re
import subprocess
import sys
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

from harness.causes import CAUSES

ROOT = Path(__file__).parent.parent
CHILD = ROOT / "harness" / "child"
WITHOUT_TORCH = ("events", "timeline", "causes", "diagnosis", "render", "logs")

# Documented by PyTorch under these names; no public spelling of them exists.
DOCUMENTED = {
    "torch._dynamo",
    "torch._dynamo.config",
    "torch._dynamo.mark_static",
    "torch._dynamo.maybe_mark_dynamic",
    "torch._inductor",
    "torch._inductor.list_mode_options",
}


def modules(*folders: str) -> list[Path]:
    return [path for folder in folders for path in sorted((ROOT / folder).rglob("*.py"))]


def imports(path: Path) -> list[tuple[str, int]]:
    """Absolute imports of a file with their nesting: 0 at the top of the module."""
    found = []

    def visit(node: ast.AST, depth: int) -> None:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.Import):
                found.extend((alias.name, depth) for alias in child.names)
            elif isinstance(child, ast.ImportFrom) and not child.level:
                found.extend((f"{child.module}.{alias.name}", depth) for alias in child.names)
            inner = isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
            visit(child, depth + inner)

    visit(ast.parse(path.read_text()), 0)
    return found


def top(name: str) -> str:
    return name.split(".", maxsplit=1)[0]


@pytest.mark.parametrize("path", modules("harness/child"), ids=lambda p: str(p.relative_to(CHILD)))
def test_the_child_needs_only_the_standard_library_and_never_imports_torch_first(path) -> None:
    for name, depth in imports(path):
        # sitecustomize loads the rest of the package under its private name.
        assert top(name) in sys.stdlib_module_names | {"torch", "_compile_race_child"}, name
        assert top(name) != "torch" or depth > 0, f"{name} at import time"


def test_the_child_can_be_loaded_under_another_name() -> None:
    for path in modules("harness/child"):
        assert not any(top(name) == "harness" for name, _ in imports(path)), path


@pytest.mark.parametrize("folder", WITHOUT_TORCH)
def test_a_recording_is_diagnosed_without_torch(folder) -> None:
    for path in modules(f"harness/{folder}"):
        assert not any(top(name) == "torch" for name, _ in imports(path)), path


def test_nothing_on_the_way_from_a_recording_to_a_report_imports_torch() -> None:
    program = (
        "import sys; sys.modules['torch'] = None\n"
        "import harness.report, harness.explain, harness.run, harness.watch, harness.diagnose, "
        "harness.gate"
    )
    subprocess.run([sys.executable, "-c", program], cwd=ROOT, check=True)


def test_the_supervisor_knows_nothing_of_diagnosis() -> None:
    allowed = {"child", "events", "exits", "supervise", "__version__"}
    for path in modules("harness/supervise"):
        ours = {name.split(".")[1] for name, _ in imports(path) if top(name) == "harness"}
        assert ours <= allowed, path


# From events to the report: what may be imported by what comes later, and never the other way.
LATER = {
    "events": {"timeline", "causes", "diagnosis", "render"},
    "timeline": {"causes", "diagnosis", "render"},
    "causes": {"diagnosis", "render"},
    "diagnosis": {"render"},
    "render": {"causes"},
}


@pytest.mark.parametrize("folder", LATER)
def test_each_room_on_the_way_to_the_report_knows_only_those_before_it(folder) -> None:
    for path in modules(f"harness/{folder}"):
        ours = {name.split(".")[1] for name, _ in imports(path) if top(name) == "harness"}
        assert not ours & LATER[folder], path


def test_a_cause_does_not_know_another_one() -> None:
    """What two of them read has a module of its own, named for what it reads."""
    causes = [path for path in modules("harness/causes") if re.match(r"cr\d", path.name)]
    assert causes
    for path in causes:
        names = [name.split(".")[2:3] for name, _ in imports(path)]
        assert not [name for (name,) in filter(None, names) if re.match(r"cr\d", name)], path


def test_the_trainer_does_not_know_the_harness() -> None:
    for path in modules("dflash_min"):
        assert not any(top(name) == "harness" for name, _ in imports(path)), path


@pytest.mark.parametrize("package", ["dflash_min", "harness"])
def test_no_module_needs_one_that_needs_it(package) -> None:
    files = {
        ".".join(path.relative_to(ROOT).with_suffix("").parts): path for path in modules(package)
    }
    needs = {
        name: {
            known
            for said, _ in imports(path)
            for known in (said, said.rpartition(".")[0])
            if known in files and known != name
        }
        for name, path in files.items()
    }
    # Raises CycleError, which names a circle.
    assert len(list(TopologicalSorter(needs).static_order())) == len(files)


def private_torch_names(path: Path) -> set[str]:
    """Dotted names below ``torch`` with a part that begins with an underscore."""
    names = {name for name, _ in imports(path)}
    for node in ast.walk(ast.parse(path.read_text())):
        dotted = ast.unparse(node) if isinstance(node, ast.Attribute) else ""
        if dotted.startswith("torch.") and dotted.replace(".", "").replace("_", "").isalnum():
            names.add(dotted)
    return {
        name
        for name in names
        if top(name) == "torch"
        and any(part.startswith("_") and not part.endswith("__") for part in name.split("."))
    }


PRIVATE_TEXT = re.compile(r"\btorch[./](?:\w+[./])*_\w+")


def private_torch_texts(path: Path) -> set[str]:
    """Private names and files of torch in a module's strings, docstrings aside."""
    tree = ast.parse(path.read_text())
    documented = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    docstrings = {
        id(node.body[0].value)
        for node in ast.walk(tree)
        if isinstance(node, documented) and node.body and isinstance(node.body[0], ast.Expr)
    }
    return {
        found
        for node in ast.walk(tree)
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
        if id(node) not in docstrings
        for found in PRIVATE_TEXT.findall(node.value)
    }


def test_private_torch_symbols_are_named_in_no_string_either() -> None:
    home = CHILD / "torch_symbols.py"
    assert private_torch_texts(home)
    for path in modules("harness/child"):
        if path != home:
            assert not private_torch_texts(path), path


def test_private_torch_symbols_have_one_home() -> None:
    home = CHILD / "torch_symbols.py"
    for path in modules("harness", "dflash_min"):
        if path != home:
            names = private_torch_names(path)
            # A setting of the documented config module is as documented as the module.
            left = {n for n in names if n not in DOCUMENTED and "._dynamo.config." not in n}
            assert not left, path


def test_every_cause_in_the_folder_is_in_the_registry() -> None:
    files = {path.name[2:5] for path in (ROOT / "harness" / "causes").glob("cr[0-9]*.py")}
    codes = [cause.EXPLANATION.code for cause in CAUSES]
    assert {code.removeprefix("CR") for code in codes} == files
    assert len(codes) == len(set(codes))


def test_entry_modules_are_thin() -> None:
    for name in ("run", "watch", "certify", "diagnose", "explain", "report", "doctor", "gate"):
        lines = (ROOT / "harness" / f"{name}.py").read_text().count("\n")
        assert lines <= 150, f"{name}.py has {lines} lines"


def test_no_module_has_outgrown_its_subject() -> None:
    for path in modules("harness", "dflash_min", "repro"):
        lines = path.read_text().count("\n")
        # The event schema is one list of one kind of thing.
        limit = 500 if path.name == "schema.py" else 400
        assert lines <= limit, f"{path.relative_to(ROOT)} has {lines} lines"
