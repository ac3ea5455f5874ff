// SPDX-License-Identifier: Apache-2.0

//! Connections: how they begin and end.

use super::answer_int;
use crate::{descriptors, real, stream, table};
use libc::{c_int, c_void, sockaddr, socklen_t};

exported! {
    fn connect(fd: c_int, address: *const sockaddr, length: socklen_t) -> c_int {
        let result = real::connect(fd, address, length);
        let begun = result == 0 || real::errno() == libc::EINPROGRESS;
        if begun {
            descriptors::connected(fd, address, length);
        }
        result
    }

    fn accept(fd: c_int, address: *mut sockaddr, length: *mut socklen_t) -> c_int {
        accept4(fd, address, length, 0)
    }

    fn accept4(fd: c_int, address: *mut sockaddr, length: *mut socklen_t, flags: c_int) -> c_int {
        let made = real::accept4(fd, address, length, flags);
        if made >= 0 {
            descriptors::accepted(made);
        }
        made
    }

    fn shutdown(fd: c_int, how: c_int) -> c_int {
        match table::session(fd) {
            Some(session) => answer_int(stream::shut_down(session.forever(), fd, how)),
            None => real::shutdown(fd, how),
        }
    }

    fn setsockopt(fd: c_int, level: c_int, name: c_int, value: *const c_void, length: socklen_t) -> c_int {
        // Options under which the kernel changes or accounts what is sent.
        let needs_kernel = (level, name) == (libc::SOL_TCP, libc::TCP_ULP) || (level, name) == (libc::SOL_SOCKET, libc::SO_ZEROCOPY);
        if needs_kernel && !descriptors::stay(fd) {
            return answer_int(Err(libc::ENOPROTOOPT));
        }
        real::setsockopt(fd, level, name, value, length)
    }
}
