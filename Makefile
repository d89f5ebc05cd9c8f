# Every target sets up what it needs: a virtual environment in .venv, made once and
# refreshed only when pyproject.toml or constraints.txt change.
PYTHON ?= python3
BIN := .venv/bin
READY := .venv/.ready

.DEFAULT_GOAL := help
.PHONY: help demo test lint format benchmark clean

help: ## show this list
	@grep -E '^[a-z]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | sort

$(READY): pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e ".[dev]"
	@touch $@

demo: $(READY) ## sketches, 50 clients, three phases: a model for every client, and a report
	@$(BIN)/fedhip run --dataset sketches --clients 50 --out runs/demo --force

test: $(READY) ## the tests
	$(BIN)/python -m pytest -n 2

lint: $(READY) ## style and types
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: $(READY) ## rewrite the sources in house style
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

benchmark: $(READY) ## speed, memory and bytes against the alternatives, as ratios (about five minutes)
	$(BIN)/python -m benchmarks --quick

clean: ## remove the environment and caches
	rm -rf .venv .pytest_cache .mypy_cache .ruff_cache .hypothesis
