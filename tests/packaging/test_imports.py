"""The package's imports point down its layers, without cycles, and only to declared distributions.

Imports inside functions and imports for type checking count. Importing a module also runs the ``__init__``
of the packages around it, which is not counted.
"""

from __future__ import annotations

import ast
import re
import tomllib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from importlib.metadata import packages_distributions
from pathlib import Path
from sys import stdlib_module_names

import pytest

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = "streaming_pca"
MAX_FILES = 15
MAX_LINES = 600

# From top to bottom. A module may import lower lines and its own room; rooms of one line are separated by
# commas and do not import each other. "a + b" is one room of two names. "." is the package itself.
LAYERS = """
    __main__
    cli
    demo, audit, spark, dashboard
    dev, plots
    admin
    client
    service, . + api
    config
    estimators.factory, estimators.remedies
    estimators.registry, estimators.forecast, estimators.warnings, estimators.kernel_cache
    estimators.tadadpo
    estimators.adaptive
    estimators.power
    estimators.oja, estimators.covariance, estimators.block, estimators.local, estimators.tensor
    estimators.worst_cases
    estimators.common
    estimators.base
    estimators.diagnostics
    estimators.record_reader
    data
    local
    privacy.ledger, privacy.users
    privacy.mechanisms
    privacy.calibration
    privacy.parameters + privacy.randomness + privacy.noise + privacy.errors
    kernels, validation_errors
    linalg, errors, text, progress
"""

# Most lines of each floor, which may only fall, and its rooms; other modules are the service's. The aims of
# the design are 24,000, 17,000 and 9,500 lines.
FLOORS = {
    "library": (
        28_488,
        {"linalg", "kernels", "privacy", "data", "local", "estimators", "api", "audit"}
        | {"validation_errors", "errors", "text"},
    ),
    "service": (18_802, set[str]()),
    "extras": (
        9_344,
        {"dashboard", "spark", "dev", "demo", "plots"}
        | {"service.projection", "service.tracing", "service.span_export"},
    ),
}
# Traces are an extra by their library; without it the module does nothing.
SHARED_EXTRAS = {"service.tracing"}

# Modules that are run, not imported.
ENTRY_POINTS = {"__main__"}

# Modules, and packages with all their modules, that may import the distributions of an extra.
EXTRAS = {
    "arrow": {"data.arrow", "data.files", "data.tables"},
    "avro": {"data.features.avro"},
    "dashboard": {"dashboard"},
    "demo": {"demo.broker"},
    "otel": {"service.span_export", "service.tracing"},
    "plots": {"cli.plan", "demo.demo", "plots"},
    "protobuf": {"data.features.protobuf_records"},
    "spark": {"spark"},
}


@dataclass(frozen=True)
class Tree:
    """Python package with its imports.

    Attributes
    ----------
    folder : Path
        Folder of the package.
    files : mapping of module to file
    imports : mapping of module to imported modules
        Absolute names of all imports of a module; for ``from package import submodule`` the
        submodule rather than its package.
    """

    folder: Path
    files: Mapping[str, Path]
    imports: Mapping[str, frozenset[str]]

    @classmethod
    def read(cls, folder: Path) -> Tree:
        files = {module_of(folder, path): path for path in sorted(folder.rglob("*.py"))}
        imports = {}
        for module, path in files.items():
            package = module if path.name == "__init__.py" else module.rpartition(".")[0]
            found = imports_of(ast.parse(path.read_text(encoding="utf-8")), package)
            imports[module] = frozenset(
                f"{source}.{name}" if f"{source}.{name}" in files else source for source, name in found
            )
        return cls(folder, files, imports)

    @property
    def name(self) -> str:
        return self.folder.name

    def inner(self, module: str) -> set[str]:
        """Return the modules of the package that a module imports."""
        return {other for other in self.imports[module] if other in self.files}

    def short(self, module: str) -> str:
        return module.removeprefix(self.name).removeprefix(".") or "."


