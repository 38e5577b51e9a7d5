"""Data sets: one file each (digits, cifar10, imagefolder, imagenet, synthetic), all by the contract in `dataset.py`."""
