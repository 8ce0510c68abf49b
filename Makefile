# Everything a person or another Makefile needs. `make help` lists it.
PYTHON ?= python3.12
VENV   ?= .venv
BIN     = $(VENV)/bin
MODEL  ?= examples/shapes.onnx
TO     ?= tflite
JOBS   ?= 2
# ai-edge-quantizer wants another ai-edge-litert than onnx2tf does: an environment beside $(VENV).
QUANTIZE = $(dir $(VENV)).venv-quantize
# apache-tvm and the TVM that has relay are both called tvm.
RELAX = $(dir $(VENV)).venv-relax
# MediaPipe and Netron are no part of bridge: applications that load what it makes.
CLIENTS = $(dir $(VENV)).venv-clients
OPTIONS ?=

.DEFAULT_GOAL := help
.PHONY: help setup setup-clients setup-quantize setup-relax demo convert inspect golden test test-slow check lint bench doctor ci clean

help: ## list these targets
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "  make %-14s %s\n", $$1, $$2}'

# One stamp per set of extras: a set-up is done again when the pins change, and only then.
$(BIN)/python:
	@command -v $(PYTHON) >/dev/null 2>&1 && $(PYTHON) -c 'import sys; sys.exit(sys.version_info[:2] != (3, 12))' 2>/dev/null \
	  || { echo "bridge needs Python 3.12 and '$(PYTHON)' is not it: install it, or say where it is: make PYTHON=/path/to/python3.12" >&2; exit 1; }
	$(PYTHON) -m venv $(VENV)

$(VENV)/.tflite: $(BIN)/python pyproject.toml constraints.txt
	$(BIN)/pip install --quiet -c constraints.txt -e '.[tflite]'
	@touch $@

$(VENV)/.all: $(BIN)/python pyproject.toml constraints.txt
	$(BIN)/pip install --quiet -c constraints.txt -e '.[tflite,tvm,torch,tensorflow,dev]'
	@touch $@ $(VENV)/.tflite

setup: $(VENV)/.all ## install bridge with every target and all development tools into $(VENV)

$(QUANTIZE)/.done: $(BIN)/python constraints-quantize.txt
	$(BIN)/python -m venv $(QUANTIZE)
	$(QUANTIZE)/bin/pip install --quiet -c constraints-quantize.txt ai-edge-quantizer
	@touch $@

$(RELAX)/.done: $(BIN)/python constraints-relax.txt
	$(BIN)/python -m venv $(RELAX)
	$(RELAX)/bin/pip install --quiet -c constraints-relax.txt apache-tvm onnx
	@touch $@

$(CLIENTS)/.done: $(BIN)/python constraints-clients.txt
	$(BIN)/python -m venv $(CLIENTS)
	$(CLIENTS)/bin/pip install --quiet -c constraints-clients.txt mediapipe netron
	@touch $@

setup-clients: $(CLIENTS)/.done ## install the applications that tests load artifacts with, beside $(VENV)

setup-quantize: $(QUANTIZE)/.done ## install what --quantize int8 and dynamic need, beside $(VENV)

setup-relax: $(RELAX)/.done ## install what --to tvm-relax needs, beside $(VENV)

demo: $(VENV)/.tflite ## convert examples/shapes.onnx to TFLite, print the verdict, draw what it finds
	@mkdir -p build
	$(BIN)/python -m bridge.run examples/shapes.onnx --to tflite -o build/shapes.tflite --images examples/scenes
	$(BIN)/python -m scripts.demo build/shapes.tflite examples/scenes -o build/shapes.png

convert: $(VENV)/.tflite ## convert MODEL to TO (OPTIONS are passed on)
	$(BIN)/python -m bridge.run $(MODEL) --to $(TO) $(OPTIONS)

inspect: $(VENV)/.tflite ## say what is in MODEL
	$(BIN)/python -m bridge.inspect $(MODEL) $(OPTIONS)

golden: $(VENV)/.tflite ## record onnxruntime's outputs of MODEL into build/golden.npz
	@mkdir -p build
	$(BIN)/python -m bridge.golden record $(MODEL) -o build/golden.npz $(OPTIONS)

test: $(VENV)/.all ## the default tests (minutes)
	$(BIN)/python -m pytest -n $(JOBS) --dist loadfile

test-slow: $(VENV)/.all ## the slow tests, which CI runs too
	$(BIN)/python -m pytest -n $(JOBS) --dist loadfile -m slow

lint: $(VENV)/.all ## ruff, ruff format, mypy --strict
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

check: lint test ## all that must hold before a commit

bench: $(VENV)/.all ## ratios against onnxruntime, onnx2tf and stock TVM, as Markdown under build/
	@mkdir -p build
	$(BIN)/python -m scripts.bench -o build/bench.md

doctor: $(VENV)/.tflite ## which targets work here, and what is missing
	$(BIN)/python -m bridge.doctor

ci: lint test test-slow ## what .ci/run does, in the present environment

clean: ## remove what these targets made, but not $(VENV)
	rm -rf build
