"""Started by torchrun: for each case of a JSON file, a few steps of a script's own loop around `decentral.wrap`.

Every rank minimizes 1/2 ||A_i x - b_i||^2, with x in two parameters; its models after each step [steps + 1, P] go to
FOLDER/<case>.<rank>.npy.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

import decentral


class Quadratic(nn.Module):
    """x in two parameters, of which the model's row is made in this order."""

    def __init__(self, A: Tensor, b: Tensor, x0: Tensor) -> None:
        super().__init__()
        self.A, self.b = A, b
        self.first = nn.Parameter(x0[:6].view(2, 3).clone())
        self.rest = nn.Parameter(x0[6:].clone())

    @property
    def x(self) -> Tensor:
        return torch.cat([self.first.reshape(-1), self.rest])

    def forward(self) -> Tensor:
        return 0.5 * (self.A @ self.x - self.b).square().sum()


def trained(case: dict[str, Any], problem: Any, rank: int) -> np.ndarray:
    torch.manual_seed(0)
    model = Quadratic(*(torch.from_numpy(part) for part in (problem["A"][rank], problem["b"][rank], problem["x0"])))
    inner = getattr(torch.optim, case["optimizer"])(model.parameters(), **case["optimizer_settings"])
    optimizer = decentral.wrap(
        model,
        inner,
        case["topology"],
        algo=case["algo"],
        algo_settings=case["algo_settings"],
        compress=case["compress"],
        compress_settings=case["compress_settings"],
        **case["settings"],
    )
    settles = case["algo"] == "async_push_sum"  # brings home what is on its way, as a run with trace=true does
    found = [model.x.detach().numpy().copy()]
    for _ in range(case["steps"]):
        optimizer.zero_grad()
        model().backward()
        optimizer.step()
        if settles:
            optimizer.state_dict()
        found.append(model.x.detach().numpy().copy())
    optimizer.close()
    optimizer.peers.close()
    return np.stack(found)


def main(cases: Path, folder: Path) -> None:
    rank = int(os.environ["RANK"])
    torch.set_num_threads(1)
    with np.load(folder / "problem.npz") as file:
        problem = dict(file)
    for name, case in json.loads(cases.read_text()).items():
        np.save(folder / f"{name}.{rank}.npy", trained(case, problem, rank))


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
