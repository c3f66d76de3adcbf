from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import typing
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from belljar import config
from belljar.errors import BadConfig, BelljarError
from belljar.settings import SETTINGS, Config, EngineChoice, Layer, Setting, WeakerLimits

if TYPE_CHECKING:
    from collections.abc import Mapping

EXAMPLES = {
    "sandbox.enabled": "false",
    "sandbox.runner_url": "https://runner.example:8088/base",
    "sandbox.host": "::1",
    "sandbox.port": "9000",
    "sandbox.token": "12345",
    "sandbox.data_dir": "/srv/belljar",
    "sandbox.database_url": "postgresql://u:p@db/belljar",
    "sandbox.workspace_root_win": "D:\\belljar",
    "sandbox.workspace_root_wsl": "/mnt/d/belljar",
    "sandbox.runtime_mode": "wsl",
    "sandbox.policy": "/srv/policy.yaml",
    "sandbox.profile": "supervised",
    "sandbox.allowed_prefixes": "docs/out/, docs/more/",
    "sandbox.runner.features.use_for_tools": "true",
    "sandbox.skills_dir": "/srv/skills",
    "sandbox.tools_dir": "/srv/tools",
    "sandbox.max_concurrent_execs": "7",
    "sandbox.max_queued_execs": "7",
    "sandbox.pool.min_idle": "1",
    "sandbox.pool.max_idle": "7",
    "sandbox.session.idle_s": "7",
    "sandbox.session.max_age_s": "7",
    "sandbox.session.per_project": "7",
    "sandbox.approval.expires_s": "7",
    "sandbox.keep_days": "7",
    "sandbox.keep_gb": "7",
    "sandbox.network.max_connections": "7",
    "sandbox.network.max_mb": "7",
    "sandbox.network.secrets": "/etc/secrets.yaml",
    "sandbox.packages.index_url": "https://index.example/simple",
    "sandbox.packages.file_hosts": "files.example, more.example",
    "sandbox.packages.allowed_ips": "10.0.0.0/8",
    "sandbox.packages.wheelhouse": "/srv/wheels",
    "sandbox.packages.timeout_seconds": "7",
    "sandbox.packages.max_mb": "7",
    "sandbox.packages.cache_mb": "7",
    "sandbox.engine": "gvisor",
    "sandbox.default_image": "registry.example/py@sha256:00",
    "sandbox.images": "registry.example/py, alpine:3",
    "sandbox.docker.languages": "bash=alpine:3",
    "sandbox.docker.host": "tcp://127.0.0.1:2376",
    "sandbox.docker.context": "remote",
    "sandbox.docker.runtime": "crun",
    "sandbox.gvisor.runtime": "runsc-kvm",
    "sandbox.preload": "pandas, numpy.linalg",
    "sandbox.jail.rootfs": "/srv/root",
    "sandbox.jail.cgroup_parent": "/belljar.slice/jails",
    "sandbox.jail.uid_base": "100000",
    "sandbox.jail.accept_weaker_limits": "always",
    "sandbox.timeout_seconds": "1.5",
    "sandbox.grace_seconds": "0",
    "sandbox.idle_timeout_seconds": "5",
    "sandbox.memory_mb": "64",
    "sandbox.cpu_cores": "0.5",
    "sandbox.pids_limit": "16",
    "sandbox.nofile": "64",
    "sandbox.max_stdout_kb": "1",
    "sandbox.max_stderr_kb": "2",
    "sandbox.on_output_limit": "kill",
    "sandbox.limits.max_input_total_mb": "3",
    "sandbox.limits.max_input_files": "4",
    "sandbox.max_output_total_mb": "5",
    "sandbox.limits.max_output_files": "6",
    "sandbox.workspace_mb": "7",
    "sandbox.workspace_files": "8",
    "sandbox.tmp_mb": "9",
}
"""A value for every setting that is neither its default nor wider than it."""

