// SPDX-License-Identifier: Apache-2.0

//! syscall(3): system calls that a program makes by their numbers, past the C library's function for each. libuv
//! closes sockets so. Calls that may have a session are passed to that function; all others go to the kernel.

use super::{connections, descriptors, events, exec, folders, transfers};
use crate::conn::config;
use crate::fdtable::{fork, table};
use crate::sys::errno::{self, ENOSYS};
use crate::sys::syscall::direct;
use libc::{c_int, c_long, c_uint, c_ulong, sigset_t};

/// The last argument of pselect6(2): a signal mask and its size.
#[repr(C)]
struct Mask(*const sigset_t, usize);

/// Takes six arguments, whether or not the program has passed as many: the calling conventions of x86-64 and
/// aarch64 allow to read those that are missing, and the kernel ignores them.
///
/// # Safety
/// As for the system call of this number.
#[no_mangle]
pub unsafe extern "C" fn syscall(number: c_long, a: usize, b: usize, c: usize, d: usize, e: usize, f: usize) -> c_long {
    let fd = a as c_int;
    // SAFETY: the caller keeps the contract of the system call, which is that of the C library's function.
    unsafe {
        match number {
            libc::SYS_close => descriptors::close(fd).into(),
            libc::SYS_close_range => descriptors::close_range(a as c_uint, b as c_uint, c as c_int).into(),
            libc::SYS_pidfd_getfd => descriptors::pidfd_getfd(fd, b as c_int, c as c_uint).into(),
            libc::SYS_getdents64 => folders::getdents64(fd, b as _, c) as c_long,
            libc::SYS_dup => descriptors::dup(fd).into(),
            #[cfg(target_arch = "x86_64")]
            libc::SYS_dup2 => descriptors::dup2(fd, b as c_int).into(),
            libc::SYS_dup3 => descriptors::dup3(fd, b as c_int, c as c_int).into(),
            libc::SYS_socket => connections::socket(fd, b as c_int, c as c_int).into(),
            libc::SYS_connect => connections::connect(fd, b as _, c as _).into(),
            libc::SYS_accept => connections::accept(fd, b as _, c as _).into(),
            libc::SYS_accept4 => connections::accept4(fd, b as _, c as _, d as c_int).into(),
            libc::SYS_recvmsg => transfers::recvmsg(fd, b as _, c as c_int) as c_long,
            libc::SYS_recvmmsg => transfers::recvmmsg(fd, b as _, c as c_uint, d as c_int, e as _).into(),
            libc::SYS_sendmsg => transfers::sendmsg(fd, b as _, c as c_int) as c_long,
            libc::SYS_sendmmsg => transfers::sendmmsg(fd, b as _, c as c_uint, d as c_int).into(),
            libc::SYS_splice => transfers::splice(fd, b as _, c as c_int, d as _, e, f as c_uint) as c_long,
            libc::SYS_execve => exec::execve(a as _, b as _, c as _).into(),
            libc::SYS_execveat => exec::execveat(fd, b as _, c as _, d as _, e as c_int).into(),
            #[cfg(target_arch = "x86_64")]
            libc::SYS_epoll_create => events::epoll_create(fd).into(),
            libc::SYS_epoll_create1 => events::epoll_create1(fd).into(),
            libc::SYS_epoll_ctl => events::epoll_ctl(fd, b as c_int, c as c_int, d as _).into(),
            #[cfg(target_arch = "x86_64")]
            libc::SYS_epoll_wait => events::epoll_wait(fd, b as _, c as c_int, d as c_int).into(),
            libc::SYS_epoll_pwait => events::epoll_pwait(fd, b as _, c as c_int, d as c_int, e as _).into(),
            libc::SYS_epoll_pwait2 => events::epoll_pwait2(fd, b as _, c as c_int, d as _, e as _).into(),
            #[cfg(target_arch = "x86_64")]
            libc::SYS_poll => events::poll(a as _, b as _, c as c_int).into(),
            libc::SYS_ppoll => events::ppoll(a as _, b as _, c as _, d as _).into(),
            #[cfg(target_arch = "x86_64")]
            libc::SYS_select => events::select(fd, b as _, c as _, d as _, e as _).into(),
            libc::SYS_pselect6 => {
                let mask = (f as *const Mask).as_ref().map_or(core::ptr::null(), |mask| mask.0);
                events::pselect(fd, b as _, c as _, d as _, e as _, mask).into()
            }
            #[cfg(target_arch = "x86_64")]
            libc::SYS_fork => fork::make(0, || direct(number, [0; 6]) as isize) as c_long,
            libc::SYS_clone => fork::make(a as u64, || direct(number, [a, b, c, d, e, f]) as isize) as c_long,
            libc::SYS_clone3 => {
                let flags = (a as *const u64).as_ref().copied().unwrap_or(0);
                fork::make(flags, || direct(number, [a, b, c, d, e, f]) as isize) as c_long
            }
            // What a ring of io_uring(7) reads and writes would miss those of sessions, and its EPOLL_CTL this library.
            libc::SYS_io_uring_setup if config::get().enabled => {
                errno::set(ENOSYS);
                -1
            }
            _ => unless_session(number, [a, b, c, d, e, f]),
        }
    }
}

