// SPDX-License-Identifier: Apache-2.0

//! A TCP connection of this process that may use rings: made at accept or connect, attached when both ends agree.

use crate::epoll::Epoll;
use crate::lock::Lock;
use crate::side::{Phase, Side};
use crate::{config, counters, descriptors, hidden, real};
use alloc::boxed::Box;
use alloc::vec::Vec;
use beeline_ring::{Direction, Header, Layout, Role, HEADER_BYTES};
use core::net::SocketAddr;
use core::ptr::null_mut;
use core::sync::atomic::{AtomicBool, AtomicI32, AtomicPtr, AtomicU32, AtomicU64, AtomicUsize, Ordering};
use libc::c_int;

/// A watch of a session in an epoll instance: the instance, and the entry's place in it.
pub type Watch = (&'static Epoll, usize);

/// What does not change while a session lives.
#[derive(Clone, Copy)]
pub struct Identity {
    pub role: Role,
    pub side: &'static Side,
    /// Server and client, as the acceptor sees them. A connector learns them from the offer.
    pub ends: Option<(SocketAddr, SocketAddr)>,
}

pub struct Session {
    /// Descriptors of this process, and calls that use the session now.
    holders: AtomicUsize,
    /// Descriptors of this process alone.
    pub descriptors: AtomicUsize,
    live: AtomicBool,
    identity: Lock<Option<Identity>>,
    /// This process dropped the last descriptor of all processes.
    pub was_last: AtomicBool,

    /// Rings: the shared memory, once this end is attached.
    memory: AtomicPtr<u8>,
    length: AtomicUsize,
    /// The kernel's number of the socket, once this end is attached.
    pub cookie: AtomicU64,
    /// Wakes this end; and the peer.
    pub own_event: AtomicI32,
    pub peer_event: AtomicI32,

    /// Before rings: the connector's socket for an offer, and an event for threads that wait meanwhile.
    pub mailbox: AtomicI32,
    /// A connection to the mailbox whose message has not come yet.
    pub visitor: AtomicI32,
    early_event: AtomicI32,
    pub upgrading: AtomicBool,
    pub operations: AtomicU32,
    /// The socket is in an epoll instance, but not connected yet: whether it may use rings is not known.
    pub anticipated: AtomicBool,

    /// The kernel's connection may have ended: ask it before the next octets go into the ring.
    pub suspect: AtomicBool,
    pub watches: Lock<Vec<Watch>>,
    /// The only epoll instance that may leave the peer without a wish to be woken while it is awake.
    pub watcher: AtomicPtr<Epoll>,
}

/// Sessions that are not in use. They are never freed, so that a reader of the table can hold one safely.
static POOL: Lock<Vec<&'static Session>> = Lock::new(Vec::new());

/// Attached sessions of this process.
static ATTACHED: AtomicUsize = AtomicUsize::new(0);

/// Rings of an attached session.
#[derive(Clone, Copy)]
pub struct Rings {
    pub header: &'static Header,
    pub memory: *mut u8,
    pub capacity: u64,
    pub role: Role,
}

impl Rings {
    pub fn receive(&self) -> &'static Direction {
        self.header.to(self.role)
    }

    pub fn send(&self) -> &'static Direction {
        self.header.from(self.role)
    }

    /// octets is the place of the direction whose producer is `role`.
    pub fn octets(&self, role: Role) -> *mut u8 {
        // SAFETY: the layout was checked against the size of the mapping.
        unsafe { self.memory.add(HEADER_BYTES + role as usize * self.capacity as usize) }
    }

    pub fn peer(&self) -> Role {
        match self.role {
            Role::Acceptor => Role::Connector,
            Role::Connector => Role::Acceptor,
        }
    }
}

/// Memory is a mapping of rings that no session has yet.
pub struct Memory {
    at: *mut u8,
    pub layout: Layout,
}

impl Memory {
    pub fn new(at: *mut u8, layout: Layout) -> Self {
        Self { at, layout }
    }

    pub fn header(&self) -> &Header {
        // SAFETY: the mapping begins with a header whose layout was checked.
        unsafe { &*self.at.cast::<Header>() }
    }

    /// into_raw gives the mapping to a session.
    fn into_raw(self) -> *mut u8 {
        core::mem::ManuallyDrop::new(self).at
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        // SAFETY: no session got the mapping.
        unsafe { libc::munmap(self.at.cast(), Layout::bytes(self.layout.capacity)) };
    }
}

