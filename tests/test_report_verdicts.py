"""Verdicts: every published number and every claim has one, with the tolerance and why."""

from __future__ import annotations

import csv
from importlib import resources
from pathlib import Path
from typing import Any

import pytest

from decentral.errors import ConfigError
from decentral.published import key
from decentral.report import published
from decentral.report.make import make
from handmade import PUBLISHED, TABLE, table1, value, write


def verdicts(tmp_path: Path, report: dict, values: list | None = None, scale: str = "paper", **facts) -> dict[str, Any]:
    directory = tmp_path / "relaysum" / "mine" / scale
    make(write(directory, table1() if values is None else values, report, **facts))
    with open(directory / "verdicts.csv", newline="") as file:
        return {line["what"]: line for line in csv.DictReader(file)}


# Numbers


def test_every_published_number_has_a_verdict(tmp_path: Path) -> None:
    found = verdicts(tmp_path, {"table": TABLE, "published": PUBLISHED}, needs="a GPU")
    assert list(found) == [one.key for one in published.numbers("relaysum", "table1")]
    assert {key: line["verdict"] for key, line in found.items() if line["verdict"] != "not run"} == {
        "relaysgd|dbt|alpha=1": "met",
        "relaysgd|dbt|alpha=0.01": "not met",
        "dpsgd|ring|alpha=1": "met",
        "dpsgd|ring|alpha=0.01": "not met",
    }
    assert found["relaysgd|dbt|alpha=1"] == {
        "kind": "number", "what": "relaysgd|dbt|alpha=1", "ours": "87.2", "spread": "0.1", "published": "87.4",
        "tolerance": "0.5 percentage points", "verdict": "met",
        "why": "ours - theirs = -0.2 %; 3 runs; seeds differ by 0.3 points",
    }  # fmt: skip
    assert "1 of 3 diverged" in found["dpsgd|ring|alpha=0.01"]["why"]
    assert "lies at the edge of its grid" in found["relaysgd|dbt|alpha=0.01"]["why"]
    assert found["sgp|exponential-time-varying|alpha=1"]["why"] == "the study has not run it; it needs a GPU"


def test_at_other_scales_no_number_is_compared(tmp_path: Path) -> None:
    found = verdicts(tmp_path, {"published": PUBLISHED}, scale="small")
    assert {line["verdict"] for line in found.values()} == {"not run"}
    assert {line["why"] for line in found.values()} == {"compared at scale=paper only; this is scale=small"}


@pytest.mark.parametrize(("tolerance", "ours", "verdict"), [
    ({"relative": 0.1}, 95.7, "met"),
    ({"relative": 0.1}, 95.8, "not met"),
    ({"absolute": 1}, 86.0, "met"),
    ({"absolute": 1}, 85.9, "not met"),
    ({"factor": 2}, 43.5, "met"),
    ({"factor": 2}, 43.4, "not met"),
    ({"factor": 2}, 174, "met"),
    ({"absolute": 1, "relative": 0.1}, 95.0, "met"),
])  # fmt: skip
def test_the_widest_tolerance_counts(tmp_path: Path, tolerance: dict, ours: float, verdict: str) -> None:
    values = [value("All-reduce", "complete", 1, ours, published="allreduce|full|alpha=1")]
    found = verdicts(tmp_path, {"published": {**PUBLISHED, "tolerance": tolerance}}, values)
    assert found["allreduce|full|alpha=1"]["verdict"] == verdict, "theirs is 87.0"


def test_the_published_spread_widens_the_tolerance(tmp_path: Path) -> None:
    values = [value("D-PSGD", "complete", 1, 1300, published="dpsgd|full|ResNet-50, 8 GPUs")]
    item = {"item": "table5.1-throughput", "tolerance": {"relative": 0.01}, "because": "another GPU"}
    directory = write(tmp_path / "thesis" / "mine" / "paper", values, {"published": item})
    (line,) = [one for one in make(directory).verdicts if one.verdict != "not run"]
    assert (line.verdict, line.published, line.tolerance) == ("met", "1334.7", "1 % of it or their spread of 37.4")


@pytest.mark.parametrize(("numbers", "verdict"), [
    (["nan", "nan", 88.0], "met"),
    ([10.0, 19.9, 88.0], "met"),
    ([10.0, 88.0, 88.0], "not met"),
    (["nan", 88.0], "not met"),
    (["nan", 10.0, 88.0], "met"),
])  # fmt: skip
def test_where_they_diverge_more_than_half_of_our_runs_should_too(tmp_path: Path, numbers: list, verdict: str) -> None:
    values = [
        value("D2", "ring", 0.01, number, seed, published="d2+momentum|ring|drop=0.1",
              status="diverged" if number == "nan" else "done")
        for seed, number in enumerate(numbers)
    ]  # fmt: skip
    found = verdicts(tmp_path, {"published": {**PUBLISHED, "item": "table5-dropped-messages"}}, values)
    line = found["d2+momentum|ring|drop=0.1"]
    assert (line["verdict"], line["published"]) == (verdict, "diverges")
    assert line["tolerance"] == "more than half of the runs diverge or end below 20 %"


def test_a_number_that_stands_for_several_cells_is_met_if_the_furthest_is(tmp_path: Path) -> None:
    key = {"published": "allreduce|full|alpha=1"}
    values = [value("All-reduce", "complete", 1, 87.1, **key), value("All-reduce", "complete", 2, 88.0, **key)]
    line = verdicts(tmp_path, {"published": PUBLISHED}, values)["allreduce|full|alpha=1"]
    assert (line["verdict"], line["ours"]) == ("not met", "88")
    assert "the furthest of 2 cells: All-reduce, complete, alpha=2" in line["why"]


def test_numbers_that_the_paper_does_not_give_are_counted_apart(tmp_path: Path) -> None:
    found = verdicts(tmp_path, {"published": {**PUBLISHED, "item": "mixing-facts"}}, [])
    assert {line["kind"] for line in found.values()} == {"reference"}
    for item in ("fig3-spanning-trees", "fig6-correction", "fig9-mean-estimation"):
        assert {one.kind for one in published.numbers("relaysum", item)} == {"reference"}


def test_a_number_that_is_not_what_it_is_said_to_be_is_not_compared(tmp_path: Path) -> None:
    name = "model_averaging|full|lr=0.1 alpha=0.1 epochs=50"
    item = {"item": "tableA.1", "tolerance": {"absolute": 1}, "because": "one run each"}
    values = [value("All-reduce", "complete", 0.1, 88.9, published=name)]
    made = make(write(tmp_path / "thesis" / "mine" / "paper", values, {"published": item}))
    (line,) = [one for one in made.verdicts if one.what == name]
    assert (line.kind, line.verdict, line.ours, line.published) == ("excluded", "not compared", "", "23.2")
    assert line.why.startswith("not an accuracy: the log of a run that died in epoch 28 was misread")


def test_a_factor_of_two_is_met_by_a_rate_one_power_of_two_away(tmp_path: Path) -> None:
    names = {0.0063: "d2+momentum|ring|alpha=0.01", 0.4 / 3 * 1.5: "allreduce|full|alpha=1"}
    values = [value("D2", "ring", alpha, rate, published=name) for alpha, (rate, name) in enumerate(names.items())]
    tolerant = {**PUBLISHED, "item": "table10-learning-rates", "tolerance": {"factor": 2}}
    found = verdicts(tmp_path, {"published": tolerant}, values)
    assert {found[name]["verdict"] for name in names.values()} == {"met"}


THREE = {'{"alpha": 0.01, "method": "D-PSGD", "topology": "ring"}': 3}


def test_a_number_of_which_not_all_runs_have_ended_is_not_run(tmp_path: Path) -> None:
    values = [value("RelaySGD", "dbt", 0.01, 84.6), value("D-PSGD", "ring", 0.01, 53.9)]
    found = verdicts(tmp_path, {"published": PUBLISHED}, values, wanted=THREE)
    line = found["dpsgd|ring|alpha=0.01"]
    assert (line["verdict"], line["why"], line["ours"]) == ("not run", "1 of 3 runs", "")
    assert found["relaysgd|dbt|alpha=0.01"]["verdict"] == "met"


