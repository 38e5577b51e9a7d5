"""The scripts of the README and of docs/own_script.md run as they stand, alone and under torchrun."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

TOP = Path(__file__).parents[1]


def script(name: str, page: str = "README.md") -> str:
    found = re.search(rf"<!-- {name} -->\n```python\n(.*?)```", (TOP / page).read_text(), re.S)
    assert found is not None
    return found[1]


def run(source: str, ranks: int, folder: Path) -> str:
    """What a script prints, under torchrun if there are several ranks."""
    (folder / "train.py").write_text(source)
    launcher = ["-m", "torch.distributed.run", f"--nproc-per-node={ranks}"] if ranks > 1 else []
    command = [sys.executable, *launcher, "train.py"]
    ended = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=120)
    assert ended.returncode == 0, ended.stderr
    return ended.stdout


def test_it_has_about_twenty_lines() -> None:
    lines = [line for line in script("example").splitlines() if line.strip()]
    assert len(lines) <= 21


@pytest.mark.parametrize("ranks", [1, pytest.param(4, marks=pytest.mark.slow)])
def test_it_trains(tmp_path: Path, ranks: int) -> None:
    told = sorted(re.findall(r"rank (\d+): ([\d.]+)% of the test images", run(script("example"), ranks, tmp_path)))
    assert [int(rank) for rank, _ in told] == list(range(ranks))
    assert all(float(accuracy) > 90 for _, accuracy in told), told


@pytest.mark.slow
def test_a_module_is_trained_from_python(tmp_path: Path) -> None:
    told = run(script("train"), 1, tmp_path)
    assert "relaysgd" in told and "test accuracy (worst)" in told
    assert (tmp_path / "curve.png").stat().st_size > 0 and (tmp_path / "averaged.pt").exists()
    assert len(list((tmp_path / "results" / "runs").iterdir())) == 1


@pytest.mark.parametrize("ranks", [1, pytest.param(4, marks=pytest.mark.slow)])
def test_an_algorithm_finds_what_all_ranks_want(tmp_path: Path, ranks: int) -> None:
    told = sorted(re.findall(r"rank (\d+): ([\d.]+)", run(script("algo", "docs/own_script.md"), ranks, tmp_path)))
    assert [int(rank) for rank, _ in told] == list(range(ranks))
    assert all(float(loss) < 1e-3 for _, loss in told), told


FOUR = [pytest.param(name, 4, marks=pytest.mark.slow) for name in ("verbs", "window")]


@pytest.mark.parametrize(("name", "ranks"), [("window", 1), *FOUR])
def test_verbs_and_windows_find_the_mean(tmp_path: Path, name: str, ranks: int) -> None:
    told = sorted(re.findall(r"rank (\d+): ([\d.]+)", run(script(name, "docs/own_script.md"), ranks, tmp_path)))
    assert [int(rank) for rank, _ in told] == list(range(ranks))
    assert all(abs(float(mean) - (ranks - 1) / 2) < 1e-2 for _, mean in told), told
