# `make reproduce` and `make test` each set up a virtual environment on first use, then do their work.
# pip is called with its usual configuration: PIP_FIND_LINKS, PIP_INDEX_URL, pip.conf and proxies all apply.

PYTHON ?= python3
VENV ?= .venv

BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip install -q --disable-pip-version-check -c constraints.txt
QUICK := out/quick

export MPLBACKEND := Agg

.DEFAULT_GOAL := help
.PHONY: help reproduce test lint bench docs install wheel clean chromium
.NOTPARALLEL:

help:
	@echo "Two commands, which set everything up in $(VENV) on first use:"
	@echo "  make reproduce   train small models on one task and show their error in and out of distribution"
	@echo "  make test        run the linters and the tests"
	@echo "Also:"
	@echo "  make install     only set up $(VENV), with the test tools"
	@echo "  make lint        only ruff and mypy"
	@echo "  make bench       run the benchmarks and print their ratios"
	@echo "  make docs        build the documentation as a site, site/index.html"
	@echo "  make wheel       build dist/posattn-*.whl"
	@echo "  make clean       remove $(VENV), build outputs and caches; runs and results stay"
	@echo "Another Python: make test PYTHON=python3.12; another environment folder: VENV=path."

reproduce: $(VENV)/.stamp-package
	@echo "Running the main experiment at quick scale (a few minutes on two cores)."
	@$(BIN)/posattn reproduce fix-scale --scale quick --out $(QUICK)
	@page=$$(ls $(QUICK)/*.html 2>/dev/null | head -n 1); \
	echo "The figure and the table are in $(QUICK); open $${page:-the HTML page there} in a browser."

test: lint chromium
	@echo "Running the tests."
	@$(BIN)/python -m pytest -n 2 --dist loadgroup

# What the tests of the explorer page open it in; without it they are skipped, and say so.
chromium:
	@for name in chromium chromium-browser google-chrome; do command -v $$name >/dev/null && exit; done; \
	if [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; then \
	  echo "Installing Chromium, in which the explorer page is tested."; \
	  { apt-get -qq update && DEBIAN_FRONTEND=noninteractive apt-get -qq install -y chromium; } >/dev/null 2>&1 && exit; \
	fi; \
	echo "There is no Chromium and it cannot be installed here: the tests of the explorer page are skipped."

lint: $(VENV)/.stamp-test
	@echo "Checking the code with ruff and mypy."
	@$(BIN)/ruff check .
	@$(BIN)/mypy

bench: $(VENV)/.stamp-test
	@set -e; for script in $(filter-out benchmarks/robustness.py,$(wildcard benchmarks/[!_]*.py)); do \
	  [ -e "$$script" ] || { echo "There is no benchmark in benchmarks/." >&2; exit 2; }; \
	  echo "Running $$script."; $(BIN)/python "$$script"; \
	done

docs: $(VENV)/.stamp-test
	@NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --quiet --strict
	@echo "Open site/index.html in a browser."

install: $(VENV)/.stamp-test
	@echo "posattn and its test tools are installed in $(VENV); run $(BIN)/posattn --help."

wheel: $(VENV)/.stamp-test
	@echo "Building the wheel."
	@rm -rf build
	@$(BIN)/python -m build --wheel --no-isolation --outdir dist . >/dev/null
	@ls dist/*.whl

clean:
	@rm -rf build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
	@find posattn tests benchmarks -name __pycache__ -type d -prune -exec rm -rf {} + 2>/dev/null || true
	@if [ -f "$(VENV)/.stamp-venv" ]; then rm -rf "$(VENV)"; fi

# Each stamp is written when its step has succeeded, so an interrupted set-up goes on where it stopped.
$(VENV)/.stamp-venv:
	@command -v $(PYTHON) >/dev/null || \
	  { echo "$(PYTHON) was not found; install Python 3.11 or newer, or name one with PYTHON=..." >&2; exit 2; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "$(PYTHON) is $$($(PYTHON) -V 2>&1); posattn needs Python 3.11 or newer, name one with PYTHON=..." >&2; exit 2; }
	@$(PYTHON) -c 'import venv, ensurepip' 2>/dev/null || \
	  { echo "$(PYTHON) has no venv module; install it (on Debian and Ubuntu: apt install python3-venv)." >&2; exit 2; }
	@echo "Creating a virtual environment in $(VENV)."
	@$(PYTHON) -m venv $(VENV)
	@touch $@

$(VENV)/.stamp-torch: $(VENV)/.stamp-venv constraints.txt
	@echo "Installing torch (a large download: one minute to several)."
	@$(PIP) torch
	@touch $@

$(VENV)/.stamp-package: $(VENV)/.stamp-torch pyproject.toml constraints.txt
	@echo "Installing posattn and what it needs."
	@$(PIP) -e .
	@touch $@

# Includes all that .stamp-package stands for, and says so.
$(VENV)/.stamp-test: $(VENV)/.stamp-torch pyproject.toml constraints.txt
	@echo "Installing posattn, what it needs and the test tools."
	@$(PIP) -e '.[test]'
	@touch $(VENV)/.stamp-package $@
