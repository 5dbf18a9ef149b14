# SPDX-License-Identifier: Apache-2.0
# Every target sets up what it needs (scripts/setup.sh: system packages, .venv, Horovod, the library).
SHELL := bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
.ONESHELL:
.NOTPARALLEL:
.PHONY: help demo demo-latest test test-rest test-all test-cpp test-cpp-sanitized test-sanitized fuzz soak \
  smoke test-latest-tf test-mpich test-integrations test-frameworks test-site typecheck format lint bench \
  docs dist recipes matrix venv op clean

# 2.15: the TensorFlow that Horovod's release was made for; latest: the newest that it can be built for (packaging/horovod).
STACK ?= 2.15
export STACK
VENV ?= $(if $(filter latest,$(STACK)),.venv-latest,.venv)
export VENV
SETUP := scripts/setup.sh
BIN := $(VENV)/bin
PYTEST_ARGS ?=
# The rooms of csrc/ that need no TensorFlow; of them all but transport need no MPI.
ROOMS := base,plan,wire,proof,arena,mail,timeline,channel,meeting,transport
comma := ,
MINUTES ?= 10
# Workers of pytest (tests/ranks/workers.py): two for the quick tests; else 0, pytest itself: among the others are some that measure.
WORKERS ?=
FUZZ := header envelope components states words handover shared_memory checkpoint tensors
say = printf '\033[1m[make]\033[0m %s\n'

