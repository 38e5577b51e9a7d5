"""Whatever goes wrong in a console command becomes a sentence on stderr and an exit status, never a traceback."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
import tomllib
from importlib import import_module
from pathlib import Path

import pytest

from decentral.cli.guarded import guarded
from decentral.errors import ConfigError

SCRIPTS = tomllib.loads(Path(__file__).parents[1].joinpath("pyproject.toml").read_text())["project"]["scripts"]


def raising(error: BaseException) -> int:
    raise error


@pytest.mark.parametrize(("error", "status", "sentence"), [
    (ConfigError("alpha=-1 has to be above 0."), 2, "decentral-x: alpha=-1 has to be above 0."),
    (KeyboardInterrupt(), 130, "decentral-x: interrupted."),
    (OSError(errno.ENOSPC, "No space left on device", "table.md"), 1, "decentral-x: "),
    (PermissionError(errno.EACCES, "Permission denied", "them/data"), 2, "decentral-x: them/data is closed to you"),
])  # fmt: skip
def test_what_goes_wrong_is_a_sentence_and_a_status(
    error: BaseException, status: int, sentence: str, capsys: pytest.CaptureFixture
) -> None:
    with pytest.raises(SystemExit) as exit:
        guarded("decentral-x", lambda _: raising(error), [])
    told = capsys.readouterr()
    assert exit.value.code == status and told.out == ""
    assert told.err.startswith(sentence) and told.err.count("\n") == 1 and told.err.endswith(".\n")


def test_a_full_disk_is_named_with_the_file(capsys: pytest.CaptureFixture) -> None:
    with pytest.raises(SystemExit):
        guarded("decentral-report", lambda _: raising(OSError(errno.ENOSPC, "No space left on device", "table.md")), [])
    told = capsys.readouterr().err
    assert "table.md" in told and "space" in told.lower()


@pytest.mark.parametrize("command", SCRIPTS)
def test_every_console_command_is_guarded(command: str, monkeypatch: pytest.MonkeyPatch) -> None:
    module, _, name = SCRIPTS[command].partition(":")
    called: list[str] = []
    monkeypatch.setattr(f"{module}.guarded", lambda command, *more: called.append(command))
    getattr(import_module(module), name)(["--help"])
    assert called == [command]


@pytest.mark.parametrize("backend", ["module://matplotlib_inline.backend_inline", "module://not.there", "nonsense"])
def test_the_backend_of_a_notebook_does_not_cost_a_command_its_figures(tmp_path: Path, backend: str) -> None:
    words = ["data=digits", "model=mlp", "num_workers=2", "topology=ring", "steps=1", f"results_dir={tmp_path}"]
    command, environment = [sys.executable, "-m", "decentral.cli.run", *words], {**os.environ, "MPLBACKEND": backend}
    found = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    assert "warning" not in found.stderr
    assert len(list(tmp_path.rglob("learning_curves.png"))) == 1
