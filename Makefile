# Commands that always work on a fresh machine with Python >= 3.10, pip, a C++20 compiler and make. See CONTRIBUTING.md.
PYTHON ?= python3
VENV ?= .venv
RUN := $(VENV)/bin/python
PIP := $(RUN) -m pip install --quiet --disable-pip-version-check
KEY := $(shell cat requirements-run.lock requirements.lock | cksum | cut -d' ' -f1)
TOOLS := $(VENV)/.tools-$(KEY)
LIBRARIES := $(VENV)/.libraries-$(KEY)
DEVELOP := $(VENV)/.develop-$(KEY)
DOCS := $(VENV)/.docs-$(shell cksum < requirements-docs.lock | cut -d' ' -f1)
CORE := $(VENV)/.core
WHEEL_VENV := $(VENV)-wheel
WHEEL_TOOLS := $(WHEEL_VENV)/.tools-$(shell cksum < requirements-wheel.lock | cut -d' ' -f1)
CXX_FILES := $(shell find csrc -name '*.h' -o -name '*.cpp')

HELPERS := common consumers draw edge_values gpu_tests make_graph peer_graphbolt table typed_split
BENCHMARKS := $(filter-out $(HELPERS:%=benchmarks/%.py), $(sort $(wildcard benchmarks/*.py)))

FORMS := $(filter-out %/config.yml, $(wildcard .github/ISSUE_TEMPLATE/*.yml))

MINUTES ?= 5

PYTHONS ?= 3.10 3.11 3.12 3.13
CELLS ?=
MACHINES ?= $(shell uname -m) $(if $(shell command -v aarch64-linux-gnu-g++),$(filter-out $(shell uname -m),aarch64))

# Python's and pytest's compiled files are kept for the next run: half of the seconds in which tests are collected.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: help demo-begins test-begins run build all-of-run all-of-build demo test test-all check docs package wheel wheels try-wheels tag matrix licences bench soak slow-tests stubs clean $(BENCHMARKS)
help:
	@echo "make demo     train GraphSAGE on the embedded data; pictures go to demo/"
	@echo "make test     what needs no GPU and less than a second, in a small form"
	@echo "make test-all all tests, with full numbers of examples, kills and start methods"
	@echo "make check    lint, types, layers, C++ tests under sanitizers"
	@echo "make docs     the site, in build/docs; warnings, dead links and what is fetched from elsewhere are errors"
	@echo "make package  sdist, wheel, an empty environment, golden digests"
	@echo "make wheel    a wheel of \$$(PYTHON) for every Linux with glibc 2.28 or newer; it goes to dist/"
	@echo "make wheels   the same for \$$(PYTHONS) on \$$(MACHINES)"
	@echo "make try-wheels  each wheel in dist/ in an empty environment: golden digests; aarch64 by qemu"
	@echo "make matrix   the fast tests with the oldest and with the newest Python, torch and numpy"
	@echo "make tag      whether \$$(TAG) is the tag of this version: v0.1.0, and the changelog has a date for it"
	@echo "make licences the licence of each package that datapipes or its tests install"
	@echo "make bench    the benchmarks, with ratios taken in one run"
	@echo "make soak     the long runs: loaders and channels at random, with kills; MINUTES=5 bounds each but the last"
	@echo "make stubs    write the generated files anew: __init__ files, functional.pyi, docs/api, tables of the docs"

# The environment belongs to the lock files: others make a new one. First comes what compiles the C++ core.
$(TOOLS): requirements-run.lock requirements.lock
	rm -rf $(VENV)
	$(PYTHON) -m venv $(VENV)
	$(PIP) $$(grep -E '^(setuptools|pybind11)==' requirements-run.lock)
	touch $@

$(LIBRARIES): $(TOOLS)
	$(PIP) --requirement requirements-run.lock
	touch $@

$(DEVELOP): $(LIBRARIES)
	$(PIP) --requirement requirements.lock
	touch $@

$(DOCS): $(DEVELOP) requirements-docs.lock
	$(PIP) --requirement requirements-docs.lock
	touch $@

$(CORE): $(TOOLS) setup.py pyproject.toml csrc/bindings/exports.map $(CXX_FILES)
	$(PIP) --no-build-isolation --no-deps --editable .
	touch $@

# pip waits for the disk where the compiler does not, so both run at once; each shows its output when it ends.
TOGETHER := +@$(MAKE) --no-print-directory --jobs=2 --output-sync=target

# Whoever waits is told for what, and for how long, before it begins.
SET_UP := an environment in $(VENV), the libraries, and the C++ core: 3 minutes the first time, seconds after

demo-begins:
	@echo "step 1 of 2: $(SET_UP)"

test-begins:
	@echo "step 1 of 3: $(SET_UP)"

run: $(TOOLS)
	$(TOGETHER) all-of-run

build: $(TOOLS)
	$(TOGETHER) all-of-build

all-of-run: $(LIBRARIES) $(CORE)
	@:

all-of-build: $(DEVELOP) $(CORE)
	@:

demo: demo-begins run
	@echo "step 2 of 2: train GraphSAGE on the embedded graph, 12 epochs: a minute on two processors"
	$(RUN) examples/node_classification.py --epochs 12 --out demo

# Three processes take the tests in turn, with one thread of torch each: on two processors two leave a third of the time
# unused, since many tests wait. Then come the tests that want the machine for themselves.
test: test-begins build
	@echo "step 2 of 3: the tests that can run side by side: 3 to 5 minutes on two processors"
	OMP_NUM_THREADS=1 $(RUN) -m pytest -m "not alone and not full and not slow" --numprocesses=3 --dist=worksteal
	@echo "step 3 of 3: the tests that need the machine for themselves: 15 seconds"
	$(RUN) -m pytest -m "alone and not full and not slow"

# Measures which tests take more than a second, and writes tests/slow.txt.
slow-tests: build
	OMP_NUM_THREADS=1 $(RUN) -m pytest -m "not alone and not full" --numprocesses=3 --dist=worksteal --junitxml=build/slow.xml
	$(RUN) tools/write_slow_tests.py build/slow.xml

test-all: build
	FULL_TESTS=1 OMP_NUM_THREADS=1 $(RUN) -m pytest -m "not alone" --numprocesses=3 --dist=worksteal --durations=40
	FULL_TESTS=1 $(RUN) -m pytest -m alone

# The texts of errors that tests hold, written anew; read the difference.
refusals: build
	FULL_TESTS=1 OMP_NUM_THREADS=1 $(RUN) -m pytest -q --write-refusals

check: build
	$(RUN) -m pip check
	$(RUN) -m ruff check .
	$(RUN) -m ruff format --check .
	$(RUN) -m mypy
	$(VENV)/bin/zizmor --offline --quiet --persona auditor .github
	$(VENV)/bin/check-jsonschema --quiet --builtin-schema vendor.github-workflows $(wildcard .github/workflows/*.yml)
	$(VENV)/bin/check-jsonschema --quiet --builtin-schema vendor.github-issue-forms $(FORMS)
	$(VENV)/bin/clang-format --dry-run --Werror $(CXX_FILES)
	$(RUN) -m pytest -q tests/test_layers.py
	CXX=$${CXX:-g++} bash csrc/tests/run.sh
	bash csrc/tests/fuzz.sh 20

docs: build $(DOCS)
	rm -rf build/docs
	$(RUN) -m sphinx --quiet --fail-on-warning --keep-going --fresh-env --doctree-dir build/doctrees docs build/docs
	$(RUN) tools/check_site.py build/docs

# The system's compiler builds the sdist's wheel.
package: build
	rm -rf build/package
	$(RUN) tools/build_wheel.py build/package
	$(RUN) tools/try_wheel.py --python $(RUN) build/package/*.whl

$(WHEEL_TOOLS): requirements-wheel.lock
	rm -rf $(WHEEL_VENV)
	$(PYTHON) -m venv $(WHEEL_VENV)
	$(WHEEL_VENV)/bin/python -m pip install --quiet --disable-pip-version-check --requirement requirements-wheel.lock
	touch $@

wheel: $(WHEEL_TOOLS)
	$(WHEEL_VENV)/bin/python tools/build_wheel.py --portable --python $(PYTHON) dist

wheels: $(WHEEL_TOOLS)
	rm -rf dist
	$(WHEEL_VENV)/bin/python tools/build_wheel.py --portable $(PYTHONS:%=--python %) $(MACHINES:%=--machine %) dist

try-wheels: $(WHEEL_TOOLS)
	$(WHEEL_VENV)/bin/python tools/try_wheel.py --without-cuda --extras --record dist/*.whl

matrix: $(WHEEL_TOOLS)
	$(WHEEL_VENV)/bin/python tools/matrix.py $(CELLS)

tag: export TAG := $(value TAG)
tag:
	@version=$$(sed -n 's/^__version__ = "\(.*\)"/\1/p' datapipes/__init__.py); \
	test "$$TAG" = "v$$version" || { echo "the tag of this version is v$$version. Give TAG=v$$version."; exit 1; }; \
	grep -Eq "^## $$version \([0-9]{4}-[0-9]{2}-[0-9]{2}\)$$" CHANGELOG.md || \
	{ echo "CHANGELOG.md has no line '## $$version (YYYY-MM-DD)'. Write the day of the release there."; exit 1; }

licences: build
	$(VENV)/bin/pip-licenses --python $(RUN) --order license --ignore-packages gnn-datapipes

bench: build $(BENCHMARKS)
$(BENCHMARKS): build
	$(RUN) $@

soak: build
	PYTHONPATH=tests/support $(RUN) tests/soak/soak_channel.py --kills 1000 --minutes $(MINUTES)
	PYTHONPATH=tests/support $(RUN) tests/soak/soak_garbage.py --runs 500 --minutes $(MINUTES)
	PYTHONPATH=tests/support $(RUN) tests/soak/soak_loader.py --minutes $(MINUTES)
	PYTHONPATH=tests/support $(RUN) tests/soak/soak_gpu_chains.py --chains 2000 --minutes $(MINUTES)
	PYTHONPATH=tests/support $(RUN) tests/soak/soak_partition.py --turns 5000 --minutes $(MINUTES)
	PYTHONPATH=tests/support $(RUN) tests/soak/soak_server.py --minutes $(MINUTES)
	PYTHONPATH=tests/support $(RUN) tests/soak/soak_serving.py --minutes $(MINUTES)
	PYTHONPATH=tests/support $(RUN) tests/soak/soak_serving_kills.py --kills 100 --minutes $(MINUTES)
	PYTHONPATH=tests/support $(RUN) tests/soak/soak_senders.py --minutes $(MINUTES)
	PYTHONPATH=tests/support $(RUN) tests/soak/soak_launcher.py --minutes $(MINUTES)
	PYTHONPATH=tests/support $(RUN) tests/soak/soak_distributed.py --kills 50 --minutes $(MINUTES)
	bash csrc/tests/fuzz.sh $$(($(MINUTES) * 60))
	$(RUN) benchmarks/chaos.py --kills 200

stubs: build
	$(RUN) tools/write_inits.py
	$(RUN) tools/write_stub.py
	$(RUN) tools/write_api.py
	$(RUN) tools/write_tables.py

clean:
	rm -rf $(VENV) $(WHEEL_VENV) $(VENV)-matrix build dist demo *.egg-info datapipes/_core*.so
