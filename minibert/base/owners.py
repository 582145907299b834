"""Who can write to a file besides its owner: groups that have one user, as many Linux systems make them."""

from __future__ import annotations

import os

__all__ = ["has_private_group"]


def has_private_group(path: str | os.PathLike[str], state: os.stat_result) -> bool:
    """Return whether the group of a file is its owner's alone, so that nobody else can use what the group may do.

    Where users have a group of their own, the umask is often 002, and ``~/.cache`` is open to the group. Such a group
    has the name of the owner, is the owner's first group, and neither lists another user nor is another user's first
    group. With an access list the bits of the mode say nothing about the group, so then the answer is False.

    Parameters
    ----------
    path : path
        Where the file is, to look for an access list.
    state : os.stat_result
        The answer of ``os.lstat(path)``.

    Notes
    -----
    OpenSSH of Debian judges by the members and the first groups, too. It does not compare the names; here they are
    compared, because a directory service need not list all its users.
    """
    try:
        import grp
        import pwd

        owner, group = pwd.getpwuid(state.st_uid), grp.getgrgid(state.st_gid)
        others = any(user.pw_gid == state.st_gid and user.pw_uid != state.st_uid for user in pwd.getpwall())
        lists = os.listxattr(path, follow_symlinks=False) if hasattr(os, "listxattr") else []
    except (ImportError, KeyError, OSError):  # not a system with groups; a number without a name; no answer
        return False
    named = group.gr_name == owner.pw_name and owner.pw_gid == state.st_gid
    return named and not others and set(group.gr_mem) <= {owner.pw_name} and "system.posix_acl_access" not in lists
