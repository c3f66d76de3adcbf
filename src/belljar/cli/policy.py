"""`belljar policy`: is a policy file sound, and what does it grant?"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from belljar.errors import BadRequest

if TYPE_CHECKING:
    from collections.abc import Iterable

    from belljar.policy.decisions import Decision, PolicySet

app = typer.Typer(help="What may run, and with what.", no_args_is_help=True)


@app.command("check")
def check(file: Annotated[str, typer.Argument(help="A policy file.")]) -> None:
    """Say whether a policy file can be used; if not, what is wrong and in which line."""
    from belljar.policy.files import load
    from belljar.policy.roles import Tool

    policies = load(file)
    tools = [tool for tool in policies.tools.values() if tool != Tool(tool.name)]  # not just built in
    typer.echo(f"{policies.name}: ok, {_count(policies.roles, 'role')}, {_count(tools, 'tool')}")


@app.command("explain")
def explain(
    policy: Annotated[str | None, typer.Option(help="A policy file.")] = None,
    profile: Annotated[str | None, typer.Option(help="A policy that comes with belljar.")] = None,
    role: Annotated[str | None, typer.Option(help="A role of the policy.")] = None,
    tool: Annotated[str | None, typer.Option(help="A tool.")] = None,
    skill: Annotated[str | None, typer.Option(help="A skill's manifest.json.")] = None,
    set_: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="NAME=VALUE", help="What a request asks for: limits.memory_mb=1024."),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Show every field of the grant, the layer that set it, and how far a request could go.

    Without --policy and --profile: what runs here are granted, as the configuration has it.
    """
    from belljar.policy import manifests
    from belljar.policy.decisions import decide

    policies = _policies(policy, profile)
    layer = manifests.load(skill) if skill is not None else None
    decision = decide(
        policies,
        role=role,
        tool=tool if tool is not None else policies.usual_tool(role, layer),
        skill=layer,
        overrides=_overrides(set_ or ()),
    )
    if as_json:
        import json

        typer.echo(json.dumps(decision.as_data(), indent=2))
    else:
        _print_decision(decision)


def _policies(policy: str | None, profile: str | None) -> PolicySet:
    from belljar.policy.files import load, load_profile

    if policy is not None and profile is not None:
        raise BadRequest("--policy and --profile exclude each other; give one of them", field="profile")
    if policy is not None:
        return load(policy)
    if profile is not None:
        return load_profile(profile)
    from belljar.config import load_here
    from belljar.wiring import policies_of

    return policies_of(load_here())


def _overrides(settings: Iterable[str]) -> dict[str, object]:
    """`name=value` pairs; a value that is JSON is taken as such, any other as text."""
    import json

    from belljar.wording import quoted

    overrides: dict[str, object] = {}
    for setting in settings:
        name, equals, text = setting.partition("=")
        if not equals:
            raise BadRequest("--set needs a name and a value, like `limits.memory_mb=1024`", field="set")
        if name in overrides:
            raise BadRequest(f"--set {quoted(name)} is given twice", field="set")
        try:
            overrides[name] = json.loads(text)
        except (ValueError, RecursionError):
            overrides[name] = text
    return overrides


def _print_decision(decision: Decision) -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table("field", "value", "layer", "ceiling", "ceiling's layer", header_style="bold")
    for row in decision.explain():
        cells = (row.field, _shown(row.value), row.layer, _shown(row.ceiling), row.ceiling_layer or "-")
        table.add_row(*map(Text, cells))
    console = Console()
    if not console.is_terminal:
        console.width = 200  # for whoever reads it later: no line breaks for a screen that is not there
    console.print(table)


def _shown(value: Any) -> str:
    from belljar.models import NetworkRules, PatternRules

    if value is None or value == ():
        return "-"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, frozenset):
        return ", ".join(sorted(value)) or "none"
    if isinstance(value, tuple):
        return "\n".join(_shown(item) for item in value)
    if isinstance(value, PatternRules | NetworkRules):
        parts = [
            f"{name}={', '.join(map(str, part)) or 'none'}"
            for name in value.__slots__
            if name != "layer" and (part := getattr(value, name)) is not None and (part or name in _ALLOWING)
        ]
        return f"{value.layer}: {'; '.join(parts)}"
    return str(value)


_ALLOWING = ("allow", "hosts", "ports", "addresses")


def _count(things: Any, noun: str) -> str:
    return f"{len(things)} {noun}{'' if len(things) == 1 else 's'}"
