// SPDX-License-Identifier: Apache-2.0

//! Calls that receive and send.

use super::{answer, answer_int, checked};
use crate::conn::peer::keep;
use crate::conn::{earn, offer, send, Held};
use crate::fdtable::{descriptors, reuse, table};
use crate::ready::splice::{self, End};
use crate::ready::{blocking, transfer, Receiver};
use crate::ring::parts::{is_no_address, one, valid_count, MOST};
use crate::ring::Parts;
use crate::sys::errno::{self, EBUSY, EFAULT, EINPROGRESS, EMSGSIZE};
use crate::sys::{clock, real, Deadline, Errno, Outcome};
use libc::{c_int, c_uint, c_void, iovec, mmsghdr, msghdr, off_t, size_t, sockaddr, socklen_t, ssize_t, timespec};

fn receiver(session: &Held, fd: c_int) -> Receiver {
    Receiver { session: session.forever(), fd, verify: reuse::verify }
}

/// # Safety
/// `buffer` has room for `count` octets.
unsafe fn receive_into(session: &Held, fd: c_int, buffer: *mut c_void, count: size_t, flags: c_int) -> ssize_t {
    let part = one(buffer, count);
    // SAFETY: one buffer, whose description lives as long as the call.
    answer(receiver(session, fd).receive(unsafe { Parts::new(&part, 1) }, flags))
}

/// # Safety
/// `buffer` has `count` octets.
unsafe fn send_from(session: &Held, fd: c_int, buffer: *const c_void, count: size_t, flags: c_int) -> ssize_t {
    let part = one(buffer.cast_mut(), count);
    // SAFETY: one buffer, whose description lives as long as the call.
    answer(blocking::send(session.forever(), fd, unsafe { Parts::new(&part, 1) }, flags))
}

