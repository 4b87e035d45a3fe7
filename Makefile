# Two commands do everything on a fresh machine: `make demo` and `make test`.
PYTHON ?= python3
VENV   ?= .venv
BIN    := $(VENV)/bin
STAMP  := $(VENV)/.installed

.PHONY: demo test test-slow lint fuzz bench clean

$(STAMP): pyproject.toml setup.py $(shell find src -name "*.[ch]")
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --upgrade pip
	$(BIN)/pip install --quiet -e ".[dev]"
	touch $@

demo: $(STAMP)
	$(BIN)/python examples/demo.py
	$(BIN)/python examples/mindspore_demo.py

lint: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

test: lint
	$(BIN)/python -m pytest -n 2 --dist loadfile -m "not slow" tests

# Damaged files for every reader, for FUZZ seconds.
FUZZ ?= 600

fuzz: $(STAMP)
	$(BIN)/python tests/fuzz/fuzz_readers.py $(FUZZ)

# The field's own tool, in a venv of its own: it has the same import name. MSPROBE_PEER_PYTHON names another.
PEER := $(if $(MSPROBE_PEER_PYTHON),,.venv-peer/.installed)

.venv-peer/.installed:
	$(PYTHON) -m venv .venv-peer
	.venv-peer/bin/pip install --quiet torch==2.13.0 'numpy<2' mindstudio-probe==26.2.0
	touch $@

test-slow: $(STAMP) $(PEER)
	$(BIN)/python -m pytest -m slow -rs tests

bench: $(STAMP) $(PEER)
	$(BIN)/python benchmarks/run.py $(BENCH)
	$(BIN)/python benchmarks/mindspore_run.py

clean:
	rm -rf $(VENV) build src/*.egg-info
