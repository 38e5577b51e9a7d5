# Everything is set up by the targets themselves: Python 3.11 to 3.13, make and git are all that is needed.
.DEFAULT_GOAL := help
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin

help:  ## show this list
	@grep -E '^[a-z0-9-]+:.*##' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "  make %-22s %s\n", $$1, $$2}'
	@echo "  Studies and sweeps are at SCALE=small (bundled data) unless told otherwise: SCALE=smoke, laptop or paper."
	@echo "  Commands in $(BIN), each with --help: decentral-run, -study, -report, -benchmark, -advise, -check."

run: $(VENV)/.installed  ## RelaySGD on double binary trees, 16 workers, digits split with alpha = 0.01 (under a minute)
	$(BIN)/decentral-run algo=relaysgd topology=dbt alpha=0.01

SCALE ?= small
ARGS ?=

studies: $(VENV)/.installed  ## list the studies
	$(BIN)/decentral-study

study: $(VENV)/.installed  ## one study: make study STUDY=relaysum_table1 [SCALE=smoke|small|laptop|paper] [ARGS='key=value ...']
	@test -n "$(STUDY)" || { echo "make study needs a name, for example STUDY=relaysum_table1:"; $(BIN)/decentral-study; exit 2; }
	$(BIN)/decentral-study $(STUDY) scale=$(SCALE) $(ARGS)

benchmark: $(VENV)/.installed  ## compare about twenty methods in fixed scenarios: make benchmark [SCALE=smoke|small|laptop] [ARGS='methods=[mine] --config-dir FOLDER']
	$(BIN)/decentral-benchmark scale=$(SCALE) $(ARGS)

sweep-thesis-lr: $(VENV)/.installed  ## thesis, Tables A.1 to A.3: five learning rates x three alphas x five methods
	$(BIN)/decentral-study 'thesis_tableA_*' scale=$(SCALE) $(ARGS)

sweep-thesis-topologies: $(VENV)/.installed  ## thesis, Figures 5.1 to 5.3: the best rates, trained to the end
	$(BIN)/decentral-study 'thesis_fig5_*' scale=$(SCALE) $(ARGS)

sweep-relaysum-alpha: $(VENV)/.installed  ## RelaySum, Tables 1, 10, 11 and 14: methods x levels of heterogeneity
	$(BIN)/decentral-study relaysum_table1 relaysum_table10 relaysum_table11 relaysum_table14 scale=$(SCALE) $(ARGS)

sweep-relaysum-workers: $(VENV)/.installed  ## RelaySum, Tables 12 and 13: 16, 32 and 64 workers
	$(BIN)/decentral-study relaysum_table12 relaysum_table13 scale=$(SCALE) $(ARGS)

throughput: $(VENV)/.installed  ## thesis, Table 5.1: images per second, beside all-reduce in the same run
	$(BIN)/decentral-study thesis_table5_1 scale=$(SCALE) $(ARGS)

reproduce-relaysum-exact: $(VENV)/.installed  ## RelaySum, Figures 2, 3 and 5 to 10 in full: under half an hour on 2 cores
	$(BIN)/decentral-study relaysum_fig2 relaysum_fig3 relaysum_fig5 relaysum_fig6 relaysum_fig7 \
		relaysum_fig7_rates relaysum_fig8 relaysum_fig9 relaysum_fig10 relaysum_mixing scale=paper $(ARGS)

reproduce-bluefog-exact: $(VENV)/.installed  ## BlueFog: regression, consensus, fish school in full: under ten minutes on 2 cores
	$(BIN)/decentral-study bluefog_linear_regression bluefog_consensus bluefog_consensus_graphs bluefog_fish_school \
		scale=paper $(ARGS)

report: $(VENV)/.installed  ## tables, figures, verdicts and the scoreboard, again, from what is stored in results/own/
	$(BIN)/decentral-report

evidence: $(VENV)/.installed  ## the results that are committed: a study into results/, make evidence STUDY=... [SCALE=...]; without STUDY the reports
	$(if $(STUDY),$(BIN)/decentral-study $(STUDY) scale=$(SCALE) results_dir=results $(ARGS),$(BIN)/decentral-report results_dir=results)

PYTEST := OMP_NUM_THREADS=1 $(BIN)/pytest -n 2 --dist worksteal

test: $(VENV)/.installed-dev  ## the tests, less those that take long and rarely break (about three minutes on 2 cores)
	$(PYTEST) -m "not slow"

test-all: $(VENV)/.installed-dev  ## all tests (about 15 minutes on 2 cores)
	$(PYTEST)

test-matrix: $(VENV)/.installed-dev  ## Python 3.11 to 3.13 with the lowest and the newest torch, as far as this machine has them
	PYTHON=$(BIN)/python scripts/test_matrix.sh

check: $(VENV)/.installed-dev  ## formatting, lint and types; and what the program weighs
	$(BIN)/ruff format --check
	$(BIN)/ruff check
	$(BIN)/mypy
	$(BIN)/python scripts/weight.py

format: $(VENV)/.installed-dev  ## format the code and mend what the linter can mend
	$(BIN)/ruff format
	$(BIN)/ruff check --fix

bench: $(VENV)/.installed  ## measure this program itself, as ratios, into results/bench/ (about 20 minutes on 2 cores): make bench [ARGS='start ways --quick']
	PYTHONPATH=scripts $(BIN)/python -m bench $(ARGS)

readme: $(VENV)/.installed  ## run what the README and docs/ report, and fill in the numbers
	$(BIN)/python scripts/readme.py

notebooks: $(VENV)/.installed-dev  ## the notebooks of the papers, again, with what is stored in results/
	$(BIN)/python scripts/notebooks.py

docs: $(VENV)/.installed-dev  ## the documentation as a site: build/docs/site/index.html (under a minute)
	$(BIN)/python scripts/docs/build.py

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

SWEEPS := sweep-thesis-lr sweep-thesis-topologies sweep-relaysum-alpha sweep-relaysum-workers
.PHONY: help run studies study benchmark $(SWEEPS) throughput evidence reproduce-relaysum-exact reproduce-bluefog-exact report test test-all test-matrix check format bench readme notebooks docs clean
