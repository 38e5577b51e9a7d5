"""Data sets: one file each (digits, cifar10, imagefolder, imagenet, synthetic), with the interface in `dataset.py`."""
