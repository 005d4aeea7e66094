# Two commands do everything on a fresh machine: `make demo` and `make test`.  Both first create .venv (once, and again
# when pyproject.toml or constraints.txt change).
#
#   PYTHON=python3.12     the interpreter to build .venv from, or to use as it is with USE_SYSTEM=1
#   USE_SYSTEM=1          no .venv and no installation: use PYTHON with the packages it has (a GPU machine whose torch and
#                         Triton must stay as they are)
#   PYTEST_ARGS="-k rule" what to hand to pytest
#   TEST_PROCESSES=2      processes that `make test` shares the tests among (with USE_SYSTEM=1 there is one)
#
# `make test` needs no GPU; `make test-gpu` runs what needs one.

PYTHON ?= python3
VENV ?= .venv
PYTEST_ARGS ?=
TEST_PROCESSES ?= 2

ifeq ($(USE_SYSTEM),1)
PY := $(PYTHON)
READY := system
SHARED :=
export PYTHONPATH := $(CURDIR)$(if $(PYTHONPATH),:$(PYTHONPATH))
else
PY := $(VENV)/bin/python
READY := $(VENV)/.installed
# A file's tests stay together: they share what it takes long to make.
SHARED := -n $(TEST_PROCESSES) --dist loadfile
endif

NEEDED := torch triton numpy numba pandas pyarrow typer rich platformdirs cuda.bindings pytest hypothesis

.PHONY: demo test test-gpu lint venv system results clean

demo: $(READY)
	$(PY) -m gemmdesc demo

test: lint
	$(PY) -m pytest $(SHARED) $(PYTEST_ARGS)

test-gpu: $(READY)
	$(PY) -m pytest -m gpu $(PYTEST_ARGS)

lint: $(READY)
	$(PY) -m ruff check .
	$(PY) -m mypy

results: $(READY)
	$(PY) scripts/make_results_md.py
	$(PY) scripts/make_supported_md.py

venv: $(READY)

$(VENV)/.installed: pyproject.toml constraints.txt
	@echo "installing into $(VENV) (once; a minute or two)"
	$(PYTHON) -m venv $(VENV)
	$(VENV)/bin/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[test]'
	touch $@

system:
	@$(PY) -c 'import sys; from importlib.util import find_spec; \
	missing = [m for m in sys.argv[1:] if not find_spec(m.partition(".")[0])]; \
	sys.exit("PYTHON must have the packages of pyproject.toml (missing: %s)" % ", ".join(missing) if missing else 0)' $(NEEDED)

clean:
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .hypothesis dist
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
