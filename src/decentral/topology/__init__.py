"""Communication graphs and mixing weights: a topology turns a number of workers into its `Rounds`.

Conventions, the same in every module of this package:

- Workers are numbered 0 .. n-1. Worker i weighs worker j with `W[i, j]`, so x_i <- sum_j W_ij x_j; the diagonal is a
  worker's own weight. Rows that sum to 1 preserve consensus (pull); columns that sum to 1 preserve the sum over workers
  (push, needed for push-sum); doubly stochastic matrices do both and preserve the mean.
- A graph is its directed edges `src[e] -> dst[e]`, sorted by (dst, src), without self-loops. It is undirected if every
  edge has its opposite. A mixing matrix is its nonzero entries in the same order, including the diagonal.
  Dense `n x n` arrays are for reading only: no run needs one.
- A model may be cut into d pieces, each with its own graph (double binary trees: d = 2).
- Rounds may differ and repeat after `period` rounds; a static topology has period 1. The matrix of a round is
  authoritative: its nonzero entries are the graph.
- A random graph is a function of `topology.seed` and the round (`drawn`); the run's seed does not change it.
- Nothing here imports torch or knows processes. networkx and scipy are imported on demand.

`graph` and `mixing_matrix` hold the sparse lists, `rounds` the interface for the rest of the program, `topology` the
base classes and the mixing weights, `requirements` the conditions that algorithms put on rounds, `facts` numbers about
them, `delivery` the messages that arrive, `communication` schedules for any topology, and `groups` the changing groups
of group averaging; each other module is one family of topologies.
"""
