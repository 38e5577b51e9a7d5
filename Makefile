# The targets set everything up. Requirements: Python 3.11 to 3.13, make and git.
.DEFAULT_GOAL := help
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
# The first import of a package keeps its bytecode: uv, unlike pip, compiles nothing.
unexport PYTHONDONTWRITEBYTECODE

help:  ## show this list
	@grep -E '^[a-z0-9-]+:.*##' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "  make %-22s %s\n", $$1, $$2}'
	@echo "  Studies and sweeps run at SCALE=small (bundled data) by default; others: SCALE=smoke, laptop, paper."
	@echo "  Commands in $(BIN), each with --help: decentral-run, -study, -report, -benchmark, -advise, -check."

run: $(VENV)/.installed  ## train RelaySGD on double binary trees: 16 workers, digits, alpha = 0.01 (under a minute)
	$(BIN)/decentral-run algo=relaysgd topology=dbt alpha=0.01

SCALE ?= small
ARGS ?=

studies: $(VENV)/.installed  ## list the studies by paper, with their scales and which have results
	$(BIN)/decentral-study

study: $(VENV)/.installed  ## run a study: make study STUDY=relaysum_table1 [SCALE=smoke|small|laptop|paper] [ARGS='key=value ...']
	@test -n "$(STUDY)" || { echo "make study needs a name, for example STUDY=relaysum_table1:"; $(BIN)/decentral-study; exit 2; }
	$(BIN)/decentral-study $(STUDY) scale=$(SCALE) $(ARGS)

benchmark: $(VENV)/.installed  ## compare methods in fixed scenarios: make benchmark [SCALE=smoke|small|laptop] [ARGS='methods=[mine] --config-dir FOLDER']
	$(BIN)/decentral-benchmark scale=$(SCALE) $(ARGS)

sweep-thesis-lr: $(VENV)/.installed  ## thesis, Tables A.1 to A.3: 5 learning rates x 3 alphas x 5 methods
	$(BIN)/decentral-study 'thesis_tableA_*' scale=$(SCALE) $(ARGS)

sweep-thesis-topologies: $(VENV)/.installed  ## thesis, Figures 5.1 to 5.3: full training at the best rates
	$(BIN)/decentral-study 'thesis_fig5_*' scale=$(SCALE) $(ARGS)

sweep-relaysum-alpha: $(VENV)/.installed  ## RelaySum, Tables 1, 10, 11 and 14: methods x levels of heterogeneity
	$(BIN)/decentral-study relaysum_table1 relaysum_table10 relaysum_table11 relaysum_table14 scale=$(SCALE) $(ARGS)

sweep-relaysum-workers: $(VENV)/.installed  ## RelaySum, Tables 12 and 13: 16, 32 and 64 workers
	$(BIN)/decentral-study relaysum_table12 relaysum_table13 scale=$(SCALE) $(ARGS)

throughput: $(VENV)/.installed  ## thesis, Table 5.1: images per second, next to all-reduce in the same run
	$(BIN)/decentral-study thesis_table5_1 scale=$(SCALE) $(ARGS)

reproduce-relaysum-exact: $(VENV)/.installed  ## RelaySum, Figures 2, 3 and 5 to 10 in full (under 30 minutes on 2 cores)
	$(BIN)/decentral-study relaysum_fig2 relaysum_fig3 relaysum_fig5 relaysum_fig6 relaysum_fig7 \
		relaysum_fig7_rates relaysum_fig8 relaysum_fig9 relaysum_fig10 relaysum_mixing scale=paper $(ARGS)

reproduce-bluefog-exact: $(VENV)/.installed  ## BlueFog, regression, consensus and fish school in full (under 10 minutes on 2 cores)
	$(BIN)/decentral-study bluefog_linear_regression bluefog_consensus bluefog_consensus_graphs bluefog_fish_school \
		scale=paper $(ARGS)

report: $(VENV)/.installed  ## rebuild tables, figures, verdicts and the scoreboard from results/own/
	$(BIN)/decentral-report

evidence: $(VENV)/.installed  ## update committed results in results/: make evidence STUDY=... [SCALE=...]; without STUDY, rebuild the reports
	$(if $(STUDY),$(BIN)/decentral-study $(STUDY) scale=$(SCALE) results_dir=results $(ARGS),$(BIN)/decentral-report results_dir=results)

PYTEST := OMP_NUM_THREADS=1 $(BIN)/pytest -n 2 --dist worksteal

test: $(VENV)/.installed-dev  ## run the quick tests (3 to 6 minutes on 2 cores)
	$(PYTEST) -m "not slow"

