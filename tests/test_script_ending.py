"""How a script ends when its ranks do different things: with one sentence, first, once, and within the timeout."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from datetime import timedelta
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

import decentral
from decentral.errors import ConfigError
from decentral.script import ending
from decentral.script.handle import hinted

SCRIPT = """
import datetime, sys, time
import torch
import torch.distributed as dist
import decentral

mode, told, afterwards = sys.argv[1:]
if told == "init":
    dist.init_process_group("gloo", timeout=datetime.timedelta(seconds=15))
model = torch.nn.Linear(3, 1)
settings = {"timeout_s": 15} if told == "wrap" else {}
optimizer = decentral.wrap(model, torch.optim.SGD(model.parameters(), lr=0.05), "ring", mode=mode, **settings)
for batch in range(5 if optimizer.peers.rank == 0 else 3):
    optimizer.zero_grad()
    model(torch.randn(4, 3)).sum().backward()
    optimizer.step()
if afterwards == "sleep":
    time.sleep(100)
"""


@pytest.fixture
def ended_by(monkeypatch: pytest.MonkeyPatch):
    """A function that ends a script with an exception, as Python does."""
    monkeypatch.setattr(sys, "excepthook", sys.__excepthook__)
    monkeypatch.setattr(ending, "_is_first", lambda: True)
    ending.end_in_a_sentence()

    def end(error: BaseException, hint: bool = False) -> None:
        try:
            if not hint:
                raise error
            with hinted():
                raise error
        except BaseException as raised:
            sys.excepthook(type(raised), raised, raised.__traceback__)

    return end


def test_an_error_that_ranks_suffer_from_each_other_is_a_sentence_with_the_line_of_the_script(ended_by, capsys):
    ended_by(ConnectionError("connection closed by process 1 of this run"), hint=True)
    said = capsys.readouterr().err
    assert len(said.splitlines()) == 1 and "Traceback" not in said
    assert said.startswith("decentral: ") and f"{__file__}, line " in said
    assert "connection closed by process 1" in said and "peers.equally(batches)" in said


def test_the_line_is_the_users_inside_averaged_too(ended_by, capsys, monkeypatch):
    """Though Python's own contextlib lies between."""

    def gone(*_: object) -> None:
        raise ConnectionError("gone")

    model = torch.nn.Linear(2, 1)
    with decentral.join() as peers:
        optimizer = decentral.wrap(model, torch.optim.SGD(model.parameters(), lr=0.1), peers=peers)
        monkeypatch.setattr("decentral.script.optimizer.agree", gone)
        try:
            with optimizer.averaged():
                pass
        except ConnectionError as error:
            sys.excepthook(type(error), error, error.__traceback__)
    assert capsys.readouterr().err.startswith(f"decentral: rank 0, {__file__}, line ")


def test_what_the_library_refuses_is_a_sentence(ended_by, capsys):
    ended_by(ConfigError("mode='ac' does not exist. Did you mean 'atc'?"))
    said = capsys.readouterr().err
    assert len(said.splitlines()) == 1 and said.endswith("Did you mean 'atc'?\n")


def test_other_exceptions_and_those_that_are_asked_for_keep_their_tracebacks(ended_by, capsys, monkeypatch):
    ended_by(RuntimeError("of the script itself"))
    assert "Traceback" in capsys.readouterr().err
    monkeypatch.setenv("DECENTRAL_TRACEBACK", "1")
    ended_by(ConnectionError("gone"), hint=True)
    assert "Traceback" in capsys.readouterr().err


def test_the_second_rank_to_end_is_silent(monkeypatch):
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    where = {"RANK": "1", "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(store.port)}
    for name, value in where.items():
        monkeypatch.setenv(name, value)
    assert [ending._is_first() for _ in range(2)] == [True, False]


def test_a_group_that_the_script_made_waits_as_long_as_it_was_told():
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1, timeout=timedelta(seconds=7))
    try:
        assert decentral.join().timeout_s == 7
        assert decentral.join(timeout_s=3).timeout_s == 3
    finally:
        dist.destroy_process_group()
    with decentral.join() as peers:
        assert peers.timeout_s == 120


@pytest.mark.slow
@pytest.mark.parametrize(
    ("mode", "told", "afterwards", "says"),
    [
        ("atc", "init", "end", "closed by process"),
        ("awc", "init", "sleep", "after 15 s"),
        ("atc", "wrap", "sleep", "after 15 s"),
        ("allreduce", "wrap", "sleep", "after 15 s"),
    ],
)
def test_ranks_with_different_numbers_of_batches_end_in_one_sentence(
    mode: str, told: str, afterwards: str, says: str, tmp_path: Path
):
    (tmp_path / "script.py").write_text(SCRIPT)
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=3", "script.py"]
    began = time.monotonic()
    done = subprocess.run(
        [*torchrun, mode, told, afterwards], cwd=tmp_path, capture_output=True, text=True, env={**os.environ}
    )
    said = done.stderr.splitlines()
    assert done.returncode != 0 and time.monotonic() - began < 100  # not as long as the others sleep
    sentences = [line for line in said if line.startswith("decentral: ")]
    assert len(sentences) == 1 and "script.py, line " in sentences[0] and says in sentences[0], done.stderr
    before = said[: said.index(sentences[0])]
    assert not any("Traceback" in line or line.startswith("[rank") for line in before)
    assert "script.py, line" not in "".join(line for line in said if line not in sentences)
