"""Shapes by which a secret is known wherever it stands: what services put before their keys, and the
commands, headers and addresses that carry one.

The prefixes and lengths are facts from what the services publish and from the rule sets of gitleaks and
detect-secrets.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from rlprof_ops.redact.secret_names import KEY_OF


@dataclass(frozen=True)
class Shape:
    """`hints`: words in small letters of which one stands in every line that holds the secret; `pattern`:
    where a group `keep` stands, it comes before the secret.
    """

    hints: tuple[str, ...]
    pattern: re.Pattern[str]


# What a key begins with, by the least number of letters, digits, `_` and `-` that follow.
_PREFIXES = {
    8: "hvs. hvb. hvr. ATATT3 ATCTT3 ATBB BBDC-",
    16: """
        glpat- gldt- glft- glrt- glcbt- glptt- glffct- glimt- glagent- gloas- glsoat- GR1348941 nvapi- pypi-
        lsv2_pt_ lsv2_sk_ lin_api_ lin_oauth_ pplx- wandb_v1_ tvly- figd_ sntrys_ sntryu_ glsa_ glc_ shpat_
        shpca_ shppa_ shpss_ sq0atp- sq0csp- PMAK- pnu_ pul- rdme_ rubygems_ xkeysib- xsmtpsib- pscale_tkn_
        pscale_pw_ pscale_oauth_ NRAK- NRJS- HRKU- tskey- CCIPAT_ CCIPRJ_ dckr_pat_ dckr_oat_ whsec_ sbp_
        sb_secret_ GOCSPX- tgp_v1_ bedrock-api-key- ya29. dp.pt. dp.st. dp.ct. phx_ pk-lf- SWMTKN-1- csk-
        github_pat_ sqp_ sgp_ jina_ rpa_ e2b_ dtn_ xai- ntn_
    """,
    20: "ghp_ gho_ ghu_ ghs_ ghr_ api_org_ gsk_ AGE-SECRET-KEY-1 AKCp cmVmd ABSK ops_eyJ AQVN",
    30: "AIza npm_ r8_ dapi dop_v1_ doo_v1_ dor_v1_ sha256~ EAAC EAAM fo1_ fm2_",
}
_REST = r"[^\s'\"\\<>]"
_SCHEMES = "bearer|basic|token|negotiate|apikey|digest"
_SHAPES = (
    ("hf_", r"(?<![A-Za-z0-9])hf_[A-Za-z0-9]{8,}"),
    ("sk-", r"(?<![A-Za-z0-9])sk-(?:ant-|proj-|or-|svcacct-|lf-|admin-)?[A-Za-z0-9_-]{16,}"),
    (
        "sk_live|sk_test|rk_live|rk_test|pk_live|pk_test",
        r"(?<![A-Za-z0-9])(?:sk|rk|pk)_(?:live|test)_[A-Za-z0-9]{10,}",
    ),
    ("akia|asia|abia|acca", r"\b(?:AKIA|ASIA|ABIA|ACCA)[A-Z0-9]{16}\b"),
    ("ltai|akid", r"\b(?:LTAI[A-Za-z0-9]{12,26}|AKID[A-Za-z0-9]{28,36})\b"),
    ("xox|xapp-", r"\b(?:xox[abceoprs][.-]|xapp-\d-)[A-Za-z0-9.-]{10,}"),
    ("sg.", r"\bSG\.[A-Za-z0-9_-]{16,}\.[A-Za-z0-9_-]{16,}"),
    # Inside a long text without spaces a header of usual length: each place is looked at from each before it.
    ("eyj|eyi", r"(?:(?<![A-Za-z0-9_-])ey[JI][A-Za-z0-9_-]{8,}\.|(?<=[_-])ey[JI][A-Za-z0-9_-]{8,500}\.)"
                r"(?:ey[A-Za-z0-9_-]{8,}|[A-Za-z0-9_-]*\.[A-Za-z0-9_-]{8,})"
                r"[A-Za-z0-9._-]*"),
    (":aa", r"(?<![0-9A-Za-z])(?:bot)?\d{8,12}:AA[A-Za-z0-9_-]{32,34}(?![A-Za-z0-9_-])"),
    ("q~", r"(?<![A-Za-z0-9_~.])[A-Za-z0-9_~.]{3}\dQ~[A-Za-z0-9_~.-]{31,34}"),
    ("dtc.", r"\bdt0c01\.[A-Za-z0-9]{24}\.[A-Za-z0-9]{20,}"),
    ("ls0tls1crudjt", r"LS0tLS1CRUdJTi(?!BDRVJU)[A-Za-z0-9+/=]{20,}"),
    ("hooks.slack", r"https://hooks\.slack\.com/(?:services|workflows|triggers)/[A-Za-z0-9/_+-]+"),
    ("webhook.office|/api/webhooks", rf"https://(?:[a-z0-9.-]*webhook\.office|(?:\w+\.)?discord(?:app)?)\.com/{_REST}+"),
    ("open.feishu|open.lark", rf"https://open\.(?:feishu\.cn|larksuite\.com)/open-apis/bot/{_REST}+"),
    ("qyapi.weixin", rf"(?P<keep>https://qyapi\.weixin\.qq\.com/{_REST}{{1,60}}?key=)[A-Za-z0-9-]+"),
    (
        "bearer |basic |token |negotiate |apikey |digest ",
        rf"(?P<keep>\b(?i:{_SCHEMES})\s+)(?=[A-Za-z0-9._~+/-]*\d)[A-Za-z0-9._~+/-]{{8,}}=*",
    ),
    (
        "authorization",
        rf"(?P<keep>(?i:authorization)(?:\\*[\"'])?\s*[:=,]\s*(?:b?\\*[\"'])?(?:(?i:{_SCHEMES})\s+)?)"
        rf"(?!(?:{_SCHEMES})\b)[^\s'\",;}}\\]{{4,}}",
    ),
    (
        "cookie",
        r"(?P<keep>(?i:\b(?:set-)?cookie)(?:\\*[\"'])?\s*[:=]\s*(?:\\*[\"'])?)[\w.-]+=[^\"'\\\n]{4,}",
    ),
    (
        "login",
        r"(?P<keep>\b(?:wandb|swanlab|clearml|comet|neptune)\s+login\s+(?:--?[a-z][a-z-]*(?:=\S+)?\s+)*)[A-Za-z0-9_-]{16,}",
    ),
    (
        "login",
        r"(?P<keep>\b[a-z_]+\.login\s*\([^)\n]{0,200}?\b(?:key|api_key|token)\s*=\s*[rbfu]?\\*[\"'])[^\"'\\\n]+",
    ),
    ("login", r"(?P<keep>\b(?:wandb|swanlab|huggingface_hub|hf|comet_ml|neptune)"
     r"\.?login\s*\(\s*\\*[\"'])[^\"'\\\n]+"),
    ("login(", r"(?P<keep>(?<![\w.])(?:[a-z_]+\.)?login\(\s*\\*[\"'])[A-Za-z0-9_-]{16,}"),
    ("login", r"(?P<keep>\b(?:huggingface-cli|hf)\s+(?:auth\s+)?login\s+--token[ =])\S+"),
    ("sshpass", r"(?P<keep>\bsshpass\s+-p\s*)(?:'[^']*'|\"[^\"]*\"|\S+)"),
    ("mysql|mariadb", r"(?P<keep>\b(?:mysql|mysqldump|mariadb)\b[^\n|;&]{0,300}?\s-p)(?=[^\s-])\S+"),
    ("curl|wget|http ", r"(?P<keep>\b(?:curl|wget|http)\b[^\n|;&]{0,300}?"
     r"\s(?:-u|--user|-a)[ =]?[\"']?[^\s:'\"]+:)[^\s'\"]+"),
    ("login", r"(?P<keep>\b(?:docker|podman|helm|oras|crane)\s"
     r"[^\n|;&]{0,40}\blogin\b[^\n|;&]{0,300}?\s-p[ =]?)\S+"),
    ("redis-cli", r"(?P<keep>\bredis-cli\b[^\n|;&]{0,200}?\s-a[ =]?)\S+"),
    ("openssl", r"(?P<keep>\bopenssl\b[^\n|;&]{0,300}?\s(?:-k\s+|-pass\w*\s+pass:|-passw?\w*\s+pass:))\S+"),
    ("net use", r"(?P<keep>\bnet use\s+\S+\s+\S+\s+/user:\S+\s+)\S+"),
    # A service's settings printed whole: wandb=Namespace(key='…'), 'wandb': {'key': '…'
    (
        "key='|key=\"|'key'|\"key\"|key\\",
        rf"(?P<keep>(?<![A-Za-z0-9])(?i:{'|'.join(sorted(KEY_OF))})\\*[\"']?\s{{0,4}}[:=]\s{{0,4}}[\w.]{{0,40}}[({{]"
        rf"[^(){{}}\n]{{0,300}}?(?<![\w.])key\\*[\"']?\s{{0,4}}[:=]\s{{0,4}}[rbfu]?\\*[\"'])[^\"'\\\n]+",
    ),
    # Of .netrc, on one line and on its own.
    ("machine ", r"(?P<keep>\bmachine\s+\S+\s+(?:(?:login|account)\s+\S+\s+)+password\s+)\S+"),
    ("password", r"(?m:(?P<keep>^(?:\(.{0,80}\))?\s*password[ \t]+)\S+(?=\s*(?:$|\()))"),
    ("login", r"(?P<keep>\blogin\s+\S+\s+password\s+)\S+"),
    # .pgpass: host:port:database:user:password
    (":5432:", r"(?P<keep>(?<![\w.*-])[\w.*-]{1,80}:5432:[^:\s]+:[^:\s]+:)[^\s\"\\]+"),
    (
        "?sig=|&sig=|?x-amz-|&x-amz-|?key=|&key=|?token=|&token=|?code=|&code=",
        r"(?P<keep>[?&](?:sig|X-Amz-(?:Signature|Security-Token|Credential)|key|token|code)=)[A-Za-z0-9%._~+/-]{8,}=*",
    ),
)  # fmt: skip


def _families() -> Iterator[tuple[str, str]]:
    for least, prefixes in _PREFIXES.items():
        names = prefixes.split()
        yield (
            "|".join(names),
            rf"(?<![A-Za-z0-9])(?:{'|'.join(map(re.escape, names))})"
            rf"[A-Za-z0-9_-]{{{least},}}[A-Za-z0-9._=-]*",
        )


SHAPES = tuple(
    Shape(tuple(hints.lower().split("|")), re.compile(pattern)) for hints, pattern in (*_families(), *_SHAPES)
)
# An address with a login in it; `git@host` and `${USER}@host` hold no secret.
LOGIN = re.compile(
    r"(?P<keep>\b[a-z][a-z0-9+.-]{0,30}://)(?P<login>[^/\s'\"@<>]+)(?=@[A-Za-z0-9\[])", re.IGNORECASE
)


def is_login(login: str) -> bool:
    return not login.startswith("$") and (":" in login or (len(login) >= 16 and any(map(str.isdigit, login))))


# A private key or another secret block of many lines: its first line, and what its others look like.
KEY_BEGIN = re.compile(r"-{4,5} ?BEGIN [A-Z0-9 ]*(?:PRIVATE KEY(?: BLOCK)?|PGP MESSAGE) ?-{4,5}")
KEY_END = re.compile(r"-{4,5} ?END [A-Z0-9 ]*-{4,5}")
KEY_HINT = "begin "
MOST_KEY = 64 << 10  # characters that a block can have