// Receiving.
exported! {
    fn read(fd: c_int, buffer: *mut c_void, count: size_t) -> ssize_t {
        // SAFETY: the buffer is the program's; the kernel checks it.
        let by_kernel = || unsafe { real::read(fd, buffer, count) };
        match table::session(fd) {
            Some(session) => match earn::direct(session.forever(), fd) {
                Some(direct) => direct.received(fd, by_kernel(), 0),
                // The kernel does not ask the socket then.
                None if count == 0 => 0,
                // SAFETY: the buffer is the program's, for this call.
                None => unsafe { receive_into(&session, fd, buffer, count, 0) },
            },
            None => by_kernel(),
        }
    }

    fn __read_chk(fd: c_int, buffer: *mut c_void, count: size_t, size: size_t) -> ssize_t {
        // SAFETY: the buffer has the size that is checked.
        unsafe { read(fd, buffer, checked(count, size)) }
    }

    fn readv(fd: c_int, parts: *const iovec, count: c_int) -> ssize_t {
        // SAFETY: the buffers are the program's; the kernel checks them.
        let by_kernel = || unsafe { real::readv(fd, parts, count) };
        let Some(session) = table::session(fd) else { return by_kernel() };
        match (earn::direct(session.forever(), fd), valid_count(count)) {
            (None, Ok(1..)) if is_no_address(parts) => answer(Err(EFAULT)),
            // SAFETY: as many buffers are the program's, for this call.
            (None, Ok(count)) => match unsafe { Parts::new(parts, count) } {
                parts if parts.length() == 0 => 0,
                parts => answer(receiver(&session, fd).receive(parts, 0)),
            },
            (None, _) => by_kernel(),
            (Some(direct), _) => direct.received(fd, by_kernel(), 0),
        }
    }

    fn recv(fd: c_int, buffer: *mut c_void, count: size_t, flags: c_int) -> ssize_t {
        // SAFETY: the buffer is the program's; the kernel checks it.
        let by_kernel = || unsafe { real::recv(fd, buffer, count, flags) };
        match table::session(fd).filter(|_| flags & libc::MSG_ERRQUEUE == 0) {
            Some(session) => match earn::direct(session.forever(), fd) {
                Some(direct) => direct.received(fd, by_kernel(), flags),
                // SAFETY: the buffer is the program's, for this call.
                None => unsafe { receive_into(&session, fd, buffer, count, flags) },
            },
            None => by_kernel(),
        }
    }

    fn __recv_chk(fd: c_int, buffer: *mut c_void, count: size_t, size: size_t, flags: c_int) -> ssize_t {
        // SAFETY: the buffer has the size that is checked.
        unsafe { recv(fd, buffer, checked(count, size), flags) }
    }

    fn recvfrom(fd: c_int, buffer: *mut c_void, count: size_t, flags: c_int, address: *mut sockaddr, length: *mut socklen_t) -> ssize_t {
        // SAFETY: the buffer and room for an address are the program's; the kernel checks them.
        let by_kernel = || unsafe { real::recvfrom(fd, buffer, count, flags, address, length) };
        let Some(session) = table::session(fd).filter(|_| flags & libc::MSG_ERRQUEUE == 0) else {
            return by_kernel();
        };
        if let Some(direct) = earn::direct(session.forever(), fd) {
            return direct.received(fd, by_kernel(), flags);
        }
        // SAFETY: the buffer is the program's.
        let n = unsafe { recv(fd, buffer, count, flags) };
        if n >= 0 && !address.is_null() && !length.is_null() {
            // SAFETY: the length is the program's. TCP has no address for each message.
            unsafe { *length = 0 };
        }
        n
    }

    fn __recvfrom_chk(fd: c_int, buffer: *mut c_void, count: size_t, size: size_t, flags: c_int, address: *mut sockaddr, length: *mut socklen_t) -> ssize_t {
        // SAFETY: the buffer has the size that is checked; the address as for recvfrom.
        unsafe { recvfrom(fd, buffer, checked(count, size), flags, address, length) }
    }

    fn recvmsg(fd: c_int, message: *mut msghdr, flags: c_int) -> ssize_t {
        let session = table::session(fd).filter(|_| flags & libc::MSG_ERRQUEUE == 0);
        // SAFETY: the message is the program's; the kernel checks it.
        let by_kernel = || unsafe { real::recvmsg(fd, message, flags) };
        // SAFETY: the message is the program's, if it can be one.
        let known = unsafe { message.as_mut() }.filter(|message| !is_no_address(*message));
        let (Some(session), Some(message)) = (session, known) else {
            let n = by_kernel();
            // SAFETY: the kernel has read it.
            unsafe { message.as_ref() }.filter(|_| n >= 0).inspect(|message| received(message));
            return n;
        };
        if let Some(direct) = earn::direct(session.forever(), fd) {
            return direct.received(fd, by_kernel(), flags);
        }
        // SAFETY: the buffers of the message are the program's, for this call.
        let result = match unsafe { parts_of(message) } {
            Ok(parts) => receiver(&session, fd).receive(parts, flags),
            Err(error) => Err(error),
        };
        if result.is_ok() {
            (message.msg_namelen, message.msg_controllen, message.msg_flags) = (0, 0, 0);
        }
        answer(result)
    }

    fn recvmmsg(fd: c_int, messages: *mut mmsghdr, count: c_uint, flags: c_int, timeout: *mut timespec) -> c_int {
        let Some(session) = table::session(fd) else {
            // SAFETY: the messages and the time are the program's; the kernel checks them.
            let n = unsafe { real::recvmmsg(fd, messages, count, flags, timeout) };
            // SAFETY: the kernel has filled as many.
            (0..n.max(0) as usize).for_each(|i| received(unsafe { &(*messages.add(i)).msg_hdr }));
            return n;
        };
        // SAFETY: the time is the program's, or null.
        let deadline = match super::events::duration(unsafe { timeout.as_ref() }) {
            Ok(limit) => Deadline::after(limit),
            Err(error) => return answer_int(Err(error)),
        };
        // The kernel reports an error of the socket before it looks for octets.
        if let Some(error) = pending_error(fd) {
            return answer_int(Err(error));
        }
        if count > 0 && is_no_address(messages) {
            return answer_int(Err(EFAULT));
        }
        let mut n = 0;
        while n < count {
            let waits = n == 0 || flags & libc::MSG_WAITFORONE == 0;
            let how = flags & !libc::MSG_WAITFORONE | if waits { 0 } else { libc::MSG_DONTWAIT };
            // SAFETY: the program has `count` messages.
            let message = unsafe { &mut *messages.add(n as usize) };
            // SAFETY: as above.
            let octets = unsafe { recvmsg(fd, &mut message.msg_hdr, how) };
            if octets < 0 {
                break;
            }
            message.msg_len = octets as c_uint;
            n += 1;
            // As on the kernel the limit is looked at after each message, and ends no wait.
            // SAFETY: as above.
            if let (Some(timeout), Some(left)) = (unsafe { timeout.as_mut() }, deadline.left()) {
                *timeout = clock::to_timespec(left);
            }
            if deadline.is_over() {
                return n as c_int;
            }
        }
        match n {
            0 if count > 0 => -1,
            _ if n < count => {
                keep(&session, errno::last());
                n as c_int
            }
            _ => n as c_int,
        }
    }
}

/// Returns the buffers of a message; an error if it has more than the kernel takes, or no list.
///
/// # Safety
/// The message is the program's, for this call.
unsafe fn parts_of(message: &msghdr) -> Outcome<Parts> {
    match message.msg_iovlen as usize {
        count if count > MOST => Err(EMSGSIZE),
        1.. if is_no_address(message.msg_iov) => Err(EFAULT),
        // SAFETY: as the caller's.
        count => Ok(unsafe { Parts::new(message.msg_iov, count) }),
    }
}

