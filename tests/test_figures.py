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


def drawn_over(results: Results, figure: Curves, **columns: Any) -> list[Any]:
    """The lines of a figure whose curves have these columns."""
    vars(results)["curves"] = results.curves.assign(**columns)
    return figure.data(results)


DISTANCE = "model consensus distance"


@pytest.mark.parametrize(
    ("metric", "values", "shown"),
    [
        (DISTANCE, (1e-13, 2.0, 0.5), [0.0, 2.0, 0.5]),
        (DISTANCE, (0.3, 1e-14, 0.5), [0.3, 0.0, 0.5]),
        (DISTANCE, (0.3, 0.5, 1e-14), [0.3, 0.5, 0.0]),
        (DISTANCE, (1e-14, 3e-15, 1e-13), [0.0] * 3),
        (DISTANCE, (1.0, 1e-9, 1e-18), [1.0, 1e-9, 1e-18]),
        (LOSS, (1e-13, 2.0, 1e-26), [1e-13, 2.0, 1e-26]),
    ],
)
def test_rounding_of_the_consensus_distance_is_zero(results: Results, metric: str, values, shown: list[float]) -> None:
    curves = results.curves.query("metric == @LOSS and topology == 'ring' and seed == 1 and alpha == '0.1'")
    vars(results)["curves"] = curves
    (line,) = drawn_over(results, Curves(worker="averaged", x="step"), metric=metric, value=values)
    assert line.y == shown


def test_a_logarithmic_panel_names_the_lines_that_are_zero(results: Results) -> None:
    number = results.curves["topology"].map({"ring": 1e-13, "torus": 1.0}) * (1 + results.curves["step"])
    vars(results)["curves"] = results.curves.assign(metric=DISTANCE, value=number)
    for logy, expected in ((True, ["zero: ring"]), (False, [])):
        ax = picture(Curves(worker="averaged", x="step", lines=["topology"], logy=logy), results).axes[0]
        assert [text.get_text() for text in ax.texts] == expected
        assert ax.get_ylim()[0] > 0.1 or not logy


def test_titles_and_legends_fit_into_the_figure(results: Results) -> None:
    names = {"ring": "a topology with a name as long as those that settings make: partition.groups_per_worker = 2"}
    names |= {name: f"{name} of the averaged model over present workers" for name in (LOSS, ACCURACY)}
    title = "Momentum WWWWW and communication, by algo.period_steps, partition.groups_per_worker and optim.momentum"
    figure = Curves(panels="metric", title=title, names=names, **{**OVER, "lines": ["topology", "alpha"]})
    for is_titled, width in ((True, 2.2), (False, 6.75)):
        with style.settings("test", small=True):
            drawn = picture(figure, results, Output(is_titled, width))
            drawn.canvas.draw()
            texts = [text for legend in drawn.legends for text in legend.get_texts()]
            texts += [*drawn.texts, *(text for ax in drawn.axes for text in (ax._left_title, ax.xaxis.label))]
            boxes = [text.get_window_extent() for text in texts if text.get_text()]
            below, above = sorted((legend.get_window_extent() for legend in drawn.legends), key=lambda box: box.y0)
        assert min(box.min.min() for box in boxes) >= 0
        assert max(box.x1 for box in boxes) <= drawn.bbox.x1, [
            t.get_text() for t in texts if t.get_window_extent().x1 > drawn.bbox.x1
        ]
        assert max(box.y1 for box in boxes) <= drawn.bbox.y1
        assert below.y1 <= above.y0 + 1 and above.y1 <= min(ax.xaxis.label.get_window_extent().y0 for ax in drawn.axes)
        assert all(ax.get_window_extent().height > 0.5 * drawn.dpi for ax in drawn.axes)


def test_settings_that_a_method_lacks_are_left_out_of_legends_and_said_in_panels(results: Results) -> None:
    vars(results)["curves"] = results.curves.replace({"alpha": {"0.05": "-"}})
    legend = described(Curves(**{**OVER, "lines": ["method", "alpha"]}), results)["legend"]
    assert sorted(legend) == ["D-PSGD", f"D-PSGD, {ALPHA} = 0.1", f"D-PSGD, {ALPHA} = 0.2"]
    assert f"without {ALPHA}" in described(Curves(panels="alpha", **OVER), results)["panels"]


def test_costs_of_runs_of_equally_many_steps_are_averaged_step_by_step(results: Results) -> None:
    """Nothing is sent before step 10, and what is sent then differs by seed."""
    vars(results)["curves"] = curves = results.curves.query("metric == @LOSS and topology == 'ring' and alpha == '0.1'")
    sent = (curves["step"] == 20) * curves["seed"] * 100.0
    figure = Curves(worker="averaged", x="bytes", center="mean", target=1.0)
    (line,) = drawn_over(results, figure, bytes_sent=sent)
    values = curves.groupby("step")["value"].mean().tolist()
    assert (line.x, line.y, line.least) == ([0.0, 0.0, 150.0], values, 2)
    assert line.reached == (0 + 200) / 2  # the mean over the seeds, as in a table
    assert drawn_over(results, Curves(worker="averaged", x="bytes", target=0.005), bytes_sent=sent)[0].reached is None
    vars(results)["curves"] = curves[(curves["step"] < 20) | (curves["seed"] == 1)]  # of different lengths
    (line,) = drawn_over(results, Curves(worker="averaged", x="bytes"), bytes_sent=sent)
    assert line.x == [0.0] and line.y == values[:1]


def test_pale_lines_are_explained_where_a_line_is_covered(results: Results) -> None:
    pale = "pale: a covered line"
    for same in (True, False):
        vars(results)["curves"] = results.curves.query("metric == @ACCURACY and seed == 1 and alpha == '0.1'").assign(
            value=lambda table, same=same: table["step"] + 40.0 * (not same and table["topology"] == "ring")
        )
        drawn = picture(Curves(worker="averaged", x="step", lines=["topology"]), results)
        assert (pale in [text.get_text() for legend in drawn.legends for text in legend.get_texts()]) == same


def test_a_run_that_ends_before_half_of_the_limit_fills_the_panel(results: Results) -> None:
    for limit, right in ((30.0, 30.0), (50.0, None)):
        ax = picture(Curves(x="step", metric=ACCURACY, xlim=[0.0, limit], **OVER), results).axes[0]
        assert ax.get_xlim()[0] == 0 and (ax.get_xlim()[1] == right if right else 20 <= ax.get_xlim()[1] < 25)


def test_the_availability_of_all_workers_is_named(results: Results) -> None:
    assert Curves().called("availability", "none") == "availability: none"
    assert Curves().called("algo.period_steps", "5") == "algo.period_steps = 5"
