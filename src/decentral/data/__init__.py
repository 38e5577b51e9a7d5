"""Data sets: one file each (digits, cifar10, imagefolder, imagenet), all behind the contract in `dataset.py`."""
