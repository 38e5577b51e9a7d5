"""The same work on many things, by several processes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from decentral.errors import ConfigError
from decentral.host.pool import carried_out
from decentral.report import make as reports
from test_report_pages import results_dir  # noqa: F401

TASKS = [(i,) for i in range(6)]


def square(i: int) -> tuple[int, int, str]:
    return i * i, os.getpid(), os.environ.get("BEGUN", "")


def begin() -> None:
    os.environ["BEGUN"] = "yes"


def refuse(i: int) -> int:
    if i == 2:
        raise ConfigError(f"task={i} makes no sense.")
    return i


@pytest.mark.parametrize("num_processes", [1, 2])
def test_every_task_is_carried_out_once_and_has_its_number(num_processes: int) -> None:
    found = dict(carried_out(square, TASKS, num_processes))
    assert {i: value for i, (value, _, _) in found.items()} == {i: i * i for i in range(6)}
    assert (os.getpid() in {pid for _, pid, _ in found.values()}) == (num_processes == 1)


def test_a_process_begins_with_what_it_is_told() -> None:
    assert {word for _, (_, _, word) in carried_out(square, TASKS, 2, begin)} == {"yes"}
    assert "BEGUN" not in os.environ


def killed_once(folder: str, i: int) -> int:
    if i == 3 and not (Path(folder) / "killed").exists():
        (Path(folder) / "killed").touch()
        os.kill(os.getpid(), signal.SIGKILL)
    return os.getpid()


def slow(folder: str, i: int) -> int:
    (Path(folder) / f"begun {i}").touch()
    time.sleep(0.05)
    if i == 0:
        raise Odd(1, 2)
    return i


class Odd(Exception):
    """Cannot be made again from its text."""

    def __init__(self, a: int, b: int) -> None:
        super().__init__(f"{a} and {b}")


def test_after_an_error_nothing_more_is_begun(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match="Odd: 1 and 2"):
        list(carried_out(slow, [(str(tmp_path), i) for i in range(30)], 2))
    begun = len(list(tmp_path.iterdir()))
    assert begun <= 8  # the first few, and what the error could not catch up with
    time.sleep(0.3)
    assert len(list(tmp_path.iterdir())) == begun


def test_what_a_killed_process_leaves_is_done_here(tmp_path: Path) -> None:
    found = dict(carried_out(killed_once, [(str(tmp_path), i) for i in range(8)], 2))
    assert sorted(found) == list(range(8)) and found[3] == os.getpid()


def test_a_script_without_a_guard_is_not_carried_out_in_each_process(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    lines = ["print('script')", "import operator", "from decentral.host.pool import carried_out"]
    script.write_text("\n".join([*lines, "print(sorted(carried_out(operator.neg, [(1,), (2,)], 2)))"]))
    said = subprocess.run([sys.executable, script], capture_output=True, text=True, timeout=60, check=True).stdout
    assert said == "script\n[(0, -1), (1, -2)]\n"


@pytest.mark.parametrize("num_processes", [1, 2])
def test_what_goes_wrong_is_raised(num_processes: int) -> None:
    with pytest.raises(ConfigError, match="task=2 makes no sense"):
        list(carried_out(refuse, TASKS, num_processes))


def test_reports_by_several_processes_are_those_of_one(results_dir: Path, monkeypatch, capsys) -> None:  # noqa: F811
    (results_dir / "own" / "foreign" / "small").mkdir(parents=True)
    (results_dir / "own" / "foreign" / "small" / "study.json").write_text("{")

    def files() -> dict[Path, bytes]:
        return {path: path.read_bytes() for path in results_dir.rglob("*.*") if path.is_file()}

    alone, skipped = reports.report_all(results_dir)
    before = files()
    assert "Making" not in capsys.readouterr().out
    monkeypatch.setattr(reports, "_MANY", 2)
    monkeypatch.setattr(reports, "num_cores", lambda: 2)
    together, also_skipped = reports.report_all(results_dir)
    assert files() == before and skipped == also_skipped and len(skipped) == 1
    assert [one.results.directory for one in together] == [one.results.directory for one in alone]
    assert "Making 4 reports: done." in capsys.readouterr().out
