"""Checks of a component's file before it is used: its head and its size, not its values."""

from __future__ import annotations

import os
import stat

from shardwright import pictures
from shardwright.pictures import BadPictureError, Read
from shardwright.recipes import Component, Shape
from shardwright.store import npy


def check(fd: int, component: Component) -> tuple[int, Shape]:
    """Give the size and shape of an open file, or raise npy.BadArrayError."""
    try:
        found = os.fstat(fd)
        if not stat.S_ISREG(found.st_mode):
            raise npy.BadArrayError("not_a_file")  # a folder, a pipe, a device
        return check_part(lambda count, at: os.pread(fd, count, at), found.st_size, component)
    except OSError:
        raise npy.BadArrayError("unreadable") from None


def check_part(read: Read, size: int, component: Component) -> tuple[int, Shape]:
    """Check a part of a file in the same way; offsets begin at the part."""
    return (npy.check if component.is_array else _check_picture)(read, size, component)


def _check_picture(read: Read, size: int, component: Component) -> tuple[int, Shape]:
    try:
        head = pictures.examine(read)
        if head.format != component.extension[1:] or head.animated:
            raise npy.BadArrayError("not_a_picture")
        pictures.require_end(read, size, head)
    except BadPictureError as error:
        raise npy.BadArrayError(*error.args) from None
    shape = (head.height, head.width, head.channels)
    if head.bits != 8:
        raise npy.BadArrayError("wrong_dtype")
    if not component.accepts(shape):
        raise npy.BadArrayError("wrong_shape")
    return size, shape
