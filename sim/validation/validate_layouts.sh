#!/usr/bin/env bash
# Runs and simulates the small study on two ranks, each kind of parallelism alone, and writes a report of each:
#   sim/validation/validate_layouts.sh OUT [options of `equipoise validate`]
# On an idle machine with two cores: about a quarter of an hour. Exit 1 where a limit is broken.
set -euo pipefail
cd "$(dirname "$0")/../.."
out=${1:?expected a folder for the reports}
shift
status=0
for axis in pipeline context tensor data; do
  build/release/bin/equipoise validate traces/studies/execute-small.json --out "$out/$axis" --set parallel.pipeline=1 \
    --set "parallel.$axis=2" "$@" || status=1
done
exit $status
