"""The kernels of Triton, computed by its interpreter on a CPU: run with TRITON_INTERPRET=1 in the environment."""

import math
from unittest import mock

import torch
import triton
import triton.language as tl

from decentral.config.composition import compose
from decentral.config.prepared import prepare
from decentral.gradients.passes import windows
from decentral.gradients.passes.columns import Geometry
from decentral.network import kernels, sums
from decentral.network.world import World
from decentral.training.assemble import assemble

GEOMETRIES = [
    Geometry((3, 3), (1, 1), (1, 1), (1, 1)),
    Geometry((3, 2), (2, 1), (0, 2), (1, 2)),
    Geometry((1, 1), (3, 2), (0, 0), (1, 1)),
    Geometry((2, 3), (1, 3), (1, 0), (2, 1)),
]
NETWORKS = [
    (["algo=dpsgd", "topology=ring", "num_workers=5"], 1),
    (["algo=dpsgd", "topology=exponential", "num_workers=8"], 1),
    (["algo=sgp", "topology=one_peer_exponential", "num_workers=8"], 1),
    (["algo=relaysgd", "topology=dbt", "num_workers=7"], 4),
    (["algo=relaysgd", "topology=dbt", "topology.split=interleaved", "num_workers=7"], 4),
    (["algo=relaysgd", "topology=star", "num_workers=8"], 2),
    (["algo=relaysgd", "topology=star", "num_workers=30"], 0),  # more terms than the kernel takes
]


def check_windows(geometry: Geometry) -> None:
    """Windows are those of torch's views, and what is added up is added up in the same places."""
    x, block = torch.randn(2, 2, 6, 5, 4, dtype=torch.float64), 64
    outputs, images = geometry.outputs((6, 5)), 4
    size = math.prod(outputs) * 4
    expected = windows._windows(x, outputs, geometry).reshape(2, -1, size)
    shape = 6, 5, 4, *outputs, *sum(geometry, ())
    columns = torch.empty_like(expected)
    windows._unfold[images, triton.cdiv(size, block)](x, columns, *shape, block)
    assert torch.equal(columns, expected), geometry
    parts, found = torch.randn_like(expected), torch.empty_like(x)
    windows._fold[images, triton.cdiv(6 * 5 * 4, block)](parts, found, *shape, block, tl.float64)
    torch.testing.assert_close(found, windows.fold(parts, x.shape, outputs, geometry), rtol=0, atol=1e-14)


def steps(overrides: list[str]) -> tuple[torch.Tensor, int]:
    """The models after some steps, and how often the kernel was launched in each of them."""
    common = ["precision=fp64", "batch_size=8", "steps=9", "processes=1", "launcher=local", "logger=none"]
    config = compose([*common, "task=images", "model=mlp", "model.hidden=[3]", "alpha=0.1", *overrides])
    with torch.no_grad(), mock.patch.object(sums, "write", side_effect=sums.write) as write:
        run = assemble(prepare(config), World(0, 1, torch.device("cpu")))
        for _ in range(4):
            run.stepper.step()
        run.close()
    return run.stepper.models.clone(), write.call_count // 4


def check_sums(overrides: list[str], launches: int) -> None:
    """Steps are the same with the kernel as without."""
    with mock.patch.object(kernels, "small", return_value=False):
        expected, none = steps(overrides)
        with mock.patch.object(kernels, "on_gpu", return_value=True):
            found, some = steps(overrides)
    assert (none, some) == (0, launches), (overrides, none, some)
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-14)


def check_nan() -> None:
    """A nan stays with those who took it."""
    x = torch.randn(6, 100)
    x[2, 7] = math.nan
    terms = sums.Terms.of([[(i, 0.5), ((i + 1) % 6, 0.5)] for i in range(6)], x)
    sums.write(x, torch.arange(6, dtype=torch.int32), (x, terms))
    assert x.isnan().nonzero().tolist() == [[1, 7], [2, 7]]


if __name__ == "__main__":
    check_nan()
    for geometry in GEOMETRIES:
        check_windows(geometry)
    for overrides, launches in NETWORKS:
        check_sums(overrides, launches)
