"""Figures of studies: files, what is drawn, and the same look for an algorithm everywhere."""

from __future__ import annotations

import itertools
import math
import re
import sys
from pathlib import Path
from typing import Any

import pytest

from decentral.cluster.spans import Span
from decentral.errors import ConfigError
from decentral.report import style
from decentral.report.figures import canvas, words
from decentral.report.figures.curves import Curves
from decentral.report.figures.output import Output, output
from decentral.report.figures.scaling import Scaling
from decentral.report.make import make
from decentral.report.results import Results, read
from decentral.report.timeline_figure import shown_until_s
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


def test_each_figure_is_a_png_and_an_svg_whose_text_is_text(results: Results, monkeypatch) -> None:
    monkeypatch.delitem(sys.modules, "matplotlib.pyplot", raising=False)
    made = make(results.directory)
    assert sorted(path.name for path in made.files if path.suffix in (".png", ".svg")) == [
        "alphas.png", "alphas.svg", "course.png", "course.svg",
    ]  # fmt: skip
    assert (results.directory / "course.png").read_bytes().startswith(b"\x89PNG")
    svg = (results.directory / "course.svg").read_text()
    for text in ("Heterogeneous data", "RelaySGD, double binary trees", "D-PSGD, ring", "test accuracy (%)", "steps"):
        assert re.search(rf">[^<]*{re.escape(text)}[^<]*</", svg), text
    assert "matplotlib.pyplot" not in sys.modules


@pytest.mark.parametrize("name", [r"$\frac{", "a$b$ c_x", "$$", r"\$5", "$x^{2}$"])
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


def test_the_numbers_of_a_logarithmic_axis_are_powers(results: Results) -> None:
    make(results.directory)
    assert not re.search(r"<text[^>]*>[^<]*mathdefault", (results.directory / "alphas.svg").read_text())


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
    assert "mean of 3 seeds, where one has no value: median" in words.center(figure, found, [line])


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
    below, ticks = drawn.legends, [ax.get_tightbbox() for ax in drawn.axes]
    assert len(below) == 2 and not below[0].get_window_extent().overlaps(below[1].get_window_extent())
    assert all(not legend.get_window_extent().overlaps(box) for legend in below for box in ticks)


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


# What lines, bands and rings are


def said(drawn: Any) -> list[str]:
    """What the legends say."""
    return [text.get_text() for legend in drawn.legends for text in legend.get_texts()]


def subtitle(drawn: Any) -> str:
    return drawn.texts[1].get_text()


@pytest.mark.parametrize(("spread", "band"), [
    ("std", "band: \N{PLUS-MINUS SIGN} 1 standard deviation of 2 seeds"),
    ("range", "band: lowest to highest of 2 seeds"),
    ("confidence", "band: 90 % confidence interval of the mean of 2 seeds"),
])  # fmt: skip
def test_the_legend_says_what_a_band_is_and_of_how_many_seeds(results: Results, spread: Any, band: str) -> None:
    figure = Curves(worker="worst", panels="alpha", lines=["method"], spread=spread)
    drawn = canvas.draw(figure, results)
    assert said(drawn) == ["RelaySGD", "D-PSGD", band]
    assert subtitle(drawn).endswith("mean of 2 seeds")


def test_no_band_no_word_of_it(results: Results) -> None:
    drawn = canvas.draw(Curves(worker="worst", lines=["method"], center="median", only={"alpha": [1]}), results)
    assert said(drawn) == ["RelaySGD", "D-PSGD"] and subtitle(drawn).endswith("median of 2 seeds")


def test_seeds_are_counted_where_they_are_and_not_where_they_should_be(tmp_path: Path) -> None:
    lines = courses("RelaySGD", "dbt", 1, 90) + [row for row in courses("D2", "ring", 1, 80) if row[5] == 1]
    results = read(write(tmp_path / "a" / "b" / "small", table1(), {}, lines))
    drawn = canvas.draw(Curves(worker="worst", lines=["method"], spread="range"), results)
    assert subtitle(drawn).endswith("mean of 1 to 2 seeds")
    assert said(drawn)[-1] == "band: lowest to highest of 2 seeds"


