# Two entrances: `make demo` shows the whole, `make test` checks it. Both set up .venv themselves.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin

.DEFAULT_GOAL := help
.PHONY: help demo test check bench clean

help:
	@echo "make demo   set up .venv, then: write videos, pack, train, evaluate, report (minutes)"
	@echo "make test   set up .venv, then static checks and all tests"
	@echo "make check  set up .venv, then ruff and mypy --strict alone"
	@echo "make bench  set up .venv with the peers, then time our loader against them"
	@echo "make clean  remove .venv and what the demo wrote"

# A stamp for each set of extras: made again when pyproject.toml changes.
$(VENV)/.created:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "matinee needs Python 3.11 or newer; $(PYTHON) is `$(PYTHON) -V`. Try: make demo PYTHON=python3.12"; exit 1; }
	@$(PYTHON) -m venv $(VENV) || \
		{ echo "making a virtual environment failed; on Debian and Ubuntu: apt install python3-venv"; rm -rf $(VENV); exit 1; }
	@touch $@

$(VENV)/.with-%: $(VENV)/.created pyproject.toml
	@echo "installing matinee[$*] and its dependencies into $(VENV) (PyTorch is large: minutes on a slow line)"
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[$*]'
	@touch $@

demo: $(VENV)/.with-train
	@$(BIN)/matinee demo --out demo

test: check
	@$(BIN)/python -m pytest

check: $(VENV)/.with-train,dev
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy

bench: $(VENV)/.with-train,bench
	@$(BIN)/python benchmarks/loader_peers.py --json benchmarks/results/loader_peers.json

clean:
	rm -rf $(VENV) demo
