"""What the Linux kernel gives for confining a process, by ctypes: Landlock, seccomp filters, capabilities, death signals.

Sources: landlock(7), seccomp(2), prctl(2), capset(2). Each function acts on the calling process and on what it starts later;
none can be undone. All raise OSError where the kernel refuses.
"""

from __future__ import annotations

import ctypes
import os
import platform
import stat
import struct
from collections.abc import Sequence

ARM = platform.machine() == "aarch64"
_LIBC = ctypes.CDLL(None, use_errno=True)
_PR_SET_PDEATHSIG, _PR_SET_SECCOMP, _PR_SET_CHILD_SUBREAPER, _PR_SET_NO_NEW_PRIVS = 1, 22, 36, 38
_PR_CAP_AMBIENT, _PR_CAP_AMBIENT_CLEAR_ALL = 47, 4

_READ = 1 << 0 | 1 << 2 | 1 << 3
"""Landlock's rights to execute, read a file and list a folder."""
_OF_FILES = 1 << 0 | 1 << 1 | 1 << 2 | 1 << 14 | 1 << 15
"""The rights that a rule about something else than a folder may give."""


def syscall(number: int, *arguments: int | bytes | ctypes.Array[ctypes.c_char] | None) -> int:
    """Make a system call by its number.

    Raises:
        OSError: the kernel refused.
    """
    given = [ctypes.c_long(each) if isinstance(each, int) else each for each in arguments]
    result = _LIBC.syscall(ctypes.c_long(number), *given)
    if result < 0:
        raise OSError(ctypes.get_errno(), f"system call {number}: {os.strerror(ctypes.get_errno())}")
    return int(result)


def prctl(option: int, *arguments: int | bytes) -> None:
    syscall(167 if ARM else 157, option, *arguments, *[0] * (4 - len(arguments)))


def die_with_parent(signal: int, parent: int | None) -> None:
    """Get ``signal`` when the parent dies; changing user or capabilities takes it back.

    Ends here if ``parent``, a process in sight, is gone already.
    """
    prctl(_PR_SET_PDEATHSIG, signal)
    if parent is not None and os.getppid() != parent:
        os._exit(1)


def adopt_orphans() -> None:
    """Become the parent of descendants whose parents die."""
    prctl(_PR_SET_CHILD_SUBREAPER, 1)


def drop_capabilities() -> None:
    """Give up every capability, and privileges that a later exec would give."""
    prctl(_PR_SET_NO_NEW_PRIVS, 1)
    prctl(_PR_CAP_AMBIENT, _PR_CAP_AMBIENT_CLEAR_ALL)
    syscall(91 if ARM else 126, struct.pack("=II", 0x20080522, 0), bytes(24))


def landlock_abi() -> int:
    """The version of Landlock that the kernel offers; 0 where there is none."""
    try:
        return syscall(444, None, 0, 1)
    except OSError:
        return 0


def restrict_files(readable: Sequence[str], writable: Sequence[str]) -> None:
    """Open, execute and change nothing but what lies below these paths; no TCP, no signals or abstract sockets outwards.

    What an older kernel does not know is left to the system call filter. Paths that do not exist are passed over.
    """
    abi = landlock_abi()
    every = (1 << {1: 13, 2: 14, 3: 15, 4: 15}.get(abi, 16)) - 1
    attributes = struct.pack("=QQQ", every, 3, 3)[: 8 if abi < 4 else 16 if abi < 6 else 24]
    ruleset = syscall(444, attributes, len(attributes), 0)
    for paths, rights in ((readable, _READ), (writable, every)):
        for path in paths:
            try:
                place = os.open(path, os.O_PATH | os.O_CLOEXEC)
            except FileNotFoundError:
                continue
            kept = rights & every if stat.S_ISDIR(os.fstat(place).st_mode) else rights & every & _OF_FILES
            syscall(445, ruleset, 1, struct.pack("=Qi", kept, place), 0)
            os.close(place)
    syscall(446, ruleset, 0)
    os.close(ruleset)


