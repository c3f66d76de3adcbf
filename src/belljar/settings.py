"""Which settings there are: the fields of `Config` are the one table of them.

Each field says its kind, default and meaning, whether it is secret, and whether a project's own file may
narrow it. Key and variable follow from the field's name unless it says otherwise.
`docs/settings.md` and `config.py`, which reads them, are held to this table.
"""

from __future__ import annotations

import operator
import os
import re
from dataclasses import MISSING, dataclass, field, fields, replace
from enum import StrEnum
from ipaddress import ip_network
from pathlib import Path
from typing import TYPE_CHECKING, Any

from belljar import strictyaml
from belljar.errors import BadConfig
from belljar.models import Limits, OnOutputLimit
from belljar.wording import nearest, quoted

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

__all__ = [
    "ROOT",
    "SECTIONS",
    "SETTINGS",
    "Config",
    "EngineChoice",
    "Kind",
    "Layer",
    "Profile",
    "RuntimeMode",
    "Setting",
    "Source",
    "WeakerLimits",
    "as_written",
    "by_key",
    "limit_key",
    "limits_from",
    "stated_limits",
]

ROOT = "sandbox"
"""First part of every key, and the top-level key of the files."""


class EngineChoice(StrEnum):
    AUTO = "auto"  # jail where its probe passes, else docker, else nothing runs
    JAIL = "jail"
    DOCKER = "docker"
    GVISOR = "gvisor"  # docker with the runtime runsc


class Profile(StrEnum):
    """Which shipped policy lies under the operator's own."""

    DEFAULT = "default"
    SUPERVISED = "supervised"  # code of high risk waits for a person


class RuntimeMode(StrEnum):
    """Whose paths the workspace roots are."""

    AUTO = "auto"  # find out
    LINUX = "linux"
    WINDOWS = "windows"
    WSL = "wsl"


class WeakerLimits(StrEnum):
    """Where memory and pids may be held by rlimits and a watchdog, because no cgroup can be had."""

    NEVER = "never"
    PERSON = "person"  # in a person's own `belljar run` and in-process use; not in the server
    ALWAYS = "always"


class Layer(StrEnum):
    """Where a value came from; later ones win."""

    DEFAULT = "default"
    MACHINE = "machine file"
    USER = "user file"
    PROJECT = "project file"
    ENVIRONMENT = "environment"
    COMMAND_LINE = "command line"


@dataclass(frozen=True, slots=True)
class Source:
    layer: Layer
    where: str = ""
    """File and line, or the name of the variable; empty where the layer says it all."""

    def __str__(self) -> str:
        return f"{self.layer} {self.where}".rstrip()


