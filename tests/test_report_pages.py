"""The pages of results/, the command decentral-report, and figures of studies."""

from __future__ import annotations

import json
import math
import re
import shutil
import subprocess
from concurrent.futures import ThreadPoolExecutor
from html.parser import HTMLParser
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from decentral.cli import report as command
from decentral.config.composition import compose
from decentral.config.parsing import dump
from decentral.errors import ConfigError
from decentral.report import style
from decentral.report.figures.figure import Output, caption, center, output
from decentral.report.figures.lines import Curves, Scaling, ThreeAxes
from decentral.report.html import write_page
from decentral.report.make import make, report_all, report_pages
from decentral.report.results import Results, read
from decentral.store import Metric, RunStore
from decentral.store.files import alone
from decentral.study import catalogue
from decentral.study.study import Study
from decentral.terminal.display import unless_quick
from handmade import PUBLISHED, TABLE, courses, picture, table1, value, write

CLAIMS = [
    {"says": "RelaySGD wins.", "kind": "order", "better": {"method": "RelaySGD", "alpha": 0.01},
     "worse": {"method": "D-PSGD", "alpha": 0.01}},
    {"says": "D-PSGD is steady.", "kind": "steady", "cell": {"method": "D-PSGD"}, "across": {"alpha": [1, 0.01]},
     "within": 1},
]  # fmt: skip
FIGURE = {"name": "course", "kind": "curves", "worker": "worst", "panels": "alpha", "lines": ["method"],
          "spread": "range", "caption": "Accuracy over steps"}  # fmt: skip
REPORT = {"caption": "Worst.", "table": TABLE, "figures": [FIGURE], "published": PUBLISHED, "claims": CLAIMS}


def report(words: list[str]) -> None:
    """`decentral-report`, which has to end well."""
    with pytest.raises(SystemExit) as exit:
        command.main(words)
    assert exit.value.code == 0


@pytest.fixture(autouse=True)
def only_two_studies(monkeypatch: pytest.MonkeyPatch) -> None:
    """The catalogue: relaysum_table1, of which there are results, and thesis_tableA_1, of which there are none."""
    item = {"item": "tableA.1", "tolerance": {"absolute": 1}, "because": "one run each"}
    known = {
        "relaysum_table1": ("relaysum", "Table 1", REPORT),
        "thesis_tableA_1": ("thesis", "Table A.1", {"published": item, "claims": CLAIMS}),
    }

    class Loaded(Study):
        def cells(self, overrides):  # type: ignore[no-untyped-def]
            return []

    def load(name: str, scale: str, config_dir: str | None = None) -> Study:
        paper, item, report = known[name]
        return Loaded(title=f"Title of {name}", paper=paper, item=item, report=report, needs="a GPU")

    monkeypatch.setattr(catalogue, "names", lambda config_dir=None: sorted(known))
    monkeypatch.setattr(catalogue, "scales", lambda name, config_dir=None: ["small", "paper"])
    monkeypatch.setattr(catalogue, "load", load)


@pytest.fixture
def results_dir(tmp_path: Path) -> Path:
    curves = courses("RelaySGD", "dbt", 1, 90)
    for scale in ("paper", "small", "smoke"):
        write(tmp_path / "relaysum" / "relaysum_table1" / scale, table1(), REPORT, curves)
    (tmp_path / "runs" / "abc").mkdir(parents=True)
    return tmp_path


def rows(path: Path) -> dict[str, list[str]]:
    lines = [
        line.removeprefix("| ").removesuffix(" |").split(" | ")
        for line in path.read_text().splitlines()
        if line.startswith("| [")
    ]
    return {cells[0]: [cell.strip() for cell in cells[1:]] for cells in lines}


