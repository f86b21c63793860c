"""What the kernel's "no" means to an operator."""

from __future__ import annotations

import errno
import os

from lanectl.errors import Refused

_WHAT_TO_DO = {
    errno.ENOSPC: "free some space on that disk",
    errno.EDQUOT: "free some of the quota",
    errno.EFBIG: "raise the file size limit (ulimit -f)",
    errno.EROFS: "mount that file system writable",
    errno.EACCES: "run lanectl as the launcher's owner or as root",
    errno.EPERM: "run lanectl as the launcher's owner or as root",
}


def refusal(what: str, path: str, error: OSError) -> Refused:
    """`error` as a Refused: what was tried on which file, that nothing changed, what to do."""
    return Refused(
        f"{what} {path}: {os.strerror(error.errno or errno.EIO)}; nothing changed",
        next_step=_WHAT_TO_DO.get(error.errno or 0, "look at that disk and try again"),
    )
