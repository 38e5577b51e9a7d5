"""`decentral-run -m`: every combination once, whatever happens to a run, to the launcher, or beside it."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from itertools import product
from pathlib import Path

import pandas
import pytest
import yaml

import decentral
from decentral.cli.report import main as report
from decentral.cli.run import main
from decentral.cli.run import main as run_main
from decentral.cli.study import main as study
from decentral.cli.sweep import Combination, _layout, closing_table, exit_status
from decentral.config.composition import compose
from decentral.config.identity import run_directory, run_id
from decentral.config.parsing import dump, read_yaml
from decentral.errors import ConfigError
from decentral.measurements.training_run import TrainingRun
from decentral.report.figures.lines import Curves
from decentral.report.results import read
from decentral.report.runs_table import _without_repeats, layout_of
from decentral.report.spec import Table
from decentral.report.tables import measured
from decentral.scheduling.scheduler import Tally, schedule
from decentral.store import Metric, RunStore, Status, find_runs
from decentral.study.catalogue import study_from
from decentral.study.study import overrides_of
from decentral.terminal.console import FAILED, REFUSED
from waiting import PATIENCE_S, alive, stands_still, until

QUICK = ("task=quadratics", "num_workers=4", "steps=3", "device=cpu", "processes=1")
SLOW = (*QUICK[:2], "evaluation.every_epochs=2000", "device=cpu", "processes=1")


@pytest.fixture(autouse=True)
def working_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, inline: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def planned(monkeypatch) -> list[TrainingRun]:
    """What a sweep asks the scheduler for, instead of carrying it out."""
    asked: list[TrainingRun] = []

    def schedule(pending, launcher, results_dir, board) -> Tally:
        asked.extend(pending())
        return Tally([], False)

    monkeypatch.setattr("decentral.cli.sweep.schedule", schedule)
    return asked


def command(capsys, *arguments: str) -> tuple[object, str, str]:
    """(exit status, stdout, stderr)"""
    with pytest.raises(SystemExit) as exit:
        main(["-m", *arguments])
    return exit.value.code, *capsys.readouterr()


def fault(step: int, kind: str) -> str:
    """What befalls every run that comes so far."""
    return json.dumps([{"rank": 0, "step": step, "kind": kind}])


@contextmanager
def start(*arguments: str, **environment: str) -> Iterator[subprocess.Popen[str]]:
    """The command in a process of its own, as a user starts it; killed at the end if it still runs."""
    words = [sys.executable, "-m", "decentral", "-m", *arguments]
    with subprocess.Popen(
        words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=os.environ | environment,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    ) as launcher:  # fmt: skip
        try:
            yield launcher
        finally:
            launcher.kill()


def written_twice(directory: Path) -> list[str]:
    """Lines of metrics about the same number: a run that was carried out twice has some."""
    keys = [line.partition('"value"')[0] for line in (directory / "metrics.jsonl").read_text().splitlines()]
    return [key for key, count in Counter(keys).items() if count > 1]


def test_a_sweep_runs_every_combination_and_those_that_are_refused_stop_no_other(capsys, inline):
    inline.undo()
    arguments = ["algo,topology=(relaysgd,ring),(relaysgd,dbt),(dpsgd,dbt)", *QUICK]
    code, out, err = command(capsys, *arguments)
    assert code == 2
    assert out.count("started") == out.count("] done") == 2
    refusal, count = err.splitlines()
    assert "algo=relaysgd topology=ring" in refusal
    assert "of 3 runs, 1 refused and 0 failed" in count
    runs = find_runs(Path("results"))
    assert [run.status for run in runs] == ["done"] * 2
    assert all((run.path / "learning_curves.png").exists() for run in runs)
    assert set(os.listdir()) == {"results"} and set(os.listdir("results")) == {".gitignore", "runs", "tables"}

    _, out, _ = command(capsys, *arguments)
    assert "2 of 2 runs were already finished; nothing was computed" in out and "started" not in out


@pytest.mark.slow
def test_finished_cells_of_a_grid_are_skipped_and_a_finished_grid_is_left_alone_without_torch(capsys):
    one, grid = ["alpha=1", "lr=0.1,0.2,0.4", *QUICK], ["seed=0,1,2", "lr=0.1,0.2,0.4", *QUICK, "progress=false"]
    assert command(capsys, *one, "progress=false")[0] == 0
    code, out, _ = command(capsys, *grid)
    assert code == 0 and "3 of 9 runs were already finished." in out
    assert len(find_runs(Path("results"))) == 9
    assert not any(written_twice(run.path) for run in find_runs(Path("results")))

    check = "import sys; from decentral.cli.run import main\ntry: main()\nfinally: assert 'torch' not in sys.modules"
    again = subprocess.run([sys.executable, "-c", check, "-m", *grid], capture_output=True, text=True)
    assert (again.returncode, again.stderr) == (0, "")
    assert "9 of 9 runs were already finished; nothing was computed" in again.stdout


PAIRS = "algo,topology=(dpsgd,ring),(relaysgd,dbt)"


def test_lists_ranges_and_settings_that_vary_together(capsys, planned):
    for arguments in (["lr=0.1,0.2"], ["lr=choice(0.1,0.2)"], ["seed=range(2)"], ["algo=glob(*grad)", "seed=0,1"]):
        planned.clear()
        assert command(capsys, *arguments, "task=quadratics")[0] == 0 and len(planned) == 2
    both, chain = [("dpsgd", "ring"), ("relaysgd", "dbt")], [("dpsgd", "ring"), ("dpsgd", "chain")]
    for arguments, number, found in (
        ([PAIRS], 2, both),
        (["seed=1,2", PAIRS, "lr=0.1,0.2"], 8, both),
        (["algo,topology,results_dir=(dpsgd,ring,'a,b'),(dpsgd,dbt,'(c)')"], 2, [("dpsgd", "ring"), ("dpsgd", "dbt")]),
        (["algo,topology,lr= (dpsgd,ring,0.1) , (dpsgd,chain,0.2)"], 2, chain),
    ):
        planned.clear()
        assert command(capsys, *arguments, *QUICK)[0] == 0 and len(planned) == number
        assert list(dict.fromkeys((run.config.algo.name, run.config.topology.name) for run in planned)) == found
    assert [run.config.lr for run in planned] == [0.1, 0.2]


@pytest.mark.slow
def test_null_leaves_out_a_setting_that_the_chosen_component_lacks(capsys):
    words = ["task=quadratics", "algo=choco", "num_workers=4", "steps=4", "progress=false", "lr=0.1,0.2"]
    pairs = "compress,compress.keep=(none,null),(topk,0.5)"
    status, out, err = command(capsys, pairs, *words, "--save-study", "mine", "--config-dir", ".", "results_dir=there")
    assert (status, err) == (0, "") and "nan" not in out
    table = decentral.table("there", rows=["compress", "compress.keep"], best="lr")
    table = table[table.metric == table.metric[0]]
    assert table["compress.keep"].isna().tolist() == [name == "none" for name in table["compress"]] and len(table) == 2
    assert re.search(r"^none +[\d.e-]+", out, re.M) and re.search(r"^topk +0.\d", out, re.M)
    saved = yaml.safe_load(Path("study/mine.yaml").read_text())
    heading = "bjective suboptimality of the worst worker"
    assert saved["title"].startswith(f"O{heading}, by ") and saved["report"]["table"]["rows"] == ["method"]
    said(capsys, study, "mine", "--config-dir", ".")
    latex = Path("results/own/sweeps/mine/small/table.tex").read_text()
    assert f"caption{{O{heading}, by " in latex and f"& o{heading} & best lr" in latex
    assert saved["rows"][0]["base"] == ["compress=none"] and "None" not in saved["rows"][0]["method"]


@pytest.mark.slow
def test_a_sweep_over_absence_has_the_numbers_of_present_workers(capsys):
    words = ["task=quadratics", "algo=choco", "num_workers=4", "steps=4", "lr=0.1,0.2"]
    words = [*words, "availability=none,flaky,half", "seed=1,2", "results_dir=r3"]
    out = command(capsys, *words)[1]
    assert all(re.search(rf"^{name} +\d", out, re.M) for name in ("none", "flaky", "half"))
    (again,) = re.findall(r"^Next: +decentral-report (.*?)  \(", out, re.M)
    assert re.search(r"^flaky +\d", said(capsys, report, *shlex.split(again)), re.M)
    present = [*shlex.split(again), "--where", "availability=persistent", "--worker", "present mean"]
    assert "(present workers), by" in said(capsys, report, *present)
    drawn = [*shlex.split(again), "--worker", "present worst", "--x", "bytes"]
    assert re.search(r"^none +\d", said(capsys, report, *drawn), re.M)
    assert "no setting 'shar'" in command(capsys, "availability=flaky", "availability.shar=null", "steps=4")[2]


def test_a_setting_applies_to_the_listed_choices_that_have_it(capsys, planned):
    command(capsys, "availability=none,persistent", "availability.share=0.1", "algo=dpsgd", "topology=ring", *QUICK)
    command(capsys, "algo=allreduce,diloco", "algo.period_steps=2,3", *QUICK)
    assert overrides_of({"algo.period_steps": None, "lr": 0.1}, {}) == ["algo.period_steps=null", "lr=0.1"]  # saved
    runs = [(run.config.availability.name, run.config.algo.name, getattr(run.config.algo, "period_steps", 0))
            for run in planned]  # fmt: skip
    assert runs == [("none", "dpsgd", 0), ("persistent", "dpsgd", 0), ("none", "allreduce", 0),
                    ("none", "diloco", 2), ("none", "diloco", 3)]  # fmt: skip
    assert planned[1].config.availability.share == 0.1
    for words in (("algo=allreduce,dpsgd", "algo.period_steps=2"), ("algo=allreduce,diloco", "algo.period_step=2")):
        status, _, err = command(capsys, *words, *QUICK)
        assert (
            status == REFUSED and "algo=allreduce has no setting 'period_step" in err and "of 2 runs, 2 refused" in err
        )


def test_settings_that_cannot_vary_together_are_refused(capsys, planned):
    for arguments, says in (
        (["algo,topology=(dpsgd,ring),(relaysgd)"], "'algo,topology=(a1,a2),(b1,b2)'"),
        (["algo,topology=dpsgd,ring"], "must give 2 values in each pair of parentheses"),
        (["algo,topology=(dpsgd,ring,3),(dpsgd,ring)"], "must give 2 values"),
        (["algo,topology=(dpsgd,ring),(relaysg,dbt)"], "Did you mean 'relaysgd'?"),
        (["algo,topolgy=(dpsgd,ring),(relaysgd,dbt)"], "Did you mean 'topology'?"),
        ([PAIRS, "topology=ring"], "topology= is given more than once"),
        ([PAIRS, "max_combinations=1"], "has more combinations than max_combinations=1"),
        (["lr=range(1,1)"], "a list of values is empty"),
        (["lr=range(1,2,0)"], "lr=range(1,2,0) has no values"),
        (["lr=0.1,0.2", "lr=0.3"], "lr= is given more than once"),
        (["evaluation.every_epochs=1,2", "evaluation.every_epochs=3"], "every_epochs= is given more than once"),
    ):
        code, _, err = command(capsys, *arguments, *QUICK)
        assert code == 2 and says in err and not planned
    with pytest.raises(SystemExit):
        main([PAIRS])
    assert "has several values: to run each of them, add -m" in capsys.readouterr().err


def test_settings_that_vary_together_are_the_rows_of_the_table():
    pairs = [{"algo": "dpsgd", "topology": "ring"}, {"algo": "relaysgd", "topology": "dbt"}]
    grid = [{"alpha": alpha} | pair | {"lr": lr} for alpha in "12" for pair in pairs for lr in "34"]
    assert (layout_of(pairs).rows, layout_of(pairs).columns) == (["algo", "topology"], "")
    found = layout_of(grid)
    assert (found.rows, found.columns, found.best) == (["algo", "topology"], "alpha", "lr")


def test_options_of_a_sweep_leave_the_other_settings_to_the_rest_of_the_table():
    keys = ["algo", "algo.period_steps", "cluster.links.latency_s"]
    settings = product(("diloco", "local_sgd"), (2, 4), (0.01, 0.1))
    words = [[f"{key}={value}" for key, value in zip(keys, values, strict=True)] for values in settings]
    combinations = [Combination(one, compose([*QUICK, "cluster=even", *one])) for one in words]
    for options, rows, columns, best in (
        ({"rows": ["cluster.links.latency_s", "algo"]}, ["cluster.links.latency_s", "algo"], "algo.period_steps", ""),
        ({"columns": "algo"}, ["algo.period_steps", "cluster.links.latency_s"], "algo", ""),
        ({"best": "algo.period_steps"}, ["algo"], "cluster.links.latency_s", "algo.period_steps"),
    ):
        found = _layout(combinations, [], options)
        assert (found.rows, found.columns, found.best) == (rows, columns, best)


def test_combinations_that_are_one_run_have_one_row_and_one_sentence(capsys, planned):
    same = "algo,topology=(allreduce,ring),(allreduce,chain)"
    for arguments, says in (
        ([same], "These 2 combinations are 1 run: the values of topology="),
        (["seed=1", "execution=batched,loop"], "These 2 combinations are 1 run: the values of execution="),
        (["lr=0.1,0.10", "seed=0,1"], "These 4 combinations are 2 runs: values are repeated."),
        (["seed=1,1"], "These 2 combinations are 1 run: values are repeated."),
        (["results_dir=a,b"], "These 2 combinations are 1 run: the values of results_dir="),
    ):
        planned.clear()
        code, out, _ = command(capsys, *arguments, *QUICK)
        assert code == 0 and out.count(says) == out.count("combinations") == 1
        assert [out.count(f"/runs/{run.id}\n") for run in planned] == [1] * (1 + ("seed=0,1" in arguments))
    code, out, _ = command(capsys, "simulate=timeline", "cluster=even", same, *QUICK)
    assert code == 0 and "are 1 run: " in out and out.count("steps, messages of") == 1


def test_a_combination_that_is_refused_is_said_once(capsys, planned):
    arguments = ["algo,topology=(dpsgd,ring),(relaysgd,ring),(relaysgd,dbt)", "lr=0.1,0.2", "seed=range(3)", *QUICK]
    code, _, err = command(capsys, *arguments)
    refusal, count = err.splitlines()
    assert code == 2 and len(planned) == 12 and "of 6 runs, 6 refused" in count
    assert "algo=relaysgd topology=ring" in refusal and "(6 of 18 runs)" in refusal and "lr=" not in refusal


def test_the_tables_of_a_sweep_have_simulated_time_where_runs_have_some(tmp_path):
    rows = []
    for seed, times in enumerate(({"simulated_s": 30.0}, {"simulated_s": 90.0}, {})):
        rows.append((f"seed={seed}", stored({"test accuracy": (0.5, 0.5)}, f"seed={seed}", **times), None))
    head, _, *lines = closing_table(rows).splitlines()
    assert head.split()[-2:] == ["simulated", "results"]
    assert ["30.0 s" in lines[0], "1 min 30 s" in lines[1], " -  " in lines[2]] == [True] * 3
    assert "simulated" not in closing_table(rows[2:])
    assert set(decentral.table(rows="algo")["metric"]) == {"test accuracy (%)", "simulated time (s)"}
    cells = decentral.table(rows="algo", throughput=True).set_index("metric")
    assert cells.loc["simulated time (s)", "mean"] == 60 and cells.loc["throughput (examples/s)", "mean"] > 1
    assert "simulated time (s)" not in set(decentral.table(rows="algo", where="seed=2")["metric"])


def test_an_interrupted_sweep_counts_what_is_done_interrupted_and_not_started(capsys, monkeypatch):
    for seed, status in enumerate([Status.done, Status.interrupted, Status.running]):
        config = compose([*QUICK, f"seed={seed}"])
        with RunStore.open(run_directory(config), run_id(config), dump(config)) as store:
            store.set_status(status, step=1)
    monkeypatch.setattr("decentral.cli.sweep.schedule", lambda *_: Tally([], True))
    code, out, err = command(capsys, "seed=range(7)", *QUICK)
    assert code == 130
    assert out.splitlines()[-1] == "Stopped:  1 done, 2 interrupted, 4 not started, of 7 runs."
    assert (out.count("not started"), out.count("unknown")) == (5, 0)
    assert "\nMissing:  seed=1, seed=2, seed=3, ... (6 of 7 runs)\n" in out
    assert f"\nResume:   decentral-run -m 'seed=range(7)' {' '.join(QUICK)}\n" in out
    assert err.splitlines()[-1].endswith("the same command resumes.")


def test_an_algorithm_has_its_usual_topology_where_the_user_names_none(capsys, planned):
    command(capsys, "algo=relaysgd,dpsgd,sgp", "task=quadratics")
    command(capsys, "algo=relaysgd,dpsgd,sgp", "topology=dbt", "seed=1,2", "task=quadratics")
    topologies = [run.config.topology.name for run in planned]
    assert topologies[:3] == ["dbt", "ring", "one_peer_exponential"] and set(topologies[3:]) == {"dbt"}


def test_invalid_settings_of_the_launcher_are_refused(capsys):
    for setting, words in (
        ("launcher.slots=x", ">= 1"), ("launcher.retries=-1", ">= 0"), ("launcher.slot=2", "no setting 'slot'"),
        ("launcher=lokal", "Did you mean 'local'"),
    ):  # fmt: skip
        code, _, err = command(capsys, "seed=0,1", "task=quadratics", setting)
        assert code == 2 and words in err


def test_files_that_are_edited_during_a_sweep_do_not_change_it(capsys, tmp_path, planned):
    file = tmp_path / "experiment" / "mine.yaml"
    file.parent.mkdir()
    file.write_text("# @package _global_\nlr: 0.5\n")
    command(capsys, "--config-dir", str(tmp_path), "experiment=mine", "seed=0,1", "task=quadratics")
    file.write_text("# @package _global_\nlr: 0.7\n")
    assert [run.config.lr for run in planned] == [0.5, 0.5]
    assert f"--config-dir {tmp_path}" in planned[0].command


def test_a_saved_study_draws_the_runs_and_the_figure_of_the_sweep(capsys):
    words = ["algo=dpsgd,gradient_tracking", "task=quadratics", "topology=ring", "num_workers=4", "steps=20"]
    shown = ["--x", "bytes", "--log", "--panels", "suboptimality,distance to optimum,consensus distance"]
    assert command(capsys, *words, *shown, "progress=false", "--save-study", "mine")[0] == 0
    told = said(capsys, study, "mine")
    assert "all 2 jobs were done before" in told and not Path("results/own/runs").exists()
    curves = pandas.read_csv("results/own/sweeps/mine/small/curves.csv")
    assert set(curves.groupby(["method", "metric"]).size()) == {21} and curves.metric.nunique() == 3
    (figure,) = yaml.safe_load(Path("conf/study/mine.yaml").read_text())["report"]["figures"]
    assert (figure["x"], figure["logy"], figure["panels"]) == ("bytes", True, "metric")
    (of_sweep,) = json.loads(Path("results/tables/algo/study.json").read_text())["report"]["figures"]
    for panels in (figure, of_sweep):  # the consensus distance has no worst worker
        assert panels["title"] == "Curves" and list(panels["names"].values()) == [
            "objective suboptimality of the worst worker",
            "objective distance to optimum of the worst worker",
            "model consensus distance, mean over workers",
        ]
    assert "Pages:" not in said(capsys, report, "mine") and not list(Path("results/own").rglob("README.md"))


def test_a_saved_study_keeps_pairs_and_the_metric_and_worker_of_the_sweep(capsys):
    words = ["algo,topology=(relaysgd,dbt),(dpsgd,ring)", "lr=0.02,0.1", "task=quadratics", "num_workers=4", "steps=5"]
    shown = ["--rows", "algo", "--columns", "lr", "--metric", "distance to optimum", "--worker", "averaged"]
    assert command(capsys, *words, *shown, "progress=false", "--save-study", "mine")[0] == 0
    assert "all 4 jobs were done before" in said(capsys, study, "mine")
    saved = yaml.safe_load(Path("conf/study/mine.yaml").read_text())
    assert saved["measure"] == {"split": "objective", "metric": "distance_to_optimum", "worker": "averaged"}
    assert saved["tune"] == {"rule": "fixed"} and saved["rows"][1]["base"] == ["algo=dpsgd", "topology=ring"]
    code, _, err = command(capsys, *words, "--rows", "lr", "--columns", "algo", "--save-study", "no", "results_dir=no")
    assert code == REFUSED and "cannot express these runs" in err and not Path("no").exists()


OWN = """
from dataclasses import dataclass
from decentral.algorithms.dpsgd import DPSGD
@dataclass
class Shared(DPSGD):
    name: str = "shared_momentum"
