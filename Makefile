# The virtual environment in .venv is made from the lock files and remade when they, this folder or Python change:
# the stamps below carry a checksum of what they stand for, so a copied or updated checkout is never taken for installed.
SHELL := /bin/bash
.DELETE_ON_ERROR:
.DEFAULT_GOAL := help

PYTHON ?= python3
ARGS ?=
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check

ENVIRONMENT := $(shell (pwd; $(PYTHON) -VV) 2>&1 | cksum | cut -d' ' -f1)
LOCK := $(shell cat requirements.txt pyproject.toml | cksum | cut -d' ' -f1)
DEV_LOCK := $(shell cat requirements-dev.txt | cksum | cut -d' ' -f1)
CREATED := $(VENV)/created-$(ENVIRONMENT)
INSTALLED := $(VENV)/installed-$(ENVIRONMENT)-$(LOCK)
DEV_INSTALLED := $(VENV)/dev-$(ENVIRONMENT)-$(LOCK)-$(DEV_LOCK)

# Bytecode is written once here, so that no process compiles thousands of modules at its first start.
COMPILE := env -u PYTHONDONTWRITEBYTECODE $(BIN)/python -m compileall -q -j 0
COMPILE_ALL = $(COMPILE) $(VENV)/lib hosting loaders autoscale >/dev/null 2>&1 || true

.PHONY: help install dev demo test test-fast bench lint lock chromium clean

help:
	@echo "make demo       capture a two-host JAX session on the CPU, serve it and print the address (ARGS=--check: only check it)"
	@echo "make install    make the virtual environment $(VENV) from requirements.txt"
	@echo "make test       install what the tests need and run the whole suite (ARGS='-k name' to choose)"
	@echo "make test-fast  only the tests without servers, browsers and long runs"
	@echo "make bench      measure against the stock xprof server and others (ARGS=--quick: small sessions)"
	@echo "make lint       ruff and mypy --strict"
	@echo "make lock       resolve the dependencies of pyproject.toml anew"
	@echo "make clean      remove $(VENV) and caches"

$(CREATED):
	@$(PYTHON) -c 'import sys; sys.exit(not (3, 11) <= sys.version_info < (3, 14))' || { \
	  echo "XProf hosting needs Python 3.11 to 3.13, but '$(PYTHON)' is $$($(PYTHON) -V 2>/dev/null || echo missing)." \
	       "Name another one: make PYTHON=python3.12 …" >&2; exit 1; }
	@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null || { \
	  package=$$($(PYTHON) -c 'import sys; print("python%d.%d-venv" % sys.version_info[:2])'); \
	  if [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; then \
	    apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends $$package; \
	  else \
	    echo "'$(PYTHON)' cannot make virtual environments: apt-get install $$package (as root), then try again." >&2; exit 1; \
	  fi; }
	rm -rf $(VENV)
	$(PYTHON) -m venv $(VENV)
	@touch $@

$(INSTALLED): $(CREATED)
	@rm -f $(VENV)/installed-* $(VENV)/dev-*
	$(PIP) install --quiet --no-compile -r requirements.txt
	$(PIP) install --quiet --no-compile --no-deps --editable .
	@$(COMPILE_ALL)
	@touch $@

$(DEV_INSTALLED): $(INSTALLED)
	@rm -f $(VENV)/dev-*
	$(PIP) install --quiet --no-compile -r requirements-dev.txt
	@$(COMPILE_ALL)
	@touch $@

install: $(INSTALLED)
dev: $(DEV_INSTALLED)

demo: install
	$(BIN)/xprof-hosting demo $(ARGS)

chromium:
	@if command -v chromium >/dev/null; then :; \
	elif [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; then \
	  apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends chromium >/dev/null; \
	else \
	  echo "chromium is missing and only root can install it: the browser tests will be skipped." >&2; \
	fi

test: dev chromium
	$(BIN)/python -m pytest $(ARGS)

test-fast: dev
	$(BIN)/python -m pytest -m "not integration and not browser and not slow" $(ARGS)

bench: dev
	$(BIN)/python -m benchmarks.bench $(ARGS)

lint: dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

# Configuration of this machine's pip (mirrors, local folders of wheels) must leave no trace in the lock files.
PIP_COMPILE = env -u PIP_FIND_LINKS PIP_CONFIG_FILE=/dev/null CUSTOM_COMPILE_COMMAND="make lock" \
  $(BIN)/pip-compile --quiet --no-config --strip-extras --allow-unsafe --annotation-style line \
  --no-emit-index-url --no-emit-find-links --no-emit-trusted-host --no-emit-options
lock: dev
	$(PIP_COMPILE) --extra demo --extra accelerated --output-file requirements.txt pyproject.toml $(ARGS)
	$(PIP_COMPILE) --extra demo --extra accelerated --extra dev --constraint requirements.txt --output-file requirements-dev.txt pyproject.toml $(ARGS)

clean:
	rm -rf $(VENV) .pytest_cache .mypy_cache .ruff_cache .hypothesis build *.egg-info
