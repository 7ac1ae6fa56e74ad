#!/usr/bin/env bash
# The C++ tests, without Python. Needs cmake 3.20 and a C++20 compiler; uses ninja and ccache where they are
# installed.
#
#   tests/native/run_cpp.sh         the scheduling core under the address and undefined-behaviour sanitizers
#   tests/native/run_cpp.sh full    that core, the CPU kernels and the tokenizer: without sanitizers, under these two,
#   and
#                                   under the thread sanitizer
#   tests/native/run_cpp.sh full thread         the same with these sanitizers alone
#   tests/native/run_cpp.sh aarch64 the CPU kernels on NEON, under qemu-aarch64-static; needs aarch64-linux-gnu-g++ too
#
# The builds stay in BUILD_DIR (build where it is not set), in folders cpp-*. A build's output is shown where it
# fails, and lies in output.txt there.
set -euo pipefail
cd "$(dirname "$0")/../.."
export UBSAN_OPTIONS=halt_on_error=1:print_stacktrace=1
export CCACHE_BASEDIR=$PWD CCACHE_NOHASHDIR=1 # copies of the tree share compiled files
root=${BUILD_DIR:-build}
launcher=$(command -v ccache || true)
export CMAKE_GENERATOR=${CMAKE_GENERATOR:-$(command -v ninja >/dev/null && echo Ninja || echo "Unix Makefiles")}
export CMAKE_BUILD_PARALLEL_LEVEL=${CMAKE_BUILD_PARALLEL_LEVEL:-$(nproc 2>/dev/null || echo 2)}

# run SANITIZERS NAME...: builds the tests of these names and runs them. `aarch64`: without sanitizers, for that
# processor.
run() {
  local sanitizers=$1 folder=$root/cpp-${1//,/-} flags=()
  shift
  if [[ $sanitizers == aarch64 ]]; then
    sanitizers=
    flags=(-DCMAKE_SYSTEM_NAME=Linux -DCMAKE_SYSTEM_PROCESSOR=aarch64 -DCMAKE_CXX_COMPILER=aarch64-linux-gnu-g++
      "-DCMAKE_CROSSCOMPILING_EMULATOR=qemu-aarch64-static;-L;/usr/aarch64-linux-gnu")
  elif [[ -n $sanitizers ]]; then
    flags=("-DCMAKE_CXX_FLAGS_RELWITHDEBINFO=-O1 -g1") # instrumented code takes several times longer to compile at -O2
  else
    folder=$root/cpp-plain
  fi
  mkdir -p "$folder"
  echo "$folder: building $# tests"
  if ! { cmake -S . -B "$folder" "-DPRELUDE_SANITIZE=$sanitizers" "-DCMAKE_CXX_COMPILER_LAUNCHER=$launcher" "${flags[@]}" &&
    cmake --build "$folder" --target "$@"; } >"$folder/output.txt" 2>&1; then
    cat "$folder/output.txt" >&2
    echo "$0: the build of $folder failed" >&2
    exit 1
  fi
  ctest --test-dir "$folder" --output-on-failure -j "$CMAKE_BUILD_PARALLEL_LEVEL" -R "^($(IFS='|' && echo "$*"))\$"
}

shopt -s extglob nullglob
core=(_native/tests/test_!(cpu_*).cpp)
all=(_native/tests/test_*.cpp tokenizer/tests/test_*.cpp)
names() { local source; for source in "$@"; do basename "$source" .cpp; done; }
case "${1:-}" in
  "") run address,undefined $(names "${core[@]}") ;;
  full)
    shift
    [[ $# -gt 0 ]] || set -- "" address,undefined thread
    for sanitizers; do run "$sanitizers" $(names "${all[@]}"); done
    ;;
  aarch64)
    for tool in qemu-aarch64-static aarch64-linux-gnu-g++; do
      command -v $tool >/dev/null || { echo "skipped: $tool is not installed"; exit 0; }
    done
    run aarch64 $(names $(grep -l kKernelNames _native/tests/test_*.cpp))
    # A processor without the instruction for dot products of int8.
    QEMU_CPU=cortex-a72 ctest --test-dir "$root/cpp-aarch64" --output-on-failure -R '^test_cpu_packed$'
    ;;
  *) echo "usage: $0 [full [SANITIZERS...] | aarch64]" >&2 && exit 2 ;;
esac
