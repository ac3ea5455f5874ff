// SPDX-License-Identifier: Apache-2.0

//! Connections: how they begin and end.

use super::answer_int;
use crate::conn::{config, peer, stream, watch};
use crate::fdtable::{descriptors, reuse, table};
use crate::sys::errno::{self, EINPROGRESS, EINTR, ENOPROTOOPT};
use crate::sys::real;
use libc::{c_int, c_void, sockaddr, sockaddr_storage, socklen_t};

exported! {
    fn socket(domain: c_int, kind: c_int, protocol: c_int) -> c_int {
        let made = real::socket(domain, kind, protocol);
        reuse::made(made);
        made
    }

    fn connect(fd: c_int, address: *const sockaddr, length: socklen_t) -> c_int {
        descriptors::connecting(fd);
        // SAFETY: the address is the program's; the kernel checks it.
        let result = unsafe { real::connect(fd, address, length) };
        let begins = result != 0 && [EINPROGRESS, EINTR].contains(&errno::last());
        if result == 0 || begins {
            // SAFETY: the kernel has read the address.
            unsafe { descriptors::connected(fd, address, length, begins) };
        }
        result
    }

    fn accept(fd: c_int, address: *mut sockaddr, length: *mut socklen_t) -> c_int {
        // SAFETY: both have the same contract.
        unsafe { accept4(fd, address, length, 0) }
    }

    fn accept4(fd: c_int, address: *mut sockaddr, length: *mut socklen_t, flags: c_int) -> c_int {
        if !config::get().enabled {
            // SAFETY: room for an address is the program's; the kernel checks it.
            return unsafe { real::accept4(fd, address, length, flags) };
        }
        // SAFETY: zero is a valid sockaddr_storage.
        let mut storage: sockaddr_storage = unsafe { core::mem::zeroed() };
        let mut room = size_of::<sockaddr_storage>() as socklen_t;
        let place = core::ptr::from_mut(&mut storage).cast::<sockaddr>();
        // A program that does not want the client's address does not miss it.
        if address.is_null() {
            // SAFETY: the storage has `room` octets.
            let made = unsafe { real::accept4(fd, place, &mut room, flags) };
            if made >= 0 {
                descriptors::accepted(made, fd, &storage, flags & libc::SOCK_NONBLOCK != 0);
            }
            return made;
        }
        // SAFETY: the length is the program's, as accept(2) requires.
        let given = unsafe { length.as_ref() }.copied().unwrap_or(0);
        // SAFETY: as for the first call.
        let made = unsafe { real::accept4(fd, address, length, flags) };
        if made >= 0 {
            // SAFETY: the kernel has stored both, and no more octets than there was room for.
            unsafe {
                core::ptr::copy_nonoverlapping(address.cast::<u8>(), place.cast(), given.min(*length).min(room) as usize);
            }
            descriptors::accepted(made, fd, &storage, flags & libc::SOCK_NONBLOCK != 0);
        }
        made
    }

    fn shutdown(fd: c_int, how: c_int) -> c_int {
        match table::session(fd) {
            Some(session) => answer_int(stream::shut_down(session.forever(), fd, how)),
            None => real::shutdown(fd, how),
        }
    }

    fn getsockopt(fd: c_int, level: c_int, name: c_int, value: *mut c_void, length: *mut socklen_t) -> c_int {
        let session = match (level, name) {
            (libc::SOL_SOCKET, libc::SO_ERROR) => table::session(fd),
            _ => None,
        };
        session.as_deref().map(|session| peer::notice(session, fd));
        // SAFETY: room for a value is the program's; the kernel checks it.
        let result = unsafe { real::getsockopt(fd, level, name, value, length) };
        let Some(session) = session else { return result };
        let place = value.cast::<c_int>();
        // SAFETY: the kernel has stored the length, and as many octets.
        match unsafe { (result == 0 && *length as usize == size_of::<c_int>()).then(|| place.read_unaligned()) } {
            // SAFETY: as above.
            Some(0) => unsafe { place.write_unaligned(peer::kept(&session).map_or(0, |error| error.0)) },
            Some(libc::ECONNRESET) => peer::is_reset(&session),
            _ => {}
        }
        result
    }

    fn setsockopt(fd: c_int, level: c_int, name: c_int, value: *const c_void, length: socklen_t) -> c_int {
        // Options under which the kernel changes or accounts what is sent.
        let needs_kernel = (level, name) == (libc::SOL_TCP, libc::TCP_ULP) || (level, name) == (libc::SOL_SOCKET, libc::SO_ZEROCOPY);
        if needs_kernel && !descriptors::pin(fd) {
            return answer_int(Err(ENOPROTOOPT));
        }
        // SAFETY: the value is the program's; the kernel checks it.
        let result = unsafe { real::setsockopt(fd, level, name, value, length) };
        if (level, name) == (libc::SOL_SOCKET, libc::SO_RCVLOWAT) {
            if let Some(session) = table::session(fd) {
                session.learn_low_mark(fd);
                watch::look_again(session.forever());
            }
        }
        result
    }
}
