# Every target sets up what it needs: a virtual environment in .venv, made once and
# refreshed only when pyproject.toml or constraints.txt change. The demo needs what a user needs; all else, what
# tests, types and pages need.
PYTHON ?= python3
BIN := .venv/bin
USER := .venv/.user
READY := .venv/.ready
# Of the thousands of modules installed, few are ever imported: each is compiled then, and kept, not all in advance.
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check --no-compile
export PYTHONDONTWRITEBYTECODE =
# A file at a time, so that what its tests share is made once, in the order of tests/conftest.py: long files first.
# One thread in each process that tests start: two workers and their processes would fight over two cores.
# Their files in memory, where it has room for a gigabyte and more: they replace files a hundred thousand times, and a
# disk takes milliseconds for each.
ROOM := $(shell df --output=avail -k /dev/shm 2>/dev/null | awk 'NR > 1 && $$1 > 4000000 { print "TMPDIR=/dev/shm" }')
PYTEST := $(ROOM) OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 --dist loadfile --no-loadscope-reorder

.DEFAULT_GOAL := help
.PHONY: help demo test test-all fuzz coverage lint docs notebooks pictures wheel format benchmark clean

help: ## show this list
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | sort

$(USER): pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(PIP) -c constraints.txt -e .
	@touch $@

$(READY): $(USER)
	$(PIP) -c constraints.txt -e ".[dev,docs]"
	@touch $@

demo: $(USER) ## sketches, 50 clients, three phases: a model for every client, and a report
	@$(BIN)/fedhip run --dataset sketches --clients 50 --out runs/demo --force
	@$(BIN)/python examples/new_site.py runs

test: $(READY) ## the tests, but for those that are slow for a reason (six minutes on two cores)
	$(PYTEST) -m "not slow"

test-all: $(READY) ## every test: real processes, tutorials, notebooks and the paper's studies too
	$(PYTEST)

fuzz: $(READY) ## a minute of odd input to every command, file format and message
	$(BIN)/python -W ignore -m scripts.fuzz --seconds 60

coverage: $(READY) ## every test, and at least 90 % of the lines of core, federation and methods
	$(PYTEST) --cov --cov-report=
	@for part in core federation methods; do \
	  $(BIN)/python -m coverage report --include="src/fedhip/$$part/*" --skip-covered --fail-under=90 || exit 1; \
	done

lint: $(READY) ## style and types
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

docs: $(READY) ## the documentation, in docs/_build/html; a warning is an error
	$(BIN)/python -m sphinx -q -W --keep-going -b html docs docs/_build/html

notebooks: $(READY) ## run the notebooks of examples/ and keep what they show
	$(BIN)/python scripts/run_notebooks.py examples/*.ipynb

pictures: $(READY) ## draw the pictures of the documentation again
	$(BIN)/python scripts/draw_pictures.py docs/pictures
	$(BIN)/python -m scripts.draw_architecture

wheel: ## wheel and sdist in dist/, installed and tried out elsewhere
	scripts/check-wheel dist

format: $(READY) ## rewrite the sources in house style
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

benchmark: $(READY) ## speed, memory and bytes against the alternatives, as ratios (about five minutes)
	$(BIN)/python -m benchmarks --quick

clean: ## remove the environment and caches
	rm -rf .venv docs/_build dist .coverage .coverage.* .pytest_cache .mypy_cache .ruff_cache .hypothesis