each_setting = pytest.mark.parametrize("setting", SETTINGS, ids=lambda setting: setting.key)


class Machine:
    """A machine with a home and a project in it, whose files the test writes."""

    def __init__(self, root: Path) -> None:
        self.home = root / "home"
        self.project = self.home / "project"
        self.machine_file = root / "etc/belljar/config.yaml"
        self.user_file = self.home / ".config/belljar/config.yaml"
        self.project_file = self.project / ".belljar/config.yaml"
        for file in (self.machine_file, self.user_file, self.project_file):
            file.parent.mkdir(parents=True)

    def load(
        self,
        environ: Mapping[str, str] | None = None,
        cli: Mapping[str, str] | None = None,
        cwd: Path | None = None,
    ) -> Config:
        return config.load(
            environ=environ or {},
            cwd=cwd or self.project,
            home=self.home,
            cli=cli,
            machine_file=self.machine_file,
        )


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


def as_yaml(key: str, text: str) -> str:
    """As in a file: lists in brackets, words that are no numbers in quotes."""
    if isinstance(_value(key), tuple):
        return f"{key}: [{text}]"
    return f"{key}: '{text}'" if isinstance(_value(key), str | Path) else f"{key}: {text}"


def _value(key: str) -> object:
    setting = next(setting for setting in SETTINGS if setting.key == key)
    return setting.kind.accept(setting.kind.from_text(EXAMPLES[key]))


def test_without_any_file_everything_is_the_default(machine: Machine) -> None:
    assert machine.load() == Config(data_dir=machine.home / ".local/share/belljar")


def test_later_layers_win_and_are_remembered(machine: Machine) -> None:
    def seen(
        environ: Mapping[str, str] | None = None, cli: Mapping[str, str] | None = None
    ) -> tuple[float, str]:
        loaded = machine.load(environ, cli)
        return loaded.timeout_seconds, str(loaded.source_of("sandbox.timeout_seconds"))

    assert seen() == (30, "default")
    machine.machine_file.write_text("sandbox:\n  timeout_seconds: 40\n")
    assert seen() == (40, f"machine file {machine.machine_file}:2")
    machine.user_file.write_text("\n\nsandbox: {timeout_seconds: 50}\n")
    assert seen() == (50, f"user file {machine.user_file}:3")
    machine.project_file.write_text("sandbox.timeout_seconds: 20\n")
    assert seen() == (20, f"project file {machine.project_file}:1")
    environ = {"BELLJAR_TIMEOUT_SECONDS": "60"}
    assert seen(environ) == (60, "environment BELLJAR_TIMEOUT_SECONDS")
    assert seen(environ, {"sandbox.timeout_seconds": "70"}) == (70, "command line")


@each_setting
def test_a_kind_gives_what_the_field_says_it_holds(setting: Setting) -> None:
    hint = typing.get_type_hints(Config, localns={"Mapping": dict})[setting.attribute]
    generic = typing.get_origin(hint) is tuple
    assert isinstance(_value(setting.key), tuple if generic else hint)


@each_setting
def test_the_variable_sets_it(machine: Machine, setting: Setting) -> None:
    loaded = machine.load({setting.env: EXAMPLES[setting.key]})
    assert getattr(loaded, setting.attribute) == _value(setting.key)
    assert loaded.source_of(setting.key).layer is Layer.ENVIRONMENT


@each_setting
def test_the_user_file_sets_it(machine: Machine, setting: Setting) -> None:
    machine.user_file.write_text(as_yaml(setting.key, EXAMPLES[setting.key]))
    loaded = machine.load()
    assert getattr(loaded, setting.attribute) == _value(setting.key)
    assert getattr(loaded, setting.attribute) != getattr(Config(data_dir=Path("/")), setting.attribute)


@each_setting
def test_the_command_line_sets_it(machine: Machine, setting: Setting) -> None:
    loaded = machine.load(cli={setting.key: EXAMPLES[setting.key]})
    assert getattr(loaded, setting.attribute) == _value(setting.key)


