"""Converts Python values to what the simulator takes: JSON text and arrays of lengths."""

import difflib
import json
import os
import reprlib
from collections.abc import Mapping
from typing import Any, Dict, List, NoReturn, Union

import numpy as np


def refuse(argument: str, expected: str, found: Any) -> NoReturn:
    """Raises the error of a wrong argument: its name, what is allowed, what was found."""
    shown = f'"{found}"' if isinstance(found, str) else reprlib.repr(found)
    raise ValueError(f"{argument}: expected {expected}, found {shown}")


def unknown(what: str, name: Any, known: List[str]) -> str:
    """The message for an unknown name, with the nearest known one."""
    near = difflib.get_close_matches(str(name), known, 1)
    meant = f', did you mean "{near[0]}"?' if near else ""
    every = ", ".join(f'"{one}"' for one in known)
    return f'unknown {what} "{name}"{meant} (known: {every})'


def utf8(argument: str, text: str) -> str:
    """Checks a text for the simulator, which refuses half a character (a lone surrogate)."""
    try:
        text.encode()
    except UnicodeEncodeError:
        raise ValueError(f"{argument}: expected text in UTF-8, found {ascii(text)}") from None
    return text


def path_of(argument: str, value: Any, expected: str = "a path") -> str:
    """A file or folder's name."""
    if not isinstance(value, (str, os.PathLike)) or not isinstance(os.fspath(value), str) or not os.fspath(value):
        refuse(argument, expected, value)
    return utf8(argument, os.fspath(value))


def flag(argument: str, value: Any) -> bool:
    if not isinstance(value, (bool, np.bool_)):
        refuse(argument, "True or False", value)
    return bool(value)


def text_of(argument: str, value: Any, expected: str) -> str:
    if not isinstance(value, str):
        refuse(argument, expected, value)
    return utf8(argument, value)


def number(argument: str, value: Any) -> float:
    """An argument that is a number, including NumPy's, and no bool."""
    if isinstance(value, (bool, np.bool_)) or not isinstance(value, (int, float, np.integer, np.floating)):
        refuse(argument, "a number", value)
    return float(value)


def folder_of(argument: str, value: Any) -> str:
    """An existing folder; the current one if none is given."""
    if value is None or value == "":  # such as os.path.dirname of a bare file name
        return os.getcwd()
    path = path_of(argument, value, "a folder")
    if not os.path.isdir(path):
        refuse(argument, "a folder that is there", path)
    return path


def integer(argument: str, value: Any, least: int, most: int = 2**62) -> int:
    """An argument that is an integer, including NumPy's, and no bool."""
    if isinstance(value, bool) or not isinstance(value, (int, np.integer)) or not least <= value <= most:
        refuse(argument, f"an integer from {least}" + (f" to {most}" if most < 2**62 else ""), value)
    return int(value)


def _plain(value: Any) -> Any:
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, np.ndarray):
        return value.tolist()
    if isinstance(value, os.PathLike):
        return os.fspath(value)
    raise TypeError(f"found {reprlib.repr(value)}")


def json_text(value: Any, argument: str) -> str:
    """JSON of an argument's value. NumPy's numbers and arrays and paths are converted."""
    try:
        return json.dumps(value, default=_plain, allow_nan=False)
    except (TypeError, ValueError):  # no type of JSON, or NaN, or a key that is no text
        parts = value.items() if isinstance(value, Mapping) else enumerate(value) if isinstance(value, (list, tuple)) else ()
        for key, one in parts:
            json_text(one, f"{argument}: {key}")
        raise ValueError(f"{argument}: expected values that JSON has, found {reprlib.repr(value)}") from None


def page_data(path: Union[str, os.PathLike], argument: str, kind: str) -> Dict[str, Any]:
    """The data that a report.html, or the one in a folder, draws: a block of JSON in it."""
    name = os.path.join(path, "report.html") if os.path.isdir(path) else os.fspath(path)
    try:
        with open(name, encoding="utf-8") as file:
            _, begins, text = file.read().partition('id="data">')
    except (OSError, UnicodeDecodeError) as error:
        why = getattr(error, "strerror", None) or "no text"
        raise ValueError(f"{argument}: {name}: expected the page of a {kind}, found none: {why}") from None
    text, ends, _ = text.partition("</script>")
    if not begins or not ends:
        raise ValueError(f"{argument}: {name}: expected the page of a {kind}, found no such page")
    data = json.loads(text)
    if data.get("kind") != kind:
        raise ValueError(f"{argument}: {name}: expected the page of a {kind}, found that of a {data.get('kind')}")
    return data


def lengths_array(lengths: Any, argument: str = "lengths") -> np.ndarray:
    """Tokens of each document as int64, without a copy if they already are."""
    try:
        array = np.asarray(lengths)
    except ValueError as error:  # for lists of unequal lengths
        raise ValueError(f"{argument}: expected one list of integers, found {reprlib.repr(lengths)}") from error
    if array.ndim == 0:
        refuse(argument, "one list of integers", lengths)
    if array.ndim != 1:
        raise ValueError(f"{argument}: expected one list of integers, found {array.ndim} dimensions")
    if array.size == 0:
        raise ValueError(f"{argument}: expected at least one document, found none")
    if array.dtype.kind not in "iu":
        raise ValueError(f"{argument}: expected integers, found {array.dtype}")
    if array.min() < 1:
        refuse(argument, "at least 1 token each", int(array.min()))
    return np.ascontiguousarray(array, dtype=np.int64)
