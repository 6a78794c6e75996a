#!/usr/bin/env bash
# What to run in the first minutes on a GPU, the most valuable rows first.
#
#   OUT=folder SECONDS_LEFT=240 [CORPUS=sentences.txt] [SITE=folder] tests/gpu/lease.sh [ROW ...]
#
# Each row has a limit of its own, and all together end in SECONDS_LEFT. OUT gets results.jsonl, a
# line for each row when it ends, and log.txt. SITE holds packages that the machine lacks. SMALL=1 is
# a dry run on a CPU.
set -u
cd "$(dirname "$0")/../.."
out=${OUT:-$PWD/gpu-out}
mkdir -p "$out"
end=$(($(date +%s) + ${SECONDS_LEFT:-240}))
python=${PYTHON:-python3}
wanted=" $* "
failed=0
export PYTHONPATH=${SITE:+$SITE:}$PWD PYTHONUNBUFFERED=1 HF_HUB_OFFLINE=1
export PYTORCH_ALLOC_CONF=${PYTORCH_ALLOC_CONF:-expandable_segments:True}
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
export DYSTRESS_CACHE=$scratch/cache
corpus=${CORPUS:-$scratch/sentences.txt}
lines=36000
patience=1
if [[ -n ${SMALL:-} ]]; then
    lines=200
    patience=3 # cores may be busy, and a CPU has no lease
fi
[[ -e $corpus ]] || "$python" tests/gpu/sentences.py "$corpus" "$lines" || exit 1

row() { # NAME SECONDS PROGRAM WORDS...
    local name=$1 limit=$((patience * $2)) left=$((end - $(date +%s)))
    shift 2
    [[ $wanted == "  " || $wanted == *" $name "* ]] || return 0
    # without time left too, the row leaves its line
    ((limit < left)) || limit=$((left > 1 ? left : 1))
    "$python" tests/gpu/row.py "$name" "$limit" "$out" "$python" "$@" || failed=1
}

check() { # NAME SECONDS WORDS...
    row "$1" "$2" tests/gpu/checks.py --corpus "$corpus" "${@:3}"
}

if [[ -n ${SMALL:-} ]]; then
    bert=(--batch 6 --layers 1 --width 32 --vocabulary 9000)
    short=(--steps 2 --batch 6)
    equal=(--steps 4 --batch 6)
    killed=(--steps 8 --batch 6)
    step=("${bert[@]}" --steps 2 --warm 1)
    speed=("${bert[@]}" --steps 2 --repeats 1)
    loss=(--sizes 8 --dim 8 --repeats 1)
    text=("${short[@]}" --only paper)
    images=("${short[@]}" --only dino)
else
    short=(--steps 5)
    equal=(--steps 20)
    killed=(--steps 400)
    step=()
    speed=(--layers 12 --width 768 --vocabulary 30522 --steps 120 --repeats 2)
    loss=(--sizes 64 512 1024 4096 16384 65536 --repeats 3)
    text=("${short[@]}")
    images=("${short[@]}")
fi

check environment 40 environment
check smoke 60 objectives text "${short[@]}" --only infonce
row step 120 tests/gpu/step.py --corpus "$corpus" "${step[@]}"
check equal 60 equal "${equal[@]}"
check equal-cls 60 equal "${equal[@]}" --preset paper
check killed-fp16 80 killed text "${killed[@]}" --preset paper --precision fp16
check dropout 30 dropout
check objectives-text 150 objectives text "${text[@]}"
row speed 150 tests/benchmarks/training_speed.py --corpus "$corpus" "${speed[@]}"
row loss 100 tests/benchmarks/loss_core.py "${loss[@]}"
check killed-text 80 killed text "${killed[@]}"
check killed-images 80 killed images "${killed[@]}"
check objectives-images 200 objectives images "${images[@]}"
exit $failed
