"""Reading a launch script as data: which words does it pass to which command. Nothing is executed.

1. Cut the text into statements: newlines, ``;``, ``|`` and ``&`` outside quotes and parentheses end
   one; a backslash at the end of a line joins it to the next; comments go.
2. Walk the statements in order, keeping plain assignments (``TP=2``, ``ARGS=( ... )``, ``ARGS+=...``).
3. Split the rest with ``shlex`` and expand ``$NAME``, ``${NAME}``, ``${NAME:-default}``, ``${NAME[@]}``
   and integer ``$(( ))`` from those assignments only: never from this process's environment.

Conditionals and loops are not followed: every branch is read once, in order, and a note says so.
A variable that the script does not assign stays as written (``$NAME``), for the reader to complain about
where it matters.
"""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass, field

from shardwise.engine.errors import ConfigError

MAX_WORDS = 20_000
MAX_EXPANDED = 200_000
"""Bounds on what expansion may grow to, in words and in characters of one word."""

_ASSIGN = re.compile(r"^([A-Za-z_]\w*)(\[[^\]]*\])?(\+?)=(.*)$", re.DOTALL)
_ARRAY = re.compile(
    r"^(?:(?:export|local|readonly|declare(?:\s+-\w+)*)\s+)?([A-Za-z_]\w*)(\+?)=\((.*)\)$", re.DOTALL
)
_VARIABLE = re.compile(
    r"\$(?:\(\((?P<sum>[^()]*(?:\([^()]*\)[^()]*)*)\)\)"
    r"|\{(?P<name>[A-Za-z_]\w*)(?P<all>\[[@*]\])?(?::?[-=](?P<default>[^{}]*))?\}"
    r"|\{(?:\d|[@*])(?::?[-=](?P<argument>[^{}]*))?\}"
    r"|(?P<bare>[A-Za-z_]\w*))"
)
_PREFIXES = ("export", "declare", "local", "readonly", "typeset")
_CONTROL = frozenset(
    {"if", "then", "elif", "else", "fi", "for", "while", "until", "do", "done", "case", "esac"}
)


@dataclass(slots=True)
class Script:
    """What a script says."""

    commands: list[list[str]] = field(default_factory=list)
    """The words of each command, expanded."""
    arrays: dict[str, list[str]] = field(default_factory=dict)
    """Array variables and their words, expanded."""
    variables: dict[str, str] = field(default_factory=dict)
    """Plain variables."""
    branches: bool = False
    """Whether it has conditionals or loops."""


def read_script(text: str) -> Script:
    """``text`` as commands and variables. Raises ``ConfigError`` on an unclosed quote or runaway growth."""
    script = Script()
    for statement in _statements(text):
        array = _ARRAY.match(statement)
        if array:
            words = _expand_words(_split(array.group(3)), script)
            kept = script.arrays.get(array.group(1), []) if array.group(2) else []
            script.arrays[array.group(1)] = _bounded([*kept, *words])
            continue
        words = _split(statement)
        while words and words[0] in _CONTROL:
            script.branches = True
            words = words[1:]
        command = _assign(words, script)
        if command:
            script.commands.append(_expand_words(command, script))
    return script


def _statements(text: str) -> list[str]:
    """``text`` cut into statements, comments and line continuations removed."""
    statements: list[str] = []
    current: list[str] = []
    quote = ""
    depth = 0
    at = 0
    text = text.replace("\r\n", "\n")
    while at < len(text):
        char = text[at]
        pair = text[at : at + 2]
        if quote:
            if char == "\\" and quote == '"' and len(pair) == 2:
                current.append("" if pair == "\\\n" else pair)
                at += 2
                continue
            quote = "" if char == quote else quote
            current.append(char)
        elif char == "\\":
            current.append(" " if pair == "\\\n" else pair)
            at += 2
            continue
        elif char in "'\"":
            quote = char
            current.append(char)
        elif char == "#" and (not current or current[-1][-1:].isspace() or current[-1] == "("):
            end = text.find("\n", at)
            at = len(text) if end < 0 else end
            continue
        elif char in "\n;|&" and depth == 0:
            statements.append("".join(current).strip())
            current = []
        else:
            depth = max(0, depth + (char == "(") - (char == ")"))
            current.append("\n" if char == "\n" else char)
        at += 1
    if quote:
        raise ConfigError(f"shell script: a {quote} is opened and never closed", field="file")
    statements.append("".join(current).strip())
    return [statement for statement in statements if statement]


