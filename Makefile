# Every target makes what it needs: a bare machine with Python >= 3.11 and g++ is enough.
PYTHON ?= python3
CUDA   ?= cuda13
VENV   := .venv
BIN    := $(VENV)/bin
STAMP  := $(VENV)/.installed
MINUTES ?= 8
OUT     ?= reports/out/gpu

CLIENTS := .venv-clients
DOCS    := .venv-docs
# A requirement, such as torch==2.13.0; without one a build for the CPU where pip knows any, which is small, or else torch.
TORCH   ?=

.DEFAULT_GOAL := help
.PHONY: help docs venv test test-all test-clients test-postgres test-farm lint search records throughput fuzz bench-search conformance gpu gpu-collect gpu-rehearsal clean

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-14s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

$(STAMP): pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[$(CUDA),sass,dev]'
	@touch $@

# What a search needs and nothing else: no tools of developers, and CuPy only beside a GPU.
RUN := $(if $(wildcard /proc/driver/nvidia/version),$(CUDA),run)
$(VENV)/.searches: pyproject.toml
	test -e $(STAMP) || { $(PYTHON) -m venv $(VENV) && \
	  $(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[$(RUN)]'; }
	@touch $@

$(CLIENTS)/.installed: pyproject.toml
	$(PYTHON) -m venv $(CLIENTS)
	pip="$(CLIENTS)/bin/python -m pip --disable-pip-version-check"; torch="$(TORCH)"; \
	test -n "$$torch" || torch=$$($$pip index versions torch 2>/dev/null | grep -oEm 1 '[0-9.]+\+cpu' | sed 's/^/torch==/'); \
	$$pip install --quiet "$${torch:-torch}" --editable '.[$(CUDA),dev,clients]'
	@touch $@

$(DOCS)/.installed: pyproject.toml
	$(PYTHON) -m venv $(DOCS)
	$(DOCS)/bin/python -m pip install --quiet --disable-pip-version-check --editable '.[docs]'
	@touch $@

docs: $(DOCS)/.installed ## the documentation site in build/site; a broken link is an error
	$(DOCS)/bin/python docs/generate.py
	NO_COLOR=1 $(DOCS)/bin/zensical build --clean --strict
	$(DOCS)/bin/python docs/generate.py --finish

venv: $(STAMP) ## make the virtual environment and install everything into it

# A process a core and one more, since some wait; what they start finds bytecode, and one thread for NumPy.
PYTEST := OPENBLAS_NUM_THREADS=1 PYTHONDONTWRITEBYTECODE= $(BIN)/python -m pytest -n $$(($$(nproc) + 1)) --dist worksteal

test: $(STAMP) ## run the tests but those marked slow: of wide matrices of configs one case a test
	$(PYTEST) -m "not slow"

test-all: $(STAMP) ## run every test, as continuous integration does
	$(PYTEST)

# Where torch and what is built on it are installed: tests that the others skip, and other people's programs.
test-clients: $(CLIENTS)/.installed ## transformers, PyTorch, timm, diffusers and others on these kernels, in a venv of their own
	$(subst $(BIN),$(CLIENTS)/bin,$(PYTEST)) tests/clients tests/torch tests/bench/test_peers.py tests/bench/test_own_peers.py \
	  tests/dispatcher/test_arrays.py

test-postgres: $(STAMP) ## many processes on one PostgreSQL server, which is started in a temporary folder (skips where there is none)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check 'psycopg[binary]>=3.2'
	$(BIN)/python -m tests.support.postgres $(BIN)/python -m pytest -rs tests/store/test_store.py tests/store/test_server.py tests/db/test_merge.py

test-farm: $(STAMP) ## searches on worker processes of Dask and one PostgreSQL server (skips where there is none)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check 'distributed>=2025.1' 'psycopg[binary]>=3.2'
	$(BIN)/python -m pytest -rs tests/farm

lint: $(STAMP) ## ruff and mypy --strict
	$(BIN)/ruff check .
	$(BIN)/mypy

search: $(VENV)/.searches ## a first search: flash attention, head_dim 72, for Hopper, on any machine
	$(BIN)/tuner search flash_attention --gpu sm_90a --head-dim 72 --causal --budget 16
	@echo
	@echo "Next: type '. $(BIN)/activate', then tuner is a command of this shell (or type $(BIN)/tuner):"
	@echo "  tuner explain flash_attention --gpu sm_90a --head-dim 72 --causal    # what a call would run, and why"
	@echo "  tuner --help                                                         # every command"

records: $(STAMP) ## search the problems of db/shapes.toml that have no current record, and write db/tuned (hours; goes on where it stopped)
	$(BIN)/python benchmarks/ship_records.py search

throughput: $(STAMP) ## configs compiled, ranked and verified a minute
	$(BIN)/python benchmarks/throughput.py

fuzz: $(STAMP) ## draw problems and configs at random and judge them on the CPU (MINUTES=8)
	$(BIN)/python benchmarks/fuzz.py --count 100000 --seconds $$((60 * $(MINUTES)))

conformance: $(STAMP) ## compare emulator and GPU bit for bit (skips without a GPU)
	$(BIN)/python -m pytest tests/gpu/test_conformance.py

gpu: $(STAMP) ## on a machine with a GPU: facts, conformance, verification, searches, peers (MINUTES=8 OUT=folder)
	$(BIN)/python benchmarks/gpu.py --minutes $(MINUTES) --out $(OUT)

gpu-collect: $(STAMP) ## what that brought back: tables in Markdown, records into db/tuned (OUT=folder or archive)
	$(BIN)/python benchmarks/gpu_collect.py $(OUT) --records

gpu-rehearsal: $(STAMP) ## the same path on a simulated device
	$(BIN)/python benchmarks/gpu.py --simulate --minutes $(MINUTES) --out $(OUT)-rehearsal

bench-search: $(STAMP) ## tries a search needs on recorded spaces: make bench-search SPACES_DIR=folder
	$(BIN)/python benchmarks/search.py

clean: ## remove the virtual environment and the caches of the checks
	rm -rf $(VENV) $(CLIENTS) $(DOCS) .mypy_cache .ruff_cache .pytest_cache build dist
