"""Partial averaging for your own training loop under torchrun: one worker per process, `decentral.join(...)`.

    import decentral
    peers = decentral.join("one_peer_exponential")            # under torchrun, or alone
    x = peers.neighbor_allreduce(x, round=t)                  # x_i <- sum_j W_ij x_j with W of round t

`joining` makes a `Peers`, whose methods are the verbs (those of all ranks together are in `group`); `wrap` mixes the
parameters of a model around the steps of its optimizer; `window` is one-sided. Below them: `given` (the topology),
`calls` (from a verb's arguments to messages), `agreement` (do all ranks mean the same?), `scheduled` (rounds of the
schedule, on the network that experiments run on), `weights` and `neighbours` (sums with the weights of one call),
`gathering`, `parameters`, `bundle` (tensors as flat rows), `exchange` (messages), `handle` (verbs under way) and
`timeline`.
"""