@pytest.mark.usefixtures("inline")
def test_the_scoreboard_has_a_row_for_every_item_run_or_not(results_dir: Path) -> None:
    report_all(results_dir)
    assert rows(results_dir / "README.md") == {
        "[RelaySum](relaysum/README.md)": ["1 of 1", "1 paper", "2 / 4 / 30", "", "1 / 2 / 2"],
        "[Bohl's thesis](thesis/README.md)": ["0 of 1", "", "0 / 0 / 14", "", "0 / 0 / 2"],
        "[Table 1](relaysum/README.md#relaysum_table1)": [
            "Title of relaysum_table1", "paper, small", "2 / 4 / 30", "", "1 / 2 / 2", "2 min 2 s",
        ],
        "[Table A.1](thesis/README.md#thesis_tableA_1)": [
            "Title of thesis_tableA_1", "not run (needs a GPU)", "0 / 0 / 14", "", "0 / 0 / 2", "",
        ],
    }  # fmt: skip
    assert "| **All** | 1 of 2 | 1 paper | 2 / 4 / 44 |  | 1 / 2 / 4 |" in (results_dir / "README.md").read_text()


def test_a_papers_page_has_claim_command_result_departures_and_provenance(results_dir: Path) -> None:
    report_all(results_dir)
    text = (results_dir / "relaysum" / "README.md").read_text()
    assert text.startswith("# RelaySum for Decentralized Deep Learning on Heterogeneous Data")
    for part in (
        "## Table 1: Title of relaysum_table1",
        "- RelaySGD wins.\n- D-PSGD is steady.",
        "### Table 1 at scale=paper\n\n```\ndecentral-study relaysum_table1 scale=paper\n```",
        "| D-PSGD | ring | 87.4 ± 0.0 (2 of 3 runs) [87.4] |",
        "![Accuracy over steps](relaysum_table1/paper/course.png)\n\n*Accuracy over steps.* Line: mean of 2 seeds; "
        "band: lowest to highest of 2 seeds.\n\n",
        "**Published numbers** (table1): 2 met, 2 not met, 26 not run. Tolerance: 0.5 percentage points, because seeds",
        "| dpsgd\\|ring\\|alpha=0.01 | 51 ± 1.4 | 53.9 |",
        "| D-PSGD is steady. | **not met** | within 1 |",
        "**Departures**:\n\n- Digits instead of CIFAR-10.",
        "commit 0123456789ab, version 0.1.0, scale=paper, 12 runs, 1 min 1 s, 2 cores; ended 2026-01-02",
        "Published numbers without a study: table10-learning-rates (30), ",
    ):
        assert part in text, part
    assert "at scale=small" in text and "at scale=smoke" not in text
    other = (results_dir / "thesis" / "README.md").read_text()
    assert "**Not run.** It needs a GPU. Command: `decentral-study thesis_tableA_1 scale=paper`" in other
    for link in ("relaysum_table1/paper/course.png", "relaysum_table1/paper/verdicts.csv"):
        assert (results_dir / "relaysum" / link).is_file()


@pytest.mark.usefixtures("inline")
@pytest.mark.usefixtures("few_pages")
def test_a_changed_study_is_a_variant_that_counts_for_nothing(results_dir: Path) -> None:
    report_all(results_dir)
    board = (results_dir / "README.md").read_bytes()
    wins = [value("RelaySGD", "dbt", 0.01, 90.0), value("D-PSGD", "ring", 0.01, 10.0)]
    for scale in ("paper", "small"):
        changed = results_dir / "relaysum" / "relaysum_table1" / f"{scale}-a1b2c3"
        write(changed, wins, REPORT, scale=scale, changed=["study.seeds=[1]"])
    made, _, _ = report_all(results_dir, scale="paper")
    assert (results_dir / "README.md").read_bytes() == board
    (variant,) = [one for one in made if not one.results.original]
    assert {one.why for one in variant.verdicts if one.kind == "number"} == {"the study was changed: study.seeds=[1]"}
    assert variant.summary().startswith("relaysum_table1, scale=paper (changed): ")
    text = (results_dir / "relaysum" / "README.md").read_text()
    line = "[small-a1b2c3](relaysum_table1/small-a1b2c3) at scale=small: `study.seeds=[1]`; claims: 1 met, 0 not met, 1"
    assert "**Variants** (not counted):\n\n- [paper-a1b2c3]" in text and line in text


