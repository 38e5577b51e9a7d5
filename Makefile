# Everything is set up by the targets themselves: Python 3.11 to 3.13, make and git are all that is needed.
.DEFAULT_GOAL := help
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin

help:  ## show this list
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "  make %-8s %s\n", $$1, $$2}'
	@echo "  Everything else is one command: $(BIN)/decentral-run --help"

run: $(VENV)/.installed  ## RelaySGD on double binary trees, 16 workers, digits split with alpha = 0.01 (under a minute)
	$(BIN)/decentral-run algo=relaysgd topology=dbt alpha=0.01

test: $(VENV)/.installed-dev  ## all tests
	OMP_NUM_THREADS=1 $(BIN)/pytest -n 2 --dist worksteal

check: $(VENV)/.installed-dev  ## formatting, lint and types
	$(BIN)/ruff format --check
	$(BIN)/ruff check
	$(BIN)/mypy

format: $(VENV)/.installed-dev  ## format the code and mend what the linter can mend
	$(BIN)/ruff format
	$(BIN)/ruff check --fix

bench: $(VENV)/.installed  ## the time of a step against the time of its forward and backward passes
	$(BIN)/decentral-bench

readme: $(VENV)/.installed  ## run what the README reports, and fill in its numbers
	$(BIN)/python scripts/readme.py

clean:  ## remove the environment (results stay)
	rm -rf $(VENV)

$(VENV)/bin/python:
	@$(PYTHON) -c 'import sys; v = sys.version_info[:2]; sys.exit(None if (3, 11) <= v < (3, 14) else \
		f"decentral needs Python 3.11 to 3.13, but {sys.executable} is {v[0]}.{v[1]}: use make PYTHON=python3.12")'
	$(PYTHON) -m venv $(VENV)

$(VENV)/.installed: $(VENV)/bin/python pyproject.toml
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable .
	@touch $@

$(VENV)/.installed-dev: $(VENV)/.installed
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[dev]'
	@touch $@

.PHONY: help run test check format bench readme clean