@dataclass
class Same(DPSGD):
    name: str = "dpsgd"
"""


def test_tables_figures_and_studies_show_the_name_that_a_class_of_a_module_has(capsys):
    Path("twice.py").write_text(OWN)
    words = ["algo=twice:Shared,twice:Same,dpsgd", "topology=ring", *QUICK, "progress=false"]
    _, out, _ = command(capsys, *words, "--save-study", "mine")
    shutil.rmtree("results/tables")
    shown = [out, said(capsys, report, "runs", "--rows", "algo"), said(capsys, study, "mine")]
    names = ("shared_momentum", "twice:Same", "dpsgd")
    assert all(re.search(rf"^{name} +[\w ]*\d", one, re.M) for one in shown for name in names)
    folder = Path("results/tables/algo")
    results, latex = read(folder), (folder / "table.tex").read_text()
    keys = {line.key for figure in results.spec.figures for line in figure.data(results)}
    assert keys == {(name,) for name in names} and r"shared\_momentum & " in latex
    table = decentral.table(rows="algo")
    assert set(table["algo"]) == {"twice:Shared", "twice:Same", "dpsgd"}
    for name in ("twice:Shared", "shared_momentum"):
        assert len(decentral.table(rows="algo", where={"algo": name})) == len(table) / 3
    target = [*words, "cluster=even", "target=objective suboptimality:1e9", "seed=1"]
    assert re.search(r"^shared_momentum +\d", command(capsys, *target)[1], re.M)
    for wrong in (["--help", "algo=twice:Sharde"], ["-m", "algo=dpsgd,twice:Sharde"]):
        with pytest.raises(SystemExit):
            main(wrong)
        err = capsys.readouterr().err
        assert "algo=twice:Sharde does not exist" in err and "twice.py has no class or function Sharde" in err


def test_the_commands_below_a_table_have_the_options_of_the_sweep(capsys, monkeypatch):
    options = ["--metric", "distance to optimum", "--worker", "mean", "--x", "bytes", "--log", "--panels",
               "suboptimality,distance to optimum", "--name", "mine", "--save-study", "s", "--best", "lr"]  # fmt: skip
    words = ["algo=dpsgd,d2", "lr=0.02,0.04", "topology=ring", *QUICK, "progress=false"]
    _, out, _ = command(capsys, *words, *options)
    (again, wider), table = re.findall(r"^(?:Next|Wider): +(.*?)  \(", out, re.M), Path("results/tables/mine")
    assert sorted(shlex.split(wider)[2:]) == sorted([words[0], "lr=0.02,0.04,0.08", *words[2:], *options])
    before = json.loads((table / "study.json").read_text())
    said(capsys, report, *shlex.split(again)[1:])
    assert json.loads((table / "study.json").read_text()) == before and os.listdir("results/tables").count("mine") == 1
    pairs = ["algo,lr=(dpsgd,0.02),(dpsgd,0.04),(d2,0.02),(d2,0.04)", *words[2:]]
    out = command(capsys, *pairs)[1]
    assert "(highest tried)" in out and "Wider:" not in out
    for wrong, says in ((["--name", "../x"], "--name='../x' is not a plain file name"),
                        (["--rows", "period"], "--rows period is not a setting of the runs that are done"),
                        (["--x", "hours"], "--x=hours does not exist"),
                        (["figures.width=column"], "decentral-report FOLDER figures.width=..."),
                        (["figures.widht=column"], "decentral-report FOLDER figures.widht=...")):  # fmt: skip
        status, _, err = command(capsys, *words, *wrong)
        assert status == REFUSED and says in err and "Did you mean" not in err
    with pytest.raises(SystemExit):
        report([str(table), "--x", "bytes", "--name", "foo"])
    assert (
        "--name needs a table of runs: decentral-report runs results_dir=results/tables/mine" in capsys.readouterr().err
    )
    monkeypatch.setattr("decentral.cli.sweep.schedule", lambda *_: Tally([], False))
    (resume,) = re.findall(r"^Resume: +(.*)$", command(capsys, *words, "seed=7", *options)[1], re.M)
    assert sorted(shlex.split(resume)[2:]) == sorted([*words, "seed=7", *options])


TO_TARGET = ["data=digits", "model=mlp", "num_workers=2", "cluster=slow_network", "epochs=1", "seed=1,2"]


def test_methods_are_compared_by_the_time_to_a_target_with_one_budget_and_tuned_values(capsys):
    asked = ["algo=choco,dpsgd", "topology=ring", "compress=topk", *TO_TARGET, "target=accuracy:20", "tune=algo.gamma"]
    asked += ["budget=700ms", "progress=false"]
    status, out, err = command(capsys, *asked)
    assert status == REFUSED and "dpsgd" in err and "1 of" not in err  # it takes no such compressor
    assert re.search(
        r"^method +simulated s +sent by all +steps +test accuracy \(%\) at the end +algo.gamma$", out, re.M
    )
    assert re.search(r"^choco .* [01](\.\d+)?( \(\w+ tried\))?$", out, re.M)
    (folder,) = Path("results/tables").glob("to_target_*")
    table = (folder / "to_target.csv").read_text()
    runs = [read_yaml(path / "config.yaml") for path in Path("results/runs").glob("[!.]*")]
    assert len({run["steps"] for run in runs}) == 1 and {run["seed"] for run in runs} == {1, 2}
    gammas = {run["algo"]["gamma"] for run in runs}
    assert len(gammas) >= 3 and max(gammas) <= 1  # never beyond its range
    before = len(runs)
    assert command(capsys, *asked)[0] == REFUSED and len(list(Path("results/runs").glob("[!.]*"))) == before
    assert (folder / "to_target.csv").read_text() == table


def test_a_method_that_misses_the_target_says_so_and_its_best_value_is_the_nearest(capsys):
    asked = ["task=quadratics", "algo=dpsgd,gradient_tracking", "topology=ring", "num_workers=4", "steps=60"]
    asked += ["cluster=slow_network", "target=objective suboptimality:1e-6", "tune=lr", "seed=1", "progress=false"]
    asked += ["evaluation.every_epochs=2"]
    status, out, _ = command(capsys, *asked, "--save-study", "mine")
    assert status == 0
    first = re.search(r"^gradient_tracking +([\d.]+) +[\d.]+ kB +\d+ +\S+ +\S+\n", out, re.M)
    assert first and re.match(r"dpsgd +not within [\d.]+ s +- +- +\S+ +\S+\n", out[first.end() :])
    assert re.search(
        r"^gradient_tracking, ring is the fastest \(.* s\); .* sends the fewest bytes \(.* kB\).$", out, re.M
    )
    (folder,) = Path("results/tables").glob("to_target_*")
    table = pandas.read_csv(folder / "to_target.csv").set_index("method")
    assert list(table["reached"]) == [1, 0] and list(table["simulated_s"].isna()) == [False, True]
    assert f"{table['simulated_s'].iloc[0]:.3g}" == first[1]
    assert r"gradient\_tracking & " in (folder / "to_target.tex").read_text()
    shown = out[first.start() :].partition("\n\n")[0]
    for again, words in (
        (report, [str(folder), "--x", "bytes", "--log"]),
        (study, ["mine", "results_dir=results"]),
    ):
        with suppress(SystemExit):
            again(words)
        assert shown in capsys.readouterr().out  # the numbers of the final runs and of the averaged model
    with suppress(SystemExit):
        report(["runs", f"results_dir={folder}", "--rows", "method"])
    assert re.search(rf"^gradient_tracking +{table['simulated_s'].iloc[0]:.3f}", capsys.readouterr().out, re.M)


def test_notes_below_the_table_name_a_long_period_and_a_slow_collective(capsys):
    asked = ["algo=diloco,allreduce,dpsgd", "task=quadratics", "topology=ring", "num_workers=8", "steps=60", "seed=1"]
    asked += ["cluster=slow_network", "cluster.bandwidth=100Mbit", "cluster.latency=20ms", "progress=false"]
    status, out, _ = command(capsys, *asked, "target=objective suboptimality:1", "--save-study", "s", "--name", "mine")
    assert status == 0 and "s for each method, the time of diloco; budget= sets another\n" in out.replace("econds", "")
    told = [line for line in out.splitlines() if line.startswith("Note:")]
    notes = [line.removeprefix("Note:     ") for line in told]
    assert notes[0] == (
        "diloco communicates 1 time within the budget (algo.period_steps=50): try algo.period_steps=5,10,50."
    )
    ring, doubling = 14 * 0.02, 3 * 0.02  # latencies of 8 workers; the messages are tiny
    assert notes[1:] == [
        f"an all-reduce takes {ring:.3g} s by ring, but {doubling:.3g} s by recursive_doubling: try "
        "cluster.links.collective=auto."
    ]
    (steps,) = (word for word in read_yaml(Path("conf/study/s.yaml"))["rows"][0]["base"] if word.startswith("steps="))
    assert 55 < int(steps.removeprefix("steps=")) <= 60, "with the share of a period's all-reduce"
    for again, words in ((report, ["results/tables/mine"]), (study, ["s", "results_dir=results"])):
        assert [line for line in said(capsys, again, *words).splitlines() if line.startswith("Note:")] == told
    better = ["algo.period_steps=5,10", "cluster.links.collective=auto", "algo=diloco"]
    status, out, _ = command(capsys, *asked[1:], *better, "budget=20", "target=objective suboptimality:1")
    assert status == 0 and "Note:" not in out and "seconds for each method\n" in out


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["target=acuracy:90"], "target=test acuracy:90 is not measured. Did you mean 'test accuracy'"),
        (["target=90"], "target=90 is not a metric and a value"),
        (["tune=lr"], "tune= and budget= need target="),
        (["target=accuracy:90", "budget=soon"], "budget=soon is not a time"),
        (["target=accuracy:90", "tune=algo.mood"], "tune=algo.mood is not a number that these methods have"),
        (["target=accuracy:90", "tune=lr,algo.gamma"], "use one setting, lr or such as algo.gamma"),
        (["target=accuracy:90", "tune=topology"], "tune=topology is not a number that these methods have"),
        (["target=accuracy:90", "tune=lr", "lr=0.1,0.2"], "tune=lr searches its value: leave out the list of lr="),
        (["target=accuracy:90", "seed=0,a"], "seed='a' has the wrong type: use a whole number"),
        (["target=accuracy:170"], "target=test accuracy:170 is out of range: give percent"),
        (["target=accuracy:90", "cluster=none"], "target= compares methods by simulated time, which needs a cluster"),
    ],
)
def test_a_target_that_cannot_be_asked_for_is_refused(capsys, words, message):
    settings = [word for word in TO_TARGET if not any(word.split("=")[0] == other.split("=")[0] for other in words)]
    status, _, err = command(capsys, "algo=dpsgd", *settings, *words)
    assert status == REFUSED and message in err and not Path("results/runs").exists()


def test_one_run_that_cannot_work_stops_no_other_and_is_named_at_the_end(capsys):
    bad = TrainingRun(compose([*QUICK, "seed=1"]))
    bad.directory.mkdir(parents=True)
    (bad.directory / "config.yaml").write_text("# run 000000000000\n")  # another run's directory
    code, out, err = command(capsys, "seed=0,1,2", *QUICK)
    assert code == 2
    assert out.count("] done") == 2
    assert f"run {bad.id}" in err and "refused" in err and "decentral-run seed=1" in err
    assert exit_status([0, REFUSED, FAILED]) == FAILED


def pids() -> list[int]:
    """The processes of all runs that have begun."""
    return [
        int(facts["pid"]) for run in find_runs(Path("results")) if "pid" in (facts := RunStore.peek(run.path) or {})
    ]


@pytest.mark.slow
def test_a_launcher_that_is_killed_leaves_nothing_running_and_the_next_one_does_the_rest(capsys):
    """It is killed in the middle of the second run, which stands still there."""
    grid = (*SLOW, "steps=3,600,601", "launcher.slots=1")
    with start(*grid, DECENTRAL_FAULTS=fault(300, "stop")) as launcher:
        until(lambda: any(map(stands_still, pids())))
        begun = pids()
        launcher.kill()
    assert len(begun) == 2
    until(lambda: not any(map(alive, begun)))
    code, out, _ = command(capsys, *grid)
    assert code == 0 and "1 of 3 runs were already finished" in out and out.count("] done") == 2


@pytest.mark.slow
def test_two_launchers_share_the_work_and_every_run_is_carried_out_once():
    grid = ("seed=range(3)", *QUICK, "steps=2000", "evaluation.every_epochs=100", "launcher.slots=1")
    with start(*grid) as one, start(*grid) as other:
        for launcher in (one, other):
            launcher.communicate(timeout=PATIENCE_S)
    assert (one.returncode, other.returncode) == (0, 0)
    runs = find_runs(Path("results"))
    assert [run.status for run in runs] == ["done"] * 3
    assert not any(written_twice(run.path) for run in runs)


OPTUNA = """
import json, random, types
from pathlib import Path

