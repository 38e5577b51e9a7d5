"""In one process, a run takes the memory of the algorithm's own rows and little more."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from table import ALGORITHMS

MEASURE = """
import json, resource, sys
from decentral.composition import compose
config = compose(sys.argv[1:])
config.task.prepare(config)
import torch
from decentral.run import run
from decentral.world import World
import decentral.run, decentral.resume
torch.set_num_threads(1)
torch.nn.Linear(4, 4)(torch.zeros(1, 4)).sum().backward()
peak = lambda: resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
assemble, rows = decentral.run.assemble, []
def measured(config, world):
    r = assemble(config, world)
    rows.append(r.algorithm.models(r.state).numel() * 4)  # the gradients
    for _, _, value in decentral.resume._fields(r.state):
        rows.extend(t.numel() * t.element_size() for t in (value if isinstance(value, tuple) else (value,)))
    return r
decentral.run.assemble = measured
before = peak()
from pathlib import Path
run(config, World(0, 1, torch.device("cpu")), Path(config.run_dir))
print(json.dumps([peak() - before, sum(rows)]))
"""


@pytest.mark.parametrize("name", ["dpsgd", "relaysgd", "gradient_tracking", "sgp"])
def test_the_peak_is_within_a_quarter_of_the_rows(name: str, tmp_path: Path) -> None:
    settings = [f"algo={name}", f"topology={ALGORITHMS[name].nets[0].topology}", "num_workers=16", "model=mlp"]
    settings += ["model.hidden=[1500,1500]", "optim=nesterov", "steps=3", "batch_size=8", "progress=false"]
    command = [sys.executable, "-c", MEASURE, *settings, f"run_dir={tmp_path / 'run'}"]
    printed = subprocess.run(command, check=True, capture_output=True, text=True, timeout=120).stdout
    taken, rows = json.loads(printed.splitlines()[-1])
    assert rows > 4e8, "too small to say anything"
    assert taken < 1.25 * rows
