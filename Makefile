# Every target makes .venv itself; nothing is needed beforehand but make and Python 3.11.
PYTHON ?= $(shell command -v python3.11 || command -v python3)
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/ready
# Else each of the hundreds of processes that tests start would compile the modules again.
export PYTHONDONTWRITEBYTECODE :=
# files as a whole: tests of a file share what it starts
PYTEST := $(BIN)/python -m pytest -n 2 --dist loadfile --no-loadscope-reorder
# Other environments, whose frameworks `make soak` puts beside these.
OLDER := .venv-older .venv-older-tensorflow
PADDLE := .venv-paddle
# Libraries whose optimizers are judged.
JUDGED := .venv-judged
JUDGES := --python $(JUDGED)/bin/python --python $(PADDLE)/bin/python
# What `make soak` runs: random and hostile input, every setting, other environments. Each by itself: make soak-laws.
# The long ones last: one that is cut off has told the most.
SOAK := soak-hostile soak-files soak-laws soak-audit soak-paddle soak-judged soak-threads soak-variants \
	soak-conform soak-tests
TIMED := bash -c 'time "$$@"' --

.PHONY: conform conform-all test test-all judged soak bench docs lint weight dist vectors clean $(SOAK)

conform: $(READY)  ## the conformance matrix of every backend: the quick profile
	$(BIN)/islices conform $(ARGS)

conform-all: $(READY)  ## every case under every setting, on two cores in about an hour
	$(BIN)/islices conform --profile full --variant all $(ARGS)

test: $(READY)  ## each module's tests; the suite itself is `make conform`
	$(PYTEST) $(ARGS)

test-all: $(READY)  ## those that look at islices from outside: installs, processes, pages; 15 minutes
	$(PYTEST) -m 'outside and not soak' $(ARGS)

soak:  ## long runs, whichever of them fails: about two hours on two cores
	$(MAKE) --keep-going $(SOAK)

$(SOAK): $(READY) $(OLDER:%=%/ready) $(PADDLE)/ready $(JUDGED)/ready

soak-conform:  # every case; the quick ones in an older set and on a sixth framework
	$(TIMED) $(BIN)/islices conform --profile full --variant standard --json soak.jsonl
	$(TIMED) $(BIN)/islices conform $(OLDER:%=--python %/bin/python) --python $(PADDLE)/bin/python
soak-variants:
	$(TIMED) $(BIN)/islices conform --variant all
soak-threads:
	$(TIMED) env ISLICES_NUM_THREADS=1 $(BIN)/islices conform --profile full --variant standard -k host
	$(TIMED) env ISLICES_NUM_THREADS=4 $(BIN)/islices conform --profile full --variant standard -k host
soak-paddle:
	$(TIMED) $(PADDLE)/bin/python -m pytest -q -p no:cacheprovider tests/conformance/test_paddle_backend.py
soak-tests:  # one by one: two thirds of the time are one file's mutants, and few share anything
	$(TIMED) $(PYTEST) --dist worksteal -m soak
soak-judged:
	$(TIMED) $(BIN)/python -m islices.conformance.tools.judged $(JUDGES)
soak-audit:
	$(TIMED) $(BIN)/islices audit
soak-laws:
	$(TIMED) $(BIN)/python -m islices.conformance.properties laws
soak-files:
	$(TIMED) $(BIN)/python -m islices.conformance.properties files
soak-hostile:
	$(TIMED) $(BIN)/python -m islices.conformance.properties hostile

judged: $(READY) $(JUDGED)/ready $(PADDLE)/ready  ## the optimizers of other libraries by their formulas: docs/judged.md written anew
	$(BIN)/python -m islices.conformance.tools.judged --docs docs $(JUDGES) $(ARGS)

bench: $(READY)  ## islices beside each framework's own calls, as ratios
	$(BIN)/islices bench $(ARGS)

docs: $(READY)  ## guides and API reference as pages, without one warning: build/docs/index.html
	$(BIN)/python -m sphinx -W --keep-going -q -b html -c docs -d build/doctrees $(ARGS) . build/docs

lint: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/python tests/shared/prose.py
	$(BIN)/mypy
	$(BIN)/pyright --pythonpath $(BIN)/python

weight: $(READY)  ## the tokens of the code by folder, without docstrings and comments
	$(BIN)/python tests/shared/weight.py

dist: $(READY)  ## the wheel and the sdist, with the same bytes from the same commit: dist/
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
	$(BIN)/python -m pip install --quiet -c constraints.txt --no-deps mxnet  # it asks for NumPy before 2
	touch $(READY)

$(OLDER:%=%/ready): .venv-%/ready: conformance/environments/%.txt
	$(PYTHON) -m venv $(@D)
	$(@D)/bin/python -m pip install --quiet --upgrade pip
	$(@D)/bin/python -m pip install --quiet -r $<
	touch $@

$(PADDLE)/ready: constraints.txt conformance/paddle_backend/pyproject.toml
	$(PYTHON) -m venv $(PADDLE)
	$(PADDLE)/bin/python -m pip install --quiet --upgrade pip
	$(PADDLE)/bin/python -m pip install --quiet -c constraints.txt paddlepaddle==3.3.1 ml_dtypes -e ".[fast,conformance]" \
		-e conformance/paddle_backend
	touch $@

$(JUDGED)/ready: constraints.txt conformance/environments/judged.txt
	$(PYTHON) -m venv $(JUDGED)
	$(JUDGED)/bin/python -m pip install --quiet --upgrade pip
	$(JUDGED)/bin/python -m pip install --quiet -c constraints.txt -r conformance/environments/judged.txt
	$(JUDGED)/bin/python -m pip install --quiet --no-deps torchrec==1.9.2  # it asks for FBGEMM for GPUs
	touch $@