def test_values_of_a_cell_may_have_labels_that_the_cell_has_not(tmp_path: Path) -> None:
    wanted = {'{"method": "D-PSGD", "alpha": ""}': 5, '{"method": "D-PSGD"}': 2}
    found = verdicts(tmp_path, {"published": PUBLISHED}, [value("D-PSGD", "ring", 0.01, 53.9)], wanted=wanted)
    assert found["dpsgd|ring|alpha=0.01"]["why"] == "1 of 2 runs"


TWO = [value("RelaySGD", "dbt", 0.01, 84.6), value("D-PSGD", "ring", 0.01, 53.9)]
RELAY, GOSSIP = {"method": "RelaySGD", "alpha": 0.01}, {"method": "D-PSGD", "alpha": 0.01}


@pytest.mark.parametrize("one", [
    {"kind": "order", "better": {"method": "RelaySGD"}, "worse": {"method": "D-PSGD"}},
    {"kind": "close", "first": {"method": "RelaySGD"}, "second": {"method": "D-PSGD"}, "within": 99},
    {"kind": "steady", "cell": {"alpha": 0.01}, "across": {"method": ["RelaySGD", "D-PSGD"]}, "within": 99},
])  # fmt: skip
def test_a_claim_on_a_cell_of_which_not_all_runs_have_ended_is_not_run(tmp_path: Path, one: dict) -> None:
    values = [value("RelaySGD", "dbt", 0.01, 84.6), value("D-PSGD", "ring", 0.01, 53.9)]
    line = verdicts(tmp_path, {"claims": [{"says": "So.", **one}]}, values, scale="small", wanted=THREE)["So."]
    assert (line["verdict"], line["why"][:14]) == ("not run", "1 of 3 runs of")


def test_a_label_that_a_cell_leaves_open_is_that_of_all_its_values(tmp_path: Path) -> None:
    wanted = {'{"alpha": "", "method": "D-PSGD", "topology": "ring"}': 3}
    line = claim(tmp_path, TWO, kind="order", better=RELAY, worse=GOSSIP, wanted=wanted)
    assert (line["verdict"], line["why"][:14]) == ("not run", "1 of 3 runs of")


def test_a_damaged_run_is_still_to_come_and_neither_worst_nor_diverged(tmp_path: Path) -> None:
    damaged = value("D-PSGD", "ring", 0.01, "", seed=2, status="damaged")
    line = claim(tmp_path, [*TWO, damaged], kind="order", better=RELAY, worse=GOSSIP)
    assert (line["verdict"], line["why"][:14]) == ("not run", "1 of 2 runs of")


def test_a_key_that_is_not_published_is_remarked_upon(tmp_path: Path) -> None:
    directory = tmp_path / "relaysum" / "mine" / "paper"
    made = make(write(directory, [value("D2", "ring", 7, 1.0)], {"published": PUBLISHED}))
    assert made.remarks == ["1 of our cells have no number in table1, for example 'd2|ring|alpha=7'."]


# Claims


def claim(
    tmp_path: Path, values: list | None = None, wanted: dict[str, int] | None = None, **one: Any
) -> dict[str, str]:
    section = {"table": TABLE, "claims": [{"says": "So it is.", **one}]}
    return verdicts(tmp_path, section, values, scale="small", wanted=wanted or {})["So it is."]


@pytest.mark.parametrize(("by", "verdict"), [(30, "met"), (40, "not met")])
def test_an_order_holds_if_the_difference_is_large_enough(tmp_path: Path, by: float, verdict: str) -> None:
    line = claim(tmp_path, kind="order", better=RELAY, worse=GOSSIP, by=by)
    assert (line["kind"], line["verdict"], line["ours"]) == ("claim", verdict, "36")
    assert line["tolerance"] == f"by at least {by}"
    assert line["why"] == "86 ± 1 against 51 ± 1.4 (1 of 3 diverged): a difference of 36", "of medians: 86 and 50"
    line = claim(tmp_path, kind="order", better=RELAY, worse=GOSSIP, by=35.5)
    assert line["why"].startswith("within the noise: 86 ± 1 against 51 ± 1.4")


