"""In one process, a run takes the memory of the algorithm's own rows and little more."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from table import ALGORITHMS

CODE = 5e7
"""Bytes of libraries that are read from their files on the way, more or fewer from machine to machine."""

MEASURE = """
import json, resource, sys
from decentral.config.composition import compose
config, small = compose(sys.argv[1:]), compose([*sys.argv[1:], "num_workers=2", "model.hidden=[4]"])
config.task.prepare(config)
import torch
from pathlib import Path
from decentral.training.run import run
from decentral.network.world import World
import decentral.training.run, decentral.training.checkpoint
torch.set_num_threads(1)
run(small, World(0, 1, torch.device("cpu")), Path(config.run_dir + "-small"))  # imports what the other one needs, too
peak = lambda: resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
assemble, rows = decentral.training.run.assemble, []
def measured(config, world):
    r = assemble(config, world)
    rows.append(r.stepper.models.numel() * 4)  # the gradients
    for _, _, value in decentral.training.checkpoint.state_fields(r.stepper.state):
        rows.extend(t.numel() * t.element_size() for t in (value if isinstance(value, tuple) else (value,)))
    return r
decentral.training.run.assemble = measured
before = peak()
run(config, World(0, 1, torch.device("cpu")), Path(config.run_dir))
print(json.dumps([peak() - before, sum(rows)]))
"""


@pytest.mark.slow
@pytest.mark.parametrize("name", ["dpsgd", "relaysgd", "gradient_tracking", "sgp"])
def test_the_peak_is_within_a_quarter_of_the_rows(name: str, tmp_path: Path) -> None:
    settings = [f"algo={name}", f"topology={ALGORITHMS[name].nets[0].topology}", "num_workers=16", "model=mlp"]
    settings += ["model.hidden=[1500,1500]", "optim=nesterov", "steps=3", "batch_size=8", "progress=false"]
    command = [sys.executable, "-c", MEASURE, *settings, f"run_dir={tmp_path / 'run'}"]
    printed = subprocess.run(command, check=True, capture_output=True, text=True, timeout=120).stdout
    taken, rows = json.loads(printed.splitlines()[-1])
    assert rows > 4e8, "too small to say anything"
    assert taken < 1.25 * rows + CODE
