"""Who may import whom: the tables below are the architecture, and this test holds the code to them.

Every `import` counts, wherever it stands: inside a function and under `if TYPE_CHECKING` as well, because a type is a
dependency too. A rule's violation is one line that names the file, the line and the rule.
"""

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[2] / "src"
ROOT = "mainstem"

# From the bottom up. A package may import itself and anything on a lower line, not its siblings.
LAYERS = (
    ("core",),
    ("transport", "cluster"),
    ("log",),
    ("registry", "access"),
    ("produce", "consume"),
    ("kafka", "capture", "kv", "geo"),
    ("documents", "edge"),
    ("hub",),
    ("aio",),
    ("spark", "server"),
    ("demo",),
    ("console", "cli"),
    ("testing",),
)
RANK = {package: rank for rank, layer in enumerate(LAYERS) for package in layer}

# Modules that every client process loads, and the packages that only a server (or an embedded hub) needs.
CLIENT_MODULES = ("mainstem.produce.producer", "mainstem.consume.consumer")
SERVER_PACKAGES = ("log", "server")

# Libraries that stay behind one door, and where the door is.
DOORS = {
    "apsw": ("mainstem.log.ledger",),
    "deltalake": ("mainstem.spark.jobs", "mainstem.demo"),
    "fastavro": ("mainstem.registry",),
    "py4j": ("mainstem.spark",),
    "pyspark": ("mainstem.spark", "mainstem.demo.pipeline"),
    "rich": ("mainstem.cli",),
    "sqlglot": ("mainstem.core.predicate",),
    "starlette": ("mainstem.server",),
    "typer": ("mainstem.cli",),
    "uvicorn": ("mainstem.server",),
    "uvloop": ("mainstem.transport", "mainstem.server"),
}


@dataclass(frozen=True, slots=True)
class Import:
    """One imported module: by whom, where, and whether only once a function runs or a type checker looks."""

    importer: str
    target: str
    line: int
    is_deferred: bool

    def __str__(self) -> str:
        return f"{self.importer}:{self.line} imports {self.target}"


class Tree:
    """The modules under a source folder and their imports, by module name."""

    def __init__(self, source: Path) -> None:
        self._files = {_module_name(source, path): path for path in sorted((source / ROOT).rglob("*.py"))}
        self.imports = {name: list(self._read(name, path)) for name, path in self._files.items()}

    def all_imports(self) -> Iterator[Import]:
        for imports in self.imports.values():
            yield from imports

    def loaded_by(self, name: str) -> Iterator[Import]:
        """What importing a module brings in from this tree: its imports and those of the packages around it.

        What the top package imports inside its functions is left out: that is how it offers the hub without loading it.
        """
        for module in (*_packages_around(name), name):
            for found in self.imports.get(module, ()):
                if _is_ours(found.target) and not (module == ROOT and found.is_deferred):
                    yield found

    def _read(self, name: str, path: Path) -> Iterator[Import]:
        package = name if path.name == "__init__.py" else name.rpartition(".")[0]
        pending: list[tuple[ast.AST, bool]] = [(ast.parse(path.read_text(encoding="utf-8"), str(path)), False)]
        while pending:
            node, is_deferred = pending.pop()
            if isinstance(node, ast.Import | ast.ImportFrom):
                for target in self._targets(node, package):
                    yield Import(name, target, node.lineno, is_deferred)
                continue
            deferred_inside = is_deferred or isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
            for child in ast.iter_child_nodes(node):
                in_type_block = isinstance(node, ast.If) and _is_type_checking(node.test) and child in node.body
                pending.append((child, deferred_inside or in_type_block))

    def _targets(self, node: ast.Import | ast.ImportFrom, package: str) -> Iterator[str]:
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
            return
        base = node.module or ""
        if node.level:
            parents = package.split(".")
            kept = parents[: len(parents) - node.level + 1]
            base = ".".join([*kept, base] if base else kept)
        for alias in node.names:
            # `from a import b` is the module a.b where there is one, else a name inside a.
            inner = f"{base}.{alias.name}"
            yield inner if inner in self._files else base


def edge_violations(tree: Tree) -> list[str]:
    return [f"{found}: {why}" for found in tree.all_imports() if (why := _why_not(found))]


def client_violations(tree: Tree) -> list[str]:
    """Chains from a client module to a server-only package, as `a -> b -> c`, the shortest for each target package."""
    return [chain for start in CLIENT_MODULES for chain in _chains(tree, start)]


def door_violations(tree: Tree) -> list[str]:
    return [
        f"{found}, which belongs under {' or '.join(DOORS[library])} only"
        for found in tree.all_imports()
        if (library := found.target.partition(".")[0]) in DOORS
        and not any(_is_within(found.importer, door) for door in DOORS[library])
    ]


def test_imports_go_down_only():
    assert edge_violations(Tree(SOURCE)) == []


def test_clients_load_nothing_that_only_a_server_needs():
    tree = Tree(SOURCE)
    assert [name for name in CLIENT_MODULES if name not in tree.imports] == [], (
        "a client module has moved: name it here"
    )
    assert client_violations(tree) == []


def test_libraries_stay_behind_their_door():
    assert door_violations(Tree(SOURCE)) == []


def test_every_package_has_a_layer():
    packages = {path.parent.name for path in (SOURCE / ROOT).glob("*/__init__.py")}
    assert packages - set(RANK) == set(), "a new package: give it its place in LAYERS"


