"""MovieLens: a user, a movie and a rating 0.5, 1, ..., 5, which is the class; ids are whole numbers below 2^24."""

import pandas
import torch
from torch import Tensor, nn
from torch.utils.data import TensorDataset


def ratings(path: str = "ratings.csv") -> TensorDataset:
    """Return the pairs (user, movie) [N, 2] and their classes, with the user of each as a column for the partition."""
    table = pandas.read_csv(path)
    pairs = torch.tensor(table[["userId", "movieId"]].to_numpy()).float()
    data = TensorDataset(pairs, torch.tensor((2 * table.rating - 1).to_numpy()).long())
    data.userId = table.userId.to_numpy()
    return data


class Factors(nn.Module):
    """Matrix factorization: logits of the ratings from the product of the vectors of user and movie."""

    def __init__(self, num_classes: int, users: int = 1000, movies: int = 200_000, rank: int = 16) -> None:
        super().__init__()
        self.users, self.movies = nn.Embedding(users, rank), nn.Embedding(movies, rank)
        self.ratings = nn.Linear(rank, num_classes)

    def forward(self, pairs: Tensor) -> Tensor:
        """Return the logits [B, C] of pairs [B, 2]."""
        user, movie = pairs.long().unbind(1)
        return self.ratings(self.users(user) * self.movies(movie))
