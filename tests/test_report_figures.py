"""Figures of studies: files, what is drawn, and the same look for an algorithm everywhere."""

from __future__ import annotations

import itertools
import re
import sys
from pathlib import Path
from typing import Any

import pytest

from decentral.errors import ConfigError
from decentral.report import style
from decentral.report.figures import canvas
from decentral.report.figures.curves import Curves
from decentral.report.figures.scaling import Scaling
from decentral.report.make import make
from decentral.report.results import Results, read
from handmade import LABELS, PUBLISHED, courses, table1, value, write

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


def test_each_figure_is_a_png_and_an_svg_whose_text_is_text(results: Results) -> None:
    made = make(results.directory)
    assert sorted(path.name for path in made.files if path.suffix in (".png", ".svg")) == [
        "alphas.png", "alphas.svg", "course.png", "course.svg",
    ]  # fmt: skip
    assert (results.directory / "course.png").read_bytes().startswith(b"\x89PNG")
    svg = (results.directory / "course.svg").read_text()
    for words in ("Heterogeneous data", "RelaySGD, double binary trees", "D-PSGD, ring", "test accuracy (%)", "steps"):
        assert re.search(rf">[^<]*{re.escape(words)}[^<]*</", svg), words
    assert "matplotlib.pyplot" not in sys.modules


def test_the_same_results_give_the_same_bytes(results: Results) -> None:
    def contents() -> dict[str, bytes]:
        make(results.directory)
        return {path.name: path.read_bytes() for path in results.directory.iterdir()}

    first = contents()
    assert contents() == first
    assert not any(name.endswith(".tmp") for name in first)


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


def test_a_line_of_which_a_logarithmic_axis_shows_nothing_is_left_out(tmp_path: Path) -> None:
    curves = courses("RelaySGD", "dbt", 1, 90) + [[*row[:-1], 0.0] for row in courses("D2", "ring", 1, 0)]
    figure = {"name": "course", "kind": "curves", "worker": "worst", "lines": ["method"], "logy": True}
    made = make(write(tmp_path / "relaysum" / "mine" / "small", table1(), {"figures": [figure]}, curves))
    assert [path.name for path in made.figures] == ["course.png"]


def test_what_is_exactly_zero_can_be_drawn_at_a_floor(tmp_path: Path) -> None:
    curves = [[*row[:-1], 0.0] for row in courses("D2", "ring", 1, 0)] + courses("RelaySGD", "dbt", 1, 90)
    results = read(write(tmp_path / "relaysum" / "mine" / "small", table1(), {}, curves))
    figure = Curves(worker="worst", lines=["method"], logy=True, floor=1e-17)
    zeros, others = figure.data(results)
    assert zeros.y == [1e-17] * 4 and others.y == [1.5, 31.5, 61.5, 91.5]
    drawn = canvas.draw(figure, results)
    assert len(drawn.axes[0].lines) == len(drawn.legends[0].get_texts()) == 2


# What is drawn


def test_curves_are_means_over_seeds_with_a_band(results: Results) -> None:
    figure = Curves(worker="worst", panels="alpha", lines=["method"], spread="range")
    line = figure.data(results)[0]
    assert (line.panel, line.key, line.x) == ("1", ("RelaySGD",), [0, 10, 20, 30])
    assert line.y == [1.5, 31.5, 61.5, 91.5]
    assert line.low == [1, 31, 61, 91] and line.high == [2, 32, 62, 92]


def test_runs_that_were_evaluated_at_other_steps_are_averaged_between_them(tmp_path: Path) -> None:
    course = {1: (0, 10, 20), 2: (0, 20)}
    curves = [["D2", "ring", 1, "loss", "", seed, step, step, float(step)] for seed in course for step in course[seed]]
    values = [value("D2", "ring", 1, 1.0)]
    found = Curves(lines=["method"]).data(read(write(tmp_path / "a" / "b" / "small", values, {}, curves)))
    assert found[0].y == [0, 10, 20]


def test_each_worker_can_have_a_thin_line_of_its_own(results: Results) -> None:
    found = Curves(worker="each", panels="method", lines=["topology"], only={"alpha": [0.01]}).data(results)
    assert len(found) == 4 and all(line.thin for line in found)


def test_steps_can_be_counted_in_vectors_that_are_sent(tmp_path: Path) -> None:
    labels = ["method", "vectors_per_step"]
    curves = [["D2", 62, "loss", "", 1, step, step, 1.0] for step in (0, 10)]
    values = [{"method": "D2", "vectors_per_step": 62, "metric": "loss", "value": 1, "seed": 1, "chosen": True}]
    directory = write(tmp_path / "a" / "b" / "small", values, {}, curves, labels=labels)
    assert Curves(x="vectors", lines=["method"]).data(read(directory))[0].x == [0, 620]


def test_scaling_draws_the_mean_over_seeds_and_the_published_numbers(results: Results) -> None:
    figure = Scaling(x="alpha", lines=["method"], spread="std")
    ours = {line.key: line for line in figure.data(results)}
    assert ours["RelaySGD",].x == [0.01, 1.0]
    assert ours["RelaySGD",].y == pytest.approx([86.0, 87.2])
    assert ours["RelaySGD",].low == pytest.approx([85.0, 87.1])
    theirs = {line.key: line.y for line in figure.published(results)}
    assert theirs == {("RelaySGD",): [84.6, 87.4], ("D-PSGD",): [53.9, 87.4]}


@pytest.mark.parametrize(("figure", "complaint"), [
    (Curves(lines=["metod"]), "uses a label 'metod'. Did you mean 'method'?"),
    (Curves(metric="test accurcy (%)"), "Did you mean 'test accuracy (%)'?"),
    (Scaling(x="method"), "x=method, but RelaySGD is no number"),
])  # fmt: skip
def test_a_figure_of_what_does_not_exist_is_refused(results: Results, figure, complaint: str) -> None:
    with pytest.raises(ConfigError, match="study mine: the figure 'figure'") as refused:
        figure.data(results)
    assert complaint in str(refused.value)


