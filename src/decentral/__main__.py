"""`python -m decentral` is `decentral-run`."""

from decentral.cli.run import main

if __name__ == "__main__":
    main()
