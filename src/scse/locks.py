"""File locks, which the system drops with their process, and who holds a run. No torch here."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

from scse.errors import UserError

NO_LOCKS = "SCSE_NO_LOCKS"
ALONE = fcntl.LOCK_EX
SHARED = fcntl.LOCK_SH
AT_ONCE = fcntl.LOCK_NB


def take_lock(handle: int, path: Path, how: int) -> bool:
    """Lock an open file as `flock` does; False when another process holds it and `how` says not to wait.

    Some network file systems have no locks at all. That is an error and not a busy file, unless the user has said that
    two processes never work at one place.
    """
    try:
        fcntl.flock(handle, how)
    except BlockingIOError:
        return False
    except OSError as error:
        if os.environ.get(NO_LOCKS) == "1":
            return True
        remedy = f"use one that has them (Lustre: mount with flock), or set {NO_LOCKS}=1 and start nothing twice"
        raise UserError(f"the file system of {path} has no file locks ({error.strerror}); {remedy}") from None
    return True


def in_use(folder: Path) -> bool:
    """Whether a process can be seen to hold a run at this moment."""
    try:
        handle = os.open(folder / ".lock", os.O_RDWR)
    except OSError:
        return False
    try:
        return not take_lock(handle, folder / ".lock", ALONE | AT_ONCE)
    except UserError:
        return False
    finally:
        os.close(handle)