impl Session {
    /// make takes a session from the pool. Whoever gets it holds it.
    pub fn make(identity: Identity) -> &'static Session {
        let session = POOL.lock().pop().unwrap_or_else(|| Box::leak(Box::new(Self::empty())));
        session.hold();
        session.operations.store(0, Ordering::Relaxed);
        session.was_last.store(false, Ordering::Relaxed);
        session.suspect.store(false, Ordering::Relaxed);
        session.upgrading.store(false, Ordering::Relaxed);
        session.anticipated.store(false, Ordering::Relaxed);
        *session.identity.lock() = Some(identity);
        session.live.store(true, Ordering::Release);
        session
    }

    fn empty() -> Self {
        Self {
            holders: AtomicUsize::new(0),
            descriptors: AtomicUsize::new(0),
            live: AtomicBool::new(false),
            identity: Lock::new(None),
            was_last: AtomicBool::new(false),
            memory: AtomicPtr::new(null_mut()),
            length: AtomicUsize::new(0),
            cookie: AtomicU64::new(0),
            own_event: AtomicI32::new(-1),
            peer_event: AtomicI32::new(-1),
            mailbox: AtomicI32::new(-1),
            visitor: AtomicI32::new(-1),
            early_event: AtomicI32::new(-1),
            upgrading: AtomicBool::new(false),
            operations: AtomicU32::new(0),
            anticipated: AtomicBool::new(false),
            suspect: AtomicBool::new(false),
            watches: Lock::new(Vec::new()),
            watcher: AtomicPtr::new(null_mut()),
        }
    }

    pub fn hold(&self) {
        self.holders.fetch_add(1, Ordering::AcqRel);
    }

    /// let_go drops what hold took. The last one returns everything that the session has.
    pub fn let_go(&'static self) {
        if self.holders.fetch_sub(1, Ordering::AcqRel) == 1 && self.live.swap(false, Ordering::AcqRel) {
            self.dispose();
        }
    }

    fn dispose(&'static self) {
        let memory = self.memory.swap(null_mut(), Ordering::AcqRel);
        if !memory.is_null() {
            ATTACHED.fetch_sub(1, Ordering::Relaxed);
            // SAFETY: no one holds the session, so no one uses the mapping.
            unsafe { libc::munmap(memory.cast(), self.length.load(Ordering::Relaxed)) };
        }
        let own = [&self.own_event, &self.peer_event, &self.mailbox, &self.visitor, &self.early_event];
        for descriptor in own {
            hidden::dispose(descriptor.swap(-1, Ordering::AcqRel));
        }
        self.watches.lock().clear();
        self.watcher.store(null_mut(), Ordering::Relaxed);
        let identity = self.identity.lock().take();
        if let Some(identity) = identity.filter(|_| self.was_last.load(Ordering::Relaxed)) {
            identity.side.free();
        }
        POOL.lock().push(self);
    }

    /// identity of a session that someone holds.
    pub fn identity(&self) -> Identity {
        let known = *self.identity.lock();
        known.expect("a session that is held has an identity")
    }

    pub fn side(&self) -> &'static Side {
        self.identity().side
    }

    /// rings of the session, if it is attached.
    pub fn rings(&self) -> Option<Rings> {
        let memory = self.memory.load(Ordering::Acquire);
        if memory.is_null() {
            return None;
        }
        // SAFETY: the mapping begins with a header and stays while the session is held.
        let header = unsafe { &*memory.cast::<Header>() };
        let capacity = (self.length.load(Ordering::Relaxed) - HEADER_BYTES) as u64 / 2;
        Some(Rings { header, memory, capacity, role: self.identity().role })
    }

    pub fn is_attached(&self) -> bool {
        !self.memory.load(Ordering::SeqCst).is_null()
    }

    /// attach gives the session its rings and events. Threads that wait on the kernel's connection alone are woken.
    pub fn attach(&'static self, fd: c_int, memory: Memory, own_event: c_int, peer_event: c_int) {
        self.cookie.store(descriptors::cookie(fd).unwrap_or(0), Ordering::Relaxed);
        self.own_event.store(own_event, Ordering::Relaxed);
        self.peer_event.store(peer_event, Ordering::Relaxed);
        self.length.store(Layout::bytes(memory.layout.capacity), Ordering::Relaxed);
        self.memory.store(memory.into_raw(), Ordering::SeqCst);
        counters::ATTACHED.add(1);
        let watches = self.watches.lock().clone();
        for (epoll, slot) in watches {
            epoll.attach(slot);
        }
        signal(self.early_event.load(Ordering::SeqCst));
    }

    /// watched_only_by reports whether `epoll` is, or becomes, the only watcher.
    pub fn watched_only_by(&self, epoll: &Epoll) -> bool {
        let this = core::ptr::from_ref(epoll).cast_mut();
        let claimed = self.watcher.compare_exchange(null_mut(), this, Ordering::AcqRel, Ordering::Acquire);
        claimed.is_ok() || claimed == Err(this)
    }

    pub fn is_not_watched_by(&self, epoll: &Epoll) {
        let this = core::ptr::from_ref(epoll).cast_mut();
        let _ = self.watcher.compare_exchange(this, null_mut(), Ordering::AcqRel, Ordering::Relaxed);
    }

    /// close_rings leaves what follows in both directions to the kernel.
    pub fn close_rings(&self) {
        if let Some(rings) = self.rings() {
            rings.send().close();
            rings.receive().close();
        }
    }

    /// close_mailbox ends the wait for an offer.
    pub fn close_mailbox(&self) {
        hidden::dispose(self.mailbox.swap(-1, Ordering::AcqRel));
        hidden::dispose(self.visitor.swap(-1, Ordering::AcqRel));
    }

    /// news is what becomes readable when an offer comes; negative if none is expected.
    pub fn news(&self) -> c_int {
        match self.visitor.load(Ordering::Relaxed) {
            -1 => self.mailbox.load(Ordering::Relaxed),
            visitor => visitor,
        }
    }

    /// reserve counts one more attached session of this process; false if it has as many as it may.
    pub fn reserve() -> bool {
        let most = config::get().sessions;
        ATTACHED.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |n| (n < most).then_some(n + 1)).is_ok()
    }

    pub fn unreserve() {
        ATTACHED.fetch_sub(1, Ordering::Relaxed);
    }

    /// event is what a thread polls beside the socket: readable when something has changed.
    pub fn event(&self) -> c_int {
        if self.is_attached() {
            return self.own_event.load(Ordering::Relaxed);
        }
        let found = self.early_event.load(Ordering::Acquire);
        if found >= 0 {
            return found;
        }
        let Some(made) = make_event() else { return -1 };
        match self.early_event.compare_exchange(-1, made, Ordering::SeqCst, Ordering::Acquire) {
            Ok(_) => made,
            Err(other) => {
                hidden::dispose(made);
                other
            }
        }
    }

    /// wake makes this end's own waiters look again.
    pub fn wake(&self) {
        signal(self.own_event.load(Ordering::Relaxed));
    }

    pub fn wake_peer(&self) {
        signal(self.peer_event.load(Ordering::Relaxed));
    }

    /// is_readable reports whether the ring has something for a reader: octets, or an index that cannot be. While
    /// octets from before the ring are missing it is the kernel that knows.
    pub fn is_readable(&self, rings: &Rings) -> bool {
        let way = &self.side().receive;
        let begun = match way.phase() {
            Phase::Before => rings.receive().start().is_some_and(|n| n <= way.kernel.load(Ordering::Relaxed)),
            Phase::Ring => true,
            Phase::After => false,
        };
        if !begun {
            return false;
        }
        let head = way.index.load(Ordering::Relaxed);
        let available = rings.receive().available(head, rings.capacity);
        available.map_or(true, |(n, _)| n > 0)
    }

    /// is_writable reports whether a writer of the ring gets anywhere. While the kernel's connection carries the
    /// stream it is the kernel that knows.
    pub fn is_writable(&self, rings: &Rings) -> bool {
        let way = &self.side().send;
        if way.phase() != Phase::Ring {
            return false;
        }
        let free = rings.send().free(way.index.load(Ordering::Relaxed), rings.capacity);
        free.map_or(true, |n| n >= enough(rings.capacity))
            || rings.send().is_closed()
            || rings.header.has_left(rings.peer())
            || self.suspect.load(Ordering::Relaxed)
    }
}

/// enough is the room at which a sleeping writer is woken, so that it is not woken for each octet.
pub fn enough(capacity: u64) -> u64 {
    capacity / 4
}

pub fn make_event() -> Option<c_int> {
    // SAFETY: eventfd has no preconditions.
    hidden::adopt(unsafe { libc::eventfd(0, libc::EFD_NONBLOCK | libc::EFD_CLOEXEC) })
}

/// signal makes an event readable; negative numbers are none.
pub fn signal(event: c_int) {
    if event < 0 {
        return;
    }
    let before = real::errno();
    let one = 1u64;
    // SAFETY: eight octets, as eventfd(2) requires.
    unsafe { real::write(event, core::ptr::from_ref(&one).cast(), 8) };
    real::set_errno(before);
}

/// drain makes an event unreadable.
pub fn drain(event: c_int) {
    let before = real::errno();
    let mut count = 0u64;
    // SAFETY: eight octets, as eventfd(2) requires.
    unsafe { real::read(event, core::ptr::from_mut(&mut count).cast(), 8) };
    real::set_errno(before);
}
