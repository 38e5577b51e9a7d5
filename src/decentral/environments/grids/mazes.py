"""Mazes of several kinds, with the length of the shortest way between any two of their cells."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from decentral.randomness import numpy_generator

_DENSITY = 0.3  # of the obstacles in `blocks`
_OPENED = 0.3  # of the inner walls of `maze` that are taken away again, so that there are several ways
MOVES = np.array([(-1, 0), (0, 1), (1, 0), (0, -1)])
"""Rows and columns of the actions: north, east, south, west."""


def _open(size: int, random: np.random.Generator) -> np.ndarray:
    """No walls but those around it."""
    return np.zeros((size, size), dtype=bool)


def _blocks(size: int, random: np.random.Generator) -> np.ndarray:
    """Single cells that are blocked."""
    return random.random((size, size)) < _DENSITY


def _rooms(size: int, random: np.random.Generator) -> np.ndarray:
    """Four rooms with a door between each two neighbours."""
    walls = np.zeros((size, size), dtype=bool)
    row, column = random.integers(size // 3, size - size // 3, 2)
    walls[row], walls[:, column] = True, True
    for low, high in ((0, column), (column + 1, size)):
        walls[row, random.integers(low, high)] = False
    for low, high in ((0, row), (row + 1, size)):
        walls[random.integers(low, high), column] = False
    return walls


def _bars(size: int, random: np.random.Generator) -> np.ndarray:
    """Every third row (or column) is a wall with one gap."""
    walls = np.zeros((size, size), dtype=bool)
    for row in range(int(random.integers(1, 3)), size, 3):
        walls[row] = True
        walls[row, random.integers(size)] = False
    return walls.T if random.random() < 0.5 else walls


def _maze(size: int, random: np.random.Generator) -> np.ndarray:
    """Corridors: a spanning tree of every second cell, by depth-first search, and some more openings."""
    walls = np.ones((size, size), dtype=bool)
    walls[::2, ::2] = False
    way, seen = [(0, 0)], {(0, 0)}
    while way:
        row, column = way[-1]
        ahead = [
            (row + 2 * r, column + 2 * c)
            for r, c in MOVES.tolist()
            if 0 <= row + 2 * r < size and 0 <= column + 2 * c < size and (row + 2 * r, column + 2 * c) not in seen
        ]
        if not ahead:
            way.pop()
            continue
        chosen = ahead[random.integers(len(ahead))]
        walls[(row + chosen[0]) // 2, (column + chosen[1]) // 2] = False
        seen.add(chosen)
        way.append(chosen)
    inner = np.zeros_like(walls)
    inner[1::2, ::2] = inner[::2, 1::2] = True
    walls &= ~(inner & (random.random((size, size)) < _OPENED))
    return walls


LAYOUTS: dict[str, Callable[[int, np.random.Generator], np.ndarray]] = {
    "open": _open,
    "blocks": _blocks,
    "rooms": _rooms,
    "bars": _bars,
    "maze": _maze,
}
"""Kind of maze -> what draws the walls of one: bool [size, size]."""


def draw(kind: str, size: int, seed: int, purpose: str, number: int) -> np.ndarray:
    """The walls [size, size] of a maze of this kind, a function of its address; all free cells hang together.

    Cells that cannot be reached from the largest region are filled; without two free cells, all are free.
    """
    from scipy.ndimage import label

    random = numpy_generator(seed, f"{purpose} maze", number)
    walls = LAYOUTS[kind](size, random)
    regions, count = label(~walls)
    if count > 1:
        walls = regions != 1 + np.bincount(regions.ravel())[1:].argmax()
    return walls if (~walls).sum() > 1 else np.zeros_like(walls)


class Mazes(NamedTuple):
    """M mazes of C = size^2 cells, which are numbered row by row."""

    size: int
    after: np.ndarray  # [M, C, 4] int16: the cell after a move; the same one where there is a wall
    distance: np.ndarray  # [M, C, C] int16: steps of the shortest way; -1 from or to a wall
    free: np.ndarray  # [M, C] int16: the cells that are no walls, in order, at first
    num_free: np.ndarray  # [M] int64
    seen: np.ndarray  # [M, C, V, V] bool: the walls around a cell, those around the maze, too

    @classmethod
    def of(cls, walls: Sequence[np.ndarray], view: int) -> Mazes:
        """For walls [size, size] each, seen through a window of V = `view` cells each way, an odd number."""
        from scipy.sparse import csr_array
        from scipy.sparse.csgraph import shortest_path

        size, reach = len(walls[0]), view // 2
        cells = np.arange(size * size)
        place = np.stack([cells // size, cells % size], axis=1)
        after, distance, free, num_free, seen = [], [], [], [], []
        for wall in walls:
            blocked = wall.ravel()
            ahead = place[:, None] + MOVES
            inside = ((ahead >= 0) & (ahead < size)).all(2)
            number = np.where(inside, ahead[..., 0] * size + ahead[..., 1], cells[:, None])
            number = np.where(blocked[number] | blocked[:, None], cells[:, None], number)
            moved = number != cells[:, None]
            ways = csr_array(
                (np.ones(moved.sum()), (np.nonzero(moved)[0], number[moved])), shape=(len(cells), len(cells))
            )
            steps = shortest_path(ways, unweighted=True)
            steps[blocked] = steps[:, blocked] = -1
            open_cells = np.flatnonzero(~blocked)
            padded = np.pad(wall, reach, constant_values=True)
            windows = np.lib.stride_tricks.sliding_window_view(padded, (view, view))
            after.append(number.astype(np.int16))
            distance.append(np.where(np.isfinite(steps), steps, -1).astype(np.int16))
            free.append(np.concatenate([open_cells, np.flatnonzero(blocked)]).astype(np.int16))
            num_free.append(len(open_cells))
            seen.append(windows.reshape(len(cells), view, view).copy())
        counts = np.array(num_free, dtype=np.int64)
        return cls(size, np.stack(after), np.stack(distance), np.stack(free), counts, np.stack(seen))
