"""`decentral-study --plan`: how many jobs, and how much time, by those that are done."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from decentral.cli import study as command
from decentral.cli.study_arguments import chosen_studies
from decentral.host import devices
from decentral.store import RunStore, Status
from decentral.store.files import write_json
from decentral.study.progress import Unfinished

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
    monkeypatch.setattr(devices, "num_gpus", lambda: 0)
    folder = ["--config-dir", str(tmp_path / "conf"), f"results_dir={tmp_path / 'results'}", "scale=smoke"]
    return [*folder, "launcher.slots=1"]


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


@pytest.mark.parametrize("name", ["mine", "relaysum_fig7", "relaysum_fig7_rates"])
def test_rows_add_up_to_the_total_for_a_job_of_several_cells_is_counted_once(name: str, given: list[str], capsys):
    plan = said(capsys, name, *given, "--plan")
    *cells, total = rows(plan)
    assert total[next(iter(total))] == "total"
    for column in ("jobs known", "done", "to come"):
        assert sum(int(row[column]) for row in cells) == int(total[column])
    assert f"{total['jobs known']} jobs known today" in plan and "Time:     not known before a job is done" in plan
    assert (f"{total['to come']} to come when searches" in plan) == (total["to come"] != "0")


def test_a_job_of_another_row_is_said_to_be_one_and_nothing_is_written(given: list[str], tmp_path: Path, capsys):
    """The methods of this study do not look at alpha: its second column is the first one again."""
    *cells, _ = rows(said(capsys, "mine", *given, "--plan"))
    counts = [(row["jobs known"], row["of rows above"], row["to come"]) for row in cells]
    assert counts == [("3", "0", "2"), ("0", "3", "0")] * 2  # the search has the first seed already
    assert not (tmp_path / "results").exists()


def test_time_follows_from_finished_runs_of_the_kind_less_what_is_begun(given: list[str], tmp_path: Path, capsys):
    """One run of each method took 40 s; of the two others of each, one has 5 of its 20 steps."""
    said(capsys, "mine", *given, "progress=false", "study.seeds=[1]", "study.tune={rule: fixed}")
    for run in (tmp_path / "results" / "runs").iterdir():
        facts = json.loads((run / "status.json").read_text())
        write_json(run / "status.json", facts | {"wall_s": 40.0})
    more = ["study.tune={rule: fixed}"]
    plan = said(capsys, "mine", *given, *more, "--plan")
    assert "6 jobs known today (2 done, 4 to do)" in plan
    assert "Time:     about 2 min 40 s with 1 core, 2 min 40 s of one core." in plan
    (chosen,) = chosen_studies(["mine", *given[2:], *more], given[1])
    for job in Unfinished(command.checked_cells(chosen)).pending()[:2]:
        with RunStore.open(job.directory, job.id, "") as store:
            store.commit_checkpoint(5, {"process0": store.save_checkpoint_part(5, "process0", {})}, {})
            store.set_status(Status.interrupted, step=5, epoch=5.0)
    plan = said(capsys, "mine", *given, *more, "--plan")
    assert "(2 done, 4 to do, 2 of them begun)" in plan and "Time:     about 2 min 20 s" in plan
    assert "about 1 min 10 s with 2 cores" in said(capsys, "mine", *given, *more, "launcher.slots=2", "--plan")


def test_a_plan_of_data_that_are_not_here_loads_nothing(given: list[str], tmp_path: Path, capsys):
    arguments = [*given[:-2], "scale=paper", "device=cpu", f"data.path={tmp_path / 'absent'}"]
    assert rows(said(capsys, "relaysum_table1", *arguments, "--plan"))[-1]["jobs known"] == "78"
