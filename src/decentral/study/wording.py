"""Sentences of a study that say how many seeds it has."""

from __future__ import annotations

import re

_WORDS = ("no", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve")
_PLACE = re.compile(r"\{n ([^{}]+)\}")


def counted(text: str, number: int) -> str:
    """The text with 'three seeds' or 'one seed' in the place of '{n seeds}'."""
    word = _WORDS[number] if number < len(_WORDS) else str(number)
    return _PLACE.sub(lambda found: f"{word} {found[1].removesuffix('s') if number == 1 else found[1]}", text)
