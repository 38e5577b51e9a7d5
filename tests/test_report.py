"""What a run leaves for its reader: a picture, a table, provenance, progress; whatever the task measured."""

from __future__ import annotations

import csv
import io
import itertools
import json
import math
import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest
import torch

from configure import configure
from conftest import exit_status
from decentral.cli import run as command
from decentral.cli.predicted import work_out
from decentral.cli.single import carry_out
from decentral.config.identity import run_directory
from decentral.config.prepared import prepare
from decentral.config.schema import Config
from decentral.errors import ConfigError
from decentral.network.world import World
from decentral.report.run_figures import draw_learning_curves, save_learning_curves
from decentral.report.series import describe, read_curves
from decentral.report.summary import summary
from decentral.store import Metric, RunStore, Status
from decentral.store.metrics import read_lines
from decentral.terminal import progress as progress_module
from decentral.terminal.progress import progress
from decentral.training.recorder import Recorder
from decentral.training.run import Run
from decentral.training.timing import timed

CONFIG = """
algo: {name: relaysgd}
topology: {name: dbt}
task: {name: images}
data: {name: cifar10}
partition: {name: dirichlet, alpha: 0.1}
model: {name: vgg11}
alpha: 0.1
num_workers: 3
seed: 4
"""


def row(step: int, worker: int | str, split: str, metric: str, value: float, steps_per_epoch: int = 10) -> dict:
    return {
        "step": step,
        "epoch": step / steps_per_epoch,
        "worker": worker,
        "split": split,
        "metric": metric,
        "value": value,
        "wall_s": step / 2,
        "bytes_sent": 1000 * step,
    }


def image_rows(step: int) -> list[dict]:
    accuracies = [0.5, 0.75, 0.6]
    lines = {**dict(enumerate(accuracies)), "worst": 0.5, "mean": 0.6167, "averaged": 0.8}
    rows = [row(step, worker, "test", "accuracy", value) for worker, value in lines.items()]
    rows += [row(step, worker, "test", "loss", 3 - value) for worker, value in lines.items()]
    rows.append(row(step, "mean", "train", "loss", 1 / (1 + step)))
    return [*rows, row(step, "mean", "model", "consensus_distance", 1.5 if step else 0.0)]


def quadratic_rows(step: int) -> list[dict]:
    lines = {0: 2.0, 1: 1.0, "worst": 2.0, "mean": 1.5, "averaged": 0.5}
    rows = []
    for metric, power in (("suboptimality", 2), ("distance", 1)):
        rows += [
            row(step, worker, "objective", metric, value * math.exp(-power * step), 1)
            for worker, value in lines.items()
        ]
    return [*rows, row(step, "mean", "model", "consensus_distance", math.exp(-step), 1)]


def diverged_rows(step: int) -> list[dict]:
    value = math.inf if step > 10 else 1e10
    return [row(step, worker, "test", "loss", value) for worker in (0, 1, "worst", "mean", "averaged")]


def make_run(path: Path, rows, status: Status = Status.done, **facts) -> Path:
    with RunStore.open(path, "aaa", CONFIG) as store:
        store.write_provenance({"command_line": ["/bin/decentral-run", "algo=relaysgd", "seed=4", "run_dir=x"]})
        if rows is image_rows:
            store.describe([Metric("test", "accuracy", larger_is_better=True, unit="%")])
        for step in (0, 10, 20):
            store.append(rows(step))
        store.set_status(status, step=20, epoch=2.0, **facts)
    return path


# The picture


@pytest.mark.parametrize("rows", [image_rows, quadratic_rows, diverged_rows, lambda step: []])
def test_learning_curves_are_drawn_for_every_kind_of_task(tmp_path: Path, rows, monkeypatch) -> None:
    monkeypatch.delitem(sys.modules, "matplotlib.pyplot", raising=False)
    run = make_run(tmp_path / "run", rows)
    path = save_learning_curves(run, read_curves(run))
    assert path == tmp_path / "run" / "learning_curves.png"
    assert path.read_bytes().startswith(b"\x89PNG") and path.stat().st_size > 3_000
    assert "matplotlib.pyplot" not in sys.modules