def _split(text: str) -> list[str]:
    """The words of ``text``; ``$(( ))`` keeps together whatever blanks it holds."""
    packed = re.sub(r"\$\(\(.*?\)\)", lambda m: re.sub(r"\s", "", m.group(0)), text, flags=re.DOTALL)
    try:
        return _bounded(shlex.split(packed, comments=False))
    except ValueError as err:
        raise ConfigError(f"shell script: {err} in {text[:60]!r}", field="file") from err


def _assign(words: list[str], script: Script) -> list[str]:
    """Take leading ``NAME=value`` words into ``script``; return the words of the command behind them."""
    rest = list(words)
    exporting = bool(rest) and rest[0] in _PREFIXES
    if exporting:
        rest = [word for word in rest[1:] if not word.startswith("-")]
    while rest:
        match = _ASSIGN.match(rest[0])
        if match is None:
            break
        name, _, plus, value = match.groups()
        expanded = _expand(value, script)
        script.variables[name] = _grown(script.variables.get(name, "") + expanded if plus else expanded)
        script.arrays.pop(name, None)
        rest = rest[1:]
    return [] if exporting else rest


def _expand_words(words: list[str], script: Script) -> list[str]:
    """Every word expanded; a word that is one whole variable splits into that variable's words."""
    out: list[str] = []
    for word in words:
        match = _VARIABLE.fullmatch(word)
        name = match and (match.group("name") or match.group("bare"))
        if name in script.arrays:
            out.extend(script.arrays[name])
        elif word in ("$@", "$*", "${@}"):
            continue
        elif match is not None and name is not None:
            text = _expand(word, script)
            out.extend(_split(text) if text != word else [word])
        else:
            out.append(_expand(word, script))
        _bounded(out)
    return out


def _expand(word: str, script: Script) -> str:
    def value(match: re.Match[str]) -> str:
        if match.group("sum") is not None:
            return _arithmetic(match.group("sum"), script)
        name = match.group("name") or match.group("bare")
        if name is None:
            return match.group("argument") or ""
        if name in script.variables:
            return script.variables[name]
        if name in script.arrays:
            return " ".join(script.arrays[name])
        default = match.group("default")
        return match.group(0) if default is None else _expand(default, script)

    return _grown(_VARIABLE.sub(value, word))


_NUMBER = re.compile(r"\s*(?:(\d{1,12})|(\$?\{?[A-Za-z_]\w*\}?)|([-+*/%()]))")


def _arithmetic(text: str, script: Script) -> str:
    """``$(( text ))`` over integers; left as written when a name in it has no value."""
    tokens: list[str] = []
    at = 0
    while at < len(text.rstrip()):
        match = _NUMBER.match(text, at)
        if match is None or len(tokens) > 100:
            return f"$(({text}))"
        token = match.group(1) or match.group(3)
        if token is None:
            token = script.variables.get(match.group(2).strip("${}"), "")
            if not token.isdigit() or len(token) > 12:
                return f"$(({text}))"
        tokens.append(token)
        at = match.end()
    try:
        total, end = _sum(tokens, 0)
    except (IndexError, ValueError, ZeroDivisionError):
        return f"$(({text}))"
    return str(total) if end == len(tokens) and abs(total) < 10**15 else f"$(({text}))"


def _sum(tokens: list[str], at: int) -> tuple[int, int]:
    total, at = _product(tokens, at)
    while at < len(tokens) and tokens[at] in "+-":
        right, end = _product(tokens, at + 1)
        total, at = (total + right if tokens[at] == "+" else total - right), end
    return total, at


def _product(tokens: list[str], at: int) -> tuple[int, int]:
    total, at = _operand(tokens, at)
    while at < len(tokens) and tokens[at] in "*/%":
        right, end = _operand(tokens, at + 1)
        if tokens[at] == "*":
            total *= right
        else:
            total = total // right if tokens[at] == "/" else total % right
        at = end
    return total, at


def _operand(tokens: list[str], at: int) -> tuple[int, int]:
    if tokens[at] == "(":
        total, at = _sum(tokens, at + 1)
        if tokens[at] != ")":
            raise ValueError("unbalanced parenthesis")
        return total, at + 1
    return int(tokens[at]), at + 1


def _bounded(words: list[str]) -> list[str]:
    if len(words) > MAX_WORDS:
        raise ConfigError(f"shell script: expands to more than {MAX_WORDS} words", field="file")
    return words


def _grown(text: str) -> str:
    if len(text) > MAX_EXPANDED:
        raise ConfigError(
            f"shell script: a variable expands to more than {MAX_EXPANDED} characters", field="file"
        )
    return text