def test_a_single_seed_is_called_that_in_the_picture_and_in_its_caption(tmp_path: Path) -> None:
    lines = [row for row in courses("RelaySGD", "dbt", 1, 90) + courses("D2", "ring", 1, 80) if row[5] == 1]
    results = read(write(tmp_path / "a" / "b" / "small", table1(), {}, lines))
    figure = Curves(worker="worst", lines=["method"], spread="range")
    assert subtitle(canvas.draw(figure, results)).endswith("a single seed")
    assert said(canvas.draw(figure, results, output=Output(title=False)))[-1] == "a single seed"
    assert words.caption(figure, results) == "A single seed."


def test_what_is_not_told_apart_by_seeds_is_called_by_its_label_or_as_the_figure_says(tmp_path: Path) -> None:
    labels, curves = ["method", "root"], [["RelaySGD", root, "loss", "", 1, 0, 0, 1.0 + root] for root in range(3)]
    values = [{"method": "RelaySGD", "root": 0, "metric": "loss", "value": 1, "seed": 1, "chosen": True}]
    results = read(write(tmp_path / "a" / "b" / "small", values, {}, curves, labels=labels))
    figure = Curves(lines=["method"], spread="range", center="median")
    assert (
        words.caption(figure, results) == "Line: median of 3 roots, a single seed; band: lowest to highest of 3 roots."
    )
    figure.among = "spanning tree"
    assert subtitle(canvas.draw(figure, results)).endswith("median of 3 spanning trees, a single seed")


def test_what_is_computed_without_anything_random_has_no_seed(results: Results, monkeypatch) -> None:
    monkeypatch.setattr(results.spec, "repeats", "")
    one = Results(results.directory, results.facts, results.values[results.values["seed"] == 1])
    monkeypatch.setattr(type(one), "spec", results.spec)
    assert words.caption(Scaling(x="alpha", lines=["method"]), one) == "Rings: the published numbers."


def test_a_band_that_a_logarithmic_axis_cuts_says_so(tmp_path: Path) -> None:
    curves = [["D2", "ring", 1, "loss", "", seed, step, step, 10.0**-seed] for seed in (1, 6) for step in (0, 10)]
    results = read(write(tmp_path / "a" / "b" / "small", [value("D2", "ring", 1, 1.0)], {}, curves))
    drawn = canvas.draw(Curves(lines=["method"], spread="std", logy=True), results)
    assert said(drawn)[-1] == "band: \N{PLUS-MINUS SIGN} 1 standard deviation of 2 seeds, not below the lowest"


def test_published_numbers_are_rings_around_ours_with_an_entry_of_their_own(results: Results) -> None:
    drawn = canvas.draw(Scaling(x="alpha", lines=["method"], logx=True), results)
    ours = [line for line in drawn.axes[0].lines if line.get_linestyle() != "None"]
    rings = [line for line in drawn.axes[0].lines if line.get_linestyle() == "None"]
    assert [ring.get_markeredgecolor() for ring in rings] == [line.get_color() for line in ours[:2]]
    for ring in rings:
        assert ring.get_markerfacecolor() == "none" and ring.get_zorder() > max(line.get_zorder() for line in ours)
        inner = ring.get_markersize() - ring.get_markeredgewidth()
        assert inner > 1.3 * max(line.get_markersize() for line in ours)
    assert said(drawn)[-1] == "published"


def test_an_eigenvalue_near_1_can_be_drawn_as_what_is_missing_to_1_like_the_published_one(results: Results) -> None:
    usual, gap = Scaling(x="alpha", lines=["method"]), Scaling(x="alpha", lines=["method"], y="1 - value")
    for one, other in zip(usual.data(results), gap.data(results), strict=True):
        assert other.y == pytest.approx([1 - y for y in one.y])
    for one, other in zip(usual.published(results), gap.published(results), strict=True):
        assert other.y == pytest.approx([1 - y for y in one.y])


def test_many_places_on_a_logarithmic_axis_are_marked_by_powers_of_two(tmp_path: Path) -> None:
    values = [value("D2", "ring", n, n) for n in (2, 4, 5, 8, 10, 16, 20, 30, 32, 40, 64, 128)]
    results = read(write(tmp_path / "a" / "b" / "small", values, {}))
    drawn = canvas.draw(Scaling(x="alpha", lines=["method"], logx=True, logy=True), results)
    drawn.canvas.draw()
    assert [label.get_text() for label in drawn.axes[0].get_xticklabels()] == ["2", "4", "8", "16", "32", "64", "128"]
    assert {"5", "10", "20", "50"} <= {label.get_text() for label in drawn.axes[0].get_yticklabels()}


