"""Who talks to whom, and with which weights: a topology turns a number of workers into its `Rounds`.

Conventions, the same in every module of this package:

- Workers are numbered 0 .. n-1. Worker i takes from worker j with weight `W[i, j]`, so x_i <- sum_j W_ij x_j; the
  diagonal is a worker's own weight. Rows that sum to 1 keep a consensus where it is (pull); columns that sum to 1
  keep the sum over workers (push, needed for push-sum); matrices that do both are doubly stochastic and keep the
  mean.
- A graph is its directed edges `src[e] -> dst[e]`, sorted by (dst, src), without loops. It is undirected where every
  edge has its opposite. A mixing matrix is its entries that are not zero, in the same order, the diagonal included.
  Dense `n x n` arrays are for reading: nothing that a run does needs one.
- A model may be cut into d pieces, each with its own graph (double binary trees: d = 2).
- Rounds may differ and repeat after `period` of them; those of a static topology have period 1. The matrix of a round
  is authoritative: whoever needs the graph reads it from where the matrix is not zero.
- A graph that is drawn is a function of `topology.seed` and the round (`drawn`); the run's seed does not change it.
- Nothing here imports torch or knows processes. networkx and scipy are imported where they are
  needed.

`graph` and `mixing_matrix` hold the sparse lists, `rounds` what the rest of the program reads, `topology` the contract
and the mixing weights, `requirements` what algorithms may ask of rounds, `facts` numbers about them, `delivery` which
messages arrive, `communication` what is done with the rounds of any topology, `groups` who averages with whom in groups
that change; the other modules are one family of topologies each.
"""
