"""Loggers show what the run directory records; their troubles are never the run's."""

from __future__ import annotations

import importlib.util
import json
import math
import os
import subprocess
import sys
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

import decentral
from conftest import exit_status
from decentral.cli.run import main as run_command
from decentral.errors import ConfigError
from decentral.store import RunStore
from decentral.store.metrics import read_metrics
from decentral.training.loggers import Guarded, Logger, Sink
from decentral.training.loggers.tensorboard import TensorBoard
from decentral.training.loggers.wandb import WeightsAndBiases

SOURCE = Path(decentral.__file__).parents[1]
pytestmark = pytest.mark.usefixtures("undrawn", "inline")


class Recorder(Sink):
    """A sink that fails, or waits, where it is told to."""

    def __init__(self, trouble: str, release: threading.Event) -> None:
        self.trouble = trouble
        self.release = release
        self.seen: list[Any] = []

    def _do(self, what: str, seen: Any) -> None:
        if self.trouble == f"{what} raises":
            raise ConnectionError("the server\nis gone")
        if self.trouble == f"{what} exits":
            raise SystemExit(1)
        if self.trouble == f"{what} interrupts":
            raise KeyboardInterrupt
        if self.trouble == f"{what} hangs":
            self.release.wait()
        self.seen.append(seen)

    def log(self, step: int, values: dict[str, float]) -> None:
        self._do("log", (step, values))

    def close(self, status: str) -> None:
        self._do("close", status)


@dataclass
class Troubled(Logger):
    name: str = "troubled"
    trouble: str = ""

    def __post_init__(self) -> None:
        self.release = threading.Event()
        self.sink = Recorder(self.trouble, self.release)

    def check(self) -> None:
        pass

    def open(self, run_id: str, config: dict[str, Any], directory: Path) -> Sink:
        self.sink._do("open", (run_id, config, directory))
        return self.sink


def test_what_is_logged_arrives_in_order_and_before_close_returns(tmp_path: Path) -> None:
    logger = Troubled()
    guarded = Guarded(logger, "aaa", {"alpha": 0.1}, tmp_path)
    for step in range(100):
        guarded.log(step, {"test/loss/mean": step / 2})
    guarded.close("done")
    logged = [(step, {"test/loss/mean": step / 2}) for step in range(100)]
    assert logger.sink.seen == [("aaa", {"alpha": 0.1}, tmp_path), *logged, "done"]


@pytest.mark.parametrize("where", ["open", "log", "close"])
@pytest.mark.parametrize("how", ["raises", "exits", "interrupts", "hangs"])
def test_a_logger_in_trouble_costs_one_line_of_warning(tmp_path: Path, capfd, where: str, how: str) -> None:
    logger = Troubled(trouble=f"{where} {how}")
    close_timeout_s = 0.05 if how == "hangs" else 30.0
    guarded = Guarded(logger, "aaa", {}, tmp_path, close_timeout_s)
    for step in range(100):
        guarded.log(step, {"loss": 1.0})
    guarded.close("done")
    guarded.close("done")
    warnings = capfd.readouterr().err.splitlines()
    logger.release.set()
    assert len(warnings) == 1 and warnings[0].startswith("warning: logger=troubled stopped: ")
    assert "the server" in warnings[0] if how == "raises" else True


# Components


@pytest.mark.parametrize(
    ("logger", "advice"), [(WeightsAndBiases(), "pip install wandb"), (TensorBoard(), "pip install tensorboard")]
)
def test_a_package_that_is_missing_is_named_before_the_run_starts(logger: Logger, advice: str, monkeypatch) -> None:
    monkeypatch.setattr("decentral.host.machine.find_spec", lambda package: None)
    with pytest.raises(ConfigError) as refused:
        logger.check()
    assert advice in str(refused.value) and "logger=" in str(refused.value)


def test_tensorboard_writes_event_files(tmp_path: Path) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    guarded = Guarded(TensorBoard(), "aaa", {"alpha": 0.1}, tmp_path)
    for step in (1, 2):
        guarded.log(step, {"test/loss/mean": float(step)})
    guarded.close("done")
    events = EventAccumulator(str(tmp_path / "tensorboard"))
    events.Reload()
    assert [(event.step, event.value) for event in events.Scalars("test/loss/mean")] == [(1, 1.0), (2, 2.0)]


