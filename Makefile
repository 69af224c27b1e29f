# Commands for development and CI. `make help` lists them; no active virtual environment is needed.

SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help

# The Python that creates the virtual environment.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
UNIT := not contract and not simulation and not spark and not system
SEEDS ?= 50
# Keep compiled modules, also those with rewritten assertions, for the processes that follow.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: help setup demo test check lint format unit simulate constraints clean

help: ## List the targets
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "  make %-12s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

setup: $(STAMP) ## Make .venv with the pinned versions of everything

# A stamp file, because the folder's time changes with every file in it.
$(STAMP): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || { \
	  echo "headgate needs Python 3.11 or newer, but '$(PYTHON)' is $$($(PYTHON) --version 2>&1 || true)." >&2; \
	  echo "Choose another: make setup PYTHON=python3.11" >&2; exit 1; }
	@$(PYTHON) -c 'import venv, ensurepip' 2>/dev/null || { \
	  echo "'$(PYTHON)' cannot create virtual environments. On Debian: apt-get install python3-venv" >&2; exit 1; }
	@test -x $(BIN)/python || { echo "creating $(VENV) with $$($(PYTHON) --version)"; $(PYTHON) -m venv $(VENV); }
	@echo "installing the versions in constraints.txt into $(VENV) (a few minutes, once)"
	@$(BIN)/python -m pip install --disable-pip-version-check --progress-bar off -c constraints.txt -e '.[dev]'
	@touch $@
	@echo "ready: $(BIN)/headgate --help"

demo: $(STAMP) ## Run the main job on real servers, with splits, a merge and a kill
	$(BIN)/python -m demo

test: $(STAMP) ## Run all tests, the fastest first; starts every server they need
	$(BIN)/pytest -q -n auto --hypothesis-profile thorough -m "$(UNIT)"
	$(BIN)/pytest -q -n auto --hypothesis-profile thorough -m "simulation"
	$(BIN)/pytest -q -n 2 --dist loadfile -m "contract and not spark and not system"
	$(BIN)/pytest -q -n 2 --dist loadfile -m "spark and not system"
	@$(MAKE) --no-print-directory -j 2 --output-sync=target engine-standalone engine-connect
	$(BIN)/pytest -q -n 2 --dist loadfile -m "system"

engine-%: $(STAMP)
	$(BIN)/pytest -q -m "engines" --engine $* tests/drain

check: lint unit ## Format, lint, types, import contracts and unit tests

lint: $(STAMP) ## Format, lint, types and import contracts
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports

format: $(STAMP) ## Format the code and apply automatic fixes
	$(BIN)/ruff check --fix-only .
	$(BIN)/ruff format .

unit: $(STAMP) ## Run the unit tests
	$(BIN)/pytest -q -n auto -m "$(UNIT)"

constraints: $(STAMP) ## Write constraints.txt from the newest versions that pyproject.toml allows
	$(BIN)/python -m pip install --disable-pip-version-check --upgrade --upgrade-strategy eager -e '.[dev]'
	{ echo "# Every version that CI installs, including indirect ones. Update with: make constraints"; \
	  $(BIN)/python -m pip freeze --exclude-editable --exclude headgate; } > constraints.txt.new
	mv constraints.txt.new constraints.txt
	touch $(STAMP)

simulate: $(STAMP) ## Simulate SEEDS clusters in virtual time (default 50)
	$(BIN)/python -m tests.simulation 1 $(SEEDS)

clean: ## Remove everything that can be created again; data folders stay
	rm -rf $(VENV) build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
