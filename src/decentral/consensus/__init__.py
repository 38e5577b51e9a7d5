"""Average consensus: every worker has a vector, all want the mean.

BlueFog paper (Ying et al., 2021, arXiv:2111.04287), section IV-C: over rounds, on different graphs (`rounds`), and
against time with a worker that is slower than the others, synchronous and asynchronous (`race`).
"""
