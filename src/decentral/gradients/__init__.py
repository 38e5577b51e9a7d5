"""How the gradients of a process's workers are computed: `execution=`.

The components decide and import no torch at the top; what computes is in `passes/`.
"""
