"""One tensor or several as flat rows, one for each dtype: what travels in one message."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn

from decentral.errors import ConfigError

Values = Tensor | Sequence[Tensor] | nn.Module
"""What verbs take: a tensor, several tensors, or a module, whose parameters are meant."""


class Row(NamedTuple):
    """A flat tensor with the values of those tensors of a bundle that have one dtype and one device."""

    values: Tensor  # [P]
    places: list[int]  # of its tensors in the bundle
    owned: bool  # whether it is a copy, so that it may be written to


class Bundle:
    """Tensors of any shape and layout, and the way back to them from rows."""

    def __init__(self, x: Values) -> None:
        """Raises ConfigError for what is no tensor, and for none at all."""
        self.single = isinstance(x, Tensor)
        tensors = [x] if isinstance(x, Tensor) else list(x.parameters() if isinstance(x, nn.Module) else x)
        if not tensors or not all(isinstance(tensor, Tensor) for tensor in tensors):
            raise ConfigError(f"x has to be a tensor, tensors or a module with parameters, not {_words(tensors, x)}.")
        self.tensors = [tensor.detach() for tensor in tensors]

    @property
    def content(self) -> str:
        """Dtypes, shapes and kinds of device in words: what all ranks have to agree about."""
        return ", ".join(f"{_dtype(tensor)} {list(tensor.shape)} on {tensor.device.type}" for tensor in self.tensors)

    @property
    def key(self) -> tuple[Hashable, ...]:
        """What `content` puts into words."""
        return tuple((tensor.dtype, tensor.shape, tensor.device.type) for tensor in self.tensors)

    def require_numbers(self, verb: str) -> None:
        """Raise ConfigError for integers and truth values, of which there is no weighted mean."""
        for tensor in self.tensors:
            if not (tensor.is_floating_point() or tensor.is_complex()):
                raise ConfigError(f"{verb} takes weighted means, which {_dtype(tensor)} cannot hold: use x.float().")

    def rows(self) -> list[Row]:
        """One row for each dtype and device, by first appearance; of a contiguous tensor alone in its row, no copy."""
        groups: dict[tuple[torch.dtype, torch.device], list[int]] = {}
        for place, tensor in enumerate(self.tensors):
            groups.setdefault((tensor.dtype, tensor.device), []).append(place)
        return [self._row(places) for places in groups.values()]

    def _row(self, places: list[int]) -> Row:
        parts = [self.tensors[place].resolve_conj().resolve_neg().contiguous().view(-1) for place in places]
        values = parts[0] if len(parts) == 1 else torch.cat(parts)
        return Row(values, places, values.data_ptr() != self.tensors[places[0]].data_ptr())

    def restore(self, rows: Sequence[Row], results: Sequence[Tensor], inplace: bool) -> Tensor | list[Tensor]:
        """The results [P] of the rows in the shapes of the tensors: views, or the tensors themselves if in place."""
        restored = list(self.tensors)
        for row, result in zip(rows, results, strict=True):
            sizes = [self.tensors[place].numel() for place in row.places]
            for place, part in zip(row.places, result.split(sizes), strict=True):
                shaped = part.view(self.tensors[place].shape)
                if not inplace:
                    restored[place] = shaped
                elif shaped.data_ptr() != restored[place].data_ptr():
                    restored[place].copy_(shaped)
        return restored[0] if self.single else restored


def _dtype(tensor: Tensor) -> str:
    return str(tensor.dtype).removeprefix("torch.")


def _words(tensors: Sequence[object], x: object) -> str:
    wrong = next((item for item in tensors if not isinstance(item, Tensor)), None)
    return f"an empty {type(x).__name__}" if wrong is None else f"{type(wrong).__name__} in a {type(x).__name__}"
