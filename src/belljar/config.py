"""Reads the settings, once, from everywhere they may be given.

    default < machine file < user file < project file < environment < command line

A project file comes with a clone and may be hostile, so it can only narrow: it may lower a limit, never
raise one, and has no say in what isolates, where secrets are or where records go.

Nobody else reads `os.environ`.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

from belljar import strictyaml
from belljar.errors import BadConfig
from belljar.settings import (
    ROOT,
    SECTIONS,
    SETTINGS,
    Config,
    Layer,
    Setting,
    Source,
    as_written,
    by_key,
    limits_from,
    stated_limits,
)
from belljar.wording import nearest, printable, quoted

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

__all__ = ["SETTINGS", "Config", "Layer", "Source", "limits_from", "load", "load_here", "stated_limits"]

MACHINE_FILE = Path("/etc/belljar/config.yaml")
PROJECT_FILE = ".belljar/config.yaml"

_TRACES_TO = ("OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT")
_BY_ENV = {setting.env: setting for setting in SETTINGS}

Given = tuple[Setting, object, Source]


def load_here(cli: Mapping[str, str] | None = None) -> Config:
    """`load` for this process and its working directory."""
    try:
        cwd, home = Path.cwd(), Path.home()
    except OSError as exc:
        raise BadConfig(f"the working directory cannot be used: {exc.strerror}; go to another one") from exc
    except RuntimeError as exc:
        raise BadConfig("this user has no home directory; set HOME") from exc
    return load(environ=os.environ, cwd=cwd, home=home, cli=cli)


def load(
    *,
    environ: Mapping[str, str],
    cwd: Path,
    home: Path,
    cli: Mapping[str, str] | None = None,
    machine_file: Path = MACHINE_FILE,
) -> Config:
    """All layers merged. `cli` maps whole keys (`sandbox.memory_mb`) to text.

    Raises:
        BadConfig: an unknown key, a bad value, an unreadable file, or a project file that asks for more.
    """
    user_file = _xdg(environ, "XDG_CONFIG_HOME", home / ".config") / "belljar/config.yaml"
    files = {Layer.MACHINE: machine_file, Layer.USER: user_file, Layer.PROJECT: _project_file(cwd, home)}
    config = Config(data_dir=_xdg(environ, "XDG_DATA_HOME", home / ".local/share") / "belljar")
    values: dict[str, Any] = {setting.attribute: getattr(config, setting.attribute) for setting in SETTINGS}
    sources: dict[str, Source] = {}
    for setting, given, source in _given(files, environ, cli or {}):
        value = _accepted(setting, given, source)
        if isinstance(value, Path):
            # A path in a file is relative to the file, so that it means the same wherever one stands.
            file = files.get(source.layer)
            value = _anchored(value, file.parent if file else cwd, home)
        if source.layer is Layer.PROJECT:
            _check_narrower(setting, value, values[setting.attribute], source, user_file)
        values[setting.attribute] = value
        sources[setting.key] = source
    return Config(**values, traced=_traced(environ), sources=sources)


def _xdg(environ: Mapping[str, str], name: str, default: Path) -> Path:
    given = Path(environ.get(name, ""))
    return given if given.is_absolute() else default  # the specification says to ignore a relative one


def _traced(environ: Mapping[str, str]) -> bool:
    """Only whether; the SDK of OpenTelemetry reads its variables itself."""
    off = (
        environ.get("OTEL_SDK_DISABLED", "").lower() == "true"
        or environ.get("OTEL_TRACES_EXPORTER") == "none"
    )
    return not off and any(map(environ.get, _TRACES_TO))


def _project_file(cwd: Path, home: Path) -> Path | None:
    """The nearest one from the working directory upwards; neither the home directory nor `/` is a project."""
    for folder in (cwd, *cwd.parents):
        if folder in (home, Path(folder.anchor)):
            return None
        if os.path.lexists(folder / PROJECT_FILE):
            return folder / PROJECT_FILE
    return None


def _anchored(path: Path, base: Path, home: Path) -> Path:
    if path.parts[:1] == ("~",):
        return home.joinpath(*path.parts[1:])
    return base / path


def _given(
    files: Mapping[Layer, Path | None], environ: Mapping[str, str], cli: Mapping[str, str]
) -> Iterator[Given]:
    for layer, path in files.items():
        if path is not None and _is_there(path):
            yield from _from_file(path, layer)
    for name, text in environ.items():
        # Set but empty is how a compose file passes on a variable that nobody has set.
        if name.startswith("BELLJAR_") and text:
            if name not in _BY_ENV:
                hint = nearest(name, _BY_ENV)
                raise BadConfig(f"environment: unknown variable {quoted(name)}{hint}", field=name)
            yield _from_text(_BY_ENV[name], text, Source(Layer.ENVIRONMENT, name))
    for key, text in cli.items():
        yield _from_text(by_key(key, where="command line"), text, Source(Layer.COMMAND_LINE))


def _is_there(path: Path) -> bool:
    """Only absence is absence: a file that cannot be looked at must not be passed over."""
    try:
        path.lstat()
    except (FileNotFoundError, NotADirectoryError):
        return False
    except (OSError, ValueError):
        pass
    return True


def _from_file(path: Path, layer: Layer) -> Iterator[Given]:
    name = printable(path)
    lines: dict[str, int] = {}
    for key, node in _leaves(strictyaml.read_file(path), "", name):
        where = f"{name}:{node.line}"
        setting = by_key(key, where=where)
        if key in lines:
            raise BadConfig(
                f"{where}: duplicate key {quoted(key)}; it is already given on line {lines[key]}", field=key
            )
        lines[key] = node.line
        value = tuple(item.value for item in node.value) if isinstance(node.value, tuple) else node.value
        yield setting, value, Source(layer, where)


def _leaves(node: strictyaml.Node, key: str, name: str) -> Iterator[tuple[str, strictyaml.Node]]:
    """Values of a file by whole key; `jail: {rootfs: …}` and `jail.rootfs: …` say the same."""
    if key and key not in SECTIONS:
        yield key, node
    elif isinstance(node.value, dict):
        for part, below in node.value.items():
            yield from _leaves(below, f"{key}.{part}" if key else part, name)
    elif node.value is not None:
        what = quoted(key) if key else "the file"
        raise BadConfig(f"{name}:{node.line}: {what} must hold settings, such as `{ROOT}.memory_mb: 512`")


def _from_text(setting: Setting, text: str, source: Source) -> Given:
    try:
        return setting, setting.kind.from_text(text), source
    except ValueError as exc:
        raise BadConfig(
            f"{source.where or source.layer}: {quoted(setting.key)}: {exc}", field=setting.key
        ) from exc


def _accepted(setting: Setting, value: object, source: Source) -> Any:
    try:
        return setting.kind.accept(value)
    except ValueError as exc:
        message = f"{source.where or source.layer}: {quoted(setting.key)} must be {setting.kind.says}"
        if value is None:
            message += "; give it a value or leave the key out"
        elif not setting.secret:
            message += f", not {_shown(value)}"
        if isinstance(value, str) and re.fullmatch(r"[0-9.]+ *[A-Za-z]+", value):
            message += "; leave the unit out, it is in the key's name"
        raise BadConfig(message, field=setting.key) from exc


def _check_narrower(setting: Setting, value: Any, before: Any, source: Source, user_file: Path) -> None:
    if setting.project and setting.kind.within(value, before):
        return
    elsewhere = f"set it in {printable(user_file)} or by {setting.env}"
    if setting.project:
        what = f"can only be narrowed by a project file, from {_shown(before)}; {elsewhere}"
    else:
        what = f"is not for a project file to set, because a project may be hostile; {elsewhere}"
    raise BadConfig(f"{source.where}: {quoted(setting.key)} {what}", field=setting.key)


def _shown(value: object) -> str:
    if isinstance(value, dict):
        return "a section"
    return quoted(as_written(value))
