"""`python -m decentral` is `decentral-run`."""

from decentral.cli import main

if __name__ == "__main__":
    main()
