"""A wheel works from any working directory, and in an empty environment; the package's layers; examples/ run."""

from __future__ import annotations

import ast
import importlib
import importlib.metadata
import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tomllib
import venv
import zipfile
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path

import pytest

import decentral
from conftest import exit_status
from decentral.config.composition import compose

CHECKOUT = Path(__file__).resolve().parents[1]
PROJECT = tomllib.loads((CHECKOUT / "pyproject.toml").read_text())["project"]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel, which is made from the sdist beside it; nothing is downloaded."""
    folder = tmp_path_factory.mktemp("wheel")
    build = [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(folder), str(CHECKOUT)]
    subprocess.run(build, check=True, capture_output=True, timeout=120)
    (wheel,) = folder.glob("*.whl")
    return wheel


@pytest.mark.slow
def test_the_wheel_holds_every_file_of_conf_the_documentation_and_the_examples(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
    for folder, suffix in (("conf", ".yaml"), ("docs", ".md"), ("examples", ".py")):
        ours = {file.relative_to(CHECKOUT).as_posix() for file in (CHECKOUT / folder).rglob(f"*{suffix}")}
        theirs = {name for name in names if name.startswith(f"decentral/{folder}/") and name.endswith(suffix)}
        assert {f"decentral/{name}" for name in ours} == theirs
    assert not any(name.startswith(("tests/", "conf/", "src/")) for name in names)
    assert any(name.endswith("entry_points.txt") for name in names)
    published = (CHECKOUT / "src" / "decentral" / "published").glob("*.csv")
    assert {f"decentral/published/{file.name}" for file in published} <= names
    kept = (file for file in (CHECKOUT / "results" / "benchmark" / "benchmark_methods").glob("*/*"))
    kept = (
        file
        for file in kept
        if file.name in ("study.json", "values.csv", "values.csv.gz", "curves.csv", "curves.csv.gz")
    )
    results = {f"decentral/{file.relative_to(CHECKOUT).as_posix()}" for file in kept}
    assert results == {name for name in names if name.startswith("decentral/results/")}


@pytest.mark.slow
def test_the_sdist_holds_the_package_its_documentation_and_the_results_of_the_benchmark(wheel: Path) -> None:
    (sdist,) = wheel.parent.glob("*.tar.gz")
    with tarfile.open(sdist) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    pages = {"README.md", "CHANGELOG.md", "CITATION.cff", "LICENSE", "pyproject.toml", "PKG-INFO", ".gitignore"}
    assert {name for name in names if "/" not in name} == pages
    assert {name.partition("/")[0] for name in names if "/" in name} == {"src", "conf", "docs", "examples", "results"}
    results = {name for name in names if name.startswith("results/")}
    assert all(name.startswith("results/benchmark/benchmark_methods/") for name in results)


@pytest.fixture(scope="module")
def empty_environment(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The commands of an environment in which pip has installed the wheel, and nothing else.

    Its dependencies are those of the running environment, which a .pth file shows it (decentral itself is not seen
    there: a .pth file is not read by way of another). That pip would find and install them is not tested; that all of
    them are declared is, below.
    """
    folder = tmp_path_factory.mktemp("environment")
    venv.create(folder, with_pip=False)
    python = folder / "bin" / "python"
    install = [sys.executable, "-m", "pip", "--python", str(python), "install", "--quiet", "--no-deps", "--no-index"]
    subprocess.run([*install, str(wheel)], check=True, capture_output=True, timeout=120)
    (packages,) = folder.glob("lib/python*/site-packages")
    known = [path for path in sys.path if path.endswith("-packages")]
    (packages / "dependencies.pth").write_text("".join(f"{path}\n" for path in known))
    return folder / "bin"


