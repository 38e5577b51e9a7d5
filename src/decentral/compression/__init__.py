"""What is sent instead of a dense row, with its exact size in bytes: `compress=`, one file for each compressor.

What several of them compute with is in `selection` and `quantisation`; nothing here imports torch before it computes.
"""
