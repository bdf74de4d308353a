#!/usr/bin/env python3
"""Runs the notebooks of this folder: python3 notebooks/run.py [--write] [NAME...]

Exit 1 where a cell fails. --write keeps the outputs in the files. Needs nbclient, ipykernel and matplotlib,
and the module equipoise in this Python.
"""

import argparse
import os
import sys
import time
from pathlib import Path

import nbformat
from jupyter_client.kernelspec import KernelSpec, KernelSpecManager
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError

HERE = Path(__file__).resolve().parent
MOST_SECONDS = 300  # of a cell, on a busy machine


class ThisPython(KernelSpecManager):
    """The Python that runs this script, whatever kernels are installed."""

    def get_kernel_spec(self, kernel_name):
        return KernelSpec(
            argv=[sys.executable, "-m", "ipykernel_launcher", "-f", "{connection_file}"],
            display_name="Python 3",
            language="python",
        )


def run(path):
    notebook = nbformat.read(path, as_version=4)
    client = NotebookClient(notebook, timeout=MOST_SECONDS, resources={"metadata": {"path": str(HERE)}})
    client.create_kernel_manager()
    client.km.kernel_spec_manager = ThisPython()
    client.execute()
    return notebook


def without_times(notebook):
    """Without what a run leaves behind that says nothing: when cells ran, which Python, and its warnings."""
    for cell in notebook.cells:
        cell.metadata.pop("execution", None)
        if "outputs" in cell:  # warnings of this machine's libraries
            cell.outputs = [output for output in cell.outputs if output.get("name") != "stderr"]
    notebook.metadata["language_info"] = {"name": "python"}
    return notebook


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("names", nargs="*", help="all by default")
    parser.add_argument("--write", action="store_true", help="keep the outputs")
    args = parser.parse_args()
    paths = [HERE / f"{Path(name).stem}.ipynb" for name in args.names] or sorted(HERE.glob("*.ipynb"))
    os.environ.setdefault(
        "PYDEVD_DISABLE_FILE_VALIDATION", "1"
    )  # a warning of ipykernel's about every Python of today
    failed = 0
    for path in paths:
        begin = time.perf_counter()
        try:
            notebook = run(path)
        except CellExecutionError as error:
            print(f"{path.name}: {error}", file=sys.stderr)
            failed = 1
            continue
        print(f"{path.name}: {time.perf_counter() - begin:.0f} s")
        if args.write:
            nbformat.write(without_times(notebook), path)
    return failed


if __name__ == "__main__":
    sys.exit(main())
