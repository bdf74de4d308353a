#!/usr/bin/env bash
# For a fresh Debian or Ubuntu machine; each does all its own set-up:
#   ./run.sh study [STUDY.json] [options of `equipoise study`]   the main job: prints the comparison, writes out/
#   ./run.sh test [release|dev|tsan|clang] [options of ctest]    builds everything and runs the tests
#   ./run.sh papers [--paper NAME] [--write] [--check]           the four papers' tables and figures next to ours
#   ./run.sh measured RUNS.json | --distca FOLDER | --others | --layers   measured steps with known lengths next to simulated ones
#   ./run.sh atlas [--write]                                    every policy on every trace and job, in one table
#   ./run.sh figures [papers] [atlas] [measured]                 the figures of these pages, from the pages' own data
#   ./run.sh pictures                                           the pictures of pages that the docs show
#   ./run.sh docs                                               the documentation as a site, in build/docs; links are checked
#   ./run.sh wheel [FOLDER]                                      the Python module for other machines, in dist/
#   ./run.sh web                                                the simulator in a page that needs no network, in dist/
#   ./run.sh sbom [FILE]                                         what the release is made of (SPDX), in dist/
set -euo pipefail
cd "$(dirname "$0")"
# Paths below this folder are hashed as relative ones: the Python module, built in a folder of its own, finds the program's
# objects in the cache.
export CCACHE_BASEDIR=${CCACHE_BASEDIR:-$PWD}

usage() {
  sed -n '2,13s/^# \{0,1\}//p' "$0"
}

# One verb's usage, at once: nothing is installed or built for it.
help_of() {
  case $1 in
    papers | measured | atlas | figures) PYTHONPATH=sim/python "$debian_python" -m "$1" --help ;;
    study) sed -n '/^## study$/,/^## [^s]/{/^```/,/^```/{/^```/!p}}' docs/reference/commands.md ;;
    *) usage | grep "run.sh $1 " || usage ;;
  esac
}

# The packages a build needs; those for optional parts (solver, BLAS, MPI) come along where they exist.
packages=(g++ cmake ninja-build ccache pkg-config nlohmann-json3-dev libcli11-dev doctest-dev libboost-graph-dev zlib1g-dev
  libzstd-dev coinor-libcbc-dev libeigen3-dev libdnnl-dev libopenblas-dev libopenmpi-dev openmpi-bin python3 python3-jsonschema python3-scipy python3-yaml
  node-d3)

# Debian's, if it is there: it has Debian's PyTorch.
debian_python=$([ -x /usr/bin/python3 ] && echo /usr/bin/python3 || echo python3)

is_installed() { dpkg-query -W -f='${Status}' "$1" 2>/dev/null | grep -q 'install ok installed'; }

as_root() {
  if [ "$(id -u)" -eq 0 ]; then "$@"; else sudo "$@"; fi
}

# A fresh Ubuntu machine holds the lock for minutes, while it updates itself.
apt() { as_root env DEBIAN_FRONTEND=noninteractive apt-get -qq -o DPkg::Lock::Timeout=300 "$@" >&2; }

install() {
  echo "installing: $*" >&2
  apt update
  apt install -y --no-install-recommends "$@"
}

