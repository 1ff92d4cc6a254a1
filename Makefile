# `make run` and `make test` need nothing but Python 3.10 or newer: they set up .venv themselves.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
WORKERS ?= 2
# Of the topologies of the fake world: all, a number N (every valid combination of N axis sizes), or each (one a rank count).
COVER ?= 2

.PHONY: setup run test test-long check format clean

setup: $(READY)

$(READY): pyproject.toml ci/constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --constraint ci/constraints.txt --editable '.[dev]'
	touch $(READY)

run: $(READY)
	$(BIN)/meshsim run train_step --world-sizes 1-8 --backend fake --cover fake=$(COVER) --backend gloo --cover gloo=each

test: $(READY)
	$(BIN)/python -m pytest -n $(WORKERS) -m "not long"

test-long: $(READY)
	$(BIN)/python -m pytest -m long

check: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: $(READY)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

clean:
	rm -rf $(VENV) build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache
