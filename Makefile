# Two commands do all the set-up: `make demo` and `make test`. The others are their parts.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
SHELL_FILES := ray.sub .ci/run $(wildcard scripts/*.sh scripts/lib/*.sh env/*.sh tests/sandbox/*.sh \
	python/rlprof_ops/backends/nsight/*.sh)
SCANNER := $(wildcard python/rlprof_ops/analyze/readers/scan/*.[ch])
PYTEST_ARGS ?=
# One worker takes what runs in a Slurm sandbox, one what uses the machine itself, one what needs a core alone, and
# then real trainers: half of the time one waits for a job. 1: no workers.
RLPROF_TESTS_JOBS ?= 3
WORKERS := $(if $(filter-out 0 1,$(RLPROF_TESTS_JOBS)),-n $(RLPROF_TESTS_JOBS))

.PHONY: demo test test-all test-faults test-gpu bench lint machine docs screenshot clean help
.DEFAULT_GOAL := help

help:  ## This list
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/make \1\t\2/p' $(MAKEFILE_LIST) | expand -t 20

demo: $(VENV)/.demo  ## The whole chain on this machine: local Ray, a small GRPO, captures, harvest
	$(BIN)/rlprof demo

test: export RLPROF_TESTS ?= quick
test: machine $(VENV)/.test lint  ## Set up what tests need, check the code, run the quick tests; RLPROF_TESTS=all: what CI runs
	$(BIN)/python -m pytest $(WORKERS) $(PYTEST_ARGS)

test-all: export RLPROF_TESTS_REQUIRE := all
test-all: export RLPROF_TESTS := long
test-all: test  ## Every test, with every part required: hours

test-faults: machine $(VENV)/.test  ## Every way a job can end, on the sandbox; writes docs/faults.md
	RLPROF_TESTS=long RLPROF_FAULTS_TABLE=docs/faults.md \
		$(BIN)/python -m pytest tests/faults \
		tests/whole_job/test_order_to_end.py tests/supervisor/test_order_to_end.py $(PYTEST_ARGS)

test-gpu: $(VENV)/.test  ## What only a GPU can tell, on a machine with one and nsys; prints what it found
	RLPROF_GPU=$(or $(RLPROF_GPU),1) $(BIN)/python -m pytest tests/gpu $(PYTEST_ARGS)

machine:  ## Slurm, nsys and Chromium for the tests; needs root and apt, else says what is missing
	@env/setup_test_machine.sh || test "$${RLPROF_TESTS_REQUIRE-}" != all

lint: $(VENV)/.test  ## ruff, mypy, shellcheck, bash -n
	$(BIN)/ruff check .
	$(BIN)/ruff format --check --quiet .
	$(BIN)/mypy
	@for file in $(SHELL_FILES); do bash -n "$$file" || exit 1; done
	@if command -v shellcheck > /dev/null; then shellcheck -x $(SHELL_FILES); \
	elif [ "$${RLPROF_TESTS_REQUIRE-}" = all ]; then echo 'shellcheck is missing' >&2; exit 1; \
	else echo 'shellcheck is missing: shell files were not checked'; fi

docs: $(VENV)/.test  ## The documentation site, into site/; a warning is an error
	$(BIN)/python docs/generate.py
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet
	@echo "site/index.html"

screenshot: $(VENV)/.test  ## The picture of the report in the documentation, from a fresh demo
	$(BIN)/rlprof demo --output rlprof-demo/screenshot
	$(BIN)/python docs/screenshot.py "$$(ls -td rlprof-demo/screenshot/*-logs | head -n 1)"

bench: $(VENV)/.test  ## The measured comparisons of tests/bench, both sides in one run
	$(BIN)/python -m tests.bench all

$(VENV)/bin/pip:
	$(PYTHON) -m venv $(VENV) || { rm -rf $(VENV); env/setup_test_machine.sh python && $(PYTHON) -m venv $(VENV); }

# pip compiles with one core, one file after the other; bytecode is there before anything imports it, since images
# of containers often have PYTHONDONTWRITEBYTECODE.
INSTALL = $(BIN)/pip install --quiet --no-compile --constraint env/constraints.txt --editable
COMPILE = $(BIN)/python -m compileall -qq -j 0 $(VENV)/lib || true

$(VENV)/.demo: pyproject.toml setup.py $(SCANNER) env/constraints.txt | $(VENV)/bin/pip
	$(INSTALL) '.[ray,torch,analyze]'
	@$(COMPILE)
	@touch $@

$(VENV)/.test: pyproject.toml setup.py $(SCANNER) env/constraints.txt | $(VENV)/bin/pip
	$(INSTALL) '.[all,test]'
	@$(COMPILE)
	@touch $@ $(VENV)/.demo

clean:  ## Remove what this Makefile made
	rm -rf $(VENV) build dist site rlprof-demo
