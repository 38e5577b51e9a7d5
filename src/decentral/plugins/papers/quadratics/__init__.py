"""Many small quadratics at once, as one run: the members of an ensemble share their workers and their algorithm.

An algorithm works on rows x [n, P], coordinate by coordinate. So B independent problems of dimension d (other seeds,
other heterogeneity, other learning rates) are one run with P = B d: the algorithms are those of every other run, and
only the gradient and the learning rate know of the members.
"""
