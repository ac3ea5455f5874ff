// SPDX-License-Identifier: Apache-2.0

//! System calls that do not wait, without the C library: its functions are cancellation points (pthreads(7)), at which
//! a thread would end while it has a lock. Each sets errno as the function of its name does.

use crate::sys::syscall::direct;
use libc::{c_int, c_long, c_void, iovec, msghdr, size_t, sockaddr, socklen_t, ssize_t};

macro_rules! uncancelled {
    ($($number:ident fn $name:ident($($arg:ident: $type:ty),*) -> $ret:ty;)*) => {$(
        /// # Safety
        /// As for the function of this name in the C library.
        pub unsafe fn $name($($arg: $type),*) -> $ret {
            // SAFETY: the caller keeps the contract of the system call.
            unsafe { call(libc::$number, [$($arg as usize),*]) as $ret }
        }
    )*};
}

uncancelled! {
    SYS_read fn read(fd: c_int, buffer: *mut c_void, count: size_t) -> ssize_t;
    SYS_write fn write(fd: c_int, buffer: *const c_void, count: size_t) -> ssize_t;
    SYS_readv fn readv(fd: c_int, parts: *const iovec, count: c_int) -> ssize_t;
    SYS_close fn close(fd: c_int) -> c_int;
    SYS_recvmsg fn recvmsg(fd: c_int, message: *mut msghdr, flags: c_int) -> ssize_t;
    SYS_sendmsg fn sendmsg(fd: c_int, message: *const msghdr, flags: c_int) -> ssize_t;
    SYS_connect fn connect(fd: c_int, address: *const sockaddr, length: socklen_t) -> c_int;
    SYS_accept4 fn accept4(fd: c_int, address: *mut sockaddr, length: *mut socklen_t, flags: c_int) -> c_int;
    SYS_splice fn splice(from: c_int, at: *mut i64, to: c_int, offset: *mut i64, count: size_t, flags: u32) -> ssize_t;
}

/// Calls recv(2).
///
/// # Safety
/// `buffer` has room for `count` octets.
pub unsafe fn recv(fd: c_int, buffer: *mut c_void, count: size_t, flags: c_int) -> ssize_t {
    // SAFETY: as the caller's; no address.
    unsafe { call(libc::SYS_recvfrom, [fd as usize, buffer as usize, count, flags as usize]) as ssize_t }
}

/// Calls send(2).
///
/// # Safety
/// `buffer` has `count` octets.
pub unsafe fn send(fd: c_int, buffer: *const c_void, count: size_t, flags: c_int) -> ssize_t {
    // SAFETY: as the caller's; no address.
    unsafe { call(libc::SYS_sendto, [fd as usize, buffer as usize, count, flags as usize]) as ssize_t }
}

/// Calls ppoll(2) for one descriptor with no time to wait.
pub fn poll_now(one: &mut libc::pollfd) -> c_int {
    let now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    let (one, now) = (core::ptr::from_mut(one) as usize, core::ptr::from_ref(&now) as usize);
    // SAFETY: one descriptor, and no signal mask.
    unsafe { call(libc::SYS_ppoll, [one, 1, now, 0]) as c_int }
}

/// Sleeps for less than a second. A lock may be held meanwhile, of another thing than what the thread waits for.
pub fn pause(nanoseconds: i64) {
    let time = libc::timespec { tv_sec: 0, tv_nsec: nanoseconds };
    let clock = libc::CLOCK_MONOTONIC as usize;
    // SAFETY: the time is this function's.
    unsafe { call(libc::SYS_clock_nanosleep, [clock, 0, core::ptr::from_ref(&time) as usize, 0]) };
}

/// Ends a thread that was cancelled, as the calls of the C library do that are made here without it.
pub fn test() {
    extern "C" {
        fn pthread_testcancel();
    }
    // SAFETY: no preconditions.
    unsafe { pthread_testcancel() }
}

/// Passes some of the six arguments.
///
/// # Safety
/// As for the system call of this number.
unsafe fn call<const N: usize>(number: c_long, some: [usize; N]) -> c_long {
    let mut all = [0; 6];
    all.iter_mut().zip(some).for_each(|(to, from)| *to = from);
    // SAFETY: as the caller's.
    unsafe { direct(number, all) }
}
