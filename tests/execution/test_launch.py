#!/usr/bin/env python3
"""Kills, stops and starves random ranks at random times, under our own launch and under a plain mpirun.

However a run ends: within 30 s, with one line that names the rank, and with no process and no file left. The program
is in RANK_PROGRAM. `--rounds N` repeats the random cases, `--seed S` repeats a run. Exit status 77 (skipped) where
mpirun is missing."""
import argparse
import concurrent.futures
import contextlib
import os
import pathlib
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
import uuid

PROGRAM = os.environ.get("RANK_PROGRAM", "")
LIMIT_S = 30
RANKS = 4
SHARED_MEMORY = pathlib.Path("/dev/shm")
MPIRUNS_WORDS = ("-" * 74, "mpirun noticed", "mpirun detected", "MPI_ABORT was invoked", "ORTE_ERROR_LOG")


def read_process(pid, name):
    try:
        return pathlib.Path(f"/proc/{pid}/{name}").read_bytes().decode(errors="replace").split("\0")
    except OSError:
        return []


def parent_of(pid):
    return int(read_process(pid, "stat")[0].rsplit(")", 1)[1].split()[1])


def is_empty_folder(path):
    return path.is_dir() and not any(path.iterdir())


class Job:
    """A run of the program in a folder for temporary files of its own."""

    def __init__(self, launch, mode, prepare=None):
        self.own_launch = launch == "own"
        self.token = "token-" + uuid.uuid4().hex
        self.scratch = tempfile.mkdtemp(prefix="launch.")
        self.before = set(SHARED_MEMORY.iterdir())  # a killed run's may have our process number in its name
        words = ["rank", *mode, self.token]
        command = [PROGRAM, "launch", str(RANKS), *words[1:]] if self.own_launch else [
            "mpirun", "-np", str(RANKS), "--oversubscribe", PROGRAM, *words]
        # Open MPI leaks, and takes locks in two orders; a signal of ours should reach the rank itself.
        environment = {**os.environ, "TMPDIR": self.scratch, "ASAN_OPTIONS": "detect_leaks=0:handle_sigbus=0",
                       "TSAN_OPTIONS": "detect_deadlocks=0:handle_sigbus=0"}
        if not self.own_launch:
            environment |= {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
                            "OMPI_MCA_mpi_yield_when_idle": "1", "OMP_NUM_THREADS": "1"}
        self.output, self.errors, self.is_ready, self.names = [], [], threading.Event(), set()
        self.process = subprocess.Popen(command, env=environment, stdin=subprocess.DEVNULL, text=True,
                                        stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True,
                                        preexec_fn=prepare)
        self.readers = [threading.Thread(target=self.read, args=pair) for pair in
                        ((self.process.stdout, self.output), (self.process.stderr, self.errors))]
        for reader in self.readers:
            reader.start()

    def read(self, stream, lines):
        for line in stream:
            lines.append(line.rstrip("\n"))
            if line == "ready\n":
                self.is_ready.set()

    def processes(self):
        return [int(p.name) for p in pathlib.Path("/proc").iterdir()
                if p.name.isdigit() and self.token in read_process(p.name, "cmdline")]

    def rank_pids(self):
        """By rank; also learns what files of the job in shared memory are called."""
        pids = {}
        for pid in self.processes():
            variables = dict(v.split("=", 1) for v in read_process(pid, "environ") if "=" in v)
            if "OMPI_COMM_WORLD_RANK" in variables:
                pids[int(variables["OMPI_COMM_WORLD_RANK"])] = pid
                self.names.add(f".{int(variables['PMIX_NAMESPACE']):x}.")
        return pids

    def wait_for_ranks(self, ready=True):
        if ready and not self.is_ready.wait(LIMIT_S):
            raise AssertionError("the ranks do not start: " + "\n".join(self.errors))
        until = time.monotonic() + LIMIT_S
        while len(self.rank_pids()) < RANKS and time.monotonic() < until:
            time.sleep(0.05)
        return self.rank_pids()

    def end(self, stopped=()):
        """Exit status, and seconds from now; None after the limit. Stops processes again that somebody continued.

        A look counts as a second at most: the machine itself may be stopped for a while."""
        seconds, looked = 0.0, time.monotonic()
        while self.process.poll() is None and seconds < LIMIT_S:
            for pid in stopped:
                if self.token in read_process(pid, "cmdline"):
                    os.kill(pid, signal.SIGSTOP)
            time.sleep(0.1)
            now = time.monotonic()
            seconds, looked = seconds + min(now - looked, 1), now
        status = self.process.poll()
        left = self.left_over()
        self.clean_up()
        for reader in self.readers:
            reader.join()
        self.process.stdout.close()
        self.process.stderr.close()
        shutil.rmtree(self.scratch, ignore_errors=True)
        assert status is not None, f"still there after {LIMIT_S} s\n" + self.text()
        assert not left, f"left behind: {left}\n" + self.text()
        return status, seconds

    def clean_up(self):
        for pid in self.processes():
            with contextlib.suppress(ProcessLookupError):  # it has just ended by itself
                os.kill(pid, signal.SIGKILL)
        for path in SHARED_MEMORY.iterdir():
            if any(name in path.name for name in self.names):
                shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)

    def left_over(self):
        """What is still there three seconds after the end."""
        self.names.add(f"equipoise.{self.process.pid}.")
        until = time.monotonic() + 3
        while True:
            left = [f"process {pid}" for pid in self.processes()]
            left += [str(p) for p in pathlib.Path(self.scratch).rglob("*")
                     if self.own_launch or not is_empty_folder(p)]  # a plain mpirun may leave one
            left += [str(p) for p in set(SHARED_MEMORY.iterdir()) - self.before if any(name in p.name for name in self.names)]
            if not left or time.monotonic() > until:
                return left
            time.sleep(0.1)

    def text(self):
        return "\n".join(["stdout:", *self.output, "stderr:", *self.errors])

    def shows_mpirun(self):
        return any(words in line for line in self.errors for words in MPIRUNS_WORDS)

    def is_silent(self):
        """Libraries of a rank may say what they like; neither we nor mpirun do."""
        return not self.shows_mpirun() and not any(line.startswith("error: ") for line in self.errors)

    def verdict(self):
        """The one line on stderr that says why the run ended. Our own launch says it last, and shows nothing of
        what mpirun says in addition; what libraries of a rank say may come before it."""
        lines = [line for line in self.errors if line.startswith("error: ")]
        assert len(lines) == 1, self.text()
        if self.own_launch:
            assert self.errors[-1] == lines[0], self.text()
            assert not self.shows_mpirun(), self.text()
        return lines[0]

    def assert_named(self, rank, what, pid=None):
        name, line = f"error: rank {rank} (pid {pid or ''}", self.verdict()
        assert line.startswith(name) and what in line, (name, what, self.text())


