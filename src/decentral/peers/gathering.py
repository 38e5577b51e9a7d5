"""What others have, one after the other along dimension 0, which may differ in length."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.distributed as dist
from torch import Tensor

from decentral.errors import ConfigError
from decentral.peers.bundle import as_bytes
from decentral.peers.exchange import Message, post, wait
from decentral.peers.handle import Handle


def checked(x: Tensor, verb: str) -> Tensor:
    """The tensor as it can be sent; ConfigError for what has no dimension 0."""
    if not isinstance(x, Tensor) or x.dim() == 0:
        raise ConfigError(f"{verb} joins tensors along dimension 0, so x has to be a tensor with one.")
    return x.detach().resolve_conj().resolve_neg().contiguous()


def begin_neighbours(x: Tensor, sources: Sequence[int], destinations: Sequence[int], lengths: Sequence[int]) -> Handle:
    """The x of the sources, in their order; `lengths` are those of their dimension 0."""
    parts = [x.new_empty(length, *x.shape[1:]) for length in lengths]
    receives = [Message(part.view(-1), j) for part, j in zip(parts, sources, strict=True)]
    works = post([Message(x.view(-1), j) for j in destinations], receives)
    return Handle("neighbor_allgather", works, lambda: torch.cat([x[:0], *parts]))


def lengths_of(x: Tensor, sources: Sequence[int], destinations: Sequence[int]) -> list[int]:
    """The length of dimension 0 of each source's x, asked of nobody else."""
    own = torch.tensor([len(x)], dtype=torch.int64, device=x.device)
    parts = [torch.empty_like(own) for _ in sources]
    receives = [Message(part, j) for part, j in zip(parts, sources, strict=True)]
    wait(post([Message(own, j) for j in destinations], receives))
    return [int(part) for part in parts]


def begin_everybody(x: Tensor, lengths: Sequence[int]) -> Handle:
    """The x of all ranks; they travel as long as the longest one."""
    padded = x.new_zeros(max(lengths), *x.shape[1:])
    padded[: len(x)] = x
    parts = [torch.empty_like(padded) for _ in lengths]
    works = []
    if padded.numel():
        flat = [as_bytes(part.view(-1)) for part in parts]
        works = [dist.all_gather(flat, as_bytes(padded.view(-1)), async_op=True)]

    def finish() -> Tensor:
        return torch.cat([part[:length] for part, length in zip(parts, lengths, strict=True)])

    return Handle("allgather", works, finish)
