"""Which images are fit, by what name they are recorded, and what of a hostile one counts."""

from __future__ import annotations

import pytest
from tests.engines.docker.conftest import WITHOUT_PYTHON, MakeImage

from belljar.engines.base import Command
from belljar.engines.docker import images
from belljar.engines.docker.api import Api
from belljar.engines.docker.engine import DockerEngine
from belljar.errors import EngineUnavailable, GrantNotEnforceable, ImageNotAllowed
from belljar.models import Grant, Language, Output


async def said(engine: DockerEngine, image: str, *argv: str) -> str:
    jar = await engine.create(Grant(image=image))
    try:
        return b"".join(
            [event.data async for event in jar.exec(Command(argv=argv)) if isinstance(event, Output)]
        ).decode()
    finally:
        await jar.destroy()


HOSTILE = """\
FROM {base}
USER root
ENV PATH=relative:/evil LD_PRELOAD=/evil.so PYTHONPATH=/evil BASH_ENV=/evil PYTHONSTARTUP=/evil
LABEL belljar.epoch=mine belljar.jar=mine
ENTRYPOINT ["/bin/sh", "-c", "echo evil entrypoint"]
CMD ["evil"]
HEALTHCHECK --interval=1s CMD touch /tmp/evil
STOPSIGNAL SIGCONT
ONBUILD RUN touch /evil
"""


@pytest.mark.parametrize("base", ["belljar/python", WITHOUT_PYTHON])
async def test_nothing_that_a_hostile_image_says_counts(
    engine: DockerEngine, make_image: MakeImage, base: str
) -> None:
    name = await make_image(HOSTILE.format(base=base))
    script = "sleep 1.2; id -u; id -g; env; ls /tmp"
    heard = await said(engine, name, "sh", "-c", script)
    assert heard.splitlines()[:2] == ["1000", "1000"]
    assert "evil" not in heard
    assert "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin" in heard


async def test_an_image_keeps_its_own_search_path(engine: DockerEngine, make_image: MakeImage) -> None:
    name = await make_image("FROM belljar/python\nENV PATH=/opt/tools:/usr/bin:/bin\n")
    assert (await said(engine, name, "sh", "-c", "echo $PATH")) == "/opt/tools:/usr/bin:/bin\n"


async def test_an_image_that_declares_a_volume_is_refused(
    engine: DockerEngine, make_image: MakeImage
) -> None:
    name = await make_image("FROM belljar/python\nVOLUME /data\n")
    with pytest.raises(GrantNotEnforceable, match="VOLUME /data.*build it without") as caught:
        await engine.create(Grant(image=name))
    assert caught.value.field == "image"


async def test_a_missing_image_is_named_and_not_pulled(engine: DockerEngine) -> None:
    with pytest.raises(EngineUnavailable, match="no image belljar-test/none.*belljar image build") as caught:
        await engine.create(Grant(image="belljar-test/none"))
    assert caught.value.field == "image"


async def test_an_image_that_is_removed_after_it_was_found_is_named(
    engine: DockerEngine, make_image: MakeImage, api: Api
) -> None:
    name = await make_image("FROM belljar/python\nLABEL removed=soon\n")
    grant = await engine.fit(Grant(image=name), None)
    await api.ask("DELETE", f"images/{name}", force=1)
    try:
        with pytest.raises(EngineUnavailable, match=f"no image {name}@sha256:.*belljar image build"):
            await engine.create(grant)
    finally:
        await api.ask("POST", "images/belljar/python/tag", repo=name)  # for who clears up


@pytest.mark.parametrize(
    "name", ["-v/:/host", "--privileged", "a b", "../x", "a/../../containers/json", "", "a//b"]
)
async def test_what_is_no_name_of_an_image_reaches_no_engine(engine: DockerEngine, name: str) -> None:
    with pytest.raises((ImageNotAllowed, EngineUnavailable)):
        await images.find(None, name)  # type: ignore[arg-type]


async def test_where_no_image_has_python3_the_setting_is_named(api: Api) -> None:
    engine = DockerEngine(image=WITHOUT_PYTHON)
    with pytest.raises(EngineUnavailable, match="neither image .* has a python3; set sandbox.default_image"):
        await engine.create(Grant())
    await engine.close()


async def test_a_python3_that_is_none_is_told(engine: DockerEngine, make_image: MakeImage) -> None:
    name = await make_image(
        f"FROM {WITHOUT_PYTHON}\nUSER root\n"
        "RUN printf '#!/bin/sh\\necho no such thing >&2\\nexit 3\\n' > /usr/bin/python3; chmod +x /usr/bin/python3\n"
    )
    with pytest.raises(EngineUnavailable, match="did not start in image.*no such thing"):
        await engine.create(Grant(image=name))


async def test_a_grant_is_fitted_with_the_digest_of_what_will_run(engine: DockerEngine, api: Api) -> None:
    fitted = await engine.fit(Grant(), Language.PYTHON)
    image = await images.find(api, "belljar/python")
    assert fitted.image == f"belljar/python@{image.id}"
    assert (await images.find(api, fitted.image)).id == image.id
    assert (await said(engine, fitted.image, "echo", "runs")) == "runs\n"


@pytest.mark.parametrize(
    ("language", "image"),
    [
        (Language.PYTHON, "belljar/python"),
        (Language.BASH, "belljar/shell"),
        (Language.JAVASCRIPT, "belljar/node"),
        (Language.TYPESCRIPT, "belljar/node"),
    ],
)
async def test_each_language_has_its_image(engine: DockerEngine, language: Language, image: str) -> None:
    fitted = await engine.fit(Grant(), language)
    assert fitted.image is not None
    assert fitted.image.startswith(f"{image}@sha256:")


async def test_an_image_that_a_grant_names_wins_over_the_language(engine: DockerEngine) -> None:
    fitted = await engine.fit(Grant(image="belljar/shell"), Language.JAVASCRIPT)
    assert fitted.image is not None
    assert fitted.image.startswith("belljar/shell@")
