# Each target does all of its own set-up: a fresh clone and Python 3.11 or newer are enough.
# A stamp file per set of extras makes the second run install nothing.

PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
STAMPS := $(VENV)/stamps
PIP    := $(BIN)/python -m pip --disable-pip-version-check -q
PINNED := -c constraints/torch.txt
# vocabulary.h is written of vocabulary.py at each build
NATIVE := $(wildcard braze/native/src/*.c braze/native/src/*.h) braze/native/vocabulary.py
SETUP  := pyproject.toml setup.py constraints/torch.txt

.PHONY: demo demo-train demo-serve test test-models test-install test-sanitize fuzz fuzz-gate mutants test-cpython lint bench format docs clean

demo: $(STAMPS)/demo
	$(BIN)/python -m braze demo

demo-train: $(STAMPS)/demo
	$(BIN)/python -m braze demo-train

demo-serve: $(STAMPS)/serve
	$(BIN)/python -m braze demo-serve

# a process per core; a file's tests stay together, and the largest files begin. The package is compiled to bytecode first:
# where PYTHONDONTWRITEBYTECODE is set, each process that a test starts would do that again
JOBS ?= $(shell env -u OMP_NUM_THREADS nproc)
test: $(STAMPS)/test
	$(BIN)/python -m compileall -q -j 0 braze
	OMP_WAIT_POLICY=passive $(BIN)/python -m pytest -n $(JOBS) --dist loadfile $(ARGS)

# the catalogue of transformers and timm models: about ten minutes on two cores
test-models: $(STAMPS)/test
	$(BIN)/python -m pytest tests/models $(ARGS)

# machines that look for wrong answers (docs/trust.md), from seeds that are printed
MINUTES ?= 5
fuzz: $(STAMPS)/test
	$(BIN)/python -m tests.fuzz all --minutes $(MINUTES) $(ARGS)

# the same programs each time, none of which fails
fuzz-gate: $(STAMPS)/test
	$(BIN)/python -m tests.fuzz all --seed 730000000 --count 60 --minutes 60 $(ARGS)

# bugs seeded into copies of the tree, one at a time: which are noticed? Hours on two cores; what is in .mutants/ is not done again
mutants: $(STAMPS)/test
	$(BIN)/python -m tests.fuzz.mutants $(ARGS)

# CPython's own tests, each method compiled; CPYTHON="test_dict test_list" for some
test-cpython: $(STAMPS)/test
	$(BIN)/python -m tests.fuzz.cpython $(CPYTHON)

# What a newcomer does: a wheel, installed with nothing else named into an empty environment, compiles a model. pip chooses the
# PyTorch, and fetches gigabytes; TORCH=torch==2.13.0 has it take that one. PYTHON=python3.13 takes another Python.
INSTALL := build/install
test-install:
	rm -rf build/lib build/bdist.* $(INSTALL)
	$(PYTHON) -m venv $(INSTALL)/venv
	$(INSTALL)/venv/bin/python -m pip --disable-pip-version-check -q wheel --no-deps -w $(INSTALL)/wheels .
	$(INSTALL)/venv/bin/python -m pip --disable-pip-version-check -q install $(TORCH) $(INSTALL)/wheels/*.whl
	cd $(INSTALL) && env -u PYTHONPATH BRAZE_CACHE_DIR=cache venv/bin/python $(CURDIR)/tests/install/newcomer.py
	cd $(INSTALL) && env -u PYTHONPATH venv/bin/braze env
	rm -rf $(INSTALL)

lint: $(STAMPS)/dev
	$(BIN)/ruff check braze tests benchmarks docs setup.py
	$(BIN)/ruff format --check braze tests benchmarks docs setup.py
	$(BIN)/mypy

# the C core's tests with the address and undefined-behaviour sanitizers, then those without PyTorch with that of threads
test-sanitize: $(STAMPS)/test
	$(BIN)/python tests/native/run_plain.py --sanitize $(ARGS)
	$(BIN)/python tests/native/run_plain.py --sanitize=thread $(ARGS)

# BENCH="models --models bert,vit" etc.
BENCH ?= models
bench: $(STAMPS)/test
	$(BIN)/python -m benchmarks $(BENCH)

format: $(STAMPS)/dev
	$(BIN)/ruff check --fix braze tests benchmarks docs setup.py
	$(BIN)/ruff format braze tests benchmarks docs setup.py

docs: $(STAMPS)/base
	$(BIN)/python docs/make_codes.py

# torch first and pinned, so that no later install replaces it
$(STAMPS)/torch: constraints/torch.txt
	$(PYTHON) -m venv $(VENV)
	$(PIP) install --upgrade pip
	$(PIP) install $(shell cat constraints/torch.txt)
	@mkdir -p $(STAMPS) && touch $@

$(STAMPS)/base: $(STAMPS)/torch $(SETUP) $(NATIVE)
	$(PIP) install $(PINNED) -e .
	@touch $@

$(STAMPS)/demo: $(STAMPS)/base
	$(PIP) install $(PINNED) -e '.[demo]'
	@touch $@

$(STAMPS)/serve: $(STAMPS)/base
	$(PIP) install $(PINNED) -e '.[serve]' openai
	@touch $@

$(STAMPS)/test: $(STAMPS)/base
	$(PIP) install $(PINNED) -e '.[demo,test,triton]'
	@touch $@

$(STAMPS)/dev: $(STAMPS)/base
	$(PIP) install $(PINNED) -e '.[dev]'
	@touch $@

clean:
	rm -rf $(VENV) build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache
