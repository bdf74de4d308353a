"""HBP (arXiv 2503.07680): one joint fit of its lengths, what is left of every printed ratio, and what the gain is with them."""

from .figure import Experiment
from .fit_hbp_lengths import FITTED, RATIOS, ratios
from .fit_hbp_lengths import lengths as joint_lengths
from .hbp_setting import PAPER, FittedTable
from .runner import metric

POLICIES = {"padded": "none", "isf": "ISF", "hbp": "HBP, 16K and 128K"}


def joint_fit(run):
    table = FittedTable(
        PAPER,
        "One joint fit of the lengths to all printed ratios of both versions: what is left",
        "Five numbers for {count} ratios: a body of {sigma:.2f} in ln(tokens), {tail:.2%} of Tulu3 from 4K to 32K by a power law of "
        "{index:.2f}, LongCite from {least:.0f}K on with {fall:.2f} (`python3 -m papers.fit_hbp_lengths`). The two versions print "
        "0.456 and 0.616 for the same packs at 32K and SP 4, so no lengths can meet both. The other tables use `tulu3-longcite`, "
        "which was fitted to the components alone.".format(
            count=len(RATIOS), **{name: getattr(FITTED, name) for name in FITTED.__dataclass_fields__}
        ),
    )
    for (pack, _, degree, policy, name, published, version), ours in zip(RATIOS, ratios(run, FITTED)):
        kind = POLICIES.get(policy[0], policy[0]) + (", not balanced" if "--no-balance" in policy else "")
        table.add(
            f"{kind}, {pack}K, SP {degree}, {version} version: {name}",
            published,
            ours,
            small=0.02 if name != "abr" or published < 0.1 else 0.0,
            cause="no lengths of this family meet both versions",
        )
    return table


def gain_with_joint_fit(run):
    table = Experiment(
        PAPER,
        "What the joint fit does to HBP's gain, 8B: over ISF",
        ["", "+ hierarchical", "+ balance", "groups selected"],
        note="The paper: 1.16, 1.40, 1.40.",
    )
    for what, keys in (
        ("`tulu3-longcite`", {}),
        ("lengths of the joint fit", {"trace": run.trace_of(joint_lengths(FITTED, run.seed))}),
    ):
        summary = run.summary("hbp-8b", batch__steps=40, **keys)
        labels = ("+ hierarchical", "+ balance (hbp, groups as printed)", "hbp, groups selected")
        table.rows.append([what, *(metric(summary, label, "speedup") for label in labels)])
    return table


TABLES = (joint_fit, gain_with_joint_fit)