@dataclass(frozen=True, slots=True)
class Kind:
    """Which values a setting takes."""

    says: str
    """Ends the sentence "must be …"."""
    accept: Callable[[object], Any]
    """The value, from what a YAML file holds; ValueError if it is none."""
    from_text: Callable[[str], object] = strictyaml.scalar
    """From a variable or the command line to what `accept` takes."""
    within: Callable[[Any, Any], bool] = operator.le
    """Whether the first is no wider than the second; asked only of what a project may set."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    kind: Kind
    doc: str
    key: str = ""
    env: str = ""
    attribute: str = ""
    default: str = ""
    """As a person would write it; empty where there is none."""
    project: bool = False
    """Whether a project file may narrow it."""
    secret: bool = False
    """Kept out of messages and of `repr`."""


def _whole(low: int, high: int) -> Kind:
    def accept(value: object) -> int:
        if type(value) is not int or not low <= value <= high:
            raise ValueError
        return value

    return Kind(f"a whole number from {low} to {high}", accept)


def _number(low: float, high: float) -> Kind:
    def accept(value: object) -> float:
        if isinstance(value, bool) or not isinstance(value, int | float) or not low <= value <= high:
            raise ValueError
        return float(value)

    return Kind(f"a number from {low:g} to {high:g}", accept)


def _choice(words: type[StrEnum]) -> Kind:
    """Where a project may narrow it, the strictest word is the last."""
    order = list(words)

    def stricter(value: StrEnum, than: StrEnum) -> bool:
        return order.index(value) >= order.index(than)

    return Kind("one of " + ", ".join(words), words, str, within=stricter)


def _text(says: str, pattern: str) -> Kind:
    shape = re.compile(pattern)

    def accept(value: object) -> str:
        if not isinstance(value, str) or not shape.fullmatch(value):
            raise ValueError
        return value

    return Kind(says, accept, str)


def _list(says: str, item: str) -> Kind:
    shape = re.compile(item)

    def accept(value: object) -> tuple[str, ...]:
        if not isinstance(value, tuple):
            raise ValueError
        if not all(isinstance(one, str) and shape.fullmatch(one) for one in value):
            raise ValueError
        return value

    def from_text(text: str) -> tuple[str, ...]:
        return tuple(one.strip() for one in text.split(",") if one.strip())

    def prefixes_within(value: tuple[str, ...], other: tuple[str, ...]) -> bool:
        return all(one.startswith(other) for one in value)

    return Kind(says, accept, from_text, prefixes_within)


def _list_of_ranges() -> Kind:
    listed = _list("a list of address ranges such as 10.0.0.0/8", r"[0-9a-f.:]+(/[0-9]{1,3})?")

    def accept(value: object) -> tuple[str, ...]:
        return tuple(str(ip_network(one)) for one in listed.accept(value))

    return replace(listed, accept=accept)


def _flag(value: object) -> bool:
    if not isinstance(value, bool):
        raise ValueError
    return value


def _path(value: object) -> Path:
    if not isinstance(value, str) or not value.isprintable() or not 1 <= len(value) <= 4096:
        raise ValueError
    return Path(value)


def _no_longer_silence(value: float, other: float) -> bool:
    return other == 0 or 0 < value <= other


_FLAG = Kind("true or false", _flag)
_PATH = Kind("a path", _path, str)
_SECONDS = _number(0.001, 86_400)
_COUNT = _whole(1, 10_000_000)
_MEGABYTES = _whole(1, 1_048_576)
_KILOBYTES = _whole(0, 1_048_576)
_URL = _text("an http:// or https:// address without a password", r"https?://[^\s/@?#]+(/[^\s?#]*)?")
_DATABASE = _text("an sqlite:// or postgresql:// address", r"(sqlite|postgresql|postgres)://\S+")
_IMAGE = _text("the name of an image", r"[A-Za-z0-9][A-Za-z0-9._/:@-]{0,254}")
_HOST = _text("an address or a host name", r"[A-Za-z0-9._:-]{1,253}")
_TOKEN = _text("1 to 512 visible ASCII characters without spaces", r"[!-~]{1,512}")
# What a path of another system may look like is for `execution.hostpaths` to say.
_FOREIGN_PATH = _text("a path", r"[^\x00-\x1f]+")
_CGROUP = _text("a cgroup path such as /belljar", r"(/(?!\.)[A-Za-z0-9_.@-]+)+")
_IMAGES = _list("a list of names of images", r"[A-Za-z0-9][A-Za-z0-9._/:@-]{0,254}")
_LANGUAGE_IMAGES = _list(
    "a list such as javascript=belljar/node",
    r"(python|bash|javascript|typescript)=[A-Za-z0-9][A-Za-z0-9._/:@-]{0,254}",
)
_ENDPOINT = _text("a unix:// or tcp:// address", r"(unix:///|tcp://|https?://)[^\s@]+")
_WORD = _text("a name without spaces", r"[A-Za-z0-9][A-Za-z0-9_.+-]{0,127}")
_MODULES = _list("a list of module names", r"[^\W\d]\w*(\.[^\W\d]\w*)*")
_HOSTS = _list("a list of host names", r"(?=.{1,253}$)[a-z0-9_-]+(\.[a-z0-9_-]+)*")
_RANGES = _list_of_ranges()
_FOLDERS = _list("a list of relative folders such as docs/", r"((?!\.\.?/)[^/\\\x00-\x1f\x7f]+/)+")


def _setting(default: object, kind: Kind, doc: str, /, **more: Any) -> Any:
    row = Setting(kind=kind, doc=doc, **more)
    return field(default=default, repr=not row.secret, metadata={"row": row})


def _limit(default: object, kind: Kind, doc: str, /, **more: Any) -> Any:
    return _setting(default, kind, doc, project=True, **more)


_LIMITS = Limits()


@dataclass(frozen=True, slots=True, kw_only=True)
class Config:
    """All settings of one process. A dot in a key is an underscore in the field's name."""

    enabled: bool = _limit(True, _FLAG, "Whether anything may run at all.")

    # Where callers find the service, and who may call.
    runner_url: str | None = _setting(
        None, _URL, "Where callers find the service; without it, `host` and `port` of this machine."
    )
    host: str = _setting("127.0.0.1", _HOST, "Address the service listens on.")
    port: int = _setting(8088, _whole(0, 65_535), "Port the service listens on; 0 takes a free one.")
    token: str | None = _setting(
        None, _TOKEN, "The operator's bearer token; without it, the first start makes one.", secret=True
    )

    # What is kept, and where.
    data_dir: Path = _setting(
        MISSING,
        _PATH,
        "Records, receipts, workspaces and the token file; `$XDG_DATA_HOME` is honoured.",
        default="~/.local/share/belljar",
    )
    database_url: str | None = _setting(
        None, _DATABASE, "Database of the records; without it, SQLite in `data_dir`.", secret=True
    )
    workspace_root_win: str | None = _setting(
        None, _FOREIGN_PATH, "Root of the workspaces as Windows sees it; without it, in `data_dir`."
    )
    workspace_root_wsl: str | None = _setting(
        None, _FOREIGN_PATH, "Root of the workspaces as WSL sees it; without it, in `data_dir`."
    )
    runtime_mode: RuntimeMode = _setting(
        RuntimeMode.AUTO, _choice(RuntimeMode), "Whose paths the workspace roots are; `auto` finds out."
    )

    # What may be asked for.
    policy: Path | None = _setting(None, _PATH, "The operator's policy file.")
    profile: Profile = _limit(
        Profile.DEFAULT,
        _choice(Profile),
        "Shipped policy under the operator's; `supervised` is the stricter.",
    )
    allowed_prefixes: tuple[str, ...] = _limit(
        ("docs/", ".belljar/runs/"), _FOLDERS, "Folders of a project that a run's results may land in."
    )
    runner_features_use_for_tools: bool = _setting(
        False,
        _FLAG,
        "Whether legacy tools run in a jar too; a failure there is a failure, nothing falls back.",
        key="runner.features.use_for_tools",
    )
    skills_dir: Path | None = _setting(
        None, _PATH, "Folder of skills besides those that come with belljar; one of the same id replaces it."
    )
    tools_dir: Path | None = _setting(None, _PATH, "Folder of legacy tools, `<name>/tool.py` each.")
    max_concurrent_execs: int = _setting(
        2 * (os.cpu_count() or 1),
        _whole(1, 10_000),
        "Runs at the same time; more wait in the queue.",
        env="BELLJAR_MAX_CONCURRENCY",
        default="cores × 2",
    )

    max_queued_execs: int = _setting(
        1000, _whole(0, 1_000_000), "Runs that may wait; one more is refused with `QUEUE_FULL`."
    )
    pool_min_idle: int = _setting(
        2, _whole(0, 10_000), "Jars of the default shape that always wait ready.", key="pool.min_idle"
    )
    pool_max_idle: int = _setting(
        8, _whole(0, 10_000), "Most jars that wait ready, of all shapes; 0 keeps none.", key="pool.max_idle"
    )
    session_idle_s: float = _setting(
        900.0, _number(1, 31_536_000), "A session nobody used for so long ends.", key="session.idle_s"
    )
    session_max_age_s: float = _setting(
        86_400.0,
        _number(1, 31_536_000),
        "A session ends after so long, used or not.",
        key="session.max_age_s",
    )
    session_per_project: int = _setting(
        20, _whole(0, 100_000), "Sessions that one project may have at a time.", key="session.per_project"
    )
    approval_expires_s: float = _setting(
        86_400.0,
        _number(1, 31_536_000),
        "A run that waits for a person's approval is refused after so long.",
        key="approval.expires_s",
    )
    keep_days: float = _setting(
        30.0, _number(0, 36_500), "What runs left is removed after so many days; 0 keeps it."
    )
    keep_gb: float = _setting(
        10.0, _number(0, 1_000_000), "The oldest of it is removed above so many GB; 0 is no such limit."
    )

    # Where bytes may go is policy; how many, and with whose credentials, is here.
    network_max_connections: int = _setting(
        10_000, _whole(1, 1_000_000), "Connections of one run in all.", key="network.max_connections"
    )
    network_max_mb: int = _setting(
        1024, _MEGABYTES, "What one run may send and receive, together.", key="network.max_mb"
    )
    network_secrets: Path | None = _setting(
        None,
        _PATH,
        "File of credentials that are put into requests on their way out.",
        key="network.secrets",
    )

    # Where packages come from; which ones is policy.
    packages_index_url: str | None = _setting(
        None,
        _URL,
        "Index that packages are installed from, such as `https://pypi.org/simple`.",
        key="packages.index_url",
    )
    packages_file_hosts: tuple[str, ...] = _setting(
        (),
        _HOSTS,
        "Hosts of the files that the index lists, where it is not their host: `files.pythonhosted.org`.",
        key="packages.file_hosts",
    )
    packages_allowed_ips: tuple[str, ...] = _setting(
        (),
        _RANGES,
        "Private addresses that the index and its files may be at, as ranges.",
        key="packages.allowed_ips",
    )
    packages_wheelhouse: Path | None = _setting(
        None,
        _PATH,
        "Folder of wheels that packages are installed from, without any network, instead of an index.",
        key="packages.wheelhouse",
    )
    packages_timeout_seconds: float = _setting(
        180.0, _SECONDS, "Wall clock of installing a run's packages.", key="packages.timeout_seconds"
    )
    packages_max_mb: int = _setting(
        256, _whole(1, 65_536), "All packages of a run, as they are installed.", key="packages.max_mb"
    )
    packages_cache_mb: int = _setting(
        2048,
        _MEGABYTES,
        "Installed packages that are kept for other runs; the least used go first.",
        key="packages.cache_mb",
    )

    # What holds it.
    engine: EngineChoice = _setting(
        EngineChoice.AUTO, _choice(EngineChoice), "What makes the jars: `auto`, `jail`, `docker` or `gvisor`."
    )
    default_image: str = _setting(
        "belljar/python", _IMAGE, "Image of a jar where the request names none.", env="BELLJAR_IMAGE"
    )
    images: tuple[str, ...] = _setting(
        (), _IMAGES, "Images that a request may name; where a policy lists images, only those in both."
    )
    docker_languages: tuple[str, ...] = _setting(
        ("bash=belljar/shell", "javascript=belljar/node", "typescript=belljar/node"),
        _LANGUAGE_IMAGES,
        "Images of languages that the default image is not for.",
        key="docker.languages",
    )
    docker_host: str | None = _setting(
        None,
        _ENDPOINT,
        "Where the docker engine is; without it, what the docker command uses.",
        key="docker.host",
    )
    docker_context: str | None = _setting(
        None, _WORD, "Which docker context is used; without it, the current one.", key="docker.context"
    )
    docker_runtime: str = _setting(
        "runc", _WORD, "The docker engine's runtime for engine `docker`.", key="docker.runtime"
    )
    gvisor_runtime: str = _setting(
        "runsc", _WORD, "The docker engine's runtime for engine `gvisor`.", key="gvisor.runtime"
    )
    preload: tuple[str, ...] = _setting(
        (), _MODULES, "Modules that the warm interpreter imports beforehand, such as `pandas`."
    )
    jail_rootfs: Path | None = _setting(
        None, _PATH, "Root folder of a jail; without it, the machine's `/usr`, read-only.", key="jail.rootfs"
    )
    jail_cgroup_parent: str | None = _setting(
        None,
        _CGROUP,
        "Cgroup that jails are made under; without it, one that is delegated to us.",
        key="jail.cgroup_parent",
    )
    jail_uid_base: int = _setting(
        # Above the ranges of login users, of subordinate ids and of systemd.
        1_900_000_000,
        _whole(65_536, 2_147_000_000),
        "First of the host uids given to jails when belljar runs as root.",
        key="jail.uid_base",
    )
    jail_accept_weaker_limits: WeakerLimits = _setting(
        WeakerLimits.PERSON,
        _choice(WeakerLimits),
        "Who takes rlimits and a watchdog for a cgroup: `never`, `person` (but not the server), `always`.",
        key="jail.accept_weaker_limits",
    )

    # What one run may use.
    timeout_seconds: float = _limit(_LIMITS.timeout_s, _SECONDS, "Wall clock of a run.")
    grace_seconds: float = _limit(
        _LIMITS.grace_s, _number(0, 3600), "From SIGTERM to SIGKILL when the time is up."
    )
    idle_timeout_seconds: float = _limit(
        _LIMITS.idle_timeout_s,
        replace(_number(0, 86_400), within=_no_longer_silence),
        "Longest silence on both output streams; 0 is no such limit.",
    )
    memory_mb: int = _limit(
        _LIMITS.memory_mb, _whole(8, 1_048_576), "Memory of a jar, files in it included; swap is off."
    )
    cpu_cores: float = _limit(_LIMITS.cpu_cores, _number(0.01, 1024), "Seconds of processor time per second.")
    pids_limit: int = _limit(_LIMITS.pids, _whole(1, 4_194_304), "Processes and threads of a jar.")
    nofile: int = _limit(_LIMITS.nofile, _whole(16, 1_048_576), "Open files of a process.")
    max_stdout_kb: int = _limit(
        _LIMITS.stdout_kb, _KILOBYTES, "Kept of stdout; the rest is counted and discarded."
    )
    max_stderr_kb: int = _limit(
        _LIMITS.stderr_kb, _KILOBYTES, "Kept of stderr; the rest is counted and discarded."
    )
    on_output_limit: OnOutputLimit = _limit(
        OnOutputLimit.TRUNCATE, _choice(OnOutputLimit), "Past those two: `truncate`, or `kill` the run."
    )
    limits_max_input_total_mb: int = _limit(
        _LIMITS.input_mb, _MEGABYTES, "All input files of a run.", key="limits.max_input_total_mb"
    )
    limits_max_input_files: int = _limit(
        _LIMITS.input_files, _COUNT, "Number of input files of a run.", key="limits.max_input_files"
    )
    max_output_total_mb: int = _limit(_LIMITS.artifact_mb, _MEGABYTES, "All artifacts of a run.")
    limits_max_output_files: int = _limit(
        _LIMITS.artifact_files, _COUNT, "Number of artifacts of a run.", key="limits.max_output_files"
    )
    workspace_mb: int = _limit(_LIMITS.workspace_mb, _MEGABYTES, "Size of `/workspace`.")
    workspace_files: int = _limit(_LIMITS.workspace_files, _COUNT, "Files and folders in `/workspace`.")
    tmp_mb: int = _limit(_LIMITS.tmp_mb, _MEGABYTES, "Size of `/tmp`.")

    traced: bool = False
    """Whether OpenTelemetry's own variables say where traces go."""

    sources: Mapping[str, Source] = field(default_factory=dict, repr=False, compare=False)
    """By key; a key that is not here has its default."""

    def source_of(self, key: str) -> Source:
        """Where the value of a key such as `sandbox.memory_mb` came from."""
        return self.sources.get(by_key(key).key, Source(Layer.DEFAULT))


