"""Who talks to whom, and with which weights: a topology turns a number of workers into a `Schedule`.

Conventions, the same in every module of this package:

- Workers are numbered 0 .. n-1. Worker i takes from worker j with weight `W[i, j]`, so x_i <- sum_j W_ij x_j; the
  diagonal is a worker's own weight. Rows that sum to 1 keep a consensus where it is (pull); columns that sum to 1
  keep the sum over workers (push, needed for push-sum); matrices that do both are doubly stochastic and keep the
  mean.
- A graph is a boolean matrix `A[i, j]` (does j send to i?) with an empty diagonal. It is undirected where A = A^T.
- A model may be cut into d pieces, each with its own graph (double binary trees: d = 2).
- A schedule may change with the round and repeats after `period` rounds; a static one has period 1. The matrix of a
  round is authoritative: whoever needs the graph reads it from where the matrix is not zero.
- Nothing here draws random numbers, imports torch, or knows processes. networkx is imported by the topology that
  needs it.

`schedule` holds what the rest of the program reads, `topology` the contract, `weights` the mixing weights,
`requirements` what algorithms may ask of a schedule, `facts` numbers about it, `communication` what is done with the
rounds of any topology, `another` finds a topology that one is made from; the other modules are one topology each.
"""
