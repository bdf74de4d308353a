#!/usr/bin/env bash
# Everything that a Hopper GPU is needed for, in one call of under ten minutes: checks every kernel against its float64
# reference, measures the full profile, fits it, compares the achieved rates with published ones and executes a plan.
#
#   profiler/gpu_check.sh OUT_DIR [--device cuda|cpu] [--minutes N] [--trace FILE] [--build DIR] [--resume DIR]
#
# DIR of --build holds bin/equipoise and lib/libequipoise_cuda.so; without it build/portable is taken, and built if it
# is not there. --minutes is the time for measuring (7), to which some 10 s a part are added. --resume goes on where
# the run that wrote DIR stopped. --device cpu runs the same steps on the CPU: that is how this script is tested.
#
# A kernel that is wrong, a shape that no library takes or a crash costs its own points, not the run. OUT_DIR gets
#   report.txt   checks, fit, rates, plan  log.txt   progress and everything that was skipped, with the reason
#   machine.txt  GPU, driver, libraries      samples.json, .journal, .failed   DEVICE-measured.json, the profile
# Exit status: 0 all passed, 1 a check failed or a part crashed (what was measured is there), 2 wrong use or no device.
set -uo pipefail

usage() { sed -n '2,14p' "$0" | sed 's/^# \{0,1\}//' >&2; exit 2; }
[[ $# -ge 1 && $1 != -* ]] || usage
out=$1; shift
device=cuda minutes=7 trace="" build="" resume=""
while [[ $# -gt 0 ]]; do
  [[ $# -ge 2 ]] || usage
  case $1 in
    --device) device=$2 ;;
    --minutes) minutes=$2 ;;
    --trace) trace=$2 ;;
    --build) build=$2 ;;
    --resume) resume=$2 ;;
    *) usage ;;
  esac
  shift 2
done
root=$(cd "$(dirname "$0")/.." && pwd)
mkdir -p "$out" || exit 2
out=$(cd "$out" && pwd)
log=$out/log.txt report=$out/report.txt samples=$out/samples.json
: > "$log"; : > "$report"
export PYTHONUNBUFFERED=1 EQUIPOISE_PROFILES=$root/profiler/profiles

if [[ -z $build ]]; then
  build=$root/build/portable
  if [[ ! -x $build/bin/equipoise ]]; then
    targets=(equipoise); [[ $device == cuda ]] && targets+=(equipoise_cuda)
    { (cd "$root" && cmake --preset portable) && cmake --build "$build" --target "${targets[@]}"; } >> "$log" 2>&1 \
      || { tail -20 "$log" >&2; exit 2; }
  fi
fi
program=$build/bin/equipoise
[[ -x $program ]] || { echo "$program: not there; --build names the folder of bin/ and lib/" >&2; exit 2; }

