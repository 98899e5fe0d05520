"""The shape of the package: who may import whom, what travels by value, what is documented."""

from __future__ import annotations

import ast
import importlib.util
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

if sys.version_info >= (3, 11):
    import tomllib
else:
    tomllib = pytest.importorskip("tomli")

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "spark_eoc"
MODULES = sorted(PACKAGE.rglob("*.py"))

#: What each part may import of ours, beside itself. `cli` and `testing` may import everything.
ALLOWED = {
    "errors": set(),
    "failpoints": {"errors"},
    "protocol": {"errors"},
    "backoff": set(),
    "buffer": {"errors", "failpoints"},
    "producer": {"errors", "protocol", "backoff"},
    "receiver": {"errors", "failpoints", "buffer", "protocol", "backoff"},
    "source": {"errors", "failpoints", "buffer", "receiver", "protocol"},
    "sinks": {"errors", "failpoints"},
    "registration": {"source"},
    "autoload": {"source", "registration"},
    "__init__": {"errors", "source", "registration", "sinks", "producer", "receiver", "buffer"},
}

#: These never travel: they run where the package is installed.
STAYS = {"cli", "testing", "autoload", "__init__", "registration"}

#: What must not exist once per process in code whose copies are made by value.
FORBIDDEN_GLOBALS = {
    "Lock", "RLock", "Condition", "Event", "Semaphore", "local", "ContextVar", "WeakKeyDictionary",
    "WeakValueDictionary", "WeakSet", "lru_cache", "cache", "cached_property", "singledispatch",
    "singledispatchmethod", "Struct",
}  # fmt: skip


def part_of(path: Path) -> str:
    """First name below spark_eoc: `buffer`, `errors`, `__init__`, ..."""
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


def module_name(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def tree_of(path: Path) -> ast.Module:
    return ast.parse(path.read_text(), str(path))


def own_imports(tree: ast.AST) -> Iterator[tuple[ast.stmt, str, list[str]]]:
    """(node, module, imported names) of every import of ours."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom):
            assert not node.level, f"relative import at line {node.lineno}"
            if node.module and node.module.split(".")[0] == "spark_eoc":
                yield node, node.module, [alias.name for alias in node.names]
        elif isinstance(node, ast.Import):
            for alias in node.names:
                if alias.name.split(".")[0] == "spark_eoc":
                    yield node, alias.name, []


def each(paths: list[Path]) -> list[object]:
    return [pytest.param(path, id=module_name(path)) for path in paths]


TRAVELS = [path for path in MODULES if part_of(path) not in STAYS]


@pytest.mark.parametrize("path", each(MODULES))
def test_imports_go_in_one_direction(path: Path):
    """A part imports only what ALLOWED says; nothing of the product imports `testing`."""
    part = part_of(path)
    for node, module, names in own_imports(tree_of(path)):
        targets = {module.removeprefix("spark_eoc").lstrip(".")} - {""}
        if module == "spark_eoc":
            targets |= set(names)
        for target in targets:
            where = f"line {node.lineno} imports {target}"
            if part not in ("cli", "testing"):
                assert not target.startswith(("testing", "cli")), where
            if part in ALLOWED:
                home = target.split(".")[0]
                allowed = ALLOWED[part] | {part}
                assert home in allowed or target in allowed, where


@pytest.mark.parametrize("path", each(TRAVELS))
def test_what_travels_imports_siblings_by_name_at_the_top(path: Path):
    """A module object as a global, or an import inside a function, fails where we aren't there."""
    tree = tree_of(path)
    inside = {
        id(node)
        for outer in ast.walk(tree)
        if isinstance(outer, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
        for node in ast.walk(outer)
    }
    for node, module, names in own_imports(tree):
        assert isinstance(node, ast.ImportFrom), f"line {node.lineno}: import {module}"
        assert id(node) not in inside, f"line {node.lineno}: {module} inside a function"
        for name in names:
            beside = (ROOT / module.replace(".", "/") / f"{name}.py").exists()
            assert not beside, f"line {node.lineno}: {name} is a module object"


@pytest.mark.parametrize("path", each(TRAVELS))
def test_what_travels_keeps_nothing_unpicklable_at_module_or_class_level(path: Path):
    """No lock, thread-local, cache or file beside the module at import time."""
    tree = tree_of(path)
    for statement in module_and_class_level(tree):
        for node in ast.walk(statement):
            name = node.id if isinstance(node, ast.Name) else getattr(node, "attr", None)
            assert name not in FORBIDDEN_GLOBALS, f"line {statement.lineno}: {name}"
    names = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}
    assert "__file__" not in names, "a file beside __file__ is not there after travel"


def module_and_class_level(tree: ast.Module) -> Iterator[ast.stmt]:
    """Statements that run at import, and decorators; not the bodies of functions."""
    todo: list[ast.stmt] = list(tree.body)
    while todo:
        statement = todo.pop()
        if isinstance(statement, ast.ClassDef):
            todo += statement.body
            yield from (ast.Expr(each, lineno=each.lineno) for each in statement.decorator_list)
        elif isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef):
            yield from (ast.Expr(each, lineno=each.lineno) for each in statement.decorator_list)
        elif not isinstance(statement, ast.Import | ast.ImportFrom):
            yield statement