/// Asks the kernel, unless it is one of the calls that differ for a session, and for one.
///
/// # Safety
/// As for the system call of this number.
unsafe fn unless_session(number: c_long, [a, b, c, d, e, f]: [usize; 6]) -> c_long {
    let fd = a as c_int;
    let known = || table::session(fd).is_some();
    // SAFETY: as the caller's.
    unsafe {
        match number {
            libc::SYS_read if known() => transfers::read(fd, b as _, c) as c_long,
            libc::SYS_write if known() => transfers::write(fd, b as _, c) as c_long,
            libc::SYS_readv if known() => transfers::readv(fd, b as _, c as c_int) as c_long,
            libc::SYS_writev if known() => transfers::writev(fd, b as _, c as c_int) as c_long,
            libc::SYS_recvfrom if known() => transfers::recvfrom(fd, b as _, c, d as c_int, e as _, f as _) as c_long,
            libc::SYS_sendto if known() => transfers::sendto(fd, b as _, c, d as c_int, e as _, f as _) as c_long,
            libc::SYS_sendfile if known() => transfers::sendfile(fd, b as c_int, c as _, d) as c_long,
            libc::SYS_shutdown if known() => connections::shutdown(fd, b as c_int).into(),
            libc::SYS_getsockopt if known() => {
                connections::getsockopt(fd, b as c_int, c as c_int, d as _, e as _).into()
            }
            libc::SYS_setsockopt if known() => {
                connections::setsockopt(fd, b as c_int, c as c_int, d as _, e as _).into()
            }
            libc::SYS_fcntl if known() => descriptors::fcntl(fd, b as c_int, c).into(),
            libc::SYS_ioctl if known() => descriptors::ioctl(fd, b as c_ulong, c).into(),
            _ => direct(number, [a, b, c, d, e, f]),
        }
    }
}

#[cfg(test)]
mod tests {
    const SOURCES: [&str; 8] = [
        include_str!("connections.rs"),
        include_str!("descriptors.rs"),
        include_str!("events.rs"),
        include_str!("exec.rs"),
        include_str!("folders.rs"),
        include_str!("print.rs"),
        include_str!("signals.rs"),
        include_str!("transfers.rs"),
    ];

    /// Exported functions that are no system calls, or those of another name. What a system call of signals sets is
    /// called at once.
    const OTHERS: &str = "closefrom fcntl64 fdopen __poll_chk __ppoll_chk pselect execv execvpe execvp fexecve \
        posix_spawn posix_spawnp posix_spawn_file_actions_adddup2 _Fork system popen readdir readdir64 readdir_r \
        readdir64_r vdprintf __vdprintf_chk sigaction signal bsd_signal ssignal sysv_signal __sysv_signal sigset \
        __read_chk recv __recv_chk __recvfrom_chk send sendfile64";

    #[test]
    fn each_exported_function_that_is_a_system_call_is_in_the_table() {
        let (table, _) = include_str!("syscall.rs").split_once("#[cfg(test)]").unwrap();
        let lists = SOURCES.iter().flat_map(|source| source.split("exported! {").skip(1));
        let lines = lists.flat_map(|list| list.split("\n}\n").next().unwrap().lines());
        let names = lines.filter_map(|line| Some(line.strip_prefix("    fn ")?.split_once('(')?.0));
        let (others, calls): (Vec<_>, Vec<_>) = names.partition(|name| OTHERS.split(' ').any(|other| other == *name));
        assert_eq!(others.len(), OTHERS.split_whitespace().count(), "each of them is exported");
        assert!(calls.len() >= 40, "{calls:?}");
        for name in calls {
            assert!(table.contains(&format!("libc::SYS_{name} ")), "syscall(3) of {name} passes the library by");
        }
    }
}
