"""Run directories survive what happens to real ones: kill -9, full disks, flipped bits, a second writer."""

from __future__ import annotations

import errno
import gzip
import json
import math
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas
import pytest
import torch
import yaml

import decentral
from conftest import exit_status
from decentral.cli.run import main as run_main
from decentral.errors import ConfigError
from decentral.store import RunStore, Status, find_runs, read_metrics
from decentral.store.checkpoints import load_part
from decentral.store.files import read_table, remove_table, stored_table, write_table, write_text
from decentral.store.run_store import DirectoryLost
from punisher import files_limited_to

pytestmark = pytest.mark.usefixtures("undrawn")

CONFIG = "alpha: 0.1\n"


def row(step: int, value: float = 0.5, worker: int | str = 0) -> dict:
    return {
        "step": step,
        "epoch": step / 10,
        "worker": worker,
        "split": "test",
        "metric": "loss",
        "value": value,
        "wall_s": 0.1,
        "bytes_sent": 8 * step,
    }


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "runs" / "aaa"


@pytest.fixture
def store(path: Path) -> Iterator[RunStore]:
    with RunStore.open(path, "aaa", CONFIG) as store:
        yield store


@contextmanager
def writer(path: Path, body: str) -> Iterator[subprocess.Popen]:
    """Another process that opens the run, does `body`, says so, and is killed with SIGKILL at the end."""
    code = f"""
import time
from pathlib import Path
from decentral.store import RunStore, Status
store = RunStore.open(Path({str(path)!r}), "aaa", {CONFIG!r})
{body}
"""
    environment = os.environ | {"PYTHONPATH": str(Path(decentral.__file__).parents[1])}
    process = subprocess.Popen([sys.executable, "-c", code], env=environment, stdout=subprocess.PIPE)
    try:
        assert process.stdout is not None and process.stdout.readline() == b"ready\n"
        yield process
    finally:
        process.send_signal(signal.SIGKILL)
        process.communicate()


# The directory


def test_opening_a_run_again_keeps_its_configuration_status_and_metrics(path: Path) -> None:
    with RunStore.open(path, "aaa", CONFIG) as store:
        store.append([row(1)])
        store.set_status(Status.interrupted, step=7, epoch=0.7)
    with RunStore.open(path, "aaa", "something: else\n") as store:
        assert "something" not in (path / "config.yaml").read_text()
        assert RunStore.peek(path)["status"] == "interrupted"
        store.set_status(Status.running)
        assert (RunStore.peek(path)["step"], RunStore.peek(path)["epoch"]) == (7, 0.7)
    assert read_metrics(path) == [row(1)]


@pytest.mark.parametrize("witness", ["config.yaml", "status.json"])
def test_the_directory_of_another_run_is_refused(path: Path, witness: str) -> None:
    RunStore.open(path, "aaa", CONFIG).close()
    for file in {"config.yaml", "status.json"} - {witness}:
        (path / file).unlink()
    before = sorted(path.iterdir())
    with pytest.raises(ConfigError, match=r"run_dir=.* holds run aaa, not run bbb"):
        RunStore.open(path, "bbb", CONFIG)
    assert sorted(path.iterdir()) == before


