# lanectl: `make demo` and `make test` are all a newcomer needs.
PYTHON ?= python3
VENV   ?= .venv
BIN    := $(VENV)/bin
STAMP  := $(VENV)/.installed

# Some environments forbid writing bytecode, which makes every start of lanectl compile anew.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: demo test check bench test-vllm docs clean

$(STAMP): pyproject.toml requirements-dev.lock
	$(PYTHON) -c 'import sys; sys.exit("Python 3.11 or later is needed" if sys.version_info < (3, 11) else 0)'
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@echo "installing into $(VENV): a minute or two"
	$(BIN)/python -m pip install --quiet --requirement requirements-dev.lock
	$(BIN)/python -m pip install --quiet --no-deps --no-build-isolation --editable .
	touch $@

demo: $(STAMP) ## The main job on a stand-in lane, in half a minute
	$(BIN)/lanectl demo

test: $(STAMP) ## Everything that needs no real vLLM
	$(BIN)/python -m pytest -n 2 --dist loadgroup $(ARGS)

check: $(STAMP) ## ruff, mypy --strict, import-linter
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

bench: $(STAMP) ## Ratios against the plain shell sequence and the Ansible playbook
	$(BIN)/python benchmarks/run.py $(ARGS)

test-vllm: $(STAMP) ## The same on the real engine (CPU build; installs 3.4 GB into .venv-vllm)
	bash tests/vllm/install.sh
	$(BIN)/python -m pytest -m vllm tests/vllm $(ARGS)

docs: $(STAMP) ## Generate docs/reference.md and docs/schemas from the models
	$(BIN)/python docs/generate.py

clean:
	rm -rf $(VENV) build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis
