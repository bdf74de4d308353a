#!/usr/bin/env bash
# Everything that a Hopper GPU is needed for, in under ten minutes: builds, checks every kernel against its float64
# reference, measures the full profile, fits it, and writes all of it under one folder.
#
#   profiler/gpu_check.sh OUT_DIR [--device cuda|cpu] [--minutes N] [--trace FILE] [--build DIR]
#
# --device cpu runs the same steps on the CPU backend: that is how the script is tested where there is no GPU.
# Exit status: 0 all passed, 1 a check failed, 2 wrong use or no device.
set -euo pipefail

usage() { sed -n '2,9p' "$0" | sed 's/^# \{0,1\}//' >&2; exit 2; }
[[ $# -ge 1 && $1 != -* ]] || usage
out=$1; shift
device=cuda minutes=7 trace="" build=""
while [[ $# -gt 0 ]]; do
  [[ $# -ge 2 ]] || usage
  case $1 in
    --device) device=$2 ;;
    --minutes) minutes=$2 ;;
    --trace) trace=$2 ;;
    --build) build=$2 ;;
    *) usage ;;
  esac
  shift 2
done
root=$(cd "$(dirname "$0")/.." && pwd)
mkdir -p "$out"
out=$(cd "$out" && pwd)

if [[ -z $build ]]; then
  build=$root/build/release
  (cd "$root" && cmake --preset release -DEQUIPOISE_BENCHMARKS=OFF) > "$out/build.log" 2>&1
  targets=(equipoise test_kernels)
  if [[ $device == cuda ]]; then targets+=(equipoise_cuda test_cuda_backend); fi
  cmake --build "$build" --target "${targets[@]}" >> "$out/build.log" 2>&1 || { tail -20 "$out/build.log" >&2; exit 1; }
fi
program=$build/bin/equipoise

{
  date -u +%Y-%m-%dT%H:%M:%SZ
  uname -srm
  git -C "$root" rev-parse HEAD 2> /dev/null || true
  command -v nvidia-smi > /dev/null && nvidia-smi || true
} > "$out/machine.txt" 2>&1

echo "1/4 kernel checks"
status=0
if [[ $device == cuda ]]; then
  "$build/tests/kernels/test_cuda_backend" > "$out/checks.txt" 2>&1 || status=1
else
  "$build/tests/kernels/test_kernels" > "$out/checks.txt" 2>&1 || status=1
fi
tail -4 "$out/checks.txt"

echo "2/4 profile, $minutes minutes"
arguments=(profile --device "$device" --minutes "$minutes" --out "$out/samples.json")
if [[ -n $trace ]]; then arguments+=(--lengths "$trace"); fi
"$program" "${arguments[@]}" 2> "$out/profile.log" | tee "$out/profile.txt" || { tail -3 "$out/profile.log" >&2; exit 2; }

echo "3/4 fit"
"$program" fit --samples "$out/samples.json" --out "$out/$device-measured.json" | tee "$out/fit.txt"

echo "4/4 achieved rates beside published ones"
python3 "$root/profiler/measure/rates.py" "$out/samples.json" | tee "$out/rates.txt"
echo "everything is in $out"
exit $status
