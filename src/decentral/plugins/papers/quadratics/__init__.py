"""Many small quadratics at once, as one run: the members of an ensemble share their workers and their algorithm.

An algorithm works on rows x [n, P], coordinate by coordinate. So B independent problems of dimension d (with different
seeds, heterogeneity, and learning rates) are one run with P = B d. The algorithms are those of all other runs; only the
gradient and the learning rate depend on the members.
"""