@pytest.mark.slow
@pytest.mark.usefixtures("inline")
@pytest.mark.usefixtures("few_pages")
def test_a_directory_that_is_no_study_is_left_out_with_a_remark(results_dir: Path, capsys) -> None:
    report_all(results_dir)
    board = (results_dir / "README.md").read_text()
    foreign = {
        "json": "{",
        "labels": '{"study": "a", "scale": "small", "labels": 7}',
        "values": '{"study": "a", "scale": "b"}',
    }
    for name, text in foreign.items():
        (results_dir / "own" / name / "small").mkdir(parents=True)
        (results_dir / "own" / name / "small" / "study.json").write_text(text)
    write(results_dir / "own" / "report" / "small", table1(), ["no keys"])  # type: ignore[arg-type]
    write(results_dir / "own" / "wanted" / "small", table1(), {}, wanted={"no labels": 3})
    wrong = [{"says": "So.", "kind": "order", "better": {"metod": "D2"}, "worse": {"method": "D2"}}]
    write(results_dir / "own" / "claims" / "small", table1(), {"claims": wrong})
    report([f"results_dir='{results_dir}'"])
    said = capsys.readouterr().out
    remarks = [line.removeprefix("Note:     ") for line in said.splitlines() if " is skipped: " in line]
    assert sorted(remark.split("/")[1] for remark in remarks) == sorted([*foreign, "claims", "report", "wanted"])
    assert "Made:     3 reports" in said
    text = (results_dir / "README.md").read_text()
    assert all(f"- {remark}\n" in text for remark in remarks)
    assert [line for line in text.splitlines() if " is skipped: " not in line and line] == [
        line for line in board.splitlines() if line
    ]
    with pytest.raises(ConfigError, match="names a label 'metod'"):
        report_all(results_dir, ["claims"])


def test_a_claim_met_within_the_noise_is_counted_apart(tmp_path: Path) -> None:
    values = [value("RelaySGD", "dbt", 0.01, 80.1 + seed, seed) for seed in (0, 2)]
    values += [value("D-PSGD", "ring", 0.01, 82 - seed, seed) for seed in (0, 2)]
    made = make(write(tmp_path / "relaysum" / "relaysum_table1" / "small", values, REPORT))
    assert "Claims:   1 met (1 of them within the noise), 0 not met, 1 not run" in made.summary()
    report_pages(tmp_path)
    line = rows(tmp_path / "README.md")["[Table 1](relaysum/README.md#relaysum_table1)"]
    assert line[4] == "1 / 1 / 2 (1 within the noise)"
    text = (tmp_path / "README.md").read_text()
    assert "| 1 / 1 / 4 (1 within the noise) |" in text


@pytest.mark.usefixtures("few_pages")
def test_two_studies_that_publish_at_once_wait_for_each_other(results_dir: Path) -> None:
    with ThreadPoolExecutor(1) as pool:
        with alone(results_dir):
            other = pool.submit(report_pages, results_dir)
            with pytest.raises(TimeoutError):
                other.result(timeout=0.5)
            assert not (results_dir / "README.md").exists()
        other.result(timeout=240)
        assert (results_dir / "README.md").exists()


# The command


@pytest.mark.parametrize(("arguments", "complaint"), [
    (["relaysum_tabel1"], "there is no study relaysum_tabel1. Did you mean 'relaysum_table1'?"),
    (["results_dr=x"], "decentral-report has no setting 'results_dr'. Did you mean 'results_dir'?"),
    (["figures.width=colum"], "figures.width='colum' has the wrong type: use screen, column, page"),
    (["results_dir=/nowhere"], "results_dir=/nowhere has no results: run decentral-study first, or give"),
    (["thesis_tableA_1", "scale=paper"], "of thesis_tableA_1 at scale=paper: run decentral-study first, or give"),
])  # fmt: skip
def test_what_cannot_be_done_is_one_sentence(results_dir: Path, monkeypatch, capsys, arguments, complaint) -> None:
    monkeypatch.chdir(results_dir)
    with pytest.raises(SystemExit) as stopped:
        command.main(arguments)
    said = capsys.readouterr().err
    assert stopped.value.code == 2 and said.startswith("decentral-report: ") and said.count("\n") == 1
    assert complaint in said


