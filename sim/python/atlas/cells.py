"""Cells of the atlas: one job on one trace, with every policy at its best."""

from dataclasses import dataclass

from papers.runner import seconds_per_token

from .settings import rows

INTERLEAVED = "parallel.virtual_pipeline"


@dataclass(frozen=True)
class Best:
    """A policy's fastest row."""

    label: str
    seconds: float  # per token
    metrics: dict


@dataclass(frozen=True)
class Cell:
    job: str
    trace: str
    best: dict  # by policy that runs: Best
    reasons: dict  # by policy that does not run: why
    bound: float = 0  # lower bound on seconds per token for any plan of these documents; 0 if unknown

    def speedup(self, policy):
        """The speed over plain, each at its best; None if the policy does not run."""
        found = self.best.get(policy)
        return self.best["plain"].seconds / found.seconds if found else None

    def ranking(self):
        return sorted(self.best, key=lambda policy: self.best[policy].seconds)


def cell_of(runner, job, trace, lengths):
    """Runs the job's study with the rows of all policies. If it has model chunks, it also runs without them, because
    many policies make numbers of micro-batches that an interleaved schedule refuses. The fastest of a policy's rows
    represents it."""
    entries, policy_of = rows()
    best, reasons, bounds = {}, {}, []
    for keys in variants(job):
        summary = runner.summary(job.base, entries, {"trace": lengths, **keys})
        for found in summary["policies"]:
            policy = policy_of[found["label"]]
            seconds = seconds_per_token(summary, found["label"])
            bounds += [share * seconds for share in bound_shares(found)]
            if found["status"] != "ok" or not seconds:
                reasons.setdefault(policy, found["reason"])
            elif policy not in best or seconds < best[policy].seconds:
                best[policy] = Best(found["label"], seconds, found["metrics"])
    return Cell(job.name, trace, best, {p: why for p, why in reasons.items() if p not in best}, min(bounds, default=0))


def bound_shares(found):
    """The bound in a row's note, as a share of the row's time."""
    bounds = [note["numbers"] for note in found.get("notes", []) if note["kind"] == "time_bound"]
    return [bound["least"] / bound["seconds"] for bound in bounds]


def variants(job):
    keys = {"cluster.memory_headroom": 0, **job.keys}  # the papers' rows fill all memory, so the others do,
                                                       # too
    return [keys] if job.chunks == 1 else [keys, {**keys, INTERLEAVED: 1}]


def what_plain_loses(cell):
    """A sentence on the largest share of a step of plain that a balancer could win back."""
    metrics = cell.best["plain"].metrics
    exposed = metrics["exposed_comm_ratio"]
    losses = {
        "pipeline": metrics["bubble_ratio"],
        "CP exchange": exposed["cp"],
        "experts' exchange": exposed["ep"],
        "CP ranks uneven": 1 - 1 / metrics["cp_imbalance"],
        "recompute": metrics["recompute_ratio"],
    }
    worst = max(losses, key=lambda name: losses[name] or 0)
    return f"{worst} {100 * losses[worst]:.0f} %"