def test_panels_share_their_axis_and_the_legend_covers_nothing(results: Results) -> None:
    drawn = canvas.draw(results.spec.figures[0], results)
    assert [ax.get_title(loc="left") for ax in drawn.axes] == [
        "\N{GREEK SMALL LETTER ALPHA} = 1", "\N{GREEK SMALL LETTER ALPHA} = 0.01",
    ]  # fmt: skip
    assert drawn.axes[0].get_ylim() == drawn.axes[1].get_ylim()
    drawn.canvas.draw()
    (legend,) = drawn.legends
    assert all(not legend.get_window_extent().overlaps(ax.get_window_extent()) for ax in drawn.axes)


def test_up_to_ten_places_are_marked_with_their_numbers_on_logarithmic_axes_too(tmp_path: Path) -> None:
    places = [4, 6, 8, 12, 16, 24, 32, 48, 64, 96]
    values = [value("D2", "ring", place, place) for place in places]
    results = read(write(tmp_path / "a" / "b" / "small", values, {}))
    for logx in (False, True):
        drawn = canvas.draw(Scaling(x="alpha", lines=["method"], logx=logx), results)
        drawn.canvas.draw()
        labels = [label for label in drawn.axes[0].get_xticklabels() if label.get_text()]
        assert [float(label.get_text()) for label in labels][-3:] == [48, 64, 96]
        assert len(labels) == (10 if logx else 7)
        boxes = [label.get_window_extent() for label in labels]
        assert all(left.x1 < right.x0 for left, right in itertools.pairwise(boxes))


def test_many_panels_are_wrapped_into_rows(tmp_path: Path) -> None:
    methods = ["A", "B", "C", "D", "E"]
    curves = [line for method in methods for line in courses(method, "ring", 1, 50)]
    values = [value(method, "ring", 1, 50) for method in methods]
    results = read(write(tmp_path / "a" / "b" / "small", values, {}, curves))
    drawn = canvas.draw(Curves(worker="each", panels="method", lines=["topology"]), results)
    assert len({round(ax.get_position().y0, 3) for ax in drawn.axes if ax.get_visible()}) == 2
    assert [ax.get_title(loc="left") for ax in drawn.axes[:2]] == ["A, ring", "B, ring"] and not drawn.legends


# The look


def test_an_algorithm_has_one_colour_and_marker_however_it_is_called() -> None:
    names = [
        "RelaySGD",
        "relaysgd",
        "RelaySGD + momentum",
        "D-PSGD",
        "DP-SGD",
        "D2",
        "D\N{SUPERSCRIPT TWO}",
        "D2 + momentum",
    ]
    looks = style.looks(names)
    assert [(look.colour, look.marker) for look in looks] == [
        *[(style.VERMILLION, "o")] * 3, *[(style.BLUE, "s")] * 2, *[(style.GREEN, "^")] * 3,
    ]  # fmt: skip
    assert [look.hollow for look in looks] == [False, False, True, False, False, False, False, True]


def test_all_algorithms_look_different_and_topologies_have_line_styles_of_their_own() -> None:
    from decentral.registry import components

    names = [name for name in components("algorithms") if name != "relay_mean"]
    assert len({(look.colour, look.marker) for look in style.looks(names)}) == len(names)
    assert len({str(look.line) for look in style.looks(["RelaySGD"] * 3, ["chain", "bt", "dbt"])}) == 3


def test_two_variants_of_an_algorithm_can_be_told_apart() -> None:
    one, other = style.looks(["D-PSGD, own model", "D-PSGD, averaged model"])
    assert one.colour == other.colour == style.BLUE and one.line != other.line


def test_what_is_no_method_and_has_no_topology_is_a_grey_line() -> None:
    assert style.looks(["RelaySum", "1 / (n t)"], ["chain", ""])[1] == style.REFERENCE


def test_methods_that_are_not_known_get_colours_that_do_not_depend_on_the_others_order() -> None:
    one, other = style.looks(["mine", "yours"]), style.looks(["yours", "mine"])
    assert one == other[::-1] and one[0] != one[1]
    assert style.looks(["mine"])[0].colour not in {style.VERMILLION, style.BLUE, style.GREEN, style.BLACK}


@pytest.mark.parametrize("count", [1, 2, 5, 7, 12])
def test_no_two_lines_without_a_method_have_one_colour(count: int) -> None:
    colours = [look.colour for look in style.ordered_looks(count)]
    assert len(set(colours)) == count and all(re.fullmatch("#[0-9A-F]{6}", colour) for colour in colours)
    assert (colours[0], colours[-1]) == ("#440154", {1: "#440154", 2: "#C9B400", 5: "#C9B400"}.get(count, "#A50026"))


def test_up_to_five_ordered_lines_have_the_colours_of_the_scale_itself() -> None:
    assert [[look.colour for look in style.ordered_looks(count)] for count in (3, 5)] == [
        ["#440154", "#21918C", "#C9B400"],
        ["#440154", "#3B528B", "#21918C", "#5DC863", "#C9B400"],
    ]


def test_lines_without_a_method_go_from_dark_to_light(results: Results) -> None:
    drawn = canvas.draw(Curves(worker="worst", lines=["alpha"], only={"method": ["RelaySGD"]}), results)
    colours = [line.get_color() for line in drawn.axes[0].lines]
    assert colours == [look.colour for look in style.ordered_looks(2)] and len(set(colours)) == 2
    assert LABELS[0] == "method"