# -- Figures of studies: files, what is drawn, and the same look for an algorithm everywhere ---------------------------

CURVES: dict[str, Any] = {
    **{"name": "course", "kind": "curves", "worker": "worst", "panels": "alpha", "lines": ["method", "topology"]},
    **{"xlabel": "steps", "ylabel": "test accuracy (%)", "spread": "std"},
}
SCALING: dict[str, Any] = {
    **{"name": "alphas", "kind": "scaling", "x": "alpha", "lines": ["method"], "logx": True},
    **{"xlabel": "alpha", "ylabel": "test accuracy (%)"},
}


def lines_of_curves() -> list[list[Any]]:
    return [
        line
        for alpha in (1, 0.01)
        for line in courses("RelaySGD", "dbt", alpha, 90) + courses("D-PSGD", "ring", alpha, 60)
    ]


@pytest.fixture
def results(tmp_path: Path) -> Results:
    report = {"figures": [CURVES, SCALING], "published": PUBLISHED}
    return read(write(tmp_path / "relaysum" / "mine" / "paper", table1(), report, lines_of_curves()))


# Files


@pytest.mark.slow
def test_a_name_with_dollars_is_no_formula(tmp_path: Path) -> None:
    name = r"$\frac{"
    told = {"xlabel": f"x {name}", "ylabel": f"y {name}"}
    report = {"figures": [CURVES | told, SCALING | told]}
    lines = [line for method in (name, "D-PSGD") for line in courses(method, "ring", 1, 90)]
    values = [value(method, "ring", alpha, 90) for method in (name, "D-PSGD") for alpha in (0.01, 1)]
    directory = write(tmp_path / "theirs" / "mine" / "paper", values, report, lines)
    made = make(directory, Output(formats=("svg",)))
    texts = [re.findall(r"<text[^>]*>([^<]*)<", path.read_text()) for path in made.files if path.suffix == ".svg"]
    assert len(texts) == 2
    for found in texts:
        assert {f"x {name}", f"y {name}"} <= set(found) and any(text.startswith(name) for text in found), found


@pytest.mark.slow
def test_the_same_results_give_the_same_bytes_and_text_that_is_text(results: Results) -> None:
    def contents() -> dict[str, bytes]:
        make(results.directory, Output(formats=("png", "svg", "pdf")))
        return {path.name: path.read_bytes() for path in results.directory.iterdir()}

    first = contents()
    assert contents() == first
    assert {"alphas.png", "alphas.pdf", "course.pdf", "course.svg"} <= first.keys()
    assert not any(name.endswith(".tmp") for name in first)
    svg = first["course.svg"].decode()
    for text in ("Heterogeneous data", "RelaySGD, double binary trees", "D-PSGD, ring", "test accuracy (%)", "steps"):
        assert re.search(rf">[^<]*{re.escape(text)}[^<]*</", svg), text


def test_what_is_drawn_unless_asked_is_one_small_png_and_what_is_older_is_named(tmp_path: Path) -> None:
    directory = write(tmp_path / "relaysum" / "mine" / "small", table1(), {"figures": [CURVES]}, lines_of_curves())
    made = make(directory, Output(formats=("svg",)))
    (directory / "course.pdf").touch()
    assert made.remarks == [] and not (directory / "course.png").exists()
    made = make(directory)
    assert [path.name for path in made.figures] == ["course.png"]
    assert made.remarks == [
        "course.svg, course.pdf are of an earlier report; figures.format=[png,svg,pdf] draws every format."
    ]
    with Image.open(directory / "course.png") as picture:
        assert picture.mode == "P" and picture.info["dpi"] == pytest.approx((150, 150), abs=0.1)
        colors = {color for _, color in picture.convert("RGB").getcolors(256)}
    for color in ("#FFFFFF", style.VERMILLION, style.BLUE):
        assert tuple(bytes.fromhex(color[1:])) in colors, color


