#!/bin/sh
# `python -m bench gpu_first` on a machine without network, out of a checkout: sh bench/gpu/first.sh PACK [OPTION ...]
#
# PACK is a folder with the parts that the machine's Python lacks:
#     *.whl       wheels for it, this project's among them; they are unpacked, not installed
#     site.tgz    more packages, unpacked (FlashInfer with its modules compiled ahead)
#     earlier/    the --out of the call before: this call goes on from there
#     commit      the hash of the checkout
#     sources     the hash of the native sources of the wheel (bench gpu_first --print-sources)
# The Python of cuda/ is the checkout's. The compiled parts are the wheel's: a run does not begin with other sources.
# Where no wheel of this project is there or it does not load, the checkout is compiled.
set -eu
began=$(date +%s) # unpacking, and torch's first import from a cold disk, are part of --seconds
pack=$(cd "$1" && pwd)
shift
cd "$(dirname "$0")/../.."
python=${PYTHON:-python3}
site=${TMPDIR:-/tmp}/prelude-site
rm -rf "$site"
mkdir -p "$site"
for wheel in "$pack"/*.whl; do
    [ -e "$wheel" ] && "$python" -m zipfile -e "$wheel" "$site"
done
[ ! -e "$pack/site.tgz" ] || tar xzf "$pack/site.tgz" -C "$site"
if [ -d "$site/prelude" ]; then
    rm -rf "$site/prelude/cuda"
    ln -s "$PWD/cuda" "$site/prelude/cuda"
fi
export PYTHONPATH="$site${PYTHONPATH:+:$PYTHONPATH}" PYTHONUNBUFFERED=1
# A module that was not compiled ahead is an error at once, and not minutes of compilation.
export FLASHINFER_DISABLE_JIT="${FLASHINFER_DISABLE_JIT-1}" FLASHINFER_USE_CUDA_NORM=1
if ! "$python" -c "import prelude.cuda.lane, prelude.tokenizer"; then
    echo "compiling this project"
    rm -rf "$site/prelude" "$site"/prelude_engine-*
    "$python" -m pip install -q --no-index --no-deps --no-build-isolation -e .
fi
[ ! -e "$pack/commit" ] || set -- --commit "$(cat "$pack/commit")" "$@"
[ ! -e "$pack/sources" ] || set -- --sources "$(cat "$pack/sources")" "$@"
[ ! -e "$pack/earlier/results.jsonl" ] || set -- --from "$pack/earlier" "$@"
exec "$python" -m bench gpu_first --began "$began" "$@"
