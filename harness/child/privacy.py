"""Masks tokens and passwords in what is written down: argv, environment, messages, command lines.

Used by the child before it writes and by the parent for what it writes and shows. The rules look
for the shapes of known tokens and for values behind names that mean a secret. They are made not to
touch what a diagnosis is made of: guard texts, shapes, hashes, cache keys, tokens of a language.
"""

import functools
import re
from collections.abc import Iterable, Mapping

MASK = "***"

# Shapes that issuers document for their tokens; each is rare enough to be masked wherever it is.
_SHAPES = re.compile(
    r"""
    \b(?:
        hf_[A-Za-z0-9]{16,}
      | sk-(?=[\w-]*[0-9])[\w-]{20,}
      | gh[pousr]_[A-Za-z0-9]{20,} | github_pat_\w{20,} | glpat-[\w-]{16,}
      | (?:AKIA|ASIA)[0-9A-Z]{16} | AIza[\w-]{35}
      | xox[abeoprs]-[\w-]{10,} | npm_[A-Za-z0-9]{30,} | pypi-AgE[\w-]{40,}
      | eyJ[\w-]{8,}\.eyJ[\w-]{8,}\.[\w-]*
    )
    | -----BEGIN[ ][A-Z ]*PRIVATE[ ]KEY-----.*?(?:-----END[ ][A-Z ]*PRIVATE[ ]KEY-----|\Z)
    """,
    re.VERBOSE | re.DOTALL,
)

_URL = re.compile(
    r"(?P<keep>\b[A-Za-z][A-Za-z0-9+.-]{0,20}://[^\s/:@'\"]{0,200}:)[^\s/@'\"]{1,500}@"
)
_URL_TOKEN = re.compile(r"(?P<keep>\b[A-Za-z][A-Za-z0-9+.-]{0,20}://)[A-Za-z0-9_-]{20,200}@")

_HEADER = re.compile(
    r"(?P<keep>\b(?:proxy-)?authorization['\"]?\s{0,4}[:=]\s{0,4}['\"]?"
    r"(?:(?:basic|bearer|token|digest|negotiate)\s{1,4}(?=\S)|(?=[\w.~+/=-]{12})))[^\s'\",;]+",
    re.IGNORECASE,
)
_BEARER = re.compile(r"(?P<keep>\bbearer\s{1,4})[\w.~+/-]{8,}=*", re.IGNORECASE)

# A name that ends in one of these holds a secret, whatever its value looks like.
_SURE_NAME = r"(?:password|passwd|passphrase|pwd|secret|secrets|credential|credentials)"
_KEY = r"(?:api|access|secret|private|auth|account|encryption|signing)[_-]?key(?:[_-]?id)?"
_NAME = rf"(?:[A-Za-z0-9_.-]{{0,60}}[_.-])?(?:{_SURE_NAME}|{_KEY}|token|auth)"
_QUOTE = r"(?:\\?['\"])?"  # a backslash where the text is itself inside of JSON
# Not a secret: a language model's token, and what is told apart by its value.
_MODEL_TOKEN = re.compile(
    r"(?:^|[_.-])(?:mask|pad|padding|bos|eos|unk|cls|sep|image|audio|video|special|next|prev|first|last"
    r"|start|begin|end|stop|new|anchor|prompt|draft|drafter|target|per|each|fx|input|output|role"
    r"|current|this|one|any|every|extra|sink|think|tool|schedule)[_.-]?token$",
    re.IGNORECASE,
)
_NAMED = re.compile(
    rf"(?P<keep>(?<![\w.-])-{{0,2}}(?P<name>{_NAME}){_QUOTE}\]?\s{{0,3}}(?P<sign>=(?!=)|:(?!:))\s{{0,3}})"
    r"(?:(?P<quote>\\?['\"])(?P<quoted>[^'\"\\\n]{1,500})|(?P<value>[^\s'\"\\,;)\]}&]+))",
    re.IGNORECASE,
)
_FLAG = re.compile(
    rf"(?P<keep>(?<!\S)--?(?P<name>{_NAME})\s+)(?P<quote>{_QUOTE})(?P<value>(?!-)[^\s'\"\\]+)",
    re.IGNORECASE,
)
_FLAG_WORD = re.compile(rf"--?(?P<name>{_NAME})", re.IGNORECASE)
_WHOLE_NAME = re.compile(_NAME, re.IGNORECASE)
_SURELY = re.compile(rf"(?:{_SURE_NAME}|{_KEY})$", re.IGNORECASE)
_OPAQUE = re.compile(r"(?=[^\s]*[0-9])(?=[^\s]*[A-Za-z])(?!0x[0-9a-f]+$)[\w.~+/=-]{8,}")
"""What a token may look like: one long word of letters and digits, no address."""

