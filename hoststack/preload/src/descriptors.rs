// SPDX-License-Identifier: Apache-2.0

//! What happens to sessions when descriptors are made, copied and closed.

use crate::session::{Identity, Session};
use crate::{config, lock, real, side, stream, table};
use beeline_ring::Role;
use core::mem::size_of;
use core::net::SocketAddr;
use core::sync::atomic::Ordering;
use libc::{c_int, sockaddr, sockaddr_storage, socklen_t};

/// accepted makes a session of a connection that accept(2) returned, if it may use rings.
pub fn accepted(fd: c_int) {
    if !config::get().enabled {
        return;
    }
    keeping_errno(|| {
        let Some(server) = address(fd, libc::getsockname).filter(|&server| config::get().admits(server)) else {
            return;
        };
        let Some(client) = address(fd, libc::getpeername) else { return };
        enter(fd, Role::Acceptor, Some((server, client)));
    });
}

/// connected makes a session of a connection that connect(2) has begun.
///
/// # Safety
/// `address` leads to `length` octets.
pub unsafe fn connected(fd: c_int, address: *const sockaddr, length: socklen_t) {
    if !config::get().enabled || address.is_null() {
        return;
    }
    // SAFETY: zero is a valid sockaddr_storage.
    let mut storage: sockaddr_storage = unsafe { core::mem::zeroed() };
    let length = (length as usize).min(size_of::<sockaddr_storage>());
    // SAFETY: the caller has that many octets, and the storage has room for them.
    unsafe { core::ptr::copy_nonoverlapping(address.cast::<u8>(), core::ptr::from_mut(&mut storage).cast(), length) };
    let admitted = config::from_raw(&storage).is_some_and(|server| config::get().admits(server));
    match table::session(fd) {
        Some(session) => session.anticipated.store(!admitted, Ordering::Relaxed),
        None if admitted => keeping_errno(|| enter(fd, Role::Connector, None)),
        None => {}
    }
}

/// anticipate makes a session of a socket that a program puts into an epoll instance before it connects.
pub fn anticipate(fd: c_int) {
    if !config::get().enabled {
        return;
    }
    keeping_errno(|| {
        let listens = option(fd, libc::SO_ACCEPTCONN) != Some(0);
        if listens || address(fd, libc::getpeername).is_some() {
            return;
        }
        enter(fd, Role::Connector, None);
        if let Some(session) = table::session(fd) {
            session.anticipated.store(true, Ordering::Relaxed);
        }
    });
}

fn keeping_errno(f: impl FnOnce()) {
    let before = real::errno();
    f();
    real::set_errno(before);
}

type AddressCall = unsafe extern "C" fn(c_int, *mut sockaddr, *mut socklen_t) -> c_int;

/// address is an end of a connection; None if it is not of IPv4 or IPv6.
fn address(fd: c_int, call: AddressCall) -> Option<SocketAddr> {
    // SAFETY: zero is a valid sockaddr_storage.
    let mut storage: sockaddr_storage = unsafe { core::mem::zeroed() };
    let mut length = size_of::<sockaddr_storage>() as socklen_t;
    // SAFETY: the storage has `length` octets.
    let result = unsafe { call(fd, core::ptr::from_mut(&mut storage).cast(), &mut length) };
    (result == 0).then(|| config::from_raw(&storage)).flatten()
}

fn enter(fd: c_int, role: Role, ends: Option<(SocketAddr, SocketAddr)>) {
    if option(fd, libc::SO_PROTOCOL) != Some(libc::IPPROTO_TCP) {
        return;
    }
    let Some(side) = side::make() else { return };
    // SAFETY: fcntl of a descriptor.
    let flags = unsafe { real::fcntl(fd, libc::F_GETFL, 0) };
    side.nonblocking.store(u32::from(flags & libc::O_NONBLOCK != 0), Ordering::Relaxed);
    let session = Session::make(Identity { role, side, ends });
    if table::set_session(fd, session) {
        session.descriptors.store(1, Ordering::Relaxed);
    } else {
        session.was_last.store(true, Ordering::Relaxed);
    }
    session.let_go();
}

/// option is a number that getsockopt(2) returns for SOL_SOCKET.
fn option(fd: c_int, name: c_int) -> Option<c_int> {
    let mut value: c_int = 0;
    let mut length = size_of::<c_int>() as socklen_t;
    let place = core::ptr::from_mut(&mut value).cast();
    // SAFETY: the option stores a number.
    let result = unsafe { libc::getsockopt(fd, libc::SOL_SOCKET, name, place, &mut length) };
    (result == 0).then_some(value)
}