def test_each_line_of_the_learning_curves_has_a_marker_at_its_last_evaluation(tmp_path: Path) -> None:
    from matplotlib.figure import Figure

    with RunStore.open(tmp_path, "aaa", CONFIG) as store:
        for step in range(20):
            store.append(image_rows(step))
    draw_learning_curves(figure := Figure(), tmp_path, read_curves(tmp_path))
    lines = [line for axes in figure.axes for line in axes.get_lines()]
    assert len(lines) == 11  # worst, mean and averaged of accuracy over two axes and of the loss; train loss; consensus
    for line in lines:
        marked = line.get_markevery()
        assert (marked[0], marked[-1], len(line.get_xdata())) == (0, 19, 20) and 9 <= len(marked) <= 10


def test_the_learning_curves_draw_rounding_as_zero_and_their_legends_below_the_panels(tmp_path: Path) -> None:
    from matplotlib.figure import Figure

    def rounding(step: int) -> list[dict]:
        return [*image_rows(step)[:-1], row(step, "mean", "model", "consensus_distance", 5e-13)]

    run = make_run(tmp_path / "run", rounding)
    draw_learning_curves(figure := Figure(), run, read_curves(run))
    assert figure.get_suptitle().startswith("relaysgd on dbt, vgg11 on cifar10")
    panel = next(panel for panel in figure.axes if panel.get_title(loc="left") == "consensus distance")
    assert list(panel.get_lines()[0].get_ydata())[1:] == [0, 0]
    for panel in figure.axes:
        if legend := panel.get_legend():
            assert legend.get_window_extent().y1 < panel.get_window_extent().y0


# The table


@pytest.mark.parametrize(
    ("reason", "head"), [({"reason": "SIGTERM"}, "interrupted (SIGTERM)"), ({"reason": "interrupted"}, "interrupted")]
)
def test_the_summary_of_an_interrupted_run_says_why_how_far_it_came_and_how_it_goes_on(
    tmp_path: Path, reason: dict[str, str], head: str
) -> None:
    run = make_run(tmp_path / "run", image_rows, Status.interrupted)
    with RunStore.open(run, "aaa", CONFIG) as store:
        store.set_status(Status.interrupted, step=25, wall_s=12.0, bytes_sent=30_000, **reason)
    text = summary(run)
    assert text.startswith(f"relaysgd on dbt, vgg11 on cifar10, alpha=0.1, 3 workers, seed 4: {head}\n")
    assert "Steps:    25 (evaluated after 20) in 12.0 s" in text and "Sent:     10 kB by a worker" in text
    assert text.endswith("decentral-run algo=relaysgd seed=4 run_dir=x  (resumes from the newest checkpoint)")


# Provenance


def test_provenance_is_json_and_imports_nothing_heavy() -> None:
    code = (
        "import json, sys; from decentral.store.provenance import collect; facts = collect(['cpu'], 2);"
        "assert not {'torch', 'hydra', 'numpy'} & set(sys.modules); print(json.dumps(facts))"
    )
    facts = json.loads(subprocess.run([sys.executable, "-c", code], capture_output=True, check=True, text=True).stdout)
    assert facts["packages"].keys() == {"torch", "torchvision", "numpy", "hydra-core", "omegaconf"}
    assert facts["devices"] == ["cpu"] and facts["processes"] == 2 and facts["cores"] >= 1
    assert facts["python"] == ".".join(map(str, sys.version_info[:3]))


# Progress


@pytest.mark.parametrize("rank", [0, 1])
def test_of_the_processes_of_a_run_only_the_leader_tells_the_launcher(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, rank: int
) -> None:
    config, run = configure("task=quadratics"), SimpleNamespace(total_steps=10, start=0)
    told = tmp_path / "told"
    monkeypatch.setenv(progress_module.ADDRESS, str(told))
    recorder = Recorder(prepare(config), World(rank, 2, torch.device("cpu")), RunStore.view(tmp_path), 0.0)
    with recorder.progress(cast("Run", run)) as shown:
        shown.update(5, 1.0)
    assert told.read_text() == "0.500000 epoch 1.0" if rank == 0 else not told.exists()