def module_of(folder: Path, path: Path) -> str:
    parts = path.relative_to(folder.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def imports_of(node: ast.AST, package: str) -> Iterator[tuple[str, str]]:
    """Yield (module, imported name) for all imports below a node; the name may be ""."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.Import):
            yield from ((alias.name, "") for alias in child.names)
        elif isinstance(child, ast.ImportFrom):
            source = child.module or ""
            if child.level:
                outer = package.split(".")[: len(package.split(".")) + 1 - child.level]
                source = ".".join([*outer, *filter(None, [source])])
            yield from ((source, alias.name) for alias in child.names)
        elif isinstance(child, ast.Call) and ast.unparse(child.func).endswith("import_module"):
            yield from ((str(each.value), "") for each in child.args[:1] if isinstance(each, ast.Constant))
        yield from imports_of(child, package)


def rooms_of(layers: str) -> dict[str, tuple[int, str]]:
    """Return the line and the room of each name."""
    return {
        name.strip(): (number, room.strip())
        for number, line in enumerate(layers.strip().splitlines())
        for room in line.split(",")
        for name in room.split("+")
    }


def upward_arrows(tree: Tree, layers: str) -> list[str]:
    """Return modules without a layer, and imports of another room that is not below."""
    rooms = rooms_of(layers)

    def place(module: str) -> tuple[int, str] | None:
        name = tree.short(module)
        while name not in rooms and "." in name:
            name = name.rpartition(".")[0]
        return rooms.get(name)

    problems = []
    for module, path in tree.files.items():
        here = place(module)
        if here is None:
            # The __init__ of a folder that the layers divide may hold a docstring.
            if path.name != "__init__.py" or tree.inner(module):
                problems.append(f"{module}: is in no layer")
            continue
        for other in tree.inner(module):
            there = place(other)
            if there is None or (there != here and there[0] <= here[0]):
                problems.append(f"{module}: imports {other}, which is not below it")
    return problems


def circles(tree: Tree) -> list[str]:
    """Return each set of modules that import each other."""
    reach: dict[str, set[str]] = {}
    for module in tree.files:
        found: set[str] = set()
        waiting = [module]
        while waiting:
            new = tree.inner(waiting.pop()) - found
            found |= new
            waiting += new
        reach[module] = found
    found_circles = {
        tuple(sorted(other for other in reach[module] if module in reach[other]))
        for module in tree.files
        if module in reach[module]
    }
    return [f"a circle of imports: {', '.join(circle)}" for circle in sorted(found_circles)]


def orphans(tree: Tree, entry_points: set[str]) -> list[str]:
    """Return the modules that no other module imports."""
    imported = {other for module in tree.files for other in tree.inner(module) - {module}}
    return [
        f"{module}: no module imports it"
        for module, path in tree.files.items()
        if path.name != "__init__.py" and module not in imported and tree.short(module) not in entry_points
    ]


def canonical(requirement: str) -> str:
    """Return the normalised name of a requirement's distribution."""
    found = re.match(r"[\w.-]+", requirement)
    assert found is not None, requirement
    return re.sub(r"[-_.]+", "-", found[0]).lower()


def undeclared(
    tree: Tree,
    project: Mapping[str, object],
    extras: Mapping[str, set[str]],
    installed: Mapping[str, list[str]],
) -> list[str]:
    """Return third-party imports that neither the core nor a permitted extra declares."""
    dependencies, optional = project["dependencies"], project.get("optional-dependencies", {})
    assert isinstance(dependencies, list)
    assert isinstance(optional, dict)
    core = set(map(canonical, dependencies))
    problems = []
    for module, imports in tree.imports.items():
        inside = f"{tree.short(module)}."
        permitted = [e for e, names in extras.items() if any(inside.startswith(f"{name}.") for name in names)]
        declared = core.union(*(map(canonical, optional[extra]) for extra in permitted))
        for name in sorted({other.partition(".")[0] for other in imports} - {tree.name}):
            found = {canonical(each) for each in installed.get(name, [])}
            if name not in stdlib_module_names and not found & declared:
                problems.append(f"{module}: imports {name}, which pyproject.toml does not declare for it")
    return problems


def floor_of(name: str) -> str:
    """Return the floor of a module, by its longest prefix that names a room."""
    for floor, (_, rooms) in FLOORS.items():
        if any(f"{name}.".startswith(f"{room}.") for room in rooms):
            return floor
    return "service"


def large_folders(tree: Tree) -> list[str]:
    counts: dict[Path, int] = {}
    for path in tree.files.values():
        counts[path.parent] = counts.get(path.parent, 0) + 1
    return [
        f"{folder.relative_to(tree.folder.parent)}: has {count} Python files, at most {MAX_FILES}"
        for folder, count in counts.items()
        if count > MAX_FILES
    ]


def long_files(tree: Tree) -> list[str]:
    counts = {path: len(path.read_text(encoding="utf-8").splitlines()) for path in tree.files.values()}
    return [
        f"{path.relative_to(tree.folder.parent)}: has {count} lines, at most {MAX_LINES}"
        for path, count in counts.items()
        if count > MAX_LINES
    ]


# -- the package -----------------------------------------------------------


@lru_cache
def the_tree() -> Tree:
    return Tree.read(ROOT / PACKAGE)


def the_project() -> Mapping[str, object]:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert isinstance(project, dict)
    return project


def extras_imported(tree: Tree) -> list[str]:
    """Return imports of extras by modules that are neither extras nor commands."""
    return [
        f"{module}: imports {other}, which is an extra"
        for module in tree.files
        for other in tree.inner(module)
        if floor_of(tree.short(other)) == "extras"
        and floor_of(tree.short(module)) != "extras"
        and tree.short(module).partition(".")[0] != "cli"
        and tree.short(other) not in SHARED_EXTRAS
    ]


@pytest.mark.parametrize(
    "check",
    [
        pytest.param(lambda tree: upward_arrows(tree, LAYERS), id="imports point down"),
        pytest.param(circles, id="no modules import each other"),
        pytest.param(extras_imported, id="only commands import extras"),
        pytest.param(lambda tree: orphans(tree, ENTRY_POINTS), id="every module is imported"),
        pytest.param(
            lambda tree: undeclared(tree, the_project(), EXTRAS, packages_distributions()),
            id="what is imported is declared",
        ),
        pytest.param(large_folders, id="no folder has too many files"),
        pytest.param(long_files, id="no file is too long"),
    ],
)
def test_the_package_has_its_layers(check: Callable[[Tree], list[str]]) -> None:
    problems = check(the_tree())
    assert not problems, "\n".join(["", *problems])


def test_no_floor_grows() -> None:
    tree = the_tree()
    lines = dict.fromkeys(FLOORS, 0)
    for module, path in tree.files.items():
        lines[floor_of(tree.short(module))] += len(path.read_text(encoding="utf-8").splitlines())
    most = {floor: limit for floor, (limit, _) in FLOORS.items()}
    assert all(lines[floor] <= most[floor] for floor in FLOORS), f"{lines} lines, at most {most}"


def test_every_name_of_the_tables_exists() -> None:
    known = {the_tree().short(module) for module in the_tree().files}
    assert {*rooms_of(LAYERS), *ENTRY_POINTS, *(name for names in EXTRAS.values() for name in names)} <= known


# -- each check can fail ---------------------------------------------------

SMALL = {
    "__init__.py": "",
    "__main__.py": "from small.top import run\nimport numpy\n",
    "top.py": "def run():\n    from small.low import tool\n    return tool\n",
    "low/__init__.py": "",
    "low/tool.py": "import json\n",
}
SMALL_LAYERS = "__main__\ntop\n. \nlow"
SMALL_PROJECT = {"dependencies": ["NumPy>=2"], "optional-dependencies": {"more": ["pandas[x]>2"]}}
INSTALLED = {"numpy": ["numpy"], "pandas": ["pandas"]}

Write = Callable[..., Tree]


@pytest.fixture
def small(tmp_path: Path) -> Write:
    """Return a function that writes a package which passes every check, with changes."""

    def write(changes: Mapping[str, str] | None = None) -> Tree:
        for name, text in {**SMALL, **(changes or {})}.items():
            path = tmp_path / "small" / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        return Tree.read(tmp_path / "small")

    return write


def problems_of(tree: Tree) -> dict[str, list[str]]:
    found = {
        "arrows": upward_arrows(tree, SMALL_LAYERS),
        "circles": circles(tree),
        "orphans": orphans(tree, ENTRY_POINTS),
        "undeclared": undeclared(tree, SMALL_PROJECT, {"more": {"top"}}, INSTALLED),
        "folders": large_folders(tree),
        "lines": long_files(tree),
    }
    return {name: problems for name, problems in found.items() if problems}


def test_a_good_package_passes_every_check(small: Write) -> None:
    assert problems_of(small()) == {}


@pytest.mark.parametrize(
    "text",
    [
        "from small.top import run",
        "from small import top",
        "import small.top",
        "from ..top import run",
        "def f():\n    from small import top",
        "from importlib import import_module\ntop = import_module('small.top')",
        "try:\n    pass\nexcept ImportError:\n    import small.top",
    ],
)
def test_an_upward_import_is_an_arrow_and_a_circle(small: Write, text: str) -> None:
    assert problems_of(small({"low/tool.py": text})) == {
        "arrows": ["small.low.tool: imports small.top, which is not below it"],
        "circles": ["a circle of imports: small.low.tool, small.top"],
    }


def test_rooms_of_one_line_do_not_import_each_other_unless_they_are_one(small: Write) -> None:
    tree = small()
    assert upward_arrows(tree, "__main__\ntop + low, .") == []
    assert upward_arrows(tree, "__main__\ntop, low, .") == [
        "small.top: imports small.low.tool, which is not below it"
    ]


def test_a_module_without_a_layer_is_found(small: Write) -> None:
    tree = small({"new.py": "from small.low import tool\n", "top.py": "from small import new"})
    assert upward_arrows(tree, SMALL_LAYERS) == [
        "small.new: is in no layer",
        "small.top: imports small.new, which is not below it",
    ]


def test_a_circle_within_a_room_is_found(small: Write) -> None:
    tree = small({"low/tool.py": "from small.low import other", "low/other.py": "from .tool import x"})
    assert problems_of(tree) == {"circles": ["a circle of imports: small.low.other, small.low.tool"]}


def test_a_module_that_nothing_imports_is_found(small: Write) -> None:
    tree = small({"low/lost.py": "import small.low.lost\n"})
    assert orphans(tree, ENTRY_POINTS) == ["small.low.lost: no module imports it"]
    assert orphans(tree, {*ENTRY_POINTS, "low.lost"}) == []
    assert orphans(tree, {"low.lost"}) == ["small.__main__: no module imports it"]


@pytest.mark.parametrize(
    ("file", "text", "missing"),
    [
        ("low/tool.py", "import scipy.linalg", "scipy"),
        ("low/tool.py", "def f():\n    from nowhere import x", "nowhere"),
        ("low/tool.py", "import pandas", "pandas"),
        (
            "__main__.py",
            "import small.top\nfrom importlib import import_module\nimport_module('pandas.io')",
            "pandas",
        ),
    ],
)
def test_an_import_that_is_not_declared_is_found(small: Write, file: str, text: str, missing: str) -> None:
    module = f"small.{file.removesuffix('.py').replace('/', '.')}"
    expected = f"{module}: imports {missing}, which pyproject.toml does not declare for it"
    assert problems_of(small({file: text})) == {"undeclared": [expected]}


def test_a_module_that_may_import_an_extra_may(small: Write) -> None:
    assert problems_of(small({"top.py": "import pandas\nfrom small.low import tool"})) == {}


def test_a_folder_of_too_many_files_is_found(small: Write) -> None:
    names = [f"m{i}" for i in range(MAX_FILES - 1)]
    files = {f"low/{name}.py": "" for name in names}
    files["top.py"] = "".join(f"import small.low.{name}\n" for name in ["tool", *names])
    assert problems_of(small(files)) == {
        "folders": [f"small/low: has {MAX_FILES + 1} Python files, at most {MAX_FILES}"]
    }
    (tree := small(files)).files[f"small.low.{names[0]}"].unlink()
    assert large_folders(Tree.read(tree.folder)) == []


def test_a_long_file_is_found(small: Write) -> None:
    assert problems_of(small({"low/tool.py": "x = 1\n" * MAX_LINES})) == {}
    assert problems_of(small({"low/tool.py": "x = 1\n" * (MAX_LINES + 1)})) == {
        "lines": [f"small/low/tool.py: has {MAX_LINES + 1} lines, at most {MAX_LINES}"]
    }
