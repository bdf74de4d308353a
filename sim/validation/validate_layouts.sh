#!/usr/bin/env bash
# Runs and simulates the small study on two ranks, each kind of parallelism alone, and writes a report of each:
#   sim/validation/validate_layouts.sh OUT [options of `equipoise validate`]
# The first run measures a profile where the shipped one is of another CPU; the others take it, too. On an idle machine
# with two cores: 20 to 40 minutes with `--set model.layers=2`, else twice as long. Exit 1 where a limit is broken.
set -euo pipefail
cd "$(dirname "$0")/../.."
out=${1:?expected a folder for the reports}
shift
status=0
for axis in pipeline context tensor data; do
  own=()
  [ -f "$out/pipeline/profile.json" ] && own=(--set "cluster.profile=$out/pipeline/profile.json")
  build/release/bin/equipoise validate traces/studies/execute-small.json --out "$out/$axis" --set parallel.pipeline=1 \
    --set "parallel.$axis=2" "${own[@]}" "$@" || status=1
done
exit $status
