"""`decentral.checkpoint` and `decentral.resume`: a training in which a rank dies ends as one without a failure.

Every algorithm is resumed in test_script_algorithms.py, the page's script, under torchrun, in test_documents.py.
"""

from __future__ import annotations

import os
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import decentral
from decentral.errors import ConfigError
from decentral.network.world import World
from decentral.script import resuming

STEPS, EVERY = 8, 3
MODES: dict[str, dict[str, Any]] = {
    "atc": {"overlap": True},
    "awc": {},
    "push_sum": {"topology": "star", "weights": "uniform"},
    "allreduce": {},
}


def network() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Dropout(0.2), nn.Linear(8, 2))


def ended() -> None:
    os._exit(1)


def trained(rank: int, mode: str, death: str) -> None:
    """Train with data from the three generators; rank 1 dies at the second checkpoint, or at the first."""
    torch.manual_seed(rank), np.random.seed(rank), random.seed(rank)
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    optimizer = decentral.wrap(model, optimizer, mode=mode, **MODES[mode])
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 2, 0.7)
    folder = Path("checkpoints") / mode
    told = decentral.resume(folder, model, optimizer, scheduler=scheduler, drawn=[])
    first, drawn = told["step"], told["drawn"]
    for step in range(first, STEPS):
        x = torch.randn(6, 4) + random.random() + np.random.normal()
        drawn.append(np.float64(x[0, 0]))
        optimizer.zero_grad()
        nn.functional.mse_loss(model(x), x[:, :2]).backward()
        optimizer.step()
        scheduler.step()
        if step % EVERY == EVERY - 1:
            is_last = rank == 1 and step == {"first": EVERY - 1}.get(death, 2 * EVERY - 1)
            dying = {"first": "save_part", "writing": "save_part", "renaming": "sync_directory"}.get(death)
            if is_last and dying:
                setattr(resuming, dying, lambda *_: ended())
            decentral.checkpoint(folder, model, optimizer, scheduler=scheduler, drawn=drawn)
            if is_last and death == "after":
                ended()
    torch.save((first, [*map(float, drawn)], model.state_dict()), f"{mode}{death}{rank}.pt")
    optimizer.close()


@pytest.mark.parametrize(
    ("mode", "death", "resumed"),
    [
        ("push_sum", "writing", 3),
        pytest.param("atc", "renaming", 6, marks=pytest.mark.slow),
        pytest.param("awc", "after", 6, marks=pytest.mark.slow),
        pytest.param("allreduce", "first", 0, marks=pytest.mark.slow),
    ],
)
def test_a_training_in_which_a_rank_dies_ends_as_without(ranks, tmp_path: Path, mode: str, death: str, resumed: int):
    def ends(death: str, codes: list[int]) -> list[Any]:
        ranks.call(trained, 3, tmp_path, mode, death)
        assert ranks.codes == codes
        return [torch.load(tmp_path / f"{mode}{death}{rank}.pt") for rank in range(3)] if not any(codes) else []

    whole = ends("", [0, 0, 0])
    for file in (tmp_path / "checkpoints").rglob("*.pt"):
        file.unlink()
    ends(death, [1, 1, 1])
    for (_, drawn, model), (first, again, other) in zip(whole, ends(" again", [0, 0, 0]), strict=True):
        assert (first, again) == (resumed, drawn)
        torch.testing.assert_close(other, model, rtol=0, atol=0)
    left = sorted(file.name for file in (tmp_path / "checkpoints" / mode).rglob("*.pt"))
    assert left == [f"rank{rank}of3.pt" for rank in range(3)]


def refused(world: World, folder: Path, case: str) -> str:
    """What a rank is told by a checkpoint, or when it resumes what it wrote."""
    peers = decentral.join("ring")

    def wrapped(width: int = 8, algo: str = "d2") -> tuple[nn.Module, Any]:
        torch.manual_seed(world.rank)
        model = nn.Linear(4, width)
        return model, decentral.wrap(model, torch.optim.SGD(model.parameters(), lr=0.1), peers=peers, algo=algo)

    model, optimizer = wrapped()
    file = folder / "5" / f"rank{world.rank}of{world.size}.pt"
    try:
        if case == "values":
            decentral.checkpoint(folder, model, optimizer, best=print)
        if case == "mean":
            with optimizer.averaged():
                decentral.checkpoint(folder, model, optimizer)
        if case == "steps":
            decentral.checkpoint(folder, model, optimizer, step=world.rank)
        decentral.checkpoint(folder, model, optimizer, step=5, scaler=torch.amp.GradScaler("cpu"))
        if case == "lost" and world.rank == 1:
            file.unlink()
        if case == "damaged" and world.rank == 1:
            os.truncate(file, 1000)
        if case == "ranks":
            file.rename(file.with_name(f"rank{world.rank}of7.pt"))
        optimizer.close()
        model, optimizer = wrapped(9 if case == "model" else 8, "extra" if case == "algo" else "d2")
        more = {} if case == "objects" else {"scaler": torch.amp.GradScaler("cpu")}
        decentral.resume(folder, model, optimizer, **more)
        told = ""
    except ConfigError as error:
        told = str(error)
    if told:
        optimizer.close()
        return told
    nn.functional.mse_loss(model(torch.ones(2, 4)), torch.ones(2, 8)).backward()
    optimizer.step()  # at once: these weights are those of rank 0, as after wrap
    optimizer.close()
    return "resumed"


REFUSED = {
    "nothing": "resumed",
    "values": "a checkpoint holds tensors, numbers, strings, dicts and lists, not builtin_function_or_method",
    "steps": "checkpoint of model, optimizer at step",
    "mean": "inside averaged(), all ranks have the mean instead of their own models",
    "lost": "lost/5/rank1of2.pt, which all ranks had: restore it",
    "damaged": "rank1of2.pt cannot be resumed: ",
    "ranks": "has files of 7 ranks, not of 2: start as many",
    "model": "RuntimeError: Error(s) in loading state_dict for Linear: size mismatch for weight",
    "algo": "is of D2, not of EXTRA",
    "objects": "scaler= was given to one of decentral.checkpoint and decentral.resume only",
}


def test_invalid_checkpoints_are_refused_on_every_rank(worlds, tmp_path: Path):
    for case, says in REFUSED.items():
        for told in worlds(2).call(refused, tmp_path / case, case):
            assert says in told, (case, told)


def in_a_loop_of_ones_own(world: World, folder: Path) -> tuple[Any, Tensor]:
    peers, model = decentral.join("ring"), nn.Linear(2, 1)
    optimizer = torch.optim.Adam(model.parameters())
    decentral.checkpoint(folder, model, optimizer, step=4, peers=peers)
    before = model.weight.detach().clone()
    nn.init.zeros_(model.weight)
    told = decentral.resume(folder, model, optimizer, peers=peers)
    with pytest.raises(ConfigError, match=r"optimizer= is a plain Adam: give the one"):
        decentral.resume(folder, model, optimizer)
    with pytest.raises(ConfigError, match="step=-1 is out of range"):
        decentral.checkpoint(folder, model, optimizer, peers=peers)
    return told, model.weight.detach() - before


def test_without_wrap_the_group_and_the_step_are_given(worlds, tmp_path: Path):
    for told, difference in worlds(2).call(in_a_loop_of_ones_own, tmp_path / "checkpoints"):
        assert told == {"step": 4} and not difference.any()
