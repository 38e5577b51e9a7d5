"""Asynchronous communication between real processes: messages, group averaging and pairwise averaging."""
