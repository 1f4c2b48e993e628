"""Writes what is made from the code: docs/backends.md, knobs.md, the tables of windows in request.md, of what
is seen and of releases in unmodified.md, and the JSON Schema of report.json; tests compare. The pages of
commands, of Python and of schemas are only in the site: `make docs` calls `on_files`, a hook of MkDocs.

python docs/generate.py [folder]: into a folder those pages, too
"""

from __future__ import annotations

import inspect
import json
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

sys.path.insert(0, str(Path(__file__).parent))
from api_page import api_page
from seen_table import seen_table

from rlprof_ops import analyze, backends
from rlprof_ops.analyze.report_model import json_schema
from rlprof_ops.backends import window_support
from rlprof_ops.cli import cli
from rlprof_ops.commands import GROUPS, START_WITH
from rlprof_ops.commands._old_spellings import SPELLINGS
from rlprof_ops.commands.schema import SCHEMAS, load
from rlprof_ops.job.knobs import reference

if TYPE_CHECKING:
    from mkdocs.config.defaults import MkDocsConfig
    from mkdocs.structure.files import Files

REPORT_SCHEMA = Path(analyze.__file__).parent / "output" / "report.schema.json"  # rlprof schema report


def pages() -> dict[str, str]:
    """File name -> text of every page in docs/ that is made, or has a table that is."""
    return {
        "backends.md": backend_page(),
        "knobs.md": reference(),
        "request.md": request_page(),
        "unmodified.md": unmodified_page(),
    }


def built_pages() -> dict[str, str]:
    """File name -> text of every page that only the site has."""
    return {"api.md": api_page(), "cli.md": command_page(), "schemas.md": schema_page()}


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Called by MkDocs (`hooks` in mkdocs.yml) with the files that it found."""
    from mkdocs.structure.files import File

    for name, text in built_pages().items():
        files.append(File.generated(config, name, content=text))
    return files


def request_page() -> str:
    """docs/request.md with the table of windows as it is now."""
    return _with_table("request.md", _WINDOWS, window_table())


def unmodified_page() -> str:
    """docs/unmodified.md with what adapters see, and the table of releases as the record has it."""
    text = _with_table("unmodified.md", _SEEN, seen_table())
    return _with_table("unmodified.md", _RELEASES, release_table(), text)


def _with_table(page: str, begins: str, table: str, text: str = "") -> str:
    text = text or (Path(__file__).parent / page).read_text(encoding="utf-8")
    before, begin, rest = text.partition(begins)
    _, end, after = rest.partition("<!-- end of table -->")
    return "".join([before, begin, "\n", table, end, after])


_WINDOWS = "<!-- windows: made by docs/generate.py from rlprof_ops.backends.window_support -->"
_SEEN = "<!-- seen: made by docs/generate.py from the adapters and tests/trainers/seen.json -->"
_RELEASES = "<!-- releases: made by docs/generate.py from tests/trainers/releases.json -->"


def release_table() -> str:
    """Distribution x releases that were looked at x what an adapter follows and a release has not."""
    record = Path(__file__).parents[1] / "tests" / "trainers" / "releases.json"
    lines = ["", "| package | releases | what is not there to follow |", "|---|---|---|"]
    for name, releases in json.loads(record.read_text(encoding="utf-8")).items():
        lacking: dict[str, list[str]] = {}
        for version, answer in releases.items():
            for module, why in answer.items():
                if why:
                    what = f"`{module}`" if why.startswith("there is no") else f"`{module}`: {why}"
                    lacking.setdefault(what, []).append(version)
        notes = "; ".join(f"{what} until {versions[-1]}" for what, versions in lacking.items())
        first, *_, last = [next(iter(releases)), *releases]
        lines.append(f"| {name} | {len(releases)}, {first} to {last} | {notes or '–'} |")
    return "\n".join([*lines, ""]) + "\n"


def window_table() -> str:
    """Who opens a window x backend x what is asked of it, with the words of a refusal."""
    every, notes, lines = backends.every(), list[str](), list[str]()
    for driver, meaning in window_support.DRIVERS.items():
        lines += ["", f"| {meaning} | {' | '.join(f'`{each.name}`' for each in every)} |"]
        lines.append("|---" * (len(every) + 1) + "|")
        for feature in window_support.FEATURES:
            cells = [support_cell(window_support.support(each, driver, feature), notes) for each in every]
            lines.append(f"| `{feature}` | {' | '.join(cells)} |")
    lines += ["", *(f"{number}. {note}" for number, note in enumerate(notes, 1)), ""]
    return "\n".join(lines) + "\n"


def support_cell(found: window_support.Support, notes: list[str]) -> str:
    """`yes`, or `no (2)` with the number of its note."""
    note = found.refused or found.how
    if note and note not in notes:
        notes.append(note)
    number = f" ({notes.index(note) + 1})" if note else ""
    return f"{'no' if found.refused else 'yes'}{number}"


def backend_page() -> str:
    """What each backend says of itself, and how another package brings one."""
    lines = [
        "# Backends",
        "",
        "The profilers that a capture may name (`backend:`). Made from their folders by `docs/generate.py`.",
        "",
        "| backend | takes | also called | its reports end | the process is started by it | on demand |",
        "|---|---|---|---|---|---|",
    ]
    for each in backends.every():
        also = ", ".join(f"`{word}`" for word in each.aliases)
        ends = ", ".join(f"`{suffix}`" for suffix in each.suffixes)
        answers = ("yes" if each.wrap else "no", "yes" if each.on_demand else "no")
        lines.append(f"| `{each.name}` | {each.summary} | {also} | {ends} | {' | '.join(answers)} |")
    return "\n".join([*lines, "", _OWN_BACKEND])


_OWN_BACKEND = """## One of your own

