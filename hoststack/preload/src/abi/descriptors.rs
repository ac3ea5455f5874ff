// SPDX-License-Identifier: Apache-2.0

//! Calls that make, copy, change and close descriptors.

use super::answer_int;
use crate::conn::stream;
use crate::fdtable::{descriptors, fork, reuse, table};
use crate::sys::errno::{self, EBADF, EBUSY, EINVAL};
use crate::sys::syscall::direct;
use crate::sys::{fd, real};
use core::sync::atomic::Ordering;
use libc::{c_char, c_int, c_uint, c_ulong, FILE};

exported! {
    fn close(fd: c_int) -> c_int {
        if fd::is_hidden(fd) && !fork::in_vfork_child() {
            return answer_int(Err(EBADF));
        }
        descriptors::closing(fd);
        real::close(fd)
    }

    fn close_range(first: c_uint, last: c_uint, flags: c_int) -> c_int {
        if flags != 0 || fork::in_vfork_child() {
            return real::close_range(first, last, flags);
        }
        if first > last {
            return answer_int(Err(EINVAL));
        }
        let inside = |fd: &c_int| (first..=last).contains(&(*fd as c_uint));
        table::descriptors().filter(inside).for_each(descriptors::closing);
        let mut from = first;
        for kept in fd::hidden().filter(inside) {
            if kept as c_uint > from {
                real::close_range(from, kept as c_uint - 1, 0);
            }
            from = kept as c_uint + 1;
        }
        if from > last { 0 } else { real::close_range(from, last, 0) }
    }

    fn closefrom(first: c_int) -> () {
        // SAFETY: no addresses.
        unsafe { close_range(first.max(0) as c_uint, c_uint::MAX, 0) };
    }

    fn pidfd_getfd(process: c_int, fd: c_int, flags: c_uint) -> c_int {
        // Not every C library has it.
        let words = [process as usize, fd as usize, flags as usize, 0, 0, 0];
        // SAFETY: no addresses.
        let made = unsafe { direct(libc::SYS_pidfd_getfd, words) } as c_int;
        reuse::made(made);
        if let Some(same) = reuse::same_socket(made) {
            descriptors::copied(same, made);
        }
        made
    }

    fn dup(fd: c_int) -> c_int {
        if fd::is_hidden(fd) {
            return answer_int(Err(EBADF));
        }
        let made = real::dup(fd);
        descriptors::copied(fd, made);
        made
    }

    fn dup2(from: c_int, to: c_int) -> c_int {
        if from == to {
            return real::dup2(from, to);
        }
        replace(from, to, || real::dup2(from, to))
    }

    fn dup3(from: c_int, to: c_int, flags: c_int) -> c_int {
        if from == to {
            return real::dup3(from, to, flags);
        }
        replace(from, to, || real::dup3(from, to, flags))
    }

    fn fcntl(fd: c_int, command: c_int, argument: usize) -> c_int {
        if fd::is_hidden(fd) {
            return answer_int(Err(EBADF));
        }
        // SAFETY: the argument is the program's; the kernel checks it.
        let result = unsafe { real::fcntl(fd, command, argument) };
        match command {
            libc::F_DUPFD | libc::F_DUPFD_CLOEXEC => descriptors::copied(fd, result),
            libc::F_SETFL if result == 0 => set_nonblocking(fd, argument as c_int & libc::O_NONBLOCK != 0),
            _ => {}
        }
        result
    }

    fn fcntl64(fd: c_int, command: c_int, argument: usize) -> c_int {
        // SAFETY: both have the same contract.
        unsafe { fcntl(fd, command, argument) }
    }

    fn ioctl(fd: c_int, request: c_ulong, argument: usize) -> c_int {
        let session = table::session(fd);
        let place = argument as *mut c_int;
        let count = match (request, &session) {
            (libc::FIONREAD, Some(session)) => stream::queued(session, fd),
            (libc::TIOCOUTQ, Some(session)) if session.is_attached() => stream::unread(session),
            _ => {
                // SAFETY: the argument is the program's; the kernel checks it.
                let result = unsafe { real::ioctl(fd, request, argument) };
                if request == libc::FIONBIO && result == 0 && session.is_some() {
                    // SAFETY: the kernel has read a number there.
                    set_nonblocking(fd, unsafe { *place != 0 });
                }
                return result;
            }
        };
        // SAFETY: the request stores a number.
        unsafe { *place = count as c_int };
        0
    }

    /// The C library reads and writes a stream without the functions of this library.
    fn fdopen(fd: c_int, mode: *const c_char) -> *mut FILE {
        if !descriptors::leave_rings(fd) {
            errno::set(EBUSY);
            return core::ptr::null_mut();
        }
        // SAFETY: the mode is the program's.
        unsafe { real::fdopen(fd, mode) }
    }
}

/// Runs a call that makes `to` a copy of `from`, and closes what `to` was. The C library reads and writes standard
/// input, output and error without the functions of this library, so a connection leaves its rings for them if it can.
fn replace(from: c_int, to: c_int, call: impl FnOnce() -> c_int) -> c_int {
    let vfork = fork::in_vfork_child();
    if fd::is_hidden(to) && !vfork {
        return answer_int(Err(EBUSY));
    }
    // SAFETY: fcntl of a number.
    if unsafe { real::fcntl(from, libc::F_GETFD, 0) } >= 0 {
        descriptors::closing(to);
    }
    if (0..=2).contains(&to) && !vfork {
        descriptors::leave_rings(from);
    }
    let made = call();
    descriptors::copied(from, made);
    made
}

fn set_nonblocking(fd: c_int, nonblocking: bool) {
    if let Some(session) = table::session(fd) {
        session.end().nonblocking.store(u32::from(nonblocking), Ordering::Relaxed);
    }
}
