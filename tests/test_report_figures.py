"""Figures of studies: files, what is drawn, and the same look for an algorithm everywhere."""

from __future__ import annotations

import math
import re
from pathlib import Path
from typing import Any

import pytest

from decentral.errors import ConfigError
from decentral.report import style
from decentral.report.figures import canvas
from decentral.report.figures.figure import Output, caption, center, output
from decentral.report.figures.lines import Curves, Scaling
from decentral.report.make import make
from decentral.report.results import Results, read
from handmade import PUBLISHED, courses, table1, value, write

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


@pytest.mark.parametrize("name", [r"$\frac{", "$x^{2}$"])
def test_a_name_with_dollars_is_no_formula(tmp_path: Path, name: str) -> None:
    told = {"xlabel": f"x {name}", "ylabel": f"y {name}"}
    report = {"figures": [CURVES | told, SCALING | told]}
    lines = [line for method in (name, "D-PSGD") for line in courses(method, "ring", 1, 90)]
    values = [value(method, "ring", alpha, 90) for method in (name, "D-PSGD") for alpha in (0.01, 1)]
    directory = write(tmp_path / "theirs" / "mine" / "paper", values, report, lines)
    made = make(directory)
    texts = [re.findall(r"<text[^>]*>([^<]*)<", path.read_text()) for path in made.files if path.suffix == ".svg"]
    assert len(texts) == 2
    for found in texts:
        assert {f"x {name}", f"y {name}"} <= set(found) and any(text.startswith(name) for text in found), found


@pytest.mark.slow
def test_the_same_results_give_the_same_bytes_and_text_that_is_text(results: Results) -> None:
    def contents() -> dict[str, bytes]:
        make(results.directory)
        return {path.name: path.read_bytes() for path in results.directory.iterdir()}

    first = contents()
    assert contents() == first
    assert {"alphas.png", "alphas.svg", "course.png", "course.svg"} <= first.keys()
    assert not any(name.endswith(".tmp") for name in first)
    svg = first["course.svg"].decode()
    for text in ("Heterogeneous data", "RelaySGD, double binary trees", "D-PSGD, ring", "test accuracy (%)", "steps"):
        assert re.search(rf">[^<]*{re.escape(text)}[^<]*</", svg), text


def test_a_report_that_cannot_be_written_leaves_the_old_files(
    results: Results, monkeypatch: pytest.MonkeyPatch
) -> None:
    make(results.directory)
    before = {path.name: path.read_bytes() for path in results.directory.iterdir()}

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.replace", full)
    with pytest.raises(OSError, match="No space left"):
        make(results.directory)
    assert {path.name: path.read_bytes() for path in results.directory.iterdir()} == before


def test_a_figure_without_data_is_not_drawn_and_an_old_one_is_removed(tmp_path: Path) -> None:
    directory = tmp_path / "relaysum" / "mine" / "small"
    make(write(directory, table1(), {"figures": [CURVES]}, lines_of_curves()))
    assert (directory / "course.png").exists()
    (directory / "curves.csv").unlink()
    assert make(directory).remarks == ["course has no data yet, so it was not drawn."]
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


@pytest.mark.parametrize(("figure", "complaint"), [
    (Curves(lines=["metod"]), "uses a label 'metod'. Did you mean 'method'?"),
    (Curves(metric="test accurcy (%)"), "Did you mean 'test accuracy (%)'?"),
    (Scaling(x="method"), "is drawn over method, but RelaySGD is no number"),
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
    assert subtitle(canvas.draw(figure, results)).endswith("a single seed")
    assert said(canvas.draw(figure, results, output=Output(title=False)))[-1] == "a single seed"
    assert caption(figure, results, figure.data(results)) == "A single seed."


# For papers


@pytest.mark.parametrize(("width", "inches"), [("column", 3.25), ("page", 6.75), ("5.5", 5.5)])
def test_a_figure_for_a_paper_is_as_wide_as_its_column_without_a_title(results: Results, width: str, inches) -> None:
    wanted = output({"figures.title": "false", "figures.width": width})
    with style.settings("x", wanted.small):
        drawn = canvas.draw(results.spec.figures[0], results, output=wanted)
        drawn.canvas.draw()
    assert drawn.get_figwidth() == inches and not drawn.texts
    assert "line: mean of 2 seeds" in said(drawn)
    assert len({round(ax.get_position().x0, 2) for ax in drawn.axes}) == (1 if inches < 4 else 2)
    everything = drawn.get_tightbbox()
    assert everything.x0 >= -0.01 and everything.x1 <= inches + 0.01
    labels = [label for ax in drawn.axes for label in ax.get_xticklabels()]
    assert all(6 <= label.get_fontsize() <= 8 for label in labels)


@pytest.mark.parametrize(("settings", "complaint"), [
    ({"figures.title": "no"}, "figures.title=no is neither true nor false."),
    ({"figures.width": "colum"}, "figures.width=colum is no width: it should be screen, column (3.25 inches) or page "
     "(6.75 inches), or inches from 2 to 20."),
    ({"figures.width": "80"}, "figures.width=80 is no width: "),
    ({"figures.width": "nan"}, "figures.width=nan is no width: "),
    ({"figures.format": "[png,pfd]"}, "figures.format=[png,pfd] has 'pfd', which is no format. Did you mean 'pdf'?"),
    ({"figures.format": "[]"}, "figures.format=[] has '', which is no format."),
])  # fmt: skip
def test_an_output_that_does_not_exist_is_refused_in_a_sentence(settings: dict[str, str], complaint: str) -> None:
    with pytest.raises(ConfigError) as refused:
        output(settings)
    assert str(refused.value).startswith(complaint)