/// Takes the error of a socket, if it has one.
fn pending_error(fd: c_int) -> Option<Errno> {
    let mut error: c_int = 0;
    let mut length = size_of::<c_int>() as socklen_t;
    let place = core::ptr::from_mut(&mut error).cast();
    // SAFETY: SO_ERROR stores a number.
    let result = unsafe { super::connections::getsockopt(fd, libc::SOL_SOCKET, libc::SO_ERROR, place, &mut length) };
    (result == 0 && error != 0).then_some(Errno(error))
}

// Sending.
exported! {
    fn write(fd: c_int, buffer: *const c_void, count: size_t) -> ssize_t {
        // SAFETY: the buffer is the program's; the kernel checks it.
        let by_kernel = || unsafe { real::write(fd, buffer, count) };
        match table::session(fd) {
            Some(session) => match earn::direct_send(session.forever(), fd, count) {
                Some(direct) => direct.sent(fd, by_kernel(), count, 0),
                // SAFETY: the buffer is the program's, for this call.
                None => unsafe { send_from(&session, fd, buffer, count, 0) },
            },
            None => by_kernel(),
        }
    }

    fn writev(fd: c_int, parts: *const iovec, count: c_int) -> ssize_t {
        // SAFETY: the buffers are the program's; the kernel checks them.
        let by_kernel = || unsafe { real::writev(fd, parts, count) };
        let (Some(session), Ok(valid)) = (table::session(fd), valid_count(count)) else { return by_kernel() };
        if count > 0 && is_no_address(parts) {
            return answer(Err(EFAULT));
        }
        // SAFETY: as many buffers are the program's, for this call.
        let list = unsafe { Parts::new(parts, valid) };
        match earn::direct_send(session.forever(), fd, list.length()) {
            Some(direct) => direct.sent(fd, by_kernel(), list.length(), 0),
            // As with readv; write(2) asks the socket.
            None if list.length() == 0 => 0,
            None => answer(blocking::send(session.forever(), fd, list, 0)),
        }
    }

    fn send(fd: c_int, buffer: *const c_void, count: size_t, flags: c_int) -> ssize_t {
        // SAFETY: the buffer is the program's; the kernel checks it.
        let by_kernel = || unsafe { real::send(fd, buffer, count, flags) };
        match table::session(fd) {
            Some(session) => match earn::direct_send(session.forever(), fd, count) {
                Some(direct) => direct.sent(fd, by_kernel(), count, flags),
                // SAFETY: the buffer is the program's, for this call.
                None => unsafe { send_from(&session, fd, buffer, count, flags) },
            },
            None => by_kernel(),
        }
    }

    fn sendto(fd: c_int, buffer: *const c_void, count: size_t, flags: c_int, address: *const sockaddr, length: socklen_t) -> ssize_t {
        // SAFETY: the buffer and the address are the program's; the kernel checks them.
        let by_kernel = || unsafe { real::sendto(fd, buffer, count, flags, address, length) };
        let Some(session) = table::session(fd) else { return by_kernel() };
        if flags & libc::MSG_FASTOPEN != 0 {
            let n = by_kernel();
            if n >= 0 || errno::last() == EINPROGRESS {
                // SAFETY: the kernel has read the address.
                unsafe { descriptors::connected(fd, address, length, true) };
                send::by_kernel(&session, n.max(0) as u64);
            }
            return n;
        }
        match earn::direct_send(session.forever(), fd, count) {
            Some(direct) => direct.sent(fd, by_kernel(), count, flags),
            // SAFETY: the buffer is the program's. TCP ignores the address of a connected socket.
            None => unsafe { send(fd, buffer, count, flags) },
        }
    }

    fn sendmsg(fd: c_int, message: *const msghdr, flags: c_int) -> ssize_t {
        // SAFETY: the message is the program's; the kernel checks it.
        let by_kernel = || unsafe { real::sendmsg(fd, message, flags) };
        // SAFETY: the message is the program's, if it can be one.
        match (table::session(fd), unsafe { message.as_ref() }) {
            (Some(session), Some(message)) if !is_no_address(message) => {
                // SAFETY: the buffers of the message are the program's, for this call.
                let list = match unsafe { parts_of(message) } {
                    Ok(list) => list,
                    Err(error) => return answer(Err(error)),
                };
                match earn::direct_send(session.forever(), fd, list.length()) {
                    Some(direct) => direct.sent(fd, by_kernel(), list.length(), flags),
                    None => answer(blocking::send(session.forever(), fd, list, flags)),
                }
            }
            (None, Some(message)) if passes_session(message) => answer(Err(EBUSY)),
            _ => by_kernel(),
        }
    }

    fn sendmmsg(fd: c_int, messages: *mut mmsghdr, count: c_uint, flags: c_int) -> c_int {
        if table::session(fd).is_none() {
            // SAFETY: the program has `count` messages.
            return match unsafe { any_passes_session(messages, count) } {
                true => answer_int(Err(EBUSY)),
                // SAFETY: as above; the kernel checks them.
                false => unsafe { real::sendmmsg(fd, messages, count, flags) },
            };
        }
        let count = count.min(MOST as c_uint);
        if count > 0 && is_no_address(messages) {
            return answer_int(Err(EFAULT));
        }
        for i in 0..count {
            // SAFETY: the program has `count` messages.
            let message = unsafe { &mut *messages.add(i as usize) };
            // SAFETY: as above.
            let n = unsafe { sendmsg(fd, &message.msg_hdr, flags) };
            if n < 0 {
                return if i > 0 { i as c_int } else { -1 };
            }
            message.msg_len = n as c_uint;
            // What follows a message that was sent in part would come before its rest.
            // SAFETY: the buffers of the message are the program's, for this call.
            if unsafe { parts_of(&message.msg_hdr) }.is_ok_and(|parts| (n as usize) < parts.length()) {
                return i as c_int + 1;
            }
        }
        count as c_int
    }

    fn sendfile(to: c_int, from: c_int, offset: *mut off_t, count: size_t) -> ssize_t {
        if table::session(from).is_some() && offset.is_null() {
            // The kernel splices, if the other one is a pipe.
            return answer(spliced(from, to, count, 0));
        }
        // SAFETY: the offset is the program's, or null; the kernel checks it.
        let by_kernel = || unsafe { real::sendfile(to, from, offset, count) };
        match table::session(to) {
            Some(session) => match offer::unattached(session.forever()) {
                Some(alone) => {
                    let n = by_kernel();
                    earn::uncopied(alone, to, n, count, &session.end().send);
                    n
                }
                // SAFETY: the offset is the program's, or null.
                None => answer(transfer::from_file(session.forever(), to, from, unsafe { offset.as_mut() }, count)),
            },
            None => by_kernel(),
        }
    }

    fn sendfile64(to: c_int, from: c_int, offset: *mut off_t, count: size_t) -> ssize_t {
        // SAFETY: both have the same contract.
        unsafe { sendfile(to, from, offset, count) }
    }

    fn splice(from: c_int, from_offset: *mut libc::loff_t, to: c_int, to_offset: *mut libc::loff_t, count: size_t, flags: c_uint) -> ssize_t {
        let (source, target) = (table::session(from), table::session(to));
        let no_session = source.is_none() && target.is_none();
        // SAFETY: the offsets are the program's, or null; the kernel checks them.
        let by_kernel = || unsafe { real::splice(from, from_offset, to, to_offset, count, flags) };
        if no_session || !from_offset.is_null() || !to_offset.is_null() {
            return by_kernel();
        }
        match earn::Ends::unattached((from, source.as_ref()), (to, target.as_ref())) {
            Some(ends) => ends.moved(by_kernel(), count),
            None => answer(spliced(from, to, count, flags)),
        }
    }
}

