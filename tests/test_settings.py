from __future__ import annotations

from dataclasses import FrozenInstanceError, fields, replace
from pathlib import Path
from typing import Any

import pytest

from belljar.errors import BadConfig
from belljar.execution.hostpaths import Environment
from belljar.models import Limits
from belljar.settings import SETTINGS, Config, Layer, RuntimeMode, Setting, limits_from

LIMITS = [one.name for one in fields(Limits)]

each_setting = pytest.mark.parametrize("setting", SETTINGS, ids=lambda setting: setting.key)

# What the design documents and the specification name.
PROMISED_KEYS = {
    "sandbox.enabled",
    "sandbox.runner_url",
    "sandbox.default_image",
    "sandbox.timeout_seconds",
    "sandbox.memory_mb",
    "sandbox.cpu_cores",
    "sandbox.pids_limit",
    "sandbox.max_output_total_mb",
    "sandbox.max_stdout_kb",
    "sandbox.max_stderr_kb",
    "sandbox.runner.features.use_for_tools",
    "sandbox.skills_dir",
    "sandbox.tools_dir",
    "sandbox.workspace_root_win",
    "sandbox.workspace_root_wsl",
    "sandbox.max_concurrent_execs",
    "sandbox.engine",
    "sandbox.jail.rootfs",
    "sandbox.preload",
    "sandbox.database_url",
}
PROMISED_VARIABLES = {
    "BELLJAR_HOST",
    "BELLJAR_PORT",
    "BELLJAR_TOKEN",
    "BELLJAR_DATA_DIR",
    "BELLJAR_ENGINE",
    "BELLJAR_MAX_CONCURRENCY",
    "BELLJAR_IMAGE",
    "BELLJAR_POLICY",
    "BELLJAR_DATABASE_URL",
}

# What a hostile clone could use to weaken a jar, to learn a secret, or to send records elsewhere.
NOT_FOR_PROJECTS = {
    "sandbox.token",
    "sandbox.database_url",
    "sandbox.runner_url",
    "sandbox.host",
    "sandbox.port",
    "sandbox.data_dir",
    "sandbox.policy",
    "sandbox.engine",
    "sandbox.default_image",
    "sandbox.images",
    "sandbox.docker.languages",
    "sandbox.docker.host",
    "sandbox.docker.context",
    "sandbox.docker.runtime",
    "sandbox.gvisor.runtime",
    "sandbox.preload",
    "sandbox.jail.rootfs",
    "sandbox.jail.cgroup_parent",
    "sandbox.jail.uid_base",
    "sandbox.jail.accept_weaker_limits",
    "sandbox.pool.min_idle",
    "sandbox.pool.max_idle",
    "sandbox.session.idle_s",
    "sandbox.session.max_age_s",
    "sandbox.session.per_project",
    "sandbox.approval.expires_s",
    "sandbox.keep_days",
    "sandbox.keep_gb",
    "sandbox.network.max_connections",
    "sandbox.network.max_mb",
    "sandbox.network.secrets",
    "sandbox.packages.index_url",
    "sandbox.packages.file_hosts",
    "sandbox.packages.allowed_ips",
    "sandbox.packages.wheelhouse",
    "sandbox.packages.timeout_seconds",
    "sandbox.packages.max_mb",
    "sandbox.packages.cache_mb",
    "sandbox.max_queued_execs",
    "sandbox.workspace_root_win",
    "sandbox.workspace_root_wsl",
    "sandbox.runtime_mode",
    "sandbox.max_concurrent_execs",
    "sandbox.runner.features.use_for_tools",
    "sandbox.skills_dir",
    "sandbox.tools_dir",
}


def test_every_promised_key_is_a_setting() -> None:
    assert PROMISED_KEYS <= {setting.key for setting in SETTINGS}


def test_every_promised_variable_sets_something() -> None:
    assert PROMISED_VARIABLES <= {setting.env for setting in SETTINGS}


@pytest.mark.parametrize("part", ["key", "env", "attribute"])
def test_no_two_settings_share_a_name(part: str) -> None:
    names = [getattr(setting, part) for setting in SETTINGS]
    assert len(set(names)) == len(names)


def test_every_field_of_config_is_in_the_table() -> None:
    others = {"sources", "traced"}  # neither is anybody's to set in a file
    assert {one.name for one in fields(Config)} - {setting.attribute for setting in SETTINGS} == others


@each_setting
def test_a_setting_is_explained_in_one_sentence(setting: Setting) -> None:
    assert setting.doc.endswith(".")
    assert setting.doc.count(". ") == 0


@each_setting
def test_a_default_is_a_value_of_its_kind(setting: Setting) -> None:
    default = getattr(Config(data_dir=Path("/d")), setting.attribute)
    if default is not None:
        given = str(default) if isinstance(default, Path) else default
        assert setting.kind.accept(given) == default


def test_what_could_weaken_a_jar_or_move_a_secret_is_not_for_projects() -> None:
    assert {setting.key for setting in SETTINGS if not setting.project} == NOT_FOR_PROJECTS


def test_runtime_modes_are_the_environments_of_the_path_adapter() -> None:
    assert {str(mode) for mode in RuntimeMode} == {str(one) for one in Environment}


def test_config_cannot_be_changed() -> None:
    config = Config(data_dir=Path("/d"))
    with pytest.raises(FrozenInstanceError):
        config.port = 1  # type: ignore[misc]


def test_secrets_are_not_in_the_repr() -> None:
    config = Config(data_dir=Path("/d"), token="s3cret", database_url="postgresql://u:s3cret@h/d")
    assert "s3cret" not in repr(config)


def test_the_default_settings_are_the_default_limits() -> None:
    assert limits_from(Config(data_dir=Path("/d"))) == Limits()


def test_every_limit_comes_from_a_setting_of_its_own() -> None:
    """Each number of `Config` is changed alone; each must change exactly one limit, and all are reached."""
    reached = []
    base = Config(data_dir=Path("/d"))
    for setting in SETTINGS:
        value = getattr(base, setting.attribute)
        if isinstance(value, int | float):
            other: dict[str, Any] = {setting.attribute: value + 7}
            limits = limits_from(replace(base, **other))
            changed = [name for name in LIMITS if getattr(limits, name) != getattr(Limits(), name)]
            assert len(changed) <= 1
            reached += changed
    assert sorted(reached) == sorted(LIMITS)


def test_a_value_that_nobody_set_comes_from_the_defaults() -> None:
    assert Config(data_dir=Path("/d")).source_of("sandbox.port").layer is Layer.DEFAULT


def test_asking_for_the_source_of_an_unknown_key_suggests_one() -> None:
    with pytest.raises(BadConfig, match="unknown key `sandbox.prot`; did you mean `sandbox.port`"):
        Config(data_dir=Path("/d")).source_of("sandbox.prot")
