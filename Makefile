# SPDX-License-Identifier: Apache-2.0
# Each target first sets up what it needs (scripts/setup.sh: system packages, .venv, Horovod, the library).
SHELL := bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
.ONESHELL:
.NOTPARALLEL:
.PHONY: help demo test test-all test-python test-cpp test-cpp-sanitized test-cpp-asan \
  test-cpp-tsan test-cpp-valgrind test-sanitized fuzz soak \
  smoke test-latest-tf test-mpich test-integrations test-frameworks typecheck format lint bench \
  docs dist recipes matrix venv op clean

# latest: the newest TensorFlow that Horovod can be built for (packaging/horovod), with Keras 3. 2.15: the TensorFlow that its release was made for.
STACK ?= latest
export STACK
VENV ?= $(if $(filter latest,$(STACK)),.venv,.venv-$(STACK))
export VENV
SETUP := scripts/setup.sh
BIN := $(VENV)/bin
PYTEST_ARGS ?=
# The rooms of csrc/ that need no TensorFlow. Of these only transport needs MPI.
ROOMS := base,plan,wire,proof,arena,mail,timeline,channel,meeting,rows,deal,cache,transport
comma := ,
MINUTES ?= 10
# How many workers of pytest run the commit tier (tests/ranks/workers.py). Everything runs in one process, because some tests measure.
WORKERS ?= 2
FUZZ := header envelope components states words shared_memory checkpoint columns pieces tensors
say = printf '\033[1m[make]\033[0m %s\n'

