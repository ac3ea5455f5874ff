// SPDX-License-Identifier: Apache-2.0

//! Descriptors of this library's own. They have high numbers, so that the program gets the low ones that it
//! would get without this library, and select(2) never meets them.

use crate::sys::real;
use core::sync::atomic::{AtomicU64, Ordering};
use libc::c_int;

/// A bit for each of the first million numbers.
static HIDDEN: [AtomicU64; 1 << 14] = [const { AtomicU64::new(0) }; 1 << 14];

fn word_of(fd: c_int) -> Option<(&'static AtomicU64, u64)> {
    let fd = usize::try_from(fd).ok()?;
    Some((HIDDEN.get(fd / 64)?, 1 << (fd % 64)))
}

/// is_hidden reports whether a descriptor is this library's own: the program must not close it.
pub fn is_hidden(fd: c_int) -> bool {
    word_of(fd).is_some_and(|(word, bit)| word.load(Ordering::Relaxed) & bit != 0)
}

/// all are the hidden descriptors in the order of their numbers.
pub fn all() -> impl Iterator<Item = c_int> {
    let used = HIDDEN.iter().zip(0..).filter(|(word, _)| word.load(Ordering::Relaxed) != 0);
    used.flat_map(|(_, i)| i * 64..(i + 1) * 64).filter(|&fd| is_hidden(fd))
}

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
    if let Some((word, bit)) = word_of(high) {
        word.fetch_or(bit, Ordering::Relaxed);
    }
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
        if let Some((word, bit)) = word_of(fd) {
            word.fetch_and(!bit, Ordering::Relaxed);
        }
        real::close_quietly(fd);
    }
}