def test_a_figure_without_data_is_not_drawn_and_an_old_one_is_removed(tmp_path: Path) -> None:
    directory = tmp_path / "relaysum" / "mine" / "small"
    make(write(directory, table1(), {"figures": [CURVES]}, lines_of_curves()))
    assert (directory / "course.png").exists()
    (directory / "curves.csv").unlink()
    assert make(directory).remarks == ["course is not drawn: it has no data yet."]
    assert not (directory / "course.png").exists()


# What is drawn


def test_a_run_without_a_value_is_the_worst_of_its_cell_and_not_left_out_of_it(tmp_path: Path) -> None:
    def seeds(alpha: float, *numbers: float) -> list[dict[str, Any]]:
        return [value("D2", "ring", alpha, number, seed=seed) for seed, number in enumerate(numbers)]

    report = {"larger_is_better": True}
    values = [*seeds(1, 80, 90, 90), *seeds(0.1, 60, 80, math.nan), *seeds(0.01, 70, math.nan, math.nan)]
    found = read(write(tmp_path / "a" / "b" / "small", values, report, []))
    figure = Scaling(x="alpha", lines=["method"], spread="std")
    line = figure.data(found)[0]
    assert (line.x, line.y) == ([0.1, 1], pytest.approx([60, 260 / 3]))  # 70, of one of three, is not drawn
    assert line.low is not None and line.low[0] == 60  # no band
    assert "mean of 3 seeds, where one has no value: median" in center(figure, found, [line])


def test_a_panel_names_who_diverged_and_who_never_got_to_the_target_where(tmp_path: Path) -> None:
    values = [value("D2", "ring", 1, 80), value("D2", "ring", 0.1, math.nan, status="not reached")]
    values += [value("D-PSGD", "ring", alpha, math.nan, status="diverged") for alpha in (1, 0.1)]
    found = read(write(tmp_path / "a" / "b" / "small", values, {}, courses("D2", "ring", 1, 90)))
    figures = Scaling(x="alpha", lines=["method"]), Curves(lines=["method"], worker="mean")
    notes = [picture(figure, found).axes[0].texts[0].get_text() for figure in figures]
    assert notes == ["diverged: D-PSGD\nnever at 0.1: D2", "diverged: D-PSGD"]


def test_a_cumulative_distribution_has_the_largest_share_at_a_place(tmp_path: Path) -> None:
    quantiles = [
        ["D2", "ring", 1, "share", "", 1, seconds, seconds, share]
        for share, seconds in enumerate((2, 2, 2, 5, 5), start=1)
    ]
    found = read(write(tmp_path / "a" / "b" / "small", table1(), {}, quantiles))
    line = Curves(lines=["method"], cumulative=True).data(found)[0]
    assert (line.x, line.y, line.stairs) == ([2, 5], [3, 5], True)


@pytest.mark.parametrize(("figure", "complaint"), [
    (Curves(lines=["metod"]), "uses a label 'metod'. Did you mean 'method'?"),
    (Curves(metric="test accurcy (%)"), "Did you mean 'test accuracy (%)'?"),
    (Scaling(x="method"), "is drawn over method, but RelaySGD is not a number"),
])  # fmt: skip
def test_a_figure_of_what_does_not_exist_is_refused(results: Results, figure, complaint: str) -> None:
    with pytest.raises(ConfigError, match="study mine: the figure 'figure'") as refused:
        figure.data(results)
    assert complaint in str(refused.value)


# What lines, bands and rings are


def said(drawn: Any) -> list[str]:
    """What the legends say."""
    return [text.get_text() for legend in drawn.legends for text in legend.get_texts()]


def subtitle(drawn: Any) -> str:
    return drawn.texts[1].get_text()


def test_a_single_seed_is_called_that_in_the_picture_and_in_its_caption(tmp_path: Path) -> None:
    lines = [row for row in courses("RelaySGD", "dbt", 1, 90) + courses("D2", "ring", 1, 80) if row[5] == 1]
    results = read(write(tmp_path / "a" / "b" / "small", table1(), {}, lines))
    figure = Curves(worker="worst", lines=["method"], spread="range")
    assert subtitle(picture(figure, results)).endswith("a single seed")
    assert said(picture(figure, results, output=Output(title=False)))[-1] == "a single seed"
    assert caption(figure, results, figure.data(results)) == "A single seed."