@pytest.mark.parametrize("path", each(MODULES))
def test_everything_public_has_a_docstring(path: Path):
    """Modules, classes, functions and methods without a leading underscore say what they promise.

    A method that only implements a documented one of its base class may be silent.
    """
    tree = tree_of(path)
    assert ast.get_docstring(tree) or not tree.body, "module"
    if part_of(path) == "cli":
        return  # its users type commands; what they see is the help
    for node in tree.body:
        if isinstance(node, ast.ClassDef | ast.FunctionDef) and not node.name.startswith("_"):
            assert ast.get_docstring(node), f"{node.name}, line {node.lineno}"
        if isinstance(node, ast.ClassDef) and not node.name.startswith("_") and not node.bases:
            for method in node.body:
                if isinstance(method, ast.FunctionDef) and not method.name.startswith("_"):
                    documented = ast.get_docstring(method) or is_property_or_stub(method)
                    assert documented, f"{node.name}.{method.name}, line {method.lineno}"


def is_property_or_stub(method: ast.FunctionDef) -> bool:
    """A property of one line says what it is by its name."""
    names = {node.id for node in method.decorator_list if isinstance(node, ast.Name)}
    return "property" in names and len(method.body) == 1


def test_every_folder_is_listed_in_pyproject():
    """A package that pyproject does not list would be missing from the wheel."""
    with (ROOT / "pyproject.toml").open("rb") as file:
        setuptools = tomllib.load(file)["tool"]["setuptools"]
    moved = setuptools.get("package-dir", {})
    listed = {moved.get(name, name.replace(".", "/")) for name in setuptools["packages"]}
    folders = {path.parent.relative_to(ROOT).as_posix() for path in MODULES}
    assert folders == listed
    assert all((ROOT / folder / "__init__.py").exists() for folder in folders)


def run_python(code: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False, cwd=ROOT
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize(
    "module", ["spark_eoc", "spark_eoc.buffer", "spark_eoc.receiver", "spark_eoc.producer"]
)
def test_producer_and_receiver_need_neither_pyspark_nor_drivers(module: str):
    """A machine that only sends or receives imports none of the heavy packages.

    pyarrow imports numpy by itself where it is installed.
    """
    if importlib.util.find_spec(module) is None:
        pytest.skip(f"{module} is not there")
    heavy = run_python(
        f"import sys, {module}\n"
        "print([m for m in ('pyspark', 'pymysql', 'redis') if m in sys.modules])"
    )
    assert heavy.strip() == "[]"
