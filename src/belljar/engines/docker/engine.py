"""Jars as containers: the guest goes down a container's stdin and answers on its stdout.

    containers/create ─► attach ─► start ─► the guest's text ─► "ready" ─► posture ─► a jar
                                                     │
                          no python3 in the image ───┴─► `plain`: the program itself, files through a helper

`runtime="runsc"` makes the same containers on gVisor's kernel; that is the engine `gvisor`.
`container.py` says what is forced on each.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Any

from belljar.engines.base import Area, Check, Command, Probe
from belljar.engines.docker import images, labels
from belljar.engines.docker.api import Api, Failed
from belljar.engines.docker.container import (
    INPUTS,
    STAGER_UID,
    UID,
    WORKSPACE,
    FileOwner,
    Volume,
    forced,
    volume_owner,
)
from belljar.engines.docker.images import Image
from belljar.engines.docker.plain import PlainJar
from belljar.engines.docker.running import Container, host_namespaces, lacks
from belljar.engines.environment import TYPESCRIPT, WARM, environment
from belljar.engines.following import PATIENCE_S
from belljar.engines.guestjar import GuestJar
from belljar.engines.link import Link, put
from belljar.engines.tunnels import NO_WAY_OUT, WayOut
from belljar.errors import BelljarError, EngineUnavailable, GrantNotEnforceable
from belljar.guest import bundle
from belljar.guest.protocol import ProtocolError
from belljar.models import Grant, InputFile, Language, Limits

logger = logging.getLogger(__name__)

READY_S = 30.0
"""How long a guest may take from the start of its container."""
REAP_S = 60.0
Stage = Callable[[Sequence[InputFile]], Awaitable[None]]
_GUEST = "belljar.guest.contained"
_START = bundle.start("sys.stdin.buffer")
_GVISOR_THREADS = 64
_HELD_BY = dict.fromkeys(("memory", "pids", "cpu"), "cgroup of the container")


class DockerEngine:
    def __init__(
        self,
        *,
        name: str = "docker",
        host: str | None = None,
        context: str | None = None,
        runtime: str = "runc",
        image: str = images.DEFAULT,
        languages: Mapping[str, str] = images.LANGUAGES,
        preload: tuple[str, ...] = (),
        way_out: WayOut | None = None,
    ) -> None:
        self.name = name
        self._way_out = way_out
        self._host = host
        self._context = context
        self._runtime = runtime
        self._image = image
        self._languages = languages
        self._guest = bundle.pack((*bundle.GUEST, _GUEST), {"preload": preload})
        self._token = secrets.token_hex(8)
        self._opening: asyncio.Task[Api] | None = None
        self._reaping: asyncio.Task[None] | None = None
        self._making: set[asyncio.Task[GuestJar | PlainJar]] = set()
        self._living: dict[str, GuestJar | PlainJar | None] = {}
        """By name; None while it is being made."""
        self._plain: set[str] = set()
        """Images without python3, by digest."""
        self._fitted: dict[str, Image] = {}
        """By reference: what such a one is does not change."""
        self._namespaces = host_namespaces()
        self._owner = FileOwner()

    @property
    def is_gvisor(self) -> bool:
        return self.name == "gvisor"

    def _held(self, limits: Limits) -> Limits:
        """What the cgroup has to hold: gVisor's kernel is a program in it, with threads of its own."""
        return replace(limits, pids=limits.pids + _GVISOR_THREADS) if self.is_gvisor else limits

    @property
    def _input_mode(self) -> int:
        # runsc of 2024 empties a file that is opened with O_TRUNC on a read-only mount, and only then says
        # EROFS; of a file that its own uid may not write it says EACCES before.
        return 0o444 if self.is_gvisor else 0o644

    async def probe(self) -> Probe:
        checks = []
        about: dict[str, object] = {}
        try:
            api = await Api.open(self._host, self._context)
        except EngineUnavailable as error:
            what, _, fix = error.message.partition("; ")
            return Probe(self.name, (Check("engine", False, what, fix or what),))
        try:
            info = await api.ask("GET", "info")
            about = {
                "docker_endpoint": api.endpoint,
                "docker_context": api.context,
                "docker_version": str(info.get("ServerVersion")),
                "docker_api_version": api.version,
                "runtime": self._runtime,
                "images": await self._digests(api),
            }
            found = f"{about['docker_version']}, API {api.version}, at {api.endpoint}, context {api.context}"
            checks.append(Check("engine", True, found))
            checks.append(self._check_runtime(info.get("Runtimes") or {}))
            seccomp = any("seccomp" in option for option in info.get("SecurityOptions") or ())
            fix = "use a kernel with CONFIG_SECCOMP_FILTER, and an engine built with seccomp"
            checks.append(Check("seccomp", seccomp, "in use" if seccomp else "not in use", fix))
            checks.append(await self._check_image(api))
        except EngineUnavailable as error:
            checks.append(Check("engine", False, error.message, "look at the engine's own log"))
        finally:
            await api.close()
        return Probe(self.name, tuple(checks), about)

    def interpreters(self) -> Mapping[Language, tuple[str, ...]]:
        return {
            Language.PYTHON: ("python3",),
            Language.BASH: ("bash",),
            Language.JAVASCRIPT: ("node",),
            Language.TYPESCRIPT: ("sh", "-c", TYPESCRIPT),
        }

    async def fit(self, grant: Grant, language: Language | None) -> Grant:
        """The same grant with the image that will be used, by digest: what is recorded is what is run."""
        name = grant.image or self._languages.get(language or "", self._image)
        image = await self.image(name)
        self._fitted[image.reference] = image
        return replace(grant, image=image.reference)

    async def image(self, name: str) -> Image:
        """As the engine has it now, if jars can be made of it."""
        image = await images.find(await self._ready(), name)
        images.check_fit(image)
        return image

    async def create(self, grant: Grant) -> GuestJar | PlainJar:
        if grant.network.enabled and self._way_out is None:
            raise GrantNotEnforceable(NO_WAY_OUT, field="network")
        making = asyncio.create_task(self._make(await self._ready(), grant))
        self._making.add(making)
        making.add_done_callback(self._making.discard)
        try:
            return await asyncio.shield(making)
        except asyncio.CancelledError:
            # What the engine was asked for is taken back when it is there; before, there is no stopping it.
            with suppress(BelljarError):
                await (await making).destroy()
            raise

    async def close(self) -> None:
        opening, self._opening = self._opening, None
        if opening is None:
            return
        await asyncio.wait({opening, *self._making})
        await asyncio.gather(*(jar.destroy() for jar in list(self._living.values()) if jar is not None))
        if self._reaping is not None:
            self._reaping.cancel()
            await asyncio.wait({self._reaping})
            self._reaping = None
        if not _failed(opening):
            await opening.result().close()

    async def left_behind(self) -> list[str]:
        """Remove what nobody needs any more: of processes that are gone, and of this engine's lost jars."""
        api = await self._ready()
        return await labels.left_behind(api, engine=self._token, living=self._living)

    # Making a jar

    async def _make(self, api: Api, grant: Grant) -> GuestJar | PlainJar:
        name = grant.image or self._image
        image = self._fitted.get(name) or await self.image(name)
        try:
            if image.id not in self._plain:
                return await self._make_warm(api, grant, image)
        except Failed as error:
            if error.status == 404 and name in self._fitted:
                del self._fitted[name]
                await self.image(name)  # says that it was removed since
            if not lacks(error, "python3"):
                raise
            self._plain.add(image.id)
        return await self._make_plain(api, grant, image)

    async def _make_plain(self, api: Api, grant: Grant, image: Image) -> PlainJar:
        """The helper is a jar of the default image whose workspace another container can mount too."""
        if grant.network.enabled:
            raise GrantNotEnforceable(
                f"the way out is the guest's, which image {image.name} cannot run; install python3 in it",
                field="network",
            )
        helper_image = await images.find(api, self._image)
        if helper_image.id in self._plain:
            raise EngineUnavailable(
                f"neither image {image.name} nor {self._image}, the default, has a python3; set "
                "sandbox.default_image to one that has",
                field="image",
            )
        limits = self._held(grant.limits)
        helper = await self._make_warm(api, grant, helper_image, shared=True)
        name = helper.container.name
        volumes = [_workspace(name), _inputs(name, read_only=True)]

        def program(command: Command) -> Container:
            return Container(
                api,
                f"{name}-program",
                forced(
                    image=image.id,
                    image_env=image.env,
                    argv=command.argv,
                    env={"PATH": image.path, **environment(grant.limits.cpu_cores), **command.env},
                    cwd=command.cwd,
                    limits=limits,
                    runtime=self._runtime,
                    labels=labels.for_jar(self._token, name),
                    volumes=volumes,
                    owner=self._owner,
                    keep=True,
                ),
                gvisor=self.is_gvisor,
            )

        jar = PlainJar(
            grant,
            helper,
            make=program,
            check=lambda container: container.check(limits, self._namespaces, gvisor=self.is_gvisor),
            is_full=helper.container.is_full,
        )
        self._living[name] = jar
        return jar

    async def _make_warm(
        self, api: Api, grant: Grant, image: Image, *, shared: bool = False
    ) -> _ContainerJar:
        limits = self._held(grant.limits)
        name = f"belljar-{secrets.token_hex(8)}"
        self._living[name] = None
        volumes = [_inputs(name, read_only=not shared, uid=UID if shared else self._inputs_uid)]
        if shared or self.is_gvisor:  # whose own tmpfs knows no limit of files; the host's does
            volumes.insert(0, _workspace(name))
        # gVisor has terminals of its own, and no mask that it would heed.
        config = self._guest_config(name, image, limits, volumes, terminals=not self.is_gvisor)
        container = Container(api, name, config, gvisor=self.is_gvisor)

        async def destroy() -> None:
            del self._living[name]  # from here on the reaper may help
            with suppress(Failed):  # it is away; the processes are dead, and the reaper does the rest
                await container.remove()
                await asyncio.gather(*(labels.remove_volume(api, volume.name) for volume in volumes))

        try:
            link = await self._start_guest(container, image)
            jar = _ContainerJar(
                grant,
                link,
                base_env={"PATH": image.path, **environment(grant.limits.cpu_cores)},
                held_by=_HELD_BY,
                counters=container.counters,
                kill=container.kill,
                kill_programs=(lambda: None) if self.is_gvisor else container.kill_programs,
                destroy=destroy,
                timings=container.timings,
                way_out=self._way_out,
                container=container,
                input_mode=self._input_mode,
                stage=None if shared else partial(self._stage, api, name, image, limits),
            )
            jar.posture = container.check(limits, self._namespaces, gvisor=self.is_gvisor)
            await jar.open_network()
        except BaseException:
            await destroy()
            raise
        self._living[name] = jar
        return jar

    @property
    def _inputs_uid(self) -> int:
        # A program can have a user namespace of gVisor's own, be root in it, and mount read-only no more.
        return STAGER_UID if self.is_gvisor else UID

    def _guest_config(
        self,
        jar: str,
        image: Image,
        limits: Limits,
        volumes: Sequence[Volume],
        *,
        uid: int = UID,
        terminals: bool = False,
    ) -> dict[str, Any]:
        return forced(
            image=image.id,
            image_env=image.env,
            argv=("python3", "-c", _START, _GUEST),
            env={"PATH": image.path, "HOME": "/tmp", **WARM},
            cwd="/",
            limits=limits,
            runtime=self._runtime,
            labels=labels.for_jar(self._token, jar),
            volumes=volumes,
            owner=self._owner,
            uid=uid,
            terminals=terminals,
            keep=self.is_gvisor,  # its cgroup ends with it, so the engine has to tell why it ended
        )

    async def _start_guest(self, container: Container, image: Image) -> Link:
        link = Link()
        await container.create(link)
        container.send(self._guest)  # waits for it there
        await container.start()
        try:
            async with asyncio.timeout(READY_S):
                note = (await link.next(0)).json()
        except TimeoutError:
            raise EngineUnavailable(
                f"no guest was ready within {READY_S:.0f} s{container.last_words()}"
            ) from None
        except (EngineUnavailable, ProtocolError) as error:
            raise EngineUnavailable(
                f"the guest did not start in image {image.name}{container.last_words()}", field="image"
            ) from error
        if "ready" not in note:
            raise EngineUnavailable(f"the guest could not start: {ascii(note.get('failed'))}")
        container.take_hold((await container.look())["State"]["Pid"])
        return link

    async def _stage(
        self, api: Api, jar: str, image: Image, limits: Limits, files: Sequence[InputFile]
    ) -> None:
        """Inputs are read-only to all that is in the jar, so a container beside it writes them."""
        uid = self._inputs_uid
        config = self._guest_config(jar, image, limits, [_inputs(jar, read_only=False, uid=uid)], uid=uid)
        stager = Container(api, f"{jar}-stager", config, gvisor=self.is_gvisor)
        try:
            link = await self._start_guest(stager, image)
            await put(link, Area.INPUTS, files, limits, self._input_mode)
        finally:
            await stager.remove()

    # The connection

    async def _ready(self) -> Api:
        """The one that is open, or a new one. A caller that is cancelled does not stop it for the others."""
        if self._opening is None or (self._opening.done() and _failed(self._opening)):
            self._opening = asyncio.create_task(self._open())
        return await asyncio.shield(self._opening)

    async def _open(self) -> Api:
        api = await Api.open(self._host, self._context)
        try:
            self._owner = volume_owner(await api.ask("GET", "info"))
            await labels.left_behind(api)
        except BaseException:
            await api.close()
            raise
        self._reaping = asyncio.create_task(self._reap())
        return api

    async def _reap(self) -> None:
        while True:
            await asyncio.sleep(REAP_S)
            try:
                removed = await self.left_behind()
            except BelljarError as error:
                logger.warning("cannot look for what was left behind: %s", error)
            else:
                for what in removed:
                    logger.info("removed what was left behind: %s", what)

    def _check_runtime(self, runtimes: Mapping[str, object]) -> Check:
        ok = self._runtime in runtimes
        detail = (
            f"{self._runtime} is {'registered' if ok else 'not registered'}; there are {', '.join(runtimes)}"
        )
        return Check(
            "runtime", ok, detail, f"register {self._runtime} in /etc/docker/daemon.json; see docs/engines.md"
        )

    async def _digests(self, api: Api) -> dict[str, str | None]:
        """Of the images that languages have; None where there is no such image."""
        found: dict[str, str | None] = {}
        for name in (self._image, *self._languages.values()):
            try:
                found[name] = (await images.find(api, name)).id
            except Failed:
                raise
            except EngineUnavailable:
                found[name] = None
        return found

    async def _check_image(self, api: Api) -> Check:
        try:
            image = await images.find(api, self._image)
            images.check_fit(image)
        except BelljarError as error:
            return Check("image", False, error.message, "belljar image build", required=False)
        return Check("image", True, image.reference)