install_missing() {
  command -v dpkg-query >/dev/null || return 0 # another system: CMake names what is missing
  local missing=()
  for package in "${packages[@]}" "$@"; do is_installed "$package" || missing+=("$package"); done
  [ ${#missing[@]} -eq 0 ] || install "${missing[@]}"
}

# For tests that are skipped without it, as not every system has it.
install_if_there() {
  command -v dpkg-query >/dev/null || return 0
  is_installed "$1" || install "$1" || echo "no $1 here: its tests are skipped" >&2
}

make_venv() {
  install_if_there python3-venv
  install_if_there python3-dev
  install_if_there python3-pandas # PyPI's asks for a later NumPy than Debian's PyTorch knows
  mkdir -p build
  [ -x build/venv/bin/pip ] || "$debian_python" -m venv --system-site-packages build/venv
}

# The Python module in an environment of its own, for its tests and the notebooks, which are skipped without it.
install_module() {
  echo "building the Python module, log in build/venv.log" >&2
  mkdir -p build
  # By the name that CMake calls the compiler: ccache then has the program's objects.
  { make_venv && CC=${CC:-cc} CXX=${CXX:-c++} build/venv/bin/pip install --constraint tests/python/constraints.txt '.[notebooks,executors,types]'; } \
    >build/venv.log 2>&1 || {
    build/venv/bin/pip uninstall --yes equipoise >>build/venv.log 2>&1 || true # an older one is not what is tested
    echo "no Python module (build/venv.log says why): its tests are skipped" >&2
  }
}

# build PRESET TARGET...: configures once, then builds; quiet unless it fails.
build() {
  local preset=$1 log
  shift
  mkdir -p build
  log=build/$preset.log
  echo "building ($preset), log in $log" >&2
  {
    cmake --preset "$preset" -DEQUIPOISE_BENCHMARKS="${EQUIPOISE_BENCHMARKS:-OFF}" -DEQUIPOISE_UNIT_TESTS="${EQUIPOISE_UNIT_TESTS:-ON}" &&
      cmake --build --preset "$preset" ${1+--target "$@"}
  } >"$log" 2>&1 || {
    tail -n 60 "$log" >&2
    echo "the build failed; the whole log is in $log" >&2
    exit 3
  }
}

for word in "$@"; do
  case $word in
    -h | --help)
      help_of "${1:-}"
      exit
      ;;
  esac
done

case "${1:-}" in
  study)
    shift
    install_missing
    build release equipoise
    study=(traces/studies/first-study.json)
    if [ $# -gt 0 ] && [ "${1#-}" = "$1" ]; then
      study=("$1")
      shift
    else
      case " $* " in *" --model"[\ =]*) study=() ;; esac # a job without a file
    fi
    case " $*" in
      *" --out"[\ =]*) exec build/release/bin/equipoise study "${study[@]}" "$@" ;;
    esac
    out=out/$(basename "${study[0]:-job}" .json)
    build/release/bin/equipoise study "${study[@]}" --out "$out" "$@"
    echo "results: $out/report.html (to look at), summary.json, steps.csv, plan.json" >&2
    ;;
  papers | measured | atlas)
    case " $* " in
      *" --write "* | *" --plot"*) install_missing python3-matplotlib ;;
      *) install_missing ;;
    esac
    build release equipoise
    PYTHONPATH=sim/python "$debian_python" -m "$@"
    ;;
  figures)
    install_missing python3-matplotlib
    PYTHONPATH=sim/python "$debian_python" -m "$@"
    ;;
  pictures)
    shift
    install_missing chromium
    build release equipoise
    ./run.sh web
    python3 sim/report/html/pictures.py "$@"
    ;;
  docs)
    python3 tests/check_docs.py >&2
    install_if_there python3-venv
    mkdir -p build
    [ -x build/docs-venv/bin/mkdocs ] || {
      "$debian_python" -m venv build/docs-venv
      build/docs-venv/bin/pip install --quiet --requirement docs/site/requirements.txt >&2
    }
    NO_MKDOCS_2_WARNING=1 build/docs-venv/bin/mkdocs build --quiet --strict --config-file docs/site/mkdocs.yml
    echo "written: build/docs/index.html" >&2
    ;;
  wheel)
    install_missing
    make_venv >&2
    rm -rf build/wheel
    build/venv/bin/pip install --quiet --require-hashes --requirement sim/python/wheel.lock >&2
    build/venv/bin/pip wheel . --no-deps --no-build-isolation --wheel-dir build/wheel >&2
    # Libraries that are not on every Linux go into the wheel; its name says from which C library on it runs.
    PATH=$PWD/build/venv/bin:$PATH auditwheel repair build/wheel/equipoise-*.whl --wheel-dir "${2:-dist}"
    ;;
  web)
    install_missing emscripten
    sim/web/libraries.sh >&2
    # Where Debian's emscripten has a part of itself, for a node from elsewhere.
    NODE_PATH=/usr/share/nodejs build web equipoise_web
    python3 sim/web/build.py build/web dist
    ;;
  sbom)
    install_missing
    build release
    file=${2:-dist/equipoise.spdx.json}
    .ci/sbom.py build/release --out "$file"
    echo "written: $file" >&2
    ;;
  test)
    preset=${2:-release}
    [ "$preset" = clang ] && install_missing clang || install_missing
    install_if_there python3-torch
    install_if_there python3-matplotlib
    install_if_there chromium
    build "$preset"
    # Other presets test the module only if it is there, and then as it is now.
    if [ "$preset" = release ] || [ -d build/venv ]; then install_module; fi
    # Three frames of each allocation are kept where a sanitizer keeps them: an eighth less time.
    ASAN_OPTIONS=${ASAN_OPTIONS:-malloc_context_size=3} ctest --preset "$preset" --parallel 2 "${@:3}"
    ;;
  *)
    usage >&2
    exit 2
    ;;
esac
