"""Tokens that are parts of words: byte-pair encoding by the `tokenizers` library."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from decentral.data.pairs import BEGIN, END, PAD
from decentral.errors import ConfigError
from decentral.host.packages import require
from decentral.store.files import at_home

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tokenizers import Tokenizer

SPECIAL = {PAD: "<pad>", BEGIN: "<s>", END: "</s>"}
"""Tokens that are no parts of words: number -> how they are called in the tokenizer's file."""
LEAST = 256 + len(SPECIAL)
"""Tokens of a vocabulary of bytes."""
_INSTALL = "pip install 'decentral[translation]', or use data=synthetic_translation, which needs nothing"


def required(setting: str) -> None:
    """Raise ConfigError unless the library is there."""
    require("tokenizers", setting, _INSTALL)


def trained(texts: Iterable[str], vocab_size: int) -> Tokenizer:
    """A tokenizer whose vocabulary are the bytes and the most frequent pairs of what is known (Sennrich et al. 2016).

    Byte-level (GPT-2's), so that nothing is unknown and tokens give back the text as it was. Where there are not enough
    pairs the vocabulary is smaller than asked for.
    """
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=True)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=[SPECIAL[number] for number in sorted(SPECIAL)],
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    with in_one_thread():
        tokenizer.train_from_iterator(texts, trainer)
    return tokenizer


def opened(path: Path) -> Tokenizer:
    """The tokenizer of a file."""
    from tokenizers import Tokenizer

    return Tokenizer.from_file(str(path))


def size_of(path: str | Path, key: str) -> int:
    """How many tokens the tokenizer of a file has, without the library. Raises ConfigError for what is no such file."""
    try:
        content = json.loads(at_home(path).read_text(encoding="utf-8"))
        added = {str(one["content"]): int(one["id"]) for one in content.get("added_tokens", [])}
        vocabulary = {str(token): int(number) for token, number in content["model"]["vocab"].items()} | added
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise ConfigError(
            f"{key}={path} is no tokenizer ({type(error).__name__}: {error}): give a file that the tokenizers library "
            "has saved, with tokenizer.save(...)."
        ) from error
    for number, token in SPECIAL.items():
        if vocabulary.get(token) != number:
            raise ConfigError(
                f"{key}={path} has to have {', '.join(f'{t} as token {n}' for n, t in SPECIAL.items())}: train it with "
                f"special_tokens={[SPECIAL[each] for each in sorted(SPECIAL)]}."
            )
    return max(vocabulary.values()) + 1


@contextmanager
def in_one_thread() -> Iterator[None]:
    """The library takes one core, and says nothing when a process forks."""
    before = os.environ.get("TOKENIZERS_PARALLELISM")
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    try:
        yield
    finally:
        os.environ.pop("TOKENIZERS_PARALLELISM")
        if before is not None:
            os.environ["TOKENIZERS_PARALLELISM"] = before
