"""Files of tensors and numbers: written atomically, checked by a digest, read without executing anything."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import io
import json
import os
import pickle
import re
import secrets
import socket
import struct
import time
import warnings
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import torch

MAGIC = b"hmcvi-2\n"  # before the SHA-256 at the end of a file
END = b"PK\x05\x06"  # begins the last record of a zip file, of 22 bytes if it has no comment
TEMPORARY = re.compile(r"\.(?P<host>[0-9a-f]{8})-(?P<pid>\d+)-[0-9a-f]{16}\.tmp")
SIGNATURE = "sha256"  # of a file of JSON
LARGEST_JSON = 100_000_000  # bytes
ABANDONED = 86_400  # seconds after which a temporary file of another machine is one of a dead process


class CheckpointError(ValueError):
    """A checkpoint cannot be written or used."""


def save(state: Mapping[str, Any], path: Path) -> None:
    """Write beside `path`, flush to disk, rename: a crash or a full disk leaves the old file whole.

    The file ends with the SHA-256 of all that is before it, as a comment of its zip archive: `torch.load`
    reads it as any other, and `load` refuses it if a bit has changed.
    """
    buffer = io.BytesIO()
    torch.save(dict(state), buffer)
    buffer.seek(-2, os.SEEK_END)
    buffer.write(struct.pack("<H", len(MAGIC) + 32) + MAGIC)
    buffer.write(hashlib.sha256(buffer.getbuffer()).digest())
    write_atomically(buffer.getbuffer(), path)


def save_json(content: Mapping[str, Any], path: Path) -> None:
    """Write numbers, strings and containers of them as text, atomically; null for what is not finite.

    "sha256" at its end is the digest of the rest, as the shortest JSON with sorted keys.
    """
    finite = json.loads(json.dumps(finite_or_none(content), allow_nan=False))  # as it will be read
    signed = {**finite, SIGNATURE: _json_digest(finite)}
    text = json.dumps(signed, indent=2, ensure_ascii=False, allow_nan=False)
    write_atomically((text + "\n").encode(), path)


def load_json(path: Path) -> dict[str, Any]:
    """What `save_json` has written, refused if it has changed since; files of others have no digest."""
    try:
        if path.exists() and not path.is_file():
            raise CheckpointError(f"{path} is damaged (not a file)")
        if path.stat().st_size > LARGEST_JSON:
            raise CheckpointError(f"{path} is not a result: it has more than {LARGEST_JSON:,} bytes")
        content = json.loads(path.read_bytes().decode())
    except FileNotFoundError:
        raise CheckpointError(f"there is no file {path}") from None
    except (OSError, ValueError, RecursionError) as error:
        if isinstance(error, CheckpointError):
            raise
        raise CheckpointError(f"{path} is damaged ({error})") from None
    if not isinstance(content, dict):
        raise CheckpointError(f"{path} is not a result of this program")
    if (known := content.pop(SIGNATURE, None)) is not None and known != _json_digest(content):
        raise CheckpointError(
            f"{path} is damaged or was edited: its content is not what was written; delete the line of its "
            f"{SIGNATURE} to use it all the same"
        )
    return content


def _json_digest(content: Any) -> str:
    try:
        text = json.dumps(content, sort_keys=True, ensure_ascii=False, separators=(",", ":"))
        return hashlib.sha256(text.encode(errors="surrogatepass")).hexdigest()
    except RecursionError:
        return ""


@contextlib.contextmanager
def reading(path: Path) -> Iterator[None]:
    """Within it, whatever an edited or foreign file makes go wrong is a CheckpointError that names it."""
    try:
        yield
    except (CheckpointError, OSError, MemoryError):
        raise
    except Exception as error:
        if type(error).__name__ in ("ConfigError", "DataError"):
            raise
        reason = (str(error) or type(error).__name__).splitlines()[0][:200]
        raise CheckpointError(
            f"{path} is damaged, edited or of another version ({type(error).__name__}: {reason}); use an "
            "older copy"
        ) from None


def finite_or_none(content: Any) -> Any:
    """The same, with None in place of NaN and infinities, which JSON does not have."""
    match content:
        case float():
            return content if content - content == 0 else None
        case Mapping():
            return {key: finite_or_none(value) for key, value in content.items()}
        case list() | tuple():
            return [finite_or_none(value) for value in content]
    return content


def write_atomically(content: bytes | memoryview, path: Path) -> None:
    """Write a new file beside `path` that no one else has, flush it, rename it, flush the folder."""
    write_pieces([content], path)


def write_pieces(content: Iterable[bytes | memoryview], path: Path) -> None:
    """`write_atomically` of what is in several pieces."""
    temporary = _temporary(path)
    try:
        try:
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_NOFOLLOW", 0)
            with open(os.open(temporary, flags, 0o666), "wb") as file:
                for piece in content:
                    file.write(piece)
                file.flush()
                os.fsync(file.fileno())
            os.replace(temporary, path)
        except BaseException:
            with contextlib.suppress(OSError):
                temporary.unlink(missing_ok=True)
            raise
        _flush_folder(path.parent)
    except OSError as error:
        raise CheckpointError(
            f"could not write {path} ({error.strerror}); the last good one is kept"
        ) from error


def keep_copy(path: Path, copy: Path) -> None:
    """Give a file a second name in its folder, under which it stays when the first one is written anew."""
    temporary = _temporary(copy)
    try:
        os.link(path, temporary)
        os.replace(temporary, copy)
        temporary.unlink(missing_ok=True)  # a rename between two names of one file does nothing
    except FileNotFoundError:
        return
    except OSError:  # no links on this disk
        write_atomically(path.read_bytes(), copy)


def remove_stale(folder: Path) -> None:
    """Remove the temporary files that dead processes have left in a folder."""
    for path in folder.iterdir():
        if (name := TEMPORARY.fullmatch(path.name)) is None:
            continue
        with contextlib.suppress(OSError):
            if name["host"] == _host():
                is_stale = not _is_alive(int(name["pid"]))
            else:
                is_stale = time.time() - path.lstat().st_mtime > ABANDONED
            if is_stale:
                path.unlink()


def _temporary(path: Path) -> Path:
    return path.with_name(f".{_host()}-{os.getpid()}-{secrets.token_hex(8)}.tmp")


def _host() -> str:
    return hashlib.sha256(socket.gethostname().encode()).hexdigest()[:8]


def _is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except (PermissionError, OverflowError):
        return True
    return True


def _flush_folder(folder: Path) -> None:
    """Make a rename survive a power failure, where folders can be flushed."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOTSUP):
            raise
    finally:
        os.close(descriptor)