def test_an_order_may_be_of_numbers_of_which_smaller_is_better(tmp_path: Path) -> None:
    line = claim(tmp_path, kind="order", better=GOSSIP, worse=RELAY, larger_is_better=False, factor=1.5)
    assert (line["verdict"], line["tolerance"]) == ("met", "at least 1.5 times")
    assert (
        claim(tmp_path, kind="order", better=GOSSIP, worse=RELAY, larger_is_better=False, factor=2)["verdict"] != "met"
    )


def test_a_factor_is_weighed_with_the_noise_of_the_difference_that_it_asks_for(tmp_path: Path) -> None:
    """Twice A = 10, 12, 8 is 2 below B = 22, 23, 21 in the mean: the difference is 2, -1 and 5."""
    values = [value("D-PSGD", "ring", 0.01, number, seed) for seed, number in enumerate((10, 12, 8))]
    values += [value("RelaySGD", "dbt", 0.01, number, seed) for seed, number in enumerate((22, 23, 21))]
    line = claim(tmp_path, values, kind="order", better=GOSSIP, worse=RELAY, larger_is_better=False, factor=2)
    assert (line["verdict"], line["ours"]) == ("met", "12")
    assert line["why"].startswith("within the noise") and "standard error of 1.732 from 3 seeds" in line["why"]


def test_a_difference_within_the_spread_over_seeds_is_said_to_be(tmp_path: Path) -> None:
    values = [value("RelaySGD", "dbt", 0.01, 80 + seed, seed) for seed in (0, 2)]
    values += [value("D-PSGD", "ring", 0.01, 81.9 - seed, seed) for seed in (0, 2)]
    line = claim(tmp_path, values, kind="order", better=RELAY, worse=GOSSIP)
    assert line["verdict"] == "met"
    assert line["why"] == (
        "within the noise: 81 ± 1.4 against 80.9 ± 1.4: a difference of 0.1, with a standard error of 2 from 2 seeds"
    )
    line = claim(tmp_path, values[:1] + values[2:3], kind="order", better=RELAY, worse=GOSSIP)
    assert line["why"].endswith("; the spread over seeds is not known")


@pytest.mark.parametrize(("seeds", "noisy"), [(2, True), (3, False)])
def test_fewer_seeds_have_to_differ_by_more_of_their_standard_error(tmp_path: Path, seeds: int, noisy: bool) -> None:
    """A margin of 1.5 times its standard error: below 1.84, which two seeds ask for, above 1.32 of three."""
    gaps = {2: (0.5, 2.5), 3: (1.5 - 3**0.5, 1.5, 1.5 + 3**0.5)}[seeds]
    values = [value("RelaySGD", "dbt", 0.01, 80 + gap, seed) for seed, gap in enumerate(gaps)]
    values += [value("D-PSGD", "ring", 0.01, 80, seed) for seed in range(seeds)]
    line = claim(tmp_path, values, kind="order", better=RELAY, worse=GOSSIP)
    assert line["why"].startswith("within the noise") == noisy


def test_a_cell_that_only_diverged_is_worse_than_any_other(tmp_path: Path) -> None:
    values = [value("RelaySGD", "dbt", 0.01, 20.0), value("D-PSGD", "ring", 0.01, "nan", status="diverged")]
    assert claim(tmp_path, values, kind="order", better=RELAY, worse=GOSSIP, by=5)["verdict"] == "met"
    assert claim(tmp_path, values, kind="order", better=GOSSIP, worse=RELAY)["verdict"] == "not met"


def test_a_claim_about_what_was_not_run_is_not_run(tmp_path: Path) -> None:
    line = claim(tmp_path, kind="order", better=RELAY, worse={"method": "SGP", "alpha": 0.01})
    assert (line["verdict"], line["why"]) == ("not run", "no run of method=SGP, alpha=0.01 has ended")


