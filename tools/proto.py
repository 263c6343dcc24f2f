#!/usr/bin/env python3
"""Generate the protobuf modules next to their .proto files, or check that they are not stale.

  proto.py           write *_pb2.py and *_pb2.pyi
  proto.py --check   compare descriptors and exit 1 when a .proto says something else than its module

The check compares what the files mean, not their text: another protoc version writes other text for the same thing.
"""

from __future__ import annotations

import importlib
import sys
import tempfile
from pathlib import Path

SOURCE = Path(__file__).resolve().parent.parent / "src"
PROTOS = sorted(SOURCE.glob("magnetar/wire/**/*.proto"))


def protoc(*options: str) -> None:
    """Run the compiler that comes with grpcio-tools. Exits when it fails; it has printed why."""
    from grpc_tools import protoc as compiler

    bundled = Path(compiler.__file__).parent / "_proto"
    if compiler.main(["protoc", f"-I{SOURCE}", f"-I{bundled}", *options, *map(str, PROTOS)]) != 0:
        sys.exit(1)


def generate() -> None:
    plugin = Path(sys.executable).parent / "protoc-gen-mypy"
    protoc(f"--plugin={plugin}", f"--python_out={SOURCE}", f"--mypy_out=quiet:{SOURCE}")
    print(f"generated {len(PROTOS)} modules")


def stale() -> list[str]:
    """The .proto files whose module says something else."""
    from google.protobuf import descriptor_pb2

    with tempfile.TemporaryDirectory() as folder:
        target = Path(folder) / "all.pb"
        protoc(f"--descriptor_set_out={target}")
        compiled = descriptor_pb2.FileDescriptorSet.FromString(target.read_bytes())
    names = []
    for wanted in compiled.file:
        module = importlib.import_module(wanted.name.removesuffix(".proto").replace("/", ".") + "_pb2")
        for proto in (wanted, found := descriptor_pb2.FileDescriptorProto.FromString(module.DESCRIPTOR.serialized_pb)):
            strip_json_names(proto)
        if found != wanted:
            names.append(wanted.name)
    return names


def strip_json_names(proto: object) -> None:
    """Descriptor sets carry the JSON name of each field, modules do not; it follows from the name."""
    for message in [*getattr(proto, "message_type", ()), *getattr(proto, "nested_type", ())]:
        for field in message.field:
            field.ClearField("json_name")
        strip_json_names(message)


def main() -> int:
    if "--check" not in sys.argv[1:]:
        generate()
        return 0
    names = stale()
    for name in names:
        print(f"{name}: its generated module is stale; run `make proto`", file=sys.stderr)
    return 1 if names else 0


if __name__ == "__main__":
    sys.exit(main())
