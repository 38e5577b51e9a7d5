"""What a user sees of simulated time: the end of a run, its figures, its trace, and `simulate=timeline`."""

from __future__ import annotations

import csv
import io
import itertools
import json
import math
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from matplotlib.figure import Figure

import handmade
from configure import configure
from decentral.cli import run as command
from decentral.cli.single import carry_out, work_out
from decentral.cluster.spans import Span, read_spans, write_spans
from decentral.config.identity import run_directory, run_id
from decentral.config.schema import Config
from decentral.errors import ConfigError
from decentral.report import learning_curves, style
from decentral.report.figures.figure import Line
from decentral.report.figures.three_axes import ThreeAxes, reached
from decentral.report.make import make
from decentral.report.series import describe, read_curves
from decentral.report.summary import short, staleness_words, summary
from decentral.report.timeline_figure import save_staleness, save_timeline
from decentral.store import RunStore
from decentral.store.lines import read_lines
from decentral.terminal.progress import progress
from decentral.training.timing import timed

DELAYED = (
    *("cluster=even", "cluster.stragglers.mode=exactly", "cluster.stragglers.count=1"),
    "cluster.stragglers.delay_s=0.32",
)
SMALL = ("task=quadratics", "num_workers=4", "steps=20", "progress=false", "device=cpu", "processes=1")


def finished(tmp_path: Path, *overrides: str) -> tuple[Config, Path]:
    config = configure(*SMALL, f"results_dir={tmp_path}", *overrides)
    assert carry_out(config) == 0
    return config, run_directory(config)


def words_of(svg: Path) -> list[str]:
    return re.findall(r">([^<>]+)</text>", svg.read_text())


# The end of a run


def test_a_run_says_what_a_step_cost_and_where_its_timeline_is(tmp_path: Path) -> None:
    config, directory = finished(tmp_path, "algo=wagma", *DELAYED)
    facts = RunStore.peek(directory) or {}
    found = timed(config, 20, 10, dtype=torch.float64)
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


def test_methods_in_rounds_have_no_staleness_and_runs_without_a_cluster_no_time(tmp_path: Path) -> None:
    _, timeless = finished(tmp_path, "algo=dpsgd", "topology=ring")
    _, timed_run = finished(tmp_path, "algo=dpsgd", "topology=ring", "cluster=even")
    assert "Simulated" not in summary(timeless) and not (timeless / "timeline.json").exists()
    told = summary(timed_run)
    assert "Simulated" in told and "waiting 0 %" in told and "the least" not in told  # all wait equally long
    assert "Staleness" not in told and not (timed_run / "staleness.png").exists()
    assert (timed_run / "timeline.png").exists() and "cluster" not in describe(timeless)


def test_words_for_times_and_ages() -> None:
    assert [short(s) for s in (12.345, 0.482, 0.0031, 25e-6, 0.0)] == ["12.3 s", "0.482 s", "3.1 ms", "25 us", "0 s"]
    assert staleness_words({0: 4}) == "100 % of contributions fresh"
    assert staleness_words({0: 1, 3: 1}) == "50 % of contributions fresh, 1.5 versions old on average, 3 at most"


def test_progress_says_simulated_time() -> None:
    stream = io.StringIO()
    with progress(10, "a run", stream=stream) as shown:
        shown.update(3, 0.5, simulated="4.8 s")
        shown.milestone("text", 4, 0.5, "", "", "", simulated="5.0 s")
        assert shown._shown.words() == "epoch 0.5  simulated 5.0 s"
        assert "sim 5.0 s" in shown._shown.words(brief=True)


# The trace


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


def test_spans_come_back_as_they_were_written(tmp_path: Path) -> None:
    spans = [Span(0, "compute", 0.0, 0.5), Span(0, "wait", 0.5, 0.75), Span(3, "exchange", 0.25, 1.0)]
    write_spans(tmp_path, reversed(spans))
    assert read_spans(tmp_path) == spans
    assert read_spans(tmp_path / "nowhere") == []


