# Every task of the project. `make` alone lists them.

PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
STAMP  := $(VENV)/.installed

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help venv demo check test test-library test-lab test-all lint format bench fuzz package docs docs-layout clean

# One file of tests stays on one process: its cached runs are made once. The log ends with the longest tests. Files are taken
# in their order: by default those with few tests, often the longest, would come last, and one process would wait.
PYTEST := OMP_NUM_THREADS=1 $(BIN)/python -m pytest -q -n 2 --dist loadscope --no-loadscope-reorder

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  %-12s %s\n", $$1, $$2 }' $(firstword $(MAKEFILE_LIST))

venv: $(STAMP) ## create .venv with both packages and every extra, at pinned versions

# Runs again only when the metadata or the pins are newer than the last good installation.
$(STAMP): pyproject.toml lab/pyproject.toml requirements/constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install -c requirements/constraints.txt -e '.[all]' -e 'lab[peers]'
	$(BIN)/python -m pip install -c requirements/constraints.txt --no-deps azula
	@touch $@

demo: $(STAMP) ## sample six problems, two minutes, one page
	$(BIN)/casal demo --out out/demo

check: $(STAMP) lint ## check style, types and spelling, then run the fast tests: under 90 seconds
	$(PYTEST) -m "not slow and not nightly" --ignore tests/contracts/test_sets.py tests

test: $(STAMP) lint test-library test-lab ## check style, types and spelling, then run the tests of both packages

test-library: $(STAMP) ## run the tests of the library
	$(PYTEST) --durations=30 tests src

test-lab: $(STAMP) ## run the tests of the laboratory
	$(PYTEST) --durations=30 lab/tests lab/src

test-all: $(STAMP) lint ## the same with the long tests that are marked nightly
	$(PYTEST) --durations=30 -m ""

lint: $(STAMP) ## check style, types and spelling, change nothing
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/codespell README.md CHANGELOG.md CONTRIBUTING.md docs src lab tests examples benchmarks fuzz

format: $(STAMP) ## rewrite the code in the project's style
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: $(STAMP) ## time the samplers
	$(BIN)/python -m benchmarks

MINUTES ?= 20
fuzz: $(STAMP) ## random sets, kills and damage for MINUTES=20 minutes, then the property tests on random examples
	OMP_NUM_THREADS=1 $(BIN)/python -m fuzz --minutes $(MINUTES)
	$(PYTEST) -m hypothesis --hypothesis-profile random tests

package: $(STAMP) ## build both distributions into dist/ and check what an index would show of them
	rm -rf dist
	$(BIN)/python -m build --no-isolation --outdir dist .
	$(BIN)/python -m build --no-isolation --outdir dist lab
	$(BIN)/python -m twine check --strict dist/*

docs: $(STAMP) ## build the documentation into site/, warnings are errors
	$(BIN)/mkdocs build --strict

docs-layout: docs ## open every page of the site in Chromium, wide and narrow, and count what is cut off
	$(BIN)/python docs/tools/measure_layout.py site

clean: ## remove what the other targets made, the virtual environment included
	rm -rf $(VENV) build dist site out .mypy_cache .pytest_cache .ruff_cache .hypothesis
	find src lab tests benchmarks fuzz -name __pycache__ -type d -prune -exec rm -rf {} + 2>/dev/null || true
