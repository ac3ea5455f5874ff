// SPDX-License-Identifier: Apache-2.0

//! The C library's own functions, behind those that this library exports under the same names.

use crate::sys::syscall::direct;
use crate::sys::uncancelled;
use core::sync::atomic::{AtomicUsize, Ordering};
use libc::{
    c_char, c_int, c_short, c_uint, c_void, epoll_event, fd_set, iovec, msghdr, nfds_t, off_t, pollfd, sigset_t,
    size_t, sockaddr, socklen_t, ssize_t, timespec, FILE,
};

/// Finds the next definition of a function behind this library's, once.
fn resolve(cache: &AtomicUsize, name: &'static [u8]) -> usize {
    let known = cache.load(Ordering::Relaxed);
    if known != 0 {
        return known;
    }
    let found = next(name);
    if found == 0 {
        // A program that calls it has linked against it, so it exists.
        abort();
    }
    cache.store(found, Ordering::Relaxed);
    found
}

/// Returns the next definition of a name behind this library's; 0 if there is none.
fn next(name: &'static [u8]) -> usize {
    // SAFETY: the name ends with a zero octet.
    unsafe { libc::dlsym(libc::RTLD_NEXT, name.as_ptr().cast()) as usize }
}

/// Has fork(3) call `before` and `after` in the parent, and `child` in the child. glibc has pthread_atfork(3) in a part
/// that is linked statically, and exports what that calls; musl the other way round.
pub fn at_fork(before: extern "C" fn(), after: extern "C" fn(), child: extern "C" fn()) {
    type Handler = Option<extern "C" fn()>;
    type Register = extern "C" fn(Handler, Handler, Handler, *const c_void) -> c_int;
    let found = match next(b"__register_atfork\0") {
        0 => next(b"pthread_atfork\0"),
        found => found,
    };
    if found != 0 {
        // SAFETY: glibc's function has this signature; musl's has three of the arguments, and does not see the
        // fourth.
        let register: Register = unsafe { core::mem::transmute(found) };
        register(Some(before), Some(after), Some(child), core::ptr::null());
    }
}

macro_rules! real {
    ($([$($unsafe:tt)?] fn $name:ident($($arg:ident: $type:ty),*) -> $ret:ty;)*) => {$(
        /// # Safety
        /// As for the function of this name in the C library.
        #[allow(non_snake_case)]
        pub $($unsafe)? fn $name($($arg: $type),*) -> $ret {
            static ADDRESS: AtomicUsize = AtomicUsize::new(0);
            let address = resolve(&ADDRESS, concat!(stringify!($name), "\0").as_bytes());
            // SAFETY: the C library's function of this name has this signature.
            let f: unsafe extern "C" fn($($type),*) -> $ret = unsafe { core::mem::transmute(address) };
            // SAFETY: the caller keeps the function's contract; there is none for one that has no addresses.
            unsafe { f($($arg),*) }
        }
    )*};
}

real! {
    [] fn socket(domain: c_int, kind: c_int, protocol: c_int) -> c_int;
    [unsafe] fn accept4(fd: c_int, address: *mut sockaddr, length: *mut socklen_t, flags: c_int) -> c_int;
    [unsafe] fn connect(fd: c_int, address: *const sockaddr, length: socklen_t) -> c_int;
    [] fn close(fd: c_int) -> c_int;
    [] fn dup(fd: c_int) -> c_int;
    [] fn dup2(from: c_int, to: c_int) -> c_int;
    [] fn dup3(from: c_int, to: c_int, flags: c_int) -> c_int;
    [unsafe] fn fcntl(fd: c_int, command: c_int, argument: usize) -> c_int;
    [unsafe] fn ioctl(fd: c_int, request: libc::c_ulong, argument: usize) -> c_int;
    [] fn shutdown(fd: c_int, how: c_int) -> c_int;
    [unsafe] fn getsockopt(fd: c_int, level: c_int, name: c_int, value: *mut c_void, length: *mut socklen_t) -> c_int;
    [unsafe] fn setsockopt(fd: c_int, level: c_int, name: c_int, value: *const c_void, length: socklen_t) -> c_int;
    [unsafe] fn read(fd: c_int, buffer: *mut c_void, count: size_t) -> ssize_t;
    [unsafe] fn write(fd: c_int, buffer: *const c_void, count: size_t) -> ssize_t;
    [unsafe] fn readv(fd: c_int, parts: *const iovec, count: c_int) -> ssize_t;
    [unsafe] fn writev(fd: c_int, parts: *const iovec, count: c_int) -> ssize_t;
    [unsafe] fn recv(fd: c_int, buffer: *mut c_void, count: size_t, flags: c_int) -> ssize_t;
    [unsafe] fn send(fd: c_int, buffer: *const c_void, count: size_t, flags: c_int) -> ssize_t;
    [unsafe] fn recvfrom(fd: c_int, buffer: *mut c_void, count: size_t, flags: c_int, address: *mut sockaddr, length: *mut socklen_t) -> ssize_t;
    [unsafe] fn sendto(fd: c_int, buffer: *const c_void, count: size_t, flags: c_int, address: *const sockaddr, length: socklen_t) -> ssize_t;
    [unsafe] fn recvmsg(fd: c_int, message: *mut msghdr, flags: c_int) -> ssize_t;
    [unsafe] fn sendmsg(fd: c_int, message: *const msghdr, flags: c_int) -> ssize_t;
    [unsafe] fn recvmmsg(fd: c_int, messages: *mut libc::mmsghdr, count: c_uint, flags: c_int, timeout: *mut timespec) -> c_int;
    [unsafe] fn sendmmsg(fd: c_int, messages: *mut libc::mmsghdr, count: c_uint, flags: c_int) -> c_int;
    [unsafe] fn sendfile(to: c_int, from: c_int, offset: *mut off_t, count: size_t) -> ssize_t;
    [unsafe] fn splice(from: c_int, from_offset: *mut libc::loff_t, to: c_int, to_offset: *mut libc::loff_t, count: size_t, flags: c_uint) -> ssize_t;
    [unsafe] fn epoll_ctl(epoll: c_int, operation: c_int, fd: c_int, event: *mut epoll_event) -> c_int;
    [unsafe] fn epoll_pwait(epoll: c_int, events: *mut epoll_event, most: c_int, timeout: c_int, mask: *const sigset_t) -> c_int;
    [unsafe] fn ppoll(fds: *mut pollfd, count: nfds_t, timeout: *const timespec, mask: *const sigset_t) -> c_int;
    [unsafe] fn pselect(count: c_int, read: *mut fd_set, write: *mut fd_set, except: *mut fd_set, timeout: *const timespec, mask: *const sigset_t) -> c_int;
    [unsafe] fn vdprintf(fd: c_int, format: *const c_char, list: *mut c_void) -> c_int;
    [unsafe] fn __vdprintf_chk(fd: c_int, flag: c_int, format: *const c_char, list: *mut c_void) -> c_int;
    [unsafe] fn fdopen(fd: c_int, mode: *const c_char) -> *mut FILE;
    [unsafe] fn execve(path: *const c_char, arguments: *const *const c_char, environment: *const *const c_char) -> c_int;
    [unsafe] fn execvpe(path: *const c_char, arguments: *const *const c_char, environment: *const *const c_char) -> c_int;
    [unsafe] fn posix_spawn(child: *mut libc::pid_t, path: *const c_char, actions: *const c_void, attributes: *const c_void, arguments: *const *const c_char, environment: *const *const c_char) -> c_int;
    [unsafe] fn posix_spawnp(child: *mut libc::pid_t, path: *const c_char, actions: *const c_void, attributes: *const c_void, arguments: *const *const c_char, environment: *const *const c_char) -> c_int;
    [unsafe] fn fexecve(fd: c_int, arguments: *const *const c_char, environment: *const *const c_char) -> c_int;
    [unsafe] fn posix_spawn_file_actions_adddup2(actions: *mut c_void, from: c_int, to: c_int) -> c_int;
    [unsafe] fn sigaction(signal: c_int, wanted: *const libc::sigaction, before: *mut libc::sigaction) -> c_int;
    [unsafe] fn signal(signal: c_int, handler: usize) -> usize;
    [unsafe] fn bsd_signal(signal: c_int, handler: usize) -> usize;
    [unsafe] fn ssignal(signal: c_int, handler: usize) -> usize;
    [unsafe] fn sysv_signal(signal: c_int, handler: usize) -> usize;
    [unsafe] fn __sysv_signal(signal: c_int, handler: usize) -> usize;
    [unsafe] fn sigset(signal: c_int, handler: usize) -> usize;
    [] fn _Fork() -> c_int;
    [unsafe] fn clone(start: *const c_void, stack: *mut c_void, flags: c_int, argument: *mut c_void, parent: *mut c_void, tls: *mut c_void, child: *mut c_void) -> c_int;
    [unsafe] fn readdir(folder: *mut libc::DIR) -> *mut libc::dirent;
    [unsafe] fn readdir64(folder: *mut libc::DIR) -> *mut libc::dirent;
    [unsafe] fn readdir_r(folder: *mut libc::DIR, entry: *mut libc::dirent, result: *mut *mut libc::dirent) -> c_int;
    [unsafe] fn readdir64_r(folder: *mut libc::DIR, entry: *mut libc::dirent, result: *mut *mut libc::dirent) -> c_int;
    [unsafe] fn system(command: *const c_char) -> c_int;
    [unsafe] fn popen(command: *const c_char, mode: *const c_char) -> *mut FILE;
}

/// Returns the address of the C library's function.
pub fn vfork() -> usize {
    static ADDRESS: AtomicUsize = AtomicUsize::new(0);
    resolve(&ADDRESS, b"vfork\0")
}

/// Ends the process.
pub fn abort() -> ! {
    // SAFETY: abort has no preconditions.
    unsafe { libc::abort() }
}

/// Calls close_range(2); not every C library has it.
pub fn close_range(first: c_uint, last: c_uint, flags: c_int) -> c_int {
    // SAFETY: closing numbers is harmless to memory.
    unsafe { direct(libc::SYS_close_range, [first as usize, last as usize, flags as usize, 0, 0, 0]) as c_int }
}

/// Calls epoll_create1(2).
pub fn epoll_create1(flags: c_int) -> c_int {
    // SAFETY: no preconditions.
    unsafe { direct(libc::SYS_epoll_create1, [flags as usize, 0, 0, 0, 0, 0]) as c_int }
}

/// Returns what `fd` has of `events` and the events that are always reported.
pub fn poll_one(fd: c_int, events: c_short) -> c_short {
    polled(fd, events).unwrap_or(0)
}

/// Like `poll_one`, for a caller that has to ask the kernel otherwise if not even one descriptor may be polled
/// (RLIMIT_NOFILE).
pub fn poll_or_suspect(fd: c_int, events: c_short) -> c_short {
    polled(fd, events).unwrap_or(events)
}

fn polled(fd: c_int, events: c_short) -> Option<c_short> {
    let mut one = pollfd { fd, events, revents: 0 };
    let n = uncancelled::poll_now(&mut one);
    (n >= 0).then_some(if n > 0 { one.revents } else { 0 })
}