def test_a_line_that_others_cover_shows_on_both_sides_of_them_there_and_only_there(tmp_path: Path) -> None:
    def line(method: str, last: float) -> list[list[Any]]:
        return [[method, "ring", 1, "loss", "", 1, x, x, y] for x, y in ((0, 1.0), (10, 2.0), (20, 3.0), (30, last))]

    results = read(write(tmp_path / "a" / "b" / "small", table1(), {}, line("D2", 4.0) + line("RelaySGD", 9.0)))
    (ax,) = canvas.draw(Curves(lines=["method"]), results).axes
    assert [one.get_ydata().tolist() for one in ax.lines] == [[1, 2, 3, 4], [1, 2, 3, 9]]
    (below,) = ax.collections
    assert [segment.tolist() for segment in below.get_segments()] == [[[0, 1], [10, 2]], [[10, 2], [20, 3]]]
    assert min(below.get_linewidths()) > 1.5 * ax.lines[0].get_linewidth() and below.get_zorder() < 3


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


def test_pdf_has_embedded_truetype_fonts_no_date_and_the_same_bytes_again(results: Results) -> None:
    made = make(results.directory, output({"figures.format": "[pdf,svg]"}))
    assert sorted(path.name for path in made.figures) == ["alphas.pdf", "course.pdf"]
    assert {path.suffix for path in made.files if "course" in path.name} == {".pdf", ".svg"}
    first = (results.directory / "course.pdf").read_bytes()
    assert first.startswith(b"%PDF") and b"/FontFile2" in first and b"/Type3" not in first
    assert not any(word in first for word in (b"CreationDate", b"/Creator", b"/Producer"))
    make(results.directory, output({"figures.format": "pdf"}))
    assert (results.directory / "course.pdf").read_bytes() == first


@pytest.mark.parametrize(("settings", "complaint"), [
    ({"figures.title": "no"}, "figures.title=no is neither true nor false."),
    ({"figures.width": "colum"}, "figures.width=colum is no width: it should be screen, column (3.25 inches) or page "
     "(6.75 inches), or inches from 2 to 20."),
    ({"figures.width": "80"}, "figures.width=80 is no width: "),
    ({"figures.width": "nan"}, "figures.width=nan is no width: "),
    ({"figures.format": "[png,pfd]"}, "figures.format=[png,pfd] has 'pfd', which is no format. Did you mean 'pdf'?"),
    ({"figures.format": "[png"}, "figures.format=[png has one bracket only: it should be a list such as"),
    ({"figures.format": "[]"}, "figures.format=[] names no format: it should be a list such as [png,svg,pdf]."),
])  # fmt: skip
def test_an_output_that_does_not_exist_is_refused_in_a_sentence(settings: dict[str, str], complaint: str) -> None:
    with pytest.raises(ConfigError) as refused:
        output(settings)
    assert str(refused.value).startswith(complaint)


# The look


def test_topologies_of_one_algorithm_have_colours_markers_and_dashes_of_their_own() -> None:
    found = style.looks(["RelaySGD"] * 4, ["chain", "bt", "dbt", "star"])
    assert len({look.colour for look in found}) == len({look.marker for look in found}) == 4
    assert len({str(look.line) for look in found}) == 4
    variant = style.looks(["RelaySGD"] * 2 + ["RelaySGD, counts from 0"], ["chain", "dbt", "dbt"])[2]
    assert variant == style.Look(style.VERMILLION, "o", "-.", hollow=True)


def test_on_one_topology_all_lines_are_solid() -> None:
    assert [look.line for look in style.looks(["RelaySGD", "D-PSGD"], ["star", "star"])] == ["-", "-"]


def test_of_one_unknown_method_no_two_topologies_have_the_same_dashes() -> None:
    found = style.looks(["eigenvalue"] * 3 + ["RelaySGD"], ["ring", "bt", "chain", "star"])
    assert len({str(look.line) for look in found[:3]}) == 3


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
    assert one.colour == other.colour == style.BLUE and one.line != other.line and one.marker != other.marker


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


@pytest.mark.parametrize(("steps", "until"), [(6, 7.0), (12, 13.0), (30, 1.04 * 12)])
def test_a_short_timeline_is_drawn_to_its_end(steps: int, until: float) -> None:
    spans = [Span(i, "compute", float(t), t + 1.0) for i in range(3) for t in range(steps)]
    spans.append(Span(0, "exchange", float(steps), steps + 1.0))
    assert shown_until_s(spans, [0, 1, 2]) == pytest.approx(until)
