"""What the program weighs: `python scripts/weight.py`. Statements are those that are neither imports nor docstrings."""

from __future__ import annotations

import ast
from collections import Counter
from pathlib import Path
from statistics import median, quantiles
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "src" / "decentral"
GROUPS = (("study", "jobs", "measurements", "report", "script"), ("network", "cluster", "training"))


class Weight(NamedTuple):
    """Of one file."""

    statements: int
    functions: list[int]
    """How many lines each has."""
    lazy_imports: int
    """Imports inside functions; those inside a function of a function count for both."""
    lines: int


def weigh(path: Path) -> Weight:
    """Count what is in a file."""
    text = path.read_text()
    nodes = list(ast.walk(ast.parse(text)))
    functions = [node for node in nodes if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]
    inside = [node for function in functions for node in ast.walk(function)]
    return Weight(
        sum(isinstance(node, ast.stmt) and not is_import(node) and not is_docstring(node) for node in nodes),
        [(function.end_lineno or 0) - function.lineno + 1 for function in functions],
        sum(is_import(node) for node in inside),
        len(text.splitlines()),
    )


def is_import(node: ast.AST) -> bool:
    """Whether it is `import` or `from ... import`."""
    return isinstance(node, ast.Import | ast.ImportFrom)


def is_docstring(node: ast.AST) -> bool:
    """Whether it is a string that stands by itself."""
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)


def main() -> None:
    """Print what the package and its tests weigh, and where the weight is."""
    folders, files = Counter[str](), []
    for path in PACKAGE.rglob("*.py"):
        files.append(weigh(path))
        parts = path.relative_to(PACKAGE).parts
        folders["/".join(parts[: 1 + (parts[0] == "plugins" and len(parts) > 2)])] += files[-1].statements
    tests = [weigh(path) for path in (ROOT / "tests").rglob("*.py")]
    lengths = [length for file in files for length in file.functions]
    table: dict[str, tuple[float, ...]] = {}
    plugins = sum(count for folder, count in folders.items() if folder.startswith("plugins"))
    table["core / plug-ins: statements"] = (folders.total() - plugins, plugins)
    table["package: statements / functions / files"] = (folders.total(), len(lengths), len(files))
    for group in GROUPS:
        table[" + ".join(group)] = (sum(folders[folder] for folder in group),)
    table["tests: statements / files"] = (sum(file.statements for file in tests), len(tests))
    table["imports inside functions"] = (sum(file.lazy_imports for file in files),)
    table["longest function / p95 (lines)"] = (max(lengths), round(quantiles(lengths, n=20)[-1]))
    table["median file (lines)"] = (median(file.lines for file in files),)
    for what, numbers in table.items():
        print(f"{what:45} {' / '.join(f'{number:,}' for number in numbers)}")
    print(" ".join(f"{folder}:{statements}" for folder, statements in folders.most_common()))


if __name__ == "__main__":
    main()