CORE := $(CURDIR)/build/core
COMPOSED := every_choice_composes_and_survives_being_written_down every_experiment_composes every_component_is_listed \
	every_component_begins_with_its_name_and_has_plain_fields names_are_read_from_the_files_as_they_are_found_by_importing_them
OF_CORE := $(patsubst %,tests/test_%.py,cli loggers objects own_components refusals report report_pages report_verdicts \
	strangers study study_command training_settings) $(patsubst %,tests/test_conformance.py::test_%,$(COMPOSED))

test-core: $(VENV)/.installed-dev  ## collect all tests in a copy without plug-ins; run those of commands, choices and studies
	rm -rf $(CORE) && mkdir -p $(CORE) && git ls-files -z | xargs -0 cp --parents -t $(CORE)
	rm -rf $(CORE)/src/decentral/plugins $(CORE)/tests/plugins
	cd $(CORE) && PYTHONPATH=$(CORE)/src $(CURDIR)/$(BIN)/pytest --collect-only -qq
	cd $(CORE) && PYTHONPATH=$(CORE)/src OMP_NUM_THREADS=1 $(CURDIR)/$(BIN)/pytest -n 2 --dist worksteal -m "not slow" $(OF_CORE)

test-documents: $(VENV)/.installed-dev  ## run the slow tests of documents, studies, committed results and packages (about 5 minutes)
	$(PYTEST) -m slow tests/test_documents.py tests/test_study.py tests/test_results.py tests/test_packaging.py tests/test_trainers.py

test-all: $(VENV)/.installed-dev  ## run all tests (15 to 25 minutes on 2 cores)
	$(PYTEST)

test-matrix: $(VENV)/.installed-dev  ## test each installed Python (3.11 to 3.13) with the oldest and the newest torch
	PYTHON=$(BIN)/python scripts/test_matrix.sh

check: $(VENV)/.installed-dev  ## check format, lint, types and workflows; print the code size
	$(BIN)/ruff format --check
	$(BIN)/ruff check
	$(BIN)/mypy
	$(BIN)/check-jsonschema --builtin-schema vendor.github-workflows .github/workflows/*.yml
	$(BIN)/python scripts/weight.py

format: $(VENV)/.installed-dev  ## format the code and apply the linter's fixes
	$(BIN)/ruff format
	$(BIN)/ruff check --fix

bench: $(VENV)/.installed  ## benchmark this program, as ratios, into results/bench/ (about 20 minutes on 2 cores): make bench [ARGS='start ways --quick']
	PYTHONPATH=scripts $(BIN)/python -m bench $(ARGS)

readme: $(VENV)/.installed  ## rerun what the README and docs/ report, and fill in the numbers
	$(BIN)/python scripts/readme.py

notebooks: $(VENV)/.installed-dev  ## rebuild the papers' notebooks from results/
	$(BIN)/python scripts/notebooks.py

docs: $(VENV)/.installed-dev  ## build the documentation site: build/docs/site/index.html (under a minute)
	$(BIN)/python scripts/docs/build.py

clean:  ## remove the environment (keeps results)
	rm -rf $(VENV)

$(VENV)/bin/python:
	@$(PYTHON) -c 'import sys; v = sys.version_info[:2]; sys.exit(None if (3, 11) <= v < (3, 14) else \
		f"decentral needs Python 3.11 to 3.13, but {sys.executable} is {v[0]}.{v[1]}: use make PYTHON=python3.12")'
	$(PYTHON) -m venv $(VENV)

# uv needs a third of the time of pip, which takes over where it is set up for a registry that uv does not know.
define install
@echo "Installing packages into $(VENV)/ (a minute or two; PyTorch for GPUs is several GB)"
@$(BIN)/python -m pip install --quiet --disable-pip-version-check uv
@$(BIN)/uv pip install --quiet --python $(BIN)/python --editable '$(1)' || \
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '$(1)'
endef

$(VENV)/.installed: $(VENV)/bin/python pyproject.toml
	$(call install,.)
	@touch $@

$(VENV)/.installed-dev: $(VENV)/bin/python pyproject.toml
	$(call install,.[dev])
	@touch $(VENV)/.installed $@

SWEEPS := sweep-thesis-lr sweep-thesis-topologies sweep-relaysum-alpha sweep-relaysum-workers
.PHONY: help run studies study benchmark $(SWEEPS) throughput evidence reproduce-relaysum-exact reproduce-bluefog-exact report test test-core test-documents test-all test-matrix check format bench readme notebooks docs clean
