"""`belljar image`: the images that jars of the docker and gvisor engines are made of."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from belljar.cli.options import AsJson

if TYPE_CHECKING:
    from belljar.engines.docker.api import Api

app = typer.Typer(help="Images of the docker and gvisor engines.", no_args_is_help=True)


@app.command("build")
def build(
    names: Annotated[
        list[str] | None, typer.Argument(metavar="[NAME]...", help="node, python, shell; without any, all.")
    ] = None,
    base: Annotated[
        str | None,
        typer.Option(metavar="IMAGE", help="What to build on; the Dockerfile has a default."),
    ] = None,
    bootstrap: Annotated[
        bool, typer.Option("--bootstrap", help="Make the base from Debian's packages; needs mmdebstrap.")
    ] = False,
    packages: Annotated[str, typer.Option(help="More Debian packages, such as python3-numpy.")] = "",
    network: Annotated[str, typer.Option(help="Network of the build alone.")] = "host",
    as_json: AsJson = False,
) -> None:
    """Build belljar's own images."""
    import asyncio
    import json

    from belljar.engines.docker import building
    from belljar.errors import BadRequest

    if base and bootstrap:
        raise BadRequest("give either --base or --bootstrap, not both", field="base")
    wanted = names or list(building.NAMES)
    for name in wanted:
        building.dockerfile(name)  # before anything is done

    async def work() -> None:
        api = await _open()
        try:
            if bootstrap:
                typer.echo(f"making {building.BASE} from Debian's packages", err=True)
                await building.bootstrap(api)
            for name in wanted:
                typer.echo(f"building {building.tag(name)}", err=True)
                chosen = building.BASE if bootstrap else base
                async for line in building.build(api, name, base=chosen, packages=packages, network=network):
                    typer.echo(f"  {_harmless(line)}", err=True)
                if not as_json:
                    typer.echo(building.tag(name))
        finally:
            await api.close()

    asyncio.run(work())
    if as_json:
        typer.echo(json.dumps({"built": [building.tag(name) for name in wanted]}, indent=2))


@app.command("list")
def list_(as_json: AsJson = False) -> None:
    """Show the images that runs may use, and whether the engine has them."""
    import asyncio
    import json

    from belljar.cli.tables import print_table

    async def work() -> list[dict[str, object]]:
        from belljar.config import load_here
        from belljar.engines.docker import images
        from belljar.errors import EngineUnavailable
        from belljar.wiring import images_of

        rows: list[dict[str, object]] = []
        api = await _open()
        try:
            for name, uses in images_of(load_here()).items():
                try:
                    image = await images.find(api, name)
                except EngineUnavailable:
                    rows.append({"image": name, "used_for": uses, "id": None, "size_mb": None})
                else:
                    rows.append(
                        {"image": name, "used_for": uses, "id": image.id, "size_mb": image.size // 1_000_000}
                    )
        finally:
            await api.close()
        return rows

    rows = asyncio.run(work())
    if as_json:
        typer.echo(json.dumps(rows, indent=2))
    else:
        table = [(r["image"], r["used_for"], r["id"] or "not there", r["size_mb"]) for r in rows]
        print_table(("image", "used for", "digest", "MB"), table)


@app.command("check")
def check(
    image: Annotated[str, typer.Argument(help="Name or digest.")],
    engine: Annotated[str, typer.Option(help="docker or gvisor.")] = "docker",
    as_json: AsJson = False,
) -> None:
    """Make a jar of an image and look around in it. Exit status 1 if it is not fit."""
    import asyncio
    import json
    from dataclasses import asdict

    from belljar.config import load_here
    from belljar.engines.docker.fitness import examine
    from belljar.wiring import choice_for

    found = asyncio.run(examine(choice_for(load_here()), engine, image))
    if as_json:
        checks = [asdict(one) for one in found.checks]
        typer.echo(json.dumps({"image": image, "fit": found.usable, "checks": checks}, indent=2))
    else:
        from belljar.cli.doctor import print_checks

        typer.echo(f"image {image}: {'fit' if found.usable else 'not fit'}")
        print_checks(found.checks)
    raise typer.Exit(0 if found.usable else 1)


async def _open() -> Api:
    from belljar.config import load_here
    from belljar.engines.docker.api import Api

    config = load_here()
    return await Api.open(config.docker_host, config.docker_context)


def _harmless(line: str) -> str:
    from belljar.cli.tables import one_line

    return one_line(line)
