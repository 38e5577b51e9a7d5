"""Who can reach a run from outside, that nothing which comes in can run code; and side processes."""

from __future__ import annotations

import ast
import inspect
import os
import re
import shlex
import signal
import socket
import subprocess
import sys
from contextlib import suppress
from ipaddress import ip_address
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.distributed.elastic.agent.server import api as agent
from torch.distributed.elastic.rendezvous import static_tcp_rendezvous
from torch.distributed.elastic.utils import store as agent_store

import decentral
from conftest import Result, exit_status
from decentral.cli.run import main
from decentral.errors import ConfigError
from decentral.host.processes import carried_out
from decentral.runtime.process_group import store_of_torchrun
from decentral.scheduling import slurm_pool
from decentral.store import RunStore

# -- Who can reach a run from outside: what listens at which address, and that nothing which comes in can --------------

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc")

SOURCES = Path(decentral.__file__).parent
DOCUMENTS = [
    SOURCES.parents[1] / name for name in ("README.md", "docs/running.md", "docs/clusters.md", "docs/own_script.md")
]
QUADRATICS = ["task=quadratics", "num_workers=4", "processes=2", "device=cpu", "progress=false"]


def listening(pid: int) -> set[tuple[str, int]]:
    """The addresses and ports at which a process waits for connections."""
    own = set()
    for entry in os.listdir(f"/proc/{pid}/fd"):
        with suppress(FileNotFoundError):  # it has just been closed
            own.add(os.readlink(f"/proc/{pid}/fd/{entry}").removeprefix("socket:[").removesuffix("]"))
    tables = [Path(f"/proc/{pid}/net/{name}").read_text().splitlines()[1:] for name in ("tcp", "tcp6")]
    rows = [line.split() for table in tables for line in table]
    return {_address(row[1]) for row in rows if row[3] == "0A" and row[9] in own}


def _address(text: str) -> tuple[str, int]:
    digits, port = text.split(":")
    words = [bytes.fromhex(digits[i : i + 8])[::-1] for i in range(0, len(digits), 8)]  # little-endian words
    return str(ip_address(b"".join(words))), int(port, 16)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def test_a_store_that_we_serve_listens_at_the_given_address_only(monkeypatch):
    monkeypatch.delenv("TORCHELASTIC_USE_AGENT_STORE", raising=False)
    for name in ("127.0.0.1", "localhost"):
        port, before = free_port(), listening(os.getpid())
        monkeypatch.setenv("MASTER_ADDR", name)
        monkeypatch.setenv("MASTER_PORT", str(port))
        served = store_of_torchrun(0, 2, 30.0)
        (found,) = listening(os.getpid()) - before
        assert ip_address(found[0]).is_loopback and found[1] == port
        store_of_torchrun(1, 2, 30.0).set("key", "value")
        assert served.get("key") == b"value"
    with pytest.raises(ConfigError, match=f"MASTER_ADDR=localhost MASTER_PORT={port} cannot be bound"):
        store_of_torchrun(0, 2, 30.0)


def test_what_is_pickled_for_jobs_lies_where_nobody_else_can_write(tmp_path, monkeypatch):
    folder = tmp_path / "submitted"
    folder.mkdir(mode=0o777)
    folder.chmod(0o777)  # as an older version has made it under a careless umask
    slurm_pool.private_folder(folder)
    assert folder.stat().st_mode & 0o777 == 0o700
    with monkeypatch.context() as patched:
        patched.setattr(os, "geteuid", lambda: 12345)
        with pytest.raises(ConfigError, match=f"{folder} belongs to another user"):
            slurm_pool.private_folder(folder)


def commands(text: str) -> list[str]:
    """The lines of a document's blocks that start torchrun, continued lines joined."""
    blocks = re.findall(r"```\n(.*?)```", text, re.DOTALL)
    lines = "\n".join(blocks).replace("\\\n", " ").splitlines()
    return [line for line in lines if "torchrun " in line and not line.startswith("#")]


