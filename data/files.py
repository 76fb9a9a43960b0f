"""Files that are whole or not there, and checksums by which a damaged one is known."""

import errno
import hashlib
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

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
