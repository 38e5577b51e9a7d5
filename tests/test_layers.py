"""The rooms of the house: a module imports only its own room and rooms below it, in lazy imports, too."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

import decentral

HOUSE = Path(decentral.__file__).parent

ROOMS = (
    "cli",
    "report",
    "study",
    "script",
    "conformance",
    "measurements",
    "scheduling",
    "runtime",
    "training",
    "config",
    "algorithms",
    "tasks",
    "partition",
    "models",
    "environments",
    "data",
    "gradients",
    "lr_schedules",
    "optim",
    "compression",
    "cluster",
    "network",
    "topology",
    "store",
    "terminal",
    "published",
    "host",
    "registry",
)
"""From the top floor down. The modules beside the rooms (errors, settings, randomness) lie below all of them."""

MODULES = {"__init__", "__main__", "errors", "randomness", "settings"}


def imported(file: Path) -> Iterator[str]:
    """The modules that a file imports anywhere, but for types only."""
    tree = ast.parse(file.read_text(encoding="utf-8"))
    types_only = {
        id(node)
        for branch in ast.walk(tree)
        if isinstance(branch, ast.If) and ast.unparse(branch.test) == "TYPE_CHECKING"
        for child in branch.body
        for node in ast.walk(child)
    }
    for node in ast.walk(tree):
        if id(node) in types_only:
            continue
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert not node.level, f"{file}: a relative import"
            for alias in node.names:
                inner = HOUSE.parent.joinpath(*f"{node.module}.{alias.name}".split("."))
                is_module = inner.is_dir() or inner.with_suffix(".py").exists()
                yield f"{node.module}.{alias.name}" if is_module else str(node.module)


def module_of(file: Path) -> str:
    parts = file.relative_to(HOUSE.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def room_of(module: str) -> str:
    """The room of a module of ours; '' for what lies beside the rooms."""
    parts = module.split(".")
    return parts[1] if len(parts) > 1 and parts[1] in ROOMS else ""


def arrows() -> dict[str, set[str]]:
    """Module -> modules of ours that it imports."""
    files = {module_of(file): file for file in HOUSE.rglob("*.py")}
    return {
        module: {name for name in imported(file) if name.split(".")[0] == "decentral" and name != module}
        for module, file in files.items()
    }


def test_the_house_has_these_rooms_and_few_modules_beside_them():
    folders = {entry.name for entry in HOUSE.iterdir() if (entry / "__init__.py").exists()}
    assert folders == set(ROOMS)
    assert {file.stem for file in HOUSE.glob("*.py")} == MODULES


@pytest.mark.parametrize("room", ROOMS)
def test_a_room_says_in_a_sentence_what_it_is_for(room: str):
    assert ast.get_docstring(ast.parse((HOUSE / room / "__init__.py").read_text(encoding="utf-8")))


def test_a_module_imports_only_rooms_on_floors_below_its_own():
    floor = {room: number for number, room in enumerate(ROOMS)} | {"": len(ROOMS)}
    upward = sorted(
        f"{module} -> {other}"
        for module, others in arrows().items()
        for other in others
        if module not in ("decentral", "decentral.__main__")
        and room_of(module) != room_of(other)
        and floor[room_of(other)] <= floor[room_of(module)]
        and other != "decentral"
    )
    assert upward == []


def test_no_modules_import_each_other_in_a_circle():
    found = arrows()
    graph = {module: {name for name in others if name in found} for module, others in found.items()}
    known: dict[str, bool] = {}

    def visit(module: str, way: tuple[str, ...]) -> None:
        assert module not in way, " -> ".join([*way[way.index(module) :], module])
        if module not in known:
            for other in sorted(graph.get(module, ())):
                if not module.startswith(f"{other}."):  # a package is imported before what is in it
                    visit(other, (*way, module))
            known[module] = True

    for module in graph:
        visit(module, ())
