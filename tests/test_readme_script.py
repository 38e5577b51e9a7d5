"""The README's training script runs as it stands, alone and under torchrun, and trains."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

README = (Path(__file__).parents[1] / "README.md").read_text()


def script() -> str:
    found = re.search(r"<!-- example -->\n```python\n(.*?)```", README, re.S)
    assert found is not None
    return found[1]


def test_it_has_twenty_lines() -> None:
    lines = [line for line in script().splitlines() if line.strip()]
    assert len(lines) <= 21


@pytest.mark.parametrize("ranks", [1, 4])
def test_it_trains(tmp_path: Path, ranks: int) -> None:
    (tmp_path / "train.py").write_text(script())
    launcher = ["-m", "torch.distributed.run", f"--nproc-per-node={ranks}"] if ranks > 1 else []
    ended = subprocess.run(
        [sys.executable, *launcher, "train.py"], cwd=tmp_path, capture_output=True, text=True, timeout=120
    )
    assert ended.returncode == 0, ended.stderr
    told = sorted(re.findall(r"rank (\d+): ([\d.]+)% of the test pictures", ended.stdout))
    assert [int(rank) for rank, _ in told] == list(range(ranks))
    assert all(float(accuracy) > 90 for _, accuracy in told), ended.stdout
