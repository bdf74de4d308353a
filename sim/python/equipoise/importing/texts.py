"""Files as flat settings: YAML, TOML, JSON, command lines of a shell, and the head of a log of Megatron-LM.

    settings_of("train.yaml", text)    # {"fsdp_config.fsdp_version": 2, ...}: nested keys are joined by dots
"""

import json
import re
import shlex
from typing import Any, Callable, Dict, List

Settings = Dict[str, Any]


def settings_of(name: str, text: str) -> Settings:
    """The settings of a file. Its name says which reader comes first; a file that no reader understands has none."""
    ending = name.rsplit(".", 1)[-1].lower()
    kind = "yaml" if ending == "yml" else ending
    if kind in _READERS:
        return _READERS[kind](name, text)
    for reader in (_log_head, _json, _toml, _command_lines, _yaml):
        try:
            settings = reader(name, text)
        except ValueError:
            continue
        if settings:
            return settings
    return {}


def flat(tree: Any) -> Settings:
    """Nested tables with their keys joined by dots; references such as ${model.seq_length} are looked up."""
    settings: Settings = {}

    def walk(prefix: str, table: Dict[Any, Any]) -> None:
        for key, value in table.items():
            if isinstance(value, dict) and value:
                walk(f"{prefix}{key}.", value)
            else:
                settings[prefix + str(key)] = value

    if isinstance(tree, dict):
        walk("", tree)
    for name, value in settings.items():
        found = re.fullmatch(r"\$\{([\w.]+)\}", value) if isinstance(value, str) else None
        if found and found[1] in settings and settings[found[1]] != value:
            settings[name] = settings[found[1]]
    return settings


def value_of(text: str) -> Any:
    """The value of a word on a command line: an integer, a flag, or the text itself."""
    if text in _WORDS:
        return _WORDS[text]
    if listed := re.fullmatch(r"\[([^\[\]]*)\]", text):
        return [value_of(one.strip().strip("\"'")) for one in listed[1].split(",") if one.strip()]
    return int(text) if re.fullmatch(r"-?\d{1,18}", text) else text


_WORDS = {"True": True, "False": False, "true": True, "false": False, "None": None, "null": None}


def _yaml(name: str, text: str) -> Settings:
    try:
        import yaml
    except ImportError:
        raise ValueError(f"{name}: expected PyYAML to read it, found none; install python3-yaml or pyyaml") from None
    class Loader(yaml.SafeLoader):
        """Ignores tags for other programs' types."""

    Loader.add_multi_constructor("", lambda loader, suffix, node: None)
    try:
        settings = flat(yaml.load(text, Loader))
    except (yaml.YAMLError, RecursionError, ValueError) as error:
        where = getattr(error, "problem_mark", None)
        raise ValueError(f"{name}: expected YAML, found none" + (f" (line {where.line + 1})" if where else "")) from None
    # Test files of Megatron-LM list its arguments as keys with their dashes.
    return {re.sub(r"^(?:\w+\.)?--([\w-]+)$", lambda found: found[1].replace("-", "_"), key): value for key, value in settings.items()}


def _toml(name: str, text: str) -> Settings:
    try:
        import tomllib
    except ImportError:  # Python below 3.11
        import tomli as tomllib  # type: ignore[no-redef]
    try:
        return flat(tomllib.loads(text))
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise ValueError(f"{name}: expected TOML, found none ({error})") from None


def _json(name: str, text: str) -> Settings:
    try:
        return flat(json.loads(text))
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{name}: expected JSON, found none ({error})") from None


def _log_head(_name: str, text: str) -> Settings:
    """The arguments that Megatron-LM prints before it trains: "  num_layers .......... 32"."""
    listed = re.findall(r"^.*?\b([a-z][a-z0-9_]*) \.{2,} (.*?)\s*$", text, re.MULTILINE)
    if not any(name == "tensor_model_parallel_size" for name, _ in listed):
        return {}
    return {name: value_of(value) for name, value in listed} | {"_log_head": True}


def _command_lines(name: str, text: str) -> Settings:
    """Flags (--num-layers 32) and overrides (model.num_layers=32) of a script's commands and lists."""
    settings: Settings = {}
    for line in _shell_lines(text):
        try:
            words = shlex.split(line, comments=True)
        except ValueError as error:
            raise ValueError(f"{name}: expected a line of a shell ({error}), found {line[:200]!r}") from None
        for at, word in enumerate(words):
            override = re.fullmatch(r"(?:\+{0,2}|--)([A-Za-z_]\w*(?:\.\w+)+|[a-z]\w*_\w*|recipe)=(.*)", word)
            if override and not re.search(r"[$&|]", override[1]):
                settings[override[1]] = value_of(override[2])
                continue
            found = re.fullmatch(r"--([a-z][a-z0-9_.-]*)(?:=(.*))?", word)
            if found:
                settings[found[1].replace("-", "_")] = _values(found[2], words[at + 1:])
    nodes, each = settings.get("nnodes", 1), settings.get("nproc_per_node")
    if isinstance(nodes, int) and isinstance(each, int):
        settings["world_size"] = nodes * each
    return settings


