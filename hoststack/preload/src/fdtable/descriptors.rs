// SPDX-License-Identifier: Apache-2.0

//! What happens to sessions when descriptors are made, copied and closed.

use crate::conn::{clients, config, end, identity, recall, stream, watch, Held, Identity, Session};
use crate::fdtable::{fork, reuse, table};
use crate::sys::{errno, real, socket, waiter};
use crate::telemetry::page;
use beeline_ring::Role;
use core::mem::size_of;
use core::net::SocketAddr;
use core::sync::atomic::Ordering;
use libc::{c_int, sockaddr, sockaddr_storage, socklen_t};

/// Makes a session of a connection from `client` that accept(2) of `listener` returned, if it may use rings.
pub fn accepted(fd: c_int, listener: c_int, client: &sockaddr_storage, nonblocking: bool) {
    reuse::made(fd);
    let Some(client) = socket::from_raw(client) else { return };
    errno::preserve(|| {
        let server = bound_to(listener).or_else(|| socket::address(fd, libc::getsockname));
        let Some(server) = server.filter(|&server| config::get().admits(server)) else { return };
        if let Some(session) = enter(fd, Role::Acceptor, Some((server, client)), identity::UNKNOWN) {
            session.end().nonblocking.store(u32::from(nonblocking), Ordering::Relaxed);
        }
    });
}

/// Returns the address of a socket that listens, if all its connections have it as their own. If the number is another
/// socket by now, the addresses of the connection differ when it asks for rings, and it stays on the kernel.
fn bound_to(listener: c_int) -> Option<SocketAddr> {
    table::listener(listener, || {
        let is_transparent = |level, name| socket::option_of(listener, level, name).is_some_and(|value| value != 0);
        let own = socket::address(listener, libc::getsockname).filter(|address| !address.ip().is_unspecified());
        own.filter(|_| {
            !is_transparent(libc::SOL_IP, libc::IP_TRANSPARENT)
                && !is_transparent(libc::SOL_IPV6, libc::IPV6_TRANSPARENT)
        })
    })
}

/// Prepares connect(2): the session of an accepted connection has to be known by more than its addresses.
pub fn connecting(fd: c_int) {
    if let Some(session) = table::session(fd) {
        errno::preserve(|| {
            let _ = identity::cookie_of(&session, fd);
        });
    }
}

/// Makes a session of a connection that connect(2) has begun. `begins` if it has not said yet that the connection
/// is there.
///
/// # Safety
/// `address` leads to `length` octets.
pub unsafe fn connected(fd: c_int, address: *const sockaddr, length: socklen_t, begins: bool) {
    if !config::get().enabled || address.is_null() {
        return;
    }
    // SAFETY: zero is a valid sockaddr_storage.
    let mut storage: sockaddr_storage = unsafe { core::mem::zeroed() };
    let length = (length as usize).min(size_of::<sockaddr_storage>());
    // SAFETY: the caller has that many octets, and the storage has room for them.
    unsafe { core::ptr::copy_nonoverlapping(address.cast::<u8>(), core::ptr::from_mut(&mut storage).cast(), length) };
    let admitted = socket::from_raw(&storage).is_some_and(|server| config::get().admits(server));
    reuse::verify(fd);
    if admitted && table::session(fd).is_none() {
        errno::preserve(|| drop(enter_connector(fd)));
    }
    let Some(session) = table::session(fd).filter(|_| !fork::in_vfork_child()) else { return };
    // A call that only says that the connection is there, which another one has begun, leaves it alone.
    let disconnects = storage.ss_family == libc::AF_UNSPEC as libc::sa_family_t;
    if !session.connecting.swap(begins && !disconnects, Ordering::Relaxed) || begins || disconnects {
        errno::preserve(|| identity::reconnected(session.forever()));
    }
    session.anticipated.store(!admitted, Ordering::Relaxed);
    session.merits.connected();
}

/// Makes a session of a socket that a program puts into an epoll instance before it connects.
pub fn anticipate(fd: c_int) {
    if !config::get().enabled {
        return;
    }
    errno::preserve(|| {
        let listens = socket::option(fd, libc::SO_ACCEPTCONN) != Some(0);
        if listens || socket::address(fd, libc::getpeername).is_some() {
            return;
        }
        if let Some(session) = enter_connector(fd) {
            session.anticipated.store(true, Ordering::Relaxed);
        }
    });
}

/// Makes a session of a socket whose addresses are not known.
fn enter_connector(fd: c_int) -> Option<Held> {
    enter(fd, Role::Connector, None, socket::cookie(fd)?)
}

/// Makes a session. Whether it is one of TCP is asked when it has earned rings.
fn enter(fd: c_int, role: Role, ends: Option<(SocketAddr, SocketAddr)>, cookie: u64) -> Option<Held> {
    if fork::is_shared() || fork::in_vfork_child() {
        return None;
    }
    page::make();
    clients::make();
    let end = end::make()?;
    let session = Session::make(Identity { role, end, ends }, cookie);
    if table::set_session(fd, session) {
        session.descriptors.store(1, Ordering::Relaxed);
    } else {
        session.was_last.store(true, Ordering::Relaxed);
    }
    session.release();
    table::session(fd)
}

