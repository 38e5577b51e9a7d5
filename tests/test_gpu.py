"""What a GPU computes is what a CPU computes, and recorded passes are the usual ones; skipped where there is no GPU."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch
from torch import Tensor

from decentral.config.composition import compose
from decentral.gradients.passes import replayed
from decentral.network.world import World
from decentral.training.assemble import assemble

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")

STEPS = 12
BASE = ("precision=fp64", "num_workers=8", "batch_size=8", f"steps={STEPS}", "processes=1", "launcher=local")
LOCKSTEP = (
    "allreduce",
    "d2",
    "dmsgd",
    "dpsgd",
    "gradient_tracking",
    "local_sgd",
    "qg_dpsgd",
    "relaysgd",
    "sgp",
    "choco",
    "beer",
)
ASYNCHRONOUS = ("wagma", "eager_sgd", "adpsgd", "a2cid2", "async_push_sum")
COMPRESSED = ("topk", "lwtopk", "artopk", "mstopk", "randomk", "threshold", "bf16", "int8", "sign", "powersgd")


def trained(device: str, overrides: Sequence[str]) -> tuple[Tensor, dict[str, Tensor], int]:
    """Models and buffers after some steps, on the CPU, and how many times the passes were recorded."""
    config = compose([*BASE, *overrides, f"device={device}"])
    with torch.no_grad():
        run = assemble(config, World(0, 1, torch.device(device, 0) if device == "cuda" else torch.device(device)))
        for _ in range(STEPS):
            run.stepper.step()
        run.stepper.flush()
        recordings = len(getattr(getattr(run.problem, "passes", None), "_recordings", ()))
        states = enumerate(run.problem.model_states())
        buffers = {
            f"{i} {name}": buffer.double().cpu() for i, state in states for name, buffer in state["tensors"].items()
        }
        models = run.stepper.models.cpu().clone()
        run.close()
    return models, buffers, recordings


CASES = [
    *([f"algo={name}"] for name in LOCKSTEP),
    *([f"algo={name}", "cluster=two_delayed"] for name in ASYNCHRONOUS),
    *(["algo=allreduce", f"compress={name}"] for name in COMPRESSED),
    ["algo=dpsgd", "topology=ring", "execution=batched"],
    ["algo=dpsgd", "topology=ring", "optim=adam"],
    ["algo=d2", "topology=ring", "task=quadratics"],
]


@pytest.mark.parametrize("overrides", CASES, ids=" ".join)
def test_a_gpu_takes_the_steps_of_a_cpu(overrides: list[str]) -> None:
    (cpu, _, _), (gpu, _, _) = trained("cpu", overrides), trained("cuda", overrides)
    torch.testing.assert_close(gpu, cpu, rtol=0, atol=1e-9)


SYNTHETIC = ("data=synthetic", "data.image_size=32", "partition=iid")
PASSES = [
    [*SYNTHETIC, "model=vgg11", "algo=dpsgd", "topology=ring"],  # draws dropout
    [*SYNTHETIC, "model=vgg11", "algo=adpsgd", "cluster=two_delayed"],  # some workers at a time
    ["model=cnn", "algo=relaysgd", "topology=dbt"],
    ["model=cnn", "algo=dpsgd", "topology=ring", "execution=batched"],
    ["model=resnet18", "algo=dpsgd", "topology=ring"],  # changes batch statistics
]


@pytest.mark.parametrize("overrides", PASSES, ids=" ".join)
def test_recorded_passes_are_the_usual_ones(overrides: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    models, buffers, recordings = trained("cuda", overrides)
    assert recordings > 0
    monkeypatch.setattr(replayed, "replayed", lambda passes: passes)
    usual, usual_buffers, none = trained("cuda", overrides)
    assert none == 0
    torch.testing.assert_close(models, usual, rtol=0, atol=1e-6)
    torch.testing.assert_close(buffers, usual_buffers, rtol=0, atol=1e-6)
