#!/bin/sh
# Takes away each named ordering of src/sync.rs in turn and demands that a model check notices.
#
#   sh dataplane/shm/tests/weaken.sh [NAME...]        (no NAME: all of them)
#
# A name begins with the protocol it belongs to (slot_, ring_, epoch_, bell_), and the checks of that
# protocol are named model_<protocol>_...: only those are run. The unweakened checks run first.
set -eu
cd "$(dirname "$0")/.."
target=${CARGO_TARGET_DIR:-../../target}/weaken
log=$target/weaken.log
mkdir -p "$target"
export RUSTFLAGS="--cfg loom" CARGO_TARGET_DIR="$target"
# A weakened build is expected to panic; backtraces would only cost time.
export RUST_BACKTRACE=0

# Only this crate is compiled again for each name: the extra flags go to its rustc alone.
build() {
    cargo rustc -q -p bng-shm --lib --profile bench --message-format json -- "$@" 2>"$log" |
        sed -n 's/.*"executable":"\([^"]*\)".*/\1/p'
}

binary=$(build)
[ -n "$binary" ] || { cat "$log" >&2; exit 1; }
if ! "$binary" model >"$log" 2>&1; then
    cat "$log" >&2
    echo "the model checks fail with nothing weakened" >&2
    exit 1
fi
echo "unweakened: all model checks pass"

names=$(sed -n 's/.*bng_weaken = "\([a-z_]*\)".*/\1/p' src/sync.rs)
[ "$#" -eq 0 ] || names="$*"
missed=
for name in $names; do
    binary=$(build --cfg "bng_weaken=\"$name\"")
    [ -n "$binary" ] || { cat "$log" >&2; exit 1; }
    if "$binary" "model_${name%%_*}_" >"$log" 2>&1; then
        missed="$missed $name"
        echo "$name: NOT NOTICED"
    else
        # A check that does not exist, or a crash of another kind, is no proof.
        grep -q '^test result: FAILED' "$log" || { cat "$log" >&2; exit 1; }
        echo "$name: noticed by $(sed -n 's/^test model::\(model_[a-z_]*\) .*FAILED$/\1/p' "$log" | tr '\n' ' ')"
    fi
done
if [ -n "$missed" ]; then
    echo "no model check fails without:$missed" >&2
    exit 1
fi