def check_status(job, status, expected=3):
    # A plain mpirun gives its own status for a rank that a signal ended.
    assert status == expected if job.own_launch else status != 0, (status, job.text())


def kill_a_rank(launch, chance):
    job = Job(launch, ["loop"])
    pids = job.wait_for_ranks()
    rank = chance.randrange(RANKS)
    time.sleep(chance.random() * 2)
    which = chance.choice([signal.SIGKILL, signal.SIGBUS])
    os.kill(pids[rank], which)
    status, _ = job.end()
    check_status(job, status)
    job.assert_named(rank, "died, in ", pids[rank])
    line = job.verdict()
    assert " of wlb" in line and " of step " in line, job.text()
    if job.own_launch:
        assert f"signal {int(which)} (" in line, job.text()
        assert which != signal.SIGKILL or "out of memory?" in line, job.text()


def stop_a_rank(launch, chance):
    job = Job(launch, ["loop"])
    pids = job.wait_for_ranks()
    rank = chance.randrange(RANKS)
    time.sleep(chance.random() * 2)
    status, seconds = job.end(stopped=[pids[rank]])
    check_status(job, status)
    assert seconds > 9, (seconds, job.text())  # not sooner: a machine may be slow
    job.assert_named(rank, "was stopped: no sign of life for 1", pids[rank])


def stop_a_rank_that_starts(launch, chance):
    job = Job(launch, ["late"])
    pids = job.wait_for_ranks(ready=False)
    rank = chance.randrange(RANKS)
    time.sleep(chance.random())
    status, _ = job.end(stopped=[pids[rank]])
    check_status(job, status)
    job.assert_named(rank, "was stopped", pids[rank])


def kill_a_rank_that_starts(launch, chance):
    job = Job(launch, ["late"])
    pids = job.wait_for_ranks(ready=False)
    rank = chance.randrange(RANKS)
    time.sleep(chance.random())
    os.kill(pids[rank], signal.SIGKILL)
    status, _ = job.end()
    check_status(job, status)
    died = f"error: rank {rank} died"  # only mpirun, its parent, is sure to learn the signal, and it may miss this end
    assert job.verdict() in (died, died + ": signal 9 (Killed): out of memory?"), job.text()


def stop_all_ranks(launch, chance):
    job = Job(launch, ["loop"])
    pids = job.wait_for_ranks()
    status, _ = job.end(stopped=chance.sample(list(pids.values()), RANKS))
    check_status(job, status)
    assert "was stopped" in job.verdict(), job.text()


def starve_a_rank(launch, chance):
    rank = chance.randrange(RANKS)
    job = Job(launch, ["memory", str(rank)])
    status, _ = job.end()
    check_status(job, status)
    job.assert_named(rank, "ran out of memory, in attention of step 50 of wlb")


