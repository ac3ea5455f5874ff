// SPDX-License-Identifier: Apache-2.0

//! Calls that receive and send.

use super::{answer, answer_int, checked};
use crate::parts::{one, valid_count, Parts};
use crate::{descriptors, real, stream, table, transfer};
use libc::{c_int, c_uint, c_void, iovec, mmsghdr, msghdr, off_t, size_t, sockaddr, socklen_t, ssize_t, timespec};

// Receiving.
exported! {
    fn read(fd: c_int, buffer: *mut c_void, count: size_t) -> ssize_t {
        match table::session(fd) {
            Some(session) => answer(stream::receive(session.forever(), fd, Parts::new(&one(buffer, count), 1), 0)),
            None => real::read(fd, buffer, count),
        }
    }

    fn __read_chk(fd: c_int, buffer: *mut c_void, count: size_t, size: size_t) -> ssize_t {
        read(fd, buffer, checked(count, size))
    }

    fn readv(fd: c_int, parts: *const iovec, count: c_int) -> ssize_t {
        match (table::session(fd), valid_count(count)) {
            (Some(session), Ok(count)) => answer(stream::receive(session.forever(), fd, Parts::new(parts, count), 0)),
            _ => real::readv(fd, parts, count),
        }
    }

    fn recv(fd: c_int, buffer: *mut c_void, count: size_t, flags: c_int) -> ssize_t {
        match table::session(fd).filter(|_| flags & libc::MSG_ERRQUEUE == 0) {
            Some(session) => answer(stream::receive(session.forever(), fd, Parts::new(&one(buffer, count), 1), flags)),
            None => real::recv(fd, buffer, count, flags),
        }
    }

    fn __recv_chk(fd: c_int, buffer: *mut c_void, count: size_t, size: size_t, flags: c_int) -> ssize_t {
        recv(fd, buffer, checked(count, size), flags)
    }

    fn recvfrom(fd: c_int, buffer: *mut c_void, count: size_t, flags: c_int, address: *mut sockaddr, length: *mut socklen_t) -> ssize_t {
        if table::session(fd).is_none() || flags & libc::MSG_ERRQUEUE != 0 {
            return real::recvfrom(fd, buffer, count, flags, address, length);
        }
        let n = recv(fd, buffer, count, flags);
        if n >= 0 && !address.is_null() && !length.is_null() {
            // TCP has no address for each message.
            *length = 0;
        }
        n
    }

    fn __recvfrom_chk(fd: c_int, buffer: *mut c_void, count: size_t, size: size_t, flags: c_int, address: *mut sockaddr, length: *mut socklen_t) -> ssize_t {
        recvfrom(fd, buffer, checked(count, size), flags, address, length)
    }

    fn recvmsg(fd: c_int, message: *mut msghdr, flags: c_int) -> ssize_t {
        let session = table::session(fd).filter(|_| flags & libc::MSG_ERRQUEUE == 0);
        let (Some(session), Some(message)) = (session, message.as_mut()) else {
            return real::recvmsg(fd, message, flags);
        };
        let parts = Parts::new(message.msg_iov, message.msg_iovlen as usize);
        let result = stream::receive(session.forever(), fd, parts, flags);
        if result.is_ok() {
            (message.msg_namelen, message.msg_controllen, message.msg_flags) = (0, 0, 0);
        }
        answer(result)
    }

    fn recvmmsg(fd: c_int, messages: *mut mmsghdr, count: c_uint, flags: c_int, timeout: *mut timespec) -> c_int {
        if table::session(fd).is_none() {
            return real::recvmmsg(fd, messages, count, flags, timeout);
        }
        // A stream fills one message after the other; the first one waits, as with MSG_WAITFORONE.
        each_message(messages, count, |message, i| recvmsg(fd, message, if i > 0 { flags | libc::MSG_DONTWAIT } else { flags & !libc::MSG_WAITFORONE }))
    }
}

/// each_message calls `f` for each message until one fails or transfers nothing.
///
/// # Safety
/// `messages` leads to `count` messages.
unsafe fn each_message(messages: *mut mmsghdr, count: c_uint, f: impl Fn(*mut msghdr, c_uint) -> ssize_t) -> c_int {
    for i in 0..count {
        // SAFETY: the caller has `count` messages.
        let message = unsafe { &mut *messages.add(i as usize) };
        let n = f(&mut message.msg_hdr, i);
        if n < 0 {
            return if i > 0 { i as c_int } else { -1 };
        }
        message.msg_len = n as c_uint;
        if n == 0 {
            return i as c_int + 1;
        }
    }
    count as c_int
}

