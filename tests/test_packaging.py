"""A wheel works from any working directory, and finds conf/ inside the package."""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from decentral.config.composition import conf_directory

CHECKOUT = Path(__file__).resolve().parents[1]


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with decentral installed from its wheel; nothing is downloaded."""
    folder = tmp_path_factory.mktemp("wheel")
    build = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(folder), str(CHECKOUT)]
    install = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-index", "--no-compile"]
    subprocess.run(build, check=True, capture_output=True, timeout=120)
    (wheel,) = folder.glob("*.whl")
    target = folder / "site-packages"
    subprocess.run([*install, "--target", str(target), str(wheel)], check=True, capture_output=True, timeout=120)
    return target


def run(installed: Path, folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "decentral", *arguments],
        cwd=folder,
        env=os.environ | {"PYTHONPATH": str(installed), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=120,
    )


def test_the_wheel_holds_every_file_of_conf(installed: Path) -> None:
    (wheel,) = installed.parent.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
    ours = {file.relative_to(CHECKOUT / "conf").as_posix() for file in (CHECKOUT / "conf").rglob("*.yaml")}
    assert {f"decentral/conf/{name}" for name in ours} == {name for name in names if name.endswith(".yaml")}
    assert not any(name.startswith(("tests/", "conf/", "src/")) for name in names)
    assert any(name.endswith("entry_points.txt") for name in names)
    published = (CHECKOUT / "src" / "decentral" / "published").glob("*.csv")
    assert {f"decentral/published/{file.name}" for file in published} <= names


def test_the_wheel_helps_and_refuses_from_any_folder(installed: Path, tmp_path: Path) -> None:
    helped = run(installed, tmp_path, "--help")
    assert (helped.returncode, helped.stderr) == (0, "")
    assert "relaysgd" in helped.stdout
    refused = run(installed, tmp_path, "algo=relysgd")
    assert refused.returncode == 2
    assert "'relaysgd'" in refused.stderr
    where = run(installed, tmp_path, "--help", "experiment=thesis_cifar10")
    assert str(installed / "decentral" / "conf") in where.stdout
    assert list(tmp_path.iterdir()) == []


def test_the_wheel_runs(installed: Path, tmp_path: Path) -> None:
    done = run(installed, tmp_path, "task=quadratics", "steps=3", "run_dir=mine", "device=cpu", "processes=1")
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "mine" / "status.json").is_file()
    assert [path.name for path in tmp_path.iterdir()] == ["mine"]


def test_a_checkout_uses_the_conf_at_its_top() -> None:
    assert conf_directory() == CHECKOUT / "conf"
