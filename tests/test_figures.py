"""What figures show: axes, labels, order, limits, and a look of its own for each line."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from decentral.report import style
from decentral.report.figures.figure import Output, StudyFigure
from decentral.report.figures.lines import Curves, Scaling, ThreeAxes
from decentral.report.results import Results, read
from handmade import PUBLISHED, TABLE, picture, value, write

TARGET, LOSS, ACCURACY = "simulated_s to test accuracy 90 %", "train loss", "test accuracy (%)"
METRICS = {
    LOSS: {"larger_is_better": False, "unit": "nats"},
    ACCURACY: {"larger_is_better": True, "unit": "%"},
    TARGET: {"larger_is_better": False},
}
ALPHAS = (0.2, 0.05, 0.1)
"""As given by a user: they neither rise nor fall."""


@pytest.fixture
def results(tmp_path: Path) -> Results:
    values = [
        value("D-PSGD", topology, alpha, number, seed, metric=metric)
        for metric, number in ((TARGET, 5.0), (ACCURACY, 90.0))
        for topology in ("ring", "torus")
        for alpha in ALPHAS
        for seed in (1, 2)
    ]
    curves = [
        ["D-PSGD", topology, alpha, metric, "averaged", seed, step, step / 2, at[step] * (1.15 if seed == 2 else 0.1)]
        for metric, at in ((ACCURACY, {0: 10, 10: 80, 20: 86}), (LOSS, {0: 100.0, 10: 1.0, 20: 0.01}))
        for topology in ("ring", "torus")
        for alpha in ALPHAS
        for seed in (1, 2)
        for step in at
    ]
    return read(write(tmp_path / "paper" / "study" / "small", values, {"table": TABLE}, curves, metrics=METRICS))


def described(figure: StudyFigure, results: Results) -> dict[str, Any]:
    """The panels, their axes, the lines and the legend of a figure as it is drawn."""
    drawn = picture(figure, results)
    axes = [ax for ax in drawn.axes if ax.get_visible()]
    lines = [line for line in axes[0].lines if len(line.get_xdata()) > 1 and line.get_linestyle() != "None"]
    bands = [path.vertices[:, 1] for ax in axes for band in ax.collections for path in band.get_paths()]
    return {
        "panels": [ax.get_title("left") for ax in axes],
        "xlabel": axes[-1].get_xlabel(),
        "ylabel": axes[0].get_ylabel(),
        "scales": [ax.get_yscale() for ax in axes],
        "legend": [text.get_text() for text in drawn.legends[0].get_texts()],
        "looks": {(line.get_color(), line.get_marker()) for line in lines},
        "colors": {line.get_color() for line in lines},
        "markers": {line.get_marker() for line in lines},
        "bands": (min(map(min, bands)), max(map(max, bands))) if bands else None,
    }


ALPHA = "\N{GREEK SMALL LETTER ALPHA}"
PANELS = [f"{ALPHA} = {number}" for number in sorted(ALPHAS)]
OVER: dict[str, Any] = {"lines": ["topology"], "spread": "std", "worker": "averaged"}


@pytest.mark.parametrize(
    ("figure", "expected"),
    [
        (
            Curves(panels="alpha", metric=ACCURACY, **OVER),
            {
                **{"panels": PANELS, "xlabel": "step", "ylabel": ACCURACY},
                **{"scales": ["linear"] * 3, "legend": ["ring", "torus"], "bands": (0.0, 100.0)},
            },
        ),
        (Curves(metric=LOSS, x="epoch", **OVER), {"xlabel": "epoch", "ylabel": LOSS, "scales": ["log"]}),
        (Curves(metric=LOSS, logy=False, **OVER), {"scales": ["linear"]}),
        (Curves(**OVER), {"ylabel": ACCURACY}),
        (ThreeAxes(axes=["step", "epoch"], **OVER), {"panels": ["", ""], "ylabel": ACCURACY}),
        (
            Curves(panels="metric", **{**OVER, "lines": ["method", "alpha"]}),
            {
                "panels": [ACCURACY, LOSS],
                "ylabel": "",
                "scales": ["linear", "log"],
                "legend": [f"D-PSGD, {name}" for name in PANELS],
            },
        ),
        (
            Scaling(x="alpha", lines=["method", "topology"]),
            {"xlabel": ALPHA, "ylabel": "simulated time to test accuracy 90 % (s)", "scales": ["linear"]},
        ),
        (Curves(names={"ring": "D", "torus": "D"}, **OVER), {"legend": ["D (ring)", "D (torus)"]}),
    ],
)
def test_a_figure_names_and_orders_what_it_shows(results: Results, figure: StudyFigure, expected: dict[str, Any]):
    shown = described(figure, results)
    assert {key: shown[key] for key in expected} == expected
    assert len(shown["colors"]) == len(shown["markers"]) == len(shown["looks"]) == len(shown["legend"])


def test_a_figure_of_the_width_of_a_column_is_no_higher_for_each_row_of_panels(results: Results) -> None:
    for panels, columns, rows in (("", 1, 1), ("alpha", 2, 2)):
        for output in (Output(width=3.25), Output(width=3.25, title=False)):
            figure = Curves(panels=panels, metric=ACCURACY, **OVER)
            drawn = picture(figure, results, output)
            width, height = drawn.get_size_inches()
            grid = drawn.axes[0].get_gridspec()
            assert (width, grid.ncols, grid.nrows) == (3.25, columns, rows) and height <= rows * width


def test_a_curve_of_one_value_is_a_marker(results: Results) -> None:
    vars(results)["curves"] = results.curves.query("step == 20 or metric == @ACCURACY")
    drawn = picture(Curves(panels="metric", **OVER), results)
    assert [ax.lines[0].get_markevery() == 1 for ax in drawn.axes if ax.lines] == [False, True]


@pytest.mark.parametrize("count", [1, 2, 6, 12, 15, 40])
def test_every_line_has_its_own_color_and_marker(count: int) -> None:
    """Of one method on many topologies, of unknown methods, and of lines without methods; beyond 15, its own color."""
    numbers = [str(number) for number in range(count)]
    for looks in (
        style.looks(["D-PSGD"] * count, numbers),
        style.looks(["All-reduce"] * count, (), numbers),
        style.looks([f"method {number}" for number in numbers]),
        style.looks([["RelaySGD", "D2", "SGP"][number % 3] for number in range(count)], (), numbers),
        style.ordered_looks(count),
    ):
        assert len({look.color for look in looks}) == count
        assert len({look.marker for look in looks}) == min(count, 15)


@pytest.mark.parametrize(
    ("changed", "marks"),
    [([], 2), (["study.seeds=[7]"], 2), (["study.columns={}", "study.num_workers=[8]"], 2), (["lr=0.1"], 0)],
)
def test_reference_marks_stay_at_the_cells_that_a_change_leaves_alone(
    tmp_path: Path, changed: list[str], marks: int
) -> None:
    values = [value("RelaySGD", "dbt", alpha, 87.0) for alpha in (1, 0.1)]
    report = {"published": {**PUBLISHED, "scales": ["small"]}}
    directory = write(tmp_path / "relaysum" / "study" / "small", values, report, changed=changed)
    lines = Scaling(x="alpha", lines=["method"]).published(read(directory))
    assert sum(len(line.x) for line in lines) == marks