class _ContainerJar(GuestJar):
    """Inputs go another way than through its own guest, unless that may write them."""

    def __init__(
        self, *args: Any, container: Container, input_mode: int, stage: Stage | None, **fields: Any
    ) -> None:
        super().__init__(*args, **fields)
        self.container = container
        self._input_mode = input_mode
        self._stage = stage

    async def settle(self) -> None:
        if not self.container.config["HostConfig"]["AutoRemove"]:
            with suppress(Failed, TimeoutError):
                async with asyncio.timeout(PATIENCE_S):
                    await self.container.settle()

    async def put(self, area: Area, files: Sequence[InputFile]) -> None:
        if area is not Area.INPUTS:
            await super().put(area, files)
        elif self._stage is None:
            await put(self.link, area, files, self.grant.limits, self._input_mode)
        elif files:
            if not self.alive:
                raise EngineUnavailable("the jar was destroyed")
            await self._stage(files)


def _workspace(jar: str) -> Volume:
    return Volume(name=f"{jar}-workspace", target=WORKSPACE, read_only=False)


def _inputs(jar: str, *, read_only: bool, uid: int = UID) -> Volume:
    return Volume(name=f"{jar}-inputs", target=INPUTS, read_only=read_only, uid=uid)


def _failed(opening: asyncio.Task[Api]) -> bool:
    return opening.cancelled() or opening.exception() is not None
