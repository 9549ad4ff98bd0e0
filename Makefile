# Every target makes .venv itself; nothing is needed beforehand but make and Python 3.11.
PYTHON ?= $(shell command -v python3.11 || command -v python3)
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/ready

.PHONY: conform test soak bench lint vectors clean

conform: $(READY)  ## the conformance matrix of every backend
	$(BIN)/islices conform $(ARGS)

test: $(READY)  ## all tests, under 10 minutes on two cores
	$(BIN)/python -m pytest $(ARGS)

soak: $(READY)  ## long runs: the full profile, kernels off, other threads, the seeds and counts of conformance/soak.toml
	$(BIN)/islices conform --full
	ISLICES_KERNELS=0 $(BIN)/islices conform
	ISLICES_NUM_THREADS=1 $(BIN)/islices conform
	ISLICES_NUM_THREADS=4 $(BIN)/islices conform
	$(BIN)/python -m islices.conformance.soak $(ARGS)

bench: $(READY)  ## islices beside each framework's own calls, as ratios
	$(BIN)/islices bench $(ARGS)

lint: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

vectors: $(READY)  ## write the golden vectors again (they must not change)
	$(BIN)/python -m islices.conformance.generate

clean:
	rm -rf $(VENV) build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache

$(READY): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip
	$(BIN)/python -m pip install --quiet -c constraints.txt -e ".[all,dev]"
	touch $(READY)
