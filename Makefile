# make demo: install what it needs and run the main job.  make test: install the rest and run the checks.
PYTHON ?= python3
VENV   ?= .venv
BIN     = $(VENV)/bin
LAB     = $(VENV)/.installed-lab
STAMP   = $(VENV)/.installed
PIP     = $(BIN)/python -m pip --disable-pip-version-check install --quiet --constraint constraints.txt
# One process per core, each with one thread; a file's tests stay in one process.
PYTEST  = OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n auto --dist loadfile

.PHONY: demo test test-slow test-thorough check bench zoo pages docs rivals install format clean

demo: $(LAB)
	$(BIN)/trainact compare --jobs 2

test: check
	$(PYTEST) -m "not slow"

test-slow: $(STAMP)
	$(PYTEST) -m slow

# 10,000 cases of each property, 10,000 damaged files, 50 kills; the figures go to results/robustness
THOROUGH = tests/test_properties.py tests/lab/test_damaged_files.py tests/lab/test_sudden_deaths.py
test-thorough: $(STAMP)
	TRAINACT_HYPOTHESIS=thorough TRAINACT_ROBUSTNESS=results/robustness OMP_NUM_THREADS=1 \
		nice $(BIN)/python -m pytest $(THOROUGH)
	$(BIN)/python -m tools.pages

zoo: $(STAMP)
	$(BIN)/python -m tools.zoo --output docs/zoo.md

check: $(STAMP)
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy

format: $(STAMP)
	$(BIN)/ruff check --fix
	$(BIN)/ruff format

bench: $(STAMP)
	$(BIN)/trainact bench --out results/bench
	$(BIN)/python -m tools.pages

# The trial of first layers: make rivals JOBS=2 DATA=FOLDER, with FOLDER/cifar10 and FOLDER/imagenette
JOBS ?= 2
DATA ?=
rivals: $(STAMP)
	nice $(BIN)/python -m tools.rivals --jobs $(JOBS) --data "$(DATA)"

pages: $(STAMP)
	$(BIN)/python -m tools.estimates
	$(BIN)/python -m tools.pages

# The site, at http://127.0.0.1:8000/
docs: $(STAMP)
	$(BIN)/mkdocs serve

install: $(STAMP)

$(LAB): pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(PIP) --editable ".[lab]"
	touch $@

# pip knows dependency groups from 25.1 on
$(STAMP): $(LAB)
	$(PIP) --upgrade "pip>=25.1"
	$(PIP) --editable ".[all]" --group dev --group docs
	touch $@

clean:
	rm -rf $(VENV) build dist .pytest_cache .ruff_cache .mypy_cache .hypothesis
