"""The glossary names each word once, and files that are there."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

import decentral

REPOSITORY = Path(__file__).parents[1]
LINES = (REPOSITORY / "docs" / "glossary.md").read_text(encoding="utf-8").splitlines()
ROWS = [line.strip("| ").split(" | ") for line in LINES if line.startswith("| ") and not line.startswith("| word")]


def test_every_word_is_explained_once():
    assert [word for word, times in Counter(row[0] for row in ROWS).items() if times > 1] == []


def test_every_place_that_it_names_is_there():
    places = {place for row in ROWS for place in re.findall(r"`([\w/]+(?:\.py|/))`", row[-1])}
    assert places
    roots = (Path(decentral.__file__).parent, REPOSITORY)
    assert [place for place in sorted(places) if not any((root / place).exists() for root in roots)] == []
