"""Partial averaging for your own training loop under torchrun: one worker per process, `decentral.join(...)`.

    import decentral
    peers = decentral.join("one_peer_exponential")            # under torchrun, or alone
    x = peers.neighbor_allreduce(x, round=t)                  # x_i <- sum_j W_ij x_j with W of round t

`joining` creates `Peers`, whose methods are the communication operations (`peers`; those of all ranks are in `group`).
`wrap` adds averaging to optimizer steps (`optimizer`): those of an algorithm of `decentral-run`, which a mode names
(`step`). `resuming` saves and resumes the training of all ranks. `window` is one-sided. Below them: `components`
(topologies and algorithms by name), `calls` (from arguments to messages), `agreement` (checks that all ranks make the
same call), `parameters` (of a model) and `handle` (operations in flight). The network package sends the messages.
"""