BAD_EDGES = {
    "upward": ("core/names.py", "import mainstem.log.batcher"),
    "sibling": ("produce/producer.py", "from mainstem.consume import consumer"),
    "upward in a function": ("log/reader.py", "def f():\n    from mainstem.hub import open_hub"),
    "upward for types": (
        "log/reader.py",
        "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import mainstem.hub",
    ),
    "upward, relative": ("log/reader.py", "from ..server import roles"),
    "the test kit": ("cli/demo.py", "from mainstem.testing import faults"),
    "the top package from below": ("core/names.py", "from mainstem import MainstemError"),
    "the hub, at once": ("__init__.py", "from mainstem.hub import connect"),
    "the server, when asked": ("__init__.py", "def serve():\n    from mainstem.server import main"),
    "a module without a layer": ("stray.py", "import mainstem.core"),
}

GOOD_EDGES = {
    "down": ("hub/embedded.py", "import mainstem.log.batcher"),
    "inside": ("log/reader.py", "from mainstem.log import ledger"),
    "the core": ("__init__.py", "from mainstem.core.errors import MainstemError"),
    "the hub, when asked": ("__init__.py", "def connect(url):\n    from mainstem.hub import connect"),
    "the hub and what it gives, for types": (
        "__init__.py",
        "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import mainstem.hub, mainstem.consume.consumer",
    ),
    "elsewhere": ("core/names.py", "import os, numpy.random"),
    "everything": ("testing/kit.py", "import mainstem.server, mainstem.cli"),
    "the command line": ("__main__.py", "from mainstem.cli import main"),
}


@pytest.mark.parametrize("case", BAD_EDGES)
def test_a_forbidden_edge_is_found(tmp_path, case):
    assert len(edge_violations(_tree(tmp_path, dict([BAD_EDGES[case]])))) == 1


@pytest.mark.parametrize("case", GOOD_EDGES)
def test_an_allowed_edge_is_not(tmp_path, case):
    assert edge_violations(_tree(tmp_path, dict([GOOD_EDGES[case]]))) == []


def test_a_chain_from_client_to_server_is_found_through_a_package(tmp_path):
    files = {
        "__init__.py": "def open(path):\n    import mainstem.hub",
        "hub/__init__.py": "import mainstem.log",
        "produce/__init__.py": "import mainstem.produce.gateway",
        "produce/gateway.py": "import mainstem.log.batcher",
        "produce/producer.py": "import mainstem.core",
        "consume/consumer.py": "import mainstem.core",
        "log/batcher.py": "",
    }
    chain = "mainstem.produce.producer -> mainstem.produce.gateway -> mainstem.log.batcher"
    assert client_violations(_tree(tmp_path, files)) == [chain]


def test_a_library_outside_its_door_is_found(tmp_path):
    files = {
        "log/ledger/sqlite.py": "import apsw.ext",
        "log/reader.py": "import apsw",
        "cli/x.py": "from rich import box",
    }
    found = door_violations(_tree(tmp_path, files))
    assert found == ["mainstem.log.reader:1 imports apsw, which belongs under mainstem.log.ledger only"]


def _why_not(found: Import) -> str | None:
    """The rule that an import breaks, or None."""
    if not _is_ours(found.target):
        return None
    importer, target = _package(found.importer), _package(found.target)
    if importer == "":  # the top package itself
        is_offered = found.is_deferred and RANK.get(target, len(LAYERS)) <= RANK["hub"]
        if target in ("", "core") or is_offered:
            return None
        return "the top package imports core; the hub and what it gives only inside functions and for types"
    importer = "cli" if importer == "__main__" else importer
    target = "hub" if target == "" else target  # the top package stands for the hub it offers
    for package in (importer, target):
        if package not in RANK:
            return f"{package} has no place in LAYERS"
    if importer == target or RANK[target] < RANK[importer]:
        return None
    return f"{importer} may not import {target}"


def _chains(tree: Tree, start: str) -> Iterator[str]:
    came_from: dict[str, str | None] = {start: None}
    queue = [start]
    reported: set[str] = set()
    for module in queue:  # grows while it is walked: breadth first, so chains are shortest
        for found in tree.loaded_by(module):
            if found.target in came_from:
                continue
            came_from[found.target] = module
            package = _package(found.target)
            if package not in SERVER_PACKAGES:
                queue.append(found.target)
            elif package not in reported:
                reported.add(package)
                yield " -> ".join(reversed([*_path_back(came_from, found.target)]))


def _path_back(came_from: dict[str, str | None], name: str | None) -> Iterator[str]:
    while name is not None:
        yield name
        name = came_from[name]


def _module_name(source: Path, path: Path) -> str:
    parts = path.relative_to(source).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def _packages_around(name: str) -> list[str]:
    parts = name.split(".")
    return [".".join(parts[:depth]) for depth in range(1, len(parts))]


def _package(module: str) -> str:
    """`log` of mainstem.log.batcher; empty for mainstem itself."""
    return module.split(".")[1] if "." in module else ""


def _is_ours(module: str) -> bool:
    return _is_within(module, ROOT)


def _is_within(module: str, package: str) -> bool:
    return module == package or module.startswith(package + ".")


def _is_type_checking(test: ast.expr) -> bool:
    return ast.unparse(test) in ("TYPE_CHECKING", "typing.TYPE_CHECKING")


def _tree(folder: Path, files: dict[str, str]) -> Tree:
    for name, text in files.items():
        path = folder / ROOT / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return Tree(folder)
