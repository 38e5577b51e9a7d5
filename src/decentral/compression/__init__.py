"""Compressed messages instead of dense rows, with exact sizes in bytes: `compress=`, one file per family.

`selection` and `quantization` have shared computations; nothing here imports torch before it computes.
"""
