"""Commands in the documentation do what they say: the `decentral-run` lines of the README and of `CARRIED_OUT` run, for
two steps, on small stand-ins, unless they differ from another one in values only; every `--help` prints. All are read.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import tomllib
from collections import Counter
from collections.abc import Callable
from html import unescape
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import networkx as nx
import numpy as np
import pytest
import yaml  # type: ignore[import-untyped]
from PIL import Image

from conftest import exit_status
from decentral import __version__
from decentral.cli import to_target
from decentral.cli.run import main, parser
from decentral.cli.study import chosen_studies
from decentral.config.composition import compose
from decentral.config.overrides import checked, options
from decentral.config.parsing import folders_of
from decentral.config.schema import GROUPS
from decentral.network.network import Network
from decentral.registry import components
from handmade import TABLE, courses, table1, write

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text()
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
RESTART = ROOT / "examples" / "own_script" / "restart.py"
OWN = ("own_components.md", "own_algorithm.md")
CARRIED_OUT = ("README.md", "index.md", "recipes.md", "running.md", "time.md", "tutorial.md")


def commands(page: Path) -> list[str]:
    """The lines of a page that start `decentral-run` or `decentral-study`, without comments."""
    lines = page.read_text().replace("\\\n", " ").splitlines()
    return [line.split("#")[0].strip() for line in lines if line.startswith(("decentral-run ", "decentral-study "))]


TABLED = re.findall(r"^\| `(algo=\w[^`]*)` \|", (ROOT / "docs" / "index.md").read_text(), re.M)
COMMANDS = [f"decentral-run {settings}" for settings in TABLED]
for page in PAGES:
    shown = "" if page.name in CARRIED_OUT else "--help "
    if page.name != "own_components.md":
        COMMANDS += [command for command in commands(page) if command.startswith("decentral-run ") and shown in command]
HELP = [command for command in dict.fromkeys(COMMANDS) if "--help" in command]
RUNS = list({tuple(re.findall(r"[\w.]+(?==)|-m", line)): line for line in COMMANDS[::-1] if line not in HELP}.values())
"""Of the commands with the same settings, the first one."""
DOCS = [
    command
    for page in PAGES
    if page.name not in OWN
    for command in commands(page)
    if "--config-dir mine" not in command and command not in HELP
]
"""Those of `OWN` and with --config-dir mine are carried out, in examples/ (test_packaging.py)."""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working directory with what the pages' placeholders stand for."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("DECENTRAL_CACHE", str(tmp_path / "cache"))
    random = np.random.default_rng(0)
    for split in ("train", "val", "test"):
        for name in ("cat", "dog"):
            (tmp_path / "FOLDER" / split / name).mkdir(parents=True)
            for number in range(40 if split == "train" else 1):
                picture = Image.fromarray(random.integers(0, 256, (32, 32, 3), dtype=np.uint8))
                picture.save(tmp_path / "FOLDER" / split / name / f"{number}.png")
                if split != "val":
                    writer = tmp_path / "WRITERS" / split / f"w{number % 4}" / name
                    writer.mkdir(parents=True, exist_ok=True)
                    picture.save(writer / f"{number}.png")
    (tmp_path / "TEXTS").mkdir()
    for split in ("train", "test"):
        rows = [f"the {'good' if i % 2 else 'bad'} text,a{i % 5},{i % 2}" for i in range(400)]
        (tmp_path / "TEXTS" / f"{split}.csv").write_text("\n".join(["text,author,label", *rows]))
    nx.write_graphml(nx.Graph([("a", "b"), ("b", "c"), ("c", "a"), ("c", "d"), ("x", "y")]), tmp_path / "graph.graphml")
    loader = SimpleNamespace(get_graph=lambda *_, **settings: nx.DiGraph(nx.cycle_graph(4)))
    monkeypatch.setitem(sys.modules, "fedivertex", SimpleNamespace(GraphLoader=lambda: loader))
    (tmp_path / "edges.csv").write_text("".join(f"{i},{(i + 1) % 16}\n" for i in range(16)))
    for example in ("own_algorithm", "own_model"):
        shutil.copytree(Path(__file__).parents[1] / "examples" / example, tmp_path, dirs_exist_ok=True)
    (tmp_path / "SHARDS").mkdir()
    for part, size in (("train", 40_000), ("val", 1_000)):
        tokens = random.integers(0, 50256, size).astype(np.uint16)
        tokens[::100] = 50256
        tokens.tofile(tmp_path / "SHARDS" / f"{part}.bin")
    np.savez(tmp_path / "P.npz", A=random.normal(size=(4, 3, 3)), b=random.normal(size=(4, 3)))
    return tmp_path


@pytest.mark.parametrize("command", HELP)
def test_help_is_printed(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert exit_status(main, *shlex.split(command)[1:]) == 0
    assert len(capsys.readouterr().out.splitlines()) > 2


def of_two(arguments: list[str]) -> list[str]:
    """A sweep over two values of its first list, with one of each other list."""
    found, most = [], 2
    for argument in arguments:
        key, _, value = argument.partition("=")
        values = re.split(r",(?![^(\[{]*[)\]}])", value)  # outside of brackets
        found.append(f"{key}={','.join(values[:most])}" if len(values) > 1 else argument)
        most -= most > 1 and len(values) > 1
    return found


@pytest.mark.parametrize("command", RUNS)
@pytest.mark.slow
@pytest.mark.usefixtures("inline", "undrawn")
def test_a_command_runs(command: str, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = [*shlex.split(command)[1:], "progress=false"]
    if "model=resnet50" in arguments:  # two steps of it take minutes
        arguments = [argument for argument in arguments if "progress" not in argument]
        assert compose([*arguments, "batch_size=4"]).model.name == "resnet50"
        return
    small = {"steps": 2}
    if re.search("data=imagefolder|model=(gpt_1m|timm|transformers)", command):
        small |= {"batch_size": 2, "num_workers": 2, "processes": 1}
    if "model=transformers" in command:
        small |= {"data.num_test": 20, "data.num_train": 200}
    if "data=imagefolder" in command:
        small["data.num_processes"] = 1
    arguments = [argument for argument in arguments if argument.partition("=")[0] not in (*small, "tokens")]
    words = [
        *(of_two(arguments) if "-m" in arguments else arguments),
        *(f"{key}={value}" for key, value in small.items()),
    ]
    assert exit_status(main, *words) == 0, capsys.readouterr().err
    runs = [run for kind in ("runs", "timelines") for run in folder.glob(f"results/{kind}/*/status.json")]
    assert (len(runs) > 1) == ("-m" in arguments) and runs
    assert all('"status": "done"' in run.read_text() for run in runs)


def test_the_other_commands_of_the_pages_can_be_read(folder: Path) -> None:
    assert len(DOCS) >= 20 and len(RUNS) >= 8 and len(TABLED) >= 2
    for command in DOCS:
        name, *words = shlex.split(command)
        if name == "decentral-study":
            assert not words or chosen_studies([word for word in words if not word.startswith("--")])
        else:
            options = parser().parse_intermixed_args(words)
            options.words = [word for word in options.words if word.partition("=")[0] not in to_target.KEYS]
            assert not options.words or checked(options.words, folders_of(options.config_dir), several=options.multirun)


def test_the_citation_is_of_this_version_and_of_papers_that_the_readme_names() -> None:
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert (citation["version"], citation["license"]) == (__version__, project["license"])
    assert {"cff-version", "message", "title", "authors"} <= citation.keys()
    assert len(citation["references"]) == 5
    assert re.findall(r"^## (\S+)", (ROOT / "CHANGELOG.md").read_text(), re.M)[0] == __version__
    assert all(one["url"] in README for one in citation["references"] if "url" in one)


def script(name: str, page: str) -> str:
    found = re.search(rf"<!-- {name} -->\n```python\n(.*?)```", (ROOT / page).read_text(), re.S)
    assert found is not None
    return found[1]


def code(name: str, page: str) -> set[str]:
    """The lines of a script, without comments."""
    return {line.split("#")[0].strip() for line in script(name, page).splitlines()}


def test_the_algorithm_on_its_page_is_the_one_in_the_examples() -> None:
    example = ROOT / "examples" / "own_algorithm" / "heavy.py"
    assert script("heavy", "docs/own_algorithm.md") == example.read_text()


def test_the_page_on_algorithms_names_every_verb_of_the_network_that_ours_call() -> None:
    page, ours = ((ROOT / path) for path in ("docs/own_algorithm.md", "src/decentral/algorithms"))
    table = page.read_text().partition("| verb |")[2].partition("\n\n")[0].splitlines()[2:]
    named = re.findall(r"`(\w+)\(", "".join(line.split("|")[1] for line in table))
    assert len(named) >= 20 and all(callable(getattr(Network, name)) for name in named)
    called = re.findall(r"\bnet\.(\w+)\(", "".join(file.read_text() for file in ours.glob("*.py")))
    assert [name for name in sorted(set(called)) if f"`{name}" not in page.read_text()] == []


def test_the_scripts_in_the_readme_and_on_the_page_are_parts_of_those_that_are_run() -> None:
    assert code("excerpt", "README.md") <= code("example", "docs/own_script.md")
    whole = {line.split("#")[0].strip() for line in RESTART.read_text().splitlines()}
    assert len(code("restart", "docs/own_script.md")) >= 6 and code("restart", "docs/own_script.md") <= whole


def test_the_readme_is_short() -> None:
    assert len(README.encode()) <= 10_000 and len(README.split()) <= 1500


def sentences(page: str) -> list[str]:
    """Those of a page, without code, tables, and the targets of links."""
    text = re.sub(r"```.*?```|<!--.*?-->", "\n\n", (ROOT / page).read_text(), flags=re.S)
    text = re.sub(r"\]\([^)]*\)", "]", re.sub(r"^\|.*$", "", text, flags=re.M))
    return [one for part in re.split(r"\n\n|\n *- ", text) for one in re.split(r"[.!?]\W*\s", part)]


@pytest.mark.parametrize("page", ["README.md", "docs/index.md", "docs/papers.md"])
def test_no_sentence_is_too_long(page: str) -> None:
    assert [one for one in sentences(page) if len(one.split()) > 30] == []


def run_script(source: str, ranks: int, folder: Path, *options: str) -> str:
    """What a script prints, under torchrun if there are several ranks."""
    (folder / "train.py").write_text(source)
    launcher = ["-m", "torch.distributed.run", f"--nproc-per-node={ranks}", *options] if ranks > 1 else []
    command = [sys.executable, *launcher, "train.py"]
    ended = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=240)
    assert ended.returncode == 0, ended.stderr
    return ended.stdout


ONE_AFTER_THE_OTHER = """
import contextlib, os, runpy
for name in {names}:
    with open(name + os.environ.get("RANK", "0"), "w") as file, contextlib.redirect_stdout(file):
        runpy.run_path(name + ".py", run_name="__main__")