def kinds(**made):
    return types.SimpleNamespace(**{name: staticmethod(of) for name, of in made.items()})

def checked(low, high, log=False):
    if low > high or (log and low <= 0):
        raise ValueError(f"{low} to {high}")
    return lambda random: low * (high / low) ** random if log else low + (high - low) * random

distributions = kinds(
    FloatDistribution=checked, IntDistribution=lambda low, high: lambda random: int(low + (high - low) * random),
    CategoricalDistribution=lambda places: lambda random: places[int(len(places) * random)],
)
STATES = {name: types.SimpleNamespace(name=name) for name in ("RUNNING", "COMPLETE", "FAIL")}
trial = types.SimpleNamespace(TrialState=types.SimpleNamespace(**STATES))
logging = types.SimpleNamespace(WARNING=0, set_verbosity=lambda level: None)
samplers = types.SimpleNamespace(TPESampler=lambda seed, constant_liar: random.Random(seed))

class Study:
    def __init__(self, file):
        self.file = Path(file)
        lines = self.file.read_text().splitlines() if self.file.exists() else []
        known = map(json.loads, lines)
        self.trials = [types.SimpleNamespace(**(one | {"state": STATES[one["state"]]})) for one in known]
    def keep(self):
        lines = (json.dumps(vars(one) | {"state": one.state.name}) for one in self.trials)
        self.file.write_text("".join(line + "\\n" for line in lines))
    def ask(self, wanted):
        params = {name: of(self.sampler.random()) for name, of in wanted.items()}
        made = types.SimpleNamespace(number=len(self.trials), params=params, state=STATES["RUNNING"], value=None)
        self.trials.append(made)
        self.keep()
        return made
    def tell(self, number, value=None, state=None, skip_if_finished=False):
        self.trials[number].state, self.trials[number].value = state or STATES["COMPLETE"], value
        self.keep()

