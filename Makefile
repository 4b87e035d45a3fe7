# Two commands do everything on a fresh machine: `make demo` and `make test`.
PYTHON ?= python3
VENV   ?= .venv
BIN    := $(VENV)/bin
STAMP  := $(VENV)/.installed

.PHONY: demo test test-slow lint bench quality clean

$(STAMP): pyproject.toml setup.py $(wildcard src/msprobe/*/*.c src/msprobe/*/*.h)
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

test: lint
	$(BIN)/python -m pytest -n 2 --dist loadfile -m "not slow" tests

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

quality: $(STAMP)
	$(BIN)/python benchmarks/quality/run.py $(QUALITY)

clean:
	rm -rf $(VENV) build src/*.egg-info
