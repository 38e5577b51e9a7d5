"""`decentral-study --plan`: how many jobs, how much time, memory and disk; as counted and measured, and said so."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace

import pytest

from configure import configure
from decentral.cli import study as command
from decentral.cli.study_arguments import chosen_studies
from decentral.config.schema import Config
from decentral.host import devices
from decentral.jobs import rehearsal
from decentral.jobs.rehearsal import Rehearsal, extent, rehearse
from decentral.jobs.training_run import TrainingRun
from decentral.store import RunStore, Status
from decentral.store.files import write_json
from decentral.study import rehearsals
from decentral.study.progress import Unfinished
from decentral.study.rehearsals import Rehearsed
from decentral.terminal.text import duration
from decentral.training.run import evaluates_at

STUDY = """
kind: comparison
paper: mine
base: [task=quadratics, num_workers=4, steps=20, device=cpu]
rows:
  - {method: D-PSGD, topology: ring, base: [algo=dpsgd, topology=ring]}
  - {method: All-reduce, topology: complete, base: [algo=allreduce]}
columns: {alpha: [1, 0.1]}
tune: {rule: powers_of_two, at_most: 3}
seeds: [1, 2, 3]
measure: {split: objective, metric: suboptimality, worker: averaged, percent: false, larger_is_better: false}
scales: {smoke: {}}
"""


@pytest.fixture
def given(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What the command gets beside the study's name: a study of one's own, and folders that only this test has."""
    (tmp_path / "conf" / "study").mkdir(parents=True)
    (tmp_path / "conf" / "study" / "mine.yaml").write_text(STUDY)
    monkeypatch.setenv("DECENTRAL_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(devices, "num_gpus", lambda: 0)
    return ["--config-dir", str(tmp_path / "conf"), f"results_dir={tmp_path / 'results'}", "scale=smoke"]


def said(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    with pytest.raises(SystemExit) as exit:
        command.main(list(arguments))
    assert exit.value.code == 0
    return capsys.readouterr().out


def rows(plan: str) -> list[dict[str, str]]:
    """The lines of the table, by the heads of the columns; the last one is the total."""
    head, rule, *lines = plan.partition("\n\n")[0].splitlines()
    places = [match.span() for match in re.finditer("-+", rule)]
    return [{head[a:b].strip(): line[a:b].strip() for a, b in places} for line in lines]


def seen_as(seen: Rehearsal, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every rehearsal sees this."""
    monkeypatch.setattr(rehearsals, "prepare_server", lambda: None)
    monkeypatch.setattr(rehearsals, "_rehearsal", lambda job, limit_s: (Rehearsed(seen), 0.1))


@pytest.mark.parametrize("name", ["mine", "relaysum_fig7", "relaysum_fig7_rates"])
def test_rows_add_up_to_the_total_for_a_job_of_several_cells_is_counted_once(name: str, given: list[str], capsys):
    plan = said(capsys, name, *given, "--plan=quick")
    *cells, total = rows(plan)
    assert total[next(iter(total))] == "total"
    for column in ("jobs known", "done", "to come"):
        if column in total:
            assert sum(int(row[column]) for row in cells) == int(total[column])
    assert f"{total['jobs known']} jobs known today" in plan
    if "to come" in total:
        assert f"{total['to come']} to come when searches" in plan


def test_a_job_of_another_row_is_said_to_be_one(given: list[str], capsys):
    """The methods of this study do not look at alpha: its second column is the first one again."""
    *cells, _ = rows(said(capsys, "mine", *given, "--plan=quick"))
    counts = [(row["jobs known"], row["of rows above"], row["to come"]) for row in cells]
    assert counts == [("3", "0", "2"), ("0", "5", "0")] * 2  # the search has the first seed already


def test_without_a_measurement_nothing_is_claimed(given: list[str], capsys):
    plan = said(capsys, "mine", *given, "--plan=quick")
    assert rows(plan)[-1]["core time"] == "?"
    assert "Time:     not known before a job is done" in plan and "--plan=quick measures nothing" in plan


def test_time_memory_and_disk_follow_from_what_was_seen(given: list[str], monkeypatch, capsys):
    """Ten jobs of 20 steps with 21 evaluations, one of which is the last, side by side on two slots."""
    seen = Rehearsal(1.0, 0.1, 0.05, 2.0, 1.0, 0.0, 100e6, 300e6, 1000.0, 5e6, 1e6)
    seen_as(seen, monkeypatch)
    plan = said(capsys, "mine", *given, "--plan", "launcher.slots=2")
    each_s = 1 + 20 * 0.1 + 20 * 0.05 + 2
    assert rows(plan)[0]["core time"] == f"{5 * each_s:.1f} s" and rows(plan)[0]["memory"] == "100 MB"
    assert "Time:     about 30.0 s with 2 jobs at once on 2 cores, 1 min 0 s of one of them." in plan
    assert "Memory:   about 400 MB for the largest job, 500 MB for 2 at once" in plan
    assert "Disk:     about 50 MB for results, and up to 4 MB for checkpoints while they run." in plan
    assert "10 jobs by a few steps and an evaluation" in plan


def test_what_searches_may_still_ask_for_is_said_apart(given: list[str], monkeypatch, capsys):
    """Two searches of their own begin with three rates and may try five; the other two cells are those again."""
    seen_as(Rehearsal(total_s=8.0), monkeypatch)
    tune = "study.tune={rule: powers_of_two, at_most: 5}"
    plan = said(capsys, "mine", *given, tune, "--plan", "launcher.slots=1")
    known, to_come = (sum(int(row[column] or 0) for row in rows(plan)[:-1]) for column in ("jobs known", "to come"))
    assert "Searches may ask for 4 more at most as they go." in plan
    least, most = (duration(8.0 * jobs) for jobs in (known + to_come, known + to_come + 4))
    between = "1 min 36 s"
    ends = f"{least} if every search ends soon, {most} if none does"
    assert f"about {between} with 1 job at once on 1 core, {between} of one of them; {ends}." in plan


def test_places_are_those_that_the_launcher_has(given: list[str], monkeypatch, capsys):
    seen_as(Rehearsal(total_s=8.0), monkeypatch)
    assert "about 1 min 20 s with 1 job at once on 1 core," in said(
        capsys, "mine", *given, "--plan", "launcher.slots=1"
    )
    assert "about 8.0 s with 10 jobs at once on 40 cores" in said(capsys, "mine", *given, "--plan", "launcher.slots=40")


def test_what_was_measured_is_remembered_and_results_are_left_alone(
    given: list[str], tmp_path: Path, monkeypatch, capsys
):
    seen_as(Rehearsal(total_s=8.0), monkeypatch)
    first = said(capsys, "mine", *given, "--plan")
    monkeypatch.setattr(rehearsals, "_rehearsal", lambda *_: pytest.fail("it is known"))
    assert said(capsys, "mine", *given, "--plan") == first
    assert not (tmp_path / "results").exists()


def test_finished_runs_of_the_kind_come_first_and_nothing_is_measured_for_them(
    given: list[str], tmp_path: Path, monkeypatch, capsys
):
    said(capsys, "mine", *given, "progress=false", "study.seeds=[1]", "study.tune={rule: fixed}", "launcher.slots=1")
    for run in (tmp_path / "results" / "runs").iterdir():
        facts = json.loads((run / "status.json").read_text())
        facts |= {"wall_s": 40.0, "times_s": {"evaluation": 21 * 0.5}}
        write_json(run / "status.json", facts)
    plan = said(capsys, "mine", *given, "--plan=quick", "study.tune={rule: fixed}", "launcher.slots=1")
    assert "4 jobs by what finished runs of that kind took on this machine." in plan
    assert "Time:     about 3 min 24 s" in plan  # 4 (0.5 s to start, 40 s of steps, 10.5 s of evaluations)


def test_runs_that_have_begun_are_named_and_what_their_checkpoints_hold_is_not_to_be_done_again(
    given: list[str], monkeypatch, capsys
):
    """Two of four runs of 8 s were stopped after 5 of 20 steps."""
    seen_as(Rehearsal(total_s=8.0), monkeypatch)
    given = [*given, "study.tune={rule: fixed}", "study.seeds=[1, 2]", "launcher.slots=1"]
    assert "Time:     about 32.0 s" in (fresh := said(capsys, "mine", *given, "--plan")) and "egun" not in fresh
    (chosen,) = chosen_studies(["mine", given[2], given[3], *given[4:]], given[1])
    jobs = Unfinished(command.checked_cells(chosen)).pending()
    for job in jobs[:2]:
        with RunStore.open(job.directory, job.id, "") as store:
            store.commit_checkpoint(5, {"process0": store.save_checkpoint_part(5, "process0", {})}, {})
            store.set_status(Status.interrupted, step=5, epoch=5.0)
    plan = said(capsys, "mine", *given, "--plan")
    assert "4 jobs known today (0 done, 4 to do, 2 of them begun)." in plan
    assert "Time:     about 28.0 s" in plan and "what is stored of 2 jobs that have begun is taken off" in plan


def test_data_that_are_not_here_are_named_and_neither_loaded_nor_measured(
    given: list[str], tmp_path: Path, monkeypatch, capsys
):
    monkeypatch.setattr(rehearsals, "_rehearsal", lambda *_: pytest.fail("there is nothing to measure with"))
    arguments = [*given[:-1], "scale=paper", "device=cpu", f"data.path={tmp_path / 'absent'}"]
    plan = said(capsys, "relaysum_table1", *arguments, "--plan")
    assert "130 jobs cannot be measured here, for they need CIFAR-10, which is not in data.path=" in plan
    assert rows(plan)[-1]["jobs known"] == "78"


@pytest.mark.parametrize("every", [1, 3, 2.5, 100])
@pytest.mark.parametrize("initial", [True, False])
@pytest.mark.parametrize("steps", [1, 6, 10])
def test_as_many_evaluations_are_planned_as_a_run_makes(every: float, initial: bool, steps: int):
    config = configure("task=quadratics", f"steps={steps}", f"evaluation.every_epochs={every}")
    config.evaluation.initial = initial
    run = SimpleNamespace(eval_every_steps=max(1.0, every), total_steps=steps, config=config, ends_at=steps.__eq__)
    assert extent(config, 1.0) == (steps, sum(evaluates_at(t, run) for t in range(steps + 1)))


def seen_of(config: Config) -> Rehearsal:
    import torch

    with torch.no_grad():
        return rehearse(TrainingRun(config), 0.2, lambda: None, lambda seen: None)


def test_a_rehearsal_of_a_run_knows_its_parts(tmp_path: Path):
    """An mlp on digits, of which all models are kept."""
    given = ["data=digits", "model=mlp", "num_workers=4", "device=cpu", f"results_dir={tmp_path / 'results'}"]
    seen = seen_of(configure(*given, "algo=dpsgd", "topology=ring", "optim=sgd"))
    assert min(seen.step_s, seen.evaluation_s, seen.last_evaluation_s) > 0
    assert seen.steps_per_epoch == 1438 // 4 // 32
    assert 1 <= seen.checkpoint_bytes / (seen.models_bytes * 4 / 5) < 2  # the rows of 4 workers; 4 models and the mean
    assert not (tmp_path / "results").exists()
    assert seen_of(configure(*given, "save=none")).models_bytes == 0


@pytest.mark.parametrize(("limit_s", "looked_at"), [(0.0, 1), (8.0, 16), (100.0, 64)])
def test_what_many_workers_take_is_seen_on_as_many_as_there_is_time_for(monkeypatch, limit_s: float, looked_at: int):
    """Here gradients of k workers at once take 1 + k / 64 seconds: by one of them 64 would take a minute, not 2 s."""
    now = 0.0

    def work(workers: Sequence[int]) -> float:
        return 1 + len(workers) / 64

    def seconds(run: object, work: Callable[[], float]) -> float:
        nonlocal now
        now += (spent := work())
        return spent

    monkeypatch.setattr(rehearsal, "_seconds", seconds)
    monkeypatch.setattr(rehearsal.time, "monotonic", lambda: now)
    run = SimpleNamespace(net=SimpleNamespace(n=64))
    found, number = rehearsal._of_all(run, work, limit_s)
    assert number == looked_at and found == work(range(number)) * 64 / number


def test_a_rehearsal_of_a_computation_leaves_nothing(tmp_path: Path):
    from decentral.jobs.consensus import ConsensusRounds

    config = configure(
        "task=mean_estimation", "algo=dpsgd", "topology=ring", "num_workers=8", f"results_dir={tmp_path / 'results'}"
    )
    job = ConsensusRounds(config, "", (1, 2))
    seen = rehearse(job, 5.0, lambda: None, lambda seen: None)
    assert seen.total_s > 0 and seen.disk_bytes > 0
    assert not (tmp_path / "results").exists()


def test_a_plan_measures_in_processes_of_its_own(given: list[str], tmp_path: Path, capsys):
    plan = said(capsys, "mine", *given, "--plan")
    assert "10 jobs by a few steps and an evaluation" in plan and "Memory:   about" in plan
    assert not (tmp_path / "results").exists() and (tmp_path / "cache" / "rehearsals.json").exists()


@pytest.mark.parametrize("value", ["text", None, float("nan"), -1.0, [1]])
def test_what_is_remembered_and_cannot_be_is_measured_again(given: list[str], tmp_path, monkeypatch, capsys, value):
    seen_as(Rehearsal(total_s=8.0), monkeypatch)
    first = said(capsys, "mine", *given, "--plan")
    (file,) = tmp_path.rglob("rehearsals.json")
    known = json.loads(file.read_text())
    file.write_text(json.dumps({key: {name: value for name in fields} for key, fields in known.items()}))
    assert said(capsys, "mine", *given, "--plan") == first


@pytest.mark.parametrize("every_s", [0.5, 3, 100])
def test_evaluations_at_simulated_times_are_planned_by_the_times_of_gradients(every_s: float):
    settings = ("task=quadratics", "num_workers=4", "steps=20", "cluster=free", "cluster.compute.mean_s=0.5")
    config = configure(*settings, "evaluation.every_epochs=null", f"evaluation.every_simulated_s={every_s}")
    expected = {0.5: 20, 3: 4, 100: 1}[every_s]  # of 10 s; each at the end of a step, the last one in any case
    assert extent(config, 1.0) == (20, expected + config.evaluation.initial)
