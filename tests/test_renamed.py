"""Settings that were called something else: command lines, files and run ids of before go on working."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path

import pytest

from decentral.config import renamed
from decentral.config.composition import compose
from decentral.config.files import as_dict, dump, from_dict, load
from decentral.config.identity import component_identity, run_id
from decentral.config.overrides import checked
from decentral.errors import ConfigError
from decentral.network.settings import NetworkSettings
from decentral.tasks.images import Images

BASE = ["task=images", "data=digits", "model=mlp", "num_workers=2", "progress=false"]
OLD, NEW = "task.statistics_pictures=64", "task.statistics_images=64"


@pytest.fixture(autouse=True)
def _warn_again():
    renamed._warn.cache_clear()


def test_a_command_line_with_an_old_key_gets_one_line_of_warning_and_the_same_run(capsys):
    old = compose([*BASE, OLD])
    assert capsys.readouterr().err == "warning: task.statistics_pictures is now called task.statistics_images.\n"
    compose([*BASE, OLD])
    assert capsys.readouterr().err == "", "once is enough"
    assert old == compose([*BASE, NEW]) and old.task.statistics_images == 64
    assert type(old.task) is Images


def test_the_new_key_is_not_warned_of(capsys):
    compose([*BASE, NEW])
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize(
    ("settings", "expected"), [([], "112cfa2ffe97"), ([NEW], "fdb1287ae7e7"), ([OLD], "fdb1287ae7e7")]
)
def test_a_run_has_the_id_that_it_had_under_the_old_name(settings, expected):
    assert run_id(compose([*BASE, *settings])) == expected


def test_a_stored_configuration_with_the_old_key_loads():
    config = compose([*BASE, NEW])
    old = dump(config).replace("statistics_images", "statistics_pictures")
    assert "statistics_pictures: 64" in old and load(old) == config


def test_an_experiment_file_with_the_old_key_is_read(tmp_path: Path, capsys):
    (tmp_path / "experiment").mkdir()
    (tmp_path / "experiment" / "mine.yaml").write_text("# @package _global_\ntask:\n  statistics_pictures: 64\n")
    found = compose([*BASE, "experiment=mine"], str(tmp_path))
    assert found == compose([*BASE, NEW]) and type(found.task) is Images
    assert capsys.readouterr().err.count("statistics_pictures is now called") == 1


def test_the_command_line_overrides_the_old_key_of_an_experiment_file(tmp_path: Path):
    (tmp_path / "experiment").mkdir()
    (tmp_path / "experiment" / "mine.yaml").write_text("# @package _global_\ntask:\n  statistics_pictures: 64\n")
    for key in ("statistics_images", "statistics_pictures"):
        found = compose([*BASE, "experiment=mine", f"task.{key}=32"], str(tmp_path))
        assert found.task.statistics_images == 32


BOTH = [
    ("experiment/mine", "task: {statistics_pictures: 64, statistics_images: 32}", "task.statistics_pictures"),
    ("experiment/mine", "eval_every_epochs: 2\nevaluation:\n  every_epochs: 3\n", "eval_every_epochs"),
    ("task/mine", "defaults: [schema/images@_here_]\nstatistics_pictures: 64\nstatistics_images: 32\n",
     "task.statistics_pictures"),
]  # fmt: skip


@pytest.mark.parametrize(("name", "text", "old"), BOTH)
def test_a_file_with_the_old_and_the_new_key_is_refused(tmp_path: Path, name: str, text: str, old: str):
    path = tmp_path / f"{name}.yaml"
    path.parent.mkdir()
    path.write_text(f"# @package _global_\n{text}" if "experiment" in name else text)
    with pytest.raises(ConfigError, match=rf"mine\.yaml has both {old} and .*, which is what {old} is called now"):
        compose([*BASE, name.replace("/", "=")], str(tmp_path))


def test_what_an_old_key_may_be_is_checked_as_ever():
    with pytest.raises(ConfigError, match=r"task.statistics_images=0 makes no sense"):
        compose([*BASE, "task.statistics_pictures=0"])


def test_a_misspelt_key_is_answered_with_the_new_name():
    with pytest.raises(ConfigError, match="Did you mean 'statistics_images'"):
        compose([*BASE, "task.statistics_picture=64"])


MOVED = [("eval_every_epochs=2", "evaluation.every_epochs=2"), ("task.test_batch_size=64", "evaluation.batch_size=64")]


@pytest.mark.parametrize(("old", "new"), MOVED)
def test_a_setting_that_lies_elsewhere_now_is_taken_from_its_old_place(old, new, tmp_path: Path, capsys):
    expected = compose([*BASE, new])
    assert capsys.readouterr().err == ""
    assert compose([*BASE, old]) == expected
    warning = f"warning: {old.partition('=')[0]} is now called {new.partition('=')[0]}.\n"
    assert capsys.readouterr().err == warning
    assert checked([f"{old},3"], [Path("conf")], several=True) == [f"{new},3"]

    renamed._warn.cache_clear()
    path, value = old.split("=")
    text = f"task:\n  {path.removeprefix('task.')}: {value}\n" if "." in path else f"{path}: {value}\n"
    (tmp_path / "experiment").mkdir()
    (tmp_path / "experiment" / "mine.yaml").write_text(f"# @package _global_\n{text}")
    assert compose([*BASE, "experiment=mine"], str(tmp_path)) == expected
    assert warning in capsys.readouterr().err
    assert compose([*BASE, "experiment=mine", new.replace(value, "7")], str(tmp_path)) != expected


def test_a_stored_configuration_with_settings_in_their_old_places_loads():
    config = compose([*BASE, *(new for _, new in MOVED)])
    values = as_dict(config)
    del values["evaluation"]["every_epochs"], values["evaluation"]["batch_size"]
    values["eval_every_epochs"] = 2.0
    values["task"]["test_batch_size"] = 64
    assert from_dict(values) == config


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ([], "112cfa2ffe97"), (["evaluation.every_epochs=2"], "f40beaf9fc10"),
        (["evaluation.batch_size=64"], "c0ddef6357d3"),
        (["evaluation.every_epochs=4"], "112cfa2ffe97"), (["evaluation.batch_size=500"], "112cfa2ffe97"),
    ],
)  # fmt: skip
def test_a_run_has_the_id_that_it_had_under_the_old_place(settings, expected):
    assert run_id(compose([*BASE, *settings])) == expected


# Settings that are gone

SLOW = ["network.stragglers=[1]", "network.straggler_delay_s=0.05"]
INSTEAD = r"is no setting any more: cluster\.stragglers says who is slower, as in processes=4 cluster=two_delayed"


@pytest.mark.parametrize("override", SLOW)
def test_a_setting_that_is_gone_is_refused_with_what_to_use_instead(override, tmp_path: Path):
    key, value = override.split("=")
    with pytest.raises(ConfigError, match=f"^{key} {INSTEAD}"):
        compose([*BASE, override])
    (tmp_path / "experiment").mkdir()
    text = f"# @package _global_\nnetwork:\n  {key.removeprefix('network.')}: {value}\n"
    (tmp_path / "experiment" / "mine.yaml").write_text(text)
    with pytest.raises(ConfigError, match=f"{key} {INSTEAD}"):
        compose([*BASE, "experiment=mine"], str(tmp_path))


def test_what_is_to_be_used_instead_can_be(tmp_path: Path):
    (sentence,) = {what for _, what in NetworkSettings.gone.values()}
    words = [word for word in sentence.split() if "=" in word]
    assert len(words) == 3 and compose(["algo=dpsgd", "topology=ring", "num_workers=4", *words]).processes == "4"


def test_a_stored_configuration_with_a_setting_that_is_gone_loads_if_it_did_nothing():
    config = compose(BASE)
    values = as_dict(config)
    values["network"] |= {"stragglers": [], "straggler_delay_s": 0.0}
    assert from_dict(values) == config
    values["network"] |= {"stragglers": [1], "straggler_delay_s": 0.05}
    with pytest.raises(ConfigError, match=f"network.stragglers {INSTEAD}"):
        from_dict(values)


# Anything can have been renamed: keys, values, members of an enum, choices


class Head(Enum):
    """A member that was called small."""

    little = "little"
    small = "little"


@dataclass
class Thing:
    """Once `stuff`, with `size: 3` and `kind: old`."""

    name: str = field(default="thing", metadata={"values_were": {"stuff": "thing"}})
    width: int = field(default=3, metadata={"was": "size"})
    kind: str = field(default="new", metadata={"values_were": {"old": "new"}})
    head: Head = field(default=Head.little, metadata={"values_were": {"small": "little"}})


@dataclass
class Top:
    """With a key of its own that was called otherwise."""

    task: Thing = field(default_factory=Thing)
    gamma: float = field(default=0.1, metadata={"was": "rate"})


GROUPS: dict[str, dict[str, type]] = {"task": {"thing": Thing}}


def test_the_identity_has_the_old_names():
    assert component_identity(Thing()) == {"name": "stuff", "size": 3, "kind": "old", "head": "small"}
    assert component_identity(Thing(kind="other", width=4))["kind"] == "other"


@pytest.mark.parametrize(
    ("override", "expected"),
    [
        ("task.size=4", "task.width=4"), ("task.kind=old", "task.kind=new"), ("task.kind=other", "task.kind=other"),
        ("task=stuff", "task=thing"), ("rate=0.2", "gamma=0.2"), ("gamma=0.2", "gamma=0.2"),
        ("task=stuff,thing", "task=thing,thing"), ("task.kind=other,old", "task.kind=other,new"),
        ("task.size=[3,4]", "task.width=[3,4]"),
        ("task.unknown=1", "task.unknown=1"), ("unknown=1", "unknown=1"),
    ],
)  # fmt: skip
def test_overrides_are_told_by_their_new_names(override, expected, capsys):
    assert renamed.new_override(override, GROUPS, {}, Top) == expected
    assert ("is now called" in capsys.readouterr().err) is (override != expected)


def test_values_of_files_are_told_by_their_new_names():
    assert renamed.with_new_names(Thing, {"size": 4, "kind": "old"}) == {"width": 4, "kind": "new"}
    assert renamed.new_choice("stuff", GROUPS["task"]) == "thing" == renamed.new_choice("thing", GROUPS["task"])


def test_several_values_of_an_old_key_are_taken_by_a_sweep(capsys):
    folders = [Path("conf")]
    assert checked(["task.statistics_pictures=8,16"], folders, several=True) == ["task.statistics_images=8,16"]
    assert "is now called" in capsys.readouterr().err
