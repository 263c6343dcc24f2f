"""`magnetar hash`: every hash of a key, and where the key goes."""

from __future__ import annotations

from collections.abc import Callable

import click

from magnetar.cli.hashing.support import hashing_errors
from magnetar.cli.output import emit_record, output_options
from magnetar.hashing.bundles import bundle_boundaries, bundle_range
from magnetar.hashing.crc import crc32
from magnetar.hashing.errors import KeyEncodingError
from magnetar.hashing.fnv import fnv1a_32, fnv1a_64
from magnetar.hashing.java_hash import java_string_hash
from magnetar.hashing.ketama import ketama_hash
from magnetar.hashing.murmur3 import key_slot, murmur3_32, murmur3_positive
from magnetar.hashing.vnode import DEFAULT_VNODES, vnode

HASHES: dict[str, Callable[[bytes], int]] = {
    "murmur3": murmur3_32,
    "murmur3_positive": murmur3_positive,
    "java": lambda key: java_string_hash(key.decode()),
    "crc32": crc32,
    "ketama": ketama_hash,
    "fnv1a_32": fnv1a_32,
    "fnv1a_64": fnv1a_64,
}


@click.command("hash")
@click.argument("key")
@click.option(
    "--algorithm", "algorithms", multiple=True, type=click.Choice(list(HASHES)), help="Show only these hashes."
)
@click.option("--hex", "is_hex", is_flag=True, help="KEY is given in hexadecimal.")
@click.option("--vnodes", "vnode_count", default=DEFAULT_VNODES, show_default=True, help="Number of vnodes.")
@click.option("--bundles", default=4, show_default=True, help="Number of bundles of the namespace.")
@output_options
@hashing_errors
def hash_command(
    key: str, algorithms: tuple[str, ...], is_hex: bool, vnode_count: int, bundles: int, as_json: bool
) -> None:
    """Show the hashes of KEY, its Key_Shared slot, its vnode (as one varchar column, bytea with --hex) and its bundle.

    The bundle is that of a topic whose full name is KEY. Typed and composite keys: magnetar vnodes key.
    """
    data = _bytes(key) if is_hex else key.encode()
    chosen = algorithms or tuple(HASHES)
    if is_hex and "java" in chosen:
        # String.hashCode is defined for text.
        if algorithms:
            raise KeyEncodingError("java hashes text: leave --hex out")
        chosen = tuple(name for name in chosen if name != "java")
    record: dict[str, object] = {name: HASHES[name](data) for name in chosen}
    if not algorithms:
        record["key_shared_slot"] = key_slot(data)
        record["vnode"] = (
            vnode((data,), ("bytea",), vnode_count) if is_hex else vnode((key,), ("varchar",), vnode_count)
        )
        if not is_hex:
            record["bundle"] = bundle_range(key, bundle_boundaries(bundles))
    emit_record({"key": key, **record}, as_json=as_json)


def _bytes(text: str) -> bytes:
    try:
        return bytes.fromhex(text)
    except ValueError:
        raise KeyEncodingError(f"{text!r} is not hexadecimal: give pairs of digits 0-9 a-f") from None
