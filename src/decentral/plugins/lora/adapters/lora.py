"""LoRA: low-rank adapters."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from decentral.errors import ConfigError
from decentral.host.machine import Lazy, require
from decentral.models.adapters import Adapter
from decentral.registry import blame
from decentral.settings import setting

if TYPE_CHECKING:
    import torch
    from torch import Tensor, nn

    from decentral.compression.rows import RowLayout
else:
    torch = Lazy("torch")

_HEADS = ("score", "classifier", "pre_classifier")  # of classes: new, so they are trained in full
_ZERO = 1e-12


@dataclass
class Lora(Adapter, where="model.lora"):
    """Low-rank adapters (Hu et al., ICLR 2022, arXiv:2106.09685), by the library peft: W + alpha / rank B A.

    A [rank, inputs] begins with random values, B [outputs, rank] with zeros. Everything else is frozen, except layers
    named score, classifier or pre_classifier of a model for classes, which are trained in full.

    `average` says what the averaged model is: the one that evaluations test (with those of groups of workers) and that
    is stored. The mean of B_j and the mean of A_j (factors) are biased, since their product is not the mean product:
    mean(B) mean(A) - mean(B A) = -1/n sum_j (B_j - mean(B)) (A_j - mean(A)). With product, the adapter is the best of
    its rank for the mean product:

        M = 1/n sum_j B_j A_j = U S V^T,   B = U sqrt(S),   A = sqrt(S) V^T   for the `rank` largest singular values

    in float64. In each column of U the entry of largest absolute value, the first of equal ones, is positive. Singular
    values up to 1e-12 of the largest count as 0. The error |M - B A|_F^2 is the sum of the squares of the other
    singular values: 0 if all workers have equal adapters, otherwise M may have rank n * `rank`. All other parameters of
    the averaged model are means. Workers exchange and mix A and B themselves, whatever `average` is.

    rank      rank of B A
    targets   names of the layers, or their ends, such as [q_proj,v_proj]; null: peft's choice for the kind of model
    alpha     scale of B A, times the rank
    dropout   dropout on the inputs of A
    average   factors: the mean of B and the mean of A; product: the best B A for their mean product
    """

    name: str = "lora"
    rank: int = setting(8, at_least=1)
    targets: list[str] | None = None
    alpha: int = setting(8, at_least=1)
    dropout: float = setting(0.0, at_least=0, below=1)
    average: str = setting("factors", choices=("factors", "product"))

    def adapt(self, module: nn.Module, has_classes: bool) -> tuple[nn.Module, str]:
        """See `Adapter`."""
        require("peft", "model.lora", "pip install '.[lora]'")
        from peft import LoraConfig, inject_adapter_in_model

        config = LoraConfig(r=self.rank, lora_alpha=self.alpha, lora_dropout=self.dropout, target_modules=self.targets)
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "fan_in_fan_out")  # of GPT-2's layers: peft sets it
            try:
                adapted = inject_adapter_in_model(config, module)
            except ValueError as error:
                names = [name for name, part in module.named_modules() if getattr(part, "weight", None) is not None]
                ends = ", ".join(sorted({name.rpartition(".")[2] for name in names}))
                raise ConfigError(
                    f"model.lora.targets={self.targets}: {blame.sentence(error)}: use layers of {ends}."
                ) from error
        layers, heads = list[str](), list[str]()
        for name, part in adapted.named_modules():
            end = name.rpartition(".")[2]
            if has_classes and end in _HEADS:
                part.requires_grad_(True)
                heads.append(end)
            elif hasattr(part, "lora_A"):
                layers.append(end)
        kinds, apart = ", ".join(sorted({*layers})), f"; {', '.join(heads)} in full" if heads else ""
        number = f"{len(layers)} layer{'s' * (len(layers) != 1)}"
        return adapted, f"model.lora adapts {number} ({kinds}) with rank {self.rank}{apart}"

    def averaged(self, mean: Tensor, layout: RowLayout, rows: Callable[[slice], Tensor]) -> Tensor:
        """See `Adapter`."""
        if self.average == "factors":
            return mean
        places, mean = (
            dict(zip(layout.names, zip(layout.slices, layout.shapes, strict=True), strict=True)),
            mean.clone(),
        )
        for name in (name for name in places if "lora_A" in name or "lora_embedding_A" in name):
            both = [places[each] for each in (name.replace("lora_A", "lora_B").replace("ding_A", "ding_B"), name)]
            B, A = (rows(place).double().reshape(-1, shape[0], math.prod(shape[1:])) for place, shape in both)
            for (place, _), factor in zip(both, best_factors(B, A), strict=True):
                mean[place] = factor.reshape(-1).to(mean)
        return mean


def best_factors(B: Tensor, A: Tensor) -> tuple[Tensor, Tensor]:
    """Return the B [o, r] and A [r, i] of `Lora` for the mean product of B_j [m, o, r] and A_j [m, r, i].

    M = L R with L = [B_1 ... B_m] / m and R = [A_1; ...; A_m] is never formed: with L = Q_L T_L and R^T = Q_R T_R, its
    singular values are those of T_L T_R^T.
    """
    r = B.shape[2]
    Q_L, T_L = torch.linalg.qr(B.transpose(0, 1).flatten(1) / len(B))
    Q_R, T_R = torch.linalg.qr(A.flatten(0, 1).T)
    U, S, Vt = torch.linalg.svd(T_L @ T_R.T, full_matrices=False)
    U, S, V = Q_L @ U[:, :r], S[:r] * (S[:r] > _ZERO * S[0]), Q_R @ Vt[:r].T
    largest = U.gather(0, U.abs().argmax(0, keepdim=True))
    root, best_B, best_A = S.sqrt(), torch.zeros_like(B[0]), torch.zeros_like(A[0])
    best_B[:, : len(S)] = U * largest.sign() * root
    best_A[: len(S)] = (V * largest.sign() * root).T
    return best_B, best_A
