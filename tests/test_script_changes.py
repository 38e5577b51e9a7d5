"""What a script does to a model and its optimizer before and after `decentral.wrap`: right, or one sentence."""

from __future__ import annotations

import copy
import io
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import decentral
from decentral.errors import ConfigError
from decentral.network.world import World

HOW: dict[str, dict[str, Any]] = {
    "atc": {"mode": "atc"},
    "overlap": {"mode": "atc", "overlap": True, "bucket_mb": 1e-5},
    "awc": {"mode": "awc"},
    "push_sum": {"mode": "push_sum"},
    "allreduce": {"mode": "allreduce"},
    "algo": {"algo": "dpsgd"},
}


def network(seed: int = 0) -> nn.Sequential:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1)).double()


def batch(rank: int, step: int = 0) -> tuple[Tensor, Tensor]:
    x = torch.randn(6, 4, generator=torch.Generator().manual_seed(100 * rank + step)).double()
    return x, x.sum(1, keepdim=True)


def backward(model: nn.Module, rank: int, step: int = 0) -> None:
    x, y = batch(rank, step)
    F.mse_loss(model(x), y).backward()


def values(model: nn.Module) -> Tensor:
    return torch.cat([p.detach().reshape(-1) for p in model.parameters()])


# -- after wrap --------------------------------------------------------------------------------------------------------


def unfreeze(model: Any, optimizer: Any) -> None:
    model[0].requires_grad_(True)


def unfreeze_one(model: Any, optimizer: Any) -> None:
    model[0].bias.requires_grad = True


def give_a_gradient(model: Any, optimizer: Any) -> None:
    model[0].bias.grad = torch.ones(8, dtype=torch.float64)


def add_a_group(model: Any, optimizer: Any) -> None:
    optimizer.inner.add_param_group({"params": [nn.Parameter(torch.ones(2))]})


def append_to_a_group(model: Any, optimizer: Any) -> None:
    optimizer.param_groups[0]["params"].append(nn.Parameter(torch.ones(2)))


def replace_a_module(model: Any, optimizer: Any) -> None:
    model[2] = nn.Linear(8, 1).double()


def replace_and_add(model: Any, optimizer: Any) -> None:
    replace_a_module(model, optimizer)
    optimizer.inner.add_param_group({"params": list(model[2].parameters())})


def replace_a_parameter(model: Any, optimizer: Any) -> None:
    model[2].bias = nn.Parameter(torch.zeros(1, dtype=torch.float64))


def add_a_module(model: Any, optimizer: Any) -> None:
    model[0].adapter = nn.Linear(2, 2)


def assign_a_state(model: Any, optimizer: Any) -> None:
    model.load_state_dict({key: value.clone() for key, value in model.state_dict().items()}, assign=True)


def cast(model: Any, optimizer: Any) -> None:
    model.float()


def give_other_memory(model: Any, optimizer: Any) -> None:
    model[2].weight.data = model[2].weight.data.clone()


CHANGES = [
    (unfreeze, "0.weight is trained now"),
    (unfreeze_one, "0.bias is trained now"),
    (give_a_gradient, "0.bias is trained now"),
    (add_a_group, "param_groups have changed"),
    (append_to_a_group, "param_groups have changed"),
    (replace_a_module, "new parameters (2.weight, 2.bias)"),
    (replace_and_add, "param_groups have changed"),
    (replace_a_parameter, "new parameters (2.bias)"),
    (add_a_module, "new parameters (0.adapter.weight, 0.adapter.bias)"),
    (assign_a_state, "new parameters"),
    (cast, "not where decentral.wrap has put them"),
    (give_other_memory, "p.data.copy_"),
]


def changed(world: World, how: str, change: Callable[[Any, Any], None], who: range, averages: bool) -> str:
    """The sentence that this rank hears at a step, or at `averaged()`, after some ranks have changed something."""
    model = network()
    model[0].requires_grad_(False)
    optimizer = decentral.wrap(model, torch.optim.SGD(model.parameters(), lr=0.1), "ring", timeout_s=30, **HOW[how])
    backward(model, world.rank)
    optimizer.step()
    optimizer.zero_grad()
    if world.rank in who:
        change(model, optimizer)
    try:
        if averages:
            with optimizer.averaged():
                pass
        else:
            if change not in (cast, assign_a_state):  # after which the forward pass itself may fail
                backward(model, world.rank)
            for _ in range(3):  # a neighbor hears of it at once, a neighbor of its a step later
                optimizer.step()
    except ConfigError as error:
        return str(error)
    finally:
        optimizer.close()
    return ""


@pytest.mark.parametrize(("change", "says"), CHANGES)
def test_what_changes_after_wrap_is_refused_on_every_rank(worlds, change: Callable[[Any, Any], None], says: str):
    for how, who, averages in (("atc", range(3), False), ("algo", range(1, 2), False), ("awc", range(1), True)):
        heard = worlds(3).call(changed, how, change, who, averages)
        assert all(says in sentence for sentence in heard), (how, heard)
        assert [sentence.startswith("rank ") for sentence in heard] == [rank not in who for rank in range(3)]


@pytest.mark.parametrize("how", HOW)
def test_one_rank_that_unfreezes_is_heard_by_all(worlds, how: str):
    for sentence in worlds(4).call(changed, how, unfreeze, range(2, 3), False):
        assert "0.weight is trained now" in sentence and "broadcast_from=None" in sentence
