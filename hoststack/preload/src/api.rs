// SPDX-License-Identifier: Apache-2.0

//! The functions of the C library that this library takes the place of. Each is its own way to a session, or the
//! C library's function if the descriptor has none.
//!
//! Functions with a variable argument list take the last argument as a word: the calling conventions of x86-64 and
//! aarch64 pass it in the same register.

use crate::clock::Deadline;
use crate::parts::{one, valid_count, Parts};
use crate::stream::{self, Outcome};
use crate::syscall::direct;
use crate::{descriptors, epoll, lock, poll, real, table, transfer};
use core::sync::atomic::Ordering;
use core::time::Duration;
use libc::{
    c_char, c_int, c_uint, c_ulong, c_void, epoll_event, fd_set, iovec, mmsghdr, msghdr, nfds_t, off_t, pollfd,
    sigset_t, size_t, sockaddr, socklen_t, ssize_t, timespec, timeval, FILE,
};

fn answer(result: Outcome) -> ssize_t {
    match result {
        Ok(n) => n as ssize_t,
        Err(error) => {
            real::set_errno(error);
            -1
        }
    }
}

fn answer_int(result: Outcome) -> c_int {
    answer(result) as c_int
}

/// exported defines functions under the C library's names.
macro_rules! exported {
    ($($(#[$note:meta])* fn $name:ident($($arg:ident: $type:ty),* $(,)?) -> $ret:ty $body:block)*) => {$(
        $(#[$note])*
        /// # Safety
        /// As for the function of this name in the C library.
        #[no_mangle]
        pub unsafe extern "C" fn $name($($arg: $type),*) -> $ret {
            // SAFETY: the caller keeps the contract of the C library's function.
            unsafe { $body }
        }
    )*};
}

// Connections.
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

/// checked ends the program as the C library does when a buffer is too small for a call.
fn checked(count: size_t, size: size_t) -> size_t {
    if count > size {
        real::abort();
    }
    count
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

// Descriptors.
exported! {
    fn close(fd: c_int) -> c_int {
        if table::is_hidden(fd) && !lock::in_vfork_child() {
            return answer_int(Err(libc::EBADF));
        }
        descriptors::closing(fd);
        real::close(fd)
    }

    fn close_range(first: c_uint, last: c_uint, flags: c_int) -> c_int {
        if flags != 0 || lock::in_vfork_child() {
            return real::close_range(first, last, flags);
        }
        if first > last {
            return answer_int(Err(libc::EINVAL));
        }
        let inside = |fd: &c_int| (first..=last).contains(&(*fd as c_uint));
        table::descriptors().filter(inside).for_each(descriptors::closing);
        let mut from = first;
        for kept in table::descriptors().filter(inside).filter(|&fd| table::is_hidden(fd)) {
            if kept as c_uint > from {
                real::close_range(from, kept as c_uint - 1, 0);
            }
            from = kept as c_uint + 1;
        }
        if from > last { 0 } else { real::close_range(from, last, 0) }
    }

    fn closefrom(first: c_int) -> () {
        close_range(first.max(0) as c_uint, c_uint::MAX, 0);
    }

    fn pidfd_getfd(process: c_int, fd: c_int, flags: c_uint) -> c_int {
        // Not every C library has it.
        let made = direct(libc::SYS_pidfd_getfd, [process as usize, fd as usize, flags as usize, 0, 0, 0]) as c_int;
        if let Some(same) = descriptors::same_socket(made) {
            descriptors::copied(same, made);
        }
        made
    }

    fn dup(fd: c_int) -> c_int {
        let made = real::dup(fd);
        descriptors::copied(fd, made);
        made
    }

    fn dup2(from: c_int, to: c_int) -> c_int {
        if from == to {
            return real::dup2(from, to);
        }
        replace(from, to, || real::dup2(from, to))
    }

    fn dup3(from: c_int, to: c_int, flags: c_int) -> c_int {
        if from == to {
            return real::dup3(from, to, flags);
        }
        replace(from, to, || real::dup3(from, to, flags))
    }

    fn fcntl(fd: c_int, command: c_int, argument: usize) -> c_int {
        let result = real::fcntl(fd, command, argument);
        match command {
            libc::F_DUPFD | libc::F_DUPFD_CLOEXEC => descriptors::copied(fd, result),
            libc::F_SETFL if result == 0 => set_nonblocking(fd, argument as c_int & libc::O_NONBLOCK != 0),
            _ => {}
        }
        result
    }

    fn fcntl64(fd: c_int, command: c_int, argument: usize) -> c_int {
        fcntl(fd, command, argument)
    }

    fn ioctl(fd: c_int, request: c_ulong, argument: usize) -> c_int {
        let Some(session) = table::session(fd) else { return real::ioctl(fd, request, argument) };
        let place = argument as *mut c_int;
        match request {
            libc::FIONREAD => *place = stream::queued(&session, fd) as c_int,
            libc::TIOCOUTQ if session.is_attached() => *place = stream::unread(&session) as c_int,
            _ => {
                let result = real::ioctl(fd, request, argument);
                if request == libc::FIONBIO && result == 0 {
                    set_nonblocking(fd, *place != 0);
                }
                return result;
            }
        }
        0
    }

    /// The C library reads and writes a stream without the functions of this library.
    fn fdopen(fd: c_int, mode: *const c_char) -> *mut FILE {
        if !descriptors::leave_rings(fd) {
            real::set_errno(libc::EBUSY);
            return core::ptr::null_mut();
        }
        real::fdopen(fd, mode)
    }
}

/// replace runs a call that makes `to` a copy of `from`, and closes what `to` was. The C library reads and writes standard
/// input, output and error without the functions of this library, so a connection leaves its rings for them if it can.
fn replace(from: c_int, to: c_int, call: impl FnOnce() -> c_int) -> c_int {
    let vfork = lock::in_vfork_child();
    if table::is_hidden(to) && !vfork {
        return answer_int(Err(libc::EBUSY));
    }
    // SAFETY: fcntl of a number.
    if unsafe { real::fcntl(from, libc::F_GETFD, 0) } >= 0 {
        descriptors::closing(to);
    }
    if (0..=2).contains(&to) && !vfork {
        descriptors::leave_rings(from);
    }
    let made = call();
    descriptors::copied(from, made);
    made
}

fn set_nonblocking(fd: c_int, nonblocking: bool) {
    if let Some(session) = table::session(fd) {
        session.side().nonblocking.store(u32::from(nonblocking), Ordering::Relaxed);
    }
}

// Events.
exported! {
    fn epoll_create(size: c_int) -> c_int {
        if size <= 0 {
            return answer_int(Err(libc::EINVAL));
        }
        epoll_create1(0)
    }

    fn epoll_create1(flags: c_int) -> c_int {
        let fd = real::epoll_create1(flags);
        if fd >= 0 {
            table::epoll_or_new(fd);
        }
        fd
    }

    fn epoll_ctl(epoll: c_int, operation: c_int, fd: c_int, event: *mut epoll_event) -> c_int {
        if let Some(inner) = table::epoll(fd).filter(|_| operation == libc::EPOLL_CTL_ADD) {
            inner.watch();
        }
        if operation == libc::EPOLL_CTL_ADD && table::session(fd).is_none() {
            descriptors::anticipate(fd);
        }
        match (table::session(fd), table::epoll_or_new(epoll)) {
            (Some(session), Some(instance)) if epoll != fd => {
                answer_int(instance.control(operation, fd, session.forever(), event.as_ref().copied()).map(|()| 0))
            }
            _ => real::epoll_ctl(epoll, operation, fd, event),
        }
    }

    fn epoll_wait(epoll: c_int, events: *mut epoll_event, most: c_int, timeout: c_int) -> c_int {
        epoll_pwait(epoll, events, most, timeout, core::ptr::null())
    }

    fn epoll_pwait(epoll: c_int, events: *mut epoll_event, most: c_int, timeout: c_int, mask: *const sigset_t) -> c_int {
        let limit = (timeout >= 0).then(|| Duration::from_millis(timeout as u64));
        wait_events(epoll, events, most, limit, mask)
    }

    fn epoll_pwait2(epoll: c_int, events: *mut epoll_event, most: c_int, timeout: *const timespec, mask: *const sigset_t) -> c_int {
        match duration(timeout.as_ref()) {
            Ok(limit) => wait_events(epoll, events, most, limit, mask),
            Err(error) => answer_int(Err(error)),
        }
    }

    fn poll(fds: *mut pollfd, count: nfds_t, timeout: c_int) -> c_int {
        let limit = (timeout >= 0).then(|| Duration::from_millis(timeout as u64));
        poll_list(fds, count, limit, core::ptr::null())
    }

    fn __poll_chk(fds: *mut pollfd, count: nfds_t, timeout: c_int, size: size_t) -> c_int {
        checked(count as usize * size_of::<pollfd>(), size);
        poll(fds, count, timeout)
    }

    fn ppoll(fds: *mut pollfd, count: nfds_t, timeout: *const timespec, mask: *const sigset_t) -> c_int {
        match duration(timeout.as_ref()) {
            Ok(limit) => poll_list(fds, count, limit, mask),
            Err(error) => answer_int(Err(error)),
        }
    }

    fn __ppoll_chk(fds: *mut pollfd, count: nfds_t, timeout: *const timespec, mask: *const sigset_t, size: size_t) -> c_int {
        checked(count as usize * size_of::<pollfd>(), size);
        ppoll(fds, count, timeout, mask)
    }

    fn select(count: c_int, read: *mut fd_set, write: *mut fd_set, except: *mut fd_set, timeout: *mut timeval) -> c_int {
        let limit = match timeout.as_ref() {
            Some(t) if t.tv_sec < 0 || t.tv_usec < 0 => return answer_int(Err(libc::EINVAL)),
            Some(t) => Some(Duration::from_secs(t.tv_sec as u64) + Duration::from_micros(t.tv_usec as u64)),
            None => None,
        };
        let deadline = Deadline::after(limit);
        let result = select_sets(count, poll::Sets { read, write, except }, limit, core::ptr::null());
        if let (Some(timeout), Some(left)) = (timeout.as_mut(), deadline.left()) {
            *timeout = timeval { tv_sec: left.as_secs() as _, tv_usec: left.subsec_micros() as _ };
        }
        result
    }

    fn pselect(count: c_int, read: *mut fd_set, write: *mut fd_set, except: *mut fd_set, timeout: *const timespec, mask: *const sigset_t) -> c_int {
        match duration(timeout.as_ref()) {
            Ok(limit) => select_sets(count, poll::Sets { read, write, except }, limit, mask),
            Err(error) => answer_int(Err(error)),
        }
    }
}

fn duration(timeout: Option<&timespec>) -> Result<Option<Duration>, i32> {
    match timeout {
        None => Ok(None),
        Some(t) if t.tv_sec < 0 || !(0..1_000_000_000).contains(&t.tv_nsec) => Err(libc::EINVAL),
        Some(t) => Ok(Some(Duration::new(t.tv_sec as u64, t.tv_nsec as u32))),
    }
}

/// # Safety
/// `events` has room for `most` events; `mask` is null or a signal mask.
unsafe fn wait_events(
    fd: c_int,
    events: *mut epoll_event,
    most: c_int,
    limit: Option<Duration>,
    mask: *const sigset_t,
) -> c_int {
    if most <= 0 || events.is_null() {
        // SAFETY: the kernel checks the arguments.
        return unsafe { real::epoll_pwait(fd, events, most, 0, mask) };
    }
    // SAFETY: the caller has room for `most` events.
    let out = unsafe { core::slice::from_raw_parts_mut(events, most as usize) };
    answer_int(match table::epoll(fd) {
        Some(instance) => instance.wait(fd, out, limit, mask),
        None => first_wait(fd, out, limit, mask),
    })
}

/// first_wait is for an instance that had no session when the wait began, but may have some when it ends.
fn first_wait(fd: c_int, out: &mut [epoll_event], limit: Option<Duration>, mask: *const sigset_t) -> Outcome {
    let n = epoll::kernel_wait(fd, out, limit, mask)?;
    let Some(instance) = table::epoll(fd) else { return Ok(n) };
    match instance.translate(out, n) {
        0 if n > 0 => instance.wait(fd, out, limit, mask),
        kept => Ok(kept),
    }
}

/// # Safety
/// `fds` leads to `count` descriptors; `mask` is null or a signal mask.
unsafe fn poll_list(fds: *mut pollfd, count: nfds_t, limit: Option<Duration>, mask: *const sigset_t) -> c_int {
    let list = match count {
        0 => &mut [],
        // SAFETY: the caller has `count` descriptors.
        _ => unsafe { core::slice::from_raw_parts_mut(fds, count as usize) },
    };
    answer_int(poll::poll(list, limit, mask))
}

/// # Safety
/// The sets are null or the program's; `mask` is null or a signal mask.
unsafe fn select_sets(count: c_int, sets: poll::Sets, limit: Option<Duration>, mask: *const sigset_t) -> c_int {
    if sets.have_sessions(count) {
        return answer_int(sets.select(count, limit, mask));
    }
    let limit = limit.map(crate::wait::to_timespec);
    let limit = limit.as_ref().map_or(core::ptr::null(), core::ptr::from_ref);
    // SAFETY: as the caller's.
    unsafe { real::pselect(count, sets.read, sets.write, sets.except, limit, mask) }
}