def test_a_cell_whose_search_for_a_rate_goes_on_is_said_to_have_no_run_that_counts(tmp_path: Path) -> None:
    searched = {"method": "SGP", "alpha": 0.01}
    tuning = [
        value("SGP", "ring", 0.01, number, chosen=False, rate=rate, status="done" if number != "nan" else "diverged")
        for rate, number in ((0.2, 60.25), (0.1, 50.0), (0.4, "nan"))
    ]
    why = "no run of method=SGP, alpha=0.01 that counts has ended, only runs of the search for its learning rate: "
    for kind in (
        {"kind": "order", "better": RELAY, "worse": searched},
        {"kind": "close", "first": RELAY, "second": searched, "within": 1},
        {"kind": "bound", "cell": searched, "at_most": 1},
        {"kind": "steady", "cell": {"method": "SGP"}, "across": {"alpha": [0.01, 1]}, "within": 1},
    ):
        line = claim(tmp_path, [*table1(), *tuning], **kind)
        assert (line["verdict"], line["why"]) == ("not run", f"{why}0.1, 0.2, 0.4")


def test_the_report_lists_the_rates_that_were_tried_where_nothing_counts_yet(tmp_path: Path) -> None:
    tuning = [value("SGP", "ring", 0.01, number, seed, chosen=False, rate=0.2) for seed, number in ((1, 60), (2, 61))]
    tuning += [value("SGP", "ring", 0.01, "nan", chosen=False, rate=0.4, status="diverged")]
    sentence = "No run of SGP, ring, alpha=0.01 that counts has ended; rates tried so far: 0.2 (60.5), 0.4 (no value)."
    for number, others in enumerate(([], table1())):
        made = make(write(tmp_path / "relaysum" / f"mine{number}" / "small", [*others, *tuning], {"table": TABLE}))
        assert made.remarks == [sentence] and f"Note:     {sentence}" in made.summary()
        assert sentence in (made.results.directory / "table.md").read_text()
    cells = [value("SGP", "ring", alpha, 60, chosen=False) for alpha in range(1, 10)]
    made = make(write(tmp_path / "relaysum" / "many" / "small", cells, {"table": TABLE}))
    assert len(made.remarks) == 7 and made.remarks[-1] == "The same holds of 3 more cells."


@pytest.mark.parametrize(("limit", "verdict"), [
    ({"within": 1.3}, "met"), ({"within": 1.1}, "not met"), ({"factor": 1.02}, "met"), ({"factor": 1.01}, "not met"),
])  # fmt: skip
def test_steady_means_a_small_change_along_a_label(tmp_path: Path, limit: dict, verdict: str) -> None:
    line = claim(tmp_path, kind="steady", cell={"method": "RelaySGD"}, across={"alpha": [1, 0.01]}, **limit)
    assert (line["verdict"], line["ours"]) == (verdict, "1.2")
    assert line["why"].startswith(
        "within the noise: 87.2 ± 0.1 at alpha=1, 86 ± 1 at alpha=0.01: a change of 1.2, with"
    )


def test_steadier_compares_two_changes(tmp_path: Path) -> None:
    across = {"alpha": [1, 0.01]}
    first, second = {"method": "RelaySGD"}, {"method": "D-PSGD"}
    assert claim(tmp_path, kind="steadier", first=first, second=second, across=across)["verdict"] == "met"
    assert claim(tmp_path, kind="steadier", first=second, second=first, across=across)["verdict"] == "not met"


def test_a_gain_is_no_loss(tmp_path: Path) -> None:
    across = {"alpha": [1, 0.01]}
    values = [value("RelaySGD", "dbt", 1, 80.0), value("RelaySGD", "dbt", 0.01, 85.0)]
    values += [value("D-PSGD", "ring", 1, 80.0), value("D-PSGD", "ring", 0.01, 78.0)]
    first, second = {"method": "RelaySGD"}, {"method": "D-PSGD"}
    steadier = {"kind": "steadier", "first": first, "second": second, "across": across}
    assert claim(tmp_path, values, **steadier)["verdict"] == "not met"
    line = claim(tmp_path, values, **steadier, loss=True)
    assert (line["verdict"], line["ours"], line["tolerance"]) == ("met", "2", "a smaller loss")
    assert line["why"].startswith("a loss of 0 (80 at alpha=1, 85 at alpha=0.01) against 2 ")
    steady = {"kind": "steady", "cell": first, "across": across}
    assert claim(tmp_path, values, **steady, within=1)["verdict"] == "not met"
    assert claim(tmp_path, values, **steady, within=1, loss=True)["verdict"] == "met"
    assert claim(tmp_path, values, **steady, factor=1.01, loss=True, larger_is_better=False)["verdict"] == "not met"
    assert claim(tmp_path, values, **(steady | {"cell": second}), within=1, loss=True)["verdict"] == "not met"