@pytest.mark.parametrize("key", [setting.key for setting in SETTINGS if setting.project])
def test_a_project_may_narrow(machine: Machine, key: str) -> None:
    machine.project_file.write_text(as_yaml(key, EXAMPLES[key]))
    assert machine.load().source_of(key).layer is Layer.PROJECT


@pytest.mark.parametrize("key", [setting.key for setting in SETTINGS if setting.project])
def test_a_project_may_not_widen(machine: Machine, key: str) -> None:
    """The user has narrowed; the project asks for the default again."""
    default = {setting.key: setting.default for setting in SETTINGS}[key]
    machine.user_file.write_text(as_yaml(key, EXAMPLES[key]))
    machine.project_file.write_text(as_yaml(key, default))
    with pytest.raises(BadConfig, match="can only be narrowed by a project file, from") as caught:
        machine.load()
    assert caught.value.field == key


@pytest.mark.parametrize("key", [setting.key for setting in SETTINGS if not setting.project])
def test_a_project_may_not_set_what_isolates(machine: Machine, key: str) -> None:
    machine.project_file.write_text(as_yaml(key, EXAMPLES[key]))
    with pytest.raises(BadConfig, match=f"config.yaml:1: `{key}` is not for a project file to set") as caught:
        machine.load()
    assert str(machine.user_file) in caught.value.message


def test_a_project_may_not_let_results_land_among_its_hooks(machine: Machine) -> None:
    machine.project_file.write_text("sandbox.allowed_prefixes: [docs/, .git/hooks/]")
    with pytest.raises(
        BadConfig, match="can only be narrowed by a project file, from `docs/, .belljar/runs/`"
    ):
        machine.load()


def test_a_project_may_not_lift_the_idle_timeout(machine: Machine) -> None:
    """0 is the smallest number, but the longest silence."""
    machine.user_file.write_text("sandbox.idle_timeout_seconds: 5")
    machine.project_file.write_text("sandbox.idle_timeout_seconds: 0")
    with pytest.raises(BadConfig, match="can only be narrowed"):
        machine.load()


def test_the_project_file_is_found_from_a_folder_below(machine: Machine) -> None:
    machine.project_file.write_text("sandbox.memory_mb: 99")
    below = machine.project / "src/deep"
    below.mkdir(parents=True)
    assert machine.load(cwd=below).memory_mb == 99


def test_the_nearest_project_file_is_the_only_one_read(machine: Machine) -> None:
    machine.project_file.write_text("sandbox: {memory_mb: 99, tmp_mb: 3}")
    inner = machine.project / "inner"
    (inner / ".belljar").mkdir(parents=True)
    (inner / ".belljar/config.yaml").write_text("sandbox.memory_mb: 98")
    loaded = machine.load(cwd=inner)
    assert (loaded.memory_mb, loaded.tmp_mb) == (98, 64)


def test_the_home_directory_is_not_a_project(machine: Machine) -> None:
    (machine.home / ".belljar").mkdir()
    (machine.home / ".belljar/config.yaml").write_text("sandbox.memory_mb: 99")
    assert machine.load().memory_mb == 512


def test_xdg_config_home_is_where_the_user_file_is(machine: Machine, tmp_path: Path) -> None:
    (tmp_path / "xdg/belljar").mkdir(parents=True)
    (tmp_path / "xdg/belljar/config.yaml").write_text("sandbox.port: 1")
    assert machine.load({"XDG_CONFIG_HOME": str(tmp_path / "xdg")}).port == 1


def test_a_relative_xdg_directory_is_ignored(machine: Machine) -> None:
    machine.user_file.write_text("sandbox.port: 2")
    loaded = machine.load({"XDG_CONFIG_HOME": "xdg", "XDG_DATA_HOME": "xdg"})
    assert (loaded.port, loaded.data_dir) == (2, machine.home / ".local/share/belljar")


