"""The README's commands do what they say: every `decentral-run` line in it runs, for two steps, on small stand-ins.
Those of docs/ are read."""

from __future__ import annotations

import json
import re
import shlex
import shutil
import tomllib
from pathlib import Path

import numpy as np
import pytest
import yaml  # type: ignore[import-untyped]
from PIL import Image

from decentral import __version__
from decentral.cli.options import RunOptions
from decentral.cli.run import main
from decentral.cli.study_arguments import chosen_studies
from decentral.config.composition import compose, folders_of
from decentral.config.overrides import checked
from decentral.terminal.text import duration

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text()
COMMANDS = [line.split("#")[0].strip() for line in README.splitlines() if line.startswith("decentral-run ")]
TABLE = [f"decentral-run {settings}" for settings in re.findall(r"^\| `(algo=\w[^`]*)` \|", README, re.M)]
HELP = [command for command in COMMANDS if "--help" in command]
RUNS = [command for command in [*COMMANDS, *TABLE] if command not in HELP]


STUDIES = [line.split("#")[0].strip() for line in README.splitlines() if line.startswith("decentral-study ")]


DOCS = [
    line.split("#")[0].strip()
    for page in sorted((Path(__file__).parents[1] / "docs").glob("*.md"))
    for line in page.read_text().replace("\\\n", " ").splitlines()
    if line.startswith(("decentral-run ", "decentral-study ")) and page.name != "own_components.md"
    if "--config-dir mine" not in line
]
"""Those of own_components.md and with --config-dir mine are carried out, in examples/ (test_examples.py)."""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working directory with what the README's placeholders stand for."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("DECENTRAL_CACHE", str(tmp_path / "cache"))
    random = np.random.default_rng(0)
    for split in ("train", "val", "test"):
        for name in ("cat", "dog"):
            (tmp_path / "FOLDER" / split / name).mkdir(parents=True)
            for number in range(40 if split == "train" else 1):
                picture = Image.fromarray(random.integers(0, 256, (32, 32, 3), dtype=np.uint8))
                picture.save(tmp_path / "FOLDER" / split / name / f"{number}.png")
    (tmp_path / "edges.csv").write_text("".join(f"{i},{(i + 1) % 16}\n" for i in range(16)))
    for example in ("own_algorithm", "own_model"):
        shutil.copytree(Path(__file__).parents[1] / "examples" / example, tmp_path, dirs_exist_ok=True)
    np.savez(tmp_path / "P.npz", A=random.normal(size=(4, 3, 3)), b=random.normal(size=(4, 3)))
    return tmp_path


def test_the_readme_has_commands() -> None:
    assert len(HELP) >= 2 and len(COMMANDS) >= 8 and len(TABLE) >= 4


@pytest.mark.parametrize("command", HELP)
def test_help_is_printed(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(shlex.split(command)[1:])
    assert not ended.value.code
    assert len(capsys.readouterr().out.splitlines()) > 10


@pytest.mark.parametrize("command", RUNS)
@pytest.mark.slow
def test_a_command_runs(command: str, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = [*shlex.split(command)[1:], "progress=false"]
    if "model=resnet50" in arguments:  # two steps of it take minutes
        arguments = [argument for argument in arguments if "progress" not in argument]
        assert compose([*arguments, "batch_size=4"]).model.name == "resnet50"
        return
    if "data=imagefolder" in arguments:
        arguments += ["num_workers=2", "batch_size=2", "processes=1", "data.num_processes=1"]
    arguments = [argument for argument in arguments if not argument.startswith("steps=")]
    with pytest.raises(SystemExit) as ended:
        main([*arguments, "steps=2"])
    assert ended.value.code == 0, capsys.readouterr().err
    runs = [run for kind in ("runs", "timelines") for run in folder.glob(f"results/{kind}/*/status.json")]
    assert len(runs) == (6 if "lr=0.05,0.1,0.2" in arguments else 1)
    assert all('"status": "done"' in run.read_text() for run in runs)


@pytest.mark.parametrize("command", [command for command in STUDIES if command != "decentral-study"])
def test_a_study_of_the_readme_exists_and_takes_what_is_said(command: str) -> None:
    words = [word for word in shlex.split(command)[1:] if not word.startswith("--")]
    assert chosen_studies(words)


def test_the_commands_of_the_other_pages_can_be_read() -> None:
    assert DOCS
    for command in DOCS:
        name, *words = shlex.split(command)
        if name == "decentral-study":
            assert chosen_studies([word for word in words if not word.startswith("--")])
        else:
            options = RunOptions().parse_intermixed_args(words)
            assert checked(options.words, folders_of(options.config_dir), several=options.multirun)


def filled(mark: str) -> str:
    found = re.search(rf"<!-- {mark} -->\n(.*?)\n<!-- /{mark} -->", README, re.S)
    assert found is not None
    return found[1]


def test_times_of_studies_are_those_that_were_recorded() -> None:
    """`python scripts/readme.py times` fills them in."""
    recorded = {}
    for file in (ROOT / "results").glob("*/*/*/study.json"):
        facts = json.loads(file.read_text())
        recorded[facts["study"], facts["scale"]] = f"{duration(facts['wall_s'])}, {facts['jobs']} job"
    header, _, *rows = [[cell.strip() for cell in row.split("|")[1:-1]] for row in filled("times").splitlines()]
    scales = [cell.removeprefix("scale=") for cell in header[1:]]
    told = {(row[0].strip("`"), scale): cell for row in rows for scale, cell in zip(scales, row[1:], strict=True)}
    assert {key: cell.removesuffix("s") for key, cell in told.items() if cell} == {
        key: value for key, value in recorded.items() if key[1] != "smoke"
    }


def test_the_readme_says_how_to_install_and_where_data_come_from() -> None:
    words = ("pip install .", "pip wheel", "pytorch.org/get-started", "cs.toronto.edu/~kriz", "image-net.org")
    assert [word for word in words if word not in README] == []


def test_the_citation_is_of_this_version_and_of_papers_that_the_readme_names() -> None:
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert (citation["version"], citation["license"]) == (__version__, project["license"])
    assert {"cff-version", "message", "title", "authors"} <= citation.keys()
    assert len(citation["references"]) == 5
    assert all(one["url"] in README for one in citation["references"] if "url" in one)


def test_the_list_of_changes_begins_with_this_version() -> None:
    versions = re.findall(r"^## (\S+)", (ROOT / "CHANGELOG.md").read_text(), re.M)
    assert versions[0] == __version__