/// Calls splice(2) if one end is a session that has rings, or may get some.
fn spliced(from: c_int, to: c_int, count: size_t, flags: c_uint) -> Outcome {
    let (source, target) = (table::session(from), table::session(to));
    let end = |session: &Option<Held>, fd| match session {
        Some(session) => End::Session(receiver(session, fd)),
        None => End::Other(fd),
    };
    splice::splice(end(&source, from), end(&target, to), count, flags)
}

/// Returns whether one of `count` messages.
///
/// # Safety
/// `messages` leads to `count` messages.
unsafe fn any_passes_session(messages: *const mmsghdr, count: c_uint) -> bool {
    // SAFETY: the caller has `count` messages.
    (0..count as usize).any(|i| passes_session(unsafe { &(*messages.add(i)).msg_hdr }))
}

/// Returns whether a message carries the descriptor of a session that cannot leave its rings: the
/// receiver would get a socket without what is in them.
fn passes_session(message: &msghdr) -> bool {
    any_right(message, |fd| !descriptors::leave_rings(fd))
}

/// Takes the numbers of the descriptors that a message has brought.
fn received(message: &msghdr) {
    any_right(message, |fd| {
        reuse::made(fd);
        false
    });
}

/// Returns whether `f` holds for a descriptor of a message (SCM_RIGHTS). The others behind it are left out.
fn any_right(message: &msghdr, f: impl Fn(c_int) -> bool) -> bool {
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
                if (0..octets / 4).any(|i| f(list.add(i).read_unaligned())) {
                    return true;
                }
            }
            header = libc::CMSG_NXTHDR(message, header);
        }
    }
    false
}