# --- CUDA's libraries: a toolkit's folder, or Python's wheels of them (nvidia/*/lib), and the driver's.
add_path() { [[ -d $1 && :${LD_LIBRARY_PATH:-}: != *:$1:* ]] && LD_LIBRARY_PATH=${LD_LIBRARY_PATH:+$LD_LIBRARY_PATH:}$1; }
missing() { ldd "$build/lib/libequipoise_cuda.so" 2> /dev/null | awk '/not found/ {print $1}' | sort -u; }
if [[ $device == cuda ]]; then
  wheels=$(python3 -c 'import glob, sys
for folder in sys.path:
    for lib in sorted(glob.glob(folder + "/nvidia/*/lib")): print(lib)' 2> /dev/null)
  for folder in $wheels /usr/local/cuda/lib64 /usr/local/cuda/lib /usr/local/nvidia/lib64 /usr/local/nvidia/lib; do
    add_path "$folder"
  done
  export LD_LIBRARY_PATH=${LD_LIBRARY_PATH:-}
  for name in $(missing); do
    found=$(timeout 20 find / -xdev -name "$name" -print -quit 2> /dev/null)
    [[ -n $found ]] && add_path "$(dirname "$found")"
  done
fi

{
  date -u +%Y-%m-%dT%H:%M:%SZ
  uname -srm
  grep -m1 'model name' /proc/cpuinfo
  git -C "$root" rev-parse HEAD 2> /dev/null
  if [[ $device == cuda ]]; then
    nvidia-smi 2>&1
    nvidia-smi -q -d CLOCK,POWER,PERFORMANCE 2>&1 | head -80
    ldd "$build/lib/libequipoise_cuda.so" 2>&1
    ldconfig -p | grep -E 'libcuda\.so|libnvidia-ml' 2>&1
  fi
  ldd "$program"
} > "$out/machine.txt" 2>&1
if [[ $device == cuda && -n $(missing) ]]; then
  echo "these libraries are not on this machine: $(missing | tr '\n' ' ')" >&2; exit 2
fi

if [[ -n $resume && $(cd "$resume" && pwd) != "$out" ]]; then
  cp "$resume"/samples.json* "$out"/ || exit 2
fi

# --- Checks and measurements, a family at a time and each in a process of its own: what a crash takes with it is one
# process, and the next one goes round the point that did it.
status=0
started=$SECONDS
deadline=$(awk -v m="$minutes" -v now="$started" 'BEGIN {print int(now + 60 * m) + 110}')  # checks and starts included
go_on=$([[ -n $resume ]] && echo --resume)
measure() {  # families, share of the minutes
  local for_this tries=0 result left
  for_this=$(awk -v m="$minutes" -v s="$2" 'BEGIN {print m * s}')
  local begun=$SECONDS
  while true; do
    left=$(awk -v m="$for_this" -v gone="$((SECONDS - begun))" 'BEGIN {left = m - gone / 60; if (left < 0.02) left = 0.02; print left}')
    local arguments=(profile --device "$device" --only "$1" --minutes "$left" --out "$samples")
    [[ -n $go_on ]] && arguments+=(--resume)
    [[ -n $trace ]] && arguments+=(--lengths "$trace")
    echo "== $1, $left minutes" >> "$log"
    local most
    most=$(awk -v m="$left" 'BEGIN {print int(60 * m) + 45}')
    [[ $most -gt $((deadline - SECONDS)) ]] && most=$((deadline - SECONDS))
    [[ $most -lt 5 ]] && { echo "no time left for $1" | tee -a "$report"; status=1; return; }
    timeout -s INT -k 15 "$most" "$program" "${arguments[@]}" > "$out/part.txt" 2>> "$log"
    result=$?
    go_on=--resume
    { echo "$1:"; cat "$out/part.txt"; } >> "$report"; cat "$out/part.txt"; rm -f "$out/part.txt"
    [[ $result -eq 0 ]] && return
    [[ $result -eq 2 ]] && { tail -1 "$log" >&2; exit 2; }
    status=1
    # Some cuDNN version might not let two pieces of one call share keys: then they get calls of their own.
    if [[ $result -eq 1 && $1 == *attention* && $device == cuda && -z ${EQUIPOISE_SPLIT_SHARED_KEYS:-} ]]; then
      export EQUIPOISE_SPLIT_SHARED_KEYS=1
      echo "again with a call for each piece that shares keys (EQUIPOISE_SPLIT_SHARED_KEYS=1)" | tee -a "$report"
      continue
    fi
    [[ $result -eq 1 ]] && return
    tries=$((tries + 1))
    echo "the $1 part ended with status $result after $((SECONDS - begun)) s: $(tail -1 "$log")" | tee -a "$report"
    [[ $tries -ge 4 || $((SECONDS - begun)) -ge $(awk -v m="$for_this" 'BEGIN {print int(60 * m) - 10}') ]] && return
  done
}
echo "1/4 checks and measurements, $minutes minutes"
measure launch,copy,elementwise 0.18
measure gemm 0.30
measure attention 0.52
echo "measured for $((SECONDS - started)) s" | tee -a "$report"

echo "2/4 fit"
timeout 60 "$program" fit --samples "$samples" --out "$out/$device-measured.json" 2>> "$log" | tee -a "$report"
[[ ${PIPESTATUS[0]} -eq 0 ]] || { status=1; tail -1 "$log" | tee -a "$report"; }

echo "3/4 achieved and published rates"
python3 "$root/profiler/measure/rates.py" "$samples" 2>&1 | tee -a "$report" || status=1
if [[ -s $samples.failed ]]; then
  echo "$(wc -l < "$samples.failed") points could not be measured, the first of them:" | tee -a "$report"
  head -5 "$samples.failed" | cut -c 1-300 | tee -a "$report"
fi
echo "4/4 a plan, executed on two ranks in turn"
timeout 90 "$program" execute "$root/traces/studies/execute-small.json" --device "$device" --replay --steps 1 --repetitions 0 \
  --policy wlb --set batch.context_window=512 2>> "$log" | sed -n '3,4p' | tee -a "$report"
[[ ${PIPESTATUS[0]} -eq 0 ]] || { status=1; tail -1 "$log" | tee -a "$report"; }
grep -h "check failed\|wrong results" "$log" | head -20 | tee -a "$report"
rm -f "$samples.trying"
echo "everything is in $out; status $status" | tee -a "$report"
exit $status
