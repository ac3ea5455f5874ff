// SPDX-License-Identifier: Apache-2.0

//! The kernel's epoll_wait(2), behind that of this library.

use crate::sys::errno::{self, ENOSYS};
use crate::sys::syscall::direct;
use crate::sys::{clock, real, Outcome};
use core::time::Duration;
use libc::{c_int, epoll_event, sigset_t};

/// Calls the kernel's epoll_wait. Time-outs of whole milliseconds need no newer system call.
pub fn kernel_wait(fd: c_int, out: &mut [epoll_event], limit: Option<Duration>, mask: *const sigset_t) -> Outcome {
    let (at, most) = (out.as_mut_ptr(), out.len() as c_int);
    let precise = limit.filter(|limit| limit.subsec_nanos() % 1_000_000 != 0 && *limit < Duration::from_millis(10));
    if let Some(limit) = precise {
        let limit = clock::to_timespec(limit);
        let limit = core::ptr::from_ref(&limit) as usize;
        let arguments = [fd as usize, at as usize, most as usize, limit, mask as usize, size_of::<u64>()];
        // SAFETY: as epoll_pwait2(2), with the kernel's size of a signal mask.
        let n = unsafe { direct(libc::SYS_epoll_pwait2, arguments) };
        if n >= 0 || errno::last() != ENOSYS {
            return errno::outcome(n as isize);
        }
    }
    let milliseconds = limit.map_or(-1, crate::sys::clock::milliseconds);
    // SAFETY: `most` events have room at `at`; the mask is the program's.
    errno::outcome(unsafe { real::epoll_pwait(fd, at, most, milliseconds, mask) } as isize)
}