_LONG = 16
"""Characters that a value needs after "token: ", which prose and annotations have too."""

_PLAIN = re.compile(
    r"[-+]?[\d.]+|none|null|true|false|<.*|\[.*|\(.*|\{.*|\$.*|\*+|\w+\(.*|tensor.*|torch\..*",
    re.IGNORECASE | re.DOTALL,
)
"""Values that are no secret: numbers, constants, brackets, variables of a shell, calls, dtypes."""


# One of these is in whatever the rules above find: most texts are done with after one look.
_MAYBE = re.compile(
    r"hf_|sk-|gh[pousr]_|github_pat|glpat|AKIA|ASIA|AIza|xox|npm_|pypi-|eyJ|PRIVATE KEY|://|"
    r"bearer|passw|passphrase|pwd|secret|credential|key|token|auth",
    re.IGNORECASE,
)


def mask(text: str) -> str:
    """Return a text with each token and password in it replaced by ``***``."""
    if _MAYBE.search(text) is None:
        return text
    text = _SHAPES.sub(MASK, text)
    if "://" in text:
        text = _URL.sub(rf"\g<keep>{MASK}@", text)
        text = _URL_TOKEN.sub(rf"\g<keep>{MASK}@", text)
    text = _HEADER.sub(rf"\g<keep>{MASK}", text)
    text = _BEARER.sub(rf"\g<keep>{MASK}", text)
    text = _NAMED.sub(_named, text)
    return _FLAG.sub(_flag, text)


@functools.lru_cache(maxsize=1024)
def mask_name(name: str) -> str:
    """Return a thread's name masked; its events all have it, so it is looked at once."""
    return mask(name)


def mask_argv(argv: Iterable[str]) -> list[str]:
    """Return a command line's words masked; the word after a flag such as ``--token`` too."""
    masked: list[str] = []
    secret = False
    for word in argv:
        masked.append(MASK if secret and not word.startswith("-") else mask(word))
        flag = _FLAG_WORD.fullmatch(word)
        secret = flag is not None and not _MODEL_TOKEN.search(flag["name"])
    return masked


def mask_environment(variables: Mapping[str, str]) -> dict[str, str]:
    """Return environment variables with secret values masked, told by their names or shapes."""
    return {
        name: MASK if value and _is_secret_name(name) else mask(value)
        for name, value in variables.items()
    }


def _is_secret_name(name: str) -> bool:
    return bool(_WHOLE_NAME.fullmatch(name)) and not _MODEL_TOKEN.search(name)


def _named(match: re.Match[str]) -> str:
    name, value, quote = match["name"], match["quoted"] or match["value"], match["quote"] or ""
    secret = _is_secret(name, value, quoted=bool(quote))
    if match["sign"] == ":" and name.lower() in {"token", "auth"}:
        secret = secret and len(value) >= _LONG
    return f"{match['keep']}{quote}{MASK}" if secret else match[0]


def _flag(match: re.Match[str]) -> str:
    # What stands behind a flag in running text may be the sentence's next word.
    secret = _is_secret(match["name"], match["value"], quoted=bool(match["quote"]))
    return f"{match['keep']}{match['quote']}{MASK}" if secret else match[0]


def _is_secret(name: str, value: str, *, quoted: bool) -> bool:
    if _SURELY.search(name):
        if name.lower().endswith("pwd") and value[0] in "/~.":  # a shell's working directory
            return False
        return quoted or value.isdigit() or not _PLAIN.fullmatch(value)
    if _MODEL_TOKEN.search(name) or _PLAIN.fullmatch(value):
        return False
    return bool(_OPAQUE.fullmatch(value))