def test_a_method_looks_alike_in_the_panels_of_all_topologies(tmp_path: Path) -> None:
    lines = courses("D-PSGD", "ring", 1, 90) + courses("D-PSGD", "chain", 1, 80) + courses("D2", "ring", 1, 70)
    results = read(write(tmp_path / "a" / "b" / "small", table1(), {}, lines))
    drawn = picture(Curves(worker="worst", lines=["method"], panels="topology"), results)
    seen = [{(line.get_marker(), line.get_linestyle()) for line in ax.get_lines() if line.get_marker() == "s"}
            for ax in drawn.axes]  # fmt: skip
    assert seen == [{("s", "-")}, {("s", "-")}]


def test_a_value_is_called_as_the_figure_says_or_in_readable_form() -> None:
    figure = Curves(lines=["method"], names={"d2": "D2"})
    called = [figure.called("method", "d2"), figure.called("cluster", "one_slow"), figure.called("tuned", "True")]
    assert called == ["D2", "one slow", "tuned: yes"]


def test_a_chain_beside_a_ring_has_its_own_dashes_in_all_methods() -> None:
    looks = style.looks(["D-PSGD", "D-PSGD", "RelaySGD"], ["ring", "chain", "chain"])
    assert looks[0].line != looks[1].line == looks[2].line


def test_the_legend_tells_where_a_line_is_at_the_target_with_units(results: Results) -> None:
    figure = ThreeAxes(lines=["method"], axes=["step", "epoch"], worker="worst", target=60)
    assert said(picture(figure, results))[:2] == [
        "RelaySGD: 20 steps, 10 epochs",
        "D-PSGD: 30 steps, 15 epochs",
    ]


# For papers


@pytest.mark.parametrize(("width", "inches"), [("column", 3.25), ("5.5", 5.5)])
def test_a_figure_for_a_paper_is_as_wide_as_its_column_without_a_title(results: Results, width: str, inches) -> None:
    wanted = output({"figures.title": "false", "figures.width": width})
    with style.settings("x", wanted.small):
        drawn = picture(results.spec.figures[0], results, output=wanted)
        drawn.canvas.draw()
    assert drawn.get_figwidth() == inches and not drawn.texts
    assert "line: mean of 2 seeds" in said(drawn)
    assert len({round(ax.get_position().x0, 2) for ax in drawn.axes}) == 2
    everything = drawn.get_tightbbox()
    assert everything.x0 >= -0.01 and everything.x1 <= inches + 0.01
    labels = [label for ax in drawn.axes for label in ax.get_xticklabels()]
    assert all(6 <= label.get_fontsize() <= 8 for label in labels)


@pytest.mark.parametrize(("settings", "complaint"), [
    ({"figures.title": "maybe"}, "figures.title='maybe' has the wrong type: use true or false."),
    ({"figures.width": "colum"}, "figures.width='colum' has the wrong type: use screen, column, page, or inches from "),
    ({"figures.width": "80"}, "figures.width=80 is out of range: use screen, column, page, or inches from 2 to 20."),
    ({"figures.width": "nan"}, "figures.width=nan is out of range: "),
    ({"figures.format": "[png,pfd]"}, "figures.format[1]='pfd' has the wrong type: use one of png, svg, pdf."),
    ({"figures.format": "[]"}, "figures.format[0]='' has the wrong type: use one of png, svg, pdf."),
])  # fmt: skip
def test_an_output_that_does_not_exist_is_refused_in_a_sentence(settings: dict[str, str], complaint: str) -> None:
    with pytest.raises(ConfigError) as refused:
        output(settings)
    assert str(refused.value).startswith(complaint)


def test_what_takes_long_says_how_far_it_is(monkeypatch, capsys) -> None:
    monkeypatch.setattr("decentral.terminal.display.time.monotonic", count(step=3).__next__)
    for total in (1, 3):
        with unless_quick("Drawing figures", total) as advance:
            for _ in range(total):
                advance(1)
    assert capsys.readouterr().err.splitlines()[0] == "Drawing figures: 67%", "one of one is done before it is shown"


# -- report.html -------------------------------------------------------------------------------------------------------


