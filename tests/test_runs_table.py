"""Tables of stored runs: what a sweep ends with, `decentral-report runs`, `decentral.table`, `--save-study`."""

from __future__ import annotations

import re
import shlex
import sys
from pathlib import Path

import pandas
import pytest

import decentral
from decentral.cli.report import main as report
from decentral.cli.run import main as run
from decentral.cli.study import main as study
from decentral.errors import ConfigError
from decentral.study.catalogue import study_from

sys.path.append(str(Path(__file__).parents[1] / "scripts"))

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


@pytest.fixture(scope="module")
def swept(tmp_path_factory) -> tuple[Path, str]:
    """A folder with the runs of SWEEP, and what it printed."""
    folder = tmp_path_factory.mktemp("sweep")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        printed = []
        patch.setattr("decentral.cli.sweep.say", lambda text, **_: printed.append(text))
        with pytest.raises(SystemExit) as ended:
            run(SWEEP)
    assert ended.value.code == 0
    return folder, "\n".join(printed)


def test_a_sweep_ends_with_the_mean_over_seeds_at_the_best_rate_of_each_cell(swept):
    folder, printed = swept
    runs = decentral.runs(folder / "results")
    value = "objective suboptimality (worst)"
    means = runs.groupby(["algo", "task.zeta2", "lr"])[value].agg(["mean", "std"]).reset_index()
    best = means.loc[means.groupby(["algo", "task.zeta2"])["mean"].idxmin()]
    assert "Mean" not in printed
    assert "throughput (steps/s)" in printed.lower()
    found = decentral.table(folder / "results", rows="algo", columns="task.zeta2", best="lr")
    found = found[found.metric == "objective suboptimality"].sort_values(["algo", "task.zeta2"])
    assert found["mean"].tolist() == pytest.approx(best["mean"].tolist())
    assert found["std"].tolist() == pytest.approx(best["std"].tolist())
    assert found["rates"].tolist() == best["lr"].tolist() == [0.1] * 4  # with 1e6 all diverge
    assert set(found["runs"]) == {2}
    for mean in found["mean"]:
        assert re.search(rf"\b{re.escape(f'{mean:.3f}')} ± ", printed) or f"{mean:.1e}" in printed


def test_its_files_are_a_table_in_three_formats_and_figures(swept):
    directory = swept[0] / "results" / "tables" / "algo_by_task.zeta2"
    names = {path.name for path in directory.iterdir()}
    assert {"table.md", "table.csv", "table.tex", "values.png", "curves.png", "values.csv", "study.json"} <= names


def test_the_saved_study_gives_the_same_numbers(swept, capsys, monkeypatch):
    folder, _ = swept
    monkeypatch.chdir(folder)
    said(capsys, study, "mine", "scale=laptop", "--config-dir", "conf")
    theirs = pandas.read_csv(folder / "results/own/sweeps/mine/laptop/table.csv")
    ours = decentral.table(folder / "results", rows="algo", columns="task.zeta2", best="lr")
    ours = ours[ours.metric == "objective suboptimality"]
    assert sorted(theirs["mean"]) == pytest.approx(sorted(ours["mean"]))


def test_a_rate_at_the_edge_of_the_grid_is_marked(swept, capsys, monkeypatch):
    monkeypatch.chdir(swept[0])
    shown = said(capsys, report, "runs", "--rows", "algo", "--columns", "zeta2", "--best", "lr", "--where", "lr=0.02")
    assert "*" not in shown  # one rate is no grid
    found = decentral.table(swept[0] / "results", rows="algo", columns="zeta2", best="lr", worker="averaged")
    assert not found["at_edge"].any()


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ("--rows algo", "differ in task.zeta2"),
        ("--rows algo --columns zeta2", "differ in lr"),
        ("--rows algo --best lr", "differ in task.zeta2"),
        ("--rows algoo", "Did you mean 'algo'"),
        ("--rows algo,lr --best lr --columns zeta2", "named twice"),
        ("--rows algo --metric acuracy", "--metric=acuracy"),
        ("--rows algo --where lr=7", "no finished runs with lr=7"),
        ("--columns lr", "--rows is missing"),
        ("--rows algo --columns zeta2 --best lr --worker 9", "4 workers"),
        ("--rows algo --columns zeta2 --best lr --name ../x", "no plain name"),
        ("results_dir=nowhere --rows algo", "nowhere has no finished runs"),
    ],
)
def test_what_has_no_table_is_refused(swept, capsys, monkeypatch, options, says):
    monkeypatch.chdir(swept[0])
    with pytest.raises(SystemExit) as ended:
        report(["runs", *shlex.split(options)])
    out, err = capsys.readouterr()
    assert (ended.value.code, out) == (2, "")
    assert says in err


def test_table_1_of_the_readme_comes_from_its_stored_runs(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    said(capsys, report, "runs", "--rows", "method,topology", "--columns", "alpha", f"results_dir={STORED}")
    ours = pandas.read_csv(tmp_path / "results/tables/method_topology_by_alpha/table.csv")
    theirs = pandas.read_csv(STORED / "table.csv")
    columns = ["method", "topology", "alpha", "mean", "std", "rates", "at_edge"]
    pandas.testing.assert_frame_equal(ours[columns], theirs[columns])


def test_the_page_on_studies_has_every_key_and_its_example_is_a_study():
    import yaml

    from study_keys import listing

    page = DOCS.read_text(encoding="utf-8")
    assert page.endswith(f"<!-- keys -->\n\n{listing()}\n"), "python scripts/study_keys.py"
    example = yaml.safe_load(page.split("```yaml")[1].split("```")[0])
    example.pop("scales")
    assert len(study_from("mine", example).cells([])) == 4


@pytest.mark.slow
def test_the_commands_of_the_page_on_studies_do_what_it_says(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    page = DOCS.read_text(encoding="utf-8").partition("## The file")[0]
    commands = [shlex.split(line) for line in re.findall(r"^    (decentral-.*)", page, re.M)]
    sweep, as_study, *tables, stored = commands
    quick = [word.replace("epochs=5", "steps=3") for word in sweep[1:]]
    said(capsys, run, *quick, "num_workers=4", "--save-study", "mine")
    assert "±" in said(capsys, study, *as_study[1:])
    for table in tables:
        assert "±" in said(capsys, report, *table[1:])
    assert "±" in said(capsys, report, *stored[1:-1], f"results_dir={STORED}")


def test_runs_of_the_same_cell_with_different_settings_are_never_averaged(swept):
    with pytest.raises(ConfigError, match="differ in task"):
        decentral.table(swept[0] / "results", rows="algo", best="lr")