@pytest.fixture
def carried_out(empty_environment: Path, tmp_path: Path) -> Callable[..., subprocess.CompletedProcess[str]]:
    """Carry out a command of the environment in an empty folder, which knows of nothing outside of it."""
    known = {"HOME": str(tmp_path / "home"), "PATH": "/usr/bin:/bin", "OMP_NUM_THREADS": "1"}
    (tmp_path / "work").mkdir()

    def carry_out(command: str, *arguments: str) -> subprocess.CompletedProcess[str]:
        words = [empty_environment / command, *arguments]
        return subprocess.run(words, cwd=tmp_path / "work", env=known, capture_output=True, text=True, timeout=240)

    return carry_out


@pytest.mark.slow
def test_an_empty_environment_helps_and_refuses(carried_out, empty_environment: Path, tmp_path: Path) -> None:
    helped = carried_out("python", "-m", "decentral", "--help")
    assert (helped.returncode, helped.stderr) == (0, "")
    assert "relaysgd" in helped.stdout
    refused = carried_out("decentral-run", "algo=relysgd")
    assert refused.returncode == 2
    assert "'relaysgd'" in refused.stderr
    where = carried_out("decentral-run", "--help", "experiment=thesis_cifar10").stdout
    assert str(empty_environment.parent / "lib") in where and "decentral/conf" in where
    assert list((tmp_path / "work").iterdir()) == []


EVERY_HELP = """
import sys
from importlib.metadata import distribution
for command in distribution("decentral").entry_points:
    sys.argv = [command.name, "--help"]
    try:
        command.load()()
    except SystemExit as end:
        assert not end.code, command
"""


@pytest.mark.slow
def test_an_empty_environment_has_every_command_and_runs_in_an_empty_folder(
    carried_out, empty_environment: Path, tmp_path: Path
) -> None:
    helped = carried_out("python", "-c", EVERY_HELP)
    assert (helped.returncode, helped.stderr) == (0, "")
    for command in PROJECT["scripts"]:
        assert command in helped.stdout and (empty_environment / command).is_file()
    done = carried_out("decentral-run", "steps=2", "device=cpu", "processes=2")
    assert done.returncode == 0, done.stderr
    assert "relaysgd on dbt" in done.stdout
    assert len(list((tmp_path / "work" / "results" / "runs").glob("*/models.safetensors"))) == 1


@pytest.mark.slow
def test_everything_that_is_imported_is_declared() -> None:
    extras = [one for name, needed in PROJECT["optional-dependencies"].items() if name != "dev" for one in needed]
    declared = {re.split(r"[<>=]", one)[0].lower() for one in [*PROJECT["dependencies"], *extras]}
    trees = [ast.parse(file.read_text()) for file in (CHECKOUT / "src").rglob("*.py")]
    nodes = [node for tree in trees for node in ast.walk(tree)]
    names = {alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names}
    names |= {str(node.module) for node in nodes if isinstance(node, ast.ImportFrom) and not node.level}
    given = {"decentral", "habitat", "triton", "IPython"}  # triton comes with torch, IPython with a notebook
    tops = {name.partition(".")[0] for name in names} - set(sys.stdlib_module_names) - given
    packages = importlib.metadata.packages_distributions()
    assert {top for top in tops if not {one.lower() for one in packages.get(top, [])} & declared} == set()


SOURCE = Path(decentral.__file__).parent

PARTS = (
    "plugins",
    "cli",
    "script",
    "report",
    "study",
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
    "availability",
    "cluster",
    "network",
    "topology",
    "store",
    "terminal",
    "published",
    "host",
    "registry",
)
"""From top to bottom. The modules beside them (errors, settings, randomness) are below all of them."""

MODULES = {"__init__", "__main__", "errors", "randomness", "settings"}


TYPES_ONLY = re.compile(r"^if TYPE_CHECKING:\n(?:(?: .*)?\n)+", re.M)
IMPORTS = re.compile(r"^ *((?:from|import) (?:decentral|\.)[^(\n]*(?:\([^)]*\))?)", re.M)


