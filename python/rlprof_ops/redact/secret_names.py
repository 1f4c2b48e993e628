"""Names of variables, options and keys that hold a secret, and values that are none under any name."""

from __future__ import annotations

import functools
import re

MASK = "***"


def words(text: str) -> frozenset[str]:
    return frozenset(text.split())


# A name is split into words at `_`, `-`, `.`, and at the change from small to capital letters; digits count
# for nothing (`HF_TOKEN_1`).
_WORD = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+")
_SECRET_WORDS = words("""
    token tokens secret secrets password passwords passwd passphrase passcode pwd pass passwort credential
    credentials creds cred apikey apitoken authtoken accesstoken accesskey secretkey privatekey privkey pat
    jwt otp totp mnemonic sshpass webhook cookie cookies bearer
""")
# `key` alone names many harmless things (`prompt_key`, `sort_key`): what stands before it decides.
_SERVICES = words("""
    wandb openai anthropic hf huggingface aws azure gcp google github gh gitlab ngc nvidia cohere mistral
    together groq comet
    neptune clearml mlflow swanlab langsmith langfuse serper serpapi tavily brave datadog dd sentry
    slack telegram discord eb daytona modal runpod deepseek moonshot kimi dashscope zhipu minimax volc tencent
    aliyun alibaba baidu replicate fireworks anyscale perplexity xai grok voyage jina firecrawl exa pinecone
    qdrant weaviate stripe twilio sendgrid mailgun jira atlassian confluence docker registry pypi npm vault
    consul databricks snowflake grafana newrelic cloudflare supabase cerebras gemini openrouter dropbox feishu
    lark dingtalk wechat minio oss
""")
KEY_OF = _SERVICES | words("""
    api access secret private auth account storage encryption signing service master admin deploy ssh gpg pgp
    license subscription shared sas client app application consumer session jwt hmac
""")
_SECRET_NAMES = words("""
    database_url db_url redis_url mongo_url mongodb_uri dsn sqlalchemy_database_uri amqp_url broker_url
    http_proxy https_proxy all_proxy ftp_proxy connection_string conn_str netrc authorization
    proxy_authorization pgpassword mysql_pwd slurm_jwt pip_index_url pip_extra_index_url uv_index_url
    uv_extra_index_url _auth client_key_data
""")
# A shell's folders, whose names end like a password's.
_FOLDERS = frozenset({"PWD", "OLDPWD"})
# Of these only a value with a login in it is a secret.
_MAY_HOLD_A_LOGIN = re.compile(r"(_url|_uri|proxy|dsn)$")
# Paths to secrets, switches, counts and what a tokenizer is called are no secrets themselves.
_HARMLESS_LAST = words("""
    path file dir directory folder count length len size limit ratio type mode name names ids id num index idx
    budget rate per sec second seconds throughput parallelism tokenizer model class max min mean avg std sum
    total loss acc accuracy format style ttl expiry field column columns enabled required
""")
_COUNTED = words("""
    max min num n total mean avg sum prompt response completion generated new valid pad eos bos unk sep cls
    mask image video special stop input output context batch train eval val sequence seq microbatch
    loss think begin end start per vocab added extra trainable packed padding first last next cached
    reasoning text audio draft accepted active
""")
# What follows a secret's name and changes nothing.
_QUALIFIERS = words("""
    value b base env string str url prod production dev staging test live old new backup default main primary
    secondary plain raw encoded hex json rw ro
""")
_RUN_TOGETHER = (
    *("apikey", "authtoken", "accesstoken", "apitoken", "secretkey", "secretaccesskey", "accountkey"),
    *("privatekey", "password", "passwd"),
)
_PLAIN = re.compile(
    r"(?i)|true|false|none|null|nil|undefined|yes|no|on|off|auto|str|string|bytes|int|optional"
    r"|\d{1,5}(?:\.\d+)?|\d*\.\d*(?:e[+-]?\d+)?"
    r"|\$\{?[A-Za-z_]\w*\}?|\$\(.{0,1000}|[A-Za-z@]{0,2}\*+|<[a-z_ |-]*>"
)
# In every name that is a secret's, in small letters.
HINTS = (
    *("token", "secret", "pass", "pwd", "cred", "pat", "jwt", "otp", "mnemonic", "webhook", "cookie"),
    *("bearer", "auth", "key", "dsn", "url", "uri", "proxy", "conn", "netrc"),
)


@functools.lru_cache(maxsize=1 << 16)
def is_secret_name(name: str) -> bool:
    """Whether a variable, an option or a key of this name holds a secret by its name; digits in it count for
    nothing. Of a name with dots the last part decides, of `wandb.key` the last two.
    """
    *parents, plain = re.sub(r"\d", "", name).strip("-").replace("-", "_").split(".")
    if parents and plain.lower() in ("key", "keys"):
        plain = f"{parents[-1]}_{plain}"
    if plain in _FOLDERS:
        return False
    if plain.lower().strip("_") in _SECRET_NAMES or plain.lower() in _SECRET_NAMES:
        return True
    return _are_secret([word.lower() for word in _WORD.findall(plain)])


def _are_secret(parts: list[str]) -> bool:
    if not parts or parts[-1] in _HARMLESS_LAST:
        return False
    *front, last = parts
    before = front[-1] if front else ""
    if last in ("key", "keys"):
        return before in KEY_OF or _are_run_together(parts)
    if last == "tokens" and not front:
        return False  # pieces of words, in this field
    if last in ("token", "tokens", "pass"):
        return before not in _COUNTED and not any(word in ("max", "num", "per") for word in parts)
    if last in _SECRET_WORDS:
        return True
    if last in _QUALIFIERS and front:
        return (before in _SECRET_WORDS - {"tokens", "pass"} and _are_secret(front)) or (
            before in ("key", "keys") and _are_secret(front)
        )
    if last in _SERVICES and front:  # TOKEN_HF
        return before == "key" or (before in _SECRET_WORDS and _are_secret(front))
    return _are_run_together(parts)


def _are_run_together(parts: list[str]) -> bool:
    return "".join(parts).endswith(_RUN_TOGETHER)


def may_hold_a_login(name: str) -> bool:
    """Whether of a variable of this name only a login in its value is secret."""
    return _MAY_HOLD_A_LOGIN.search(name.lower().replace("-", "_")) is not None


def is_plain(value: str, name: str = "") -> bool:
    """Whether a value is a switch, a number, a type, a reference or empty, whatever its name. What is called
    a token may be the number of one.
    """
    if _PLAIN.fullmatch(value):
        return True
    return value.isdecimal() and len(value) < 10 and name.lower().endswith(("token", "tokens"))
