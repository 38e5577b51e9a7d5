"""What the ranks of a host are about to do, in memory that all read: a mistake is seen before anything is sent."""

from __future__ import annotations

import re
import threading
import zlib
from collections.abc import Sequence
from functools import lru_cache

import torch
import torch.distributed as dist

from decentral.errors import ConfigError
from decentral.network.transports.shared_memory import Segments

_KEPT, _TEXT_BYTES = 4096, 256
_SHOWN, _ITEMS, _LONG = 4, 8, 400
"""Groups of ranks, items of a group, and how many characters may be shown that all ranks share."""


class Calls:
    """The calls of all ranks, in their order; to be made by all ranks of a host at once.

    A rank writes number and checksum of its call before it takes part in it, and looks at those of the others, so that
    of two ranks that do different things the later one notices. Costs a microsecond and never waits.
    """

    def __init__(self, size: int) -> None:
        self._rank, self._count, self._broken = dist.get_rank(), 0, ""
        texts = Segments([(_TEXT_BYTES,)] * size, torch.uint8).tensors
        words = Segments([(_KEPT,)] * size, torch.int64).tensors
        self._texts = [text.numpy().data for text in texts]
        self._words = [word.numpy().data for word in words]
        self._fence = threading.Lock()

    def announce(self, text: str, kind: str | None = None) -> None:
        """Say what this rank is about to do with all the others, who do the same, or the same kind of thing if given.

        Raises ConfigError if another rank is at something else; then, and ever after, as the others may be stuck.
        """
        if self._broken:
            raise ConfigError(self._broken)
        checksum, packed = _packed(text, kind)
        self._count += 1
        self._texts[self._rank][:] = packed
        self._words[self._rank][self._count % _KEPT] = self._count << 32 | checksum
        with self._fence:  # what is read below is read after this has been written
            pass
        if difference := self.difference():
            self._broken = difference
            raise ConfigError(difference)

    def difference(self) -> str:
        """Who is at what, if another rank has said something else than this one for the latest call; else ""."""
        place, count = self._count % _KEPT, self._count
        said = [words[place] for words in self._words]  # read once: others go on meanwhile
        own = said[self._rank]
        for word in said:
            if word != own and word >> 32 >= count > 0:
                come = [rank for rank, word in enumerate(said) if word >> 32 >= count]
                texts = {rank: bytes(self._texts[rank]).rstrip(b"\0") for rank in come}
                return difference({rank: text.decode(errors="ignore") for rank, text in texts.items()})
        return ""


@lru_cache(1024)
def _packed(text: str, kind: str | None) -> tuple[int, bytes]:
    encoded = text.encode()
    return zlib.crc32((kind or text).encode()), encoded[:_TEXT_BYTES].ljust(_TEXT_BYTES, b"\0")


def difference(contents: dict[int, str]) -> str:
    """Which ranks are about to do what."""
    ranks: dict[str, list[int]] = {}
    for rank, content in contents.items():
        ranks.setdefault(content, []).append(rank)
    items = [re.split(r", (?![^\[]*\])", content) for content in ranks]  # not in shapes, which have commas, too
    shared = set.intersection(*map(set, items)) if max(map(len, ranks)) > _LONG else set()
    own = [[item for item in each if item not in shared] for each in items]
    words = [", ".join(each[:_ITEMS]) + (", ..." if len(each) > _ITEMS else "") for each in own]
    told = "; ".join(f"{_named(who)}: {what}" for what, who in list(zip(words, ranks.values(), strict=True))[:_SHOWN])
    return f"the ranks do not agree about what to do: {told}."


def _named(ranks: Sequence[int]) -> str:
    return f"rank{'s' if len(ranks) > 1 else ''} {', '.join(map(str, ranks))}"