def create_study(storage, study_name, load_if_exists):
    return Study(storage)
"""
SEARCH = ("sweeper=optuna", "lr=log(1e-2,1)", "algo,topology=(dpsgd,ring),(relaysgd,dbt)", *QUICK)


@pytest.fixture
def optuna(tmp_path, monkeypatch) -> None:
    """A stand-in that draws at random, with what the sweep uses of Optuna's interface."""
    for name, text in {
        "__init__": OPTUNA,
        "storages": "JournalStorage = str",
        "storages/journal": "JournalFileBackend = str",
    }.items():
        file = tmp_path / "optuna" / (f"{name}/__init__.py" if name == "storages" else f"{name}.py")
        file.parent.mkdir(exist_ok=True, parents=True)
        file.write_text(text)
    for name in [name for name in sys.modules if name.partition(".")[0] == "optuna"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.syspath_prepend(tmp_path)


def journal() -> list[dict]:
    (file,) = Path("results/sweeps").glob("*/optuna.journal")
    return [json.loads(line) for line in file.read_text().splitlines()]


def test_a_search_asks_for_runs_and_goes_on(capsys, optuna, monkeypatch):
    code, out, _ = command(capsys, *SEARCH, "trials=3", "launcher.slots=2")
    trials = journal()
    assert code == 0 and [trial["state"] for trial in trials] == ["COMPLETE"] * 3
    runs = decentral.runs().set_index("lr")
    for trial in trials:
        run = runs.loc[float(f"{trial['params']['lr']:.6g}")]
        assert 1e-2 <= run.name <= 1 and f"algo={run.algo} topology={run.topology}" == trial["params"]["algo,topology"]
        assert trial["value"] == run["objective suboptimality (worst)"]
    best = min(trials, key=lambda trial: trial["value"])
    assert f"Best:     lr={best['params']['lr']:.6g} {best['params']['algo,topology']}  (of 3 trials)" in out

    code, out, _ = command(capsys, *SEARCH, "trials=3")
    assert code == 0 and "] started" not in out and journal() == trials
    monkeypatch.setattr("decentral.cli.sweep.schedule", lambda pending, *_: Tally(pending() and [], True))
    code, out, _ = command(capsys, *SEARCH, "trials=5", "launcher.slots=1")  # Ctrl-C before the fourth is done
    assert code == 130 and "Stopped:  3 done, 0 interrupted, 2 not started, of 5 runs." in out
    asked = journal()
    assert [trial["state"] for trial in asked] == ["COMPLETE"] * 3 + ["RUNNING"]
    monkeypatch.setattr("decentral.cli.sweep.schedule", schedule)
    code, out, _ = command(capsys, *SEARCH, "trials=5")
    assert code == 0 and [trial["params"] for trial in journal()[:4]] == [trial["params"] for trial in asked]
    assert [trial["state"] for trial in journal()] == ["COMPLETE"] * 5


def test_what_a_search_cannot_run_is_told_and_costs_a_trial(capsys, optuna):
    code, _, err = command(
        capsys, *QUICK, "sweeper=optuna", "trials=4", "topology=ring", "algo=relaysgd", "lr=log(0.1,1)"
    )
    assert code == 2 and "topology=ring" in err  # no run of it is possible
    code, _, err = command(capsys, *QUICK, "sweeper=optuna", "trials=4", "algo=dpsgd,relaysgd", "topology=ring")
    states = Counter(trial["state"] for trial in journal())
    assert (
        code == (2 if states["FAIL"] else 0)
        and sum(states.values()) == 4
        and err.count("relays over") == states["FAIL"]
    )


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["sweeper=optuna", "lr=log(1e-3,1)", "seed=0,1"], "seed= has several values, and a search would pick"),
        (["sweeper=optuna", "lr=log(0,1)"], "lr=log(0,1) is not an interval"),
        (["sweeper=optuna", "batch_size=int(1,x)"], "batch_size=int(1,x) is not an interval"),
        (["sweeper=optuna", "lrr=log(1e-3,1)"], "Did you mean 'lr'?"),
        (["sweeper=optuna", "lr=log(1e-3,1)", "lr=0.1"], "lr= is given more than once"),
        (["sweeper=optuna", "lr=log(1e-3,1)", "--save-study", "x"], "sweeper=optuna has none: leave one of them out"),
        (["sweeper=optuna", "lr=log(1e-3,1)", "simulate=timeline", "cluster=even"], "leave out torchrun and simulate"),
        (["sweeper=optnua", "lr=0.1,0.2"], "sweeper=optnua does not exist. Did you mean 'optuna'?"),
        (["lr=log(1e-3,1)"], "lr=log(1e-3,1) is an interval: list the values"),
    ],
)
def test_a_search_that_makes_no_sense_is_refused(capsys, optuna, arguments, says):
    code, _, err = command(capsys, *arguments, *QUICK)
    assert code == 2 and says in err and not Path("results").exists()


