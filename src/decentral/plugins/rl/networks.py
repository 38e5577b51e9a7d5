"""Layers of policies, and their initialization."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TypeVar

import torch
from torch import Tensor, nn

from decentral.gradients.passes.layers import forward

Weighted = TypeVar("Weighted", nn.Linear, nn.Conv2d)


def orthogonal(layer: Weighted, gain: float = math.sqrt(2)) -> Weighted:
    """Return the layer with orthogonal weights of this gain and biases of 0."""
    nn.init.orthogonal_(layer.weight, gain)
    assert layer.bias is not None
    nn.init.zeros_(layer.bias)
    return layer


def output_layer(width: int, num_actions: int) -> nn.Linear:
    """Return the layer from `width` features to the value and a number for each action: [..., 1 + num_actions]."""
    layer = nn.Linear(width, 1 + num_actions)
    with torch.no_grad():
        for rows, gain in ((slice(0, 1), 1.0), (slice(1, None), 0.01)):
            layer.weight[rows] = nn.init.orthogonal_(torch.empty_like(layer.weight[rows]), gain)
        layer.bias.zero_()
    return layer


class WithLogStd(nn.Module):
    """A layer that appends log standard deviations to its input: observation-independent parameters, initially 0."""

    def __init__(self, num_actions: int) -> None:
        super().__init__()
        self.log_std = nn.Parameter(torch.zeros(num_actions))

    def forward(self, x: Tensor) -> Tensor:
        """Append the log standard deviations: [..., 1 + A] -> [..., 1 + 2 A]."""
        return self.side_by_side(x[None], [self.log_std[None]], 1)[0]

    def side_by_side(self, x: Tensor, own: Sequence[Tensor], k: int) -> Tensor:
        """Compute `forward` for k workers, [k, ..., 1 + A] -> [k, ..., 1 + 2 A]: see `gradients.passes.layers`."""
        (log_std,) = own
        shape = (k, *[1] * (x.dim() - 2), -1)
        return torch.cat([x, log_std.view(shape).expand(*x.shape[:-1], -1)], dim=-1)


class Recurrent(nn.Module):
    """A linear layer with tanh, an LSTM and a head, on pieces of episodes.

        e_t = tanh(A o_t + a);   h, c <- 0 where an episode begins with o_t
        i, f, g, o = parts of W e_t + U h + b;   c <- sigmoid(f) c + sigmoid(i) tanh(g);   h <- sigmoid(o) tanh(c)

    `torch.nn.LSTM` with a single bias. Weights start orthogonal with gain 1 (`orthogonal` before), biases at 0.
    A piece of T steps is one row [T (F + 1) + 2 H]: for each step the observation [F] and a 1 where an episode begins
    with it, else 0; then h [H] and c [H] from before the first one.
    """

    def __init__(self, features: int, width: int, head: Sequence[nn.Module]) -> None:
        super().__init__()
        self.features, self.width = features, width
        self.body = orthogonal(nn.Linear(features, width))
        self.from_input = orthogonal(nn.Linear(width, 4 * width), 1.0)
        self.from_memory = nn.Parameter(nn.init.orthogonal_(torch.empty(4 * width, width)))
        self.head = nn.Sequential(*head)

    @property
    def memory(self) -> int:
        """Return the size of its memory: h and c."""
        return 2 * self.width

    def forward(self, pieces: Tensor) -> Tensor:
        """Return the outputs of pieces: [B, T (F + 1) + 2 H] -> [B, T, num_outputs]."""
        return self.side_by_side(pieces[None], [parameter[None] for parameter in self.parameters()], 1)[0]

    def side_by_side(self, x: Tensor, own: Sequence[Tensor], k: int) -> Tensor:
        """Compute `forward` for k workers, [k, B, T (F + 1) + 2 H] -> [k, B, T, num_outputs]: see
        `gradients.passes.layers`."""
        return self.remembering(x, own)[0]

    def remembering(self, x: Tensor, own: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
        """Return the same outputs, and the memory after the last step [k, B, 2 H]; `own` is in the order of
        `parameters`."""
        known = dict(zip([name for name, _ in self.named_parameters()], own, strict=True))
        B, H = x.shape[1], self.width
        steps, h, c = x[..., : -2 * H].unflatten(-1, (-1, self.features + 1)), x[..., -2 * H : -H], x[..., -H:]
        observed, begins = steps[..., : self.features].flatten(1, 2), steps[..., self.features :]
        e = torch.baddbmm(known["body.bias"][:, None], observed, known["body.weight"].transpose(1, 2)).tanh()
        gates = torch.baddbmm(
            known["from_input.bias"][:, None], e, known["from_input.weight"].transpose(1, 2)
        ).unflatten(1, (B, -1))
        U, hidden = known["from_memory"].transpose(1, 2), []
        for t in range(steps.shape[2]):
            kept = 1 - begins[:, :, t]
            h, c = h * kept, c * kept
            i, f, g, o = torch.baddbmm(gates[:, :, t], h, U).chunk(4, dim=-1)
            c = f.sigmoid() * c + i.sigmoid() * g.tanh()
            h = o.sigmoid() * c.tanh()
            hidden.append(h)
        seen = torch.stack(hidden, dim=2)
        head = [parameter for name, parameter in known.items() if name.startswith("head.")]
        outputs = forward(list(self.head), seen.flatten(1, 2), head)
        return outputs.unflatten(1, (B, -1)), torch.cat([h, c], dim=-1)
