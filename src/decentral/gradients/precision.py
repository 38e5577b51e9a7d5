"""Precision of the arithmetic of a run."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from enum import Enum
from typing import TYPE_CHECKING, Any

from decentral.host.machine import Lazy
from decentral.host.torch_state import default_dtype

if TYPE_CHECKING:
    import torch
    from torch import nn
else:
    torch = Lazy("torch")


class Precision(Enum):
    """Precision of forward and backward passes; rows, updates and exchange always have at least float32.

    fp32    float32
    tf32    float32 with matrix products of TF32 (10 bits of mantissa), on GPUs
    bf16    float32 with matrix products and convolutions in bfloat16 (autocast)
    fp64    float64 everywhere: for checks
    """

    fp32 = "fp32"
    tf32 = "tf32"
    bf16 = "bf16"
    fp64 = "fp64"

    @property
    def dtype(self) -> torch.dtype:
        """Return the type of rows, images and evaluation: float64 with fp64, otherwise float32."""
        return torch.float64 if self is Precision.fp64 else torch.float32

    @property
    def rounding(self) -> float:
        """Return the relative error of a product: the distance from 1 to the next number."""
        if self is Precision.tf32:
            return 2.0**-10
        return torch.finfo(torch.bfloat16 if self is Precision.bf16 else self.dtype).eps

    @contextmanager
    def passes(self, device: torch.device) -> Iterator[None]:
        """Return a context for forward and backward passes with this precision of float32."""
        numbers = default_dtype(self.dtype) if self is Precision.fp64 else nullcontext()
        with float32(device, "tf32" if self is Precision.tf32 else "ieee"), numbers:
            yield

    def forward(self, device: torch.device) -> AbstractContextManager[Any]:
        """Return a context for the forward passes alone, inside `passes`: with bf16, torch's autocast."""
        if self is not Precision.bf16:
            return nullcontext()
        return torch.autocast(device.type, torch.bfloat16, cache_enabled=False)  # copies of all weights would stay

    @contextmanager
    def testing(self, device: torch.device) -> Iterator[None]:
        """Return a context for forward passes without gradients."""
        with torch.no_grad(), self.passes(device), self.forward(device):
            yield


@contextmanager
def float32(device: torch.device, matrices: str = "ieee") -> Iterator[None]:
    """Compute matrix products and convolutions of float32 as `matrices` within the context: ieee or tf32. CPUs only
    support ieee."""
    if device.type != "cuda":
        yield
        return
    matmul: Any = torch.backends.cuda.matmul
    convolution: Any = torch.backends.cudnn.conv  # type: ignore[attr-defined]
    before = matmul.fp32_precision, convolution.fp32_precision
    matmul.fp32_precision = convolution.fp32_precision = matrices
    try:
        yield
    finally:
        matmul.fp32_precision, convolution.fp32_precision = before


def cast(module: nn.Module, dtype: torch.dtype) -> None:
    """Cast the trained parameters, and all other floating-point numbers, to this type.

    A module whose parameters already have it is unchanged, including buffers of other types.
    """
    if any(p.dtype != dtype for p in module.parameters() if p.requires_grad):
        module.double() if dtype is torch.float64 else module.float()
