"""BLEU from counts that can be added up."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Sequence

import torch
from torch import Tensor

from decentral.host.packages import require

ORDER = 4
COUNTS = 2 * ORDER + 2
"""Matches of 1 to 4 words in a row, how many such rows the translations have, words of translations and references."""


class Bleu(ABC):
    """What is counted of translations, uncased."""

    signature: str
    """How it is counted, as sacrebleu says it."""

    @abstractmethod
    def counts(self, translations: Sequence[str], references: Sequence[str]) -> list[int]:
        """The sums over these sentences that the score is computed from: `COUNTS` numbers."""


class WordBleu(Bleu):
    """Where blanks are all that divides words: needs no package, and equals sacrebleu's with tokenize=none."""

    signature = "nrefs:1|case:lc|eff:no|tok:none|smooth:exp"

    def counts(self, translations: Sequence[str], references: Sequence[str]) -> list[int]:
        """Of each n: how many n words in a row are in the reference, too, each counted as often as it is there."""
        matches, totals, written, asked = [0] * ORDER, [0] * ORDER, 0, 0
        for text, reference in zip(translations, references, strict=True):
            ours, theirs = text.lower().split(), reference.lower().split()
            written, asked = written + len(ours), asked + len(theirs)
            for n in range(1, ORDER + 1):
                found = _in_a_row(ours, n)
                matches[n - 1] += (found & _in_a_row(theirs, n)).total()
                totals[n - 1] += found.total()
        return [*matches, *totals, written, asked]


class TextBleu(Bleu):
    """Sacrebleu's own counts, with its usual tokens (13a): what papers report."""

    def __init__(self) -> None:
        """Raises ConfigError if the package is missing."""
        check_installed()
        from sacrebleu.metrics import BLEU

        self._bleu = BLEU(lowercase=True, force=True)
        self._bleu.corpus_score(["a"], [["a"]])  # after which it knows how many references there are
        self.signature = str(self._bleu.get_signature())

    def counts(self, translations: Sequence[str], references: Sequence[str]) -> list[int]:
        """As sacrebleu counts."""
        found = self._bleu.corpus_score(list(translations), [list(references)])
        return [*found.counts, *found.totals, found.sys_len, found.ref_len]


def check_installed() -> None:
    """Raise ConfigError unless sacrebleu is there."""
    require("sacrebleu", "task=translation with texts", "pip install 'decentral[translation]'")


def bleu(counts: Tensor) -> Tensor:
    """The score, 0 to 100, of each row of sums: [..., COUNTS] -> [...], float64.

        min(1, exp(1 - references / written)) (p_1 p_2 p_3 p_4)^(1/4),  p_n = 100 matches_n / totals_n

    Papineni et al., ACL 2002, for a corpus. The k-th p_n without matches counts as 100 / (2^k totals_n), sacrebleu's
    smoothing "exp"; without any match, or any four words in a row, the score is 0.
    """
    flat = [_score(row) for row in counts.reshape(-1, COUNTS).tolist()]
    return torch.tensor(flat, dtype=torch.float64).reshape(counts.shape[:-1])


def _score(row: Sequence[float]) -> float:
    matches, totals, (written, asked) = row[:ORDER], row[ORDER : 2 * ORDER], row[2 * ORDER :]
    if not any(matches) or not all(totals):
        return 0.0
    logarithms, without = 0.0, 0
    for found, total in zip(matches, totals, strict=True):
        without += not found
        logarithms += math.log(100 * found / total if found else 100 / (2**without * total))
    return math.exp(min(0.0, 1 - asked / written) + logarithms / ORDER)


def _in_a_row(words: list[str], n: int) -> Counter[tuple[str, ...]]:
    return Counter(tuple(words[i : i + n]) for i in range(len(words) - n + 1))
