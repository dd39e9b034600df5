PYTHON ?= python3
VENV ?= .venv
WORKERS ?= auto

.PHONY: demo test test-all compiled lint check fingerprints releases clean

# One command: set up on a fresh machine and run the main job on real SGLang and FlashInfer wheels.
demo:
	$(PYTHON) demo/run.py

# One command: everything that runs in minutes.
test: $(VENV)/ready compiled
	$(VENV)/bin/pytest -n $(WORKERS) -m "not slow"

test-all: $(VENV)/ready compiled
	$(VENV)/bin/pytest -n $(WORKERS)

# Thousands of commands are run: where PYTHONDONTWRITEBYTECODE is set, each would compile us anew.
compiled: $(VENV)/ready
	$(VENV)/bin/python -m compileall -q sm120patch

lint: $(VENV)/ready
	$(VENV)/bin/ruff check .
	$(VENV)/bin/ruff format --check .
	$(VENV)/bin/mypy
	MYPYPATH=sm120patch/collections $(VENV)/bin/mypy --config-file= --strict --python-version 3.10 \
	  --explicit-package-bases --ignore-missing-imports -p ansible_collections.sm120patch.fleet.plugins
	$(VENV)/bin/python tools/pin_payloads.py --check

check: lint test-all

# After an edit of the catalogue, of releases.toml or of what runs payloads: the index of known files
# and the table of all releases. They download what the wheel cache lacks.
fingerprints: $(VENV)/ready
	$(VENV)/bin/python tools/build_fingerprints.py
	$(VENV)/bin/python tools/compile_catalogue.py

releases: fingerprints
	$(VENV)/bin/python tools/releases_document.py

$(VENV)/ready: pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(VENV)/bin/python -m pip install --quiet --editable '.[dev]'
	touch $@

clean:
	rm -rf $(VENV) .demo build dist
