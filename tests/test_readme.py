"""The README's commands do what they say: every `decentral-run` line in it runs, for two steps, on small stand-ins."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from decentral.cli import main
from decentral.composition import compose
from decentral.study.asking import ask

README = (Path(__file__).parents[1] / "README.md").read_text()
COMMANDS = [line.split("#")[0].strip() for line in README.splitlines() if line.startswith("decentral-run ")]
TABLE = [f"decentral-run {settings}" for settings in re.findall(r"^\| `(algo=\w[^`]*)` \|", README, re.M)]
HELP = [command for command in COMMANDS if "--help" in command]
RUNS = [command for command in [*COMMANDS, *TABLE] if command not in HELP]


STUDIES = [line.split("#")[0].strip() for line in README.splitlines() if line.startswith("decentral-study ")]


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
    runs = list(folder.glob("results/runs/*/status.json"))
    assert len(runs) == (6 if "lr=0.05,0.1,0.2" in arguments else 1)
    assert all('"status": "done"' in run.read_text() for run in runs)


@pytest.mark.parametrize("command", [command for command in STUDIES if command != "decentral-study"])
def test_a_study_of_the_readme_exists_and_takes_what_is_said(command: str) -> None:
    words = [word for word in shlex.split(command)[1:] if not word.startswith("--")]
    assert ask(words)