def hang_a_rank(launch, chance):
    rank = chance.randrange(RANKS)
    job = Job(launch, ["hang", str(rank)])
    status, _ = job.end()
    check_status(job, status)
    job.assert_named(rank, "hangs: the others wait")


def hang_unwatched(launch, chance):
    """Where a rank has no watchdog yet, or no more."""
    for mode, where in (("hang-first", "before MPI starts"), ("hang-before", "while MPI starts"), ("hang-after", "after its work"),
                        ("hang-last", "at its exit")):
        rank = chance.randrange(RANKS)
        job = Job(launch, [mode, str(rank)])
        pids = job.wait_for_ranks(ready=False)
        status, _ = job.end()
        check_status(job, status)
        job.assert_named(rank, "hangs " + where, pids[rank])


def kill_mpirun(launch, chance):
    job = Job(launch, ["loop"])
    pids = job.wait_for_ranks()
    mpirun = parent_of(pids[0])
    time.sleep(chance.random())
    os.kill(mpirun, signal.SIGKILL)
    status, _ = job.end()
    check_status(job, status)
    assert "mpirun died" in job.verdict(), job.text()


def stop_mpirun(launch, chance):
    job = Job(launch, ["loop"])
    pids = job.wait_for_ranks()
    time.sleep(chance.random())
    status, _ = job.end(stopped=[parent_of(pids[0])])
    check_status(job, status)
    assert "mpirun (pid" in job.verdict() and "was stopped" in job.verdict(), job.text()


def kill_the_supervisor(launch, chance):
    job = Job(launch, ["loop"])
    job.wait_for_ranks()
    supervisor = next(pid for pid in job.processes() if parent_of(pid) == job.process.pid)
    time.sleep(chance.random())
    os.kill(supervisor, signal.SIGKILL)
    status, _ = job.end()
    check_status(job, status)
    assert "the supervisor of the ranks died" in job.verdict(), job.text()


def kill_the_caller(launch, chance):
    job = Job(launch, ["loop"])
    job.wait_for_ranks()
    time.sleep(chance.random())
    job.process.kill()
    job.process.wait()
    time.sleep(2)  # its supervisor cleans up
    job.end()


def interrupt(launch, chance):
    job = Job(launch, ["loop"])
    job.wait_for_ranks()
    time.sleep(chance.random())
    which = chance.choice([signal.SIGINT, signal.SIGTERM])
    job.process.send_signal(which)
    status, seconds = job.end()
    assert status == 128 + which and seconds < 10, (status, seconds, job.text())
    assert job.is_silent(), job.text()


def hang_up_under_nohup(launch, _):
    job = Job(launch, ["loop"], prepare=lambda: signal.signal(signal.SIGHUP, signal.SIG_IGN))
    job.wait_for_ranks()
    job.process.send_signal(signal.SIGHUP)
    time.sleep(2)
    assert job.process.poll() is None, job.text()
    job.process.send_signal(signal.SIGTERM)
    status, _ = job.end()
    assert status == 128 + signal.SIGTERM, (status, job.text())


def end_in_order(launch, _):
    for status in (0, 1, 2):
        job = Job(launch, [f"exit{status}"])
        found, _ = job.end()
        assert found == status and job.output == ["ready", "done"], (found, job.text())
        assert not job.own_launch or job.is_silent(), job.text()


def one_rank_ends(launch, chance):
    job = Job(launch, ["user-error", str(chance.randrange(RANKS))])
    status, _ = job.end()
    assert status == 2 and "error: only this rank knows" in job.errors, (status, job.text())
    assert not job.own_launch or job.verdict() == "error: only this rank knows", job.text()


def without_mpirun():
    done = subprocess.run([PROGRAM, "launch", "2", "loop", "token"], env={**os.environ, "PATH": "/nonexistent"},
                          capture_output=True, text=True, timeout=LIMIT_S, check=False)
    assert done.returncode == 2 and "openmpi-bin" in done.stderr and "--replay" in done.stderr, done


def mpirun_misses_an_end(launch, chance, and_then=""):
    """As Open MPI's has been seen to do, about once in hundreds of ranks that were killed while they started."""
    with tempfile.TemporaryDirectory(prefix="launch.") as folder:
        mpirun = pathlib.Path(folder) / "mpirun.openmpi"
        mpirun.write_text("#!/usr/bin/env python3\n"
                          "import os, subprocess, time\n"
                          "ranks = [subprocess.Popen(['sleep', '1000'], env={**os.environ, 'OMPI_COMM_WORLD_RANK': str(r)}) for r in range(3)]\n"
                          f"time.sleep(2)\nranks[1].kill()\n{and_then}time.sleep(1000)\n")
        mpirun.chmod(0o755)
        done = subprocess.run([PROGRAM, "launch", "3", "loop", "token"], env={**os.environ, "PATH": folder + ":" + os.environ["PATH"]},
                              capture_output=True, text=True, timeout=LIMIT_S, check=False)
        assert done.returncode == 3 and done.stderr == "error: rank 1 died: signal 9 (Killed): out of memory?\n", done