/// copied enters a descriptor that dup(2) or fcntl(2) made of another.
pub fn copied(from: c_int, to: c_int) {
    if to < 0 || from == to {
        return;
    }
    if lock::in_vfork_child() {
        // exec looks at the numbers that the table has, and knows sessions without rings by the numbers alone.
        table::note(to);
        stay(from);
        return;
    }
    if let Some(session) = table::session(from) {
        session.side().owners.add();
        session.descriptors.fetch_add(1, Ordering::AcqRel);
        table::set_session(to, session.forever());
    }
    if let Some(epoll) = table::epoll(from) {
        epoll.add_descriptor();
        table::set_epoll(to, epoll);
    }
}

/// closing forgets what a descriptor was, before the kernel closes it.
pub fn closing(fd: c_int) {
    let nothing = table::session(fd).is_none() && table::epoll(fd).is_none();
    if nothing || lock::in_vfork_child() {
        return;
    }
    keeping_errno(|| {
        if let Some(session) = table::take_session(fd) {
            leave(session.forever(), fd);
        }
        if let Some(epoll) = table::take_epoll(fd) {
            let other =
                || table::descriptors().find(|&other| table::epoll(other).is_some_and(|e| core::ptr::eq(e, epoll)));
            epoll.drop_descriptor(fd, other);
        }
    });
}

/// leave is the end of one descriptor of a session.
fn leave(session: &'static Session, fd: c_int) {
    let side = session.side();
    let rings = session.rings();
    let was_last = side.owners.remove();
    if was_last {
        session.was_last.store(true, Ordering::Relaxed);
        if rings.is_some_and(|rings| session.is_readable(&rings)) {
            // What was not read is lost: the kernel resets such connections.
            stream::reset_at_close(fd);
        }
    }
    let was_last_here = session.descriptors.fetch_sub(1, Ordering::AcqRel) == 1;
    let watches = session.watches.lock().clone();
    for (epoll, slot) in watches {
        match was_last_here {
            true => epoll.closed(slot, !was_last),
            false => epoll.orphan(slot, fd),
        }
    }
    if let Some(rings) = rings {
        rings.header.leave(rings.role);
    }
}

/// stay keeps a connection on the kernel. False if it has left the kernel already.
pub fn stay(fd: c_int) -> bool {
    let Some(session) = table::session(fd) else { return true };
    if session.is_attached() {
        return false;
    }
    session.side().stays.store(1, Ordering::SeqCst);
    !session.is_attached()
}

/// leave_rings has a connection continue on the kernel. False if the ring has octets that were not read, or an index
/// that cannot be: whoever has the descriptor alone would miss them.
pub fn leave_rings(fd: c_int) -> bool {
    if stay(fd) {
        return true;
    }
    let Some(session) = table::session(fd) else { return true };
    let Some(rings) = session.rings() else { return true };
    let way = &session.side().receive;
    let is_empty = || matches!(rings.receive().available(way.index.load(Ordering::SeqCst), rings.capacity), Ok((0, _)));
    if !is_empty() {
        return false;
    }
    session.close_rings();
    // Whoever waits for the ring goes on at the kernel's connection.
    session.wake();
    session.wake_peer();
    is_empty()
}

/// same_socket is a descriptor of the table whose attached session is the socket `fd`.
pub fn same_socket(fd: c_int) -> Option<c_int> {
    let cookie = cookie(fd)?;
    let is_same = |session: table::Held| session.is_attached() && session.cookie.load(Ordering::Relaxed) == cookie;
    table::descriptors().find(|&other| table::session(other).is_some_and(is_same))
}

/// cookie is the kernel's number of a socket, which no other socket gets.
pub fn cookie(fd: c_int) -> Option<u64> {
    let mut cookie = 0u64;
    let mut length = 8;
    let place = core::ptr::from_mut(&mut cookie).cast();
    // SAFETY: SO_COOKIE stores eight octets.
    let result = unsafe { libc::getsockopt(fd, libc::SOL_SOCKET, libc::SO_COOKIE, place, &mut length) };
    (result == 0).then_some(cookie)
}

/// before_fork counts the child's descriptors, and keeps connections on the kernel that have no rings yet: parent
/// and child could not both get them.
pub fn before_fork() {
    for session in table::descriptors().filter_map(table::session) {
        session.side().owners.add_child();
        if !session.is_attached() {
            session.side().stays.store(1, Ordering::SeqCst);
        }
    }
}

/// after_fork counts the descriptors as the child's own, and closes its copies of mailboxes, so that they end with
/// the parent's. The only watcher of a session, if it has one, is the parent's.
pub fn after_fork() {
    for session in table::descriptors().filter_map(table::session) {
        session.side().owners.adopt();
        session.close_mailbox();
        session.watcher.store(core::ptr::dangling_mut(), Ordering::Relaxed);
    }
}