_DENIED = """
ptrace:101:117 process_vm_readv:310:270 process_vm_writev:311:271 kcmp:312:272 pidfd_getfd:438:438 process_madvise:440:440
process_mrelease:448:448 mount:165:40 umount2:166:39 pivot_root:155:41 chroot:161:51 move_mount:429:429 open_tree:428:428
fsopen:430:430 fsconfig:431:431 fsmount:432:432 fspick:433:433 mount_setattr:442:442 unshare:272:97 setns:308:268 bpf:321:280
perf_event_open:298:241 userfaultfd:323:282 add_key:248:217 request_key:249:218 keyctl:250:219 io_uring_setup:425:425
io_uring_enter:426:426 io_uring_register:427:427 init_module:175:105 finit_module:313:273 delete_module:176:106
kexec_load:246:104 kexec_file_load:320:294 reboot:169:142 swapon:167:224 swapoff:168:225 acct:163:89 quotactl:179:60
quotactl_fd:443:443 syslog:103:116 iopl:172:- ioperm:173:- modify_ldt:154:- settimeofday:164:170 clock_settime:227:112
adjtimex:159:171 clock_adjtime:305:266 sethostname:170:161 setdomainname:171:162 vhangup:153:58 name_to_handle_at:303:264
open_by_handle_at:304:265 fanotify_init:300:262 fanotify_mark:301:263 lookup_dcookie:212:18 nfsservctl:180:42
memfd_create:319:279 memfd_secret:447:447 shmget:29:194 shmat:30:196 shmctl:31:195 msgget:68:186 msgsnd:69:189 msgrcv:70:188
msgctl:71:187 semget:64:190 semop:65:193 semtimedop:220:192 semctl:66:191 mq_open:240:180 mq_unlink:241:181 socket:41:198
connect:42:203 bind:49:200 listen:50:201 accept:43:202 accept4:288:242 setpriority:141:140 ioprio_set:251:30
sched_setscheduler:144:119 sched_setparam:142:118 sched_setattr:314:274 migrate_pages:256:238 move_pages:279:239
"""
"""System calls that reach beyond a process, or hold memory that no limit counts: name, number on x86-64, number on ARM64."""
_METADATA = """
chmod:90:- fchmod:91:52 fchmodat:268:53 chown:92:- fchown:93:55 lchown:94:- fchownat:260:54 setxattr:188:5 lsetxattr:189:6
fsetxattr:190:7 removexattr:197:14 lremovexattr:198:15 fremovexattr:199:16 utime:132:- utimes:235:- futimesat:261:-
utimensat:280:88
"""
"""Changes of files that Landlock does not see; denied where the host's file system is in sight."""
_NEWEST = 451
"""Calls with higher numbers, and clone3, whose flags a filter cannot read, do not exist: a C library then uses older ones."""
_NEW_NAMESPACES = 0x7E020000
_ARCHITECTURE = 0xC00000B7 if ARM else 0xC000003E
_ALLOW, _KILL, _EPERM, _ENOSYS = 0x7FFF0000, 0x80000000, 0x00050001, 0x00050026


def _numbers(table: str) -> list[int]:
    columns = [entry.split(":")[2 if ARM else 1] for entry in table.split()]
    return [int(number) for number in columns if number != "-"]


def _filter(host_files: bool) -> bytes:
    """The filter's instructions: each is a code, jumps if true and false, and a constant (struct sock_filter)."""

    def step(code: int, constant: int, true: int = 0, false: int = 0) -> bytes:
        return struct.pack("=HBBI", code, true, false, constant)

    load, equal, above, masked, answer = 0x20, 0x15, 0x35, 0x45, 0x06  # ld [k], jeq, jge, jset, ret
    number, first_argument, second_argument = 0, 16, 24

    def argument(call: int, *checks: bytes) -> bytes:
        """For one call: the checks, each of which ends in an answer, then allowed."""
        body = b"".join(checks) + step(answer, _ALLOW)
        return step(equal, call, 0, len(body) // 8) + body

    def other_than(offset: int, value: int, mask: int = 0xFFFFFFFF) -> bytes:
        return step(load, offset) + step(0x54, mask) + step(equal, value, 1, 0) + step(answer, _EPERM)

    pairs = step(load, 4) + step(equal, _ARCHITECTURE, 1, 0) + step(answer, _KILL) + step(load, number)
    pairs += step(above, _NEWEST + 1, 0, 1) + step(answer, _ENOSYS)  # also x86-64's second table, x32, above 2^30
    pairs += step(equal, 435, 0, 1) + step(answer, _ENOSYS)
    for call in _numbers(_DENIED + (_METADATA if host_files else "")):
        pairs += step(equal, call, 0, 1) + step(answer, _EPERM)
    pairs += argument(
        220 if ARM else 56, step(load, first_argument) + step(masked, _NEW_NAMESPACES, 0, 1) + step(answer, _EPERM)
    )
    # About oneself alone: limits and cores of other processes of the same user are theirs.
    pairs += argument(261 if ARM else 302, other_than(first_argument, 0))
    pairs += argument(122 if ARM else 203, other_than(first_argument, 0))
    # Connected stream pairs of AF_UNIX lead nowhere; datagram ones could be sent to any path.
    pairs += argument(199 if ARM else 53, other_than(first_argument, 1), other_than(second_argument, 1, 0xF))
    return pairs + step(answer, _ALLOW)


def filter_calls(host_files: bool) -> None:
    """Deny system calls for good; ``host_files``: the host's files are in sight, so their metadata is denied too."""
    code = _filter(host_files)
    buffer = ctypes.create_string_buffer(code, len(code))
    prctl(_PR_SET_NO_NEW_PRIVS, 1)
    prctl(_PR_SET_SECCOMP, 2, struct.pack("=HxxxxxxQ", len(code) // 8, ctypes.addressof(buffer)))