@pytest.mark.parametrize("name", ["thesis.tex", "config.yaml", "status.json"])
def test_a_folder_with_other_things_in_it_is_refused_and_left_alone(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_text("mine\n")
    with pytest.raises(ConfigError, match=f"run_dir={tmp_path} .* not a run directory"):
        RunStore.open(tmp_path, "aaa", CONFIG)
    assert [(file.name, file.read_text()) for file in tmp_path.iterdir()] == [(name, "mine\n")]


def test_a_start_that_was_killed_before_the_configuration_was_written_can_be_repeated(path: Path) -> None:
    path.mkdir(parents=True)
    (path / "run.lock").write_text("process 1 on host\n")
    (path / ".0123456789abcdef.tmp").write_text("# run a")
    RunStore.open(path, "aaa", CONFIG).close()
    assert RunStore.peek(path)["run_id"] == "aaa"
    assert not list(path.glob("*.tmp"))


def test_a_second_writer_is_refused_while_the_first_lives_and_accepted_after_kill_9(path: Path) -> None:
    with writer(path, 'print("ready", flush=True); time.sleep(60)') as first:
        with pytest.raises(ConfigError, match=f"is being written by process {first.pid} on {os.uname().nodename}"):
            RunStore.open(path, "aaa", CONFIG)
        assert RunStore.peek(path)["pid"] == first.pid
        assert [run.status for run in find_runs(path.parent)] == [Status.running]
    assert [run.status for run in find_runs(path.parent)] == [Status.interrupted]
    RunStore.open(path, "aaa", CONFIG).close()


def test_a_view_needs_no_lock_and_cannot_write_what_the_writer_writes(store: RunStore) -> None:
    view = RunStore.view(store.path)
    written = view.save_checkpoint_part(1, "rank1", {"x": 1})
    store.commit_checkpoint(1, {"rank1": written}, {})
    assert load_part(view.newest_checkpoint(), "rank1") == {"x": 1}
    for forbidden in (lambda: view.append([row(1)]), lambda: view.set_status(Status.done), view.remove_checkpoints):
        with pytest.raises(AssertionError, match="holds the lock"):
            forbidden()


# Status and provenance


def test_the_status_is_standard_json_and_keeps_non_finite_facts(store: RunStore) -> None:
    store.set_status(Status.diverged, step=3, epoch=0.3, reason="loss", final={"loss": math.inf, "mean": [1.0]})
    strict = json.loads((store.path / "status.json").read_text(), parse_constant=lambda name: pytest.fail(name))
    assert strict["status"] == "diverged"
    assert RunStore.peek(store.path)["final"] == {"loss": math.inf, "mean": [1.0]}
    store.set_status(Status.running)
    assert "reason" not in RunStore.peek(store.path)


@pytest.mark.parametrize("content", [None, b'{"status": "runn', b"[1]", b"\xff\xfe\x00"])
def test_peeking_at_a_missing_or_broken_status_is_none(tmp_path: Path, content: bytes | None) -> None:
    (run := tmp_path / "run").mkdir()
    if content is not None:
        (run / "status.json").write_bytes(content)
    assert RunStore.peek(run) is None
    assert find_runs(tmp_path) == []


def test_of_two_who_replace_a_file_at_a_time_each_writes_a_whole_one(tmp_path: Path) -> None:
    texts = ["a" * 300_000, "b" * 100_000]

    def writes(text: str) -> None:
        for _ in range(20):
            write_text(tmp_path / "file", text)
            assert (tmp_path / "file").read_text() in texts

    with ThreadPoolExecutor(2) as pool:
        list(pool.map(writes, texts))
    assert [file.name for file in tmp_path.iterdir()] == ["file"]


def test_runs_are_found_in_a_results_folder(tmp_path: Path) -> None:
    (tmp_path / "notes").mkdir()
    for place, status in (("runs/b", Status.done), ("runs/c", Status.failed), ("mine", Status.diverged)):
        with RunStore.open(tmp_path / place, place[-1], CONFIG) as store:
            store.set_status(status)
    shutil.copytree(tmp_path / "runs" / "b", tmp_path / "runs" / "b_backup")
    shutil.copytree(tmp_path / "runs" / "b", tmp_path / "b")
    (tmp_path / "runs" / "link").symlink_to("b")
    (tmp_path / "c").symlink_to("runs/c")
    left_out: list[str] = []
    found = [(run.run_id, run.path.name, run.status) for run in find_runs(tmp_path, left_out)]
    assert found == [("b", "b", Status.done), ("c", "c", Status.failed)]
    assert left_out == ["b_backup", "link", "b", "c", "mine"]
    (mine,) = find_runs(tmp_path / "mine")  # with run_dir=: by its directory
    assert (mine.run_id, mine.status) == ("e", Status.diverged)


# Metrics


def test_non_finite_values_come_back_and_the_file_is_standard_json(store: RunStore) -> None:
    store.append([row(1, math.nan), row(2, math.inf), row(3, -math.inf)])
    for line in (store.path / "metrics.jsonl").read_text().splitlines():
        json.loads(line, parse_constant=lambda name: pytest.fail(name))
    values = [read["value"] for read in read_metrics(store.path)]
    assert math.isnan(values[0]) and values[1:] == [math.inf, -math.inf]


def test_of_rows_that_a_resumed_run_writes_again_the_last_counts(store: RunStore) -> None:
    store.append([row(1, 1.0), row(2, 2.0), row(2, 7.0, worker="worst"), row(1, 3.0)])
    assert [(read["step"], read["worker"], read["value"]) for read in read_metrics(store.path)] == [
        (1, 0, 3.0),
        (2, 0, 2.0),
        (2, "worst", 7.0),
    ]


def test_the_rows_of_one_metric_are_read_without_the_others_and_all_where_they_are_written_otherwise(store: RunStore):
    store.append([row(1), row(1, 2.0, worker="mean"), row(2, worker="mean")])
    split, metric = row(1)["split"], row(1)["metric"]
    assert read_metrics(store.path, worker="mean", split=split, metric=metric) == read_metrics(store.path)[1:]
    with open(store.path / "metrics.jsonl", "w") as file:
        file.writelines(json.dumps(dict(reversed(row(step).items()))) + "\n" for step in (1, 2))
    assert read_metrics(store.path, split=split, metric=metric) == [row(1), row(2)]


@pytest.mark.parametrize("tail", [b'{"step": 3, "ep', b"{", b"x" * 200_000])
def test_an_unterminated_last_line_is_not_read_and_is_removed_when_the_run_goes_on(path: Path, tail: bytes) -> None:
    with RunStore.open(path, "aaa", CONFIG) as store:
        store.append([row(1)])
    with open(path / "metrics.jsonl", "ab") as file:
        file.write(tail)
    assert read_metrics(path) == [row(1)]
    with RunStore.open(path, "aaa", CONFIG) as store:
        store.append([row(2)])
    assert read_metrics(path) == [row(1), row(2)]


def test_a_damaged_line_in_the_middle_is_an_error(store: RunStore) -> None:
    store.append([row(1)])
    with open(store.path / "metrics.jsonl", "a") as file:
        file.write("{}\n")
    store.append([row(2)])
    with pytest.raises(ValueError, match=r"line 2 of .* is damaged"):
        read_metrics(store.path)


def test_kill_9_in_the_middle_of_writing_loses_nothing_that_was_written(path: Path) -> None:
    body = f"""
for step in range(10**9):
    store.append([dict({row(0)!r}, step=step)])
    if step == 300:
        print("ready", flush=True)
"""
    with writer(path, body):
        pass
    rows = read_metrics(path)
    assert [read["step"] for read in rows] == list(range(len(rows))) and len(rows) > 300


def test_of_rows_written_at_once_a_full_disk_keeps_those_that_fit(store: RunStore) -> None:
    store.append([row(1)])
    size = (store.path / "metrics.jsonl").stat().st_size
    with files_limited_to(4 * size + 10), pytest.raises(OSError, match=os.strerror(errno.ENOSPC)):
        store.append([row(step) for step in range(2, 9)])
    store.append([row(9)])
    steps = [found["step"] for found in read_metrics(store.path)]
    assert steps == [1, *range(2, len(steps)), 9] and 4 <= len(steps) <= 5


# Checkpoints


def save(store: RunStore, step: int, parts: tuple[str, ...] = ("rank0", "rank1")) -> None:
    content = {"state": {"x": torch.full((3, 1000), float(step))}, "step": step}
    written = {part: store.save_checkpoint_part(step, part, content) for part in parts}
    store.commit_checkpoint(step, written, {"step": step, "bytes_sent": 12.5})


def newest_step(store: RunStore) -> int | None:
    found = store.newest_checkpoint()
    return None if found is None else found.step


def test_a_checkpoint_comes_back_as_it_was_saved(store: RunStore) -> None:
    rows = torch.randn(4, 5, dtype=torch.float64, requires_grad=True)
    saved = {"x": rows[1:3], "n": 3, "lr": 0.1, "name": "sgd", "off": None, "nested": {"l": [torch.tensor(True), 1]}}
    written = store.save_checkpoint_part(7, "rank0", saved)
    store.commit_checkpoint(7, {"rank0": written}, {"wall_s": 1.5})
    found = store.newest_checkpoint()
    assert (found.step, found.parts, found.meta) == (7, ("rank0",), {"wall_s": 1.5})
    loaded = load_part(found, "rank0")
    assert torch.equal(loaded.pop("x"), rows[1:3])
    assert loaded == {key: value for key, value in saved.items() if key != "x"}


def test_the_newest_two_checkpoints_are_kept(store: RunStore) -> None:
    for step in (9, 10, 100, 101):
        save(store, step)
    assert sorted(int(entry.name) for entry in (store.path / "checkpoints").iterdir()) == [100, 101]
    assert newest_step(store) == 101
    store.remove_checkpoints()
    assert newest_step(store) is None


def test_a_checkpoint_of_another_step_or_another_run_is_not_taken(path: Path) -> None:
    other = path.with_name("other")
    for place, run_id in ((path, "aaa"), (other, "bbb")):
        with RunStore.open(place, run_id, CONFIG) as store:
            save(store, 7)
    shutil.copytree(path / "checkpoints/7", path / "checkpoints/9")
    shutil.copytree(other / "checkpoints/7", path / "checkpoints/8")
    with RunStore.open(path, "aaa", CONFIG) as store:
        assert newest_step(store) == 7
        assert "step 9 is not used (it belongs to step 7" in store.rejected_checkpoints[0]
        assert "step 8 is not used (it belongs to step 7" in store.rejected_checkpoints[1]
    shutil.rmtree(path / "checkpoints/7")
    shutil.copytree(other / "checkpoints/7", path / "checkpoints/7")
    with RunStore.open(path, "aaa", CONFIG) as store:
        assert newest_step(store) is None
        assert "step 7 is not used (it belongs to run bbb, not to run aaa)" in store.rejected_checkpoints[-1]


@pytest.mark.parametrize(
    ("damage", "left"),
    [
        (lambda file: file.unlink(), None),
        (lambda file: os.truncate(file, file.stat().st_size - 2), 1),
        (lambda file: file.write_text("".join(file.read_text().splitlines(keepends=True)[1:])), None),
        (lambda file: file.write_text(file.read_text().replace('"step": 2', '"step": 3')), 1),
    ],
    ids=["deleted", "last line cut", "first line lost", "changed"],
)
def test_a_checkpoint_whose_metrics_are_lost_is_not_taken(path: Path, damage, left: int | None) -> None:
    with RunStore.open(path, "aaa", CONFIG) as store:
        for step in (1, 2):
            store.append([row(step), row(step, worker="worst")])
            save(store, step)
    with RunStore.open(path, "aaa", CONFIG) as store:
        assert newest_step(store) == 2 and not store.rejected_checkpoints
    damage(path / "metrics.jsonl")
    with RunStore.open(path, "aaa", CONFIG) as store:
        assert newest_step(store) == left
        assert "step 2 is not used (metrics.jsonl has lost some of its 4 rows" in store.rejected_checkpoints[0]
        store.append([row(2), row(2, worker="worst")])
        assert newest_step(store) == left  # as many rows again are not the rows that were lost


def test_a_directory_that_disappears_is_noticed_and_not_made_anew(path: Path) -> None:
    with RunStore.open(path, "aaa", CONFIG) as store:
        save(store, 1)
        shutil.rmtree(path.parent)
        for write in (lambda: save(store, 2), *[lambda s=s: store.set_status(s) for s in Status]):
            with pytest.raises(DirectoryLost, match=f"run_dir={path} .* it was deleted or replaced .* same command"):
                write()
        with pytest.raises(FileNotFoundError):  # what another process of the run would do
            RunStore.view(path).save_checkpoint_part(2, "rank1", {"x": 1})
        assert not path.parent.exists()


def test_a_directory_that_another_process_has_made_anew_is_left_to_it(path: Path) -> None:
    with RunStore.open(path, "aaa", CONFIG) as store:
        shutil.rmtree(path)
        with RunStore.open(path, "aaa", CONFIG) as newer:
            newer.set_status(Status.interrupted)
            with pytest.raises(DirectoryLost, match=r"run\.lock in it was deleted or replaced"):
                store.set_status(Status.failed)
        assert RunStore.peek(path)["status"] == "interrupted"


def test_metrics_that_are_deleted_are_noticed_before_a_checkpoint_and_before_the_end(path: Path) -> None:
    with RunStore.open(path, "aaa", CONFIG) as store:
        (path / "metrics.jsonl").unlink()
        for write in (lambda: save(store, 2), lambda: store.set_status(Status.done)):
            with pytest.raises(DirectoryLost, match=r"metrics\.jsonl in it was deleted"):
                write()
        store.set_status(Status.failed, reason="it was")  # that can be said
    assert RunStore.peek(path)["status"] == "failed"


def flip_a_bit(file: Path, place: float = 0.5) -> None:
    content = bytearray(file.read_bytes())
    content[int(len(content) * place)] ^= 4
    file.write_bytes(content)


def cut(file: Path, place: float = 1.0) -> None:
    os.truncate(file, int((file.stat().st_size - 2) * place))


def test_damage_is_noticed_and_the_checkpoint_before_is_used(store: RunStore) -> None:
    """Bits and cuts at random places of the tensors, the archive around them, and the manifest; files that are lost."""
    save(store, 1)
    save(store, 2)
    random = np.random.default_rng(8)
    damages = [partial(damage, place=place) for damage in (flip_a_bit, cut) for place in random.random(20)]
    changed = lambda file: file.write_text(file.read_text().replace("12.5", "13.5"))  # noqa: E731
    cases = [(name, damage) for name in ("rank1.pt", "manifest.json") for damage in (*damages, cut)]
    for name, damage in [*cases, ("rank1.pt", Path.unlink), ("manifest.json", changed)]:
        file = store.path / "checkpoints/2" / name
        content = file.read_bytes()
        damage(file)
        found = store.newest_checkpoint()
        assert found.step == 1
        assert torch.equal(load_part(found, "rank1")["state"]["x"], torch.ones(3, 1000))
        assert len(store.rejected_checkpoints) == 1 and "step 2 is damaged" in store.rejected_checkpoints[0]
        file.write_bytes(content)
    assert store.newest_checkpoint().step == 2


def test_a_damaged_checkpoint_does_not_count_among_the_two_that_are_kept(path: Path) -> None:
    with RunStore.open(path, "aaa", CONFIG) as store:
        save(store, 1)
        save(store, 2)
    flip_a_bit(path / "checkpoints/2/rank0.pt")
    with RunStore.open(path, "aaa", CONFIG) as store:
        save(store, 3)
        flip_a_bit(path / "checkpoints/3/rank0.pt")
        assert newest_step(store) == 1


@pytest.mark.parametrize("step", [1, 2], ids=["same step", "next step"])
def test_a_full_disk_is_an_os_error_and_keeps_the_checkpoint_before(store: RunStore, step: int) -> None:
    save(store, 1)
    with files_limited_to(8000), pytest.raises(OSError, match=r"rank0\.pt"):
        store.save_checkpoint_part(step, "rank0", {"x": torch.randn(100_000)})
    assert newest_step(store) == 1
    assert not list((store.path / "checkpoints").rglob("*.tmp"))


def save_until_killed(_rank: int, path: Path) -> None:
    store = RunStore.open(path, "aaa", CONFIG)
    for step in range(1, 10**9):
        written = store.save_checkpoint_part(step, "rank0", {"x": torch.full((300_000,), float(step))})
        store.commit_checkpoint(step, {"rank0": written}, {})
        if step == 3:
            threading.Timer(0.05, os.kill, (os.getpid(), signal.SIGKILL)).start()


def test_kill_9_while_a_checkpoint_is_saved_keeps_the_one_before(ranks: Any, path: Path, tmp_path: Path) -> None:
    ranks.call(save_until_killed, 1, tmp_path, path)
    assert ranks.codes == [-signal.SIGKILL]
    with RunStore.open(path, "aaa", CONFIG) as store:
        found = store.newest_checkpoint()
        assert found is not None and found.step >= 3
        assert load_part(found, "rank0")["x"][-1] == found.step


def test_an_unrestricted_unpickler_is_used_nowhere() -> None:
    ours = ("composition.py", "prepared.py")  # what this process, or its parent, has pickled
    sources = (file for file in Path(decentral.__file__).parent.rglob("*.py") if file.name not in ours)
    forbidden = re.compile(r"weights_only\s*=\s*False|\bpickle\.loads?\b")
    assert [source.name for source in sources if forbidden.search(source.read_text())] == []


# Tables


SHORT, LONG = "name,value\na,1\n", "name,value\n" + 'é,"two\nlines"\n' * 2000


def test_a_long_table_is_packed_and_read_as_it_was(tmp_path: Path) -> None:
    table, packed = tmp_path / "values.csv", tmp_path / "values.csv.gz"
    for text, there in ((SHORT, table), (LONG, packed), (LONG, packed), (SHORT, table)):
        write_table(table, text)
        assert list(tmp_path.iterdir()) == [there] and stored_table(table) == there
        assert read_table(table) == text
        assert pandas.read_csv(there).columns.tolist() == ["name", "value"]
    write_table(table, LONG)
    before = packed.read_bytes()
    write_table(table, LONG)
    assert packed.read_bytes() == before
    table.write_text(SHORT)
    for read in (read_table, stored_table):
        with pytest.raises(ConfigError, match=r"values\.csv and values\.csv\.gz are both there"):
            read(table)
    remove_table(table)
    assert stored_table(table) is None and list(tmp_path.iterdir()) == []
    with pytest.raises(FileNotFoundError):
        read_table(table)


def test_a_long_table_of_an_earlier_version_is_read(tmp_path: Path) -> None:
    (tmp_path / "values.csv").write_text(LONG)
    assert read_table(tmp_path / "values.csv") == LONG and stored_table(tmp_path / "values.csv").name == "values.csv"


# Damaged and copied runs


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two finished runs of quadratics, in a folder of results."""
    folder = tmp_path_factory.mktemp("finished") / "results"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("decentral.cli.single.draw", lambda *_: None)
        for seed in (0, 1):
            assert exit_status(run_main, *QUICK_RUN, f"results_dir={folder}", f"seed={seed}") == 0
    return folder


QUICK_RUN = ["task=quadratics", "num_workers=4", "steps=30", "progress=false", "device=cpu", "processes=1"]
DAMAGE: list[tuple[str, Callable[[str], str]]] = [
    ("metrics.jsonl", lambda text: "".join(text.splitlines(keepends=True)[:-9])),
    ("metrics.jsonl", lambda text: text[: len(text) // 2]),
    ("metrics.jsonl", lambda text: ""),
    ("metrics.jsonl", lambda text: text.replace('"worker": 0', '"worker": [1]', 1)),
    ("metrics.jsonl", lambda text: text.replace('"step": 0', '"step": null', 1)),
    ("metrics.jsonl", lambda text: text.replace('"split": "train"', '"split": 5', 1)),
    ("status.json", lambda text: re.sub(r'"wall_s": [^,]*', '"wall_s": "abc"', text, count=1)),
    ("status.json", lambda text: text[: len(text) // 2]),
    ("status.json", lambda text: text.replace('"done"', "[1]")),
    ("config.yaml", lambda text: re.sub(r"^algo:\n", "algo: [a, b]\nother:\n", text, flags=re.M)),
    ("config.yaml", lambda text: re.sub(r"^batch_size: .*", "batch_size: many", text, flags=re.M)),
    ("config.yaml", lambda text: re.sub(r"^seed: .*", "seed: [1]", text, flags=re.M)),
    ("config.yaml", lambda text: text[: len(text) // 3]),
]


@pytest.mark.parametrize("packed", [False, True])
def test_a_damaged_run_is_unreadable_and_the_others_are_not(finished: Path, tmp_path: Path, packed: bool) -> None:
    for number, (name, change) in enumerate(DAMAGE):
        if packed and name == "config.yaml":
            continue
        results = tmp_path / str(number)
        shutil.copytree(finished, results)
        victim, other = sorted((results / "runs").iterdir())
        text = change((victim / name).read_text())
        assert text != (victim / name).read_text(), name
        (victim / name).write_text(text)
        if packed:
            content = gzip.compress((victim / "metrics.jsonl").read_bytes())
            (victim / "metrics.jsonl.gz").write_bytes(content[:-9] if number % 2 else content)
            (victim / "metrics.jsonl").unlink()
        table = decentral.runs(results).set_index("id")
        assert dict(table["status"]) == {victim.name: "unreadable", other.name: "done"}, (name, number)
        assert str(victim) in table["reason"][victim.name]
        if not packed:
            with pytest.warns(UserWarning, match="1 unreadable run left out"):
                assert set(decentral.table(results, rows="algo")["runs"]) == {1}
        if name == "metrics.jsonl":
            with pytest.raises(SystemExit) as exit:
                seed = yaml.safe_load((victim / "config.yaml").read_text())["seed"]
                run_main([*QUICK_RUN, f"results_dir={results}", f"seed={seed}"])
            assert exit.value.code == 2


def test_copies_and_links_of_runs_do_not_count_and_are_named(finished: Path, tmp_path: Path) -> None:
    shutil.copytree(finished, tmp_path / "results")
    one, _ = sorted((tmp_path / "results" / "runs").iterdir())
    before = decentral.table(tmp_path / "results", rows="algo")
    shutil.copytree(one, one.with_name(f"{one.name}_backup"))
    shutil.copytree(one, tmp_path / "results" / one.name)
    one.with_name("link").symlink_to(one.name)
    with pytest.warns(UserWarning, match=rf"3 folders left out .*: {one.name}_backup, link, {one.name}"):
        assert len(decentral.runs(tmp_path / "results")) == 2
    with pytest.warns(UserWarning, match="3 folders left out"):
        assert decentral.table(tmp_path / "results", rows="algo").equals(before)
    assert list(decentral.runs(one.with_name(f"{one.name}_backup"))["id"]) == [one.name]


def test_the_index_of_runs_is_not_believed_when_a_file_has_changed(
    finished: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("decentral.report.series._INDEXED_FROM", 1)
    shutil.copytree(finished, results := tmp_path / "results")
    one, other = sorted((results / "runs").iterdir())
    first = decentral.runs(results)
    with monkeypatch.context() as patched:  # it is used
        patched.setattr("decentral.report.series.read_run", lambda _: pytest.fail("read again"))
        assert decentral.runs(results).equals(first)
    times = os.stat(one / "metrics.jsonl")
    text = (one / "metrics.jsonl").read_text()
    (one / "metrics.jsonl").write_text(text.replace('"worker": 0', '"worker": x', 1))  # the same size
    os.utime(one / "metrics.jsonl", ns=(times.st_atime_ns, times.st_mtime_ns))
    assert sorted(decentral.runs(results)["status"]) == ["done", "unreadable"]
    shutil.rmtree(other)
    assert list(decentral.runs(results)["status"]) == ["unreadable"]
    (one / "metrics.jsonl").write_text(text)
    for content in ("", "{}", "0", (results / ".runs.json").read_text().replace(decentral.__version__, "0.1")):
        (results / ".runs.json").write_text(content)
        assert list(decentral.runs(results)["status"]) == ["done"]
