"""Partial averaging for your own training loop under torchrun: one worker per process, `decentral.join(...)`.

    import decentral
    peers = decentral.join("one_peer_exponential")            # under torchrun, or alone
    x = peers.neighbor_allreduce(x, round=t)                  # x_i <- sum_j W_ij x_j with W of round t

`joining` makes a `Peers`, whose methods are the verbs (`peers`; those of all ranks together are in `group`). `wrap`
joins the steps of an optimizer with averaging (`optimizer`): by a mode (`modes`) or by an algorithm of `decentral-run`
(`algorithm`). `window` is one-sided. Below them: `components` (topologies and algorithms by name), `calls` (from a
verb's arguments to messages), `agreement` (do all ranks mean the same?), `parameters` (of a model) and `handle` (verbs
under way). Messages themselves are the network's.
"""
