"""Prepared data is complete or not there at all."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from time import sleep

import pytest

from decentral.data.cache import cache_folder, cached
from decentral.errors import ConfigError


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch) -> Path:
    monkeypatch.setenv("DECENTRAL_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def test_the_cache_is_in_the_home_folder_unless_the_environment_says_otherwise(cache, monkeypatch):
    assert cache_folder() == cache
    monkeypatch.delenv("DECENTRAL_CACHE")
    assert cache_folder() == Path.home() / ".cache" / "decentral"


def test_data_is_built_once_however_many_ask_at_the_same_time():
    builds = []

    def build(folder: Path) -> None:
        builds.append(folder)
        (folder / "first").write_text("1")
        sleep(0.05)
        (folder / "last").write_text("2")

    def ask(_: int) -> list[str]:
        return sorted(file.name for file in cached("data", build).iterdir())

    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(ask, range(8))) == [["first", "last"]] * 8
    assert len(builds) == 1


@pytest.mark.parametrize("interruption", [KeyboardInterrupt, ConfigError, MemoryError])
def test_an_interrupted_build_leaves_nothing_and_is_done_again(cache, interruption):
    def interrupted(folder: Path) -> None:
        (folder / "first").write_text("1")
        raise interruption

    with pytest.raises(interruption):
        cached("data", interrupted)
    assert not (cache / "data").exists()
    assert [file.name for file in cached("data", lambda folder: (folder / "whole").touch()).iterdir()] == ["whole"]


def test_what_a_killed_process_left_is_not_mixed_in(cache):
    (cache / "data.unfinished").mkdir(parents=True)
    (cache / "data.unfinished" / "half").touch()
    assert [file.name for file in cached("data", lambda folder: (folder / "whole").touch()).iterdir()] == ["whole"]


def test_a_cache_that_cannot_be_written_is_an_error_that_says_what_to_set(cache):
    cache.write_text("a file is in the way")
    with pytest.raises(ConfigError, match="DECENTRAL_CACHE"):
        cached("data", lambda folder: None)


def test_a_full_disk_is_an_error_that_says_what_to_set(cache):
    def build(folder: Path) -> None:
        raise OSError(28, "No space left on device")

    with pytest.raises(ConfigError, match=r"No space left on device.*DECENTRAL_CACHE"):
        cached("data", build)
    assert not (cache / "data.unfinished").exists()
