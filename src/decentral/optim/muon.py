"""Muon: nearly orthogonalized momentum of matrices."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from math import prod, sqrt
from typing import TYPE_CHECKING, ClassVar

from decentral.optim.adam import AdamW
from decentral.optim.optimizer import Buffers, LocalRule, Taken
from decentral.optim.rows import add
from decentral.settings import setting

if TYPE_CHECKING:
    from torch import Tensor

    from decentral.compression.rows import RowLayout


class Polynomial(Enum):
    """The sequence of polynomials a s + b s^3 + c s^5 applied to the singular values."""

    quintic = "quintic"
    triples = "triples"
    polar_express = "polar_express"


class Scale(Enum):
    """The scale of an orthogonal direction of a matrix [r, c]."""

    original = "original"
    match_rms_adamw = "match_rms_adamw"
    spectral = "spectral"
    none = "none"


class Compute(Enum):
    """The type in which directions are orthogonalized."""

    own = "own"
    bf16 = "bf16"


_COEFFICIENTS = {
    Polynomial.quintic: ((3.4445, -4.7750, 2.0315),) * 5,
    Polynomial.triples: (
        (4.0848, -6.8946, 2.9270),
        (3.9505, -6.3029, 2.6377),
        (3.7418, -5.5913, 2.3037),
        (2.8769, -3.1427, 1.2046),
        (2.8366, -3.0525, 1.2012),
    ),
    Polynomial.polar_express: (
        (8.156554524902461, -22.48329292557795, 15.878769915207462),
        (4.042929935166739, -2.808917465908714, 0.5000178451051316),
        (3.8916678022926607, -2.772484153217685, 0.5060648178503393),
        (3.285753657755655, -2.3681294933425376, 0.46449024233003106),
        (2.3465413258596377, -1.7097828382687081, 0.42323551169305323),
    ),
}
_SCALES: dict[Scale, Callable[[int, int], float]] = {
    Scale.original: lambda r, c: sqrt(max(1.0, r / c)),
    Scale.match_rms_adamw: lambda r, c: 0.2 * sqrt(max(r, c)),
    Scale.spectral: lambda r, c: sqrt(r / c),
    Scale.none: lambda r, c: 1.0,
}


def hidden_matrices(layout: RowLayout, named: list[str], last: bool) -> list[bool]:
    """Return which parameters are hidden matrices: those with two or more dimensions whose names contain none of
    `named`; with `last`, the last matrix, the head, is not one."""
    numbers = [i for i, shape in enumerate(layout.shapes) if len(shape) > 1]
    hidden = {i for i in numbers[: len(numbers) - last] if not any(part in layout.names[i] for part in named)}
    return [i in hidden for i in range(len(layout.shapes))]


class _Places:
    """Positions of the matrices of each shape [r, c] and of all other parameters in a row; no settings."""

    _groups: dict[tuple[int, int], list[slice]]
    _others: list[slice]


@dataclass
class Muon(_Places, AdamW):
    """Muon for matrices, AdamW for all other parameters (Jordan et al., 2024, github.com/KellerJordan/Muon).

        m <- momentum m + g,   d = g + momentum m (nesterov), or m
        u  = -lr (s O(d) + weight_decay x)                          for a matrix [r, c]
        O(d):  X = d / |d|_F;   five times  A = X X^T,  X <- a X + (b A + c A^2) X

    so O applies five polynomials a s + b s^3 + c s^5 to the singular values of d, which move them close to 1. A
    convolution [o, i, h, w] is the matrix [o, i h w]. Vectors, matrices whose names contain one of `adamw`, and the
    last matrix (the head) use `u = -adamw_scale lr (d_adamw + weight_decay x)`. There is no communication. O is not
    linear: methods that average updates instead of gradients or models are not exact with it.

    momentum       momentum mu
    nesterov       Nesterov momentum, as in `torch.optim.Muon`; false: heavy ball, as in MuLoCo (arXiv:2505.23725)
    scale          s of a matrix [r, c]: original sqrt(max(1, r / c)), whose lr is about 0.02; match_rms_adamw 0.2
                   sqrt(max(r, c)), with which lr and weight_decay are AdamW's (Liu et al., arXiv:2502.16982); spectral
                   sqrt(r / c); none 1
    polynomial     quintic: that of Jordan et al., five times; triples: MuLoCo's; polar_express: Amsel et al.
                   (arXiv:2505.16932), with |d|_F taken 2 % larger
    norm_epsilon   added to |d|_F: 1e-8 in MuLoCo's code. That of Jordan et al. adds 1e-7 to (1 - mu) |d|_F, since its
                   momentum is m <- mu m + (1 - mu) g: here 1e-7 / (1 - mu). With 0, |d|_F is at least 1e-7
    compute        data type of O: own, that of the model, or bf16
    adamw          names, or parts of names, of matrices that AdamW updates: embeddings and heads
    adamw_last     AdamW also updates the last matrix
    adamw_scale    learning rate of AdamW's parameters, as a multiple of lr
    fused          names, or parts of names, of matrices [m c, c] that are m matrices: queries, keys and values in one
    """

    name: str = "muon"
    beta2: float = setting(0.95, at_least=0, below=1)
    weight_decay: float = setting(0.1, at_least=0)
    momentum: float = setting(0.95, at_least=0, below=1)
    nesterov: bool = True
    scale: Scale = Scale.match_rms_adamw
    polynomial: Polynomial = Polynomial.quintic
    compute: Compute = Compute.own
    adamw: list[str] = setting(["embedding", "tokens", "places", "head"])
    adamw_last: bool = True
    adamw_scale: float = setting(1.0, above=0)
    norm_epsilon: float = setting(0.0, at_least=0, older=0.0)
    fused: list[str] = setting([], older=[])
    num_buffers: ClassVar[int | None] = None  # rows of parts of a model

    def rule(self, lr: Callable[[int], float], layout: RowLayout) -> LocalRule:
        """Return the rule for rows of this layout: matrices of equal shape form a group with contiguous momentum."""
        bound = copy.copy(self)
        shapes = [(shape[0], prod(shape[1:])) if len(shape) > 1 else None for shape in layout.shapes]
        hidden = hidden_matrices(layout, self.adamw, self.adamw_last)
        bound._groups, bound._others = {}, []
        for i, (name, shape, place) in enumerate(zip(layout.names, shapes, layout.slices, strict=True)):
            if shape is None or not hidden[i]:
                bound._others.append(place)
            else:
                r, c = shape
                m = max(1, r // c) if any(part in name for part in self.fused) and c and r % c == 0 else 1
                size = r // m * c
                starts = [place.start + i * size for i in range(m)]
                bound._groups.setdefault((r // m, c), []).extend(slice(start, start + size) for start in starts)
        return LocalRule(bound, lr)

    def init(self, x: Tensor) -> Buffers:
        """Return the momentum of matrices and both moments of AdamW's parameters, all 0."""
        matrices = sum(r * c * len(places) for (r, c), places in self._groups.items())
        return x.new_zeros(len(x), matrices), *super().init(x.new_empty(len(x), x.shape[1] - matrices))

    def direction(self, g: Tensor, buffers: Buffers, t: Taken) -> tuple[Tensor, Buffers]:
        """Return d [k, P], in the memory of g: s O(d) for matrices, and AdamW's for the others."""
        import torch

        m, *moments = buffers
        k, start = len(g), 0
        for (r, c), places in self._groups.items():
            new = torch.stack([g[:, place].view(k, r, c) for place in places], dim=1)
            old = m[:, start : start + new[0].numel()].view(new.shape)
            start += new[0].numel()
            old.mul_(self.momentum).add_(new)
            d = new.add_(old, alpha=self.momentum) if self.nesterov else old
            d = self.orthogonal(d) * _SCALES[self.scale](r, c)
            for place, each in zip(places, d.unbind(1), strict=True):
                g[:, place] = each.reshape(k, -1)
        if self._others:
            d, _ = super().direction(torch.cat([g[:, place] for place in self._others], dim=1), tuple(moments), t)
            sizes = [place.stop - place.start for place in self._others]
            for place, each in zip(self._others, d.split(sizes, dim=1), strict=True):
                torch.mul(each, self.adamw_scale, out=g[:, place])
        return g, buffers

    def decayed(self, d: Tensor, x: Tensor) -> Tensor:
        """Return d + weight_decay x [k, P], in the memory of d; for AdamW's parameters scaled by their rates."""
        if not self.weight_decay:
            return d
        for place in self._others:
            d[:, place].add_(x[:, place], alpha=self.weight_decay * (self.adamw_scale - 1))
        return add(d, x, alpha=self.weight_decay)

    def orthogonal(self, d: Tensor) -> Tensor:
        """Return O of each matrix of d [..., r, c]; 0 for 0."""
        import torch

        X = (d.to(torch.bfloat16) if self.compute is Compute.bf16 else d).reshape(-1, *d.shape[-2:])
        norm = torch.linalg.matrix_norm(X, keepdim=True)
        norm = norm + self.norm_epsilon if self.norm_epsilon else norm.clamp(min=1e-7)
        X = X / (1.02 * norm + 1e-6 if self.polynomial is Polynomial.polar_express else norm)
        wide = X.shape[-2] <= X.shape[-1]
        X = X if wide else X.mT
        for a, b, c in _COEFFICIENTS[self.polynomial]:
            A = X @ X.mT
            X = torch.baddbmm(X, torch.baddbmm(A, A, A, beta=b, alpha=c), X, beta=a)
        return (X if wide else X.mT).to(d.dtype).reshape(d.shape)