def test_all_diverged_is_neither_steady_nor_better(tmp_path: Path) -> None:
    values = [value("RelaySGD", "dbt", alpha, "nan", status="diverged") for alpha in (1, 0.01)]
    across = {"alpha": [1, 0.01]}
    for loss in (False, True):
        one = {"kind": "steady", "cell": {"method": "RelaySGD"}, "across": across, "within": 99, "loss": loss}
        assert claim(tmp_path, values, **one)["verdict"] == "not met"
    one = {"kind": "order", "better": {"alpha": 1}, "worse": {"alpha": 0.01}, "factor": 2, "larger_is_better": False}
    assert claim(tmp_path, values, **one)["verdict"] == "not met"


@pytest.mark.parametrize(("one", "verdict"), [
    ({"kind": "order", "better": {"alpha": 1}, "worse": {"alpha": 2}, "by": 0.1}, "met"),
    ({"kind": "close", "first": {"alpha": 1}, "second": {"alpha": 2}, "within": 0.1}, "met"),
    ({"kind": "steady", "cell": {"method": "D2"}, "across": {"alpha": [1, 2]}, "within": 0.1}, "met"),
    ({"kind": "steady", "cell": {"method": "D2"}, "across": {"alpha": [1, 2]}, "within": 0.0999}, "not met"),
])  # fmt: skip
def test_rounding_does_not_decide(tmp_path: Path, one: dict, verdict: str) -> None:
    values = [value("D2", "ring", 1, 0.3), value("D2", "ring", 2, 0.2)]
    assert 0.3 - 0.2 < 0.1 < 1.1 - 1.0
    assert claim(tmp_path, values, **one)["verdict"] == verdict
    values = [value("D2", "ring", 1, 1.1), value("D2", "ring", 2, 1.0)]
    assert claim(tmp_path, values, **one)["verdict"] == verdict


@pytest.mark.parametrize(
    ("limit", "verdict"), [({"within": 36}, "met"), ({"within": 34}, "not met"), ({"factor": 2}, "met")]
)
def test_close_means_a_small_difference_of_two_cells(tmp_path: Path, limit: dict, verdict: str) -> None:
    assert claim(tmp_path, kind="close", first=GOSSIP, second=RELAY, **limit)["verdict"] == verdict


@pytest.mark.parametrize(("limit", "verdict"), [
    ({"at_most": 86}, "met"), ({"at_most": 85.9}, "not met"),
    ({"at_least": 86}, "met"), ({"at_least": 86.1}, "not met"),
])  # fmt: skip
def test_a_bound_is_a_limit_for_one_cell(tmp_path: Path, limit: dict, verdict: str) -> None:
    line = claim(tmp_path, kind="bound", cell=RELAY, **limit)
    assert (line["verdict"], line["ours"], line["why"]) == (
        verdict, "86", "within the noise: 86 ± 1, with a standard error of 0.5774 from 3 seeds"
    )  # fmt: skip
    ((word, number),) = limit.items()
    assert line["tolerance"] == f"{word.replace('_', ' ')} {number:g}"


def test_a_cell_that_only_diverged_keeps_no_bound(tmp_path: Path) -> None:
    values = [value("D-PSGD", "ring", 0.01, "nan", status="diverged")]
    for limit in ({"at_most": 1}, {"at_least": 1}):
        for larger in (True, False):
            line = claim(tmp_path, values, kind="bound", cell=GOSSIP, larger_is_better=larger, **limit)
            assert line["verdict"] == "not met"


@pytest.mark.parametrize("limits", [{}, {"at_most": 1, "at_least": 0}])
def test_a_bound_needs_one_limit(tmp_path: Path, limits: dict) -> None:
    with pytest.raises(ConfigError, match="needs either `at_most` or `at_least`"):
        claim(tmp_path, kind="bound", cell=RELAY, **limits)