@pytest.mark.slow
def test_the_commands_for_several_machines_start_one_run(tmp_path, start):
    """On one machine, by its loopback; with the numbers of one process."""
    (command,) = [line for line in commands(DOCUMENTS[1].read_text()) if "--nnodes" in line]
    assert any(line.startswith(command) for line in commands(DOCUMENTS[2].read_text())), "both say the same"
    for written, here in (("HOST", "127.0.0.1"), ("29500", str(free_port())), ("per-node=4", "per-node=1")):
        command = command.replace(written, here)
    words = shlex.split(command)
    settings = [*QUADRATICS[:2], "steps=20", "evaluation.every_epochs=1"]
    ours = [*words[1:], "results_dir=results", *settings, *QUADRATICS[3:]]
    environment = os.environ | {"PYTHONPATH": str(SOURCES.parent), "GLOO_SOCKET_IFNAME": "lo"}
    agents = [
        subprocess.Popen(
            [sys.executable, "-m", "torch.distributed.run", *(word.replace("RANK", str(rank)) for word in ours)],
            cwd=tmp_path, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )
        for rank in (0, 1)
    ]  # fmt: skip
    for each in agents:
        told = each.communicate()
        assert each.returncode == 0, told
    (directory,) = (tmp_path / "results" / "runs").iterdir()
    assert (RunStore.peek(directory) or {})["status"] == "done"
    found, alone = Result("done", directory).rows, start(*words[1 + words.index("decentral") :], *settings).rows
    assert [row | {"value": 0} for row in found] == [row | {"value": 0} for row in alone] != []
    np.testing.assert_allclose([row["value"] for row in found], [row["value"] for row in alone], rtol=1e-8)


def test_no_documented_command_lets_an_agent_unpickle():
    """torchrun's c10d rendezvous, which --standalone is, too, unpickles what anybody may put into its store."""
    told = "\n".join(line for document in DOCUMENTS for line in commands(document.read_text()))
    assert told and not re.search(r"c10d|etcd|--standalone|--rdzv-backend=(?!static)", told)
    for module in (static_tcp_rendezvous, agent_store, agent):
        assert "pickle" not in inspect.getsource(module), f"{module.__name__} is not safe any more"


def test_no_process_unpickles_messages_of_other_machines():
    """torch's collectives of objects do; what we read with torch.load is read with its restricted unpickler.

    What SLURM jobs leave in a file is unpickled by submitit, but only from a folder that is ours alone. A process of a
    run unpickles objects of its parent (`Prepared.unpacked`), and `composed` what it has pickled itself.
    """
    for source in SOURCES.rglob("*.py"):
        text = source.read_text()
        if source.name in ("composition.py", "prepared.py") or not re.search(r"_object|pickle|torch\.load", text):
            continue
        for node in ast.walk(ast.parse(text)):
            if not isinstance(node, ast.Call):
                continue
            name = ast.unparse(node.func)
            assert not re.search(r"dist\..*_object(_list)?$|pickle\.loads?$", name), f"{source}: {name}"
            if name == "torch.load":
                assert "weights_only=True" in ast.unparse(node), f"{source}: {ast.unparse(node)}"


@pytest.mark.parametrize(
    ("variables", "sentence"),
    [
        ({"WORLD_SIZE": "abc"}, "WORLD_SIZE=abc is invalid: torchrun"),
        ({"RANK": "5"}, "RANK=5 is out of range with WORLD_SIZE=2: ranks are 0 to 1"),
        ({"RANK": "-1"}, "RANK=-1 is invalid: torchrun"),
        ({"MASTER_PORT": "x"}, "MASTER_PORT=x is invalid: torchrun"),
        ({"LOCAL_WORLD_SIZE": "0"}, "LOCAL_WORLD_SIZE=0 is invalid: torchrun"),
    ],
)
def test_invalid_variables_of_a_launcher_are_refused(monkeypatch, capsys, tmp_path, variables, sentence):
    usual = {"RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29500"}
    for name, value in (usual | variables).items():
        monkeypatch.setenv(name, value)
    end = exit_status(main, *QUADRATICS, f"run_dir={tmp_path / 'run'}")
    told = capsys.readouterr().err
    assert end == 2 and told.count("\n") == 1 and sentence in told
    with pytest.raises(ConfigError, match=re.escape(sentence)):
        decentral.join("ring")


