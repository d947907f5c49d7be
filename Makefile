# Everything a developer runs. Each target makes what it needs: the first one creates .venv and installs the locked
# packages, later ones only do so again when a lock file or pyproject.toml has changed.

SHELL := bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help
.NOTPARALLEL:
.DELETE_ON_ERROR:

PYTHON ?= python3
WORKERS ?= auto
# Plain assignments: a command line (`make demo SECONDS=5`) wins, a stray variable of the shell does not.
SECONDS := 30
BREAK :=
KILL :=
ARGS :=
UPGRADE :=
UV := uv==0.13.7

VENV := .venv
BIN := $(VENV)/bin
PIP := PYTHONUNBUFFERED=1 $(BIN)/python -m pip --disable-pip-version-check --no-input
CODE := $(wildcard src tools tests benchmarks)
PYTEST := $(BIN)/python -m pytest -n $(WORKERS) --dist loadgroup

# One line per downloaded package instead of pip's own talk; errors go to standard error and are shown whole.
PROGRESS := awk '/^ *(Downloading|Using cached) / && !/\.metadata/ { sub(/^ */, ""); print "      " $$0; fflush() }'

.PHONY: help demo test check bench torture mechanisms lock clean

help: ## show this list
	@echo "usage: make <target> [NAME=value ...]"; echo
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "  %-12s %s\n", $$1, $$2 }' $(firstword $(MAKEFILE_LIST))
	@echo; echo "PYTHON=$(PYTHON) chooses the interpreter (3.11 or newer); ARGS=\"...\" is passed on by test, bench, torture."

demo: $(VENV)/.spark ## watch records flow through a server and Spark for SECONDS=30; KILL=1 kills it on the way, BREAK=1 plants a fault
	@$(BIN)/mainstem demo --seconds $(SECONDS) $(if $(KILL),--kill) $(if $(BREAK),--break)

test: $(VENV)/.dev ## run every test, WORKERS=auto at a time; ARGS="-k name" chooses
	@rm -f build/failures.txt; \
	  $(PYTEST) --durations=10 --failures-report build/failures.txt $(ARGS) || $(BIN)/python tools/again.py build/failures.txt

check: $(VENV)/.dev ## lint, formatting, types, layering, licences, addresses
	@echo "[1/6] ruff: lint"
	@$(BIN)/ruff check $(CODE)
	@echo "[2/6] ruff: formatting (repair with: $(BIN)/ruff format $(CODE))"
	@$(BIN)/ruff format --check $(CODE)
	@echo "[3/6] mypy: types"
	@$(BIN)/mypy --strict $(CODE)
	@echo "[4/6] layering: who may import whom"
	@$(BIN)/python -m pytest -q tests/unit/test_layering.py
	@echo "[5/6] licences of the runtime packages"
	@$(BIN)/python tools/licences.py requirements/runtime.txt
	@echo "[6/6] no package index address in any tracked file"
	@$(BIN)/python tools/addresses.py

bench: $(VENV)/.bench ## measure, side by side with peers; ARGS are passed on
	@$(BIN)/python -m benchmarks $(ARGS)

torture: $(VENV)/.dev ## kill, tear and fill until something breaks; ARGS are passed on
	@$(BIN)/python -m tests.torture $(ARGS)

mechanisms: $(VENV)/.dev ## run the tests that demonstrate a mechanism and print the table per system
	@mkdir -p build; rm -f build/mechanisms.json
	@status=0; $(PYTEST) -q -m mechanism --mechanisms-report build/mechanisms.json $(ARGS) || status=$$?; \
	  $(BIN)/python tools/mechanisms.py build/mechanisms.json; \
	  test $$status -eq 0 -o $$status -eq 5  # 5: no test is marked yet

lock: ## resolve the dependencies again into requirements/; UPGRADE=1 takes the newest allowed
	@$(call require_python)
	@echo "[1/2] preparing the resolver ($(UV))"
	@test -x build/lock/bin/uv || $(PYTHON) -m venv build/lock
	@build/lock/bin/python -m pip --disable-pip-version-check --quiet install "$(UV)"
	@echo "[2/2] resolving"
	@$(call compile,runtime,pyproject.toml)
	@$(call compile,spark,pyproject.toml --extra spark -c requirements/runtime.txt)
	@$(call compile,build,--group build -c requirements/runtime.txt)
	@$(call compile,dev,pyproject.toml --extra spark --group dev -c requirements/spark.txt -c requirements/build.txt)
	@$(call compile,bench,pyproject.toml --extra spark --group bench -c requirements/dev.txt)

clean: ## remove everything that make made
	rm -rf $(VENV) build dist .pytest_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# ---- the environment -------------------------------------------------------------------------------------------------

$(VENV)/.created:
	@$(call require_python)
	@echo "[1/3] creating the virtual environment $(VENV) with $$($(PYTHON) --version)"
	@rm -rf $(VENV)
	@$(PYTHON) -m venv $(VENV) || { \
	  echo "make: $(PYTHON) cannot make virtual environments; on Debian or Ubuntu: apt install python3-venv" >&2; exit 1; }
	@touch $@

$(VENV)/.spark: $(VENV)/.created requirements/spark.txt requirements/build.txt pyproject.toml
	@$(call install,what mainstem and its pipeline need to run (about 700 MB: Spark is large),-r requirements/spark.txt -r requirements/build.txt)
	@touch $@

$(VENV)/.dev: $(VENV)/.created requirements/dev.txt pyproject.toml
	@$(call install,what the tests and checks need (about 800 MB: Spark is large),-r requirements/dev.txt)
	@touch $(VENV)/.spark $@

$(VENV)/.bench: $(VENV)/.created requirements/bench.txt pyproject.toml
	@$(call install,what the benchmarks need (about 750 MB: Spark is large),-r requirements/bench.txt)
	@touch $(VENV)/.spark $@

# $(call install,what,requirement options)
define install
	echo "[2/3] installing $(1), as locked in requirements/"; \
	$(PIP) install --require-hashes $(2) | $(PROGRESS); \
	echo "[3/3] installing mainstem itself, from this folder"; \
	$(PIP) install --quiet --no-deps --no-build-isolation --editable .
endef

# $(call compile,name,sources): the header names this target, so that no path or address of a machine gets in
define compile
	echo "      requirements/$(1).txt"; \
	build/lock/bin/uv pip compile $(2) --quiet --universal --python-version 3.11 --generate-hashes --no-emit-index-url \
	  --no-emit-find-links --custom-compile-command "make lock" $(if $(UPGRADE),--upgrade) -o requirements/$(1).txt
endef

define require_python
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || { \
	  echo "make: mainstem needs Python 3.11 or newer, and $(PYTHON) is $$($(PYTHON) --version 2>/dev/null || echo missing)." >&2; \
	  echo "      Name another one: make PYTHON=python3.12 $(MAKECMDGOALS)" >&2; exit 1; }
endef