@pytest.mark.parametrize(("cell", "complaint"), [
    ({"metod": "D2"}, "the claim 'So it is.' names a label 'metod'. Did you mean 'method'?"),
    ({"method": "D-PSGD"}, "means both method=D-PSGD, topology=ring, alpha=1, metric="),
])  # fmt: skip
def test_a_claim_that_names_no_cell_or_several_is_refused(tmp_path: Path, cell: dict, complaint: str) -> None:
    with pytest.raises(ConfigError, match="study mine: ") as refused:
        claim(tmp_path, kind="order", better=RELAY, worse=cell)
    assert complaint in str(refused.value)


TIMES = [
    value("RelaySGD", "dbt", 0.01, 20, metric="seconds to test accuracy 50 %"),
    value("D-PSGD", "ring", 0.01, 30, metric="seconds to test accuracy 50 %"),
    value("D-PSGD", "ring", 0.01, 51, metric="test accuracy (%)"),
]


@pytest.mark.parametrize("metric", ["seconds to *", "seconds to test accuracy 50 %"])
def test_a_claim_names_its_metric_or_a_pattern_of_it(tmp_path: Path, metric: str) -> None:
    cells = {"better": {**RELAY, "metric": metric}, "worse": {**GOSSIP, "metric": metric}}
    line = claim(tmp_path, TIMES, kind="order", larger_is_better=False, **cells)
    assert (line["verdict"], line["ours"]) == ("met", "10")


def test_a_pattern_that_fits_several_metrics_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"metric=seconds to test accuracy 50 % and .*, metric=test accuracy \(%\): "):
        claim(tmp_path, TIMES, kind="bound", cell={**GOSSIP, "metric": "*"}, at_least=1)


# The published numbers


def test_every_item_has_numbers_with_keys_of_their_own() -> None:
    for paper in published.papers():
        for item in published.items(paper):
            keys = [one.key for one in published.numbers(paper, item)]
            assert keys and len(keys) == len(set(keys)), item


def test_the_figures_of_the_thesis_are_the_last_epoch_of_its_curves() -> None:
    found = {one.key: one.value for one in published.numbers("thesis", "fig5.2-epoch-200")}
    assert len(found) == 9
    assert found["relaysgd|dbt|alpha=1"] == 89.44 and found["dpsgd|full|alpha=0.01"] == 78.64
    text = resources.files("decentral.published").joinpath("thesis_curves.csv").read_text()
    curves = {
        round(100 * float(row["test_accuracy"]), 2)
        for row in csv.DictReader(text.splitlines())
        if row["epoch"] == "200"
    }
    for item in ("fig5.1-epoch-200", "fig5.2-epoch-200", "fig5.3-epoch-200"):
        assert {one.value for one in published.numbers("thesis", item)} <= curves


def test_a_paper_has_a_short_name_and_a_title() -> None:
    assert published.paper("thesis").short == "Bohl's thesis"
    assert published.paper("own") == published.Paper("own", "own")


def test_a_key_is_a_line_and_a_setting_and_nothing_without_a_line() -> None:
    assert key("relaysgd|dbt", "workers={n} alpha={alpha:g}", n=16, alpha=0.10) == "relaysgd|dbt|workers=16 alpha=0.1"
    assert key("", "alpha={alpha:g}", alpha=1) == ""


def test_unknown_papers_and_items_are_refused() -> None:
    with pytest.raises(ConfigError, match="Did you mean 'table1'"):
        published.numbers("relaysum", "tabel1")
    with pytest.raises(ConfigError, match="no published numbers of paper=relaysun"):
        published.numbers("relaysun", "table1")


def test_a_reason_stands_at_the_claim_that_is_not_met(tmp_path: Path) -> None:
    """And where it is met, or there is no such claim, the report says that the reason is idle."""
    sides = {"too low": "at_least", "low enough": "at_most"}
    claims = [{"says": says, "kind": "bound", "cell": RELAY, limit: 99} for says, limit in sides.items()]
    directory = write(tmp_path / "relaysum" / "mine" / "small", table1(), {"claims": claims})
    lines = {"too low": "The networks are larger.", "low enough": "Nobody needs it.", "unheard of": "Nor this."}
    (directory / "reasons.yaml").write_text("".join(f"{says}: {reason}\n" for says, reason in lines.items()))
    made = make(directory)
    why = {one.what: one.why for one in made.verdicts}
    assert why["too low"].endswith(". The networks are larger.") and "Nobody" not in why["low enough"]
    assert ["low enough" in one or "unheard of" in one for one in made.remarks] == [True, True]


