# SPDX-License-Identifier: Apache-2.0
# `make demo` and `make test` do everything, set-up included. The first call makes .venv (torch and the CuTe DSL are
# large downloads); later calls find the stamp and start at once.

VENV  := .venv
STAMP := $(VENV)/.epifuse-installed
BIN   := $(VENV)/bin
# Another release within pyproject.toml's range, for instance: make test TORCH=torch==2.11.0
TORCH ?= torch==2.13.0
# Processes that run tests: one for each core that make may use, but eight at most, as one can take 3 GB of memory.
WORKERS ?= $(shell n=$$(nproc); echo $$((n < 8 ? n : 8)))
# Each process begins with a run of neighbouring tests, since these share fixtures and what is kept of kernels; one that
# has none left takes half of what another has.
PYTEST := $(BIN)/python -m pytest -n $(WORKERS) --dist worksteal

# The first of these that is Python 3.11 or 3.12 and can make virtual environments. (A name may be a shim that fails.)
ifndef PYTHON
PYTHON := $(shell for p in python3.11 python3.12 python3; do \
    "$$p" -c 'import ensurepip, sys, venv; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 12))' 2>/dev/null \
    && echo "$$p" && break; done)
endif

.DEFAULT_GOAL := help
.PHONY: help setup demo test test-fast lint format type clean

help:  ## what the targets do
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-10s %s\n", $$1, $$2 }' Makefile

$(STAMP): pyproject.toml constraints.txt
	@test -n "$(PYTHON)" || { echo "epifuse needs Python 3.11 or 3.12 with venv and pip: install one, or name it: make $(MAKECMDGOALS) PYTHON=..." >&2; exit 1; }
	test -x $(BIN)/python || "$(PYTHON)" -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check "$(TORCH)"
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e ".[test]" -c constraints.txt
	touch $@

setup: $(STAMP)  ## make .venv with everything in it

demo: $(STAMP)  ## run the main job on what this machine has
	$(BIN)/python -m epifuse demo

test: lint type  ## ruff, mypy, and every test
	$(PYTEST)

test-fast: $(STAMP)  ## the tests that take less than ten seconds each
	$(PYTEST) -m "not slow"

lint: $(STAMP)  ## ruff's rules and format
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

format: $(STAMP)  ## let ruff mend what it can
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

type: $(STAMP)  ## mypy, strict for src/
	$(BIN)/mypy

clean:  ## remove .venv and all caches
	rm -rf $(VENV) build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
