"""One asynchronous dump file (Ascend O2, r1.5, acl dump), with its header checked against its content.

The files are untrusted: the sizes in the header are compared with the size of the file before any memory is
allocated.
"""

from __future__ import annotations

import math
import mmap
import os
import stat
import struct
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Optional, Union

import numpy as np
import numpy.typing as npt
from google.protobuf.message import DecodeError

from msprobe.graphdump.files.datatypes import FORMATS, TYPES, DataType, unpack
from msprobe.graphdump.files.layout import BLOCKED
from msprobe.graphdump.files.schema import message_class

_MAX_DIMENSIONS = 32
_MAX_ELEMENTS = 2**58  # above this numpy cannot address the bytes, even of an empty array


class AsyncFileError(ValueError):
    """The file is not an asynchronous dump, or a tensor in it cannot be read."""


@dataclass(frozen=True)
class Slot:
    """One input, output or buffer as the header declares it. Its bytes start at `offset` in the file.

    Old versions store the data inside the header: then `inline` has the bytes.
    """

    io: str
    index: int
    data_type: int
    format_number: int
    shape: tuple[int, ...]
    original_shape: Optional[tuple[int, ...]]
    original_format: Optional[str]
    sub_format: int
    offset: int
    size: int
    inline: Optional[bytes] = None

    @property
    def name(self) -> str:
        return f"{self.io}.{self.index}"

    @property
    def format(self) -> str:
        """The name of the format, or FORMAT_{number} if it is unknown. An unknown format cannot be converted."""
        return FORMATS.get(self.format_number, f"FORMAT_{self.format_number}")

    @property
    def is_blocked(self) -> bool:
        """Whether the elements are stored in padded blocks."""
        return self.format in BLOCKED or self.format == "FRACTAL_NZ"

    @property
    def type(self) -> DataType:
        """The type of the elements. Raises AsyncFileError if it is unknown."""
        if self.data_type not in TYPES:
            raise AsyncFileError(
                f"{self.name}: data type number {self.data_type} is not supported (a string, or a type that the "
                "installed ml_dtypes does not have)"
            )
        return TYPES[self.data_type]

    @property
    def stored_shape(self) -> tuple[int, ...]:
        """The shape on the device. A header without dimensions means a scalar or a flat array."""
        shape = self.shape
        if not shape and self.size != self.type.bytes_of(1):
            shape = (self.size * 8 // self.type.bits,)
        if len(shape) > _MAX_DIMENSIONS:
            raise AsyncFileError(f"{self.name}: {len(shape)} dimensions; at most {_MAX_DIMENSIONS} are supported")
        if math.prod(dim or 1 for dim in shape) >= _MAX_ELEMENTS:
            raise AsyncFileError(f"{self.name}: the shape {shape} is too large for any tensor")
        needed = self.type.bytes_of(math.prod(shape))
        if needed != self.size:
            text = "x".join(map(str, shape)) or "a scalar"
            raise AsyncFileError(
                f"{self.name}: {text} of {self.type.name} needs {needed} bytes, but the header says {self.size}"
            )
        return shape


class AsyncFile:
    """An open dump file. `array` returns views of the mapped file: use them before `close`."""

    def __init__(self, path: Union[str, Path]) -> None:
        self.path = Path(path)
        descriptor = os.open(self.path, os.O_RDONLY | os.O_NONBLOCK)
        try:
            status = os.fstat(descriptor)
            if not stat.S_ISREG(status.st_mode):
                raise AsyncFileError("not a regular file")
            if status.st_size < 8:
                raise AsyncFileError(f"too small for a dump file: {status.st_size} bytes")
            self._map = mmap.mmap(descriptor, 0, access=mmap.ACCESS_READ)
        finally:
            os.close(descriptor)
        self.length = status.st_size
        (header,) = struct.unpack("<Q", self._map[:8])
        alone = self._read_message_alone(header)
        if alone is not None:
            self._describe(alone, self.length)
            return
        if header > self.length - 8:
            self._map.close()
            raise AsyncFileError(
                f"not an asynchronous dump: the header should have {header} bytes, the file has {self.length}"
            )
        try:
            message = message_class("dump_data.proto", "DumpData").FromString(self._map[8 : 8 + header])
            self._describe(message, 8 + header)
        except (DecodeError, UnicodeDecodeError) as error:  # which one depends on the build of protobuf
            self._map.close()
            raise AsyncFileError(f"not an asynchronous dump: the header is not a DumpData message ({error})") from None
        except AsyncFileError:
            self._map.close()
            raise

    def _describe(self, message: Any, begin: int) -> None:
        self.op_name: str = message.op_name
        self.version: str = message.version
        self.dump_time: int = message.dump_time
        self.slots, end = _slots(message, begin, self.length)
        self.unused_bytes = self.length - end

    def _read_message_alone(self, header: int) -> Optional[Any]:
        """Older Ascend software writes the message alone, with the data inside it and no length before it."""
        if header <= self.length - 8:
            return None
        try:
            message = message_class("dump_data.proto", "DumpData").FromString(self._map[:])
        except (DecodeError, UnicodeDecodeError):
            return None
        items = [*message.input, *message.output, *message.buffer]
        return message if items and all(item.data for item in items) else None

    def __enter__(self) -> AsyncFile:
        return self

    def __exit__(
        self,
        kind: Optional[type[BaseException]],
        error: Optional[BaseException],
        trace: Optional[TracebackType],
    ) -> None:
        self.close()

    def close(self) -> None:
        """Unmaps the file, or leaves it mapped until the last array of it is deleted."""
        try:
            self._map.close()
        except BufferError:
            pass

    def array(self, slot: Slot) -> npt.NDArray[Any]:
        """The elements as stored, in the shape and layout of the device. Packed types are unpacked."""
        shape = slot.stored_shape
        return unpack(self.stored(slot), slot.type, math.prod(shape)).reshape(shape)

    def stored(self, slot: Slot) -> npt.NDArray[np.uint8]:
        """The bytes of a tensor in the file."""
        if slot.inline is not None:
            return np.frombuffer(slot.inline, np.uint8)
        return np.frombuffer(self._map, np.uint8, slot.size, slot.offset)


def _slots(message: Any, offset: int, length: int) -> tuple[tuple[Slot, ...], int]:
    """All slots in the order of their bytes, and the end of the last one."""
    slots = []
    for io, items in (("input", message.input), ("output", message.output), ("buffer", message.buffer)):
        for index, item in enumerate(items):
            size = item.size
            inline = item.data or None
            if inline is not None:
                if size not in (0, len(inline)):
                    raise AsyncFileError(
                        f"{io}.{index}: the header declares {size} bytes of data and contains {len(inline)}"
                    )
                size = len(inline)
            elif size > length - offset:
                raise AsyncFileError(
                    f"{io}.{index}: the header declares {size} bytes, only {length - offset} are left; "
                    "the file is probably cut off"
                )
            if io == "buffer":
                slots.append(Slot(io, index, 4, 2, (size,), None, None, 0, offset, size, inline))
            else:
                original = tuple(item.original_shape.dim) if item.HasField("original_shape") else None
                origin = item.original_op if io == "output" and item.HasField("original_op") else None
                slots.append(
                    Slot(
                        io,
                        index,
                        item.data_type,
                        item.format,
                        tuple(item.shape.dim),
                        original or None,
                        FORMATS.get(origin.format) if origin is not None else None,
                        item.sub_format,
                        offset,
                        size,
                        inline,
                    )
                )
            if inline is None:
                offset += size
    return tuple(slots), offset