# Figures


def test_the_timeline_shows_at_most_32_workers_and_12_steps(tmp_path: Path) -> None:
    steps = [(i, 100 * t) for i in range(40) for t in range(30)]
    spans = [Span(i, "compute", t, t + 75) for i, t in steps] + [Span(i, "wait", t + 75, t + 100) for i, t in steps]
    with style.settings("timeline"):
        save_timeline(spans, tmp_path / "timeline.svg", "wagma, 40 workers")
    found = words_of(tmp_path / "timeline.svg")
    for text in ("computing", "sending and receiving", "waiting", "simulated seconds", "worker", "wagma, 40 workers"):
        assert text in found
    assert "the first 32 workers" in found
    ticks = set(re.findall(r"mathdefault\{([\d.]+)\}", (tmp_path / "timeline.svg").read_text()))
    assert {"30", "1000", "1200"} <= ticks and not {"33", "36", "1400"} & ticks


def test_staleness_says_how_many_are_how_old(tmp_path: Path) -> None:
    with style.settings("staleness"):
        save_staleness({0: 60, 1: 30, 3: 10}, tmp_path / "few.svg", "wagma")
        save_staleness({0: 1, 100: 1}, tmp_path / "old.svg", "wagma")
    found = words_of(tmp_path / "few.svg")
    assert {"60 %", "30 %", "10 %", "age in versions, 0: fresh", "contributions"} <= set(found)
    assert "age in versions, 0: fresh (39: 39 or more)" in words_of(tmp_path / "old.svg")


@pytest.mark.parametrize(
    ("cluster", "labels"),
    [
        (("cluster=even",), ["simulated seconds", "bytes sent by a worker, on average", "steps"]),
        ((), ["steps", "bytes sent by a worker, on average"]),
    ],
)
def test_learning_curves_have_an_axis_for_everything_that_costs(tmp_path: Path, cluster, labels) -> None:
    _, directory = finished(tmp_path, "algo=dpsgd", "topology=ring", *cluster)
    curves = read_curves(directory)
    row = Figure().subfigures(1, 1)
    learning_curves._judged(row, curves, next(iter(curves.series))[1])
    found = [re.sub(r"^(kB|MB)", "bytes", panel.get_xlabel()) for panel in row.axes]
    assert found == labels
    assert [panel.get_legend() is not None for panel in row.axes] == [True] + [False] * (len(labels) - 1)
    ends = [max(line.get_xdata().max() for line in panel.get_lines()) for panel in row.axes]
    assert all(
        left < right * 1.1 for left, right in zip(ends, [panel.get_xlim()[1] for panel in row.axes], strict=True)
    )


@pytest.mark.parametrize(
    ("y", "target", "place"),
    [
        ([50.0, 80.0, 100.0], 90.0, 15.0),
        ([50.0, 80.0, 70.0], 90.0, None),
        ([3.0, 1.0, 0.5], 2.0, 5.0),
        ([95.0, 20.0, 99.0], 95.0, 0.0),
        ([math.nan, 50.0, 100.0], 75.0, 15.0),
        ([], 1.0, None),
    ],
)
def test_where_a_target_is_reached(y, target, place) -> None:
    assert reached(Line("", (), [0.0, 10.0, 20.0][: len(y)], y), target) == place


def course(method: str, level: float, step_s: float, seed: int) -> list[list[Any]]:
    metric = "test accuracy (%)"
    return [
        [method, "ring", 1, metric, "worst", seed, step, step / 10, level * step / 40, step * step_s, 1e6 * step]
        for step in range(0, 50, 10)
    ]


