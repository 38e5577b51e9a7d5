"""Run `decentral-run` as `python -m decentral`."""

import sys

if __name__ == "__main__":
    sys.argv[0] = "decentral-run"
    from decentral.cli.run import main

    main()
