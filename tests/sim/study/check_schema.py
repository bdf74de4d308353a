"""Every shipped study satisfies the JSON Schema of `equipoise list schema`, and it refuses what the reader refuses.

Exits 77 (skipped) where python3-jsonschema is missing.
"""

import copy
import json
import os
import pathlib
import subprocess
import sys

try:
    import jsonschema
except ImportError:
    print("skipped: python3-jsonschema is not installed")
    sys.exit(77)

ROOT = pathlib.Path(__file__).resolve().parents[3]
schema = json.loads(subprocess.run([os.environ["EQUIPOISE"], "list", "schema"], check=True, capture_output=True).stdout)
jsonschema.Draft7Validator.check_schema(schema)
validator = jsonschema.Draft7Validator(schema)
assert schema["properties"]["framework"]["anyOf"][1]["properties"]["expert_imbalance"]["minimum"].__class__ is int

studies = sorted((ROOT / "traces/studies").glob("*.json"))
assert len(studies) >= 2, studies
for path in studies:
    problems = [error.message for error in validator.iter_errors(json.loads(path.read_text()))]
    assert not problems, (path, problems)

good = json.loads(studies[0].read_text())
BAD = [
    (("unknown",), 1),
    (("batch", "step"), 5),
    (("framework",), {"exchange_sms": "8K"}),  # a count, no size
    (("batch", "steps"), 0),
    (("batch", "loader"), "keep"),
    (("parallel", "tensor"), 1.5),
    (("parallel", "recompute"), "some"),
    (("trace", "uniform"), 4096),  # together with a file
    (("policies",), []),
    (("policies",), [{"shard": "adaptive"}]),  # no name
    (("precision",), "fp4"),
]
for path, value in BAD:
    study = copy.deepcopy(good)
    node = study
    for key in path[:-1]:
        node = node.setdefault(key, {})
    node[path[-1]] = value
    assert not validator.is_valid(study), (path, value)
print(f"{len(studies)} studies satisfy the schema, {len(BAD)} bad ones do not")
