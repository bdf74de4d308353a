"""HBP (arXiv 2503.07680): one joint fit of its lengths, what is left of every printed ratio, and what the gain is with them."""

from .figure import Experiment
from .fit_hbp_lengths import DOCUMENTS, FITTED, RATIOS, ratios
from .fit_hbp_lengths import lengths as joint_lengths
from .hbp_setting import PAPER, K, iterations, iterations_of_packs
from .runner import metric

POLICIES = {"padded": "none", "isf": "ISF", "hbp": "HBP, 16K and 128K"}


def joint_fit(run):
    table = Experiment(
        PAPER,
        "One joint fit of the lengths to all printed balance ratios of both versions: what is left",
        ["", "paper", "`tulu3-longcite`", "joint fit"],
        note=f"Fitted. Five numbers for {len(RATIOS)} ratios: a body of {FITTED.sigma:.2f} in ln(tokens), {FITTED.tail:.2%} of Tulu3 "
        f"from 4K to 32K by a power law of {FITTED.index:.2f}, LongCite from {FITTED.least:.0f}K on by one of {FITTED.fall:.2f} "
        "(`python3 -m papers.fit_hbp_lengths`). The two versions print 0.456 and 0.616 for the same packs at 32K and SP 4, and "
        "packs of one length ask for a wider spread than the hierarchical ones: no lengths of this family meet both. The other "
        "tables use `tulu3-longcite`, which was fitted to the components alone. 60 iterations a draw.",
    )
    own = run.lengths("tulu3-longcite", DOCUMENTS)
    found = zip(RATIOS, ratios(run, own), ratios(run, joint_lengths(FITTED, run.seed)))
    for (pack, _, degree, policy, name, published, version), shipped, fitted in found:
        kind = POLICIES.get(policy[0], policy[0]) + (", not balanced" if "--no-balance" in policy else "")
        table.rows.append([f"{name}: {kind}, {pack}K, SP {degree}, {version} version", f"{published:.3f}", shipped, fitted])
    return table


def gain_with_joint_fit(run):
    table = Experiment(
        PAPER,
        "What the joint fit does to HBP's gain, 8B: over ISF",
        ["", "+ hierarchical", "+ balance", "groups selected"],
        note="The paper: 1.16, 1.40, 1.40.",
    )
    joint = joint_lengths(FITTED, run.seed)
    for what, keys in (
        ("`tulu3-longcite`", {"batch": iterations(run, 24)}),
        ("lengths of the joint fit", {"trace": run.trace_of(joint), "batch": iterations_of_packs(joint, 128 * K, 4, 24)}),
    ):
        summary = run.summary("hbp-8b", **keys)
        labels = ("+ hierarchical", "+ balance (hbp, groups as printed)", "hbp, groups selected")
        table.rows.append([what, *(metric(summary, label, "speedup") for label in labels)])
    return table


TABLES = (joint_fit, gain_with_joint_fit)
