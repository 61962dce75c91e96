# `make serve` and `make test` do all their own set-up; `make check` is what CI runs.
# Needed on the machine: Python 3.11 or newer with venv, a C++20 compiler, make.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check

# make serve
PORT ?= 8000
MODEL ?= demo
DTYPE ?= auto
PLACEMENT ?= auto
DEVICE ?= cpu
# Further flags of `dualpace serve`, see `dualpace serve --help`.
FLAGS ?=

# make test
PYTEST_FLAGS ?=

KERNEL_SOURCES := $(shell find kernels -name '*.cpp' -o -name '*.h' -o -name 'CMakeLists.txt' -o -name '*.cmake')

KERNEL_CODE := $(filter %.cpp %.h,$(KERNEL_SOURCES))

.PHONY: serve test lint format check kernels proto clean help

help:
	@sed -n 's/^\([a-z]*\):.*## /  make \1\t/p' $(MAKEFILE_LIST)

serve: $(VENV)/serve.stamp ## serve a model: PORT, MODEL, DTYPE, PLACEMENT, DEVICE, FLAGS
	@exec $(BIN)/dualpace serve --port=$(PORT) --model='$(MODEL)' --dtype=$(DTYPE) \
	  --placement=$(PLACEMENT) --device=$(DEVICE) $(FLAGS)

test: $(VENV)/dev.stamp ## run every test
	$(BIN)/pytest $(PYTEST_FLAGS)

lint: $(VENV)/dev.stamp ## formatting, lint, types, layers
	$(BIN)/ruff format --check
	$(BIN)/ruff check
	$(BIN)/clang-format --dry-run -Werror $(KERNEL_CODE)
	$(BIN)/mypy
	$(BIN)/lint-imports

format: $(VENV)/dev.stamp ## format the code
	$(BIN)/ruff format
	$(BIN)/ruff check --fix
	$(BIN)/clang-format -i $(KERNEL_CODE)

check: lint test ## what CI runs

kernels: $(VENV)/dev.stamp ## rebuild the native kernels

proto: $(VENV)/dev.stamp ## regenerate the protobuf messages
	$(BIN)/python -m grpc_tools.protoc -I libs --python_out=libs --pyi_out=libs \
	  libs/dualpace/ipc/proto/engine.proto

clean: ## remove the environment and what was built
	rm -rf $(VENV) build .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache

$(VENV)/base.stamp: constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "Python 3.11 or newer is needed; $(PYTHON) is $$($(PYTHON) --version). Try make PYTHON=python3.11"; exit 1; }
	@command -v $${CXX:-c++} >/dev/null || command -v g++ >/dev/null || \
	  { echo "A C++20 compiler is needed (Debian: apt-get install g++)"; exit 1; }
	@echo "making the environment in $(VENV)"
	@$(PYTHON) -m venv $(VENV)
	@$(PIP) install --quiet --upgrade -c constraints.txt pip scikit-build-core nanobind
	@command -v cmake >/dev/null || $(PIP) install --quiet -c constraints.txt cmake
	@command -v ninja >/dev/null || $(PIP) install --quiet -c constraints.txt ninja
	@touch $@

$(VENV)/serve.stamp: $(VENV)/base.stamp pyproject.toml $(KERNEL_SOURCES)
	@echo "installing DualPace and what it serves with (torch is large: the first time takes minutes)"
	@$(PIP) install --quiet --no-build-isolation -c constraints.txt -e '.[serve]'
	@touch $@

$(VENV)/dev.stamp: $(VENV)/serve.stamp
	@echo "installing the tools for tests and lint"
	@$(PIP) install --quiet --no-build-isolation -c constraints.txt -e '.[serve,dev]'
	@touch $@
