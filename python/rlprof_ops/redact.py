"""Keeps secrets out of everything that leaves a node: one list of names and of shapes of values.

The names and shapes are facts from the rules that gitleaks and detect-secrets publish, and from the tools of
this field. A name decides (`HF_TOKEN=…`, `"api_key": …`, `--db-password …`), or a value's own shape
(`hf_…`, `Bearer …`, `https://user:password@`), wherever it stands.
"""

from __future__ import annotations

import functools
import os
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping

MASK = "***"
_SHORTEST = 6


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


# A name is split into words at `_`, `-`, `.`, and at the change from small to capital letters.
_WORD = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|\d+")
_SECRET_WORDS = _words("""
    token tokens secret secrets password passwd passphrase pwd pass passwort credential credentials creds cred
    apikey authtoken accesskey secretkey privatekey pat jwt sshpass webhook cookie bearer
""")
# `key` alone names many harmless things (`prompt_key`, `sort_key`): what stands before it decides.
_KEY_OF = _words("""
    api access secret private auth account storage encryption signing service master admin deploy ssh gpg
    license subscription shared sas client app application consumer wandb openai anthropic hf huggingface
    aws azure gcp google github gitlab ngc nvidia cohere mistral together groq comet neptune clearml mlflow
    swanlab langsmith serper tavily brave datadog dd sentry slack telegram e2b daytona modal runpod
""")
_SECRET_NAMES = _words("""
    database_url db_url redis_url mongo_url mongodb_uri dsn sqlalchemy_database_uri amqp_url broker_url
    http_proxy https_proxy all_proxy ftp_proxy connection_string conn_str netrc authorization
    proxy_authorization pgpassword mysql_pwd slurm_jwt pip_index_url pip_extra_index_url uv_index_url
    uv_extra_index_url _auth
""")
# A shell's folders, whose names end like a password's.
_FOLDERS = frozenset({"PWD", "OLDPWD"})
# Of these only a value with a login in it is a secret.
_MAY_HOLD_A_LOGIN = re.compile(r"(_url|_uri|proxy|dsn)$")
# Paths to secrets, switches, counts and what a tokenizer is called are no secrets themselves.
_HARMLESS_LAST = _words("""
    path file dir directory folder count length len size limit ratio type mode name names ids id num index idx
    budget rate per sec second seconds throughput parallelism tokenizer model class max min mean avg std sum
    total loss acc accuracy format style ttl expiry field column columns enabled required
""")
_COUNTED = _words("""
    max min num n total mean avg sum prompt response completion generated new valid pad eos bos unk sep cls
    mask image video special stop input output context batch train eval val sequence seq microbatch
    loss think begin end start per vocab added extra trainable packed padding first last next
""")

# Shapes of values, each after words, in small letters, of which one stands in every line that holds it; with
# what comes before the value where that is what tells (group `keep`).
_SHAPES = tuple(
    (tuple(words.split()), re.compile(pattern))
    for words, pattern in (
        ("hf_", r"\bhf_[A-Za-z0-9]{8,}"),
        ("api_org_", r"\b(?:api_org_)[A-Za-z]{20,}"),
        ("ghp_ gho_ ghu_ ghs_ ghr_", r"\bgh[pousr]_[A-Za-z0-9]{20,}"),
        ("github_pat_", r"\bgithub_pat_[A-Za-z0-9_]{20,}"),
        ("glpat-", r"\bglpat-[A-Za-z0-9_-]{16,}"),
        ("sk-", r"\bsk-(?:ant-|proj-|or-|svcacct-)?[A-Za-z0-9_-]{16,}"),
        ("k_live k_test", r"\b(?:sk|rk|pk)_(?:live|test)_[A-Za-z0-9]{10,}"),
        ("akia asia abia acca", r"\b(?:AKIA|ASIA|ABIA|ACCA)[A-Z0-9]{16}\b"),
        ("aiza", r"\bAIza[A-Za-z0-9_-]{30,}"),
        ("ya29.", r"\bya29\.[A-Za-z0-9_-]{20,}"),
        ("xox", r"\bxox[abeoprs]-[A-Za-z0-9-]{10,}"),
        ("xapp-", r"\bxapp-\d-[A-Za-z0-9-]{10,}"),
        ("nvapi-", r"\bnvapi-[A-Za-z0-9_-]{16,}"),
        ("npm_", r"\bnpm_[A-Za-z0-9]{30,}"),
        ("pypi-", r"\bpypi-[A-Za-z0-9_-]{16,}"),
        ("dop_v1_", r"\bdop_v1_[a-f0-9]{32,}"),
        ("sg.", r"\bSG\.[A-Za-z0-9_-]{16,}\.[A-Za-z0-9_-]{16,}"),
        ("lsv2_", r"\blsv2_[a-z]{2}_[A-Za-z0-9_]{16,}"),
        ("r8_", r"\br8_[A-Za-z0-9]{30,}"),
        ("gsk_", r"\bgsk_[A-Za-z0-9]{20,}"),
        ("wandb_v", r"\bwandb_v\d_[A-Za-z0-9_]{16,}"),
        ("eyj eyi", r"\bey[JI][A-Za-z0-9_-]{8,}\.ey[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]*"),
        ("hooks.slack", r"https://hooks\.slack\.com/(?:services|workflows)/[A-Za-z0-9/_+-]+"),
        ("webhook", r"https://[a-z0-9.-]*webhook\.office\.com/[^\s'\"]+"),
        ("webhook", r"https://(?:\w+\.)?discord(?:app)?\.com/api/webhooks/[^\s'\"]+"),
        ("open.feishu open.lark", r"https://open\.(?:feishu\.cn|larksuite\.com)/open-apis/bot/[^\s'\"]+"),
        ("dingtalk", r"(?P<keep>https://oapi\.dingtalk\.com/robot/send\?access_token=)[^\s'\"&]+"),
        (
            "bearer basic token",
            r"(?P<keep>\b(?:Bearer|Basic|Token)\s+)(?=[A-Za-z0-9._~+/-]*\d)[A-Za-z0-9._~+/-]{8,}=*",
        ),
        (
            "auth",
            r"(?P<keep>(?i:authorization)[\"']?\s*[:=]\s*[\"']?(?:(?i:bearer|basic|token|negotiate)\s+)?)"
            r"(?!(?:bearer|basic|token|negotiate)\b)[^\s'\",;}]{4,}",
        ),
        (
            "login",
            r"(?P<keep>\b(?:wandb|swanlab|clearml|comet|neptune)\s+login\s+(?:--?[a-z-]+(?:=\S+)?\s+)*)[A-Za-z0-9_-]{16,}",
        ),
        ("login", r"(?P<keep>\b(?:huggingface-cli|hf)\s+(?:auth\s+)?login\s+--token[ =])\S+"),
        ("pass", r"(?P<keep>\bsshpass\s+-p\s*)(?:'[^']*'|\"[^\"]*\"|\S+)"),
        ("mysql mariadb", r"(?P<keep>\b(?:mysql|mysqldump|mariadb)\b[^\n|;&]{0,300}?\s-p)(?=[^\s-])\S+"),
        ("curl", r"(?P<keep>\bcurl\b[^\n|;&]{0,300}?\s(?:-u|--user)[ =]?[^\s:'\"]+:)[^\s'\"]+"),
        ("docker", r"(?P<keep>\bdocker\s+login\b[^\n|;&]{0,300}?\s-p[ =]?)\S+"),
        (
            "-----begin",
            r"-----BEGIN [A-Z ]*PRIVATE KEY-----(?:[\s\S]*?-----END [A-Z ]*PRIVATE KEY-----|[\s\S]*)",
        ),
        (
            "sig= x-amz key token",
            r"(?P<keep>[?&](?:sig|X-Amz-Signature|X-Amz-Security-Token|access_token|api_key|apikey|key|token)=)"
            r"[A-Za-z0-9%._~+/-]{8,}=*",
        ),
    )
)
_LOGIN = re.compile(r"(?P<keep>\b[a-z][a-z0-9+.-]*://)[^/\s'\"@<>]+(?=@[A-Za-z0-9\[])", re.IGNORECASE)
# One shell word: quoted and bare pieces without a space between, such as 'a'"b"c.
_SHAPES_OF: dict[str, list[re.Pattern[str]]] = {}
for _words_of_it, _shape in _SHAPES:
    for _hint in _words_of_it:
        _SHAPES_OF.setdefault(_hint, []).append(_shape)
# What stands in every line that holds a secret by its name.
_NAME_HINTS = (
    *("token", "secret", "pass", "pwd", "cred", "pat", "jwt", "webhook", "cookie", "bearer", "auth"),
    *("key", "dsn", "url", "uri", "proxy", "conn", "netrc"),
)
_LOGIN_HINT = "://"
_HINTS = tuple(dict.fromkeys((*_SHAPES_OF, *_NAME_HINTS, _LOGIN_HINT)))
_QUOTED = r"'[^'\n]*'|\"(?:\\.|[^\"\\\n])*\"|\$'[^'\n]*'"
_VALUE = re.compile(rf"(?:{_QUOTED}|\\[\"'][^\"'\\\n]*\\[\"']|[^\s;&|'\"\\,)}}\]]+|\\.)+")
# A name and what leads to its value; what follows a harmless name is looked at as a name itself.
_NAMED = re.compile(
    r"(?<![A-Za-z0-9_.])(?P<name>[A-Za-z_][A-Za-z0-9_.-]{0,200})(?:\\?[\"']?\s{0,8}(?:=>|[=:])\s{0,8})"
    r"|(?<![^\s'\"\[,(])--?(?P<option>[A-Za-z_][A-Za-z0-9_.-]{0,200})[\"']?,?\s{1,8}(?=[^-\s])"
)


@functools.lru_cache(maxsize=8192)
def is_secret_name(name: str) -> bool:
    """Whether a variable, an option or a key of this name holds a secret by its name."""
    plain = name.strip("-").replace("-", "_").rpartition(".")[2]
    if plain in _FOLDERS:
        return False
    if plain.lower() in _SECRET_NAMES:
        return True
    words = [word.lower() for word in _WORD.findall(plain)]
    if not words or words[-1] in _HARMLESS_LAST:
        return False
    last, before = words[-1], words[-2] if len(words) > 1 else ""
    if last == "key" or last == "keys":
        return before in _KEY_OF
    if last in ("token", "tokens", "pass"):
        return before not in _COUNTED and not any(word in ("max", "num", "per") for word in words)
    if last in _SECRET_WORDS:
        return True
    if last in ("value", "b64", "base64", "env", "string", "str", "url") and before in _SECRET_WORDS:
        return True
    return "".join(words).endswith(("apikey", "authtoken", "accesstoken", "secretkey", "password", "passwd"))


def holds_secret(name: str, value: str) -> bool:
    """Whether a variable's value is a secret: by its name, or by the value's own shape."""
    if not value or value.strip() in ("", MASK):
        return False
    plain = name.lower().replace("-", "_")
    if _MAY_HOLD_A_LOGIN.search(plain):
        return bool(_LOGIN.search(value)) or (is_secret_name(name) and "://" not in value)
    if is_secret_name(name):
        return not _is_plain(value)
    return any(shape.fullmatch(value.strip()) for _, shape in _SHAPES)


def secret_values(env: Mapping[str, str]) -> frozenset[str]:
    """The secrets in an environment, long enough not to hit by chance; of an address its login alone."""
    found: set[str] = set()
    for name, value in env.items():
        if not holds_secret(name, value):
            continue
        login = _LOGIN.search(value)
        secret = login[0].partition("://")[2].rpartition(":")[2] if login else value
        if len(secret) >= _SHORTEST:
            found.add(secret)
    return frozenset(found)


def redact_text(text: str, env: Mapping[str, str] | None = None) -> str:
    """`text` with the secrets of `env` (default: this process's) and what looks like one as ***."""
    return _replaced(text, spans(text, secret_values(os.environ if env is None else env)), lambda size: MASK)


def redact_log(data: bytes, values: Collection[str] = ()) -> bytes:
    """Whole lines of a log, secrets as asterisks of the same length, so that offsets in it stay."""
    text = data.decode("latin-1")
    low = text.lower() if data.isascii() else data.lower().decode("latin-1")  # of the same length
    hints = sorted([*_places(low, _HINTS), *((at, "") for at, _ in _places(text, values))])
    parts: list[str] = []
    done = index = 0
    while index < len(hints):
        # A private key has many lines; any other secret stands in one.
        hint = hints[index][0]
        start, end = max(done, text.rfind("\n", done, hint) + 1), text.find("\n", hint)
        key = low.find("-----begin", start, end if end >= 0 else len(low))
        if key >= 0:
            close = low.find("-----end", key)
            end = text.find("\n", close) if close >= 0 else -1
        end = len(text) if end < 0 else end
        words = set()
        while index < len(hints) and hints[index][0] < end:
            words.add(hints[index][1])
            index += 1
        line = text[start:end]
        shapes = {id(shape): shape for word in words for shape in _SHAPES_OF.get(word, ())}
        known = values if "" in words or key >= 0 else ()
        by_name = not words.isdisjoint(_NAME_HINTS)
        found = _spans(line, known, shapes.values(), logins=_LOGIN_HINT in words, names=by_name)
        parts += [text[done:start], _replaced(line, found, lambda size: "*" * size)]
        done = end
    return "".join([*parts, text[done:]]).encode("latin-1")


def _places(text: str, words: Iterable[str]) -> Iterator[tuple[int, str]]:
    """The first place of each word in each line that has it, with the word."""
    for word in words:
        at = text.find(word)
        while at >= 0:
            yield at, word
            line = text.find("\n", at)
            at = text.find(word, line) if line >= 0 else -1


def _replaced(text: str, found: list[tuple[int, int]], mask: Callable[[int], str]) -> str:
    parts: list[str] = []
    done = 0
    for start, end in found:
        parts += [text[done:start], mask(end - start)]
        done = end
    return "".join([*parts, text[done:]])


def spans(text: str, values: Collection[str] = ()) -> list[tuple[int, int]]:
    """Where in `text` secrets stand, in order and without overlap: `values`, known shapes, secret names."""
    return _spans(text, values, (shape for _, shape in _SHAPES), logins=True, names=True)


def _spans(
    text: str, values: Collection[str], shapes: Iterable[re.Pattern[str]], *, logins: bool, names: bool
) -> list[tuple[int, int]]:
    """The same of some shapes; logins and secret names where they are asked for."""
    found: list[tuple[int, int]] = []
    for value in values:
        at = text.find(value)
        while at >= 0:
            found.append((at, at + len(value)))
            at = text.find(value, at + len(value))
    for shape in shapes:
        found += [_after_keep(match) for match in shape.finditer(text)]
    if logins:
        found += _logins(text)
    if names:
        found += _named_values(text)
    return _merged(found)


def _logins(text: str) -> list[tuple[int, int]]:
    return [_after_keep(match) for match in _LOGIN.finditer(text) if _holds_a_login(match)]


def _merged(found: list[tuple[int, int]]) -> list[tuple[int, int]]:
    merged: list[tuple[int, int]] = []
    for start, end in sorted(found):
        if merged and start < merged[-1][1]:
            merged[-1] = (merged[-1][0], max(end, merged[-1][1]))
        else:
            merged.append((start, end))
    return merged


def _after_keep(match: re.Match[str]) -> tuple[int, int]:
    kept = match.groupdict().get("keep")
    return match.start() + len(kept or ""), match.end()


def _holds_a_login(match: re.Match[str]) -> bool:
    """`git@host` and `${USER}@host` hold no secret."""
    login = match[0].partition("://")[2]
    return not login.startswith("$") and (":" in login or (len(login) >= 16 and any(map(str.isdigit, login))))


def _named_values(text: str) -> Iterator[tuple[int, int]]:
    """Values of secret names in assignments, options, JSON and YAML."""
    done = 0
    for match in _NAMED.finditer(text):
        name = match["name"] or match["option"]
        if match.start() < done or not is_secret_name(name):
            continue
        value = _VALUE.match(text, match.end())
        if value is None or _is_plain(value[0].strip("\"'\\")):
            continue
        if _MAY_HOLD_A_LOGIN.search(name.lower().replace("-", "_")) and "://" in value[0]:
            continue  # the login in it is found by itself
        quote = re.match(r"\\?[\"']", value[0])
        # JSON and YAML stay readable by a machine.
        keep = len(quote[0]) if quote and value[0].endswith(quote[0]) and ":" in match[0] else 0
        yield value.start() + keep, value.end() - keep
        done = value.end()


def _is_plain(value: str) -> bool:
    """Whether a value is a switch, a number, a reference or empty, whatever its name."""
    return bool(
        re.fullmatch(
            r"(?i)|true|false|none|null|yes|no|on|off|auto|\d{1,5}(?:\.\d+)?|\$\{?[A-Za-z_]\w*\}?|\$\(.*|\*+",
            value,
        )
    )
