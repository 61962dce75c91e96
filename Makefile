# `make serve` and `make test` do all their own set-up; `make check` is what CI runs.
# Needed on the machine: Python 3.11 or newer with venv, a C++20 compiler, make.

PYTHON ?= python3
KNOWN := PYTHON PORT MODEL DTYPE PLACEMENT DEVICE FLAGS PYTEST_FLAGS PEERS BENCH_FLAGS
GIVEN := $(foreach word,$(MAKEOVERRIDES),$(if $(findstring =,$(word)),$(firstword $(subst =, ,$(word)))))
UNKNOWN := $(filter-out $(KNOWN) -%,$(GIVEN))
ifneq ($(UNKNOWN),)
$(error unknown variable $(UNKNOWN); known are: $(KNOWN))
endif

VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check

# make serve; unset: the defaults of `dualpace serve`. FLAGS are further flags of it.
PORT ?=
MODEL ?=
DTYPE ?=
PLACEMENT ?=
DEVICE ?=
FLAGS ?=
export MODEL

# make test
PYTEST_FLAGS ?=

# make bench-cpu: where its throwaway environments and models lie, and more flags of bench/cpu/run.py
PEERS ?= build/peers
BENCH_FLAGS ?=

ON_FAILURE := || { echo "pip failed: is the package index reachable?"; exit 1; }

KERNEL_SOURCES := $(shell find kernels -name '*.cpp' -o -name '*.h' -o -name 'CMakeLists.txt' -o -name '*.cmake')

KERNEL_CODE := $(filter %.cpp %.h,$(KERNEL_SOURCES))

DOCKERFILES := $(wildcard services/*/Dockerfile operator/Dockerfile)

.PHONY: serve test figures bench-cpu bench-decoupling lint format fuzz check kernels proto crds e2e-kill e2e-scale e2e-pod clean help

help:
	@sed -n 's/^\([a-z0-9-]*\):.*## /  make \1\t/p' $(MAKEFILE_LIST)

serve: $(VENV)/serve.stamp ## serve a model: PORT, MODEL, DTYPE, PLACEMENT, DEVICE, FLAGS
	@exec $(BIN)/dualpace serve $(if $(PORT),--port=$(PORT)) $(if $(MODEL),--model="$$MODEL") \
	  $(if $(DTYPE),--dtype=$(DTYPE)) $(if $(PLACEMENT),--placement=$(PLACEMENT)) \
	  $(if $(DEVICE),--device=$(DEVICE)) $(FLAGS)

test: $(VENV)/dev.stamp ## run every test; fewer with PYTEST_FLAGS=tests/unit
	OMP_WAIT_POLICY=passive $(BIN)/pytest $(PYTEST_FLAGS)

figures: $(VENV)/dev.stamp ## simulate the policies and draw every figure into build/figures
	$(BIN)/dualpace lab figures $(FLAGS)

bench-decoupling: $(VENV)/dev.stamp ## what keeping step with the device costs: real processes, emulated GPU
	PYTHONPATH=bench $(BIN)/python -m decoupling.run $(FLAGS)

lint: $(VENV)/dev.stamp ## formatting, lint, types, layers
	$(BIN)/ruff format --check
	$(BIN)/ruff check
	$(BIN)/clang-format --dry-run -Werror $(KERNEL_CODE)
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/python -m dualpace.operator.crds --check helm/dualpace-crds/templates
	$(BIN)/hadolint $(DOCKERFILES)

crds: $(VENV)/dev.stamp ## generate the CRDs from the operator's models, and the chart's README
	$(BIN)/python -m dualpace.operator.crds helm/dualpace-crds/templates
	$(BIN)/python -m tests.helm.readme helm/dualpace

format: $(VENV)/dev.stamp ## format the code
	$(BIN)/ruff format
	$(BIN)/ruff check --fix
	$(BIN)/clang-format -i $(KERNEL_CODE)

e2e-kill: $(VENV)/dev.stamp ## kill the operator at 50 random points on a real control plane
	eval "$$(.ci/kubernetes-tools)" && $(BIN)/python -m tests.e2e.kill_operator 50

e2e-scale: $(VENV)/dev.stamp ## run the operator on 500 simulated nodes
	eval "$$(.ci/kubernetes-tools)" && $(BIN)/python -m tests.e2e.many_nodes 500

e2e-pod: $(VENV)/dev.stamp ## build the images and run the rendered pod under podman
	$(BIN)/python -m tests.e2e.podman_pod

fuzz: $(VENV)/dev.stamp ## fuzz the HTTP API by its own description
	$(BIN)/python tests/conformance/http_fuzz.py

check: lint test ## what CI runs

kernels: $(VENV)/dev.stamp ## rebuild the native kernels

bench-cpu: $(VENV)/dev.stamp ## compare the cpu-engine with other engines on this machine (several GB): PEERS, BENCH_FLAGS
	bench/cpu/setup_peers.sh $(PEERS)
	PYTHONPATH=bench $(BIN)/python -m cpu.run --peers $(PEERS) --json $(PEERS)/result.json \
	  --png $(PEERS)/result.png $(BENCH_FLAGS)

proto: $(VENV)/dev.stamp ## regenerate the protobuf messages
	$(BIN)/python -m grpc_tools.protoc -I libs --python_out=libs --pyi_out=libs \
	  libs/dualpace/ipc/proto/engine.proto libs/dualpace/api/v1/inference.proto

clean: ## remove the environment and what was built
	rm -rf $(VENV) build .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache

$(VENV)/base.stamp: constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "Python 3.11 or newer is needed; $(PYTHON) is $$($(PYTHON) --version). Try make PYTHON=python3.11"; exit 1; }
	@command -v $${CXX:-c++} >/dev/null || command -v g++ >/dev/null || \
	  { echo "A C++20 compiler is needed (Debian: apt-get install g++)"; exit 1; }
	@echo "1/3 making the environment in $(VENV)"
	@$(PYTHON) -m venv $(VENV)
	@$(PIP) install --quiet --upgrade -c constraints.txt pip scikit-build-core nanobind $(ON_FAILURE)
	@command -v cmake >/dev/null || $(PIP) install --quiet -c constraints.txt cmake
	@command -v ninja >/dev/null || $(PIP) install --quiet -c constraints.txt ninja
	@touch $@

$(VENV)/serve.stamp: $(VENV)/base.stamp pyproject.toml $(KERNEL_SOURCES)
	@echo "2/3 installing torch, which is large"
	@$(PIP) install -c constraints.txt torch $(ON_FAILURE)
	@echo "3/3 installing the rest and compiling the kernels (about a minute)"
	@$(PIP) install --quiet --no-build-isolation -c constraints.txt -e '.[serve]' $(ON_FAILURE)
	@touch $@

$(VENV)/dev.stamp: $(VENV)/serve.stamp
	@echo "installing the tools for tests and lint"
	@$(PIP) install --quiet --no-build-isolation -c constraints.txt -e '.[serve,dev]' $(ON_FAILURE)
	@touch $@
