"""Files that are whole or not there, and checksums by which a damaged one is known."""

import errno
import hashlib
import json
import math
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

FULL = (errno.ENOSPC, errno.EDQUOT)
BLANK = b"0" * 64  # stands in a header where its checksum will stand
LONGEST_HEADER = 100_000_000  # bytes; what safetensors itself reads at most


@contextmanager
def naming(path: Path) -> Iterator[None]:
    """Let an OSError met within name `path`: writing to an open file, the system does not say which."""
    try:
        yield
    except OSError as error:
        error.filename = error.filename or str(path)
        raise


def replace_file(path: Path, *content: bytes | memoryview) -> None:
    """Write `content`, part by part, under another name, and give it the right one when it lies safely on the disk."""
    draft = path.with_name(path.name + ".new")
    with naming(path):
        draft.unlink(missing_ok=True)  # what a kill left, or a link that a stranger planted
        try:
            with draft.open("xb") as file:
                file.writelines(content)
                file.flush()
                os.fsync(file.fileno())
            os.replace(draft, path)
        except OSError:
            with suppress(OSError):
                draft.unlink(missing_ok=True)
            raise


def seal(header: bytes, data: bytes) -> bytes:
    """Return `header` with the checksum of the file in place of its BLANK; data: SHA-256 of all that follows."""
    return header.replace(BLANK, checksum(header, data), 1)


def checksum(header: bytes, data: bytes) -> bytes:
    """Return the checksum of a file: of its header with BLANK in it, and of the SHA-256 of all that follows."""
    return hashlib.sha256(header + data).hexdigest().encode("ascii")


def read_header(path: Path) -> dict[str, Any]:
    """Return the header of a safetensors file: the metadata, and the dtype, shape and place of every tensor.

    Only the header is read, and the place of each tensor is held against the size of the file. No path goes to the
    library, which opens none whose name is not UTF-8. Raises ValueError where the file is no such.
    """
    size = path.stat().st_size
    with path.open("rb") as file:
        length = int.from_bytes(file.read(8), "little")
        if length > min(size, LONGEST_HEADER):
            raise ValueError(f"{path} is damaged: its header is longer than the file")
        try:
            header = json.loads(file.read(length))
            for name, about in header.items():
                if name != "__metadata__":
                    start, end = about["data_offsets"]
                    bits = int("".join(filter(str.isdigit, about["dtype"].split("_")[0])) or 8)
                    wanted = math.prod(about["shape"]) * bits // 8
                    if not (0 <= start <= end <= size - 8 - length and end - start == wanted):
                        raise ValueError(f"{name} lies outside the file")
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            raise ValueError(f"{path} is damaged: {error}") from None
    return header


def verify(path: Path) -> None:
    """Raise ValueError that names the file unless the safetensors file at `path` is just as it was sealed."""
    with path.open("rb") as file:
        header = file.read(min(int.from_bytes(file.read(8), "little"), LONGEST_HEADER))
        data = hashlib.file_digest(file, "sha256").digest()
    found = re.search(rb'\\"sha256\\": \\"([0-9a-f]{64})\\"', header)
    if found is None:
        raise ValueError(f"{path} has no checksum: it is damaged, or was made by another version")
    if checksum(header.replace(found[1], BLANK, 1), data) != found[1]:
        raise ValueError(f"{path} is damaged: its checksum does not match")