help:  ## this list
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:[^#]*## */\t/' | expand -t 20

demo: op  ## train on handwritten digits with 4 ranks, where rank 0 reads for all, and prove what each rank received
	@$(SETUP) horovod
	$(say) "training on 4 ranks: examples/digits_demo.py"
	PATH="$(abspath $(BIN)):$$PATH" $(BIN)/python examples/digits_demo.py

# Both end with the summary of pytest, so the Python tests come last.
test: op test-cpp typecheck  ## the commit tier: C++ tests, types, Python tests each in one world
	@$(call python_tests,--commit -n $(WORKERS))

# A part runs even if the one before it has failed.
EVERYTHING := test-cpp-sanitized test-python test-sanitized soak test-mpich test-latest-tf test-frameworks
test-all:  ## the tier of everything: all worlds, sanitizers, valgrind, other stacks, soak; many hours
	@failed=
	for part in $(EVERYTHING); do $(MAKE) --no-print-directory $$part || failed+=" $$part"; done
	STACK=2.15 VENV=.venv-2.15 $(MAKE) --no-print-directory test-python || failed+=" 2.15"
	$(MAKE) --no-print-directory op
	[ -z "$$failed" ] || { $(say) "failed:$$failed"; exit 1; }

test-python: export HVDATA_TEST_ALL_FAULTS := 1
test-python: op typecheck  ## all Python tests in all of their worlds, every fault with every reader and way
	@$(call python_tests,)

# $(call python_tests,OPTIONS)
define python_tests
$(SETUP) horovod hosts
$(say) "Python tests $(1)"
PATH="$(abspath $(BIN)):$$PATH" $(BIN)/pytest tests $(1) --durations=25 $(PYTEST_ARGS)
endef

# $(call cpp_tests,FOLDER,CMAKE OPTIONS): builds in build/FOLDER, and runs all tests there except those with valgrind.
define cpp_tests
$(SETUP) gtest mpi
export PATH="$(abspath $(BIN)):$$PATH"
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

test-cpp-sanitized: test-cpp-asan test-cpp-tsan test-cpp-valgrind  ## the C++ tests under ASan and UBSan, under TSan, and some under valgrind

test-cpp-asan: venv  ## the C++ tests under ASan and UBSan, and the corpus of the fuzz targets
	@$(call cpp_tests,cpp-asan,-DCMAKE_BUILD_TYPE=Debug -DHVDATA_SANITIZE=address$(comma)undefined -DHVDATA_OPS_TESTS=ON)
	$(fuzz_targets)
	ctest --test-dir build/fuzz -j$$(nproc) --output-on-failure --no-tests=error --progress

test-cpp-tsan: venv  ## the C++ tests under TSan
	@$(call cpp_tests,cpp-tsan,-DHVDATA_SANITIZE=thread)

test-cpp-valgrind: test-cpp  ## some C++ tests under valgrind
	@$(SETUP) valgrind
	if type -P valgrind >/dev/null; then
	  $(say) "C++ tests under valgrind: build/cpp"
	  cmake build/cpp >/dev/null  # which looks for valgrind
	  ctest --test-dir build/cpp -L valgrind -j$$(nproc) --output-on-failure --no-tests=error --progress
	else
	  $(say) "skipped: C++ tests under valgrind, which is not here and can't be installed"
	fi

# In a copy of the package, which the ranks find first. So horovod_data/*.so stay unchanged.
test-sanitized: op  ## tests/mpi with libraries built with AddressSanitizer and UBSan; PYTEST_ARGS=--commit: each test in one world
	@$(SETUP) ccache xxhash horovod hosts
	export PATH="$(abspath $(BIN)):$$PATH" CCACHE_BASEDIR=$$PWD CCACHE_NOHASHDIR=1
	$(say) "the libraries with sanitizers: build/core-sanitized"
	mkdir -p build
	cmake -S . -B build/core-sanitized -G Ninja -DCMAKE_BUILD_TYPE=RelWithDebInfo -DHVDATA_SANITIZE=address$(comma)undefined \
	  -DHVDATA_WERROR=ON -DPython_EXECUTABLE=$(abspath $(BIN))/python >build/core-sanitized.log 2>&1 ||
	  { cat build/core-sanitized.log; exit 1; }
	cmake --build build/core-sanitized
	rm -rf build/sanitized
	mkdir build/sanitized
	cp -r horovod_data build/sanitized/
	cp build/core-sanitized/_*.so build/sanitized/horovod_data/
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

# The targets share the time and run one after another. Inputs that reach new code are kept in build/fuzz/corpus; to bring them
# into the tree, in build/fuzz: csrc/fuzz/NAME_fuzz -merge=1 ../../csrc/fuzz/corpus/NAME corpus/NAME
fuzz: venv  ## mutated inputs for all that decodes bytes from other processes, for MINUTES=10
	@export PATH="$(abspath $(BIN)):$$PATH" CCACHE_BASEDIR=$$PWD CCACHE_NOHASHDIR=1
	$(fuzz_targets)
	near=$$(setarch -R true 2>/dev/null && echo setarch -R || true)  # as csrc/tests does, see cmake/HvdataSpreading.cmake
	cd build/fuzz
	for name in $(FUZZ); do
	  mkdir -p corpus/$$name
	  tensorflow=$$([[ $$name = tensors ]] && echo detect_leaks=0:detect_container_overflow=0 || true)
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
	# Ranks that wait spin under MPICH. With more ranks than cores a test takes many times as long.
	export HVDATA_TEST_LIMIT=$${HVDATA_TEST_LIMIT:-240}
	PATH=$$PWD/$$VENV/bin:$$PATH $$VENV/bin/pytest tests $(PYTEST_ARGS)

# The parts that change first with TensorFlow: kinds of elements, iterators and their checkpoints, ops, weights and metrics of Keras.
SMOKE := $(patsubst %,tests/mpi/test_%.py,modes elements checkpoint scatter weigh metric_average)
# Estimators, which TensorFlow 2.15 alone has, and parts that depend on Keras, such as BackupAndRestore, also under the launcher.
SMOKE_KERAS := $(patsubst %,tests/mpi/test_%.py,estimator graph_mode keras keras_3 backup callbacks) \
  tests/faults/test_restarted_jobs.py::test_killed_ranks_in_mid_epoch
smoke: op  ## a few minutes of tests; STACK=2.15 make smoke: with the TensorFlow of Horovod's release and its Keras 2, in .venv-2.15
	@$(SETUP) horovod
	PATH="$(abspath $(BIN)):$$PATH" $(BIN)/pytest tests/examples -k "keras3_train_step or custom_loop" $(PYTEST_ARGS)
	PATH="$(abspath $(BIN)):$$PATH" $(BIN)/pytest $(SMOKE_KERAS) --commit $(PYTEST_ARGS)
	PATH="$(abspath $(BIN)):$$PATH" $(BIN)/pytest $(SMOKE) --commit --np 3 $(PYTEST_ARGS)

test-integrations: op  ## RETURNN, as it is on PyPI, trained on several ranks
	@$(SETUP) horovod returnn
	PATH="$(abspath $(BIN)):$$PATH" $(BIN)/pytest tests/integrations $(PYTEST_ARGS)

test-frameworks:  ## Keras 3, JAX, PyTorch, sources of loader(), and Horovod with PyTorch and with Keras 3, on several ranks
	@$(SETUP) op jax torch sources horovod
	PATH=$$PWD/$$VENV/bin:$$PATH $$VENV/bin/pytest tests/integrations/test_{frameworks,horovod_torch,keras_3_jobs,torch_audit,torch_backup,loader_sources}.py \
	  tests/mpi/test_{keras_3,docs_blocks}.py tests/mpi/test_loaders.py::test_a_data_loader_and_tensors \
	  tests/single/test_elements_without_tensorflow.py $(PYTEST_ARGS)

typecheck: op
	@$(say) "types of the package"
	$(BIN)/mypy

PYTHON_FILES = $$(git ls-files '*.py')
CXX_FILES = $$(git ls-files 'csrc/*.cc' 'csrc/*.h')

format: venv  ## let ruff and clang-format lay out the code
	@$(BIN)/ruff check --quiet --fix $(PYTHON_FILES)
	$(BIN)/ruff format --quiet $(PYTHON_FILES)
	$(BIN)/clang-format -i $(CXX_FILES)

# clang-tidy reads the files of a room as one, because shared headers cost more than the files. Therefore the analyzer needs an option
# to look at functions outside of the main file. The compiler checks the locks.
lint: typecheck  ## types, layout, clang-tidy, and the analysis of locks
	@$(say) "layout"
	$(BIN)/ruff check $(PYTHON_FILES)
	$(BIN)/ruff format --quiet --diff $(PYTHON_FILES)
	$(BIN)/clang-format --dry-run -Werror $(CXX_FILES)
	$(SETUP) tidy mpi
	export PATH="$(abspath $(BIN)):$$PATH"
	rm -rf build/lint
	mkdir -p build/lint
	mpi=$$(mpicc -show | grep -oE -- '-I[^ ]+' | tr '\n' ' ')
	flags="-std=c++17 -I$$PWD/csrc $$mpi -DHVDATA_VERSION=\"\" -DHVDATA_BUILD=\"\""
	$(say) "locks"
	checks="-fsyntax-only -Wthread-safety -Wthread-safety-beta -Werror=thread-safety"
	ls csrc/{$(ROOMS),engine}/*.cc | xargs -P "$$(nproc)" -n 8 clang++ $$flags $$checks
	tf=$$($(BIN)/python cmake/ask_tensorflow.py 2>/dev/null)
	of_tf() { sed -n "s/^$$1=//p" <<<"$$tf" | tr ';' ' '; }
	grep -l MutexLock csrc/ops/*.cc | xargs -P "$$(nproc)" -n 1 clang++ $$flags $$checks -isystem "$$(of_tf INCLUDE_DIR)" \
	  $$(of_tf OPTIONS) "-std=c++$$(of_tf CXX_STANDARD)"
	$(say) "clang-tidy"
	for room in csrc/{$(ROOMS)}; do printf '#include "%s"\n' "$$PWD/$$room"/*.cc >"build/lint/$${room#csrc/}.cc"; done
	ls -S build/lint/*.cc | xargs -P "$$(nproc)" -n 1 sh -c 'clang-tidy --quiet --config-file=.clang-tidy \
	  --checks=-bugprone-suspicious-include "$$1" -- '"$$flags"' -Xclang -analyzer-opt-analyze-headers' sh

SOAK_ARGS ?=
soak: op  ## random jobs, verified and compared with plain Python, for MINUTES=10; memory must stay level
	@$(SETUP) horovod
	PATH="$(abspath $(BIN)):$$PATH" $(BIN)/python tests/soak/soak.py --minutes $(MINUTES) $(SOAK_ARGS)

bench: op  ## the benchmarks: delivered GB/s and steps/s beside the alternatives
	@$(SETUP) horovod hosts
	export PATH="$(abspath $(BIN)):$$PATH"
	for name in delivery copies pipeline training storage cost certificate growth memory scaling scale even backup torch_ranks; do $(BIN)/python benchmarks/$$name.py; done
	if [ "$$(id -u)" = 0 ]; then $(BIN)/python benchmarks/hosts.py; fi

# A broken link is an error.
docs:  ## the documentation as a site, in build/site
	@$(SETUP) docs
	NO_MKDOCS_2_WARNING=1 .venv-docs/bin/mkdocs --quiet build --strict
	$(say) "build/site; to read it: python3 -m http.server --directory build/site --bind 127.0.0.1"

dist: venv  ## sdist and wheel in dist/, checked with twine; the sdist is installed in an empty environment
	@$(SETUP) compiler xxhash mpi twine
	export PATH="$(abspath $(BIN)):$$PATH"
	rm -rf dist
	$(BIN)/python -c 'import sys; sys.path.insert(0, "cmake"); from horovod_data_build import build_sdist; build_sdist("dist")' >/dev/null
	$(BIN)/python -m pip --disable-pip-version-check wheel --quiet --no-build-isolation --no-deps --wheel-dir dist .
	build/twine/bin/twine check --strict dist/*
	HVDATA_TEST_SDIST=$$(ls dist/*.tar.gz) PYTHONPATH=$$PWD $(BIN)/pytest tests/single/test_dist.py
	ls -l dist

recipes: venv  ## check packaging/ and the manifests for Kubernetes with their own tools, installed in build/recipes
	@$(SETUP) recipes
	PYTHONPATH=$$PWD $(BIN)/pytest tests/single/test_packaging.py tests/single/test_kubernetes.py $(PYTEST_ARGS)

# Cells that CELLS does not name keep the result of their last run. MATRIX_ARGS: see scripts/matrix.py --help.
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
	rm -rf build dist *.egg-info horovod_data/*.so .pytest_cache .mypy_cache .hypothesis .demo
	rm -rf .venv*/.stamps/op