TRACKIO = """
import json
class init:
    def __init__(self, project, name=None, group=None, config=None, resume="never", embed=True):
        self.note(project, name, group, config["lr"], resume)
    def note(self, *what):
        with open("trackio.jsonl", "a") as file:
            file.write(json.dumps(what) + "\\n")
    def log(self, metrics, step=None):
        self.note(step, metrics)
    def finish(self):
        self.note("finished")
"""


def test_trackio_gets_every_worker_and_the_learning_rate(tmp_path: Path, monkeypatch, capsys) -> None:
    if importlib.util.find_spec("trackio") is None:
        assert "pip install '.[trackio]'" in refused(capsys, "logger=trackio")
    (tmp_path / "trackio.py").write_text(TRACKIO)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "trackio", raising=False)
    monkeypatch.chdir(tmp_path)
    told = run(capsys, "logger=trackio", "logger.every_worker=true", "logger.project=mine", "schedule=cosine")
    first, *steps, last = map(json.loads, (tmp_path / "trackio.jsonl").read_text().splitlines())
    name = next(Path("results/runs").glob("[!.]*")).name
    assert (first, last) == (["mine", name, None, 0.1, "allow"], ["finished"])
    assert f'Logged:   trackio show --project "mine"  (run {name})' in told
    for step, values in steps:
        assert values["lr"] == pytest.approx(0.05 * (1 + math.cos(math.pi * max(0, step - 1) / 6)))
        each = [values[key] for key in sorted(values) if "/suboptimality/worker" in key]
        assert len(each) == 4 and values["objective/suboptimality/worst"] == max(each)


@pytest.mark.skipif(importlib.util.find_spec("trackio") is None, reason="pip install '.[trackio]'")
def test_the_real_trackio_takes_a_run(tmp_path: Path, monkeypatch, capsys) -> None:
    monkeypatch.setenv("TRACKIO_DIR", str(tmp_path / "there"))
    monkeypatch.chdir(tmp_path)
    assert "Logged:   trackio show" in run(capsys, "logger=trackio") and any((tmp_path / "there").iterdir())


def test_every_worker_without_a_logger_is_refused(capsys) -> None:
    assert "logger=none has no settings" in refused(capsys, "logger.every_worker=true")


# Weights & Biases, for real: no network, no key, nobody to ask

WANDB_RUN = """
from pathlib import Path
from decentral.training.loggers import Guarded
from decentral.training.loggers.wandb import Mode, WeightsAndBiases
guarded = Guarded(WeightsAndBiases(mode=Mode.online, tags=["test"]), "aaa", {"alpha": 0.1}, Path("run"))
guarded.log(1, {"test/loss/mean": 0.5})
guarded.log(2, {"test/loss/mean": 0.25})
guarded.close("done")
"""


def test_wandb_without_network_key_or_terminal_ends_with_an_offline_run(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    environment = {name: value for name, value in os.environ.items() if not name.startswith("WANDB")}
    environment |= {"HOME": str(tmp_path), "PYTHONPATH": str(SOURCE)}
    environment |= {name: "http://127.0.0.1:9" for name in ("http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY")}
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", WANDB_RUN],
        cwd=tmp_path, env=environment, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=240,
    )  # fmt: skip
    assert done.returncode == 0 and done.stdout == ""
    (file,) = (tmp_path / "run").glob("wandb/offline-run-*/*.wandb")
    assert file.stat().st_size > 100 and done.stderr.count("\n") == 1 and "is offline: no API key" in done.stderr


# Runs that are finished


SIX_STEPS = "algo=dpsgd", "topology=ring", "task=quadratics", "num_workers=4", "steps=6"


def run(capsys, *arguments: str) -> str:
    assert exit_status(run_command, *SIX_STEPS, *arguments) == 0
    return capsys.readouterr().out


@pytest.fixture
def logged(monkeypatch) -> dict[str, list[Any]]:
    """What went to a stand-in for TensorBoard, by the name of the run's folder."""
    found: dict[str, list[Any]] = {}

    def open(self: TensorBoard, run_id: str, config: dict[str, Any], directory: Path) -> Sink:
        sink = Recorder("", threading.Event())
        sink.seen = found.setdefault(directory.name, [])
        return sink

    monkeypatch.setattr(TensorBoard, "open", open)
    monkeypatch.setattr(TensorBoard, "check", lambda self: None)
    return found