def _table() -> Iterator[Setting]:
    for one in fields(Config):
        row: Setting | None = one.metadata.get("row")
        if row:
            key = row.key or one.name
            yield replace(
                row,
                key=f"{ROOT}.{key}",
                env=row.env or "BELLJAR_" + key.replace(".", "_").upper(),
                attribute=one.name,
                default=row.default or as_written(one.default),
            )


def as_written(value: object) -> str:
    """A value as a person would write it, None as nothing."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, float):
        return f"{value:g}"
    if isinstance(value, tuple):
        return ", ".join(map(as_written, value))
    return "" if value is None else str(value)


SETTINGS: tuple[Setting, ...] = tuple(_table())
_BY_KEY = {setting.key: setting for setting in SETTINGS}
SECTIONS = frozenset(key[: dot.start()] for key in _BY_KEY for dot in re.finditer(r"\.", key))
"""Keys that hold other keys, such as `sandbox.jail`."""


def by_key(key: str, *, where: str = "config") -> Setting:
    if key in _BY_KEY:
        return _BY_KEY[key]
    known = [*_BY_KEY, *SECTIONS]
    hint = nearest(key, known) or nearest(f"{ROOT}.{key}", known)
    raise BadConfig(f"{where}: unknown key {quoted(key)}{hint}", field=key)


_LIMIT_ATTRIBUTES = {
    "timeout_s": "timeout_seconds",
    "grace_s": "grace_seconds",
    "idle_timeout_s": "idle_timeout_seconds",
    "memory_mb": "memory_mb",
    "cpu_cores": "cpu_cores",
    "pids": "pids_limit",
    "nofile": "nofile",
    "stdout_kb": "max_stdout_kb",
    "stderr_kb": "max_stderr_kb",
    "input_mb": "limits_max_input_total_mb",
    "input_files": "limits_max_input_files",
    "artifact_mb": "max_output_total_mb",
    "artifact_files": "limits_max_output_files",
    "workspace_mb": "workspace_mb",
    "workspace_files": "workspace_files",
    "tmp_mb": "tmp_mb",
}
"""Field of `Limits` to field of `Config`."""


def limits_from(config: Config) -> Limits:
    """What the settings say one run may use."""
    return Limits(**{name: getattr(config, attribute) for name, attribute in _LIMIT_ATTRIBUTES.items()})


def stated_limits(config: Config) -> dict[str, Any]:
    """Only what somebody set, by its name in policy; the rest is for policy to say."""
    attributes = {**_LIMIT_ATTRIBUTES, "on_output_limit": "on_output_limit"}
    return {
        name: getattr(config, attribute)
        for name, attribute in attributes.items()
        if limit_key(name) in config.sources
    }


def limit_key(name: str) -> str:
    """The setting for what policy knows by this name."""
    attribute = _LIMIT_ATTRIBUTES.get(name, name)
    return next(setting.key for setting in SETTINGS if setting.attribute == attribute)