def test_a_search_needs_optuna_and_many_runs(capsys, monkeypatch):
    with pytest.raises(SystemExit):
        main(["sweeper=optuna", *QUICK])
    assert "sweeper=optuna needs -m" in capsys.readouterr().err
    monkeypatch.setattr("decentral.host.machine.find_spec", lambda package: None)
    assert "pip install '.[optuna]'" in command(capsys, *SEARCH)[2]


@pytest.mark.skipif(importlib.util.find_spec("optuna") is None, reason="pip install '.[optuna]'")
def test_the_real_optuna_searches(capsys):
    for trials in (3, 4):
        code, out, _ = command(capsys, *SEARCH, f"trials={trials}")
        assert code == 0 and f"(of {trials} trials)" in out


@pytest.mark.slow
def test_files_follow_the_umask(capsys, monkeypatch):
    """Of a sweep and its table, a run that is killed beside its checkpoint, and one over several processes."""
    digits = ["algo=dpsgd", "topology=ring", "num_workers=2", "steps=3", "device=cpu", "checkpoint_every_s=0"]
    killed = ["seed=2,3", "restarts=0", "launcher.retries=0", "evaluation.every_epochs=0.01", *digits, "processes=2"]
    umask = 0o002
    before = os.umask(umask)
    monkeypatch.setenv("DECENTRAL_CACHE", "cache")
    try:
        assert command(capsys, "seed=0,1", "processes=1", *digits, "trace=true", "logger=tensorboard")[0] == 0
        assert command(capsys, "seed=0,1", *QUICK, "simulate=timeline", "cluster=even")[0] == 0
        with start(*killed, "record_operations=true", DECENTRAL_FAULTS=fault(2, "kill")) as launcher:
            out, _ = launcher.communicate(timeout=PATIENCE_S)
        assert launcher.returncode == 1, out
    finally:
        os.umask(before)
    found = {path.relative_to(Path.cwd()): path.stat().st_mode & 0o777 for path in Path.cwd().rglob("*")}
    names = {path.name for path in found}
    assert {"run.lock", "log.txt", "metrics.jsonl", "models.safetensors", "trace.npz", "checkpoints", "tables"} <= names
    assert {"operations.jsonl", "timeline.jsonl", "status.json", "train_images.npy"} <= names
    assert {
        str(path): mode for path, mode in found.items() if mode != (0o777 if path.is_dir() else 0o666) & ~umask
    } == {}


