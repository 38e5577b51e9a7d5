"""What a run leaves for its reader: a picture, a table, provenance, progress; whatever the task measured."""

from __future__ import annotations

import io
import json
import math
import re
import socket
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest
import torch
from matplotlib.figure import Figure

from configure import configure
from decentral.config.files import dump
from decentral.network.world import World
from decentral.report.learning_curves import Scale, _draw, save_learning_curves
from decentral.report.series import describe, read_curves
from decentral.report.summary import summary
from decentral.store import RunStore, Status, provenance
from decentral.terminal import progress as progress_module
from decentral.terminal.display import Row, display
from decentral.terminal.progress import progress
from decentral.training.recorder import Recorder
from decentral.training.run import Run

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
        for step in (0, 10, 20):
            store.append(rows(step))
        store.set_status(status, step=20, epoch=2.0, **facts)
    return path


# The picture


@pytest.mark.parametrize("rows", [image_rows, quadratic_rows, diverged_rows, lambda step: []])
def test_learning_curves_are_drawn_for_every_kind_of_task(tmp_path: Path, rows, monkeypatch) -> None:
    monkeypatch.delitem(sys.modules, "matplotlib.pyplot", raising=False)
    path = save_learning_curves(make_run(tmp_path / "run", rows))
    assert path == tmp_path / "run" / "learning_curves.png"
    assert path.read_bytes().startswith(b"\x89PNG") and path.stat().st_size > 5_000
    assert "matplotlib.pyplot" not in sys.modules


def test_a_curve_without_points_is_not_drawn(tmp_path: Path) -> None:
    """After step 0 the consensus distance has none: what is recorded there is rounding."""
    with RunStore.open(tmp_path / "run", "aaa", CONFIG) as store:
        store.append(image_rows(0))
    curves = read_curves(tmp_path / "run")
    panel = Figure().subplots()
    _draw(panel, curves, "consensus_distance", Scale("epoch", "epochs"))
    assert not panel.lines and panel.get_legend() is None
    assert [text.get_text() for text in panel.texts] == ["nothing to draw yet"]


def test_the_metric_that_a_run_is_judged_by_comes_first_and_consensus_last(tmp_path: Path) -> None:
    image = read_curves(make_run(tmp_path / "image", image_rows)).series
    assert list(image) == [("test", "accuracy"), ("test", "loss"), ("train", "loss"), ("model", "consensus_distance")]
    quadratic = read_curves(make_run(tmp_path / "quadratic", quadratic_rows)).series
    assert [metric for _, metric in quadratic] == ["suboptimality", "distance", "consensus_distance"]


def test_curves_are_in_order_of_steps(tmp_path: Path) -> None:
    with RunStore.open(tmp_path / "run", "aaa", CONFIG) as store:
        store.append([row(step, "mean", "train", "loss", step) for step in (30, 10, 20, 10)])
    assert read_curves(tmp_path / "run").series["train", "loss"]["mean"].at["step"] == [10, 20, 30]


def test_a_run_is_described_by_what_was_chosen(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", image_rows, Status.diverged)
    assert describe(run) == "relaysgd on dbt, vgg11 on cifar10, alpha=0.1, 3 workers, seed 4: diverged"
    assert describe(tmp_path) == f"{tmp_path.name}: unknown"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ([], ""),
        (["compress=topk"], "compress=topk"),
        (["compress=topk", "compress.keep=0.01"], "compress=topk keep=0.01"),
        (["compress=bf16", "compress.error_feedback=false"], "compress=bf16 error_feedback=false"),
        (["compress=artopk", "compress.select=var"], "compress=artopk select=var"),
    ],
)
def test_what_is_sent_instead_of_rows_tells_runs_apart(tmp_path: Path, words: list[str], said: str) -> None:
    config = configure("algo=allreduce", "task=quadratics", "num_workers=4", *words)
    (tmp_path / "config.yaml").write_text(dump(config))
    assert describe(tmp_path) == ", ".join(
        filter(None, ["allreduce", said, "quadratics", "4 workers", "seed 0: unknown"])
    )


def test_a_precision_that_is_not_the_usual_one_is_said(tmp_path: Path) -> None:
    (tmp_path / "config.yaml").write_text(dump(configure("num_workers=4", "precision=bf16")))
    assert ", 4 workers, bf16, seed 0: " in describe(tmp_path)


# The table


