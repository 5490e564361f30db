# Two commands are the whole set-up: `make demo` and `make test`.
.DEFAULT_GOAL := help
SHELL := /bin/bash
PYTHON ?= python3.10
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
OLD_PROTOC := $(VENV)/protoc
# The worker's own environment: another Python than the daemons', as at a site.
TORCH := $(VENV)/torch
TORCH_PYTHON ?= python3.11
# Test processes at a time; each starts daemons of its own.
PARALLEL ?= 2
IN_PARALLEL := -n $(PARALLEL) --dist loadfile --no-loadscope-reorder
PROTOS := $(wildcard proto/commonscale/v1/*.proto)
WORKER_PROTOS := $(wildcard proto/commonscale_worker/v1/*.proto)

.PHONY: help demo torch environments test test-worker test-long test-crash test-fuzz test-browser test-docker check format proto lock clean

help:  ## This list
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 12

$(READY): pyproject.toml worker/pyproject.toml requirements.lock
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info[:2] != (3, 10))' 2>/dev/null || \
	  { echo "commonscale needs Python 3.10: install it, or name it with 'make PYTHON=/path/to/python3.10 …'." >&2; exit 2; }
	@echo "Setting up $(VENV) (once, about a minute) …"
	@$(PYTHON) -m venv $(VENV)
	@$(BIN)/pip install --quiet --disable-pip-version-check -c requirements.lock -e worker -e '.[dev]' 2> $(VENV)/pip.log || \
	  { cat $(VENV)/pip.log >&2; exit 1; }
	@touch $@

demo: $(READY)  ## Four hospitals and a coordinator on this machine find the z-score scaler of their pooled data
	@$(BIN)/commonscale demo

torch: $(TORCH)/.ready  ## An environment with PyTorch and Flower for the worker (Python 3.11), which some tests need
$(TORCH)/.ready: worker/pyproject.toml
	@$(TORCH_PYTHON) -m venv $(TORCH)
	@$(TORCH)/bin/pip install --quiet --disable-pip-version-check torch==2.13.0 scikit-learn flwr==1.41.0 pytest pytest-xdist \
	  -e worker
	@touch $@

# The oldest Python that a worker may have, where there is one.
OLDEST := $(VENV)/oldest
OLDEST_PYTHON ?= $(shell command -v pyenv >/dev/null && ls $$(pyenv root)/versions/3.9.*/bin/python3.9 2>/dev/null | head -1 || command -v python3.9)
$(OLDEST)/.ready: worker/pyproject.toml
	@$(OLDEST_PYTHON) -m venv $(OLDEST)
	@$(OLDEST)/bin/pip install --quiet --disable-pip-version-check scikit-learn pytest pytest-xdist -e worker
	@touch $@

# All of them at a time: `make -j environments`.
environments: $(READY) $(TORCH)/.ready $(OLD_PROTOC)/.ready $(if $(OLDEST_PYTHON),$(OLDEST)/.ready)

# Without the fixtures of other tests, which need the daemons' environment.
WORKER_TESTS := -n $(PARALLEL) --confcutdir=tests/worker tests/worker
test-worker: $(TORCH)/.ready  ## The worker's own tests where workers live: with PyTorch, and on Python 3.9 if it is there
	@$(TORCH)/bin/python -m pytest $(WORKER_TESTS)/test_torch.py tests/worker/test_flower.py tests/worker/test_cli.py
ifneq ($(OLDEST_PYTHON),)
	@$(MAKE) --no-print-directory $(OLDEST)/.ready
	@$(OLDEST)/bin/python -m pytest $(WORKER_TESTS)
else
	@echo "No Python 3.9 here: the worker was not tried on it." >&2
endif

test: $(READY)  ## The tests, under ten minutes (those on PostgreSQL need its server programs: Debian package postgresql)
	@COMMONSCALE_CRASH_STRIDE=7 $(BIN)/python -m pytest $(IN_PARALLEL) -m 'not long and not docker and not browser'

test-long: $(READY)  ## Tests that take longer: jobs under encryption with ten sites, damaged messages
	@$(BIN)/python -m pytest $(IN_PARALLEL) -m 'long and not crash and not docker and not browser'

test-crash: $(READY)  ## The crash matrices, in memory and over real daemons (make test takes a few crashes in memory)
	@$(BIN)/python -m pytest -n $(PARALLEL) --dist worksteal -m crash tests/e2e tests/protocol

test-fuzz: $(READY)  ## 2,000 damaged messages, half from a site and half from a coordinator (make test-long sends 60)
	@COMMONSCALE_FUZZ=2000 $(BIN)/python -m pytest tests/e2e/test_fuzz.py

test-browser: $(READY)  ## The pages in a real Chromium (Debian package chromium): about three minutes
	@$(BIN)/python -m pytest -m browser tests/browser

test-docker: $(READY)  ## The images and docker compose on a real engine: partition, kill, full disk, upgrade (under ten minutes)
	@$(BIN)/python -m pytest -m docker tests/docker

check: $(READY)  ## Linters, strict types, layers, generated code
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	@$(MAKE) --no-print-directory proto OUT=$(VENV)/generated
	@diff -r -x __init__.py -x __pycache__ $(VENV)/generated/commonscale/v1 commonscale/v1 && \
	  diff -r -x __init__.py -x __pycache__ $(VENV)/generated/worker/commonscale_worker/v1 worker/commonscale_worker/v1 || \
	  { echo "commonscale/v1 does not match proto/: run 'make proto'." >&2; exit 1; }

format: $(READY)  ## Put the code into its standard form
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

# A worker may have an older protobuf than this environment: its messages are generated for 6.30 and later.
$(OLD_PROTOC)/.ready:
	@$(PYTHON) -m venv $(OLD_PROTOC)
	@$(OLD_PROTOC)/bin/pip install --quiet --disable-pip-version-check grpcio-tools==1.72.1 mypy-protobuf==3.6.0 setuptools==80.9.0
	@touch $@

OUT ?= .
proto: $(READY) $(OLD_PROTOC)/.ready  ## Generate commonscale/v1 and the worker's messages from proto/
	@mkdir -p $(OUT)
	@PATH=$(BIN):$$PATH $(BIN)/python -m grpc_tools.protoc -Iproto --python_out=$(OUT) --grpc_python_out=$(OUT) \
	  --mypy_out=quiet:$(OUT) --mypy_grpc_out=quiet:$(OUT) $(PROTOS)
	@mkdir -p $(OUT)/worker
	@PATH=$(OLD_PROTOC)/bin:$$PATH $(OLD_PROTOC)/bin/python -m grpc_tools.protoc -Iproto --python_out=$(OUT)/worker \
	  --mypy_out=quiet:$(OUT)/worker $(WORKER_PROTOS)

lock: $(READY)  ## Write the versions in use to requirements.lock, and what the images install, with hashes, to deploy/
	@$(BIN)/pip freeze --exclude-editable > requirements.lock
	@$(BIN)/python deploy/lock.py

clean:  ## Remove everything that is made
	rm -rf $(VENV) build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis
