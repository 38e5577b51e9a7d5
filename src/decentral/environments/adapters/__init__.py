"""Environments of other packages, run side by side. They import these packages; the components do not."""