In this repository a backend is a folder `backends/<name>/` (`CONTRIBUTING.md`, "To add"). Elsewhere, a
package brings a backend with an entry point of the group `rlprof_ops.backends`: its name is what a
request writes, its value a `Backend` (`rlprof_ops.backends.contract`, where every attribute and method is
explained).

    [project.entry-points."rlprof_ops.backends"]
    pyspy = "rlprof_pyspy:BACKEND"

`tests/backends/third_party` of the checkout is a whole one: py-spy beside the process, one file of stacks
a window.

- `recorder(spec, beside)` gives an object with `open(target)`, `entered(step)` and `close()`, which
  returns the finished file. It runs inside the training process: the standard library alone, and what the
  package itself needs there.
- `validate` is asked by `plan`, `submit`, the job and the workers; `check` when the report is finished
  and at harvest.
- `wrap` is for a profiler that has to start the process; `ray_plugin` for one that Ray has a plugin of.
- Install it where requests are written, where workers run, and where `rlprof harvest` runs. A node that
  lacks it still reads the request, and says of that capture: `unknown backend 'pyspy'`.
- Names of ours cannot be taken. Entry points are read only for a name that rlprof-ops itself does not
  have.
"""


def command_page() -> str:
    """Every command's help and options; made from click's objects, since its own layout differs from
    version to version.
    """
    lines = [
        "# Commands",
        "",
        (
            "`rlprof COMMAND --help` says the same. `python3 -m rlprof_ops COMMAND` works with only PyYAML"
            " and click installed, for all but `report`, `timeline`, `diff` and the table of `top`, which"
            " need the extra `analyze`; what lacks an extra names it in one line. Made by `docs/generate.py`."
        ),
        "",
        "Exit codes are in [operators.md](operators.md#exit-codes-of-rlprof).",
    ]
    parent = click.Context(cli, info_name="rlprof")
    linked = {name: f"[`{name}`](#rlprof-{name})" for name in cli.list_commands(parent)}
    old = ", ".join(f"`{name}` is `{now}`" for name, (now, _) in SPELLINGS.items())
    lines += [
        f"Start with {', '.join(linked[name] for name in START_WITH)}. All of them:",
        "",
        "| | |",
        "|---|---|",
        *(f"| {group} | {', '.join(linked[name] for name in names)} |" for group, names in GROUPS.items()),
        "",
        f"Old names work for one release: {old}. Each is now part of one command:",
        *_WHY,
    ]
    for group, names in GROUPS.items():
        lines += ["", f"## {group.capitalize()}"]
        for name in names:
            lines += command_part(name, cli.get_command(parent, name))
    return "\n".join(lines) + "\n"


_WHY = (
    "`ps` lists jobs, whether Slurm or a folder knows them. `top` shows what a job does now, here or in a",
    "browser. `report` explains one, in a file or served. `convert` turns a request into a trainer's words",
    "and back. `rlprof help COMMAND` is `rlprof COMMAND --help`.",
)


def command_part(name: str, command: click.Command | None) -> list[str]:
    """The usage, help and options of one command."""
    assert command is not None
    words = " ".join(argument(p) for p in command.params if isinstance(p, click.Argument))
    usage = f"rlprof {name} [OPTIONS] {words}".rstrip()
    lines = ["", f"### rlprof {name}", "", "```text", usage, "```", "", help_text(command)]
    options = [p for p in command.params if isinstance(p, click.Option) and not p.hidden]
    if options:
        lines += ["", "| option | meaning |", "|---|---|"]
        lines += [f"| {option_name(p)} | {cell(p.help or '')} |" for p in options]
    return lines


def argument(param: click.Argument) -> str:
    """`JOB`, `[NODE]`, `WORD...`"""
    word = (
        (param.metavar or param.name or "").upper()
        if not isinstance(param.type, click.Choice)
        else "|".join(param.type.choices)
    )
    if word.startswith("["):
        return word
    word = word.removesuffix("...") + ("..." if param.nargs == -1 else "")
    return word if param.required else f"[{word}]"


def option_name(param: click.Option) -> str:
    """Its names, and what kind of value follows."""
    names = ", ".join(f"`{name}`" for name in (*param.opts, *param.secondary_opts))
    if param.is_flag or param.count:
        return names
    kind = (
        "\\|".join(param.type.choices)
        if isinstance(param.type, click.Choice)
        else (param.metavar or param.type.name.upper())
    )
    return f"{names} {cell(kind)}" + (" (several)" if param.multiple else "")


def help_text(command: click.Command) -> str:
    """The command's help as paragraphs; blocks that click leaves as they are (after a backspace) stay
    blocks.
    """
    paragraphs = []
    for paragraph in inspect.cleandoc(command.help or "").split("\n\n"):
        if paragraph.startswith("\b\n"):
            paragraphs.append(f"```text\n{paragraph[2:]}\n```")
        elif paragraph.lstrip().startswith("Example"):
            paragraphs.append(f"```text\n{paragraph}\n```")
        else:
            paragraphs.append(paragraph.replace("<", "&lt;").replace("*", r"\*"))
    return "\n\n".join(paragraphs)


def cell(text: str) -> str:
    return (
        " ".join(text.split()).replace("<", "&lt;").replace("*", r"\*")
        if "`" not in text
        else " ".join(text.split())
    )


def schema_page() -> str:
    """The fields of each JSON document, from its JSON Schema."""
    lines = [
        "# Schemas",
        "",
        (
            "The documents that programs may read, and their JSON Schemas (draft 2020-12): `rlprof schema"
            " request`, `manifest`, `run` or `report` prints the whole schema. Made from them by"
            " `docs/generate.py`."
        ),
    ]
    for name, meaning in SCHEMAS.items():
        schema = load(name)
        lines += ["", f"## {name}", "", f"{meaning}", ""]
        if about := schema.get("description"):
            lines += [about, ""]
        lines += ["| field | type | meaning |", "|---|---|---|"]
        lines += [f"| `{path}` | {kind} | {text} |" for path, kind, text in fields(schema, schema)]
    return "\n".join(lines) + "\n"


def fields(
    node: Mapping[str, Any], root: Mapping[str, Any], path: str = "", depth: int = 0
) -> Iterator[tuple[str, str, str]]:
    """`path, type, meaning` of every property below a node; lists add `[]`, open mappings `.*`."""
    node = resolved(node, root)
    for name, child in node.get("properties", {}).items():
        yield from field(child, root, f"{path}.{name}" if path else name, depth)
    extra = node.get("additionalProperties")
    if isinstance(extra, Mapping) and path:
        yield from fields(extra, root, f"{path}.*", depth + 1)


def field(
    child: Mapping[str, Any], root: Mapping[str, Any], path: str, depth: int
) -> Iterator[tuple[str, str, str]]:
    inner = resolved(child, root)
    text = child.get("description") or inner.get("description") or ""
    yield path, kind_of(child, root), " ".join(text.split()).replace("|", r"\|").replace("<", "&lt;")
    if depth > 4:
        return
    yield from fields(inner, root, path, depth + 1)
    if isinstance(inner.get("items"), Mapping):
        yield from fields(inner["items"], root, f"{path}[]", depth + 1)


def resolved(node: Mapping[str, Any], root: Mapping[str, Any]) -> Mapping[str, Any]:
    """The node that a `$ref` inside the same schema means."""
    while "$ref" in node:
        found: Any = root
        for part in node["$ref"].removeprefix("#/").split("/"):
            found = found[part]
        node = found
    return node


def kind_of(node: Mapping[str, Any], root: Mapping[str, Any]) -> str:
    """A type in a few words: `string`, `list of integer`, `one of a, b`, `string or null`."""
    node = resolved(node, root)
    if "const" in node:
        return f"`{json.dumps(node['const'])}`"
    if "enum" in node:
        return "one of " + ", ".join(f"`{value}`" if value is not None else "null" for value in node["enum"])
    for word in ("anyOf", "oneOf"):
        if word in node:
            return " or ".join(dict.fromkeys(kind_of(choice, root) for choice in node[word]))
    kind = node.get("type", "anything")
    if isinstance(kind, list):
        return " or ".join(kind)
    if kind == "array" and isinstance(node.get("items"), Mapping):
        return f"list of {kind_of(node['items'], root)}"
    return str(kind)


def main() -> None:
    folder, written = Path(__file__).parent, pages()
    if len(sys.argv) > 1:
        folder, written = Path(sys.argv[1]), {**written, **built_pages()}
    else:
        REPORT_SCHEMA.write_text(json.dumps(json_schema(), indent=1) + "\n", encoding="utf-8")
    for name, text in written.items():
        (folder / name).write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