def mpirun_takes_an_end_for_nothing(launch, chance):
    """What ended the rank is to be seen for some seconds, and then no more; the others are ended, too."""
    mpirun_misses_an_end(launch, chance, "time.sleep(3)\nfor rank in ranks:\n  rank.terminate()\n  rank.wait()\n")


def mpirun_hangs_after_the_end(launch, chance):
    """Its ranks have ended."""
    with tempfile.TemporaryDirectory(prefix="launch.") as folder:
        mpirun = pathlib.Path(folder) / "mpirun.openmpi"
        mpirun.write_text("#!/usr/bin/env python3\nimport os, subprocess, time\n"
                          "for rank in ('0', '1'):\n"
                          "  open(os.environ['EQUIPOISE_FAULT_FILE'] + '.stage.' + rank, 'w').write('6')\n"
                          "  subprocess.run(['sleep', '0.5'], env={**os.environ, 'OMPI_COMM_WORLD_RANK': rank})\n"
                          "time.sleep(1000)\n")
        mpirun.chmod(0o755)
        done = subprocess.run([PROGRAM, "launch", "2", "loop", "token"], env={**os.environ, "PATH": folder + ":" + os.environ["PATH"]},
                              capture_output=True, text=True, timeout=LIMIT_S, check=False)
        assert done.returncode == 3 and "hangs after the end of all ranks" in done.stderr and done.stderr.count("\n") == 1, done


def an_mpirun(script):
    """What is said, and how soon, where mpirun is that script."""
    with tempfile.TemporaryDirectory(prefix="launch.") as folder:
        mpirun = pathlib.Path(folder) / "mpirun.openmpi"
        mpirun.write_text("#!/bin/sh\n" + script)
        mpirun.chmod(0o755)
        begin = time.monotonic()
        done = subprocess.run([PROGRAM, "launch", "3", "loop", "token"], env={**os.environ, "PATH": folder + ":" + os.environ["PATH"]},
                              capture_output=True, text=True, timeout=LIMIT_S, check=False)
        assert done.returncode == 3 and done.stdout == "", done
        return done.stderr, time.monotonic() - begin


def mpirun_starts_nobody(launch, chance):
    for status in (0, 1, 2):
        said, _ = an_mpirun(f"exit {status}\n")
        assert said == f"error: mpirun ended with status {status}, and no rank had run to its end\n", said
    said, _ = an_mpirun("printf '\\033[31mno slots' >&2; exit 1\n")
    assert said.startswith("\\x1b[31mno slots") and "the ranks could not be run" in said, said


def mpirun_hangs(launch, chance):
    said, seconds = an_mpirun("exec sleep 1000\n")
    assert "has started no rank" in said and said.count("\n") == 1 and seconds < 28, (said, seconds)


EITHER = [kill_a_rank, stop_a_rank, starve_a_rank, hang_a_rank]
ALWAYS = [("own", case) for case in
          (stop_all_ranks, kill_a_rank_that_starts, stop_a_rank_that_starts, kill_mpirun, stop_mpirun,
           mpirun_misses_an_end, mpirun_takes_an_end_for_nothing, mpirun_starts_nobody, mpirun_hangs,
           mpirun_hangs_after_the_end, hang_unwatched, kill_the_supervisor, kill_the_caller, interrupt,
           hang_up_under_nohup, one_rank_ends, end_in_order)]
ALWAYS += [("plain", end_in_order), ("plain", one_rank_ends)]


def run_case(launch, case, seed):
    try:
        case(launch, random.Random(seed))
        return None
    except (AssertionError, OSError, KeyError) as error:
        return f"{case.__name__}, {launch} launch, seed {seed}: {type(error).__name__} {error}"


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--seed", type=int, default=random.randrange(10**6))
    parser.add_argument("--case", help="only this one")
    options = parser.parse_args()
    if shutil.which("mpirun") is None:
        print("mpirun is missing")
        return 77
    without_mpirun()
    cases = [(launch, case) for launch in ("own", "plain") for case in EITHER] * options.rounds + ALWAYS
    cases = [(launch, case) for launch, case in cases if options.case in (None, case.__name__)]
    print(f"{len(cases)} cases, --seed {options.seed}")
    with concurrent.futures.ThreadPoolExecutor(4) as pool:  # most of them wait
        runs = [pool.submit(run_case, launch, case, options.seed + i) for i, (launch, case) in enumerate(cases)]
        faults = [run.result() for run in runs if run.result()]
    print("\n".join(faults) or "all well")
    return 1 if faults else 0


sys.exit(main())
