"""Settings of training that everyone expects, against plain PyTorch: alone, and n workers on the complete graph."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.optim.lr_scheduler import CosineAnnealingLR, LinearLR, SequentialLR

from configure import configure
from decentral.network.world import World
from decentral.training.assemble import assemble

STEPS = 12
SMALL = (
    *("algo=dpsgd", "topology=complete", "data=digits", "model=mlp", "model.hidden=[8]"),
    *("batch_size=4", "alpha=1", "precision=fp64", "lr=0.1", f"steps={STEPS}", "processes=1", "device=cpu"),
)
TEXT = (
    *("algo=dpsgd", "topology=complete", "task=text", "data.num_train=160", "data.num_test=20", "data.words=50"),
    *("batch_size=4", "alpha=1", "precision=fp64", "optim=sgd", "lr=0.1", f"steps={STEPS}"),
    *("processes=1", "device=cpu"),
)
HERE = World(0, 1, torch.device("cpu"))


def ours(*overrides: str) -> tuple[Tensor, Any]:
    """The models [n, P] after all steps, and the run."""
    run = assemble(configure(*overrides), HERE)
    with torch.no_grad():
        for _ in range(run.total_steps):
            run.stepper.step()
    return run.stepper.models.clone(), run


def theirs(loss: Callable[[Tensor, Tensor], Tensor], schedule: Callable[[Any], Any] | None, *overrides: str) -> Tensor:
    """The parameters [P] that plain SGD on the batches of all workers together has after all steps."""
    config = configure(*overrides)
    run = assemble(config, HERE)
    model = config.model.build(config.data.inspect()).double()
    nn.utils.vector_to_parameters(run.stepper.models[0], model.parameters())
    optimizer = torch.optim.SGD(model.parameters(), lr=config.lr)
    rates = schedule(optimizer) if schedule else None
    for t in range(STEPS):
        inputs, targets = run.problem.batch_of(None, t)
        if inputs.is_floating_point():
            inputs = inputs.double()
        optimizer.zero_grad()
        torch.stack([loss(model(one), their) for one, their in zip(inputs, targets, strict=True)]).mean().backward()
        optimizer.step()
        if rates is not None:
            rates.step()
    return nn.utils.parameters_to_vector(model.parameters()).detach()


def warmed_cosine(optimizer: Any) -> Any:
    ramp = LinearLR(optimizer, 0.1, 1.0, 4)
    return SequentialLR(optimizer, [ramp, CosineAnnealingLR(optimizer, STEPS - 4, 0.01)], milestones=[4])


Case = tuple[tuple[str, ...], Callable[[Tensor, Tensor], Tensor], Callable[[Any], Any] | None, tuple[str, ...]]
CASES: dict[str, Case] = {
    "cosine": (("schedule=cosine",), cross_entropy, lambda o: CosineAnnealingLR(o, STEPS), SMALL),
    "linear": (
        ("schedule=linear", "schedule.final_factor=0.2"),
        cross_entropy,
        lambda o: LinearLR(o, 1.0, 0.2, STEPS),
        SMALL,
    ),
}


@pytest.mark.parametrize("execution", ["loop", "batched"])
@pytest.mark.parametrize("n", [1, 3])
@pytest.mark.parametrize("name", CASES)
def test_it_is_plain_torch(name: str, n: int, execution: str) -> None:
    settings, loss, schedule, base = CASES[name]
    config = (*base, *settings, f"num_workers={n}", f"execution={execution}")
    found, run = ours(*config)
    assert run.problem.passes.execution == execution
    expected = theirs(loss, schedule, *config)
    torch.testing.assert_close(found, expected.expand(n, -1), rtol=0, atol=1e-12)