class Page(HTMLParser):
    """What is in a page: its tags closed in order, its texts by tag, and whatever it would load."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.texts: dict[str, list[str]] = {}
        self.loads: list[str] = []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.loads += [f"{tag} {key}" for key, _ in attrs if key in ("src", "href", "data", "action", "poster")]
        self.texts.setdefault(tag, []).append("")
        if tag not in ("meta", "input", "line", "circle"):
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.texts.setdefault(tag, []).append("")

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open:
            self.texts[self.open[-1]][-1] += data


WICKED = '</script><b onclick=alert(1)>&"x'


@pytest.fixture
def page(tmp_path: Path) -> Path:
    curves = [*courses("RelaySGD", "dbt", 1, 80), *courses("D-PSGD", "ring", 1, 70), *courses(WICKED, "ring", 1, 60)]
    values = [*table1(), value(WICKED, "ring", 1, 60)]
    directory = write(tmp_path / "own" / "relaysum" / "relaysum_table1" / "smoke", values, REPORT, curves)
    run = compose(["algo=dpsgd", "topology=ring", "num_workers=5", "task=quadratics"])
    for name in ("D-PSGD-1", "D-PSGD-2"):
        (tmp_path / "own" / "runs" / name).mkdir(parents=True)
        (tmp_path / "own" / "runs" / name / "config.yaml").write_text(dump(run))
    return write_page(read(directory))


def test_a_page_of_a_study_is_whole_and_loads_nothing(page: Path) -> None:
    text = page.read_text()
    found = Page(text)
    assert found.open == [] and found.loads == [] and not re.search(r"url\(|@import|fetch\(|https?:", text)
    assert found.texts["th"] == ["method", "topology", "alpha", "metric", "mean", "std", "runs", "diverged", "rates"]
    rows = [found.texts["td"][i : i + 9] for i in range(0, len(found.texts["td"]), 9)]
    assert rows[0] == ["RelaySGD", "dbt", "1", "test accuracy (%)", "87.2", "0.1", "3", "0", "0.1"]
    assert WICKED in [row[0] for row in rows] and "b" not in found.texts
    assert found.texts["figcaption"] == ["ring, 5 workers"] and len(found.texts["circle"]) == 5
    assert len(found.texts["line"]) == 5


def test_a_long_curve_is_thinned_out_to_its_end(tmp_path: Path) -> None:
    curves = [["D-PSGD", "ring", 1, "test accuracy (%)", "worst", 1, step, step / 2, step] for step in range(2001)]
    page = write_page(read(write(tmp_path / "p" / "relaysum_table1" / "smoke", table1(), REPORT, curves)))
    data = re.search(r"const DATA = (.*);", page.read_text())
    assert data is not None
    (one,) = json.loads(data[1])["curves"]
    assert one["step"][0] == 0 and one["step"][-1] == one["value"][-1] == 2000 and len(one["step"]) == 300


STUB = """
const heard = { addEventListener(type, f) { this.on[type] = f; } };
const made = {}, nothing = { setAttribute() {}, removeAttribute() {} };
const element = () => ({ innerHTML: "", value: "", checked: false, on: {}, ...heard, ...nothing });
globalThis.window = element();
globalThis.document = { getElementById: id => made[id] ??= element() };
const row = (...values) => ({ cells: values.map(value => ({ dataset: { value } })) });
const both = [element(), element()];
const body = { rows: [row("b", "10"), row("a", "9"), row("c", "")], append(...rows) { this.rows = rows; } };
made.table = { tHead: { rows: [{ cells: both }] }, tBodies: [body] };
made.metric = element(); made.metric.value = "test accuracy (%)"; made.axis = element(); made.axis.value = "step";
"""
SEEN = """
const lines = () => (made.plot.innerHTML.match(/<polyline/g) || []).length, told = {};
const x = () => [...made.plot.innerHTML.matchAll(/text-anchor="middle">([^<]*)</g)].map(one => one[1]);
told.lines = lines(); told.x = x(); told.legend = made.legend.innerHTML; told.axes = made.axis.innerHTML;
made.axis.value = "epoch"; made.axis.on.change(); told.epochs = x();
const first = { dataset: { name: "RelaySGD, dbt, 1 (worst)" }, checked: false };
made.legend.on.change({ target: first }); told.fewer = lines();
made.log.checked = true; made.log.on.change(); told.log = lines();
const order = () => body.rows.map(one => one.cells[0].dataset.value).join("");
both[0].on.click(); told.byText = order(); both[0].on.click(); told.backwards = order();
both[1].on.click(); told.byNumber = order();
console.log(JSON.stringify(told));
"""


@pytest.mark.skipif(shutil.which("node") is None, reason="needs node")
def test_the_script_of_a_page_draws_hides_and_sorts(page: Path, tmp_path: Path) -> None:
    script = re.search(r"<script>(.*)</script>", page.read_text(), re.S)
    assert script is not None
    (tmp_path / "page.js").write_text(STUB + script[1] + SEEN)
    done = subprocess.run(["node", str(tmp_path / "page.js")], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert told["lines"] == 12 and told["fewer"] == 11 and told["log"] == 11  # three methods, four workers
    assert told["x"] == ["0", "5", "10", "15", "20", "25", "30", "step"] and told["epochs"][-2:] == ["15", "epoch"]
    assert re.findall(r'value="(\w+)"', told["axes"]) == ["step", "epoch"]
    assert "<b" not in told["legend"] and "&#60;/script&#62;" in told["legend"]
    assert (told["byText"], told["backwards"], told["byNumber"]) == ("abc", "cba", "abc")


def test_a_page_has_a_curve_of_each_metric_with_a_direction_of_the_runs_that_are_there(tmp_path: Path) -> None:
    for seed in (1, 2):
        with RunStore.open(tmp_path / "runs" / f"D-PSGD-{seed}", f"D-PSGD-{seed}", "") as store:
            known = [("test", "accuracy", True, "%"), ("local", "accuracy", True, "%"), ("test", "f1", True, "")]
            known += [("train", "loss", False, "nats"), ("model", "consensus_distance", None, "")]
            store.describe([Metric(split, name, better, unit) for split, name, better, unit in known])
            for step in (0, 10):
                head = {"step": step, "epoch": step / 5, "bytes_sent": 100 * step, "wall_s": 1.0}
                for split, name, *_ in known:
                    at = head | {"split": split, "metric": name}
                    store.append([at | {"worker": who, "value": step / 20 + seed / 10} for who in ("worst", "mean", 0)])
    curves = [line for line in courses("D-PSGD", "ring", 1, 70) if line[4] == "worst"]
    directory = write(tmp_path / "relaysum" / "relaysum_table1" / "smoke", table1(), REPORT, curves)
    data = re.search(r"const DATA = (.*);", write_page(read(directory)).read_text())
    assert data is not None
    found = {(one["metric"], one["name"]): one for one in json.loads(data[1])["curves"]}
    others = ["local accuracy (%)", "test f1", "train loss"]  # the consensus distance has no direction
    expected = [f"{one} of the worst worker" for one in ("test accuracy (%)", *others)]
    assert [metric for metric, _ in found] == expected and {name for _, name in found} == {"D-PSGD, ring, 1"}
    local, f1 = (found[metric, "D-PSGD, ring, 1"] for metric in expected[1:3])
    assert local["value"] == [15.0, 65.0] and f1["value"] == [0.15, 0.65]  # the mean of two runs, in percent or not
    assert (f1["step"], f1["epoch"], f1["bytes_sent"]) == ([0, 10], [0, 2], [0, 1000])


@pytest.mark.usefixtures("few_pages")
def test_the_command_writes_pages_where_they_are_asked_for(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    directory = write(tmp_path / "relaysum" / "relaysum_table1" / "smoke", table1(), REPORT)
    report([f"results_dir={tmp_path}"])
    assert not (directory / "report.html").exists()
    report([f"results_dir={tmp_path}", "--html"])
    assert f"Page:     {directory / 'report.html'}" in capsys.readouterr().out
    assert "h2" not in Page((directory / "report.html").read_text()).texts  # neither curves nor topologies
