"""Prepared data is complete or not there at all."""

from __future__ import annotations

import hashlib
import itertools
import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from time import sleep

import pytest

from decentral.data.cache import cache_folder, cached
from decentral.errors import ConfigError
from decentral.store import digests


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


def test_a_digest_is_trusted_while_a_file_is_surely_what_it_was(tmp_path, monkeypatch):
    file, read = tmp_path / "file", []
    monkeypatch.setattr(
        digests, "_digest", lambda path, advance, real=digests._digest: read.append(path) or real(path, advance)
    )
    file.write_bytes(b"one")
    first = [digests.file_digest(file) for _ in range(2)]
    assert len(read) == 2, "it may change again at the same instant"
    monkeypatch.setattr(digests, "_SETTLED_NS", 0)
    assert [digests.file_digest(file) for _ in range(3)] == [first[0]] * 3 and len(read) == 3
    facts = file.stat()
    file.write_bytes(b"two")
    os.utime(file, ns=(facts.st_atime_ns, facts.st_mtime_ns))
    assert digests.file_digest(file) == hashlib.sha256(b"two").hexdigest()[:16] != first[0]
    other = tmp_path / "other"
    other.write_bytes(b"six")
    os.utime(other, ns=(facts.st_atime_ns, facts.st_mtime_ns))
    other.replace(file)
    assert digests.file_digest(file) == hashlib.sha256(b"six").hexdigest()[:16]


def test_digests_that_took_long_are_kept_for_other_processes(tmp_path, cache, monkeypatch):
    monkeypatch.setattr(digests, "_WORTH_KEEPING_S", 0)
    monkeypatch.setattr(digests, "_SETTLED_NS", 0)
    names = [str(number) for number in range(3)]
    for name in names:
        (tmp_path / name).write_text(name)
    found = digests.folder_digest(tmp_path, names)
    digests._KNOWN.clear()
    monkeypatch.setattr(digests, "_digest", None)
    assert digests.folder_digest(tmp_path, names) == found
    (kept,) = (cache / "digests").iterdir()
    kept.write_text("[]")
    digests._KNOWN.clear()
    monkeypatch.undo()
    assert digests.folder_digest(tmp_path, names) == found


def test_reading_that_takes_long_says_how_far_it_is(tmp_path, capsys, monkeypatch):
    (tmp_path / "file").write_bytes(bytes(3 << 20))
    monkeypatch.setattr("time.monotonic", itertools.count(0, 2.5).__next__)
    digests.file_digest(tmp_path / "file")
    said = capsys.readouterr()
    assert said.out == "" and said.err.splitlines()[0].startswith("Reading 1 files of ")