help:  ## this list
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:[^#]*## */\t/' | expand -t 18

demo: op  ## train the handwritten digits on 4 ranks, one of them reading for all, and prove who got what
	@$(SETUP) horovod
	$(say) "training on 4 ranks: examples/digits_demo.py"
	PATH=$(abspath $(BIN)):$$PATH $(BIN)/python examples/digits_demo.py

# Horovod's Keras layer needs Keras 2, which TensorFlow has no more: docs/frameworks.md.
demo-latest:  ## the same with today's TensorFlow, and Keras 2 as the package tf_keras, in .venv-latest
	@TF_USE_LEGACY_KERAS=1 $(MAKE) --no-print-directory STACK=latest VENV=.venv-latest demo

# Each ends with pytest's summary, so the Python tests come last.
test: op test-cpp typecheck  ## the quick part of the tests, which covers every feature: C++, types, Python at 1 to 4 ranks
	@$(call python_tests,--quick,2)

test-rest: op test-cpp-sanitized  ## what `make test` leaves out of --once: each test of tests/mpi in one world
	@$(call python_tests,--rest,0)

test-all: export HVDATA_TEST_ALL_FAULTS := 1
test-all: op test-cpp-sanitized typecheck  ## every test in every world, every fault with every reader and way
	@$(call python_tests,,0)

define python_tests
$(SETUP) horovod hosts
$(say) "Python tests $(1); those of tests/mpi run at 1, 2, 3 and 4 ranks"
PATH=$(abspath $(BIN)):$$PATH $(BIN)/pytest tests $(1) -n $(or $(WORKERS),$(2)) --durations=25 $(PYTEST_ARGS)
endef

# $(call cpp_tests,FOLDER,CMAKE OPTIONS): builds in build/FOLDER and runs what is there, but for valgrind.
define cpp_tests
$(SETUP) gtest mpi
export PATH=$(abspath $(BIN)):$$PATH
export CCACHE_BASEDIR=$$PWD CCACHE_NOHASHDIR=1 CMAKE_CXX_COMPILER_LAUNCHER=$$(type -P ccache || true)
mkdir -p build
$(say) "C++ tests: build/$(1)"
cmake -S . -B build/$(1) -G Ninja -DHVDATA_CORE=OFF -DHVDATA_TESTS=ON -DHVDATA_MPI_TESTS=ON -DHVDATA_WERROR=ON $(2) >build/$(1).log 2>&1 ||
  { cat build/$(1).log; exit 1; }
cmake --build build/$(1)
ctest --test-dir build/$(1) -LE valgrind -j$$(($$(nproc) + 1)) --output-on-failure --no-tests=error --progress
endef

test-cpp: venv  ## the C++ tests
	@$(call cpp_tests,cpp)

test-cpp-sanitized: test-cpp  ## the C++ tests under ASan and UBSan, under TSan and under valgrind, and the corpus of the fuzz targets
	@$(call cpp_tests,cpp-asan,-DCMAKE_BUILD_TYPE=Debug -DHVDATA_SANITIZE=address$(comma)undefined -DHVDATA_OPS_TESTS=ON)
	$(fuzz_targets)
	ctest --test-dir build/fuzz -j$$(nproc) --output-on-failure --no-tests=error --progress
	$(call cpp_tests,cpp-tsan,-DHVDATA_SANITIZE=thread)
	$(SETUP) valgrind
	if type -P valgrind >/dev/null; then
	  $(say) "C++ tests under valgrind: build/cpp"
	  cmake build/cpp >/dev/null  # which looks for valgrind
	  ctest --test-dir build/cpp -L valgrind -j$$(nproc) --output-on-failure --no-tests=error --progress
	else
	  $(say) "skipped: C++ tests under valgrind, which is not here and can't be installed"
	fi

# In a copy of the package, which the ranks find first: horovod_data/_core.so stays what it was.
test-sanitized: op  ## tests/mpi with a library built with AddressSanitizer and UBSan; PYTEST_ARGS=--quick: a part
	@$(SETUP) ccache xxhash horovod hosts
	export PATH=$(abspath $(BIN)):$$PATH CCACHE_BASEDIR=$$PWD CCACHE_NOHASHDIR=1
	$(say) "the library with sanitizers: build/core-sanitized"
	mkdir -p build
	cmake -S . -B build/core-sanitized -G Ninja -DCMAKE_BUILD_TYPE=RelWithDebInfo -DHVDATA_SANITIZE=address$(comma)undefined \
	  -DHVDATA_WERROR=ON -DPython_EXECUTABLE=$(abspath $(BIN))/python >build/core-sanitized.log 2>&1 ||
	  { cat build/core-sanitized.log; exit 1; }
	cmake --build build/core-sanitized --target _core
	rm -rf build/sanitized
	mkdir build/sanitized
	cp -r horovod_data build/sanitized/
	cp build/core-sanitized/_core.so build/sanitized/horovod_data/
	$(say) "Python tests under AddressSanitizer and UBSan"
	export HVDATA_TEST_SANITIZED=1 HVDATA_TEST_LIMIT=$${HVDATA_TEST_LIMIT:-240}
	PYTHONPATH=$$PWD/build/sanitized $(BIN)/pytest tests/mpi $(PYTEST_ARGS)

# build/fuzz: libFuzzer is clang's.
define fuzz_targets
$(SETUP) ccache xxhash fuzzer
$(say) "fuzz targets: build/fuzz"
mkdir -p build
cmake -S . -B build/fuzz -G Ninja -DCMAKE_CXX_COMPILER=clang++ -DHVDATA_CORE=OFF -DHVDATA_FUZZ=ON -DHVDATA_WERROR=ON >build/fuzz.log 2>&1 || { cat build/fuzz.log; exit 1; }
cmake --build build/fuzz
endef

# One after another, each for its part of the time. Inputs that reach new code are kept in build/fuzz/corpus; to bring them
# into the tree, in build/fuzz: csrc/fuzz/NAME_fuzz -merge=1 ../../csrc/fuzz/corpus/NAME corpus/NAME
fuzz: venv  ## all that reads bytes of others, with mutated ones, for MINUTES=10
	@export PATH=$(abspath $(BIN)):$$PATH CCACHE_BASEDIR=$$PWD CCACHE_NOHASHDIR=1
	$(fuzz_targets)
	near=$$(setarch -R true 2>/dev/null && echo setarch -R || true)  # as csrc/tests does, see cmake/HvdataSpreading.cmake
	cd build/fuzz
	for name in $(FUZZ); do
	  mkdir -p corpus/$$name
	  tensorflow=$$([[ $$name = checkpoint || $$name = tensors ]] && echo detect_leaks=0:detect_container_overflow=0 || true)
	  ASAN_OPTIONS=$$tensorflow TF_CPP_MIN_LOG_LEVEL=3 $$near csrc/fuzz/$${name}_fuzz -max_total_time=$$((60 * $(MINUTES) / $(words $(FUZZ)))) \
	    -timeout=20 -print_final_stats=1 corpus/$$name ../../csrc/fuzz/corpus/$$name 2> >(grep -v '^horovod_data: ' >&2)
	done

test-latest-tf: export VENV := .venv-latest
test-latest-tf: export TENSORFLOW := tensorflow-cpu
test-latest-tf:  ## the tests that need no Horovod, with the newest TensorFlow, in .venv-latest
	@$(SETUP) venv
	$$VENV/bin/python -m pip install --quiet --upgrade $$TENSORFLOW
	$(SETUP) op
	PATH=$$PWD/$$VENV/bin:$$PATH $$VENV/bin/pytest tests -m "not horovod" $(PYTEST_ARGS)

test-mpich: export VENV := .venv-mpich
test-mpich:  ## all Python tests with MPICH, in .venv-mpich
	@$(SETUP) mpich horovod op
	# Ranks that wait spin under MPICH: where there are more of them than cores a test takes many times as long.
	export HVDATA_TEST_LIMIT=$${HVDATA_TEST_LIMIT:-240}
	PATH=$$PWD/$$VENV/bin:$$PATH $$VENV/bin/pytest tests $(PYTEST_ARGS)

# What changes first with TensorFlow: kinds of elements, iterators and their checkpoints, ops, Horovod with Keras.
SMOKE := tests/mpi/test_modes.py tests/mpi/test_elements.py tests/mpi/test_none.py tests/mpi/test_checkpoint.py tests/mpi/test_scatter.py \
  tests/mpi/test_gather.py tests/mpi/test_predict.py tests/mpi/test_shard_auto.py
smoke: op  ## a few minutes of tests; STACK=latest make smoke: with today's TensorFlow and Horovod built for it, in .venv-latest
	@$(SETUP) horovod
	PATH=$(abspath $(BIN)):$$PATH $(BIN)/pytest $(SMOKE) --np 2 $(PYTEST_ARGS)
	PATH=$(abspath $(BIN)):$$PATH $(BIN)/pytest tests/examples -k "keras3 or custom_loop or digits_keras" $(PYTEST_ARGS)

test-integrations: op  ## RETURNN, as it is on PyPI, trained on several ranks
	@$(SETUP) horovod returnn
	PATH=$(abspath $(BIN)):$$PATH $(BIN)/pytest tests/integrations $(PYTEST_ARGS)

test-site: op docs  ## the site in a headless browser: search, links, pictures
	@$(SETUP) browser
	PATH=$(abspath $(BIN)):$$PATH $(BIN)/pytest tests/docs/test_site.py $(PYTEST_ARGS)

test-frameworks: export STACK := latest
test-frameworks: export VENV := .venv-latest
test-frameworks:  ## Keras 3 on JAX, PyTorch, and Horovod's Keras layer with Keras 3, on several ranks, in .venv-latest
	@$(SETUP) op horovod jax torch
	PATH=$$PWD/$$VENV/bin:$$PATH $$VENV/bin/pytest tests/integrations/test_frameworks.py tests/integrations/test_torch_audit.py $(PYTEST_ARGS)

typecheck: op
	@$(say) "types of the package"
	$(BIN)/mypy

PYTHON_FILES = $$(git ls-files '*.py')
CXX_FILES = $$(git ls-files 'csrc/*.cc' 'csrc/*.h')

format: venv  ## let ruff and clang-format lay out the code
	@$(BIN)/ruff check --quiet --fix $(PYTHON_FILES)
	$(BIN)/ruff format --quiet $(PYTHON_FILES)
	$(BIN)/clang-format -i $(CXX_FILES)

# clang-tidy takes the files of a room as one: a header that many of them include costs more than they do. The analyzer
# then has to be told to look at functions that are not in the main file. The locks are checked by the compiler.
lint: typecheck  ## types, layout, clang-tidy, and who holds which lock
	@$(say) "layout"
	$(BIN)/ruff check $(PYTHON_FILES)
	$(BIN)/ruff format --quiet --diff $(PYTHON_FILES)
	$(BIN)/clang-format --dry-run -Werror $(CXX_FILES)
	$(SETUP) tidy mpi
	export PATH=$(abspath $(BIN)):$$PATH
	rm -rf build/lint
	mkdir -p build/lint
	mpi=$$(mpicc -show | grep -oE -- '-I[^ ]+' | tr '\n' ' ')
	flags="-std=c++17 -I$$PWD/csrc $$mpi -DHVDATA_VERSION=\"\" -DHVDATA_TF_VERSION=\"\""
	$(say) "locks"
	checks="-fsyntax-only -Wthread-safety -Wthread-safety-beta -Werror=thread-safety"
	ls csrc/{$(ROOMS),engine}/*.cc | xargs -P "$$(nproc)" -n 8 clang++ $$flags $$checks
	tf=$$($(BIN)/python cmake/ask_tensorflow.py 2>/dev/null)
	of_tf() { sed -n "s/^$$1=//p" <<<"$$tf" | tr ';' ' '; }
	grep -lE 'MutexLock|OneAtATimeLock' csrc/ops/*.cc | xargs -P "$$(nproc)" -n 1 clang++ $$flags $$checks -isystem "$$(of_tf INCLUDE_DIR)" \
	  $$(of_tf OPTIONS) "-std=c++$$(of_tf CXX_STANDARD)"
	$(say) "clang-tidy"
	for room in csrc/{$(ROOMS)}; do printf '#include "%s"\n' "$$PWD/$$room"/*.cc >"build/lint/$${room#csrc/}.cc"; done
	ls -S build/lint/*.cc | xargs -P "$$(nproc)" -n 1 sh -c 'clang-tidy --quiet --config-file=.clang-tidy \
	  --checks=-bugprone-suspicious-include "$$1" -- '"$$flags"' -Xclang -analyzer-opt-analyze-headers' sh

MINUTES ?= 10
SOAK_ARGS ?=
soak: op  ## random jobs, verified and compared with plain Python, for MINUTES=10; memory must stay level
	@$(SETUP) horovod
	PATH=$(abspath $(BIN)):$$PATH $(BIN)/python tests/soak/soak.py --minutes $(MINUTES) $(SOAK_ARGS)

bench: op  ## the benchmarks: delivered GB/s and steps/s beside the alternatives
	@$(SETUP) horovod hosts
	export PATH=$(abspath $(BIN)):$$PATH
	for name in delivery copies pipeline training storage cost certificate growth memory scaling scale; do $(BIN)/python benchmarks/$$name.py; done
	if [ "$$(id -u)" = 0 ]; then $(BIN)/python benchmarks/hosts.py; fi

# A link that leads nowhere ends it.
docs:  ## the documentation as a site, in build/site
	@$(SETUP) docs
	NO_MKDOCS_2_WARNING=1 .venv-docs/bin/mkdocs --quiet build --strict
	$(say) "build/site; to read it: python3 -m http.server --directory build/site --bind 127.0.0.1"

dist: venv  ## sdist and wheel in dist/, checked: what an index would say of them, and the sdist installed in an empty environment
	@$(SETUP) compiler xxhash mpi twine
	export PATH=$(abspath $(BIN)):$$PATH
	rm -rf dist
	$(BIN)/python -c 'import sys; sys.path.insert(0, "cmake"); from horovod_data_build import build_sdist; build_sdist("dist")' >/dev/null
	$(BIN)/python -m pip --disable-pip-version-check wheel --quiet --no-build-isolation --no-deps --wheel-dir dist .
	build/twine/bin/twine check --strict dist/*
	HVDATA_TEST_SDIST=$$(ls dist/*.tar.gz) PYTHONPATH=$$PWD $(BIN)/pytest tests/single/test_dist.py
	ls -l dist

recipes: venv  ## look at packaging/ with hadolint and EasyBuild, which are installed in build/recipes
	@$(SETUP) recipes
	PYTHONPATH=$$PWD $(BIN)/pytest tests/single/test_packaging.py $(PYTEST_ARGS)

# Cells that are not named keep what their last run said. MATRIX_ARGS: see scripts/matrix.py --help.
CELLS ?=
MATRIX_ARGS ?=
matrix: venv  ## the delivery checks with other versions of TensorFlow, MPI and Python, into docs/matrix.md; CELLS="tf2.21.0-py3.12-openmpi5 ..."
	@$(SETUP) compiler xxhash mpi
	$(BIN)/python scripts/matrix.py $(MATRIX_ARGS) $(CELLS)

venv:  ## the Python environment alone
	@$(SETUP) venv

op: venv  ## build and install the library into .venv
	@$(SETUP) op

clean:  ## remove what was built here; keep the environments
	rm -rf build dist *.egg-info horovod_data/_core.so .pytest_cache .mypy_cache .hypothesis .demo
	rm -rf .venv*/.stamps/op