def _values(given: Any, after: List[str]) -> Any:
    """A flag's value: one value, a list, or nothing."""
    values = [] if given is None else [given]
    for more in after if given is None else ():
        if re.match(r"-+[a-zA-Z]", more) or re.fullmatch(r"[|&;<>].*|.*\.py|\$[\w@{].*@.*|-m", more) or re.fullmatch(r"\+{0,2}[\w]+(\.\w+)+=.*", more):
            break
        values.append(more)
    typed = [value_of(value) for value in values]
    return True if not typed else typed[0] if len(typed) == 1 else typed


def _shell_lines(text: str) -> List[str]:
    """A script's lines with continued ones joined, and with the values of variables that it sets itself."""
    variables: Dict[str, str] = {}

    def filled(words: str) -> str:
        for _ in range(3):  # innermost first: ${RECIPE:-${MODEL}_config}
            words = re.sub(r"\$\{(\w+)\}|\$(\w+)", lambda found: variables.get(found[1] or found[2], "$" + (found[1] or found[2])), words)
            words = re.sub(r"\$\{(\w+):?[-=]([^{}]*)\}", lambda found: variables.get(found[1]) or found[2].strip("\"'"), words)
        return re.sub(r"\$\(\(([^()]*|[^()]*\([^()]*\)[^()]*)\)\)", lambda found: _computed(found[1], found[0]), words)

    lines = []
    text = re.sub(r"^\s*#.*\n?", "", text, flags=re.MULTILINE)  # including those between continued lines
    for line in re.sub(r"\\[ \t]*\n", " ", text).splitlines():
        _bind(line, variables, filled)
        assigned = re.fullmatch(r"\s*(?:export\s+)?([A-Za-z_]\w*)=(?!\()(.*?)\s*", line)
        if assigned and not re.search(r"\s--|\s[\w.]+=", assigned[2]):
            value = filled(re.sub(r"\s+#.*$", "", assigned[2])).strip("\"'")
            if not variables.get(assigned[1]) or "$" not in value:
                variables[assigned[1]] = value
            continue
        # Removes lists, quotes and assignments around arguments; a quote after = begins a value.
        words = re.sub(r"((?:^|[\s\"'])(?:--[\w.-]+|\+{0,2}\w+(?:\.\w+)+)=)[\"']", r"\1", filled(line))
        # around a list's items
        words = re.sub(r"([\[,])\s*[\"']|[\"']\s*([\],])", lambda found: found[1] or found[2], words)
        words = re.sub(r"[()\"'`]", " ", words)
        lines.append(re.sub(r"^\s*(?:export\s+)?[A-Za-z_]\w*\+?=(?=\s)", " ", words))
    return lines


def _bind(line: str, variables: Dict[str, str], filled: Callable[[str], str]) -> None:
    """Replaces a list by its first item, and runs a loop once: ITEMS=("2,4" "4,2"); for ONE in "${ITEMS[@]}"; read -r
    TP PP <<< "$ONE"."""
    if listed := re.match(r"\s*([A-Za-z_]\w*)=\(\s*[\"']?([^\s\"')$-][^\s\"')]*)", line):
        variables.setdefault(listed[1] + "[@]", listed[2])
    if loop := re.match(r"\s*for\s+(\w+)\s+in\s+[\"']?(?:\$\{(\w+\[@\])\}|([\w.,]+))", line):
        variables[loop[1]] = variables.get(loop[2], "") if loop[2] else loop[3]
    if read := re.match(r"\s*IFS=[\"']?(.)[\"']?\s+read\s+(?:-\w\s+)?([\w ]+?)\s*<<<\s*(.*)", line):
        variables.update(zip(read[2].split(), filled(read[3]).strip().strip("\"'").split(read[1])))


def _computed(sum_of_products: str, otherwise: str) -> str:
    """Evaluates products, sums and quotients of integers, as a shell does; other text is unchanged."""
    words = re.findall(r"\d+|[-+*/()]|\S", sum_of_products)
    if not words or len(words) > 32 or not all(re.fullmatch(r"\d{1,9}|[-+*/()]", word) for word in words) or "**" in sum_of_products:
        return otherwise
    try:
        return str(_sum(words))
    except (IndexError, ValueError, ZeroDivisionError):
        return otherwise


def _sum(words: List[str]) -> int:
    value = _product(words)
    while words and words[0] in "+-":
        value = value + _product(words) if words.pop(0) == "+" else value - _product(words)
    return value


def _product(words: List[str]) -> int:
    value = _factor(words)
    while words and words[0] in "*/":
        value = value * _factor(words) if words.pop(0) == "*" else value // _factor(words)
    return value


def _factor(words: List[str]) -> int:
    word = words.pop(0)
    if word != "(":
        return int(word)
    value = _sum(words)
    words.pop(0)
    return value


_READERS: Dict[str, Callable[[str, str], Settings]] = {"yaml": _yaml, "toml": _toml, "json": _json, "sh": _command_lines, "bash": _command_lines}