// Sending.
exported! {
    fn write(fd: c_int, buffer: *const c_void, count: size_t) -> ssize_t {
        match table::session(fd) {
            Some(session) => answer(stream::send(session.forever(), fd, Parts::new(&one(buffer.cast_mut(), count), 1), 0)),
            None => real::write(fd, buffer, count),
        }
    }

    fn writev(fd: c_int, parts: *const iovec, count: c_int) -> ssize_t {
        match (table::session(fd), valid_count(count)) {
            (Some(session), Ok(count)) => answer(stream::send(session.forever(), fd, Parts::new(parts, count), 0)),
            _ => real::writev(fd, parts, count),
        }
    }

    fn send(fd: c_int, buffer: *const c_void, count: size_t, flags: c_int) -> ssize_t {
        match table::session(fd) {
            Some(session) => answer(stream::send(session.forever(), fd, Parts::new(&one(buffer.cast_mut(), count), 1), flags)),
            None => real::send(fd, buffer, count, flags),
        }
    }

    fn sendto(fd: c_int, buffer: *const c_void, count: size_t, flags: c_int, address: *const sockaddr, length: socklen_t) -> ssize_t {
        // TCP ignores the address of a connected socket.
        match table::session(fd) {
            Some(_) => send(fd, buffer, count, flags),
            None => real::sendto(fd, buffer, count, flags, address, length),
        }
    }

    fn sendmsg(fd: c_int, message: *const msghdr, flags: c_int) -> ssize_t {
        match (table::session(fd), message.as_ref()) {
            (Some(session), Some(message)) => answer(stream::send(session.forever(), fd, Parts::new(message.msg_iov, message.msg_iovlen as usize), flags)),
            (None, Some(message)) if passes_session(message) => answer(Err(libc::EOPNOTSUPP)),
            _ => real::sendmsg(fd, message, flags),
        }
    }

    fn sendmmsg(fd: c_int, messages: *mut mmsghdr, count: c_uint, flags: c_int) -> c_int {
        match table::session(fd) {
            Some(_) => each_message(messages, count, |message, _| sendmsg(fd, message, flags)),
            None if any_passes_session(messages, count) => answer_int(Err(libc::EOPNOTSUPP)),
            None => real::sendmmsg(fd, messages, count, flags),
        }
    }

    fn sendfile(to: c_int, from: c_int, offset: *mut off_t, count: size_t) -> ssize_t {
        match table::session(to) {
            Some(session) => answer(transfer::from_file(session.forever(), to, from, offset.as_mut(), count)),
            None => real::sendfile(to, from, offset, count),
        }
    }

    fn sendfile64(to: c_int, from: c_int, offset: *mut off_t, count: size_t) -> ssize_t {
        sendfile(to, from, offset, count)
    }

    fn splice(from: c_int, from_offset: *mut libc::loff_t, to: c_int, to_offset: *mut libc::loff_t, count: size_t, flags: c_uint) -> ssize_t {
        let no_session = table::session(from).is_none() && table::session(to).is_none();
        if no_session || !from_offset.is_null() || !to_offset.is_null() {
            return real::splice(from, from_offset, to, to_offset, count, flags);
        }
        answer(transfer::splice(from, to, count, flags))
    }
}

/// any_passes_session is passes_session for each of `count` messages.
///
/// # Safety
/// `messages` leads to `count` messages.
unsafe fn any_passes_session(messages: *const mmsghdr, count: c_uint) -> bool {
    // SAFETY: the caller has `count` messages.
    (0..count as usize).any(|i| passes_session(unsafe { &(*messages.add(i)).msg_hdr }))
}

/// passes_session reports whether a message carries the descriptor of a session that cannot leave its rings: the
/// receiver would get a socket without what is in them.
fn passes_session(message: &msghdr) -> bool {
    if message.msg_control.is_null() || message.msg_controllen == 0 {
        return false;
    }
    // SAFETY: the program's control messages, which the C library's macros walk.
    unsafe {
        let mut header = libc::CMSG_FIRSTHDR(message);
        while let Some(part) = header.as_ref() {
            if (part.cmsg_level, part.cmsg_type) == (libc::SOL_SOCKET, libc::SCM_RIGHTS) {
                let octets = (part.cmsg_len as usize).saturating_sub(libc::CMSG_LEN(0) as usize);
                let list = libc::CMSG_DATA(part).cast::<c_int>();
                let refused = (0..octets / 4).any(|i| !descriptors::leave_rings(list.add(i).read_unaligned()));
                if refused {
                    return true;
                }
            }
            header = libc::CMSG_NXTHDR(message, header);
        }
    }
    false
}