def test_a_single_run_is_for_its_launcher_too(capsys, monkeypatch):
    monkeypatch.setenv("PATH", "/nowhere")
    for words in ((), ("-m", "seed=1")):
        code, out, err = command(capsys, *words, *QUICK, "launcher=slurm")
        assert (code, out) == (2, "") and "launcher=slurm needs sbatch, which is missing here" in err
        assert not Path("results").exists()
    monkeypatch.setattr("decentral.cli.sweep.under_torchrun", lambda: True)
    code, _, err = command(capsys, *QUICK, "launcher=slurm")
    assert code == 2 and "launcher=slurm starts the processes of a run itself: leave out torchrun" in err


DOCS = Path(__file__).parents[1] / "docs" / "studies.md"
STORED = Path(__file__).parents[1] / "results" / "relaysum" / "relaysum_table1" / "laptop"
SWEEP = shlex.split(
    "-m algo=dpsgd,gradient_tracking task.zeta2=1,0.1 lr=0.02,0.1,1e6 seed=1,2 task=quadratics topology=ring "
    "num_workers=4 steps=20 device=cpu processes=1 --save-study mine"
)


def said(capsys, command, *arguments: str) -> str:
    """What a command prints."""
    with pytest.raises(SystemExit) as ended:
        command(list(arguments))
    out, err = capsys.readouterr()
    assert ended.value.code == 0, err
    return out


@pytest.mark.slow
def test_a_sweep_and_its_saved_study_end_with_the_mean_over_seeds_at_the_best_rate_of_each_cell(capsys):
    printed = said(capsys, run_main, *SWEEP)
    runs = decentral.runs()
    value = "objective suboptimality (worst)"
    means = runs.groupby(["algo", "task.zeta2", "lr"])[value].agg(["mean", "std"]).reset_index()
    best = means.loc[means.groupby(["algo", "task.zeta2"])["mean"].idxmin()]
    table = Path("results/tables/algo_by_task.zeta2")
    assert {"table.md", "table.csv", "table.tex", "values.csv", "study.json"} <= set(os.listdir(table))
    assert "Throughput" not in printed and "Throughput (steps/s)" not in (table / "table.md").read_text()
    found = decentral.table(rows="algo", columns="task.zeta2", best="lr")
    found = found[found.metric == "objective suboptimality"].sort_values(["algo", "task.zeta2"])
    assert found["mean"].tolist() == pytest.approx(best["mean"].tolist())
    assert found["std"].tolist() == pytest.approx(best["std"].tolist())
    assert found["rates"].tolist() == best["lr"].tolist() == [0.1] * 4  # with 1e6 all diverge
    assert set(found["runs"]) == {2}
    for mean in found["mean"]:
        assert re.search(rf"\b{re.escape(f'{mean:.3f}')} ± ", printed) or f"{mean:.1e}" in printed
    said(capsys, study, "mine", "--config-dir", "conf")
    theirs = pandas.read_csv("results/own/sweeps/mine/small/table.csv")
    assert sorted(theirs["mean"]) == pytest.approx(sorted(found["mean"]))


def test_the_best_rate_is_the_one_with_the_highest_mean_where_larger_is_better(tmp_path):
    found = {0.1: (0.6, 0.7), 0.2: (0.9, 0.8), 0.4: (0.95, 0.5)}
    for lr, seed in product(found, (0, 1)):
        stored({"test accuracy": (found[lr][seed],) * 2}, f"lr={lr}", f"seed={seed}")
    (line,) = decentral.table("results", rows="algo", best="lr").to_dict("records")
    assert (line["rates"], line["runs"], line["at_edge"]) == (0.2, 2, False)
    assert line["mean"] == pytest.approx(85.0)


