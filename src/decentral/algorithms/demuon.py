"""DeMuon."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from decentral.algorithms.gt_nsgdm import GTNSGDm
from decentral.host.machine import Lazy
from decentral.optim.muon import Muon, Polynomial

if TYPE_CHECKING:
    import torch
    from torch import Tensor
else:
    torch = Lazy("torch")


@dataclass
class DeMuon(GTNSGDm):
    """DeMuon: Muon over a graph, with gradient tracking of the momentum.

        m_i <- beta m_i + (1 - beta) g_i                     m^0 = y^0 = 0
        y_i <- sum_j W_ij (y_j + m_j - m_j^before)
        x_i <- sum_j W_ij (x_j - lr O(y_j))                  O(y): U V^T of each matrix y = U S V^T; 0 for 0

    He, Ren, Mao & Larsson, 2025 (arXiv:2510.01377; formula from third parties' summaries, neither paper nor code was
    read; m^0 = y^0 = 0 is uncertain). It is `gt_nsgdm` with O in place of y / ||y||: state, bytes, graph and lost
    messages are the same, and the paper's theta is 1 - beta. With W = 1 1^T / n it is Muon (no Nesterov momentum, scale
    1) on the mean gradient. O is not linear, so elsewhere the mean of the models follows no such rule. All matrices use
    O, embeddings and heads too; a convolution [o, i, h, w] is the matrix [o, i h w]. Departure: the paper has only
    matrices; a vector is a matrix of one column, whose O is v / ||v||.

    exact        O by a singular value decomposition, without the directions of singular values that are 0 up to
                 rounding; false: by five Newton-Schulz polynomials, as in practice
    polynomial   those of `optim=muon`
    """

    name: str = "demuon"
    exact: bool = False
    polynomial: Polynomial = Polynomial.quintic

    def normalized(self, y: Tensor) -> Tensor:
        """Return O of every parameter of y [k, P], in the memory of y."""
        newton_schulz = Muon(polynomial=self.polynomial)
        layout = self.compressor.layout
        for shape, place in zip(layout.shapes, layout.slices, strict=True):
            if len(shape) < 2:
                y[:, place] = super().normalized(y[:, place].clone())
            else:
                Y = y[:, place].view(len(y), shape[0], -1)
                y[:, place] = (matrix_sign(Y) if self.exact else newton_schulz.orthogonal(Y)).flatten(1)
        return y


def matrix_sign(Y: Tensor) -> Tensor:
    """Return U V^T of the reduced singular value decomposition U S V^T of each matrix of Y [k, r, c]."""
    U, S, V = torch.linalg.svd(Y, full_matrices=False)
    kept = S[:, :1] * max(Y.shape[1:]) * torch.finfo(Y.dtype).eps < S
    return (U * kept[:, None]) @ V
