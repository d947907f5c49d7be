"""`mainstem version`: what is installed."""

from mainstem.cli.hubs import Json


def version(json: Json = False) -> None:
    """Print the versions of Mainstem and of what it builds on."""
    import platform
    from importlib import metadata

    import mainstem
    from mainstem.cli.printing import print_json

    found = {"mainstem": mainstem.__version__, "python": platform.python_version()}
    found |= {name: metadata.version(name) for name in ("pyarrow", "apsw", "uvloop", "msgspec")}
    if json:
        print_json(found)
        return
    print(f"mainstem {found.pop('mainstem')}")
    print(", ".join(f"{name} {number}" for name, number in found.items()))
