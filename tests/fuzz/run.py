#!/usr/bin/env python3
"""Fuzzes readers by coverage: run.py build/fuzz [--seconds 30] [--readers a,b] [--keep].

The programs are those of the fuzz preset. Prints a line a reader: inputs tried, branches reached, findings. Seconds are the
processor's: a reader fuzzed next to other work has as many inputs. A finding ends its
reader, stays in BUILD/findings, and the status is 1; `EQUIPOISE_FUZZ=READER EQUIPOISE_FUZZ_FOLDER=/tmp EQUIPOISE_FUZZ_ARGS=FILE
PROGRAM` runs it again. --keep writes a sample of what reaches new branches to corpus/, at most 16 KB a reader."""
import argparse
import hashlib
import os
import pathlib
import re
import resource
import subprocess
import sys
import tempfile

CORPUS = pathlib.Path(__file__).resolve().parent / "corpus"
MOST_BYTES = 16 * 1024


def run(program, reader, folder, arguments, seconds):
    environment = dict(os.environ, EQUIPOISE_FUZZ=reader, EQUIPOISE_FUZZ_FOLDER=str(folder), EQUIPOISE_FUZZ_ARGS=" ".join(arguments))
    return subprocess.run([program], env=environment, text=True, errors="replace", capture_output=True, timeout=seconds, check=False)


def readers_of(build):
    """Program of each reader."""
    found = {}
    for program in sorted((build / "tests/fuzz").glob("test_fuzz_*")):
        if program.is_file():
            listed = run(program, "list", tempfile.gettempdir(), [], 300)
            names = re.findall(r"^reader: (.*)$", listed.stdout, re.M)
            if listed.returncode != 0 or not names:
                sys.exit(f"run.py: {program}: expected its readers, found exit status {listed.returncode} and {len(names)} of them")
            found.update({name: program for name in names})
    if not found:
        sys.exit(f"run.py: {build}: expected programs of the fuzz preset, found none")
    return found


def last_number(pattern, text):
    found = re.findall(pattern, text)
    return int(found[-1]) if found else 0


def fuzz(program, reader, corpus, arguments, seconds):
    """Rounds over one corpus until they took `seconds` of the processor, or until one finds something: (found, inputs, output)."""
    begin, inputs, said, left = resource.getrusage(resource.RUSAGE_CHILDREN), 0, "", seconds
    while left >= min(5, seconds):
        done = run(program, reader, corpus, [f"-max_total_time={int(left)}", *arguments], seconds + 600)
        said = done.stdout + done.stderr
        inputs += last_number(r"number_of_executed_units: ([0-9]+)", said)
        if done.returncode != 0:
            return True, inputs, said
        now = resource.getrusage(resource.RUSAGE_CHILDREN)
        left = seconds - (now.ru_utime + now.ru_stime - begin.ru_utime - begin.ru_stime)
    return False, inputs, said


def keep(program, reader, corpus, seconds):
    """Writes inputs, drawn by their hash, of those that together reach what the corpus reaches."""
    smaller = corpus.parent / "merged"
    smaller.mkdir()
    merged = run(program, reader, corpus, ["-merge=1", str(smaller)], seconds + 600)
    if merged.returncode != 0 or not any(smaller.iterdir()):
        sys.exit(f"run.py: {reader}: its corpus could not be merged (exit status {merged.returncode}); it stays as it was")
    packed = b""
    for content in sorted((file.read_bytes() for file in smaller.iterdir()), key=lambda content: hashlib.sha256(content).digest()):
        entry = b"%d\n%s" % (len(content), content)
        if len(packed) + len(entry) <= MOST_BYTES:
            packed += entry
    CORPUS.mkdir(exist_ok=True)
    (CORPUS / reader).write_bytes(packed)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("build", type=pathlib.Path)
    parser.add_argument("--seconds", type=int, default=30, help="of the processor, a reader")
    parser.add_argument("--readers", help="comma-separated; all by default")
    parser.add_argument("--keep", action="store_true")
    options = parser.parse_args()
    programs = readers_of(options.build.resolve())
    wanted = options.readers.split(",") if options.readers else sorted(programs)
    if unknown := sorted(set(wanted) - set(programs)):
        sys.exit(f"run.py: unknown readers {', '.join(unknown)} (known: {', '.join(sorted(programs))})")
    findings = options.build.resolve() / "findings"
    findings.mkdir(exist_ok=True)
    failed = False
    for reader in wanted:
        with tempfile.TemporaryDirectory() as scratch:
            corpus = pathlib.Path(scratch, "corpus")
            corpus.mkdir()
            found, inputs, said = fuzz(programs[reader], reader, corpus, [
                "-timeout=100", "-rss_limit_mb=4096", "-print_final_stats=1", f"-artifact_prefix={findings}/{reader}-"], options.seconds)
            print(f"{reader}: {inputs:,} inputs, {last_number(r'cov: ([0-9]+)', said):,} branches, {len(list(corpus.iterdir())):,} kept, "
                  f"{'FOUND' if found else 'nothing found'}", flush=True)
            if found:
                failed = True
                print("\n".join(said.splitlines()[-40:]), flush=True)
            elif options.keep:
                keep(programs[reader], reader, corpus, options.seconds)
    return 1 if failed else 0


sys.exit(main())
