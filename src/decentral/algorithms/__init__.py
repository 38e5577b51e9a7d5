"""Algorithms for decentralized optimization, one file each, written once for any number of processes.

Symbols, the same in every file (where a paper uses another letter, the docstring translates):

    n   workers (net.n)                 x   models            [k, P]
    k   workers in this process         g   gradients         [k, P]
    P   parameters of one model         u   local updates     [k, P], already times -lr: u_i = Opt(g_i)
    d   pieces of a model (trees)       y   x^{t+1/2} = x + u [k, P]
    E   directed edges into the         m   messages          [E, ceil(P / d)]; or a momentum [k, P]
        k local workers                 c   counts of models in a message, or corrections (each file says which)
    t   step                            w   push-sum weights  [n, d];  z = x / w
    W   mixing matrix: W[i, j] is what i takes from j
    q   tracked updates [k, P]: over all n workers they add up to what the u add up to

Two rules make this fast without making it unreadable:

* **Donation.** `step` owns the state it is given, and the gradient that the oracle returns. What it does with them
  takes their memory and allocates nothing: the verbs of the network and the local optimizer return their result in the
  memory of the rows they are given, and so do the sums of `optim/rows.py` (`out=` where it is another argument's). So
  a page reads as if every line made a new value, as long as it goes on with what a call returns.
* **What everyone can compute is not sent.** Counters and push-sum weights follow from the topology and the seeded
  losses, so every process computes those of all n workers (`Shared` state, `net.*_known`).
"""