"""
FINDS: dict[str, Callable[[float, int], bool]] = {
    "example": lambda accuracy, ranks: accuracy > 90,
    "window": lambda mean, ranks: abs(mean - (ranks - 1) / 2) < 1e-2,
    "verbs": lambda mean, ranks: abs(mean - (ranks - 1) / 2) < 1e-2,
}


@pytest.mark.slow
@pytest.mark.parametrize("ranks", [1, 4])
def test_the_scripts_of_the_page_train_and_find_the_optimum_and_the_mean(tmp_path: Path, ranks: int) -> None:
    names = [name for name in FINDS if (name, ranks) != ("verbs", 1)]
    for name in names:
        (tmp_path / f"{name}.py").write_text(script(name, "docs/own_script.md"))
    run_script(ONE_AFTER_THE_OTHER.format(names=names), ranks, tmp_path)
    for name in names:
        for rank in range(ranks):
            told = re.findall(rf"rank {rank}: ([\d.]+)", (tmp_path / f"{name}{rank}").read_text())
            assert told and FINDS[name](float(told[-1]), ranks), (name, told)


@pytest.mark.slow
def test_a_module_is_trained_from_python(tmp_path: Path) -> None:
    told = run_script(script("train", "docs/own_components.md"), 1, tmp_path)
    assert "relaysgd" in told and "test accuracy (worst)" in told
    assert (tmp_path / "curves.png").stat().st_size > 0 and (tmp_path / "averaged.pt").exists()
    assert len(list((tmp_path / "results" / "runs").iterdir())) == 1


@pytest.mark.slow
def test_a_script_ends_the_same_when_a_rank_dies(tmp_path: Path) -> None:
    """It dies in epoch 7 of the first attempt."""
    source, step = RESTART.read_text(), "    scheduler.step()\n"
    dying = "    if epoch == 7 and peers.rank == 1 and os.environ['TORCHELASTIC_RESTART_COUNT'] == '0':\n"
    deadly = "import os\n" + source.replace(step, f"{step}{dying}        os._exit(1)\n")
    (tmp_path / "whole").mkdir()
    whole = run_script(source, 2, tmp_path / "whole")
    again = run_script(deadly, 2, tmp_path, "--max-restarts=1")
    assert sorted(again.splitlines()) == sorted(whole.replace("epoch 0", "epoch 7").splitlines())
    assert len(re.findall(r"test loss 0\.[01]\d*, from epoch 7", again)) == 2, again


def test_pages_name_choices_that_there_are() -> None:
    folders = folders_of(None)
    known = {group: set(options(group, folders)) for group in GROUPS}
    named = {
        (page.name, group, name)
        for page in PAGES
        if page.name not in OWN
        for group, name in re.findall(r"`(\w+)=([a-z]\w*)`", page.read_text())
        if group in known
    }
    assert len(named) > 50
    assert [found for found in sorted(named) if found[2] not in known[found[1]]] == []


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The site, built as `make docs` builds it."""
    folder = tmp_path_factory.mktemp("docs")
    command = [sys.executable, str(ROOT / "scripts" / "docs" / "build.py"), str(folder)]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=280)
    assert done.returncode == 0, done.stdout + done.stderr
    return folder / "site"


