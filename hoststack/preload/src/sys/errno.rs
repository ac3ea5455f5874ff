// SPDX-License-Identifier: Apache-2.0

//! Errors of the kernel.

use libc::ssize_t;

/// The number of an error.
#[derive(Debug, PartialEq, Eq, Clone, Copy)]
pub struct Errno(pub i32);

/// What a call of the kernel returns.
pub type Outcome<T = usize> = Result<T, Errno>;

pub const EAGAIN: Errno = Errno(libc::EAGAIN);
pub const EBADF: Errno = Errno(libc::EBADF);
pub const EBUSY: Errno = Errno(libc::EBUSY);
pub const ECONNRESET: Errno = Errno(libc::ECONNRESET);
pub const EEXIST: Errno = Errno(libc::EEXIST);
pub const EFAULT: Errno = Errno(libc::EFAULT);
pub const EINPROGRESS: Errno = Errno(libc::EINPROGRESS);
pub const EINTR: Errno = Errno(libc::EINTR);
pub const EINVAL: Errno = Errno(libc::EINVAL);
pub const EISDIR: Errno = Errno(libc::EISDIR);
pub const EMSGSIZE: Errno = Errno(libc::EMSGSIZE);
pub const ENOENT: Errno = Errno(libc::ENOENT);
pub const ENOMEM: Errno = Errno(libc::ENOMEM);
pub const ENOPROTOOPT: Errno = Errno(libc::ENOPROTOOPT);
pub const ENOSYS: Errno = Errno(libc::ENOSYS);
pub const ENOTCONN: Errno = Errno(libc::ENOTCONN);
pub const EOPNOTSUPP: Errno = Errno(libc::EOPNOTSUPP);
pub const EPERM: Errno = Errno(libc::EPERM);
pub const EPIPE: Errno = Errno(libc::EPIPE);
pub const EPROTO: Errno = Errno(libc::EPROTO);
pub const ESPIPE: Errno = Errno(libc::ESPIPE);
pub const ESRCH: Errno = Errno(libc::ESRCH);

/// Returns errno of the last call of this thread.
pub fn last() -> Errno {
    // SAFETY: the address is this thread's own.
    Errno(unsafe { *libc::__errno_location() })
}

pub fn set(error: Errno) {
    // SAFETY: the address is this thread's own.
    unsafe { *libc::__errno_location() = error.0 }
}

/// Runs `f`, and leaves errno as it was before.
pub fn preserve<T>(f: impl FnOnce() -> T) -> T {
    let before = last();
    let result = f();
    set(before);
    result
}

/// Turns a result of the C library into a value or an error.
pub fn outcome(result: ssize_t) -> Outcome {
    usize::try_from(result).map_err(|_| last())
}
