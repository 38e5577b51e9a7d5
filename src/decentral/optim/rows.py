"""Sums and differences of rows that allocate nothing: what the formulas of optimizers and algorithms are written in.

One rule, as for torch's own `out=`: **the result lies in the memory of `out`, by default that of the first argument**,
whose old values are gone. `out` may be any of the arguments. All others stay as they are. So `c = sub(x, y, out=y)` is
c = x - y in the memory of y, and afterwards there is no y any more; always go on with what a call returns.

Rows are of any shape, [k, P] or [k, 2, P]; `alpha` is a number, or a row of numbers [1, P], one for each coordinate.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor


def add(x: Tensor, y: Tensor, alpha: float | Tensor = 1.0, out: Tensor | None = None) -> Tensor:
    """x + alpha y, in the memory of x or of `out`: 3 passes over memory."""
    try:
        if out is None and type(alpha) is float:
            return x.add_(y) if alpha == 1.0 else x.add_(y, alpha=alpha)
        return _sum(x, y, alpha, 1.0, x if out is None else out)
    except RuntimeError:
        return _sum(x, y, _infinite(alpha, x), 1.0, x if out is None else out)


def sub(x: Tensor, y: Tensor, alpha: float | Tensor = 1.0, out: Tensor | None = None) -> Tensor:
    """x - alpha y, in the memory of x or of `out`: 3 passes over memory."""
    try:
        if out is None and type(alpha) is float:
            return x.sub_(y) if alpha == 1.0 else x.sub_(y, alpha=alpha)
        return _sum(x, y, alpha, -1.0, x if out is None else out)
    except RuntimeError:
        return _sum(x, y, _infinite(alpha, x), -1.0, x if out is None else out)


def scale(x: Tensor, a: float | Tensor) -> Tensor:
    """a x, in the memory of x; `a` is a number, or a row of numbers [1, P]."""
    return x.mul_(a)


def divide(x: Tensor, a: float | Tensor) -> Tensor:
    """x / a, in the memory of x; `a` is a number, or a row of numbers [1, P]."""
    return x.div_(a)


def copy(x: Tensor, out: Tensor) -> Tensor:
    """x as it is now, in the memory of `out`."""
    return out.copy_(x)


def clip(x: Tensor, norm: float) -> Tensor:
    """Each row x_i [P] of x [k, P] times min(1, norm / (||x_i|| + 1e-6)), in the memory of x: 3 passes over memory."""
    import torch

    lengths = torch.linalg.vector_norm(x, dim=-1, keepdim=True)
    return x.mul_((norm / (lengths + 1e-6)).clamp_(max=1.0))


def _infinite(alpha: float | Tensor, x: Tensor) -> float:
    """What the type of x makes of a number that is too large for it, which torch does not take: the run diverges.

    Called while an error is handled, which is raised again if that is not the reason for it.
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
