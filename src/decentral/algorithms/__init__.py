"""Algorithms for decentralized optimization: one file each, the same code for any number of processes.

Symbols, the same in every file (if a paper uses another letter, the docstring translates):

    n   workers (net.n)                 x   models            [k, P]
    k   workers in this process         g   gradients         [k, P]
    P   parameters of one model         u   local updates     [k, P], already times -lr: u_i = Opt(g_i)
    d   pieces of a model (trees)       y   x^{t+1/2} = x + u [k, P]
    E   directed edges into the         m   messages          [E, ceil(P / d)]; or a momentum [k, P]
        k local workers                 c   counts of models in a message, or corrections (each file says which)
    t   step                            w   push-sum weights  [n, d];  z = x / w
    W   mixing matrix: W[i, j] is what i takes from j
    q   tracked updates [k, P]: their sum over all n workers equals the sum of the u

Two rules keep the code fast and readable:

* **Donation.** `step` owns the state it receives and the gradient that the oracle returns. It reuses their memory and
  allocates nothing: the network's operations, the local optimizer and the sums of `optim/rows.py` return their result
  in the memory of their input rows (`out=` selects another argument). The code reads as if every line created a new
  value, as long as it uses the returned value.
* **Values that every worker can compute are not sent.** Counters and push-sum weights follow from the topology and the
  seeded losses, so every process computes those of all n workers (`Shared` state, `net.*_known`).
"""