def imported(file: Path) -> Iterator[str]:
    """The modules of ours that a file imports anywhere, but for types only."""
    for statement in IMPORTS.findall(TYPES_ONLY.sub("", file.read_text(encoding="utf-8"))):
        (node,) = ast.parse(statement).body
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert not node.level, f"{file}: a relative import"
            for alias in node.names:
                inner = SOURCE.parent.joinpath(*f"{node.module}.{alias.name}".split("."))
                is_module = inner.is_dir() or inner.with_suffix(".py").exists()
                yield f"{node.module}.{alias.name}" if is_module else str(node.module)


def module_of(file: Path) -> str:
    parts = file.relative_to(SOURCE.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def part_of(module: str) -> str:
    """Return the part that a module of ours belongs to; '' for a module beside the parts."""
    parts = module.split(".")
    return parts[1] if len(parts) > 1 and parts[1] in PARTS else ""


@cache
def arrows() -> dict[str, set[str]]:
    """Module -> modules of ours that it imports."""
    files = {module_of(file): file for file in SOURCE.rglob("*.py")}
    return {module: {name for name in imported(file) if name != module} for module, file in files.items()}


def test_the_package_has_these_parts_and_few_modules_beside_them():
    folders = {entry.name for entry in SOURCE.iterdir() if (entry / "__init__.py").exists()}
    assert folders == set(PARTS)
    assert {file.stem for file in SOURCE.glob("*.py")} == MODULES


def test_each_part_says_in_a_sentence_what_it_is_for():
    for part in PARTS:
        assert ast.get_docstring(ast.parse((SOURCE / part / "__init__.py").read_text(encoding="utf-8")))


def test_a_module_imports_only_parts_below_its_own():
    level = {part: number for number, part in enumerate(PARTS)} | {"": len(PARTS)}
    upward = sorted(
        f"{module} -> {other}"
        for module, others in arrows().items()
        for other in others
        if module not in ("decentral", "decentral.__main__")
        and part_of(module) != part_of(other)
        and level[part_of(other)] <= level[part_of(module)]
        and other != "decentral"
    )
    assert upward == []


def test_the_core_imports_no_plug_in_and_no_plug_in_another_one():
    known = {module: {name for name in others if part_of(name) == "plugins"} for module, others in arrows().items()}
    assert {module: names for module, names in known.items() if names and part_of(module) != "plugins"} == {}
    for module, names in known.items():
        assert {name.split(".")[2] for name in names} <= set(module.split(".")[2:3]), module


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


# -- `examples/`: they run with one process and with two, resume after a kill, are seen by --help, and hold what the ---

EXAMPLES = CHECKOUT / "examples"
PAGES = ("own_components.md", "own_algorithm.md", "tasks.md")
QUICK = (
    "device=cpu",
    "progress=false",
    "checkpoint_every_s=0",
    "restarts=0",
    "evaluation.every_epochs=1",
    "num_workers=4",
)
QUADRATICS = ("topology=ring", "task=quadratics", "steps=12")


CASES = {
    "own_package": ("algo=pairwise", "algo.period=3", "topology=wheel", *QUADRATICS[1:]),
    "own_task": (
        "--config-dir", "mine", "task=ordered", "data=digits", "model=mlp", "model.hidden=[8]", "batch_size=64",
        "topology=ring", "algo=dpsgd", "lr=0.01", "steps=12", "precision=fp64",
    ),
}  # fmt: skip


@pytest.fixture(scope="module")
def own_package(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder in which the package of examples/own_package is installed; nothing is downloaded."""
    folder = tmp_path_factory.mktemp("package")
    shutil.copytree(EXAMPLES / "own_package", folder / "own_package")
    install = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-index", "--no-build-isolation"]
    install += ["--target", str(folder / "installed"), str(folder / "own_package")]
    subprocess.run(install, check=True, capture_output=True, timeout=120)
    return folder / "installed"


@pytest.fixture
def folder(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of the examples, in which the package is installed; the folder of one is the current one."""
    shutil.copytree(EXAMPLES, tmp_path / "examples")
    path = [str(request.getfixturevalue("own_package")), os.environ.get("PYTHONPATH", "")]
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, path)))
    monkeypatch.setenv("DECENTRAL_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    return tmp_path / "examples"


def command(folder: Path, name: str, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", f"decentral.cli.{name}", *arguments],
        cwd=folder, env=os.environ | environment, capture_output=True, text=True, timeout=280,
    )  # fmt: skip


def values(run: Path) -> list[float]:
    return [json.loads(line)["value"] for line in (run / "metrics.jsonl").read_text().splitlines()]


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_it_is_the_same_with_two_processes_that_go_on_after_a_kill(folder: Path, name: str) -> None:
    fault = json.dumps([{"rank": 0, "step": 7, "kind": "kill"}])
    for run, processes, fails in (("one", 1, False), ("two", 2, True), ("two", 2, False)):
        more = {"DECENTRAL_FAULTS": fault} if fails else {}
        words = [*CASES[name], *QUICK, f"processes={processes}", f"run_dir={run}"]
        done = command(folder / name, "run", *words, **more)
        assert done.returncode not in (0, 2) if fails else done.returncode == 0, done.stderr
        assert not fails or list((folder / name / run).glob("checkpoints/*/manifest.json"))
    assert re.search(r'"own": |\nown:\n', (folder / name / "two" / "config.yaml").read_text())
    assert values(folder / name / "one") == pytest.approx(values(folder / name / "two"), rel=1e-9, abs=1e-9)


@pytest.mark.slow
@pytest.mark.parametrize("processes", [1, 2])
def test_a_method_with_a_program_runs_in_a_virtual_cluster_and_between_processes(folder: Path, processes: int) -> None:
    settings = ("--config-dir", "mine", "algo=timid", "cluster=two_delayed", "topology=ring", *QUADRATICS[1:], *QUICK)
    done = command(folder / "own_algorithm", "run", *settings, f"processes={processes}", "run_dir=run")
    assert done.returncode == 0, done.stderr
    lines = (folder / "own_algorithm" / "run" / "metrics.jsonl").read_text().splitlines()
    rows = [json.loads(line) for line in lines]
    assert max(row["step"] for row in rows) == 12
    assert all(("simulated_s" in row) == (processes == 1) for row in rows)


@pytest.mark.slow
@pytest.mark.parametrize("page", PAGES)
def test_the_commands_of_a_page_do_what_it_says(
    folder: Path, page: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Those that name nothing of an example are composed only. The methods of other checks than these are run."""
    here = folder
    ran = 0
    for line in re.findall(r"^(cd \S+|decentral-\w+ .*)$", (CHECKOUT / "docs" / page).read_text(), re.M):
        words = [word for word in line.split("#")[0].split() if word]
        if words[0] == "cd":
            here = folder / words[1].removeprefix("examples/")
            monkeypatch.chdir(here)
        elif "data.path=" in line or re.match("decentral-check algo=(partway|pairwise)", line):
            continue  # the reader's own data; what another line runs
        elif not re.search(r"mine|mymodule|check|heavy|pairwise", line):
            assert compose(words[1:])
            ran += 1
        else:
            name = words[0].removeprefix("decentral-")
            short = ["steps=2"] if name == "run" and "--help" not in words else []
            wrong = "algo=forgetful" in words  # on purpose
            if here.name == "own_package":  # a process looks once which packages are installed
                done = command(here, name, *words[1:], *short)
                status, told = done.returncode, done.stdout + done.stderr
            else:
                status = exit_status(importlib.import_module(f"decentral.cli.{name}").main, *words[1:], *short)
                told = "".join(capsys.readouterr())
            assert status == wrong, f"{line}\n{told}"
            if wrong:
                assert "algo=forgetful fails 'the mean is kept': the mean of the models is not preserved" in told
            elif name == "check":
                assert "[1 of 14]" in told and " 0 failed" in told and "FAILED" not in told
            ran += 1
    assert ran >= 4
