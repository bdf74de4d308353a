#!/usr/bin/env python3
"""with_module.py [--needs A,B] SCRIPT...: runs a script in the Python that has the module `equipoise`, and
these next to it; exit 77 (skipped) where none has."""

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def candidates():
    if os.environ.get("EQUIPOISE_MODULE_PYTHON"):
        return [os.environ["EQUIPOISE_MODULE_PYTHON"]]
    return [str(ROOT / "build/venv/bin/python"), sys.executable]


def main():
    arguments, needs = sys.argv[1:], ["equipoise"]
    if arguments[0] == "--needs":
        needs += arguments[1].split(",")
        arguments = arguments[2:]
    for python in candidates():
        if not Path(python).exists():
            continue
        if subprocess.run([python, "-c", f"import {', '.join(needs)}"], capture_output=True).returncode == 0:
            os.execv(python, [python, *arguments])
    print(f"skipped: none of {', '.join(candidates())} has {', '.join(needs)} (pip install .)")
    return 77


sys.exit(main())