def load(path: Path, device: str | torch.device = "cpu") -> dict[str, Any]:
    """The state saved at `path`: tensors, numbers, strings and containers of them, nothing else."""
    content = _read(path)
    try:
        with warnings.catch_warnings():  # of foreign pickle protocols, which are refused anyway
            warnings.simplefilter("ignore")
            state = torch.load(io.BytesIO(content), map_location=device, weights_only=True)
    except pickle.UnpicklingError:
        raise CheckpointError(
            f"{path} is damaged or holds more than tensors and numbers; nothing in it was executed"
        ) from None
    except Exception as error:  # bytes that are not a file of torch may raise anything
        reason = (str(error) or repr(error)).splitlines()[0].split(". ")[0]
        raise CheckpointError(f"{path} is damaged ({reason}); use an older copy") from None
    if not isinstance(state, dict):
        raise CheckpointError(f"{path} is not a checkpoint of this program")
    return state


def _read(path: Path) -> bytes:
    """The bytes of a file, as they were written; files of earlier versions have no digest."""
    try:
        if path.exists() and not path.is_file():
            raise CheckpointError(f"{path} is damaged (not a file); use an older copy")
        content = path.read_bytes()
    except FileNotFoundError:
        raise CheckpointError(f"there is no checkpoint {path}") from None
    except OSError as error:
        raise CheckpointError(f"{path} is damaged ({error.strerror}); use an older copy") from None
    if content[-len(MAGIC) - 32 : -32] == MAGIC:
        is_whole = hashlib.sha256(memoryview(content)[:-32]).digest() == content[-32:]
    else:
        is_zip = content[:2] == b"PK"
        is_whole = not is_zip or (content[-22:-18] == END and content[-2:] == b"\0\0")
    if not is_whole:
        raise CheckpointError(
            f"{path} is damaged (its bytes are not those that were written); use an older copy"
        )
    return content


def digest(values: torch.Tensor) -> str:
    """SHA-256 of the shape of a tensor and its numbers in single precision, in hex."""
    found = hashlib.sha256(repr(tuple(values.shape)).encode())
    for part in values.split(1000):
        found.update(part.float().cpu().contiguous().numpy().data)
    return found.hexdigest()