def test_a_table_that_cannot_be_made_is_refused(capsys):
    for algo, momentum, lr in product(("dpsgd", "d2"), (0.5, 0.9), (0.1, 0.2)):
        stored(
            {"test accuracy": (0.5, 0.6)}, f"algo={algo}", "optim=momentum", f"optim.momentum={momentum}", f"lr={lr}"
        )
    for options, says in (
        ("--rows algo", "differ in optim.momentum"),
        ("--rows algo --columns momentum", "differ in lr"),
        ("--rows algo --best lr", "differ in optim.momentum"),
        ("--rows algoo", "Did you mean 'algo'"),
        ("--rows algo,lr --best lr --columns momentum", "named twice"),
        ("--rows algo --metric acuracy", "--metric=acuracy"),
        ("--rows algo --where lr=7", "no finished runs with lr=7"),
        ("--rows algo --where lr", "where=lr has no value"),
        ("--columns lr", "--rows is missing"),
        ("--rows algo --columns momentum --best lr --worker 9", "workers"),
        (
            "--rows algo --columns momentum --best lr --worker best",
            "worker=best is unknown: use worst, mean",
        ),
        ("--rows algo --columns momentum --best lr --name ../x", "not a plain file name"),
        ("results_dir=nowhere --rows algo", "nowhere has no finished runs"),
    ):
        with pytest.raises(SystemExit) as ended:
            report(["runs", *shlex.split(options)])
        out, err = capsys.readouterr()
        assert (ended.value.code, out) == (2, "") and says in err


def stored(metrics: dict[str, tuple[float, ...]], *overrides: str, **status: float) -> Path:
    """A finished run with these metrics, 'split name' -> (of the worst worker, of the mean), and of the averaged model,
    unless that is the mean."""
    config = compose(["data=digits", "model=mlp", "results_dir=results", *overrides])
    with RunStore.open(run_directory(config), run_id(config), dump(config)) as store:
        names = [tuple(name.split()) for name in metrics]
        store.describe([Metric(*name, larger_is_better=True, unit="%", chance=0.1) for name in names])
        for (split, name), (worst, *means) in zip(names, metrics.values(), strict=True):
            row = {"step": 1, "epoch": 1.0, "split": split, "metric": name}
            values = {0: worst, "worst": worst, "mean": means[0], "averaged": means[-1]}
            store.append([row | {"worker": worker, "value": value} for worker, value in values.items()])
        store.set_status(Status.done, step=1, wall_s=1.0, **status)
    return run_directory(config)


def test_a_table_of_runs_says_whose_metric_it_shows(capsys):
    for algo, seed in product(("dpsgd", "d2"), (0, 1)):
        both = {"test accuracy": (0.5 + seed / 10, 0.6), "local accuracy": (0.3, 0.4)}
        stored(both, f"algo={algo}", f"seed={seed}", "optim.clip_norm=null", "topology=ring")
    folder = Path("results/tables/algo_optim.clip_norm")
    for worker, whose in (
        ("mean", "Test accuracy (%), mean over workers"),
        ("averaged", "Test accuracy (%) of the averaged model"),
        ("0", "Test accuracy (%) of worker 0"),
        ("worst", "Test accuracy (%) of the worst worker"),
    ):
        printed = said(capsys, report, "runs", "--rows", "algo,optim.clip_norm", "--worker", worker,
                       *["--html", "figures.format=[svg]"] * (worker == "worst"))  # fmt: skip
        assert "examples/s" not in printed  # unless it is asked for
        table, latex = ((folder / f"table.{kind}").read_text() for kind in ("md", "tex"))
        head = f"{whose}, by algo, optim.clip_norm"
        assert head in printed and f"**{whose}**" in table
        ylabel = json.loads((folder / "study.json").read_text())["report"]["figures"][0]["ylabel"]
        assert whose[1:] in ylabel
        captions = [line for line in latex.splitlines() if line.startswith("\\caption")]
        words = (whose, whose.replace("Test", "Local"))
        for caption, word in zip(captions, words, strict=True):
            by = f"{word}, by algo, optim.clip_norm. ".replace("%", "\\%").replace("_", "\\_")
            assert caption.startswith(f"\\caption{{{by}")
    assert head in (folder / "report.html").read_text()
    assert "| algo | optim.clip_norm |" in table and "| dpsgd | null |" in table
    printed = said(capsys, report, "runs", "--rows", "algo,optim.clip_norm", "--throughput", "--x", "steps", "--log")
    assert "\n\nThroughput (examples/s):\n\n" in printed
    figure = json.loads((folder / "study.json").read_text())["report"]["figures"][0]
    assert (figure["x"], figure["logy"]) == ("steps", True)


def test_errors_of_tables_name_arguments_in_python_and_options_in_commands(capsys):
    stored({"test accuracy": (0.5, 0.6)}, "algo=dpsgd")
    for arguments, says in (
        ({"metric": "f1"}, "metric=f1 is in none of these runs"),
        ({"rows": "algoo"}, "rows=algoo is not a setting"),
        ({"best": "lrr"}, "best=lrr is not a setting"),
        ({"over": "sed"}, "over=sed is not a setting"),
    ):
        with pytest.raises(ConfigError) as refused:
            decentral.table(**{"rows": "algo", **arguments})
        assert str(refused.value).startswith(says) and "--" not in str(refused.value)


def test_each_table_in_latex_has_its_caption_and_a_label(capsys):
    for algo, seed in product(("dpsgd", "d2"), (0, 1)):
        stored({"test accuracy": (0.5, 0.6), "local accuracy": (0.3, 0.4)}, f"algo={algo}", f"seed={seed}")
    said(capsys, report, "runs", "--rows", "algo", "--columns", "alpha")
    latex = Path("results/tables/algo_by_alpha/table.tex").read_text()
    assert re.findall(r"caption\{(.*?), by", latex) == [
        rf"{one} accuracy (\%) of the worst worker" for one in ("Test", "Local")
    ]
    assert re.findall(r"\\label\{(.*?)\}", latex) == ["tab:algo_by_alpha", "tab:algo_by_alpha-2"]


@pytest.mark.parametrize(
    ("mean", "std", "format", "shown"),
    [
        (0.053219, None, "percent", "0.0532"),
        (66.5678, None, "percent", "66.6"),
        (2.302585, 0.00123, "percent", "2.3026 ± 0.0012"),
        (37.0, None, "percent", "37.0"),
        (8.2e-27, None, "percent", "8.2e-27"),
        (8.2e-27, 1.3e-27, "plain", "8.2e-27 ± 1.3e-27"),
        (1234.5, None, "plain", "1234.500"),
    ],
)
def test_a_number_has_as_many_digits_as_it_needs(mean, std, format, shown):
    assert measured(mean, std, Table(["algo"], format=format, precise=True)) == shown


def test_a_sweep_with_one_seed_has_a_table_with_chosen_values_and_a_command_that_widens_them(capsys):
    pairs = "algo,topology=(dpsgd,ring),(relaysgd,dbt),(relaysgd,chain)"
    words = [pairs, "lr=0.05,0.1", "task=quadratics", "num_workers=4", "steps=80", "progress=false"]
    words += ["evaluation.every_epochs=10"]
    _, out, _ = command(capsys, *words)
    assert re.search(r"^algo +topology +objective suboptimality of the worst worker +best lr$", out, re.M)
    assert len(re.findall(r"^\w+ +[\w ]+ [\d.e-]+\*? +0\.1 \(highest tried\)$", out, re.M)) == 3  # a row for each pair
    (wider,) = re.findall(r"^Wider: +(.*?)  \(", out, re.M)
    wider = shlex.split(wider)
    assert wider == ["decentral-run", "-m", pairs, "lr=0.05,0.1,0.2", *words[2:]]
    assert "6 of 9 runs were already finished" in command(capsys, *wider[2:])[1]
    table = Path("results/tables/algo_topology")
    assert "best lr" in (table / "table.md").read_text() and "best lr" in (table / "table.tex").read_text()
    axes = Curves(worker="worst", x="epoch", lines=["algo", "topology"], logy=None)
    axes.data(read(table))
    assert axes.over("") == "step" and axes.is_log("")  # it falls over more than two decades


