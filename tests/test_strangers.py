"""Results from other people are data: reading them runs no code, and writes or deletes nothing outside their folder."""

from __future__ import annotations

import gzip
import math
import os
import shutil
import sys
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path

import numpy as np
import pytest
from torch import nn

import decentral
from decentral.cli import study as study_command
from decentral.config.composition import compose
from decentral.config.parsing import read, read_yaml
from decentral.errors import ConfigError
from decentral.report import series, summary
from decentral.report.make import make
from decentral.report.make import report_all as make_all
from decentral.report.results import read as read_results
from decentral.script.loading import runs
from decentral.store import RunStore, Status, checkpoints
from decentral.store.files import read_json, write_json, write_text
from decentral.store.metrics import read_lines
from decentral.terminal.console import report_error, say, warn
from handmade import value, write


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The directory of a small run that is done."""
    folder = tmp_path_factory.mktemp("finished")
    settings = {"num_workers": 2, "topology": "ring", "steps": 2, "batch_size": 8, "progress": False, "device": "cpu"}
    return decentral.train("mlp", "digits", results_dir=folder, **settings).directory


@pytest.fixture
def run(finished: Path, tmp_path: Path) -> Path:
    """A copy of it, which somebody else may have written."""
    return shutil.copytree(finished, tmp_path / "theirs" / "runs" / finished.name)


@pytest.fixture
def canary(tmp_path: Path) -> Path:
    """A file of the user's own, outside everything that is read; nothing may change it."""
    (tmp_path / "home").mkdir()
    (tmp_path / "home" / "thesis.png").write_text("mine")
    return tmp_path / "home" / "thesis.png"


def unchanged(canary: Path) -> None:
    assert {path.name: path.read_text() for path in canary.parent.iterdir()} == {"thesis.png": "mine"}


def with_config(run: Path, **parts: object) -> Path:
    """The run, where these parts of its configuration are others."""
    import yaml

    text = (run / "config.yaml").read_text()
    head, values = text.split("\n", 1)
    write_text(run / "config.yaml", f"{head}\n{yaml.safe_dump(yaml.safe_load(values) | parts, sort_keys=False)}")
    return run


# Code


EVIL = """
from pathlib import Path
import torch
Path({canary!r}).write_text("imported")
class Net(torch.nn.Module):
    def __new__(cls, *_, **__): return torch.nn.Linear(64, 10)
def make(**_): Path({canary!r}).write_text("called")
"""


