# Commands for development and CI. `make help` lists them; no active virtual environment is needed.

SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help

# The Python that creates the virtual environment.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
TEST_STAMP := $(VENV)/.installed-for-tests
DOCS_STAMP := $(VENV)/.installed-for-docs
PIP := $(BIN)/python -m pip --disable-pip-version-check
# Every package is checked against its hash. Packages that are built run in this environment, whose build backend is
# checked as well, instead of one that pip fills without checking.
INSTALL := $(PIP) install --progress-bar off --no-build-isolation --require-hashes
# uv reads the index's metadata only, and writes one file for every platform and Python.
LOCK := $(BIN)/uv pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-annotate \
  --no-build-isolation --no-emit-package headgate --custom-compile-command "make constraints"
UNIT := not contract and not security and not simulation and not spark and not system
# Processes for tests of real servers, which wait between bursts. Of two cores, starts of Spark use the rest.
WAITING := 4
# The folders with tests of the system tier; tests/test_tiers.py refuses others.
SYSTEM_TESTS := tests/bench tests/deploy tests/docs tests/javascript tests/system
SEEDS ?= 50
SBOM ?= dist/headgate.cdx.json
# Keep compiled modules, also those with rewritten assertions, for the processes that follow.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: help setup demo test test-tls check lint format unit simulate docs performance constraints sbom clean

help: ## List the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-12s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

setup: $(STAMP) ## Make .venv with the pinned versions of what headgate needs

# A stamp file, because the folder's time changes with every file in it.
$(STAMP): pyproject.toml daemon/pyproject.toml constraints-build.txt constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || { \
	  echo "headgate needs Python 3.11 or newer, but '$(PYTHON)' is $$($(PYTHON) --version 2>&1 || true)." >&2; \
	  echo "Choose another: make setup PYTHON=python3.11" >&2; exit 1; }
	@$(PYTHON) -c 'import venv, ensurepip' 2>/dev/null || { \
	  echo "'$(PYTHON)' cannot create virtual environments. On Debian: apt-get install python3-venv" >&2; exit 1; }
	@test -x $(BIN)/python || { echo "creating $(VENV) with $$($(PYTHON) --version)"; $(PYTHON) -m venv $(VENV); }
	@echo "installing the versions in constraints.txt into $(VENV) (a few minutes, once)"
	@$(INSTALL) -r constraints-build.txt
	@$(INSTALL) -r constraints.txt
	@$(PIP) install --no-deps --no-index --no-build-isolation -e . -e daemon
	@touch $@
	@echo "ready: $(BIN)/headgate --help"

$(TEST_STAMP): $(STAMP) constraints-dev.txt
	@echo "installing what the tests need, from constraints-dev.txt"
	@$(INSTALL) -r constraints-dev.txt
	@touch $@

$(DOCS_STAMP): $(TEST_STAMP) constraints-docs.txt
	@echo "installing what the site needs, from constraints-docs.txt"
	@$(INSTALL) -r constraints-docs.txt
	@touch $@

demo: $(STAMP) ## Run the main job on real servers, with splits, a merge and a kill
	$(BIN)/python -m demo

test: $(DOCS_STAMP) ## Run all tests, the fastest first; starts every server they need
	$(BIN)/pytest -q -n auto --hypothesis-profile thorough -m "$(UNIT)"
	$(BIN)/pytest -q -n auto --hypothesis-profile thorough -m "simulation"
	$(BIN)/pytest -q -n $(WAITING) --dist loadfile -m "contract and not spark and not system"
	$(BIN)/pytest -q -n $(WAITING) --dist loadfile -m "security" tests/security
	$(BIN)/pytest -q -n 2 --dist loadfile -m "spark and not system" tests/drain
	@$(MAKE) --no-print-directory -j 2 --output-sync=target engine-standalone engine-connect
	$(BIN)/pytest -n $(WAITING) --dist loadfile --no-loadscope-reorder -m "system" --tls half $(SYSTEM_TESTS)

test-tls: $(DOCS_STAMP) ## Run all system tests with TLS, users and passwords; `make test` runs half of them so
	$(BIN)/pytest -n $(WAITING) --dist loadfile --no-loadscope-reorder -m "system" --tls all $(SYSTEM_TESTS)

engine-%: $(TEST_STAMP)
	$(BIN)/pytest -q -m "engines" --engine $* tests/drain

check: lint unit ## Format, lint, types, import contracts and unit tests

lint: $(DOCS_STAMP) ## Format, lint, types and import contracts
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports

format: $(TEST_STAMP) ## Format the code and apply automatic fixes
	$(BIN)/ruff check --fix-only .
	$(BIN)/ruff format .

unit: $(TEST_STAMP) ## Run the unit tests
	$(BIN)/pytest -q -n auto -m "$(UNIT)"

# One resolution for all: the smaller files are parts of the largest.
constraints: $(TEST_STAMP) ## Pin the newest versions that both distributions allow, with their hashes
	$(LOCK) --upgrade --output-file constraints-build.txt --group pyproject.toml:build
	$(LOCK) --upgrade --output-file constraints-dev.txt --constraint constraints-build.txt \
	  --extra up --extra connect --group pyproject.toml:dev daemon/pyproject.toml
	$(LOCK) --upgrade --output-file constraints.txt --constraint constraints-dev.txt \
	  --extra up --group pyproject.toml:demo daemon/pyproject.toml
	$(LOCK) --upgrade --output-file constraints-daemon.txt --constraint constraints-dev.txt --extra spark daemon/pyproject.toml
	$(LOCK) --upgrade --output-file constraints-client.txt --constraint constraints-dev.txt pyproject.toml
	$(LOCK) --upgrade --output-file constraints-docs.txt --constraint constraints-dev.txt \
	  --extra up --group pyproject.toml:docs daemon/pyproject.toml

sbom: $(TEST_STAMP) ## Write SBOM, the bill of materials (default dist/headgate.cdx.json)
	@mkdir -p $(dir $(SBOM))
	@PYTHONWARNINGS=ignore $(BIN)/cyclonedx-py requirements --pyproject pyproject.toml --output-reproducible --output-file $(SBOM) constraints.txt
	@echo "wrote $(SBOM)"

docs: $(DOCS_STAMP) ## Build the site into build/docs; a broken link or an undocumented setting fails
	@PYTHONPATH=.:docs $(BIN)/python -m sitebuild
	@echo "open build/docs/index.html"

performance: $(TEST_STAMP) ## Run every benchmark, and write docs/performance.md and its charts; on a quiet machine
	$(BIN)/python -m bench --all --write docs/performance

simulate: $(TEST_STAMP) ## Simulate SEEDS clusters in virtual time (default 50)
	$(BIN)/python -m tests.simulation 1 $(SEEDS)

clean: ## Remove everything that can be created again; data folders stay
	rm -rf $(VENV) build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache .nox
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
