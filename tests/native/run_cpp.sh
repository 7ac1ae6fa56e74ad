#!/usr/bin/env bash
# The C++ tests, without Python. Builds lie in build/cpp-*, and are kept.
#
#   tests/native/run_cpp.sh             the native plane under the address and undefined-behaviour sanitizers
#   tests/native/run_cpp.sh full        both planes plain, under address,undefined, and under the thread sanitizer
set -euo pipefail
cd "$(dirname "$0")/../.."
export UBSAN_OPTIONS=halt_on_error=1:print_stacktrace=1

# run SANITIZERS PLANE...: what it takes to build is a C++20 compiler, cmake 3.20 and ninja
run() {
  local folder="build/cpp-${1:-plain}" targets=() plane source
  cmake -S . -B "${folder/,/-}" -G Ninja -DPRELUDE_SANITIZE="$1" ${CXX_LAUNCHER:+-DCMAKE_CXX_COMPILER_LAUNCHER="$CXX_LAUNCHER"} >/dev/null
  for plane in "${@:2}"; do
    for source in "$plane"/tests/test_*.cpp; do targets+=("$(basename "$source" .cpp)"); done
  done
  cmake --build "${folder/,/-}" --target "${targets[@]}" >/dev/null
  ctest --test-dir "${folder/,/-}" --output-on-failure -R "^($(IFS='|' && echo "${targets[*]}"))\$"
}

case "${1:-}" in
  "") run address,undefined _native ;;
  full) for sanitizers in "" address,undefined thread; do run "$sanitizers" _native tokenizer; done ;;
  *) echo "usage: $0 [full]" >&2 && exit 2 ;;
esac
