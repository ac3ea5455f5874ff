// SPDX-License-Identifier: Apache-2.0

//! Descriptors of this library's own. They have high numbers, so that the program gets the low ones that it
//! would get without this library, and select(2) never meets them.

use crate::fdtable::table;
use crate::sys::real;
use libc::c_int;

/// adopt moves a descriptor out of the program's way; None, and closed, if there is no room.
pub fn adopt(fd: c_int) -> Option<c_int> {
    if fd < 0 {
        return None;
    }
    // SAFETY: fcntl with a number.
    let high = unsafe { real::fcntl(fd, libc::F_DUPFD_CLOEXEC, floor() as usize) };
    real::close_quietly(fd);
    if high < 0 {
        return None;
    }
    table::set_hidden(high, true);
    Some(high)
}

/// floor is the lowest number for hidden descriptors: the upper half of what the process may have.
fn floor() -> c_int {
    let mut limit = libc::rlimit { rlim_cur: 1024, rlim_max: 1024 };
    // SAFETY: the structure is this function's.
    unsafe { libc::getrlimit(libc::RLIMIT_NOFILE, &mut limit) };
    (limit.rlim_cur.min(1 << 19) / 2) as c_int
}

/// dispose closes a descriptor that adopt returned; negative numbers are none.
pub fn dispose(fd: c_int) {
    if fd >= 0 {
        table::set_hidden(fd, false);
        real::close_quietly(fd);
    }
}
