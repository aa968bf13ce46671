"""Names of functions: cleaned of what differs between processes, and shortened for metric labels. Pure text."""

from __future__ import annotations

import re
from functools import lru_cache

ADDRESS = re.compile(r" at 0x[0-9A-Fa-f]+")
CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029]")
INSTALLED = re.compile(r".*[/\\](?:site-packages|dist-packages)[/\\]")
STANDARD_LIBRARY = re.compile(r".*[/\\]lib(?:64)?[/\\]python\d+(?:\.\d+)?[/\\](?:lib-dynload[/\\])?")
LONGEST_NAME = 4096
LONGEST_LABEL = 200
KEPT_COMPONENTS = 2


def drop_addresses(name: str) -> str:
    """Remove memory addresses, which differ in every process: `<… object at 0x7f…>` becomes `<… object>`."""
    return ADDRESS.sub("", name) if " at 0x" in name else name


def safe_text(text: str) -> str:
    """Make a name fit for UTF-8 and for storing; distinct names stay distinct.

    Lone surrogates are written out (`\\udc80`), and a name of more than 4096 characters is cut and gets a hash.
    """
    if not text.isascii():
        text = text.encode("utf-8", "backslashreplace").decode("utf-8")
    return cut(text, LONGEST_NAME) if len(text) > LONGEST_NAME else text


def shorten_path(file: str) -> str:
    """Shorten a file's path the same way on every node.

    What leads to an installed package or to the standard library is cut; of other paths the last two components stay.
    """
    for prefix in (INSTALLED, STANDARD_LIBRARY):
        found = prefix.match(file)
        if found is not None and found.end() < len(file):
            return file[found.end() :].replace("\\", "/")
    if file.startswith("<"):
        return file
    return "/".join(file.replace("\\", "/").split("/")[-KEPT_COMPONENTS:]) or file


@lru_cache(maxsize=4096)
def function_label(file: str, line: int, name: str) -> str:
    """Name a function for a metric label: `torch/nn/modules/module.py:1518(_call_impl)`, or as pstats prints built-ins:
    `{built-in method builtins.len}`."""
    if file == "~" and line == 0:
        inner = name[1:-1] if name.startswith("<") and name.endswith(">") else name
        label = f"{{{inner}}}"
    else:
        label = f"{shorten_path(file)}:{line}({name})"
    label = CONTROL.sub("?", label)
    return cut(label, LONGEST_LABEL) if len(label) > LONGEST_LABEL else label


def cut(text: str, longest: int) -> str:
    """Cut the middle out of a text and put a hash of the whole in its place."""
    import hashlib  # few names are that long, and decoders start the sooner

    mark = f"…{hashlib.blake2b(text.encode('utf-8', 'backslashreplace'), digest_size=6).hexdigest()}…"
    kept = longest - len(mark)
    return text[: kept // 2] + mark + text[len(text) - (kept - kept // 2) :]