@pytest.mark.parametrize("text", ["- a list", "a: 5", "a: ["])
def test_reasons_that_are_none_are_refused(tmp_path: Path, text: str) -> None:
    directory = write(
        tmp_path / "relaysum" / "mine" / "small",
        table1(),
        {"claims": [{"says": "So.", "kind": "bound", "cell": RELAY, "at_least": 99}]},
    )
    (directory / "reasons.yaml").write_text(text)
    with pytest.raises(ConfigError, match=r"reasons\.yaml"):
        make(directory)


def test_at_scale_smoke_no_claim_is_judged(tmp_path: Path) -> None:
    claim = {"says": "So.", "kind": "close", "first": {"alpha": "1"}, "second": {"alpha": "1"}, "within": 100}
    line = verdicts(tmp_path, {"claims": [claim]}, table1(), scale="smoke")["So."]
    assert line["verdict"] == "not run" and "only shows that the study works" in line["why"]


def test_a_study_of_some_cells_is_held_against_their_numbers_alone() -> None:
    keys = ["relaysgd+momentum|dbt|alpha=0.01", "qg-dpsgd|ring|alpha=0.01"]
    assert [one.key for one in published.numbers("relaysum", "table1", keys)] == keys
    with pytest.raises(ConfigError, match=r"no number qg-dpsgd\|ring\|alpha=0\.02"):
        published.numbers("relaysum", "table1", ["qg-dpsgd|ring|alpha=0.02"])


def test_seeds_are_paired_since_they_give_all_methods_the_same_data(tmp_path: Path) -> None:
    values = [value("RelaySGD", "dbt", 0.01, number, seed) for seed, number in enumerate((60.0, 66.0, 72.5))]
    values += [value("D-PSGD", "ring", 0.01, number, seed) for seed, number in enumerate((58.0, 64.5, 70.0))]
    line = claim(tmp_path, values, kind="order", better=RELAY, worse=GOSSIP)
    assert line["why"] == "66.17 ± 6.3 against 64.17 ± 6: a difference of 2" and line["spread"] == "0.288675"
    others = [one | {"seed": one["seed"] + 7} if one["method"] == "D-PSGD" else one for one in values]
    assert claim(tmp_path, others, kind="order", better=RELAY, worse=GOSSIP)["why"].startswith("within the noise: ")


def test_who_never_got_to_the_target_did_not_get_there_sooner(tmp_path: Path) -> None:
    """The mean of the others alone would have it first."""
    metric = {"metric": "seconds to test accuracy 50 %"}

    def cells(one: str, topology: str, *seconds: float | str) -> list:
        return [
            value(one, topology, 0.01, number, seed, **metric, status="not reached" if number == "inf" else "done")
            for seed, number in enumerate(seconds)
        ]

    order = {"kind": "order", "larger_is_better": False, "better": RELAY | metric, "worse": GOSSIP | metric}
    line = claim(tmp_path, [*cells("RelaySGD", "dbt", 165, "inf"), *cells("D-PSGD", "ring", 190, 380)], **order)
    assert (line["verdict"], line["why"]) == ("not met", "165 (1 of 2 never) against 285 ± 1.3e+02")
    line = claim(tmp_path, [*cells("RelaySGD", "dbt", 165, 170), *cells("D-PSGD", "ring", "inf", "inf")], **order)
    assert (line["verdict"], line["why"]) == ("met", "167.5 ± 3.5 against never")


def test_closeness_that_may_be_chance_is_said_to_be(tmp_path: Path) -> None:
    values = [value("RelaySGD", "dbt", 0.01, number, seed) for seed, number in enumerate((30.0, 50.0))]
    values += [value("D-PSGD", "ring", 0.01, number, seed) for seed, number in enumerate((48.0, 33.0))]
    line = claim(tmp_path, values, kind="close", first=RELAY, second=GOSSIP, within=1)
    assert line["verdict"] == "met" and line["why"].startswith("within the noise: 40 ± 14 against 40.5 ± 11")
