// SPDX-License-Identifier: Apache-2.0

//! Descriptors that are made and closed by system calls that the library does not see.

use crate::sys::*;
use libc::c_int;

pub fn close_unseen(fd: c_int) {
    // SAFETY: closing a number is harmless to memory.
    assert_eq!(unsafe { enter(libc::SYS_close, [fd as usize, 0, 0]) }, 0);
}

/// Like `move_up`, for a number that the library may still take for a connection.
pub fn move_up_unseen(fd: c_int) -> c_int {
    // SAFETY: numbers.
    let made = unsafe { enter(libc::SYS_fcntl, [fd as usize, libc::F_DUPFD_CLOEXEC as usize, 200]) } as c_int;
    close_unseen(fd);
    made
}

/// Gives a low number back.
pub fn move_up(fd: c_int) -> c_int {
    // SAFETY: numbers.
    let made = unsafe { libc::fcntl(fd, libc::F_DUPFD_CLOEXEC, 200) };
    close(fd);
    made
}

pub fn unix_socket() -> c_int {
    // SAFETY: no preconditions.
    unsafe { libc::socket(libc::AF_UNIX, libc::SOCK_STREAM | libc::SOCK_CLOEXEC, 0) }
}

/// Returns a Unix socket of which the library has seen no number.
pub fn unix_high_up() -> c_int {
    let kind = (libc::SOCK_STREAM | libc::SOCK_CLOEXEC) as usize;
    // SAFETY: no preconditions.
    move_up_unseen(unsafe { enter(libc::SYS_socket, [libc::AF_UNIX as usize, kind, 0]) as c_int })
}

/// Listens at a name that the kernel has chosen.
pub struct UnixServer {
    listener: c_int,
    address: libc::sockaddr_un,
    length: libc::socklen_t,
}

impl UnixServer {
    pub fn new() -> Self {
        let listener = unix_socket();
        // SAFETY: zero is a valid address.
        let mut address: libc::sockaddr_un = unsafe { std::mem::zeroed() };
        address.sun_family = libc::AF_UNIX as libc::sa_family_t;
        let mut length = size_of_val(&address) as libc::socklen_t;
        let place = std::ptr::from_mut(&mut address).cast();
        // SAFETY: the address lives as long as the calls.
        unsafe {
            assert_eq!(libc::bind(listener, place, size_of::<libc::sa_family_t>() as libc::socklen_t), 0);
            assert_eq!(libc::getsockname(listener, place, &mut length), 0);
            assert_eq!(libc::listen(listener, 8), 0);
        }
        Self { listener, address, length }
    }

    /// Returns a call that the library does not see.
    pub fn connect(&self, fd: c_int) {
        let place = std::ptr::from_ref(&self.address) as usize;
        // SAFETY: the address lives as long as the call.
        assert_eq!(unsafe { enter(libc::SYS_connect, [fd as usize, place, self.length as usize]) }, 0);
    }

    pub fn accept_unseen(&self) -> c_int {
        // SAFETY: accept without an address.
        unsafe { enter(libc::SYS_accept, [self.listener as usize, 0, 0]) as c_int }
    }

    pub fn accept(&self) -> c_int {
        // SAFETY: accept without an address.
        unsafe { libc::accept(self.listener, std::ptr::null_mut(), std::ptr::null_mut()) }
    }
}
