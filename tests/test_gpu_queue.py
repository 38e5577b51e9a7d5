"""scripts/gpu_queue.py: a list of runs in order of worth, until a time limit, and on from a folder that was moved."""

from __future__ import annotations

import importlib.util
import shlex
import shutil
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml  # type: ignore[import-untyped]

from decentral.cli.study import chosen_studies
from decentral.errors import ConfigError
from decentral.store.checkpoints import newest_step

SCRIPTS = Path(__file__).parents[1] / "scripts"
specification = importlib.util.spec_from_file_location("gpu_queue", SCRIPTS / "gpu_queue.py")
assert specification is not None and specification.loader is not None
gpu_queue = importlib.util.module_from_spec(specification)
specification.loader.exec_module(gpu_queue)

RUN = "decentral-run task=quadratics task.dimension=4 num_workers=4 algo=dpsgd topology=ring"
TABLE = "decentral-study relaysum_table1 scale=smoke"
FEW = "decentral-study relaysum_table1_vgg11_milder scale=smoke"


def listed(folder: Path, *entries: dict[str, object]) -> str:
    path = folder / "list.yaml"
    path.write_text(yaml.safe_dump(list(entries)))
    return str(path)


def titles(*entries: dict[str, object]) -> list[str]:
    queue = gpu_queue.Queue([gpu_queue.read_entry(one, ["device=cpu"], None) for one in entries])
    return [job.title for job in queue.pending()]


def test_jobs_come_in_the_order_of_the_list_each_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    found = titles(
        {"command": TABLE, "only": {"alpha": [0.01], "method": ["RelaySGD*"]}},
        {"command": f"{RUN} steps=3"},
        {"command": TABLE, "only": {"method": "RelaySGD"}},
    )
    assert [title.replace(f"{RUN.removeprefix('decentral-run ')} steps=3", "run") for title in found] == [
        "RelaySGD, dbt, alpha 0.01, lr 0.3, seed 1",
        "RelaySGD + momentum, dbt, alpha 0.01, lr 0.15, seed 1",
        "run",
        "RelaySGD, dbt, alpha 1, lr 1.2, seed 1",
        "RelaySGD, dbt, alpha 0.1, lr 0.6, seed 1",
    ]


@pytest.mark.parametrize(
    ("entry", "says"),
    [
        ({"comand": RUN}, "it has no command"),
        ({"command": ""}, "it has no command"),
        ({"command": 5}, "cannot be queued"),
        ({"command": "decentral-run 'task"}, "its command cannot be read"),
        ({"command": RUN, "olny": {}}, "there is no key 'olny': use command and only"),
        ({"command": FEW, "only": ["alpha"]}, "has no patterns"),
        ({"command": FEW, "only": {"method": None}}, "has no patterns"),
        ({"command": FEW, "only": {"method": "Relay"}}, "leaves none of the study's"),
        ({"command": f"{RUN} run_dir=elsewhere"}, "is for all entries at once"),
        ({"command": f"{RUN} -m"}, "cannot be queued"),
        ({"command": RUN, "only": {"alpha": [1]}}, "cannot be queued"),
        ({"command": "decentral-study 'relaysum_*' scale=smoke"}, "studies: name one"),
        ({"command": FEW, "only": {"alhpa": [1]}}, "Did you mean 'alpha'?"),
    ],
)
def test_what_cannot_be_queued_is_refused(entry: dict[str, object], says: str) -> None:
    with pytest.raises(ConfigError) as refused:
        gpu_queue.read_entry(entry, ["device=cpu"], None)
    assert says in str(refused.value)


@pytest.mark.parametrize("words", [[], ["--limit", "30"], ["--limit", "90", "--reserve", "90"]])
def test_a_command_that_cannot_work_is_refused(words: list[str], tmp_path: Path) -> None:
    with pytest.raises(ConfigError):
        gpu_queue.carry_out([*([listed(tmp_path, {"command": RUN})] if words else []), *words])


def test_the_list_that_comes_with_it_can_be_read() -> None:
    entries = yaml.safe_load((SCRIPTS / "gpu_queue.yaml").read_text())
    for entry in entries:
        (chosen,) = chosen_studies(shlex.split(entry["command"])[1:])
        known = {row["method"] for row in chosen.study.rows} if isinstance(chosen.study.rows[0], dict) else {
            row.method for row in chosen.study.rows
        }  # fmt: skip
        assert chosen.scale == "paper" and known
        assert entry.get("only", {}).keys() <= {"method", *chosen.study.columns}


@pytest.mark.slow
def test_the_queue_stops_at_its_limit_and_resumes_from_a_copied_folder(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two small runs and a long one, whose time is over when it has a checkpoint; then with fewer left to do."""
    there, here, expected = tmp_path / "lent", tmp_path / "back", 0
    entries = listed(
        tmp_path,
        {"command": TABLE, "only": {"alpha": [0.1], "method": ["D2", "RelaySGD"]}},
        {"command": f"{RUN} steps=100000000"},
    )

    class OnceStored:
        """A timer that waits for a checkpoint beyond the one there was, instead of seconds."""

        def __init__(self, interval: float, function: Callable[[], None]) -> None:
            self.interval, self.function, self.over = interval, function, threading.Event()

        def start(self) -> None:
            threading.Thread(target=self.wait, daemon=True).start()

        def wait(self) -> None:
            while not self.over.wait(0.05):
                statuses = [path.read_text() for path in tmp_path.glob("*/runs/*/status.json")]
                short = sum('"done"' in status for status in statuses) == 2
                if short and any(newest_step(folder) > expected for folder in tmp_path.glob("*/runs/*/checkpoints")):
                    self.function()
                    return

        def cancel(self) -> None:
            self.over.set()

    monkeypatch.setattr(gpu_queue.threading, "Timer", OnceStored)
    words = [entries, "--limit", "600", "device=cpu", "checkpoint_every_s=0.2", "launcher.slots=3", "progress=false"]
    assert gpu_queue.carry_out([*words, f"results_dir={there}"]) == 0
    said = capsys.readouterr().out
    assert "| " not in said and "D2" in said and "RelaySGD" in said
    assert "Left to do: 1, of which 1 have checkpoints of" in said and f"Bring back {there}" in said
    assert (there / "relaysum" / "relaysum_table1" / "smoke" / "table.csv").exists()

    shutil.move(there, here)
    assert gpu_queue.carry_out([entries, "--plan", "device=cpu", f"results_dir={here}"]) == 0
    plan = capsys.readouterr().out.splitlines()
    assert len(plan) == 3 and "steps=100000000" in plan[-1] and plan[-1].endswith("MB")
    (checkpoints,) = [folder for folder in here.glob("runs/*/checkpoints") if newest_step(folder)]
    expected = newest_step(checkpoints)
    assert gpu_queue.carry_out([*words, f"results_dir={here}"]) == 0
    assert newest_step(checkpoints) > expected
