"""The command `equipoise import`: prints the study of a job, and on stderr what was assumed and not understood."""

import argparse
import json
import os
import sys
import tempfile
from pathlib import Path
from typing import Any, Dict, Iterator, NoReturn, Tuple

# The file runs by its path, without a compiled module, and modules in its folder must not hide Python's own.
sys.path[:1] = []
sys.path.append(str(Path(__file__).resolve().parents[1]))
from importing import FORMATS, Imported, import_job  # noqa: E402


class _OneLineParser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        self.exit(2, f"error: {message} (--help shows the options)\n")


def _parser() -> argparse.ArgumentParser:
    """The words of `equipoise import`, whose help says what they mean."""
    parser = _OneLineParser(prog="equipoise import")
    parser.add_argument("file")
    parser.add_argument("--as", dest="framework", choices=sorted(FORMATS))
    parser.add_argument("--gpus", type=int)
    for name in ("gpu", "model", "out"):
        parser.add_argument(f"--{name}")
    parser.add_argument("--format", choices=("json", "table"), default="json")
    parser.add_argument("--quiet", action="store_true")
    return parser


def _keys(value: Any, prefix: str = "") -> Iterator[Tuple[str, Any]]:
    if isinstance(value, dict):
        for key, inner in value.items():
            yield from _keys(inner, f"{prefix}.{key}" if prefix else key)
    elif isinstance(value, list) and any(isinstance(one, dict) for one in value):
        for at, inner in enumerate(value):
            yield from _keys(inner, f"{prefix}.{at}")
    else:
        yield prefix, value


def _table(study: Dict[str, Any]) -> str:
    rows = [(key, value if isinstance(value, str) else json.dumps(value)) for key, value in _keys(study)]
    wide = max(len(key) for key, _ in rows)
    return "".join(f"{key:{wide}}  {value}\n" for key, value in rows)


def _write(path: str, text: str) -> None:
    """Writes the whole file or nothing of it."""
    made = None
    try:
        with tempfile.NamedTemporaryFile("w", dir=os.path.dirname(path) or ".", delete=False, encoding="utf-8") as file:
            made = file.name
            file.write(text)
        os.chmod(made, 0o644)
        os.replace(made, path)
    except OSError as error:
        if made is not None and os.path.exists(made):
            os.unlink(made)
        raise ValueError(f"--out {path}: cannot be written: {error.strerror}") from None


def _notes(job: Imported, quiet: bool) -> None:
    """Prints the notes. `quiet` drops only assumptions, because a setting that was not understood may change the
    study."""
    for line in str(job).splitlines():
        if not quiet or line.startswith("not understood: "):
            print(line, file=sys.stderr)


def main() -> int:
    options = _parser().parse_args()
    try:
        job = import_job(options.file, framework=options.framework, gpus=options.gpus, gpu=options.gpu, model=options.model)
        text = json.dumps(job.study, indent=1, ensure_ascii=False) + "\n" if options.format == "json" else _table(job.study)
        if options.out:
            if os.path.exists(options.out) and os.path.samefile(options.file, options.out):
                raise ValueError(f"--out {options.out}: expected another file than the one that is read, found the same")
            _write(options.out, text)
        else:
            sys.stdout.write(text)
            sys.stdout.flush()
    except ValueError as error:
        print("error:", " ".join(str(error).split())[:480], file=sys.stderr)
        return 2
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    _notes(job, options.quiet)
    return 0


sys.exit(main())