def test_xdg_data_home_is_where_the_data_is(machine: Machine) -> None:
    assert machine.load({"XDG_DATA_HOME": "/data"}).data_dir == Path("/data/belljar")


@pytest.mark.parametrize(
    ("environ", "traced"),
    [
        pytest.param({}, False, id="nothing"),
        pytest.param({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://c:4318"}, True, id="endpoint"),
        pytest.param({"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "http://c:4318/v1/traces"}, True, id="of-traces"),
        pytest.param({"OTEL_EXPORTER_OTLP_ENDPOINT": ""}, False, id="empty"),
        pytest.param({"OTEL_SERVICE_NAME": "s"}, False, id="only-a-name"),
        pytest.param(
            {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://c:4318", "OTEL_SDK_DISABLED": "TRUE"},
            False,
            id="disabled",
        ),
        pytest.param(
            {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://c:4318", "OTEL_TRACES_EXPORTER": "none"},
            False,
            id="no-exporter",
        ),
    ],
)
def test_there_are_traces_where_opentelemetrys_variables_say_where_to(
    machine: Machine, environ: dict[str, str], traced: bool
) -> None:
    assert machine.load(environ).traced is traced


def test_a_path_in_a_file_is_relative_to_the_file(machine: Machine) -> None:
    machine.user_file.write_text("sandbox.policy: policy.yaml")
    assert machine.load().policy == machine.user_file.parent / "policy.yaml"


def test_a_path_in_a_variable_is_relative_to_the_working_directory(machine: Machine) -> None:
    assert machine.load({"BELLJAR_POLICY": "policy.yaml"}).policy == machine.project / "policy.yaml"


def test_a_tilde_is_the_home_directory(machine: Machine) -> None:
    assert machine.load({"BELLJAR_DATA_DIR": "~/data"}).data_dir == machine.home / "data"


def test_an_empty_variable_is_not_set(machine: Machine) -> None:
    assert machine.load({"BELLJAR_TOKEN": "", "BELLJAR_PORT": ""}).port == 8088


@pytest.mark.parametrize(
    "text", ["", "# nothing here\n", "sandbox:\n", "sandbox: {}\n", "sandbox:\n  jail:\n"]
)
def test_a_file_without_settings_changes_nothing(machine: Machine, text: str) -> None:
    machine.user_file.write_text(text)
    assert machine.load() == Config(data_dir=machine.home / ".local/share/belljar")


def test_words_become_members_of_their_closed_set(machine: Machine) -> None:
    machine.user_file.write_text("sandbox:\n  engine: jail\n  jail:\n    accept_weaker_limits: never\n")
    loaded = machine.load()
    assert loaded.engine is EngineChoice.JAIL
    assert loaded.jail_accept_weaker_limits is WeakerLimits.NEVER


@pytest.mark.parametrize(
    ("text", "message"),
    [
        pytest.param(
            "sandbox:\n  memry_mb: 1",
            ":2: unknown key `sandbox.memry_mb`; did you mean `sandbox.memory_mb`?",
            id="near",
        ),
        pytest.param(
            "sandbx:\n  memory_mb: 1", ":1: unknown key `sandbx`; did you mean `sandbox`?", id="top-level"
        ),
        pytest.param(
            "memory_mb: 1", ":1: unknown key `memory_mb`; did you mean `sandbox.memory_mb`?", id="no-root"
        ),
        pytest.param("sandbox:\n  qqq: 1", ":2: unknown key `sandbox.qqq`", id="far"),
        pytest.param(
            "sandbox:\n  port: 1\nsandbox.port: 2",
            ":3: duplicate key `sandbox.port`; it is already given on line 2",
            id="same-key-in-two-forms",
        ),
        pytest.param(
            "sandbox: [1]", ":1: `sandbox` must hold settings, such as `sandbox.memory_mb: 512`", id="list"
        ),
        pytest.param("hello", ":1: the file must hold settings, such as `sandbox.memory_mb: 512`", id="text"),
        pytest.param(
            "sandbox:\n\n  memory_mb: 512MB",
            ":3: `sandbox.memory_mb` must be a whole number from 8 to 1048576, not `512MB`"
            "; leave the unit out, it is in the key's name",
            id="unit",
        ),
        pytest.param(
            "sandbox.port: '80'",
            ":1: `sandbox.port` must be a whole number from 0 to 65535, not `80`",
            id="quoted-number",
        ),
        pytest.param(
            "sandbox.port: true",
            ":1: `sandbox.port` must be a whole number from 0 to 65535, not `true`",
            id="bool",
        ),
        pytest.param(
            "sandbox.port: {a: 1}",
            ":1: `sandbox.port` must be a whole number from 0 to 65535, not a section",
            id="section",
        ),
        pytest.param(
            "sandbox.enabled: yes", ":1: `sandbox.enabled` must be true or false, not `yes`", id="yes"
        ),
        pytest.param(
            "sandbox.engine: dokcer",
            ":1: `sandbox.engine` must be one of auto, jail, docker, gvisor, not `dokcer`",
            id="choice",
        ),
        pytest.param(
            "sandbox.preload: [os, 1]",
            ":1: `sandbox.preload` must be a list of module names, not `os, 1`",
            id="list-item",
        ),
        pytest.param(
            "sandbox.timeout_seconds:",
            ":1: `sandbox.timeout_seconds` must be a number from 0.001 to 86400"
            "; give it a value or leave the key out",
            id="no-value",
        ),
        pytest.param(
            "sandbox.timeout_seconds: -1",
            ":1: `sandbox.timeout_seconds` must be a number from",
            id="negative",
        ),
        pytest.param(
            "sandbox.timeout_seconds: .nan", ":1: `sandbox.timeout_seconds` must be a number from", id="nan"
        ),
        pytest.param(
            "sandbox.default_image: -v/:/host", ":1: `sandbox.default_image` must be the name of", id="option"
        ),
        pytest.param(
            "sandbox.allowed_prefixes: [../]",
            ":1: `sandbox.allowed_prefixes` must be a list of",
            id="dot-dot",
        ),
        pytest.param(
            "sandbox.allowed_prefixes: [/]", ":1: `sandbox.allowed_prefixes` must be a list of", id="root"
        ),
        pytest.param(
            "sandbox.jail.cgroup_parent: /a/../b",
            ":1: `sandbox.jail.cgroup_parent` must be a",
            id="cgroup-up",
        ),
        pytest.param(
            "sandbox: &a {}", ":1: the anchor `&a` is not understood here; leave it out", id="anchor"
        ),
    ],
)
def test_a_mistake_in_a_file_is_one_sentence_with_its_place(
    machine: Machine, text: str, message: str
) -> None:
    machine.user_file.write_text(text)
    with pytest.raises(BadConfig) as caught:
        machine.load()
    assert caught.value.message.startswith(f"{machine.user_file}{message}")


@pytest.mark.parametrize(
    ("environ", "message"),
    [
        pytest.param(
            {"BELLJAR_ENGNE": "gvisor"},
            "environment: unknown variable `BELLJAR_ENGNE`; did you mean `BELLJAR_ENGINE`?",
            id="unknown",
        ),
        pytest.param(
            {"BELLJAR_PORT": "tcp://10.0.0.1:8088"},
            "BELLJAR_PORT: `sandbox.port` must be a whole number from 0 to 65535, not `tcp://10.0.0.1:8088`",
            id="kubernetes-service-link",
        ),
        pytest.param(
            {"BELLJAR_MEMORY_MB": "9" * 30},
            f"BELLJAR_MEMORY_MB: `sandbox.memory_mb`: the number `{'9' * 30}` is too large",
            id="huge",
        ),
        pytest.param(
            {"BELLJAR_DATA_DIR": "a\x1b[2J"},
            "BELLJAR_DATA_DIR: `sandbox.data_dir` must be a path, not `a\\x1b[2J`",
            id="esc",
        ),
        pytest.param(
            {"BELLJAR_RUNNER_URL": "http://user:pass@host"},
            "BELLJAR_RUNNER_URL: `sandbox.runner_url` must be an http:// or https:// address without",
            id="password-in-url",
        ),
    ],
)
def test_a_mistake_in_the_environment_names_the_variable(
    machine: Machine, environ: Mapping[str, str], message: str
) -> None:
    with pytest.raises(BadConfig) as caught:
        machine.load(environ)
    assert caught.value.message.startswith(message)


def test_a_mistake_on_the_command_line_names_the_key(machine: Machine) -> None:
    with pytest.raises(BadConfig, match="^command line: `sandbox.port` must be"):
        machine.load(cli={"sandbox.port": "many"})


@pytest.mark.parametrize("setting", [s for s in SETTINGS if s.secret], ids=lambda s: s.key)
def test_a_bad_secret_is_not_repeated_in_the_message(machine: Machine, setting: Setting) -> None:
    with pytest.raises(BadConfig) as caught:
        machine.load({setting.env: "s3cret with spaces"})
    assert "s3cret" not in caught.value.message


def test_a_file_that_may_not_be_read_is_not_passed_over(machine: Machine) -> None:
    machine.user_file.symlink_to(machine.user_file)
    with pytest.raises(BadConfig, match="cannot be read: Too many levels of symbolic links"):
        machine.load()


def test_a_dangling_project_file_is_not_passed_over(machine: Machine) -> None:
    machine.project_file.symlink_to(machine.home / "nowhere")
    with pytest.raises(BadConfig, match="cannot be read: No such file or directory"):
        machine.load()


def test_a_file_where_a_folder_should_be_is_no_configuration(machine: Machine) -> None:
    machine.user_file.parent.rmdir()
    machine.user_file.parent.write_text("")
    assert machine.load().port == 8088


@given(st.text(alphabet="abd:-[]{}&*'\"\n .0#sandbox_mryport", max_size=80))
def test_any_file_is_loaded_or_refused(tmp_path_factory: pytest.TempPathFactory, text: str) -> None:
    file = tmp_path_factory.getbasetemp() / "any.yaml"
    file.write_text(text)
    with contextlib.suppress(BelljarError):
        config.load(environ={}, cwd=Path("/"), home=Path("/nowhere"), machine_file=file)


@given(st.sampled_from(SETTINGS), st.text(max_size=40))
def test_any_variable_is_accepted_or_refused(setting: Setting, text: str) -> None:
    with contextlib.suppress(BelljarError):
        config.load(
            environ={setting.env: text}, cwd=Path("/"), home=Path("/nowhere"), machine_file=Path("/nowhere/x")
        )


def test_load_here_uses_this_process(tmp_path: Path) -> None:
    program = "from belljar.config import load_here; print(load_here({'sandbox.tmp_mb': '7'}))"
    environ = {"HOME": str(tmp_path), "BELLJAR_PORT": "1234", "PATH": os.defpath}
    done = subprocess.run(
        [sys.executable, "-c", program], env=environ, cwd=tmp_path, capture_output=True, text=True, check=True
    )
    assert "port=1234" in done.stdout
    assert f"data_dir=PosixPath('{tmp_path}/.local/share/belljar')" in done.stdout
    assert "tmp_mb=7" in done.stdout


def test_a_working_directory_that_is_gone_is_a_clear_error(tmp_path: Path) -> None:
    program = (
        "import os, sys; os.rmdir(os.getcwd())\n"
        "from belljar import config, errors\n"
        "try: config.load_here()\n"
        "except errors.BadConfig as error: print(error)"
    )
    gone = tmp_path / "gone"
    gone.mkdir()
    done = subprocess.run(
        [sys.executable, "-c", program],
        env={"HOME": str(tmp_path)},
        cwd=gone,
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.startswith("the working directory cannot be used")
