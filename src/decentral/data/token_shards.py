"""Token streams: text that is tokenized already, in memory-mapped shards."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from decentral.data.dataset import DataSet, NextTokens
from decentral.errors import ConfigError
from decentral.settings import setting
from decentral.store.digests import folder_digest
from decentral.store.files import at_home, natural_order

if TYPE_CHECKING:
    import torch

    from decentral.data.loading.token_windows import TokenWindows

_HEADER, _KINDS = 256, {(20240520, 1): "<u2", (20240801, 7): "<u4"}
"""Number of int32 in a header; magic number and version -> type of the tokens, of llm.c for GPT-2 and for Llama 3."""
_SEARCHED = 1 << 16
"""Number of tokens that are searched at once for the start of a document."""
_FEW = 100


@dataclass
class TokenShards(DataSet):
    """Token shards, such as FineWeb-Edu and OpenWebText tokenized for GPT-2: one stream of documents, cut into windows.

    `path` has files of three kinds, which are mapped into memory and may be mixed: .bin with the header of llm.c and
    modded-nanogpt (256 int32: 20240520, 1, number of tokens) and uint16 tokens, or (20240801, 7) uint32; .bin of
    nanoGPT, uint16 without a header; .npy, a vector of whole numbers. Files with "val" in their names are for testing,
    the others for training; without "val", the last tenth of the stream is for testing. The files of a part are one
    stream, in natural order of their names (2 before 10), so that documents may continue in the next file.

    A document begins with the token `end_of_text`. The training stream is cut before documents into sources of about
    equal length, the groups of partition=natural: workers get disjoint documents. A source is cut into windows of
    `longest` tokens and the next one, the first target of the next window; fewer tokens at its end are left out. With
    tokens = the training stream, S = sections and L = longest, window number w is tokens[start[w] : start[w] + L + 1]
    and belongs to source[w]:

        documents = np.flatnonzero((tokens == end_of_text) | (end_of_text not in tokens))
        after = np.searchsorted(documents, np.arange(1, S) * len(tokens) // S)
        bounds = np.unique([0, *documents[after[after < len(documents)]], len(tokens)])
        number = (np.diff(bounds) - 1) // L
        source = np.unique(np.repeat(np.arange(len(number)), number), return_inverse=True)[1]
        start = np.concatenate([a + L * np.arange(m) for a, m in zip(bounds, number)])

    So a source begins with the first document at or after its share of the stream, or there if no token is
    `end_of_text`, as in nanoGPT's characters. The test part is one source:
    tokens[: test_tokens] of the files with "val"; otherwise of tokens[cut:], and tokens[:cut] is the training stream:

        ninth = 9 * len(tokens) // 10
        cut = ninth + np.flatnonzero((tokens[ninth:] == end_of_text) | (end_of_text not in tokens))[0]

    Which sources a worker gets is the rule of partition=natural: without its settings, nothing is drawn from the seed.

    path         the folder
    vocabulary   number of tokens of the model, larger than each token: GPT-2's 50,257, rounded up to a multiple of 128
    end_of_text  the token at the start of each document
    longest      tokens in a window
    sections     number of sources, at most
    test_tokens  number of tokens of the test part that are used, at most
    """

    name: str = "tokens"
    path: str | None = field(default=None, metadata={"content": True})
    vocabulary: int = setting(50304, at_least=2)
    end_of_text: int = setting(50256, at_least=0)
    longest: int = setting(1024, at_least=1)
    sections: int = setting(64, at_least=1)
    test_tokens: int = setting(10_485_760, at_least=2)

    def files(self) -> list[Path]:
        """Return the shards in natural order. Raises ConfigError if there are none."""
        folder = at_home(self.path or "")
        named = {file.name: file for file in folder.glob("[!.]*") if file.suffix in (".bin", ".npy")}
        if self.path is None or not named:
            raise ConfigError(f"data.path={self.path} has no token shards: give a folder with .bin or .npy files.")
        return [named[name] for name in natural_order(named)]

    def files_digest(self) -> str:
        """Return the digest of the shards."""
        files = self.files()
        return folder_digest(files[0].parent, [file.name for file in files])

    def parts(self) -> tuple[Stream, Stream]:
        """Return the training and the test part."""
        files = self.files()
        test = [file for file in files if "val" in file.name]
        train = [file for file in files if file not in test]
        if not train:
            raise ConfigError(f'data.path={self.path} has only shards with "val" in their names: add training shards.')
        stream = Stream(train)
        if test:
            return stream, Stream(test, stop=self.test_tokens)
        cut = self._document(stream, 9 * len(stream) // 10)
        return Stream(train, stop=cut), Stream(train, cut, cut + self.test_tokens)

    def bounds(self, train: Stream) -> list[int]:
        """Return the positions at which sources begin, and the end of the last one."""
        total = len(train)
        return sorted({0, total} | {self._document(train, s * total // self.sections) for s in range(1, self.sections)})

    def notes(self) -> tuple[str, ...]:
        """See `DataSet`."""
        train = self.parts()[0]
        note = f"data.end_of_text={self.end_of_text} does not occur in data.path={self.path}: sources begin anywhere"
        return () if train.next_document(0, self.end_of_text) < len(train) else (note,)

    def _document(self, stream: Stream, position: int) -> int:
        """Return the start of the first document at or after this position, which it is if there are no documents."""
        if stream.next_document(0, self.end_of_text) == len(stream):
            return position
        return stream.next_document(position, self.end_of_text)

    def windows(self, bounds: Sequence[int]) -> np.ndarray:
        """Return the number of windows of each source between these bounds."""
        return np.maximum(np.diff(bounds) - 1, 0) // self.longest

    def inspect(self) -> NextTokens:
        """Return the counts, without reading more of the shards than where the sources begin."""
        train, test = self.parts()
        bounds = self.bounds(train)
        counts = self.windows(bounds).sum(), self.windows([0, len(test)]).sum()
        for count, part in zip(counts, ("training", "testing"), strict=True):
            if not count:
                raise ConfigError(
                    f"data.longest={self.longest} exceeds the tokens for {part} in each document or source of "
                    f"data.path={self.path}: use a smaller number, fewer data.sections, or more shards."
                )
        return NextTokens(
            num_train=int(counts[0]),
            num_test=int(counts[1]),
            vocabulary=self.vocabulary,
            longest=self.longest,
            usual=float(self.longest),
            tokenizer=True,
            num_sources=int((self.windows(bounds) > 0).sum()),
        )

    def load(self, device: torch.device | str, seed: int) -> TokenWindows:
        """See `DataSet`."""
        from decentral.data.loading.token_windows import TokenWindows

        train, test = self.parts()
        return TokenWindows(train, self.bounds(train), test, self, device)


class Stream:
    """The tokens of some shards, from `start` to `stop`, as one sequence. Only what is asked for is read."""

    def __init__(self, files: Sequence[Path], start: int = 0, stop: int | None = None) -> None:
        self.shards = [shard(file) for file in files]
        self.ends = np.cumsum([len(tokens) for tokens in self.shards])
        self.start, self.stop = start, int(self.ends[-1]) if stop is None else min(stop, int(self.ends[-1]))

    def __len__(self) -> int:
        return self.stop - self.start

    def read(self, start: int, stop: int) -> np.ndarray:
        """Return the tokens at these positions: int64 [stop - start]."""
        start, stop = start + self.start, min(stop + self.start, self.stop)
        parts, first = [np.empty(0, np.int64)], int(np.searchsorted(self.ends, start, side="right"))
        for tokens, end in zip(self.shards[first:], self.ends[first:], strict=True):
            begin = int(end) - len(tokens)
            if begin >= stop:
                break
            parts.append(tokens[max(0, start - begin) : max(0, stop - begin)])
        return np.concatenate(parts, dtype=np.int64, casting="unsafe")

    def next_document(self, position: int, end_of_text: int) -> int:
        """Return the position of the first `end_of_text` at or after this one; the length if there is none."""
        for start in range(position, len(self), _SEARCHED):
            places = np.flatnonzero(self.read(start, start + _SEARCHED) == end_of_text)
            if len(places):
                return start + int(places[0])
        return len(self)


def shard(file: Path) -> np.ndarray:
    """Map the tokens of a file into memory. Raises ConfigError for a damaged file, or one of another format."""
    try:
        if file.suffix == ".npy":
            tokens = np.load(file, mmap_mode="r")
            if tokens.ndim != 1 or tokens.dtype.kind not in "iu":
                raise ValueError(f"it has {tokens.dtype} of shape {list(tokens.shape)}, not a vector of whole numbers")
            return tokens
        head = np.fromfile(file, "<i4", _HEADER)
        has_header = len(head) == _HEADER and not head[3:].any()
        if has_header and tuple(head[:2]) not in _KINDS:
            known = " or ".join(f"{magic} and {version}" for magic, version in _KINDS)
            raise ValueError(f"its header has the magic number and version {head[0]} and {head[1]}, not {known}")
        tokens = np.memmap(file, _KINDS[tuple(head[:2])] if has_header else "<u2", "r", 4 * _HEADER * has_header)
        if has_header and head[2] != len(tokens):
            raise ValueError(f"its header has {head[2]:,} tokens, but there are {len(tokens):,}")
        low, high = tokens[:_SEARCHED:2], tokens[1:_SEARCHED:2]
        if not has_header and len(high) > _FEW and high.max() < 4 <= low.max():  # of tokens up to 2^18
            raise ValueError("it looks like uint32 without a header")
        return tokens
    except (OSError, ValueError, EOFError) as error:
        raise ConfigError(f"data.path: {file} is not a token shard ({error}): give .bin (uint16) or .npy.") from None
