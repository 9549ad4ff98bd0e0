# Every target first makes .venv if necessary, and needs only make and Python 3.11.
PYTHON ?= $(shell command -v python3.11 || command -v python3)
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/ready
# Without this line, each of the hundreds of processes that tests start would compile the modules again.
export PYTHONDONTWRITEBYTECODE :=
# One worker runs a whole file, because the tests of a file share processes.
PYTEST := $(BIN)/python -m pytest -n 2 --dist loadfile --no-loadscope-reorder
# Environments with other versions of the frameworks, for `make soak`.
OLDER := .venv-older .venv-older-tensorflow .venv-older-jax
PADDLE := .venv-paddle
# An environment with the libraries whose optimizers `make judged` judges.
JUDGED := .venv-judged
JUDGES := --python $(JUDGED)/bin/python --python $(PADDLE)/bin/python
# Parts of `make soak`: random and hostile input, every setting, other environments. `make soak-laws` runs one part.
# The parts of ONE_CORE run two at a time; the longest come first, so that both cores end together.
FULL := $(addprefix soak-full-,jax torch tensorflow mxnet numpy)
ONE_CORE := $(FULL) soak-laws soak-hostile soak-judged soak-paddle soak-files
TWO_CORES := soak-floors soak-threads soak-variants soak-tests
TIMED := bash -c 'TIMEFORMAT="%R s (processor %U s): $$*"; time "$$@"' --

.PHONY: conform conform-all test test-all judged soak bench docs lint weight dist vectors clean \
	soak-one-core soak-two-cores $(ONE_CORE) $(TWO_CORES)

conform: $(READY)  ## run the conformance matrix: the quick profile on every backend
	$(BIN)/islices conform $(ARGS)

conform-all: $(READY)  ## run every case under every setting: about an hour on two cores
	$(BIN)/islices conform --profile full --variant all $(ARGS)

test: $(READY)  ## run each module's tests; `make conform` runs the suite
	$(PYTEST) $(ARGS)

test-all: $(READY)  ## run the tests of installs, processes and pages: 15 minutes
	$(PYTEST) -m 'outside and not soak' $(ARGS)

soak:  ## run all parts even if one fails: an hour and a half on two cores
	$(MAKE) --keep-going --jobs=1 soak-one-core soak-two-cores
soak-one-core:
	$(MAKE) --jobs=2 $(ONE_CORE)
soak-two-cores:
	$(MAKE) $(TWO_CORES)

$(ONE_CORE) $(TWO_CORES): $(READY)
soak-floors: $(OLDER:%=%/ready)
soak-paddle soak-judged: $(PADDLE)/ready $(JUDGED)/ready

soak-floors:  # the quick profile with the oldest supported versions
	$(TIMED) $(BIN)/islices conform $(OLDER:%=--python %/bin/python)
$(FULL): soak-full-%:  # every case on one backend
	$(TIMED) $(BIN)/islices conform -b $* --profile full --variant standard
soak-variants:
	$(TIMED) $(BIN)/islices conform --variant all
soak-threads:
	$(TIMED) env ISLICES_NUM_THREADS=1 $(BIN)/islices conform --profile full --variant standard -k host
	$(TIMED) env ISLICES_NUM_THREADS=4 $(BIN)/islices conform --profile full --variant standard -k host
soak-paddle:
	$(TIMED) $(PADDLE)/bin/python -m pytest -q -p no:cacheprovider tests/conformance/test_paddle_backend.py
	$(TIMED) $(BIN)/islices conform -b paddle --python $(PADDLE)/bin/python
soak-tests:  # spread test by test: one file's mutants take two thirds of the time
	$(TIMED) $(PYTEST) --dist worksteal -m soak
soak-judged:
	$(TIMED) $(BIN)/python -m islices.conformance.tools.judged $(JUDGES)
soak-laws:
	$(TIMED) $(BIN)/python -m islices.conformance.properties laws
soak-files:
	$(TIMED) $(BIN)/python -m islices.conformance.properties files
soak-hostile:
	$(TIMED) $(BIN)/python -m islices.conformance.properties hostile

judged: $(READY) $(JUDGED)/ready $(PADDLE)/ready  ## judge the optimizers of other libraries, and rewrite docs/judged.md
	$(BIN)/python -m islices.conformance.tools.judged --docs docs $(JUDGES) $(ARGS)

bench: $(READY)  ## measure ratios of islices to each framework's functions
	$(BIN)/islices bench $(ARGS)

docs: $(READY)  ## build guides and API reference, with warnings as errors: build/docs/index.html
	$(BIN)/python -m sphinx -W --keep-going -q -b html -c docs -d build/doctrees $(ARGS) . build/docs

lint: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/python tests/shared/prose.py
	$(BIN)/mypy
	$(BIN)/pyright --pythonpath $(BIN)/python

weight: $(READY)  ## count the tokens of each folder's code, without docstrings and comments
	$(BIN)/python tests/shared/weight.py

dist: $(READY)  ## build the wheel and the sdist in dist/, with the same bytes for the same commit
	umask 022; SOURCE_DATE_EPOCH=$$(git log -1 --format=%ct) $(BIN)/python -m build --no-isolation $(ARGS)

vectors: $(READY)  ## write the golden vectors again (they must not change)
	$(BIN)/python -m islices.conformance.generate
	$(BIN)/python -m islices.conformance.formulas.generate

clean:
	rm -rf $(VENV) $(OLDER) $(PADDLE) $(JUDGED) build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache

$(READY): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip
	$(BIN)/python -m pip install --quiet -c constraints.txt -e ".[all,dev]"
	$(BIN)/python -m pip install --quiet -c constraints.txt --no-deps mxnet  # MXNet's metadata require NumPy < 2
	touch $(READY)

$(OLDER:%=%/ready): .venv-%/ready: conformance/environments/%.txt
	$(PYTHON) -m venv $(@D)
	$(@D)/bin/python -m pip install --quiet --upgrade pip
	$(@D)/bin/python -m pip install --quiet -r $<
	touch $@

$(PADDLE)/ready: constraints.txt conformance/paddle_backend/pyproject.toml | $(READY)  # both install the checkout
	$(PYTHON) -m venv $(PADDLE)
	$(PADDLE)/bin/python -m pip install --quiet --upgrade pip
	$(PADDLE)/bin/python -m pip install --quiet -c constraints.txt paddlepaddle==3.3.1 ml_dtypes -e ".[fast,conformance]" \
		-e conformance/paddle_backend
	touch $@

$(JUDGED)/ready: constraints.txt conformance/environments/judged.txt
	$(PYTHON) -m venv $(JUDGED)
	$(JUDGED)/bin/python -m pip install --quiet --upgrade pip
	$(JUDGED)/bin/python -m pip install --quiet -c constraints.txt -r conformance/environments/judged.txt
	$(JUDGED)/bin/python -m pip install --quiet --no-deps torchrec==1.9.2  # torchrec's metadata require FBGEMM for GPUs
	touch $@
