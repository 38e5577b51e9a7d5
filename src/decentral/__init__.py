"""decentral: reproduce the studies of decentralized deep learning from one command line.

Importing this package is cheap on purpose: torch is imported only once a configuration has been accepted.
"""

__version__ = "0.1.0"
