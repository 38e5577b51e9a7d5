"""The parameters of a model as views of flat rows, cut into buckets in the order in which gradients arrive."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from decentral.errors import ConfigError


def travels(parameter: nn.Parameter, trained: set[nn.Parameter]) -> bool:
    """Whether a parameter changes in training: the optimizer has it, and it is not frozen."""
    return parameter in trained and parameter.requires_grad


class Bucket:
    """Some consecutive parameters of one flat row: what travels together."""

    def __init__(self, row: Tensor, parameters: Sequence[nn.Parameter]) -> None:
        self.row = row  # [1, P']: the memory of the parameters
        self.parameters = set(parameters)


class FlatParameters:
    """Moves parameters into flat rows, one for each dtype, of which they are views afterwards.

    Buckets hold whole parameters, `bucket_bytes` of them or a little more, the last parameters first: backward passes
    give gradients in about that order.
    """

    def __init__(self, parameters: Sequence[nn.Parameter], bucket_bytes: int) -> None:
        """Raises ConfigError for parameters on several devices, and for none at all."""
        devices = {parameter.device for parameter in parameters}
        if not devices:
            raise ConfigError("the optimizer has no parameters that require a gradient: there is nothing to train.")
        if len(devices) != 1:
            raise ConfigError(
                f"the parameters are on {len(devices)} devices ({', '.join(sorted(map(str, devices)))}): put the model "
                "on one, and wrap it afterwards."
            )
        self.buckets: list[Bucket] = []
        self._places: list[tuple[nn.Parameter, int]] = []
        for dtype in dict.fromkeys(parameter.dtype for parameter in parameters):
            self._lay([p for p in reversed(parameters) if p.dtype == dtype], bucket_bytes)

    def _lay(self, parameters: Sequence[nn.Parameter], bucket_bytes: int) -> None:
        first = parameters[0]
        row = first.data.new_empty(sum(parameter.numel() for parameter in parameters))
        start, bucket_start, members = 0, 0, []
        for parameter in parameters:
            stop = start + parameter.numel()
            row[start:stop].view(parameter.shape).copy_(parameter.data)
            parameter.data = row[start:stop].view(parameter.shape)
            self._places.append((parameter, parameter.data_ptr()))
            members.append(parameter)
            if (stop - bucket_start) * row.element_size() >= bucket_bytes or stop == len(row):
                self.buckets.append(Bucket(row[bucket_start:stop].view(1, -1), members))
                bucket_start, members = stop, []
            start = stop

    def require_in_place(self) -> None:
        """Raise RuntimeError if somebody has given a parameter other memory since (`model.to(...)`, say)."""
        if any(parameter.data_ptr() != place for parameter, place in self._places):
            raise RuntimeError(
                "the parameters are not where decentral.wrap has put them: call model.to(...), .half() and the like "
                "before wrap, not after it"
            )

    def copy(self) -> list[Tensor]:
        """What all buckets hold now."""
        return [bucket.row.clone() for bucket in self.buckets]

    def restore(self, copies: Sequence[Tensor]) -> None:
        """Put it back."""
        with torch.no_grad():
            for bucket, saved in zip(self.buckets, copies, strict=True):
                bucket.row.copy_(saved)