def test_a_stream_that_is_gone_does_not_stop_the_run() -> None:
    class Gone(io.StringIO):
        writes = 0

        def write(self, text: str) -> int:
            Gone.writes += 1
            raise BrokenPipeError

    with progress(10, "relaysgd", stream=Gone()) as shown:
        shown.line("one")
        shown.line("two")
    assert Gone.writes == 1


DELAYED = (
    *("cluster=even", "cluster.stragglers.mode=exactly", "cluster.stragglers.count=1"),
    "cluster.stragglers.delay_s=0.32",
)
SMALL = ("task=quadratics", "num_workers=4", "steps=20", "progress=false", "device=cpu", "processes=1")


def finished(tmp_path: Path, *overrides: str) -> tuple[Config, Path]:
    config = configure(*SMALL, f"results_dir={tmp_path}", *overrides)
    assert carry_out(config) == 0
    return config, run_directory(config)


# The end of a run


def test_a_run_says_what_a_step_cost_and_where_its_timeline_is(tmp_path: Path) -> None:
    config, directory = finished(tmp_path, "algo=wagma", *DELAYED)
    facts = RunStore.peek(directory) or {}
    found = timed(prepare(config), 20, 10)
    assert facts["simulated_s"] == found.simulated_s
    assert {int(age): times for age, times in facts["staleness"].items()} == found.ages
    assert facts["critical"] == [found.critical.index(max(found.critical)), max(found.critical), sum(found.critical)]
    told = summary(directory)
    shares = facts["simulated_shares"]
    total = sum(mean for mean, _, _ in shares.values())
    assert f"Simulated: {facts['simulated_s']:.1f} s; per step {facts['simulated_s'] / 20:.3g} s: " in told
    for part, word in (("compute", "computing"), ("wait", "waiting"), ("exchange", "exchange")):
        assert f"{word} {100 * shares[part][0] / total:.0f} %" in told
    assert f"worker {found.accounts['wait'].argmin()} the least" in told
    fresh = 100 * found.ages[0] / sum(found.ages.values())
    assert f"Staleness: {fresh:.0f} % of contributions fresh" in told and f"{max(found.ages)} at most" in told
    assert f"Timeline: {directory / 'timeline.png'}" in told and "ui.perfetto.dev" in told
    assert "cluster: constant 0.16 s, exactly 1 straggler," in describe(directory)
    for name in ("timeline.png", "staleness.png", "learning_curves.png"):
        assert (directory / name).read_bytes().startswith(b"\x89PNG")


RATES = {
    (): [],
    ("schedule=linear",): ["Rate:     0.005 in the last step (lr=0.1 times 0.05, by schedule=linear)"],
    ("schedule.warmup_epochs=40",): [
        "Rate:     0.0475 in the last step (lr=0.1 times 0.475, by schedule=constant)",
    ],
    ("schedule=linear", "algo=dpsgd", "lr_per_worker=[0.1,0.2,0.1,0.2]"): [
        "Rate:     that of each worker times 0.05 in the last step (by schedule=linear)",
    ],
    ("schedule=linear", "early_stop.patience=1", "early_stop.min_change=1e9", "evaluation.every_epochs=5"): [
        "Rate:     0.08 in the last step (lr=0.1 times 0.8, by schedule=linear)",  # after 5 of 20 steps
    ],
}


@pytest.mark.usefixtures("undrawn")
def test_a_run_with_a_schedule_says_which_rate_it_has_reached(tmp_path: Path) -> None:
    for overrides, told in RATES.items():
        _, directory = finished(tmp_path, "lr=0.1", *overrides)
        assert [line for line in summary(directory).splitlines() if line.startswith("Rate:")] == told


# The trace