def test_the_summary_gives_the_final_values_of_each_metric(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", image_rows)
    cells = {line[:24].strip(): line[24:].split("  ") for line in summary(run).splitlines() if "  " in line}
    words = {name: [cell.strip() for cell in line if cell.strip()] for name, line in cells.items()}
    assert words["test accuracy"] == ["50.00 %", "61.67 %", "80.00 %", "75.00 %"]
    assert words["test loss"] == ["2.5", "2.383", "2.2", "2.25"]
    assert words["train loss"] == ["-", "0.04762", "-", "-"]
    assert words["model consensus distance"] == ["-", "1.5", "-", "-"]


def test_the_best_worker_is_at_the_other_end_from_the_worst(tmp_path: Path) -> None:
    text = summary(make_run(tmp_path / "run", lambda step: [
        row(step, worker, "test", "loss", value) for worker, value in {0: 3.0, 1: 1.0, "worst": 3.0}.items()
    ]))  # fmt: skip
    assert re.search(r"test loss +3 +- +- +1$", text, re.MULTILINE)


def test_the_summary_says_what_it_cost_and_where_the_results_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("shutil.which", lambda name: f"/usr/bin/{name}")  # on the path, so it goes by its name
    run = make_run(tmp_path / "run", image_rows)
    assert "Curves:" not in summary(run)
    save_learning_curves(run)
    assert summary(run).splitlines()[-5:] == [
        "Steps:    20 (2 epochs) in 10.0 s",
        "Sent:     6.667 kB by a worker, on average",
        f"Results:  {run}",
        f"Curves:   {run}/learning_curves.png",
        "Next:     decentral-run algo=relaysgd seed=5  (another seed)",
    ]


def test_the_summary_of_an_interrupted_run_says_why_and_how_it_goes_on(tmp_path: Path) -> None:
    text = summary(make_run(tmp_path / "run", image_rows, Status.interrupted, reason="SIGTERM"))
    assert text.startswith("relaysgd on dbt, vgg11 on cifar10, alpha=0.1, 3 workers, seed 4: interrupted (SIGTERM)\n")
    assert text.endswith("decentral-run algo=relaysgd seed=4 run_dir=x  (goes on from the newest checkpoint)")


def test_the_summary_does_not_give_the_status_as_its_reason(tmp_path: Path) -> None:
    text = summary(make_run(tmp_path / "run", image_rows, Status.interrupted, reason="interrupted"))
    assert text.splitlines()[0].endswith("seed 4: interrupted")


@pytest.mark.parametrize(("lr", "proposed"), [(1e6, "0.1"), (0.2, "0.05")])
def test_after_divergence_a_usual_learning_rate_is_proposed(tmp_path: Path, lr: float, proposed: str) -> None:
    path = tmp_path / "run"
    with RunStore.open(path, "aaa", f"{CONFIG}lr: {lr}\n") as store:
        store.write_provenance({"command_line": ["/bin/decentral-run", f"lr={lr:g}"]})
        store.set_status(Status.diverged, step=20, epoch=2.0)
    assert f" lr={proposed}  (a smaller learning rate)" in summary(path)


def test_the_summary_of_an_interrupted_run_says_how_far_it_came_after_the_last_evaluation(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", image_rows, Status.interrupted)
    with RunStore.open(run, "aaa", CONFIG) as store:
        store.set_status(Status.interrupted, step=25, wall_s=12.0, bytes_sent=30_000)
    text = summary(run)
    assert "Steps:    25 (evaluated after 20) in 12.0 s" in text
    assert "Sent:     10 kB by a worker" in text


def test_a_run_that_measured_nothing_has_a_summary(tmp_path: Path) -> None:
    assert "No metrics were recorded." in summary(make_run(tmp_path / "run", lambda step: [], Status.failed))


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


def test_what_cannot_be_found_out_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object, **__: object) -> None:
        raise RuntimeError("broken")

    monkeypatch.setattr(provenance.subprocess, "run", broken)
    monkeypatch.setattr(provenance.platform, "platform", broken)
    monkeypatch.setattr(provenance.importlib.metadata, "version", broken)
    facts = provenance.collect(["cuda:0"], 1)
    assert [facts[name] for name in ("git_commit", "git_dirty", "platform", "gpus")] == [None] * 4
    assert set(facts["packages"].values()) == {None}
    assert facts["host"]


# Progress


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize("rank", [0, 1])
def test_of_the_processes_of_a_run_only_the_leader_tells_the_launcher(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, rank: int
) -> None:
    config, run = configure("task=quadratics"), SimpleNamespace(total_steps=10, start=0)
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as launcher:
        launcher.bind(str(tmp_path / "launcher"))
        launcher.setblocking(False)
        monkeypatch.setenv(progress_module.ADDRESS, f"{tmp_path / 'launcher'}:7")
        recorder = Recorder(config, World(rank, 2, torch.device("cpu")), RunStore.view(tmp_path), 0.0)
        with recorder.progress(cast(Run, run)) as shown:
            shown.update(5, 1.0)
        if rank == 0:
            assert launcher.recv(100) == b"7 0.500000 epoch 1.0"
        else:
            with pytest.raises(BlockingIOError):
                launcher.recv(100)


def show_some(stream: io.StringIO, enabled: bool = True) -> str:
    with progress(100, "relaysgd", enabled, stream) as shown:
        shown.update(10, 1.0)
        shown.update(20, 2.0, loss="0.41", worst="81.2 %", averaged="83.0 %")
        shown.update(21)
        shown.line("epoch 2: [worst] 81.2 %")
    return stream.getvalue()


def test_without_a_terminal_only_lines_are_shown_and_each_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    assert show_some(io.StringIO()) == "[relaysgd] epoch 2: [worst] 81.2 %\n"
    monkeypatch.setattr(progress_module, "LINE_PERIOD_S", 0.0)
    lines = show_some(io.StringIO()).splitlines()
    assert lines[0] == "[relaysgd] step 10/100  epoch 1.0"
    assert lines[2].startswith("[relaysgd] step 21/100  epoch 2.0  loss 0.41  worst 81.2 %  averaged 83.0 %  0:00 left")


def test_an_evaluation_has_one_line_even_if_one_is_due(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress_module, "LINE_PERIOD_S", 0.0)
    stream = io.StringIO()
    with progress(100, "relaysgd", stream=stream) as shown:
        shown.milestone("step 0: accuracy", 0, 0.0, loss="", worst="9.0 %", averaged="9.0 %")
    assert stream.getvalue() == "[relaysgd] step 0: accuracy\n"


@pytest.mark.parametrize("launched", [False, True])
def test_the_accuracy_before_training_does_not_pass_for_that_of_later_steps(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, launched: bool
) -> None:
    monkeypatch.setattr(progress_module, "LINE_PERIOD_S", 0.0)
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as launcher:
        launcher.bind(str(tmp_path / "launcher"))
        if launched:
            monkeypatch.setenv(progress_module.ADDRESS, f"{tmp_path / 'launcher'}:7")
        with progress(4, "relaysgd", stream=io.StringIO()) as shown:
            shown.milestone("step 0: accuracy", 0, 0.0, loss="", worst="9.0 %", averaged="9.0 %")
            shown.update(1, 1.0, "0.9")
            assert shown._shown.words() == "epoch 1.0  loss 0.9"
            shown.milestone("step 2: accuracy", 2, 2.0, loss="0.5", worst="80.0 %", averaged="81.0 %")
            assert shown._shown.words() == "epoch 2.0  loss 0.5  worst 80.0 %  averaged 81.0 %"


def test_in_an_evaluation_no_time_is_said_to_be_left(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress_module, "LINE_PERIOD_S", 0.0)
    stream = io.StringIO()
    with progress(2, "relaysgd", stream=stream) as shown:
        shown.update(1, 1.0)
        shown.update(2, 2.0)
        shown.doing("evaluating worker 3, batch 1 of 20")
    lines = stream.getvalue().splitlines()
    assert lines[1].endswith("0:00 left")
    assert lines[2] == "[relaysgd] step 2/2  epoch 2.0  evaluating worker 3, batch 1 of 20"


def test_on_a_terminal_there_is_a_bar_that_keeps_the_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "150")
    text = show_some(Terminal())
    assert "21/100" in text and "avg 83.0 %" in text
    assert re.search(r"epoch 2: \[worst\] 81.2 %", text)


def test_a_terminal_shows_as_many_rows_as_it_has_lines_for(monkeypatch: pytest.MonkeyPatch) -> None:
    for key, value in {"TERM": "xterm", "COLUMNS": "100", "LINES": "10"}.items():
        monkeypatch.setenv(key, value)
    terminal = Terminal()
    shown = display(stream=terminal)
    shown.draw([Row(f"job {number}", "here", 0.5, "half") for number in range(7)], "seven jobs")
    shown.line("[a line]")
    shown.close("all over")
    text = terminal.getvalue()
    assert all(part in text for part in ("seven jobs", "job 3", "half", "and 3 more", "[a line]", "all over"))
    assert "job 4" not in text


def test_a_dumb_terminal_gets_plain_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "dumb")
    assert "\x1b" not in show_some(Terminal())


def test_progress_can_be_off() -> None:
    assert show_some(Terminal(), enabled=False) == ""


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
