"""The two names of one workspace: each system gets its own, converted where need be, or a clear error."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from belljar.errors import BadConfig
from belljar.execution.hostpaths import Environment, HostPaths, detect_environment, host_paths

WIN = "sandbox.workspace_root_win"
WSL = "sandbox.workspace_root_wsl"


def native(environment: Environment, win: str | None = None, wsl: str | None = None) -> str:
    paths = host_paths(
        environment, detected=Environment.LINUX, workspace_root_win=win, workspace_root_wsl=wsl
    )
    assert paths == HostPaths(paths.host_path_native, docker_mount_path=paths.host_path_native)
    return paths.host_path_native


@pytest.mark.parametrize(
    ("platform", "release", "environment"),
    [
        pytest.param("win32", "10", Environment.WINDOWS, id="windows"),
        pytest.param("linux", "5.15.153.1-microsoft-standard-WSL2", Environment.WSL, id="wsl2"),
        pytest.param("linux", "4.4.0-19041-Microsoft", Environment.WSL, id="wsl1"),
        pytest.param("linux", "6.1.0-18-amd64", Environment.LINUX, id="linux"),
        pytest.param("darwin", "23.4.0", Environment.LINUX, id="other-posix"),
    ],
)
def test_environment_is_told_by_platform_and_kernel(
    platform: str, release: str, environment: Environment
) -> None:
    assert detect_environment(platform, release) is environment


@pytest.mark.parametrize(
    ("environment", "win", "wsl", "expected"),
    [
        pytest.param("windows", r"D:\jars", "/mnt/d/other", r"D:\jars", id="windows-takes-its-own"),
        pytest.param("windows", "d:/jars//a/", None, r"D:\jars\a", id="windows-writes-it-its-way"),
        pytest.param("windows", r"\\?\D:\jars", None, r"D:\jars", id="windows-extended-form"),
        pytest.param("windows", None, "/mnt/d/jars/a", r"D:\jars\a", id="windows-converts-a-drive"),
        pytest.param("windows", "", "/mnt/d", "D:\\", id="windows-converts-a-whole-drive"),
        pytest.param("wsl", r"D:\other", "/mnt/d/jars", "/mnt/d/jars", id="wsl-takes-its-own"),
        pytest.param("wsl", None, "/home/me/jars/", "/home/me/jars", id="wsl-takes-its-own-disk"),
        pytest.param("wsl", None, "//home/me", "/home/me", id="wsl-writes-it-its-way"),
        pytest.param("wsl", r"D:\jars\a", None, "/mnt/d/jars/a", id="wsl-converts-a-drive"),
        pytest.param("wsl", "D:\\", "", "/mnt/d", id="wsl-converts-a-whole-drive"),
        pytest.param("wsl", r"\\?\d:\jars", None, "/mnt/d/jars", id="wsl-converts-extended-form"),
        pytest.param("wsl", r"\\wsl$\Ubuntu\home\me", None, "/home/me", id="wsl-converts-its-share"),
        pytest.param("wsl", r"\\wsl.localhost\Ubuntu\home\me", None, "/home/me", id="wsl-converts-new-share"),
        pytest.param("wsl", "//WSL$/Ubuntu/home/me", None, "/home/me", id="wsl-converts-share-with-slashes"),
        pytest.param("linux", None, "/srv/jars", "/srv/jars", id="linux-takes-the-posix-path"),
        pytest.param("linux", r"D:\jars", "/mnt/d/jars", "/mnt/d/jars", id="linux-ignores-windows"),
        pytest.param("auto", None, "/srv/jars", "/srv/jars", id="auto-takes-what-was-detected"),
    ],
)
def test_system_gets_the_path_in_its_own_form(
    environment: str, win: str | None, wsl: str | None, expected: str
) -> None:
    assert native(Environment(environment), win, wsl) == expected


@pytest.mark.parametrize(
    ("environment", "win", "wsl", "field"),
    [
        pytest.param("windows", None, None, WIN, id="windows-nothing-set"),
        pytest.param("windows", "/mnt/d/jars", None, WIN, id="windows-given-posix"),
        pytest.param("windows", r"\\server\share\jars", None, WIN, id="windows-given-share"),
        pytest.param("windows", r"\\?\UNC\server\share\jars", None, WIN, id="windows-given-extended-share"),
        pytest.param("windows", r"\\wsl$\Ubuntu\home\me", None, WIN, id="windows-given-wsl-share"),
        pytest.param("windows", "D:jars", None, WIN, id="windows-drive-relative"),
        pytest.param("windows", r"\jars", None, WIN, id="windows-no-drive"),
        pytest.param("windows", "jars", None, WIN, id="windows-relative"),
        pytest.param("windows", r"D:\jars\..\x", None, WIN, id="windows-climbs"),
        pytest.param("windows", None, "/home/me/jars", WIN, id="windows-cannot-convert-own-disk"),
        pytest.param("windows", None, "/mnt/data/jars", WIN, id="windows-cannot-convert-other-mount"),
        pytest.param("windows", None, "/mnt/d/a\\b", WIN, id="windows-cannot-have-backslash-name"),
        pytest.param("windows", None, "/mnt/d/a:b", WIN, id="windows-cannot-have-colon-name"),
        pytest.param("windows", None, r"D:\jars", WSL, id="windows-wsl-given-windows-path"),
        pytest.param("wsl", None, None, WSL, id="wsl-nothing-set"),
        pytest.param("wsl", None, r"D:\jars", WSL, id="wsl-given-windows-path"),
        pytest.param("wsl", None, "jars", WSL, id="wsl-relative"),
        pytest.param("wsl", None, "/srv/../etc", WSL, id="wsl-climbs"),
        pytest.param("wsl", None, "/srv/\0", WSL, id="wsl-nul"),
        pytest.param("wsl", r"\\server\share\jars", None, WSL, id="wsl-cannot-convert-share"),
        pytest.param("wsl", "/mnt/d/jars", None, WIN, id="wsl-win-given-posix"),
        pytest.param("linux", None, None, WSL, id="linux-nothing-set"),
        pytest.param("linux", r"D:\jars", None, WSL, id="linux-has-no-drives"),
    ],
)
def test_unusable_setting_is_an_error_that_names_what_to_set(
    environment: str, win: str | None, wsl: str | None, field: str
) -> None:
    with pytest.raises(BadConfig, match=re.escape(field)) as caught:
        native(Environment(environment), win, wsl)
    assert caught.value.field == field
    assert caught.value.message.isprintable()


ROOTS = st.one_of(
    st.none(),
    st.text(max_size=12),
    st.builds(
        "".join,
        st.tuples(
            st.sampled_from(
                ["/mnt/d/", "/mnt/", "/", "D:\\", "d:/", "\\\\wsl$\\U\\", "\\\\s\\t\\", "\\\\?\\D:\\"]
            ),
            st.text(alphabet="ab/\\.: é", max_size=12),
        ),
    ),
)


@given(st.sampled_from(list(Environment)), st.sampled_from(["windows", "wsl", "linux"]), ROOTS, ROOTS)
def test_no_system_ever_gets_the_other_ones_form(
    environment: Environment, detected: str, win: str | None, wsl: str | None
) -> None:
    try:
        paths = host_paths(
            environment, detected=Environment(detected), workspace_root_win=win, workspace_root_wsl=wsl
        )
    except BadConfig:
        return
    system = detected if environment is Environment.AUTO else environment
    form = r"[A-Z]:\\[^/]*" if system == "windows" else r"/(?!/).*"
    for path in (paths.host_path_native, paths.docker_mount_path):
        assert re.fullmatch(form, path, re.DOTALL)


@given(st.lists(st.text(alphabet="abc é-", min_size=1, max_size=5), max_size=4))
def test_conversion_there_and_back_is_the_same_folder(names: list[str]) -> None:
    windows = "\\".join(["D:", *names]) if names else "D:\\"
    posix = native(Environment.WSL, win=windows)
    assert posix == "/".join(["/mnt/d", *names])
    assert native(Environment.WINDOWS, wsl=posix) == windows