@pytest.fixture
def study(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    columns = ("metric", "worker", "seed", "step", "epoch", "value", "simulated_s", "bytes_sent")
    monkeypatch.setattr(handmade, "CURVE_COLUMNS", columns)

    def written(rows: list[list[Any]], **figure: Any) -> Path:
        values = [handmade.value(method, "ring", 1, 90, seed) for method in ("RelaySGD", "D-PSGD") for seed in (1, 2)]
        own = {"name": "axes", "kind": "three_axes", "lines": ["method"], "spread": "range", **figure}
        return handmade.write(tmp_path / "relaysum" / "mine" / "paper", values, {"figures": [own]}, rows)

    return written


def test_three_axes_say_where_each_method_is_at_the_target(study) -> None:
    rows = [row for seed in (1, 2) for row in course("RelaySGD", 100, 0.5, seed) + course("D-PSGD", 60, 0.3, seed)]
    directory = study(rows, target=80)
    make(directory)
    found = words_of(directory / "axes.svg")
    assert {"simulated seconds", "bytes sent by all workers", "epoch"} <= set(found)
    assert found.count("lines are at 80:") == 3 and found.count("D-PSGD: never") == 3
    assert {"RelaySGD: 16", "RelaySGD: 32 M", "RelaySGD: 3.2"} <= set(found)
    assert "band: lowest to highest of 2 seeds" in found


def test_axes_that_no_curve_has_a_place_on_are_left_out(study) -> None:
    rows = [[*row[:-2], "", row[-1]] for row in course("RelaySGD", 100, 0.5, 1)]
    directory = study(rows)
    make(directory)
    found = words_of(directory / "axes.svg")
    assert "simulated seconds" not in found and {"bytes sent by all workers", "epoch"} <= set(found)


def test_three_axes_refuse_panels_and_unknown_axes() -> None:
    with pytest.raises(ConfigError, match="panels=alpha, but its panels are its axes"):
        ThreeAxes(file="f", panels="alpha")
    with pytest.raises(ConfigError, match="has the axis simulated"):
        ThreeAxes(file="f", axes=["simulated"])


# Time alone


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[object, str, str]:
    with pytest.raises(SystemExit) as ended:
        command.main(arguments)
    return ended.value.code, *capsys.readouterr()


def test_a_timeline_alone_trains_nothing_and_says_what_steps_cost(tmp_path: Path, capsys, monkeypatch) -> None:
    monkeypatch.setattr("decentral.data.digits.Digits.load", None)  # nobody asks for the data
    words = ["algo=wagma", *DELAYED, "num_workers=1024", "steps=20", "simulate=timeline", f"results_dir={tmp_path}"]
    status, out, _ = run(capsys, *words)
    assert status == 0
    (directory,) = (tmp_path / "timelines").iterdir()
    (facts,) = read_lines(directory / "timeline.jsonl")
    with torch.random.fork_rng(devices=[]):
        config = configure(*words)
        model = config.model.build(config.data.inspect())
    assert facts["num_parameters"] == sum(p.numel() for p in model.parameters())
    assert facts["simulated_s"] == timed(config, 20, facts["num_parameters"]).simulated_s
    for text in ("per step", "waiting", "Staleness: ", "Critical:  worker ", "20 steps", f"{directory}/timeline.png"):
        assert text in out
    with open(directory / "workers.csv", newline="") as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 1024 and rows[0].keys() == {"worker", "compute_s", "wait_s", "exchange_s", "critical"}
    mean = sum(float(row["wait_s"]) for row in rows) / 1024
    assert mean == pytest.approx(facts["simulated_shares"]["wait"][0], abs=1e-5)
    assert {"timeline.png", "timeline.json", "staleness.png"} <= {path.name for path in directory.iterdir()}
    assert not (tmp_path / "runs").exists()


def test_a_sweep_of_timelines_is_one_table(tmp_path: Path, capsys) -> None:
    words = ("cluster=even", "task=quadratics", "num_workers=8", "steps=5", "simulate=timeline")
    status, out, _ = run(capsys, "-m", "algo=wagma,allreduce", *words, f"results_dir={tmp_path}")
    assert status == 0
    table = [line for line in out.splitlines() if line.startswith("algo=") and not line.endswith("...")]
    assert [line.split()[0] for line in table] == ["algo=wagma", "algo=allreduce"]
    assert table[1].split()[-1] == "-"  # nobody is late in rounds
    assert len(list((tmp_path / "timelines").iterdir())) == 2


@pytest.mark.parametrize(
    ("overrides", "sentence"),
    [
        (("steps=5",), "simulate=timeline works out time in a virtual cluster: choose one"),
        (("cluster=even", "steps=5", "processes=2"), "leave processes= out"),
        (("cluster=even",), "trains nothing, so that there are no epochs: give steps="),
        (("cluster=even", "steps=5", "stop_after_simulated_s=3"), "stop_after_simulated_s=3 is for training"),
    ],
)
def test_what_a_timeline_alone_needs(overrides, sentence) -> None:
    with pytest.raises(ConfigError, match=re.escape(sentence)):
        configure("algo=allreduce", "task=quadratics", "simulate=timeline", *overrides)


@pytest.mark.parametrize("compress", ["threshold", "powersgd"])
def test_a_timeline_has_to_know_how_long_messages_are(compress: str) -> None:
    words = ("algo=allreduce", "task=quadratics", "simulate=timeline", "cluster=even", "steps=5")
    with pytest.raises(ConfigError, match=f"knows of no layers, on which it depends what compress={compress} sends"):
        work_out([("", configure(*words, f"compress={compress}"))])


def test_simulate_is_no_part_of_the_id_of_a_run() -> None:
    words = ("algo=allreduce", "task=quadratics", "cluster=even", "steps=5")
    assert run_id(configure(*words)) == run_id(configure(*words, "simulate=timeline"))


@pytest.mark.parametrize("keep", [0.5, 0.1, 0.0123, 0.00015])
def test_a_timeline_sends_what_messages_keep(keep: float) -> None:
    words = ("algo=choco", "topology=ring", "task=quadratics", "cluster=even", "num_workers=4", "steps=3")
    config = configure(*words, "compress=topk", f"compress.keep={keep}")
    sent = timed(config, 3, 1_000_000).bytes_sent
    assert sent == pytest.approx(3 * 4 * 2 * 8 * keep * 1_000_000, rel=2e-3)
    assert timed(config, 3, 2).bytes_sent == 3 * 4 * 2 * 8 * max(1, int(2 * keep))


def test_a_timeline_of_relayed_messages_counts_their_bytes() -> None:
    words = ("algo=relaysgd", "topology=dbt", "task=quadratics", "cluster=even", "num_workers=4", "steps=3")
    sent = timed(configure(*words, "compress=bf16"), 3, 1_000_000).bytes_sent
    assert 2 * sent == timed(configure(*words), 3, 1_000_000).bytes_sent


# What the timeline of groups says


def test_groups_that_wait_have_fresh_contributions_only() -> None:
    uneven = ("cluster=even", "cluster.compute.distribution=lognormal", "cluster.compute.sigma=0.5")
    words = ("algo=wagma", *uneven, "task=quadratics", "num_workers=16", "steps=40")
    assert set(timed(configure(*words, "algo.wait_avoiding=false"), 40, 1000).ages) == {0}
    assert len(timed(configure(*words), 40, 1000).ages) > 1


NARROW = ("cluster.compute.distribution=lognormal", "cluster.compute.sigma=0.3", "cluster.links.bandwidth_gbps=0.1")


def test_all_workers_meet_at_the_same_place() -> None:
    words = ("cluster=even", *NARROW, "task=quadratics", "num_workers=16")
    majority = timed(configure("algo=eager_sgd", "algo.collective=majority", *words), 40, 500_000)
    assert majority.gradients == 16 * 40  # who is not drawn is not left waiting for ever
    adpsgd, a2cid2 = (
        timed(configure(f"algo={algo}", "topology=ring", *words), 40, 500_000) for algo in ("adpsgd", "a2cid2")
    )
    assert adpsgd.accounts["exchange"].sum() > 0  # strands are busy: who meets whom is the same in both
    for part, seconds in adpsgd.accounts.items():
        assert (a2cid2.accounts[part] == seconds).all()