def test_the_drawings_of_the_front_page_are_what_their_script_draws(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(ROOT / "scripts" / "docs")
    for name, svg in import_module("idea").drawings().items():
        assert (ROOT / "docs" / name).read_text() == svg, "run scripts/docs/idea.py"
        assert len(svg) < 30_000 and f"({name})" in (ROOT / "docs" / "index.md").read_text()


def text_of(page: Path) -> str:
    return unescape(re.sub(r"<[^>]+>", "", page.read_text()))


ANSWERS = {
    "how to run the default": "decentral-run algo=relaysgd topology=dbt alpha=0.01",
    "which method suits a slow network with different data": "A slow network and different data",
    "what RelaySGD sends": "1.88 models in 3.75 messages a step over topology=dbt",
    "how to use a model of my own": "result = decentral.train(",
    "how far simulated time can be trusted": (
        "cost parameters were fitted only to runs of 4 processes without stragglers"
    ),
}


@pytest.mark.slow
def test_the_front_page_leads_to_the_answers(site: Path) -> None:
    for question, answer in ANSWERS.items():
        row = re.search(rf"<td>{question}</td>\s*<td>(.*?)</td>", (site / "index.html").read_text())
        assert row is not None, question
        link = re.search(r'href="([^"]+)"', row[1])
        assert link is not None, question
        place, _, section = link[1].partition("#")
        page = site / (place or "index.html")
        assert answer in " ".join(text_of(page).split())
        assert not section or f'id="{section}"' in page.read_text()


@pytest.mark.slow
def test_every_kind_of_study_measurement_figure_and_claim_is_there(site: Path) -> None:
    page = (site / "study_keys.html").read_text()
    for group in ("study.kinds", "measurements", "study.tuning", "report.figures", "report.listings", "report.claims"):
        assert [name for name in components(group) if f'<h3 id="{name}' not in page] == []


@pytest.mark.slow
def test_every_method_and_topology_is_there(site: Path) -> None:
    methods = set(options("algo", folders_of(None)))
    assert {page.stem for page in (site / "methods").glob("*.html")} == methods | {"index"}
    for name in methods:
        doc = components("algorithms")[name].__doc__ or ""
        formula = next(
            line.strip() for line in doc.splitlines() if (line.startswith("        ") and "<-" in line) or "=" in line
        )
        assert " ".join(formula.split()) in " ".join(text_of(site / "methods" / f"{name}.html").split())
    topologies = set(options("topology", folders_of(None))) - {"file", "networkx", "d_cliques", "stl_fw"}
    assert {drawing.stem for drawing in (site / "topologies").glob("*.svg")} == topologies


REPOSITORY = Path(__file__).parents[1]
LINES = (REPOSITORY / "docs" / "glossary.md").read_text(encoding="utf-8").splitlines()
ROWS = [line.strip("| ").split(" | ") for line in LINES if line.startswith("| ") and not line.startswith("| word")]


def test_every_word_is_explained_once():
    assert [word for word, times in Counter(row[0] for row in ROWS).items() if times > 1] == []


NOTEBOOK_FOLDER = Path(__file__).resolve().parents[1] / "notebooks"
TRAINING, COLAB, TUTORIAL = (NOTEBOOK_FOLDER / f"{name}.ipynb" for name in ("training", "colab", "tutorial"))
NOTEBOOKS = sorted(set(NOTEBOOK_FOLDER.glob("*.ipynb")) - {TRAINING, COLAB, TUTORIAL})
FIGURE = {"kind": "curves", "worker": "worst", "panels": "alpha", "lines": ["method"]}
RUN_NOTEBOOK = """
import json, sys, nbformat
from nbclient import NotebookClient
notebook = nbformat.read(sys.argv[1], 4)
NotebookClient(notebook, timeout=300).execute()
shown = [output["data"] for cell in notebook.cells for output in cell.get("outputs", []) if "data" in output]
print(json.dumps(shown))
"""


def cells(path: Path) -> list[dict[str, Any]]:
    return json.loads(path.read_text())["cells"]


def shown(path: Path) -> list[dict[str, str]]:
    """What the cells of a notebook show, as it is kept, by the kind of what it is."""
    outputs = [output["data"] for cell in cells(path) for output in cell.get("outputs", [])]
    return [{kind: "".join(value) for kind, value in data.items()} for data in outputs]


def executed(path: Path, folder: Path, **environment: str) -> list[dict[str, str]]:
    """What the cells of a notebook show when they are carried out in a folder."""
    command = [sys.executable, "-W", "ignore", "-c", RUN_NOTEBOOK, str(path)]
    known = os.environ | environment
    done = subprocess.run(command, cwd=folder, env=known, capture_output=True, text=True, timeout=600, check=True)
    return json.loads(done.stdout)


@pytest.mark.slow
@pytest.mark.parametrize("path", NOTEBOOKS[::6], ids=lambda path: path.stem)
def test_what_is_kept_is_what_is_shown_of_the_stored_results(path: Path) -> None:
    for kept, found in zip(shown(path), executed(path, NOTEBOOK_FOLDER), strict=True):
        assert kept.get("text/markdown") == found.get("text/markdown"), "make notebooks"
        assert ("image/png" in kept) == ("image/png" in found)


@pytest.mark.slow
def test_a_notebook_draws_what_was_run_and_says_how_to_run_the_rest(tmp_path: Path) -> None:
    report = {"table": TABLE, "figures": [FIGURE], "claims": []}
    curves = courses("RelaySGD", "dbt", 1, 90)
    write(tmp_path / "relaysum" / "relaysum_table1" / "smoke", table1(), report, curves)
    found = executed(NOTEBOOK_FOLDER / "relaysum.ipynb", NOTEBOOK_FOLDER, DECENTRAL_RESULTS=str(tmp_path))
    texts = [data.get("text/markdown", "") for data in found]
    assert any("image/png" in data for data in found) and any("| RelaySGD |" in text for text in texts)
    assert any("has no results in" in text and "run `decentral-study" in text for text in texts)
    assert list(tmp_path.iterdir()) == [tmp_path / "relaysum"]


def test_every_stored_result_is_in_the_notebook_of_its_paper() -> None:
    stored = {file.parents[1] for file in (ROOT / "results").glob("*/*/*/study.json")}
    assert len(stored) > 80
    for study in stored:
        text = (NOTEBOOK_FOLDER / f"{study.parent.name}.ipynb").read_text()
        assert re.search(rf"\b{study.name}\b", text), f"{study.name} is missing in notebooks/{study.parent.name}.ipynb"


@pytest.mark.slow
def test_the_notebook_on_training_shows_what_it_does_and_does_it_again(tmp_path: Path) -> None:
    kept = [cell for cell in cells(TRAINING) if cell["cell_type"] == "code"]
    figures = [output for cell in kept for output in cell["outputs"] if "image/png" in output.get("data", {})]
    assert len(figures) == 2 and all(cell["execution_count"] for cell in kept)
    texts = [data.get("text/plain", "") for data in executed(TRAINING, tmp_path)]
    assert any("% of the test examples, by the averaged model" in text for text in texts)
    assert len(list((tmp_path / "results" / "runs").iterdir())) == 3


@pytest.mark.slow
def test_the_notebook_for_colab_installs_runs_compares_and_plots(tmp_path: Path) -> None:
    kept = [cell for cell in cells(COLAB) if cell["cell_type"] == "code"]
    assert len(kept) == 4 and "".join(kept[0]["source"]).startswith("WHEEL = ") and COLAB.stat().st_size < 60_000
    ran, compared, plotted = executed(COLAB, tmp_path)
    assert "worst" in ran["text/plain"] and "image/png" in plotted
    assert all(algo in compared["text/plain"] for algo in ("relaysgd", "dpsgd", "allreduce"))


def test_the_notebook_of_the_tutorial_has_the_cells_of_its_page(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "scripts"))
    page = import_module("notebooks").tutorial()
    kept = json.loads(TUTORIAL.read_text())
    assert ["".join(cell["source"]) for cell in kept["cells"]] == [cell.source for cell in page.cells], (
        "scripts/notebooks.py tutorial"
    )


@pytest.mark.slow
def test_the_tutorial_trains_a_module_checks_a_method_and_plans_a_benchmark(tmp_path: Path) -> None:
    """Its runs are carried out above, for two steps; its second check includes the first; test_study.py carries out a
    benchmark."""
    page = (ROOT / "docs" / "tutorial.md").read_text()
    blocks = re.findall(r"^```(?:python\n# (\S+))?\n(.*?)\n```", page, re.M | re.S)
    assert sum(bool(file) for file, _ in blocks) == 2 and len(blocks) == 9
    known = {**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    for file, text in blocks:
        if file:
            (tmp_path / file).write_text(text)
        elif not text.startswith("decentral-run") and text != "decentral-check algo=mine:Lazy":
            command = text + " --plan" * text.startswith("decentral-benchmark")
            done = subprocess.run(command, shell=True, cwd=tmp_path, env=known, capture_output=True, text=True)
            assert done.returncode == 0, (text, done.stdout, done.stderr)