def test_a_sweep_of_asynchronous_and_synchronous_methods_leads_to_a_comparison_at_equal_times(capsys):
    out = command(capsys, "algo=adpsgd,dpsgd", "topology=ring", *QUICK)[1]
    times = next(line for line in out.splitlines() if line.startswith("Times: ")).split("  (")[0]
    *words, cluster, target = shlex.split(times)[1:]
    assert words == ["decentral-run", "-m", "algo=adpsgd,dpsgd", "topology=ring", *QUICK]
    assert cluster == "cluster=two_delayed" and re.fullmatch(r"target=objective suboptimality:[\d.]+(e\S+)?", target)
    assert "Times: " not in command(capsys, "algo=allreduce,dpsgd", "topology=ring", *QUICK)[1]


def test_rerun_carries_out_finished_runs_again_once(capsys):
    for more in ((), ("rerun=true",)):
        code, out, _ = command(capsys, "algo=dpsgd", "topology=ring", "seed=0,1", *QUICK, *more)
        assert (code, out.count("] done")) == (0, 2)


def test_bold_in_a_table_of_runs_takes_a_lead_that_seeds_tell_apart(capsys):
    for others, bold in (((0.30, 0.20, 0.70), False), ((0.10, 0.40, 0.50), False), ((0.30, 0.29, 0.31), True)):
        shutil.rmtree("results", ignore_errors=True)
        for seed, (one, other) in enumerate(zip((0.60, 0.61, 0.62), others, strict=True)):
            stored({"test accuracy": (one, one)}, "algo=dpsgd", "topology=ring", f"seed={seed}")
            stored({"test accuracy": (other, other)}, "algo=d2", "topology=ring", f"seed={seed}")
        said(capsys, report, "runs", "--rows", "algo")
        text = Path("results/tables/algo/table.md").read_text()
        assert ("**6" in text) == ("Student's t for 95 %" in text) == bold


def test_runs_with_different_metrics_are_chosen_by_the_names_that_are_listed(capsys):
    stored({"test accuracy": (0.5, 0.5), "local accuracy": (0.4, 0.4)}, "algo=dpsgd", "topology=ring")
    stored({"local accuracy": (0.4, 0.4)}, "algo=dpsgd", "topology=ring", "seed=1", "evaluation.split=local")
    stored({"test f1": (0.3, 0.3)}, "algo=dpsgd", "topology=ring", "seed=2", "metrics=[f1]")
    with pytest.raises(ConfigError, match="judged by") as refused:
        decentral.table(rows="topology")
    names = str(refused.value).partition("judged by ")[2].partition(":")[0].split(" and ")
    assert sorted(names) == ["local accuracy (%)", "test accuracy (%)", "test f1 (%)"]
    for name, runs in zip(sorted(names), (2, 1, 1), strict=True):
        for wanted in (name, name.removesuffix(" (%)")):
            table = decentral.table(rows="topology", metric=wanted)
            assert table.set_index("metric").loc[name, "runs"] == runs
    assert set(decentral.table(rows="topology", metric="accuracy")["metric"]) >= {"test accuracy (%)"}
    assert decentral.table(rows="topology", where="metrics=[f1]")["metric"][0] == "test f1 (%)"
    assert "2 runs without test accuracy (%) left out" in said(
        capsys, report, "runs", "--rows", "topology", "--metric", "accuracy"
    )
    with pytest.raises(ConfigError, match=r"^worker=best is unknown: use worst, mean or averaged"):
        decentral.table(rows="topology", worker="best")


def test_each_sweep_has_a_table_of_its_own_and_the_next_command_works(capsys):
    def swept(*words: str) -> tuple[str, Path]:
        for algo, seed in product(("dpsgd", "d2"), (1, 2)):
            stored({"test accuracy": (0.5, 0.5)}, f"algo={algo}", f"seed={seed}", *words)
        fixed = ("data=digits", "model=mlp", "results_dir=results", *words)
        _, out, _ = command(capsys, "algo=dpsgd,d2", "seed=1,2", *fixed)
        (folder,) = re.findall(r"^Results:  (.*)$", out, re.M)
        return out, Path(folder)

    stored({"test f1": (0.3, 0.3)}, "algo=dpsgd", "topology=ring", "seed=9", "metrics=[f1]")
    out, first = swept("topology=ring", "lr=0.1")
    before = {path: path.read_bytes() for path in first.iterdir()}
    _, second = swept("topology=ring", "lr=0.2")
    assert (first.name, second.parent) == ("algo", first.parent) and second != first
    assert before == {path: path.read_bytes() for path in first.iterdir()}
    assert [swept("topology=ring", f"lr={lr}")[1] for lr in (0.1, 0.2)] == [first, second]
    (again,) = re.findall(r"^Next:     decentral-report (.*?)  \(", out, re.M)
    assert f"Results:  {first}" in said(capsys, report, *shlex.split(again))
    with pytest.raises(ConfigError, match="judged by"):
        decentral.table(rows="algo")


def test_table_1_of_the_readme_comes_from_its_stored_runs(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    said(capsys, report, "runs", "--rows", "method,topology", "--columns", "alpha", f"results_dir={STORED}")
    ours = pandas.read_csv(tmp_path / "results/tables/method_topology_by_alpha/table.csv")
    theirs = pandas.read_csv(STORED / "table.csv")
    columns = ["method", "topology", "alpha", "mean", "std", "rates", "at_edge"]
    pandas.testing.assert_frame_equal(ours[columns], theirs[columns])


def test_the_example_of_the_page_on_studies_is_a_study():
    page = DOCS.read_text(encoding="utf-8")
    example = yaml.safe_load(page.split("```yaml")[1].split("```")[0])
    example.pop("scales")
    assert len(study_from("mine", example).cells([])) == 4


@pytest.mark.slow
def test_the_commands_of_the_page_on_studies_do_what_it_says(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    page = DOCS.read_text(encoding="utf-8").partition("## The file")[0]
    commands = [shlex.split(line) for line in re.findall(r"^    (decentral-.*)", page, re.M)]
    sweep, pairs, as_study, *tables, stored = commands
    quick = [re.sub(r"^(\w+=[^,]+,[^,]+),.*", r"\1", word.replace("epochs=5", "steps=3")) for word in sweep[1:]]
    said(capsys, run_main, *quick, "num_workers=4", "--save-study", "mine")
    paired = [re.sub(r"^(\w+=[^,]+,[^,]+),.*", r"\1", word.replace("epochs=5", "steps=3")) for word in pairs[1:]]
    printed = said(capsys, run_main, *paired, "num_workers=4", "results_dir=paired", "--save-study", "paired")
    assert printed.count("±") == 5 and re.search(r"^relaysgd +double binary trees ", printed, re.M)
    assert "4 cells, 8 jobs known" in said(capsys, study, "paired", "--config-dir", "conf", "--plan")
    assert "±" in said(capsys, study, *as_study[1:])
    for table in tables:
        assert "±" in said(capsys, report, *table[1:])
    assert "±" in said(capsys, report, *stored[1:-1], f"results_dir={STORED}")


def test_runs_of_a_sweep_keep_their_order_whichever_ends_first():
    ended = [(name, {"model": "mlp"}, {"updated": when}, {}) for name, when in (("a", 3), ("b", 1), ("c", 2))]
    assert [path for path, *_ in _without_repeats(ended)[0]] == ["a", "b", "c"]
