"""Computation of the gradients of a process's workers: `execution=`.

The components choose a mode and import no torch at the top; the computation is in `passes/`.
"""
