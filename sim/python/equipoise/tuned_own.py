"""Functions in a search: the layouts are found with the other policies, and on those of the ranking functions run in full."""

import json
import os
import warnings
from collections.abc import Mapping
from typing import Any, Dict, List, Optional, Sequence, Tuple

from ._values import refuse
from .study import Source, open_study, study

RATE = "tokens_per_second_per_gpu"
DELAYS = ("token_delay_mean", "token_delay_max")  # which max_delay bounds, in its order


def without_functions(
    source: Source, set: Optional[Mapping], policies: Optional[Mapping], directory: Any
) -> Tuple[Dict[str, Any], List[Dict[str, Any]], str]:
    """A study's values without its rows of functions, those rows, and the folder that paths are relative to."""
    opened, own = open_study(source, set, policies, directory)
    values = json.loads(opened.text)
    rows = list(enumerate(values["policies"]))
    functions = [{**{key: row[key] for key in row if key not in ("name", "file")}, **own[place]} for place, row in rows if place in own]
    values["policies"] = [row for place, row in rows if place not in own]
    labels = [row["label"] for row in functions]
    if not values["policies"]:
        refuse("policies", "a built-in policy among them, with which layouts are searched", labels)
    if values.get("baseline") in labels:
        refuse("baseline", "a built-in policy, with which layouts are searched", values["baseline"])
    return values, functions, str(directory or "") if isinstance(source, Mapping) else os.path.dirname(source)


def rank_functions(
    found: Dict[str, Any], names: List[str], best: Dict[str, Any], searched: Dict[str, Any], functions: List[Dict[str, Any]], max_delay: Sequence[float],
    directory: Any,
) -> Tuple[List[Dict[str, Any]], List[str], Dict[str, Any]]:
    """The ranking of a search with functions in it, the names of its places, and the first as a study. As in the search, rows that
    the framework does not run, or that change the order of the data, come after the others. `best`: the search's own, whose paths
    are absolute; `searched`: the study's values, whose paths are relative to `directory`."""
    ranked = list(zip(found["ranking"], names, [best] * len(names)))
    base = (found["baseline"]["metrics"] or {}).get(RATE)
    for like, name in {json.dumps(row["layout"]): (row, name) for row, name in zip(found["ranking"], names)}.values():
        on_layout = _on_layout(best, searched, like["layout"], found["baseline"]["label"], functions, directory)
        for row in study(on_layout, directory=directory or None).policies[1:]:
            metrics = row["metrics"]
            why = "" if row["status"] == "ok" else f"{row['status']}: {row['reason']}"
            if not why and any(metrics[key] is None or metrics[key] > most for key, most in zip(DELAYS, max_delay)):
                why = "it does not keep max_delay"
            if why:
                warnings.warn(f"{row['label']} is not ranked on the layout of {like['label']}: {why}", stacklevel=4)
                continue
            against = {"speedup": metrics[RATE] / base if base else None, "speedup_low": None, "speedup_high": None}
            place = {**row, "metrics": {**metrics, **against}, "layout": like["layout"], "alike": []}
            ranked.append((place, name.replace(like["label"], row["label"], 1), on_layout))
    bound = best.get("max_delay", 1)  # the search's, or else the study's
    ranked.sort(key=lambda one: (_claim(one[0], bound), -one[0]["metrics"][RATE]))  # stable: of equals the search's own come first
    return [{**row, "rank": place} for place, (row, _, _) in enumerate(ranked, 1)], [name for _, name, _ in ranked], ranked[0][2]


def _claim(row: Mapping, max_delay: float) -> int:
    """0 for a row that may win: `Claim` in sim/report/standing.h."""
    delay = row["metrics"]["token_delay_mean"]
    if row["runs_in"] == "no":
        return 2
    return 1 if delay is None or delay > max_delay else 0


def _on_layout(
    best: Dict[str, Any], searched: Dict[str, Any], layout: Mapping, baseline: str, functions: List[Dict[str, Any]], directory: Any
) -> Dict[str, Any]:
    """The study on a layout of the ranking: its baseline and the functions."""
    own = {key: searched[key] for key in ("parallel", "schedule") if key in searched}
    if "parallel.virtual_pipeline" in layout and own.get("schedule") in ("1f1b", "interleaved-1f1b"):
        del own["schedule"]  # the default, which follows from the number of chunks
    values = {**{key: best[key] for key in best if key not in ("parallel", "schedule", "export_row")}, **own, "baseline": baseline}
    opened, _ = open_study({**values, "policies": searched["policies"]}, layout, None, directory or None)
    row = json.loads(opened.text)["policies"][opened.labels.index(baseline)]
    return {**json.loads(opened.text), "policies": [row, *functions]}
