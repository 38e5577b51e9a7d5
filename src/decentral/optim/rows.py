"""Allocation-free sums and differences of rows, for the formulas of optimizers and algorithms.

One rule, as for torch's own `out=`: **the result is in the memory of `out`, by default that of the first argument**,
whose old values are overwritten. `out` may be any of the arguments. All others are unchanged. So
`c = sub(x, y, out=y)` is c = x - y in the memory of y, and y is no longer valid; always use the returned value.

Rows are of any shape, [k, P] or [k, 2, P]; `alpha` is a number, or a row of numbers [1, P], one per coordinate.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor


def add(x: Tensor, y: Tensor, alpha: float | Tensor = 1.0, out: Tensor | None = None) -> Tensor:
    """Return x + alpha y, in the memory of x or of `out`: 3 passes over memory."""
    try:
        if out is None and type(alpha) is float:
            return x.add_(y) if alpha == 1.0 else x.add_(y, alpha=alpha)
        return _sum(x, y, alpha, 1.0, x if out is None else out)
    except RuntimeError:
        return _sum(x, y, _infinite(alpha, x), 1.0, x if out is None else out)


def sub(x: Tensor, y: Tensor, alpha: float | Tensor = 1.0, out: Tensor | None = None) -> Tensor:
    """Return x - alpha y, in the memory of x or of `out`: 3 passes over memory."""
    try:
        if out is None and type(alpha) is float:
            return x.sub_(y) if alpha == 1.0 else x.sub_(y, alpha=alpha)
        return _sum(x, y, alpha, -1.0, x if out is None else out)
    except RuntimeError:
        return _sum(x, y, _infinite(alpha, x), -1.0, x if out is None else out)


def scale(x: Tensor, a: float | Tensor) -> Tensor:
    """Return a x, in the memory of x; `a` is a number, or a row of numbers [1, P]."""
    return x.mul_(a)


def divide(x: Tensor, a: float | Tensor) -> Tensor:
    """Return x / a, in the memory of x; `a` is a number, or a row of numbers [1, P]."""
    return x.div_(a)


def copy(x: Tensor, out: Tensor) -> Tensor:
    """Copy x to the memory of `out`."""
    return out.copy_(x)


def clip(x: Tensor, norm: float) -> Tensor:
    """Scale each row x_i [P] of x [k, P] by min(1, norm / (||x_i|| + 1e-6)), in place: 3 passes over memory."""
    import torch

    lengths = torch.linalg.vector_norm(x, dim=-1, keepdim=True)
    return x.mul_((norm / (lengths + 1e-6)).clamp_(max=1.0))


def _infinite(alpha: float | Tensor, x: Tensor) -> float:
    """Convert a number too large for the type of x, which torch rejects, to the type's infinity: the run diverges.

    Called while handling an error; re-raises it if it has another cause.
    """
    import torch

    if isinstance(alpha, torch.Tensor) or abs(alpha) <= torch.finfo(x.dtype).max:
        raise
    return math.copysign(math.inf, alpha)


def _sum(x: Tensor, y: Tensor, alpha: float | Tensor, sign: float, out: Tensor) -> Tensor:
    import torch

    if isinstance(alpha, torch.Tensor):
        return torch.addcmul(x, y, alpha, value=sign, out=out)
    return torch.add(x, y, alpha=sign * alpha, out=out)
