"""How a network for translation writes: the most likely token at a time, or several translations side by side."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

import torch
from torch import Tensor, nn

from decentral.data.pairs import BEGIN, END, PAD

if TYPE_CHECKING:
    from decentral.models.layers.encoder_decoder import EncoderDecoder


def greedy(module: nn.Module, source: Tensor, extra_length: int) -> list[list[int]]:
    """The translations of source [B, S]: the most likely token at a time, until the one that ends a sentence.

    At most as many as the source has, and `extra_length`. Sentences that are complete are dropped on the way.
    """
    network = cast("EncoderDecoder", module)
    written, most = network.begin(source), _most(source, extra_length)
    numbers, tokens = torch.arange(len(source)), source.new_full((len(source),), BEGIN)
    found: list[list[int]] = [[] for _ in range(len(source))]
    for place in range(int(most.max())):
        logits, written = network.write(tokens, written)
        tokens = logits.argmax(1)
        for number, token in zip(numbers.tolist(), tokens.tolist(), strict=True):
            if token != END:
                found[number].append(token)
        going_on = (tokens.cpu() != END) & (most[numbers] > place + 1)
        if not going_on.all():
            chosen = going_on.nonzero()[:, 0]
            if not len(chosen):
                break
            numbers, here = numbers[chosen], chosen.to(tokens.device)
            tokens, written = tokens[here], written.rows(here)
    return found


def beam_search(module: nn.Module, source: Tensor, extra_length: int, width: int, penalty: float) -> list[list[int]]:
    """The same, looking at the `width` most likely beginnings of each translation; of width 1 it is `greedy`.

    In each step all continuations of those that are not complete compete with those that are, by their probability; in
    the end the best is that with the largest log P / ((5 + length) / 6)^penalty (Wu et al. 2016, arXiv:1609.08144,
    equation 14; the length counts the token that ends the sentence).
    """
    network = cast("EncoderDecoder", module)
    B, device = len(source), source.device
    written, most = network.begin(source), _most(source, extra_length).to(device)
    rows = torch.arange(B, device=device).repeat_interleave(width)
    written = written.rows(rows)
    tokens = torch.full((B, width), BEGIN, dtype=source.dtype, device=device)
    score = torch.full((B, width), -torch.inf, dtype=torch.float64, device=device)
    score[:, 0] = 0.0  # at first all are the same
    complete = torch.zeros(B, width, dtype=torch.bool, device=device)
    lengths = torch.zeros(B, width, dtype=torch.int64, device=device)
    history = source.new_zeros(B, width, 0)
    for place in range(int(most.max())):
        logits, written = network.write(tokens.reshape(-1), written)
        continued = logits.double().log_softmax(1).view(B, width, -1)
        continued.masked_fill_(complete[..., None], -torch.inf)
        continued[..., PAD] = torch.where(complete, 0.0, continued[..., PAD])  # it stays as it is
        score, best = (score[..., None] + continued).flatten(1).topk(width, dim=1)
        parent, tokens = best // continued.shape[2], best % continued.shape[2]
        complete, lengths, history = complete.gather(1, parent), lengths.gather(1, parent), _of(history, parent)
        lengths = lengths + ~complete
        history = torch.cat([history, torch.where(complete, PAD, tokens)[..., None]], dim=2)
        complete = complete | (tokens == END) | (place + 1 >= most)[:, None]
        if complete.all():
            break
        written = written.rows((parent + width * torch.arange(B, device=device)[:, None]).reshape(-1))
    chosen = (score / ((5 + lengths.double()) / 6) ** penalty).argmax(1)
    each = torch.arange(B, device=device)
    found, length = history[each, chosen].tolist(), lengths[each, chosen].tolist()
    return [[token for token in row[:n] if token != END] for row, n in zip(found, length, strict=True)]


def _most(source: Tensor, extra_length: int) -> Tensor:
    """How many tokens a translation may have, with the one that ends it: [B] on the CPU."""
    return (source != PAD).sum(1).cpu() + extra_length


def _of(history: Tensor, parent: Tensor) -> Tensor:
    return history.gather(1, parent[..., None].expand(-1, -1, history.shape[2]))
