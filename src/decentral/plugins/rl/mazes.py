"""Mazes of several kinds, with the shortest paths between all of their cells, and many walks through them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from decentral.environments.environment import Moves, Running
from decentral.randomness import numpy_generator

_DENSITY = 0.3  # of the obstacles in `blocks`
_OPENED = 0.3  # of the inner walls of `maze` that are taken away again, so that there are several ways
MOVES = np.array([(-1, 0), (0, 1), (1, 0), (0, -1)])
"""Row and column offsets of the actions: north, east, south, west."""


def _open(size: int, random: np.random.Generator) -> np.ndarray:
    """Return a maze with only the outer walls."""
    return np.zeros((size, size), dtype=bool)


def _blocks(size: int, random: np.random.Generator) -> np.ndarray:
    """Return a maze with single blocked cells."""
    return random.random((size, size)) < _DENSITY


def _rooms(size: int, random: np.random.Generator) -> np.ndarray:
    """Return four rooms with a door between each two neighbors."""
    walls = np.zeros((size, size), dtype=bool)
    row, column = random.integers(size // 3, size - size // 3, 2)
    walls[row], walls[:, column] = True, True
    for low, high in ((0, column), (column + 1, size)):
        walls[row, random.integers(low, high)] = False
    for low, high in ((0, row), (row + 1, size)):
        walls[random.integers(low, high), column] = False
    return walls


def _bars(size: int, random: np.random.Generator) -> np.ndarray:
    """Return a maze in which every third row (or column) is a wall with one gap."""
    walls = np.zeros((size, size), dtype=bool)
    for row in range(int(random.integers(1, 3)), size, 3):
        walls[row] = True
        walls[row, random.integers(size)] = False
    return walls.T if random.random() < 0.5 else walls


def _maze(size: int, random: np.random.Generator) -> np.ndarray:
    """Return corridors: a spanning tree of every second cell, by depth-first search, and some more openings."""
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
"""Kind of maze -> function that draws its walls: bool [size, size]."""


def draw(kind: str, size: int, seed: int, purpose: str, number: int) -> np.ndarray:
    """Draw the walls [size, size] of a maze of this kind, a function of its address; all free cells are connected.

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
        """Return the mazes with walls [size, size] each, seen through a window of V = `view` cells each way, an odd
        number."""
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


class Walks(Running):
    """k x E walks, each in one of the mazes, from a start to a goal; see `env=gridworld`.

    The random numbers of an episode choose its maze, its start and its goal.
    """

    def __init__(
        self,
        mazes: Mazes,
        numbers: np.ndarray,
        own: Sequence[np.ndarray],
        num_envs: int,
        progress: float,
        step_cost: float,
        max_steps: int,
    ) -> None:
        """Create the walks; `numbers` are the numbers of the mazes, in order, and `own` the indices of each of the k
        workers' mazes among them."""
        self.numbers = numbers
        self.mazes, self.own, self.max_steps = mazes, own, max_steps
        self.progress, self.step_cost = progress, step_cost
        self.num_own = np.array([len(each) for each in own])
        self.owned = np.stack([np.resize(each, self.num_own.max()) for each in own])
        k, cells = len(own), mazes.distance.shape[1]
        self.num_cells, self.view = cells, mazes.seen.shape[-1]
        self.maze, self.at, self.goal, self.steps, self.shortest, self.left = np.zeros((6, k, num_envs), dtype=np.int64)
        self.after, self.distance = mazes.after.reshape(-1), mazes.distance.reshape(-1)
        self.seen = mazes.seen.reshape(-1, self.view, self.view)
        offset = np.arange(cells)
        self.row, self.column = offset // mazes.size, offset % mazes.size

    def begin(self, places: Sequence[int], chances: np.ndarray) -> None:
        """See `Running`."""
        rows = np.asarray(places)
        self._begin(rows, np.ones(chances.shape[:2], dtype=bool), chances)

    def _begin(self, rows: np.ndarray, which: np.ndarray, chances: np.ndarray) -> None:
        """Begin new episodes in the environments [r, E] of these workers selected by `which`."""
        r, e = np.nonzero(which)
        i, (first, second, third) = rows[r], chances[r, e].T
        maze = self.owned[i, (first * self.num_own[i]).astype(np.int64)]
        free = self.mazes.num_free[maze]
        start = (second * free).astype(np.int64)
        goal = (third * (free - 1)).astype(np.int64)
        goal += goal >= start
        at, to = self.mazes.free[maze, start].astype(np.int64), self.mazes.free[maze, goal].astype(np.int64)
        way = self.distance[(maze * self.num_cells + at) * self.num_cells + to]
        self.maze[i, e], self.at[i, e], self.goal[i, e] = maze, at, to
        self.steps[i, e], self.shortest[i, e], self.left[i, e] = 0, way, way

    def observe(self, places: Sequence[int]) -> np.ndarray:
        """Return two channels [r, E, 2, V, V]: walls, and the goal, at the border of the window if it is outside."""
        maze, at, goal = self.maze[places], self.at[places], self.goal[places]
        (r, E), V = at.shape, self.view
        channels = np.zeros((r, E, 2, V, V), dtype=np.float32)
        channels[:, :, 0] = self.seen[maze * self.num_cells + at]
        down = np.clip(self.row[goal] - self.row[at], -(V // 2), V // 2) + V // 2
        right = np.clip(self.column[goal] - self.column[at], -(V // 2), V // 2) + V // 2
        pixels = channels.reshape(r * E, 2 * V * V)
        pixels[np.arange(r * E), (V * V + down * V + right).ravel()] = 1.0
        return channels

    def step(self, places: Sequence[int], actions: np.ndarray, chances: np.ndarray) -> Moves:
        """See `Running`; facts are success weighted by path length, and success."""
        rows = np.asarray(places)
        maze, at, goal = self.maze[rows], self.at[rows], self.goal[rows]
        cell = maze * self.num_cells + at
        moved = self.after[cell * 4 + actions].astype(np.int64)
        left = self.distance[(cell - at + moved) * self.num_cells + goal].astype(np.int64)
        steps = self.steps[rows] + 1
        arrived = left == 0
        ended = arrived | (steps >= self.max_steps)
        rewards = self.progress * (self.left[rows] - left) - self.step_cost + arrived
        self.at[rows], self.steps[rows], self.left[rows] = moved, steps, left
        facts = np.zeros((*ended.shape, 2))
        if ended.any():
            shortest = self.shortest[rows]
            facts[..., 0] = np.where(arrived, shortest / np.maximum(shortest, steps), 0.0)
            facts[..., 1] = arrived
            self._begin(rows, ended, chances)
        return Moves(rewards, ended, facts)

    def state(self, place: int) -> Any:
        """Return the numbers that describe each walk."""
        numbers = {name: getattr(self, name)[place].tolist() for name in _NUMBERS}
        return numbers | {"maze": self.numbers[self.maze[place]].tolist()}

    def load_state(self, place: int, state: Any) -> None:
        """See `Running`."""
        for name in _NUMBERS:
            getattr(self, name)[place] = state[name]
        self.maze[place] = np.searchsorted(self.numbers, state["maze"])


_NUMBERS = ("at", "goal", "steps", "shortest", "left")