@pytest.mark.usefixtures("undrawn")
def test_the_trace_has_a_track_for_each_worker_with_the_durations_of_the_cluster(tmp_path: Path) -> None:
    _, directory = finished(tmp_path, "algo=dpsgd", "topology=ring", *DELAYED)
    events = json.loads((directory / "timeline.json").read_text())["traceEvents"]
    names = {one["tid"]: one["args"]["name"] for one in events if one["name"] == "thread_name"}
    assert names == {i: f"worker {i}" for i in range(4)}
    spans = [one for one in events if one["ph"] == "X"]
    gradients = [[one for one in spans if one["tid"] == i and one["name"] == "compute"] for i in range(4)]
    assert [len(each) for each in gradients] == [20] * 4
    for t in range(20):  # one of four is delayed by 0.32 s in every step
        assert sorted(each[t]["dur"] for each in gradients) == pytest.approx([160e3, 160e3, 160e3, 480e3])
    simulated_s = (RunStore.peek(directory) or {})["simulated_s"]
    assert max(one["ts"] + one["dur"] for one in spans) == pytest.approx(1e6 * simulated_s)
    for i in range(4):  # one after the other
        mine = [one for one in spans if one["tid"] == i]
        assert all(a["ts"] + a["dur"] <= b["ts"] + 0.01 for a, b in itertools.pairwise(mine))


# Time alone


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[object, str, str]:
    return exit_status(command.main, *arguments), *capsys.readouterr()


def test_a_timeline_alone_trains_nothing_and_says_what_steps_cost(tmp_path: Path, capsys, monkeypatch) -> None:
    monkeypatch.setattr("decentral.data.digits.Digits.load", None)  # nobody asks for the data
    words = ["algo=wagma", *DELAYED, "num_workers=32", "steps=20", "simulate=timeline", f"results_dir={tmp_path}"]
    status, out, _ = run(capsys, *words)
    assert status == 0
    (directory,) = (tmp_path / "timelines").glob("[!.]*")
    (facts,) = read_lines(directory / "timeline.jsonl")
    with torch.random.fork_rng(devices=[]):
        config = configure(*words)
        model = config.model.build(config.data.inspect())
    assert facts["num_parameters"] == sum(p.numel() for p in model.parameters())
    assert facts["simulated_s"] == timed(prepare(config), 20, facts["num_parameters"]).simulated_s
    for text in ("per step", "waiting", "Staleness: ", "Critical:  worker ", "20 steps", f"{directory}/timeline.png"):
        assert text in out
    with open(directory / "workers.csv", newline="") as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 32 and rows[0].keys() == {"worker", "compute_s", "wait_s", "exchange_s", "critical"}
    mean = sum(float(row["wait_s"]) for row in rows) / 32
    assert mean == pytest.approx(facts["simulated_shares"]["wait"][0], abs=1e-5)
    assert {"timeline.png", "timeline.json", "staleness.png"} <= {path.name for path in directory.iterdir()}
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize(
    ("overrides", "sentence"),
    [
        (("steps=5",), "simulate=timeline needs a virtual cluster: choose one"),
        (("cluster=even", "steps=5", "processes=2"), "leave processes= out"),
        (("cluster=even",), "does not train, so it has no epochs: give steps="),
        (("cluster=even", "steps=5", "stop_after_simulated_s=3"), "stop_after_simulated_s=3 needs training"),
    ],
)
def test_what_a_timeline_alone_needs(overrides, sentence) -> None:
    with pytest.raises(ConfigError, match=re.escape(sentence)):
        configure("algo=allreduce", "task=quadratics", "simulate=timeline", *overrides)


@pytest.mark.parametrize("compress", ["threshold", "powersgd"])
def test_a_timeline_has_to_know_how_long_messages_are(compress: str) -> None:
    words = ("algo=allreduce", "task=quadratics", "simulate=timeline", "cluster=even", "steps=5")
    with pytest.raises(
        ConfigError, match=f"neither gradients nor layers, which determine what compress={compress} sends"
    ):
        work_out([("", configure(*words, f"compress={compress}"))])


@pytest.mark.parametrize("keep", [0.5, 0.1, 0.0123, 0.00015])
def test_a_timeline_sends_what_messages_keep(keep: float) -> None:
    words = ("algo=choco", "topology=ring", "task=quadratics", "cluster=even", "num_workers=4", "steps=3")
    config = configure(*words, "compress=topk", f"compress.keep={keep}")
    sent = timed(prepare(config), 3, 1_000_000).bytes_sent
    each = 8 + 4  # a float64 value and its index
    assert sent == pytest.approx(3 * 4 * 2 * each * keep * 1_000_000, rel=2e-3)
    assert timed(prepare(config), 3, 2).bytes_sent == 3 * 4 * 2 * each * max(1, int(2 * keep))
