"""What is sent instead of a dense row, with its exact size in bytes: `compress=`, one file for each compressor.

The components import no torch at the top; what several of them compute with is in `arithmetic/`.
"""
