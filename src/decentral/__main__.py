"""`python -m decentral` is `decentral-run`."""

import sys

if __name__ == "__main__":
    sys.argv[0] = "decentral-run"
    from decentral.cli.run import main

    main()