@pytest.mark.parametrize(
    "more", [(), ("schedule=cosine", "lr_per_worker=[0.1,0.1,0.2,0.2]", "logger.every_worker=true")]
)
def test_a_finished_run_gives_its_stored_metrics_to_the_logger_once(tmp_path: Path, capsys, logged, more) -> None:
    first, second = [f"run_dir={tmp_path / 'first'}", *more], [f"run_dir={tmp_path / 'second'}", *more]
    run(capsys, *first, "logger=tensorboard")
    run(capsys, *(word for word in second if not word.startswith("logger.")))
    assert list(logged) == ["first"]
    assert "nothing was computed.\nSent the stored metrics to logger=tensorboard." in run(
        capsys, *second, "logger=tensorboard"
    )
    assert logged["second"] == logged["first"] and logged["first"][-1] == "done" and len(logged["first"]) > 2
    for known in (first, second):
        assert "logger=tensorboard already has its metrics." in run(capsys, *known, "logger=tensorboard")
    assert len(logged["second"]) == len(logged["first"])
    last = logged["first"][-2][1]
    assert ("objective/suboptimality/worker3" in last) == bool(more) == ("lr/worker3" in last)
    assert last["lr"] == pytest.approx(0.15 * (1 + math.cos(math.pi * 5 / 6)) / 2 if more else 0.1)


def test_rerun_computes_a_finished_run_again_in_its_place(tmp_path: Path, capsys) -> None:
    run(capsys, f"results_dir={tmp_path}")
    (there,) = tmp_path.glob("runs/*/metrics.jsonl")
    there = there.parent
    metrics = (there / "metrics.jsonl").read_text()
    lines = metrics.splitlines()
    (there / "metrics.jsonl").write_text("\n".join(lines[:1] * len(lines)) + "\n")
    assert "already finished" in run(capsys, f"results_dir={tmp_path}")
    assert "already finished" not in run(capsys, f"results_dir={tmp_path}", "rerun=true")
    again = [row | {"wall_s": 0} for row in read_metrics(there)]
    (tmp_path / "before.jsonl").write_text(metrics)
    assert again == [row | {"wall_s": 0} for row in read_metrics(tmp_path / "before.jsonl")]
    assert list(tmp_path.glob("runs/[!.]*")) == [there] and "rerun: false" in (there / "config.yaml").read_text()


def refused(capsys, *arguments: str) -> str:
    assert exit_status(run_command, *SIX_STEPS, *arguments) == 2
    return capsys.readouterr().err


def contents(results_dir: Path) -> dict[Path, bytes]:
    """Of all files of the runs, but which process has locked them."""
    files = (path for path in results_dir.glob("runs/*/*.*") if path.is_file() and path.name != "run.lock")
    return {path: path.read_bytes() for path in files}


LARGE = [
    *("task=images", "data=digits", "model=resnet18", "num_workers=2", "batch_size=2", "steps=1"),
    *("evaluation.examples=2", "save=none"),
]


@pytest.mark.parametrize(
    ("words", "wrong", "says"),
    [
        ([], "device=cuda", "device=cuda needs a GPU"),
        pytest.param(["-m", "seed=0,1"], "launcher=slurm", "launcher=slurm", marks=pytest.mark.slow),
        pytest.param([*LARGE, "processes=1"], "execution=batched", "execution=batched", marks=pytest.mark.slow),
    ],
    ids=["one", "launcher", "assembled"],
)
def test_a_rerun_that_is_refused_leaves_finished_runs_as_they_were(
    tmp_path: Path, capsys, monkeypatch, words: list[str], wrong: str, says: str
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    monkeypatch.setenv("PATH", str(tmp_path / "empty"))
    there = [f"results_dir={tmp_path}", "progress=false", *words]
    run(capsys, *there)
    files = contents(tmp_path)
    assert says in refused(capsys, *there, "rerun=true", wrong)
    assert contents(tmp_path) == files
    assert not list(tmp_path.glob("runs/*/before"))
    assert "already finished" in run(capsys, *there)


def test_a_rerun_that_was_broken_off_has_kept_what_there_was_until_it_is_finished(tmp_path: Path, capsys) -> None:
    run(capsys, f"results_dir={tmp_path}")
    (there,) = tmp_path.glob("runs/*/metrics.jsonl")
    there = there.parent
    metrics = (there / "metrics.jsonl").read_bytes()
    RunStore.forget(there, there.name)
    assert (there / "before" / "metrics.jsonl").read_bytes() == metrics
    assert RunStore.finished(there, there.name) is None
    assert "already finished" not in run(capsys, f"results_dir={tmp_path}")
    assert RunStore.finished(there, there.name) is not None and not (there / "before").exists()
