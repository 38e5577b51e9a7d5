"""Descriptions of pictures, in English and German."""

from __future__ import annotations

from dataclasses import dataclass

from decentral.data.parallel import Parallel


@dataclass
class Multi30k(Parallel):
    """Multi30k: 29,000 short English descriptions of pictures with their German translations, and 1,000 for testing.

    Elliott, Frank, Sima'an and Specia, Multi30K: Multilingual English-German Image Descriptions, 2016
    (arXiv:1605.00459). Nothing is downloaded: data.path=FOLDER has train.en, train.de, test_2016_flickr.en and
    test_2016_flickr.de (plain or .gz), as in the data set's repository (task 1, raw). All else as in data=parallel.
    """

    name: str = "multi30k"
    test: str = "test_2016_flickr"
