// SPDX-License-Identifier: Apache-2.0

//! Calls that list a folder. The list of a process' own descriptors, /proc/self/fd, is without those of this library:
//! programs count them to find leaks, or close all that they do not know.

use crate::sys::syscall::direct;
use crate::sys::{errno, fd, real};
use core::ffi::CStr;
use core::mem::offset_of;
use libc::{c_int, c_void, dirent, size_t, ssize_t, DIR};

/// The prefix and a number are the name of a descriptor.
const PREFIX: &[u8] = b"/proc/self/fd/";

exported! {
    fn readdir(folder: *mut DIR) -> *mut dirent {
        // SAFETY: the folder is open, as the program says.
        unsafe { next(folder, || real::readdir(folder)) }
    }

    fn readdir64(folder: *mut DIR) -> *mut dirent {
        // SAFETY: the folder is open, as the program says.
        unsafe { next(folder, || real::readdir64(folder)) }
    }

    fn readdir_r(folder: *mut DIR, entry: *mut dirent, result: *mut *mut dirent) -> c_int {
        // SAFETY: the folder is open, and room for an entry and its address is the program's.
        unsafe { next_in(folder, result, || real::readdir_r(folder, entry, result)) }
    }

    fn readdir64_r(folder: *mut DIR, entry: *mut dirent, result: *mut *mut dirent) -> c_int {
        // SAFETY: the folder is open, and room for an entry and its address is the program's.
        unsafe { next_in(folder, result, || real::readdir64_r(folder, entry, result)) }
    }

    fn getdents64(fd: c_int, entries: *mut c_void, size: size_t) -> ssize_t {
        loop {
            let words = [fd as usize, entries as usize, size, 0, 0, 0];
            // SAFETY: room for entries is the program's. Not every C library has the function.
            let n = unsafe { direct(libc::SYS_getdents64, words) } as ssize_t;
            if n <= 0 {
                return n;
            }
            // SAFETY: the kernel has stored as many octets.
            let left = unsafe { without_hidden(fd, entries.cast(), n as usize) };
            if left > 0 {
                return left as ssize_t;
            }
        }
    }
}

/// Returns the next entry that is not hidden.
///
/// # Safety
/// `read` returns an entry of the open folder, or null.
unsafe fn next(folder: *mut DIR, mut read: impl FnMut() -> *mut dirent) -> *mut dirent {
    loop {
        let entry = read();
        // SAFETY: an entry's name ends with a zero octet.
        if entry.is_null() || !unsafe { hides(libc::dirfd(folder), (*entry).d_name.as_ptr().cast()) } {
            return entry;
        }
    }
}

/// Like `next`, for calls that store the entry, or null at the end, and return an error.
///
/// # Safety
/// `read` stores an entry of the open folder in `result`, or null.
unsafe fn next_in(folder: *mut DIR, result: *mut *mut dirent, read: impl Fn() -> c_int) -> c_int {
    let mut error = 0;
    // SAFETY: as the caller's.
    unsafe {
        next(folder, || {
            error = read();
            if error == 0 {
                *result
            } else {
                core::ptr::null_mut()
            }
        })
    };
    error
}

/// Removes hidden entries from a list of getdents64(2), and returns the octets that are left.
///
/// # Safety
/// The kernel has stored `count` octets of whole entries.
unsafe fn without_hidden(fd: c_int, entries: *mut u8, mut count: usize) -> usize {
    let mut at = 0;
    while at < count {
        // SAFETY: an entry begins here, has its length, and a name that ends with a zero octet.
        unsafe {
            let entry = entries.add(at);
            let length: usize = entry.add(offset_of!(dirent, d_reclen)).cast::<u16>().read_unaligned().into();
            if hides(fd, entry.add(offset_of!(dirent, d_name))) {
                count -= length;
                core::ptr::copy(entry.add(length), entry, count - at);
            } else {
                at += length;
            }
        }
    }
    count
}

/// Returns whether a name in a folder is a descriptor of this library in a list of this process' own.
///
/// # Safety
/// The name ends with a zero octet.
unsafe fn hides(folder: c_int, name: *const u8) -> bool {
    // SAFETY: as the caller's.
    let name = unsafe { CStr::from_ptr(name.cast()) };
    let number = name.to_str().ok().filter(|name| name.starts_with(|c: char| c.is_ascii_digit()));
    number.and_then(|name| name.parse().ok()).is_some_and(fd::is_hidden) && lists_descriptors(folder)
}

/// Returns whether a folder is /proc/PID/fd or /proc/PID/fdinfo of this process, or of a thread of it.
/// It allocates nothing, since children of vfork(2) read such folders, too.
fn lists_descriptors(folder: c_int) -> bool {
    let mut link = [0u8; PREFIX.len() + 12];
    let (prefix, number) = link.split_at_mut(PREFIX.len());
    prefix.copy_from_slice(PREFIX);
    decimal(folder, number);
    let mut path = [0u8; 128];
    // SAFETY: the link ends with a zero octet, and the path has that many octets.
    let read = || unsafe { libc::readlink(link.as_ptr().cast(), path.as_mut_ptr().cast(), path.len()) };
    let n = errno::preserve(read);
    // SAFETY: getpid has no preconditions.
    let own = unsafe { libc::getpid() };
    n > 0 && path.get(..n as usize).is_some_and(|path| is_list_of(own, path))
}

/// Returns whether a path of procfs lists the descriptors of process `own`: .../PID/fd, .../PID/fdinfo, or the same of
/// .../PID/task/TID.
fn is_list_of(own: c_int, path: &[u8]) -> bool {
    let mut parts = path.rsplit(|&octet| octet == b'/');
    let mut digits = [0u8; 12];
    let n = decimal(own, &mut digits);
    let own = digits.get(..n);
    if !matches!(parts.next(), Some(b"fd" | b"fdinfo")) {
        return false;
    }
    let process = parts.next();
    process == own || (parts.next() == Some(b"task") && parts.next() == own)
}

/// Writes a number and returns how many digits it has.
fn decimal(number: c_int, place: &mut [u8]) -> usize {
    let digits = number.max(1).ilog10() as usize + 1;
    let mut rest = number;
    for digit in place.iter_mut().take(digits).rev() {
        *digit = b'0' + (rest % 10) as u8;
        rest /= 10;
    }
    digits
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn folders_of_descriptors() {
        for (path, is_list) in [
            ("/proc/70/fd", true),
            ("/proc/70/fdinfo", true),
            ("/proc/70/task/71/fd", true),
            ("/mnt/proc/70/fd", true),
            ("/proc/7/fd", false),
            ("/proc/700/fd", false),
            ("/proc/70/task", false),
            ("/proc/71/task/70/maps", false),
            ("/proc/71/task/71/fd", false),
            ("fd", false),
        ] {
            assert_eq!(is_list_of(70, path.as_bytes()), is_list, "{path}");
        }
    }

    #[test]
    fn numbers() {
        for number in [0, 1, 9, 10, 1048575, c_int::MAX] {
            let mut place = [0u8; 12];
            let n = decimal(number, &mut place);
            assert_eq!(core::str::from_utf8(&place[..n]).unwrap(), number.to_string());
        }
    }
}
