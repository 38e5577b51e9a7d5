"""The report section of a study: unknown keys and wrong types are refused with what would work."""

from __future__ import annotations

import re
import subprocess
import sys
from typing import Any

import pytest

from decentral.errors import ConfigError
from decentral.report.spec import parse
from decentral.study import catalogue
from decentral.study.study import counted

GOOD: dict[str, Any] = {
    "caption": "Stands alone.",
    "table": {"rows": ["method"], "columns": "alpha", "format": "percent", "digits": 2},
    "figures": [
        {"name": "one", "kind": "curves", "metric": "loss", "worker": 0, "x": "epoch", "ylim": [None, 1]},
        {"name": "two", "kind": "scaling", "x": "num_workers", "spread": "none"},
    ],
    "published": {"item": "table1", "tolerance": {"relative": "5e-2"}, "because": "of this", "scales": ["paper"]},
    "claims": [{"says": "so", "kind": "order", "better": {"alpha": 1}, "worse": {"alpha": 0.1}, "by": 5}],
}


def test_a_section_becomes_typed_objects() -> None:
    spec = parse(GOOD, "mine")
    assert spec.table and spec.table.digits == 2
    assert [figure.file for figure in spec.figures] == ["one", "two"]
    assert spec.published and spec.published.tolerance.relative == 0.05
    assert spec.claims[0].says == "so"
    assert parse({}, "mine").table is parse(None, "mine").table is None


@pytest.mark.parametrize(("change", "complaint"), [
    ({"captoin": "x"}, "study mine: report has no key 'captoin'. Did you mean 'caption'?"),
    ({"claimed_by": "them"}, "report.claimed_by='them' does not fit: it should be one of paper, us."),
    ({"caption": [1]}, "study mine: report.caption=[1] does not fit: it should be text."),
    ({"table": 3}, "study mine: report.table should be keys with values, not 3."),
    ({"table": {}}, "report.table.rows is missing: it should be a list, each item text."),
    ({"table": {"rows": ["a"], "format": "procent"}}, "it should be one of percent, steps, scientific, plain."),
    ({"table": {"rows": ["a"], "digits": 1.5}}, "report.table.digits=1.5 does not fit: it should be a whole number"),
    ({"figures": {}}, "report.figures should be a list, each item keys with values."),
    ({"figures": [{"kind": "curve"}]}, "report.figures[0].kind=curve does not exist. Did you mean 'curves'?"),
    ({"figures": [{"kind": "curves", "liens": []}]}, "report.figures[0] has no key 'liens'. Did you mean 'lines'?"),
    ({"figures": [{"kind": "curves", "ylim": [1]}]}, "has a ylim that is not two numbers"),
    ({"figures": [{"kind": "scaling"}]}, "needs `x`"),
    ({"figures": [{"kind": "curves", "name": "a"}] * 2}, "two are called 'a'"),
    ({"published": {"item": "table1", "because": "x", "tolerance": {}}}, "needs one of relative, absolute and factor"),
    ({"published": {"item": "table1", "because": "x", "tolerance": {"factor": 0.5}}}, "factor=0.5 is below 1"),
    ({"claims": [{"says": "so", "kind": "odrer"}]}, "claims[0].kind=odrer does not exist. Did you mean 'order'?"),
    ({"claims": [{"says": "so", "kind": "order", "better": {"a": 1}}]}, "'so' needs both `better` and `worse`"),
    ({"claims": [{"says": "so", "kind": "steady", "across": {"a": [1]}, "within": 1}]}, "at least two of its values"),
    ({"claims": [{"says": "so", "kind": "steady", "across": {"a": [1, 2]}}]}, "either `within` or `factor`"),
    ({"claims": [{"says": "so", "kind": "close", "first": {"a": 1}, "second": {"a": 2}}]}, "`within` or `factor`"),
    ({"larger_is_better": "yes"}, "report.larger_is_better='yes' does not fit: it should be true or false."),
])  # fmt: skip
def test_what_is_wrong_is_named_with_what_would_work(change: dict, complaint: str) -> None:
    with pytest.raises(ConfigError, match=r"^study mine: report") as refused:
        parse({**GOOD, **change}, "mine")
    assert complaint in str(refused.value)


def test_checking_a_section_imports_nothing_heavy() -> None:
    code = (
        "import sys; from decentral.report.spec import parse; parse({'claims': []}, 'mine');"
        "assert not {'torch', 'pandas', 'matplotlib'} & set(sys.modules), sorted(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


@pytest.mark.parametrize("name", catalogue.names())
def test_captions_speak_of_as_many_seeds_as_the_scale_has(name: str) -> None:
    words = {"one": 1, "two": 2, "three": 3, "ten": 10}
    for scale in catalogue.scales(name):
        study = catalogue.load(name, scale)
        caption = study.described()["report"].get("caption", "")
        found = re.findall(rf"over ({'|'.join(words)}) (?:random )?(seed|draw|problem)", caption)
        assert all(words[word] == len(study.seeds) for word, _ in found), f"{scale}: {caption}"
        assert "{n " not in str(study.described())


def test_a_sentence_of_a_study_says_how_many_seeds_there_are() -> None:
    assert counted("mean over {n random problems}, as said", 1) == "mean over one random problem, as said"
    assert [counted("{n seeds}", number) for number in (3, 20)] == ["three seeds", "20 seeds"]


def test_the_three_figures_of_the_thesis_have_the_same_axes() -> None:
    figures = [
        parse(catalogue.load(f"thesis_fig5_{number}", scale).report, "x").figures[0]
        for number in (1, 2, 3)
        for scale in ("small", "paper")
    ]
    assert {(*figure.xlim, *figure.ylim) for figure in figures} == {(0, None, 75, 100)}


@pytest.mark.parametrize("study", ["relaysum_fig5", "relaysum_fig6", "relaysum_mixing"])
def test_where_points_would_pile_up_axes_are_logarithmic(study: str) -> None:
    spec = parse(catalogue.load(study, "paper").report, study)
    assert all(figure.logx and figure.logy for figure in spec.figures) and spec.repeats == ""
    assert [getattr(figure, "y", "") for figure in spec.figures] == ["1 - value" if "mixing" in study else "value"]
