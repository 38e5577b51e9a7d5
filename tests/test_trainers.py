"""The scripts in examples/trainers: two processes end with the weights of a plain loop, also after an interruption,
in float64."""

from __future__ import annotations

import copy
import os
import subprocess
import sys
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.utils.data import random_split

EXAMPLES = Path(__file__).parents[1] / "examples" / "trainers"
EPOCHS, IMAGES, RANKS = 4, 1400, 2

DRIVER = """
import os, runpy, sys, torch
torch.set_default_dtype(torch.float64)
for name in sys.argv[1:]:
    os.chdir(name)
    for part in ("interrupted.py", "script.py"):
        found = runpy.run_path(part, run_name="__main__")
    torch.save([each.detach().cpu() for each in found["model"].parameters()], os.environ["RANK"] + ".pt")
    os.chdir("..")
"""


def permuted(count: int, seed: int) -> Tensor:
    return torch.randperm(count, generator=torch.Generator().manual_seed(seed))


def by_image(epoch: int, rank: int) -> Tensor:
    """Return the images of a rank, as DistributedSampler draws them."""
    return permuted(IMAGES, epoch)[rank::RANKS]


def by_batch(epoch: int, rank: int) -> Tensor:
    """Return the images of a rank, as Accelerate draws them."""
    return torch.cat(permuted(IMAGES, epoch).split(35)[rank::RANKS])


def within(epoch: int, rank: int) -> Tensor:
    """Return the images of a rank that has its own part, as Accelerate draws them with the Trainer's seed 42."""
    return torch.arange(rank, IMAGES, RANKS)[permuted(IMAGES // RANKS, 42 + epoch)]


def plain(drawn: Callable[[int, int], Tensor]) -> list[Tensor]:
    """Return the weights of two workers after D-PSGD with the settings of the examples."""
    x, y = (torch.tensor(values) for values in load_digits(return_X_y=True))
    torch.manual_seed(0)
    train = torch.tensor(random_split(range(len(x)), [IMAGES, len(x) - IMAGES])[0].indices)
    first = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))
    workers = []
    for model in (first, copy.deepcopy(first)):
        workers.append((model, torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)))
    for epoch in range(EPOCHS):
        for _, optimizer in workers:
            optimizer.param_groups[0]["lr"] = 0.1 * 0.8**epoch
        batches = [drawn(epoch, rank).split(35) for rank in range(RANKS)]
        for step in range(0, len(batches[0]), 2):
            for rank, (model, optimizer) in enumerate(workers):
                optimizer.zero_grad()
                for batch in batches[rank][step : step + 2]:
                    images = train[batch]
                    (nn.functional.cross_entropy(model(x[images] / 16), y[images]) / 2).backward()
                nn.utils.clip_grad_norm_(model.parameters(), 1.0)
                optimizer.step()
            with torch.no_grad():
                for ours, theirs in zip(*(model.parameters() for model, _ in workers), strict=True):
                    mean = (ours + theirs) / 2
                    ours.copy_(mean)
                    theirs.copy_(mean)
    return [each.detach() for each in workers[0][0].parameters()]


TRAINERS = {
    "fabric": ("lightning", by_image),
    "lightning_module": ("lightning", by_image),
    "accelerated": ("accelerate", by_batch),
    "hugging_face": ("transformers", within),
}


@pytest.mark.slow
def test_trainers_compute_what_a_plain_loop_does(tmp_path: Path) -> None:
    names = [name for name, (library, _) in TRAINERS.items() if find_spec(library)]
    if not names:
        pytest.skip("no trainer is installed: pip install '.[trainers]'")
    for name in names:
        source = (EXAMPLES / f"{name}.py").read_text().replace("x.float()", "x.double()")
        assert f"EPOCHS, BATCH_SIZE, ACCUMULATE = {EPOCHS}," in source
        (tmp_path / name).mkdir()
        (tmp_path / name / "interrupted.py").write_text(source.replace(f"ACCUMULATE = {EPOCHS},", "ACCUMULATE = 2,"))
        (tmp_path / name / "script.py").write_text(source)
    (tmp_path / "driver.py").write_text(DRIVER)
    command = [sys.executable, "-m", "torch.distributed.run", f"--nproc-per-node={RANKS}", "driver.py", *names]
    known = os.environ | {"OMP_NUM_THREADS": "1"}
    ended = subprocess.run(command, cwd=tmp_path, env=known, capture_output=True, text=True, timeout=400)
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout.count("rank ") == 2 * RANKS * len(names)
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        expected = {name: plain(TRAINERS[name][1]) for name in names}
    finally:
        torch.set_default_dtype(before)
    for name in names:
        for rank in range(RANKS):
            for ours, theirs in zip(torch.load(tmp_path / name / f"{rank}.pt"), expected[name], strict=True):
                torch.testing.assert_close(
                    ours, theirs, rtol=1e-9, atol=1e-9, msg=lambda told, name=name: f"{name}: {told}"
                )