/// Enters a descriptor that dup(2) or fcntl(2) made of another.
pub fn copied(from: c_int, to: c_int) {
    if to < 0 || from == to {
        return;
    }
    if fork::in_vfork_child() {
        // exec looks at the numbers that the table has, and knows sessions without rings by the numbers alone.
        table::note(to);
        // The program may close this library's descriptors before exec.
        leave_rings(from);
        return;
    }
    reuse::made(to);
    if let Some(session) = table::session(from) {
        session.end().owners.add();
        session.descriptors.fetch_add(1, Ordering::AcqRel);
        table::set_session(to, session.forever());
    }
    if let Some(epoll) = table::epoll(from) {
        epoll.add_descriptor();
        table::set_epoll(to, epoll);
    }
}

/// Forgets what a descriptor was, before the kernel closes it.
pub fn closing(fd: c_int) {
    table::forget_listener(fd);
    let nothing = table::session(fd).is_none() && table::epoll(fd).is_none();
    if nothing || fork::in_vfork_child() {
        return;
    }
    errno::preserve(|| {
        if let Some(session) = table::take_session(fd) {
            leave(session.forever(), fd);
        }
        if let Some(epoll) = table::take_epoll(fd) {
            epoll.drop_descriptor(fd, || table::descriptor_of(epoll));
        }
    });
}

/// Ends one descriptor of a session.
fn leave(session: &'static Session, fd: c_int) {
    let end = session.end();
    let rings = session.rings();
    recall::answer(session, fd);
    let was_last = end.owners.remove();
    if was_last {
        session.was_last.store(true, Ordering::Relaxed);
        if rings.is_some_and(|rings| session.is_readable(&rings)) {
            // What was not read is lost: the kernel resets such connections.
            stream::reset_at_close(fd);
        }
    }
    let was_last_here = session.descriptors.fetch_sub(1, Ordering::AcqRel) == 1;
    watch::each_watch(session, |epoll, slot| match was_last_here {
        true => epoll.closed(slot, session, !was_last),
        false => epoll.orphan(slot, session, fd),
    });
    // As long as another process has the connection it has not ended.
    if let Some(rings) = rings.filter(|_| was_last) {
        rings.header.leave(rings.role);
    }
}

/// Keeps a connection on the kernel. False if it has left the kernel already.
pub fn pin(fd: c_int) -> bool {
    let Some(session) = table::session(fd) else { return true };
    if session.is_attached() {
        return false;
    }
    session.end().pinned.store(1, Ordering::SeqCst);
    !session.is_attached()
}

/// Makes a connection continue on the kernel. False if the ring has octets that were not read, and that the
/// peer does not send again: whoever has the descriptor alone would miss them.
pub fn leave_rings(fd: c_int) -> bool {
    if pin(fd) {
        return true;
    }
    let Some(session) = table::session(fd) else { return true };
    let Some(rings) = session.rings() else { return true };
    recall::leave(session.forever(), fd, &rings, answer_all)
}

/// Sends what peers have recalled from connections of this process.
fn answer_all() {
    for fd in table::descriptors() {
        if let Some(session) = table::session(fd) {
            recall::answer(session.forever(), fd);
        }
    }
}

/// Counts the child's descriptors: connections that have no rings yet stay on the kernel until one process
/// alone has them.
pub fn before_fork() {
    table::descriptors().filter_map(table::session).for_each(|session| session.end().owners.add_child());
}

/// Takes before_fork back: the child was not made.
pub fn fork_failed() {
    table::descriptors().filter_map(table::session).for_each(|session| session.end().owners.drop_child());
}

/// Counts the descriptors as the child's own, and closes its copies of mailboxes, so that they end with the parent's.
/// The only watcher of a session, if it has one, is the parent's. The parent has `counted` them, unless it did not see
/// that it made a child. If they are `borrowed`, they need not be those of the table.
pub fn after_fork(counted: bool, borrowed: bool) {
    for fd in table::descriptors() {
        if let Some(epoll) = table::epoll(fd) {
            epoll.after_fork();
        }
        let Some(session) = table::session(fd) else { continue };
        match counted {
            true => session.end().owners.adopt(),
            false => adopt_uncounted(&session, fd),
        }
        session.close_offer_socket();
        session.upgrading.store(false, Ordering::Relaxed);
        session.merits.after_fork();
        if !session.is_attached() {
            session.merits.reopen();
        }
        session.watcher.store(core::ptr::dangling_mut(), Ordering::Relaxed);
        if borrowed {
            reuse::verify(fd);
        }
    }
    if table::descriptors().filter_map(table::session).any(|session| session.is_attached() && session.blocks()) {
        waiter::prepare();
    }
}

/// Counts a descriptor of a child that its parent has not seen. If the parent has given up the connection since, and
/// its place is another's, the stream cannot go on.
fn adopt_uncounted(session: &Session, fd: c_int) {
    let end = session.end();
    if end.generation.load(Ordering::Acquire) == session.generation.load(Ordering::Relaxed)
        && end.keep(session.generation.load(Ordering::Relaxed))
    {
        if !session.is_attached() {
            end.pinned.store(1, Ordering::SeqCst);
        }
        return;
    }
    if session.is_attached() {
        stream::reset_at_close(fd);
        real::shutdown(fd, libc::SHUT_RDWR);
    }
    drop(table::take_session(fd));
}

/// Makes all connections continue on the kernel. What is in their rings is received first.
pub fn leave_all() {
    for session in table::descriptors().filter_map(table::session) {
        session.end().pinned.store(1, Ordering::SeqCst);
        session.leave_rings();
    }
}