SLURM = {"SLURM_NTASKS": "4", "SLURM_PROCID": "0"}
ALONE = [
    {}, {"RANK": "0"}, {"WORLD_SIZE": "1"}, {"RANK": "0", "WORLD_SIZE": "1"}, {"RANK": "a"}, {"PMIX_RANK": "0"},
    {"OMPI_COMM_WORLD_SIZE": "1", "OMPI_COMM_WORLD_RANK": "0"}, {"SLURM_NTASKS": "4"},
    {"SLURM_JOB_ID": "7", **SLURM},  # a batch script, or a shell of salloc
    {"SLURM_JOB_ID": "7", **SLURM, "SLURM_STEP_ID": "0", "SLURM_STEP_NUM_TASKS": "1"},
]  # fmt: skip
SEVERAL = [
    {"RANK": "0", "WORLD_SIZE": "2"}, {"RANK": "1"}, {"WORLD_SIZE": "2"}, {"LOCAL_RANK": "1"}, {"PMIX_RANK": "1"},
    {"RANK": "1", "WORLD_SIZE": "2", "MASTER_ADDR": "here"}, {"WORLD_SIZE": "2", "SLURM_PROCID": "0"},
    {"OMPI_COMM_WORLD_SIZE": "2", "OMPI_COMM_WORLD_RANK": "0"}, {"PMI_RANK": "1", "PMI_SIZE": "2"}, {"PMI_SIZE": "2"},
    {"SLURM_JOB_ID": "7", **SLURM, "SLURM_STEP_ID": "0"}, SLURM, {**SLURM, "SLURM_JOB_ID": "7", "SLURM_PROCID": "3"},
    {"SLURM_JOB_ID": "7", "SLURM_STEP_ID": "0", "SLURM_STEP_NUM_TASKS": "2", "SLURM_PROCID": "0"},
    {"RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "h", "MASTER_PORT": "2", "PMI_RANK": "0", "PMI_SIZE": "2"},
]  # fmt: skip


def test_processes_that_would_work_alone_although_a_launcher_started_several_are_refused(monkeypatch, capsys):
    for name in list(os.environ):
        if re.match("RANK|WORLD_|LOCAL_|MASTER_|OMPI_|PMI|SLURM_", name):
            monkeypatch.delenv(name)
    data = [(torch.zeros(2), i % 2) for i in range(32)]
    for variables in [*ALONE, *SEVERAL]:
        with monkeypatch.context() as patched:
            for name, value in variables.items():
                patched.setenv(name, value)
            if variables in ALONE:
                decentral.join("ring").close()
                continue
            calls = [
                lambda: decentral.join("ring"),
                lambda: decentral.train(torch.nn.Linear(2, 2), data, data, num_workers=4, batch_size=2),
            ]
            for call in calls:
                with pytest.raises(ConfigError, match=r"torchrun --nproc-per-node=[2N4] script\.py") as refused:
                    call()
                told = str(refused.value)
                assert any(f"{key}={value}" in told for key, value in variables.items()), told
    monkeypatch.setenv("WORLD_SIZE", "2")
    for more in ([], ["-m", "seed=1,2"]):
        end = exit_status(main, *QUADRATICS, *more)
        told = capsys.readouterr().err
        assert end == 2 and told.count("\n") == 1 and "WORLD_SIZE=2: " in told and "launcher" in told


# -- The same work on many things, by several processes ----------------------------------------------------------------

TASKS = [(i,) for i in range(6)]


def square(i: int) -> tuple[int, int, str]:
    return i * i, os.getpid(), os.environ.get("BEGUN", "")


def refuse(i: int) -> int:
    if i == 2:
        raise ConfigError(f"task={i} is out of range.")
    return i


@pytest.mark.parametrize("num_processes", [1, 2])
def test_every_task_is_carried_out_once_and_has_its_number(num_processes: int) -> None:
    found = dict(carried_out(square, TASKS, num_processes))
    assert {i: value for i, (value, _, _) in found.items()} == {i: i * i for i in range(6)}
    assert (os.getpid() in {pid for _, pid, _ in found.values()}) == (num_processes == 1)


def killed_once(folder: str, i: int) -> int:
    if i == 3 and not (Path(folder) / "killed").exists():
        (Path(folder) / "killed").touch()
        os.kill(os.getpid(), signal.SIGKILL)
    return os.getpid()


def test_work_of_a_killed_process_is_done_here(tmp_path: Path) -> None:
    found = dict(carried_out(killed_once, [(str(tmp_path), i) for i in range(8)], 2))
    assert sorted(found) == list(range(8)) and found[3] == os.getpid()


def test_a_script_without_a_guard_is_not_carried_out_in_each_process(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    lines = ["print('script')", "import operator", "from decentral.host.processes import carried_out"]
    script.write_text("\n".join([*lines, "print(sorted(carried_out(operator.neg, [(1,), (2,)], 2)))"]))
    said = subprocess.run([sys.executable, script], capture_output=True, text=True, timeout=240, check=True).stdout
    assert said == "script\n[(0, -1), (1, -2)]\n"


@pytest.mark.parametrize("num_processes", [1, 2])
def test_exceptions_of_tasks_are_raised(num_processes: int) -> None:
    with pytest.raises(ConfigError, match="task=2 is out of range"):
        list(carried_out(refuse, TASKS, num_processes))