@pytest.fixture
def evil(canary: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A module beside the results, in the current folder, that leaves a mark once it is imported."""
    name = f"evil_{abs(hash(str(tmp_path)))}"
    (tmp_path / f"{name}.py").write_text(EVIL.format(canary=str(canary)))
    monkeypatch.chdir(tmp_path)
    return name


FOREIGN: dict[str, Callable[[str, Path], dict[str, object]]] = {
    "a function of the library": lambda _, c: {"model": {"name": "subprocess:getoutput", "cmd": f"touch {c.parent}/x"}},
    "a model in the current folder": lambda evil, _: {"model": {"name": f"{evil}:Net"}},
    "data in the current folder": lambda evil, _: {"data": {"name": f"{evil}:make"}},
    "a module that does not exist": lambda *_: {"model": {"name": "antigravity_:x"}},
    "an attribute of an attribute": lambda *_: {"model": {"name": "os.path:os"}},
    "a method": lambda evil, _: {"algo": {"name": f"{evil}:Net"}},
    "a task": lambda evil, _: {"task": {"name": f"{evil}:Net"}},
    "an environment's module": lambda evil, _: {"env": {"name": "gymnasium", "id": f"{evil}:E"}},
}


@pytest.mark.parametrize("what", FOREIGN)
def test_code_that_a_stored_run_names_is_not_imported(what: str, run: Path, canary: Path, evil: str) -> None:
    values = FOREIGN[what](evil, canary)
    with_config(run, **values)
    refused = pytest.raises(ConfigError, match=r"=.*:.* is code named by a stored file.*trust=True")
    with nullcontext() if {"env", "algo"} & set(values) else refused:  # a model is loaded without them
        decentral.load(run)
    assert list(runs(run.parents[1]).status) == ["done"]
    assert series.describe(run) and summary.overview(run)
    with pytest.raises(SystemExit):
        words = ["bluefog_fig5", "scale=smoke", "--plan", f"results_dir={run.parents[1]}", "progress=false"]
        study_command.main(words)
    unchanged(canary)
    assert evil not in sys.modules


def test_code_of_a_run_is_imported_if_it_is_trusted_or_was_chosen_here(run: Path, canary: Path, evil: str) -> None:
    with_config(run, model={"name": f"{evil}:Net"})
    with pytest.raises(ConfigError, match="cannot take images"):  # it was built
        decentral.load(run, trust=True)
    assert canary.read_text() == "imported"
    assert read(run / "config.yaml").model.name == f"{evil}:Net"  # it has been chosen now


def test_a_module_of_the_user_takes_the_place_of_what_the_run_names(run: Path, canary: Path, evil: str) -> None:
    with_config(run, model={"name": f"{evil}:Net"})
    with pytest.raises(ConfigError, match="model= is not what"):
        decentral.load(run, model=nn.Linear(3, 3))
    unchanged(canary)


# Files of any shape


BOMB = "a: &a [x, x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"{b}: &{b} [{', '.join([f'*{a}'] * 10)}]\n" for a, b in zip("abcdefgh", "bcdefghi", strict=True)
)
YAML = {
    "an alias bomb": BOMB,
    "a list in itself": "&a [*a]",
    "deep": "[" * 20_000,
    "huge": "a: " + "x" * 2_000_000,
    "python": "a: !!python/object/apply:os.system [touch x]",
    "a number of 5000 digits": "a: " + "9" * 5000,
    "not UTF-8": b"\xff\xfe\x00",
}


@pytest.mark.parametrize("what", YAML)
def test_a_configuration_that_is_none_is_refused_at_once(what: str, run: Path) -> None:
    text = YAML[what]
    (run / "config.yaml").write_bytes(text if isinstance(text, bytes) else text.encode())
    for reads in (read_yaml, read):
        with pytest.raises(ConfigError, match=r"config\.yaml (is|has)"):
            reads(run / "config.yaml")
    with pytest.raises(ConfigError):
        decentral.load(run)
    assert list(runs(run.parents[1]).status) == ["unreadable"]


@pytest.mark.parametrize(
    "values", [[1], "x", {}, {"model": 3}, {"model": {"name": ["x"]}}, {"task": {"name": {}}}, {"own": 3}, {"seed": []}]
)
def test_a_configuration_of_another_shape_is_refused(values: object, run: Path) -> None:
    if isinstance(values, dict) and values:
        with_config(run, **values)
    else:
        (run / "config.yaml").write_text(str(values))
    with pytest.raises(ConfigError):
        read(run / "config.yaml")
    decentral.runs(run.parents[1])


def test_what_a_stored_configuration_interpolates_stays_text(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SECRET", "password")
    with_config(run, results_dir="${oc.env:SECRET}", run_dir="${seed}")
    config = read(run / "config.yaml")
    assert (config.results_dir, config.run_dir) == ("${oc.env:SECRET}", "${seed}")
    assert decentral.load(run).settings["results_dir"] == "${oc.env:SECRET}"


def test_json_that_is_deep_or_a_pipe_is_none(tmp_path: Path) -> None:
    for name, text in (("deep", "[" * 100_000), ("deep object", '{"a":' * 100_000), ("digits", '{"a": ' + "9" * 5000)):
        (tmp_path / name).write_text(text + "\n")
        assert read_json(tmp_path / name) is None
        with pytest.raises(ConfigError, match="is damaged"):
            read_lines(tmp_path / name)
    os.mkfifo(tmp_path / "pipe")
    assert read_json(tmp_path / "pipe") is None
    with pytest.raises(ConfigError, match="not a regular file"):
        read_lines(tmp_path / "pipe")


def test_arrays_and_checkpoints_are_not_unpickled(tmp_path: Path, canary: Path) -> None:
    import torch

    class Payload:
        def __reduce__(self) -> object:
            return Path.write_text, (canary, "unpickled")

    (tmp_path / "5").mkdir()
    torch.save({"x": Payload()}, tmp_path / "5" / "rank0.pt")
    with pytest.raises(Exception, match=r"(?i)weights.only"):
        checkpoints.load_part(checkpoints.Checkpoint(5, tmp_path / "5", ("rank0",), {}), "rank0")
    np.savez(tmp_path / "graph.npz", weights=np.array([Payload()], dtype=object))
    with pytest.raises(ConfigError):
        compose(["topology=file", f"topology.path={tmp_path}/graph.npz", "num_workers=2"]).rounds()
    unchanged(canary)


@pytest.mark.parametrize("content", ["a bomb", "cut", "noise", "another kind of block"])
def test_packed_curves_do_not_become_enormous(content: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("decentral.store.files._MOST_BYTES", 1 << 16)
    packed = gzip.compress(b"x" * (1 << 20))
    kinds = {
        "a bomb": packed,
        "cut": packed[:50],
        "noise": b"\x93" * 500,
        "another kind of block": packed[:12] + b"\7" * 99,
    }
    directory = study(tmp_path)
    (directory / "curves.csv.gz").write_bytes(kinds[content])
    with pytest.raises(ConfigError, match=r"curves\.csv\.gz (has more than 65,536 bytes|cannot be read)"):
        _ = read_results(directory).curves


# Links


LINKS = (
    "status.json",
    "metrics.jsonl",
    "run.lock",
    "checkpoints",
    "checkpoints/5",
    "before",
    "models.safetensors",
    "any",
)


@pytest.mark.parametrize("name", LINKS)
def test_a_run_does_not_write_or_delete_through_links(name: str, tmp_path: Path, canary: Path) -> None:
    path = tmp_path / "run"
    with RunStore.open(path, "aaa", "x: 1\n") as store:
        store.set_status(Status.done)
    link = path / name
    link.parent.mkdir(exist_ok=True)
    link.unlink(missing_ok=True)
    folder = name in ("checkpoints", "checkpoints/5", "before", "tensorboard")
    link.symlink_to(canary.parent if folder else canary)
    for opens in (lambda: RunStore.open(path, "aaa", "x: 1\n"), lambda: RunStore.forget(path, "aaa")):
        with pytest.raises(ConfigError, match=r"is a link|is not a run directory"):
            opens()
    unchanged(canary)


def test_no_link_waits_under_the_name_of_a_temporary_file(tmp_path: Path, canary: Path) -> None:
    for name in ("status.json", ".status.json.tmp", "status.json.tmp", ".learning_curves.tmp", ".trace.npz.tmp"):
        (tmp_path / name).symlink_to(canary)
    write_text(tmp_path / "status.json", "{}")
    assert (tmp_path / "status.json").read_text() == "{}"
    assert not (tmp_path / "status.json").is_symlink()
    unchanged(canary)


# Studies


NAMES = ("../../../home/thesis", "/home/thesis", "..", ".hidden", "a\0b", "x" * 300, "", "..\\x")
REPORT = {"figures": [{"name": "course", "kind": "curves", "lines": ["method"]}], "table": {"rows": ["method"]}}
HOSTILE = "<script>alert(1)</script> [x](javascript:alert(1)) ![y](http://evil/z.png)\n\n# Met `*` | \x1b[2J[red]"


def named(name: object, kind: str) -> dict[str, object]:
    entry = {"kind": "curves", "lines": ["method"]} if kind == "figures" else {"kind": "to_target"}
    return {**REPORT, kind: [{"name": name, **entry}]}


def study(tmp_path: Path, report: dict[str, object] = REPORT, **facts: object) -> Path:
    """A study that somebody else may have written; the figures have no data, so that files of theirs are deleted."""
    directory = tmp_path / "theirs" / "mine" / "strange" / "small"
    write(directory, [value("D-PSGD", "ring", 0.1, math.nan)], report)
    write_json(directory / "study.json", {**(read_json(directory / "study.json") or {}), **facts})
    return directory


@pytest.mark.parametrize("kind", ["figures", "listings"])
@pytest.mark.parametrize("name", NAMES)
def test_names_of_figures_and_listings_are_plain_names_of_files(
    kind: str, name: object, tmp_path: Path, canary: Path
) -> None:
    directory = study(tmp_path, named(name, kind))
    with pytest.raises(ConfigError, match=rf"{kind}.*is not a plain file name"):
        make(directory)
    with pytest.raises(ConfigError, match=r"plain file name"):
        make_all(tmp_path / "theirs", ["strange"])
    unchanged(canary)


@pytest.mark.parametrize(
    ("key", "name"), [("paper", "../../home"), ("study", "/home"), ("scale", ".."), ("study", "a\nb")]
)
def test_a_study_names_no_folder_elsewhere(key: str, name: str, tmp_path: Path, canary: Path) -> None:
    with pytest.raises(ConfigError, match=f"{key}=.* is not a plain file name"):
        make(study(tmp_path, **{key: name}))
    unchanged(canary)


@pytest.mark.parametrize("link", ["mine", "mine/strange", "mine/strange/small"])
def test_a_report_is_not_written_through_links(link: str, tmp_path: Path, canary: Path) -> None:
    study(tmp_path)
    path = tmp_path / "theirs" / link
    path.rename(tmp_path / "moved")
    path.symlink_to(tmp_path / "moved")
    before = sorted((tmp_path / "moved").rglob("*"))
    with pytest.raises(ConfigError, match="is a link"):
        make_all(tmp_path / "theirs", ["strange"])
    assert sorted((tmp_path / "moved").rglob("*")) == before
    unchanged(canary)


@pytest.mark.usefixtures("few_pages")
def test_titles_and_labels_are_shown_as_text(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    directory = tmp_path / "theirs" / "mine" / "strange" / "small"
    write(directory, [value(HOSTILE, "ring", 0.1, 3.0)], {**REPORT, "caption": HOSTILE})
    facts = dict.fromkeys(("title", "item", "needs", "command"), HOSTILE) | {"departures": [HOSTILE], "paper": "mine"}
    write_json(directory / "study.json", {**(read_json(directory / "study.json") or {}), **facts})
    made, _, _ = make_all(tmp_path / "theirs")
    pages = [tmp_path / "theirs" / "README.md", tmp_path / "theirs" / "mine" / "README.md", directory / "table.md"]
    for page in pages:
        text = page.read_text()
        assert "<script" not in text
        assert "](javascript" not in text
        assert "![y](" not in text
    assert "\n# Met" not in pages[0].read_text()
    say(made[0].summary())
    warn(HOSTILE)
    report_error(HOSTILE)
    told = capsys.readouterr()
    assert "\x1b" not in told.out + told.err
    assert "[red]" in told.out
