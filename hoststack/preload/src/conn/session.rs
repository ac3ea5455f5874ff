// SPDX-License-Identifier: Apache-2.0

//! A TCP connection of this process that may use rings: made at accept or connect, attached when both ends agree.

use crate::conn::earn::Merits;
use crate::conn::watch::{self, Watch};
use crate::conn::{config, order, End, Phase, Watcher};
use crate::ring::{Memory, Rings};
use crate::sys::{waiter, EventFd, Fd, FdCell, Lock, Mmap};
use crate::telemetry::{page, Refusal};
use alloc::boxed::Box;
use alloc::vec::Vec;
use beeline_ring::{Header, Layout, Role, HEADER_BYTES};
use core::net::SocketAddr;
use core::ops::Deref;
use core::ptr::null_mut;
use core::sync::atomic::{AtomicBool, AtomicPtr, AtomicU64, AtomicUsize, Ordering};
use libc::c_int;

/// What does not change while a session lives.
#[derive(Clone, Copy)]
pub struct Identity {
    pub role: Role,
    pub end: &'static End,
    /// Server and client, as the acceptor sees them. A connector learns them from the offer.
    pub ends: Option<(SocketAddr, SocketAddr)>,
}

pub struct Session {
    /// Descriptors of this process, and calls that use the session now. AcqRel: what all of them did comes before
    /// dispose().
    holders: AtomicUsize,
    /// Descriptors of this process alone. AcqRel: the one that is closed last sees what the others did.
    pub descriptors: AtomicUsize,
    /// Its release pairs with the exchange of the last holder: what make() has stored is seen by dispose().
    live: AtomicBool,
    identity: Lock<Option<Identity>>,
    /// Of the identity, without its lock.
    end: AtomicPtr<End>,
    pub generation: AtomicU64,
    accepted: AtomicBool,
    /// This process dropped the last descriptor of all processes.
    pub was_last: AtomicBool,

    /// Rings: the shared memory, once this end is attached.
    /// SeqCst: see End::pinned and `early_event`. The acquire of rings() pairs with the store: the length is there.
    memory: AtomicPtr<u8>,
    length: AtomicUsize,
    /// The kernel's number of the socket, by which a descriptor that is another file now is known.
    pub cookie: AtomicU64,
    /// Wakes this end; and the peer.
    pub own_event: EventFd,
    peer_event: EventFd,

    /// Before rings: the connector's socket for an offer, and an event for threads that wait meanwhile.
    pub offer_socket: FdCell,
    /// A connection to the offer socket whose message has not come yet.
    pub offer_connection: FdCell,
    early_event: EventFd,
    /// A thread looks for rings, or attaches them. SeqCst: see End::pinned. The release of its end pairs with the next
    /// swap.
    pub upgrading: AtomicBool,
    pub merits: Merits,
    /// The socket is in an epoll instance, but not connected yet: whether it may use rings is not known.
    pub anticipated: AtomicBool,
    /// connect(2) has begun, and has not yet said that the connection is there.
    pub connecting: AtomicBool,

    /// The kernel's connection may have ended: ask it before the next octets go into the ring.
    pub suspect: AtomicBool,
    pub watches: Lock<Vec<Watch>>,
    /// The only epoll instance that may leave the wakeup flag of the ring unarmed while it is awake.
    /// AcqRel: the next one sees what the former has done to the flag.
    pub watcher: AtomicPtr<()>,
}

/// Sessions that are not in use. They are never freed, so that a reader of the table can hold one safely.
static POOL: Lock<Vec<&'static Session>> = Lock::new(Vec::new());

/// Attached sessions of this process.
static ATTACHED: AtomicUsize = AtomicUsize::new(0);

impl Session {
    /// Takes a session from the pool. Whoever gets it holds it.
    pub fn make(identity: Identity, cookie: u64) -> &'static Session {
        let session = POOL.lock().pop().unwrap_or_else(|| Box::leak(Box::new(Self::empty())));
        session.hold();
        session.merits.begin();
        session.was_last.store(false, Ordering::Relaxed);
        session.suspect.store(false, Ordering::Relaxed);
        session.upgrading.store(false, Ordering::Relaxed);
        session.anticipated.store(false, Ordering::Relaxed);
        session.end.store(core::ptr::from_ref(identity.end).cast_mut(), Ordering::Relaxed);
        session.connecting.store(false, Ordering::Relaxed);
        session.cookie.store(cookie, Ordering::Relaxed);
        session.generation.store(identity.end.generation.load(Ordering::Acquire), Ordering::Relaxed);
        session.identify(identity);
        session.live.store(true, Ordering::Release);
        session
    }

    fn empty() -> Self {
        Self {
            holders: AtomicUsize::new(0),
            descriptors: AtomicUsize::new(0),
            live: AtomicBool::new(false),
            identity: Lock::new(None),
            end: AtomicPtr::new(null_mut()),
            generation: AtomicU64::new(0),
            accepted: AtomicBool::new(false),
            was_last: AtomicBool::new(false),
            memory: AtomicPtr::new(null_mut()),
            length: AtomicUsize::new(0),
            cookie: AtomicU64::new(0),
            own_event: EventFd::empty(),
            peer_event: EventFd::empty(),
            offer_socket: FdCell::empty(),
            offer_connection: FdCell::empty(),
            early_event: EventFd::empty(),
            upgrading: AtomicBool::new(false),
            merits: Merits::new(),
            anticipated: AtomicBool::new(false),
            connecting: AtomicBool::new(false),
            suspect: AtomicBool::new(false),
            watches: Lock::new(Vec::new()),
            watcher: AtomicPtr::new(null_mut()),
        }
    }

    pub fn hold(&self) {
        self.holders.fetch_add(1, Ordering::AcqRel);
    }

    /// Drops what hold took. The last one returns everything that the session has.
    pub fn release(&'static self) {
        if self.holders.fetch_sub(1, Ordering::AcqRel) == 1 && self.live.swap(false, Ordering::AcqRel) {
            self.dispose();
        }
    }

    fn dispose(&'static self) {
        let memory = self.memory.swap(null_mut(), Ordering::AcqRel);
        if !memory.is_null() {
            ATTACHED.fetch_sub(1, Ordering::Relaxed);
            // SAFETY: attach has stored both, and nobody holds the session.
            drop(unsafe { Mmap::from_raw(memory, self.length.load(Ordering::Relaxed)) });
        }
        let own: [&FdCell; 5] =
            [&self.own_event, &self.peer_event, &self.offer_socket, &self.offer_connection, &self.early_event];
        own.into_iter().for_each(|place| place.put(None));
        order::answered(self);
        self.watches.lock().clear();
        self.watcher.store(null_mut(), Ordering::Relaxed);
        if self.was_last.load(Ordering::Relaxed) {
            self.end().free();
        }
        POOL.lock().push(self);
    }

    /// Returns the identity of a session that someone holds.
    pub fn identity(&self) -> Identity {
        let known = *self.identity.lock();
        known.expect("a session that is held has an identity")
    }

    /// Stores which end of which connection this is.
    pub fn identify(&self, identity: Identity) {
        self.accepted.store(identity.role == Role::Acceptor, Ordering::Relaxed);
        *self.identity.lock() = Some(identity);
    }

    pub fn end(&self) -> &'static End {
        // SAFETY: make stores the end before anybody has the session, and ends are never unmapped.
        unsafe { &*self.end.load(Ordering::Relaxed) }
    }

    pub fn role(&self) -> Role {
        match self.accepted.load(Ordering::Relaxed) {
            true => Role::Acceptor,
            false => Role::Connector,
        }
    }

    /// Returns the rings of the session, if it is attached.
    pub fn rings(&self) -> Option<Rings> {
        let memory = self.memory.load(Ordering::Acquire);
        if memory.is_null() {
            return None;
        }
        // SAFETY: the mapping begins with a header and stays while the session is held.
        let header = unsafe { &*memory.cast::<Header>() };
        let capacity = (self.length.load(Ordering::Relaxed) - HEADER_BYTES) as u64 / 2;
        Some(Rings { header, memory, capacity, role: self.role() })
    }

    /// Returns whether calls without flags wait, as far as is known.
    pub fn blocks(&self) -> bool {
        self.end().nonblocking.load(Ordering::Relaxed) == 0
    }

    pub fn is_attached(&self) -> bool {
        !self.memory.load(Ordering::SeqCst).is_null()
    }

    /// Gives the session its rings and events. Threads that wait on the kernel's connection alone are woken.
    pub fn attach(&'static self, fd: c_int, memory: Memory, own_event: Option<Fd>, peer_event: Option<Fd>) {
        self.learn_low_mark(fd);
        self.own_event.put(own_event);
        self.peer_event.put(peer_event);
        self.length.store(Layout::bytes(memory.layout.capacity), Ordering::Relaxed);
        self.memory.store(memory.into_raw(), Ordering::SeqCst);
        page::counters().attached.add(1);
        if let Some(rings) = self.rings().filter(|_| self.end().send.phase() == Phase::After) {
            // It has shut down sending before.
            rings.header.leave(rings.role);
        }
        watch::each_watch(self, |watcher, slot| watcher.attach(slot, self));
        self.early_event.signal();
        if self.end().pinned.load(Ordering::SeqCst) != 0 {
            // A thread has begun to wait for the kernel's connection alone.
            self.close_rings();
        }
        if self.blocks() {
            // The program may forbid itself further descriptors before it waits.
            waiter::prepare();
        }
    }

    /// Returns whether a watcher is, or becomes, the only one.
    pub fn watched_only_by(&self, watcher: &dyn Watcher) -> bool {
        let this = core::ptr::from_ref(watcher).cast_mut().cast();
        let claimed = self.watcher.compare_exchange(null_mut(), this, Ordering::AcqRel, Ordering::Acquire);
        claimed.is_ok() || claimed == Err(this)
    }

    pub fn is_not_watched_by(&self, watcher: &dyn Watcher) {
        let this = core::ptr::from_ref(watcher).cast_mut().cast();
        let _ = self.watcher.compare_exchange(this, null_mut(), Ordering::AcqRel, Ordering::Relaxed);
    }

    /// Leaves what follows in both directions to the kernel.
    pub fn close_rings(&self) {
        if let Some(rings) = self.rings() {
            rings.send().close();
            rings.receive().close();
        }
    }

    /// Like `close_rings`, for a connection that goes on: whoever sleeps on either end learns of it.
    pub fn leave_rings(&self) {
        let Some(rings) = self.rings() else { return };
        if rings.send().is_closed() && rings.receive().is_closed() {
            return;
        }
        page::counters().returned.add(1);
        self.close_rings();
        self.wake();
        self.wake_peer();
    }

    /// Leaves a connection to the kernel because an event for it cannot be had: no descriptor, no memory, or no
    /// watch is left. Without it a thread of this end would sleep for ever.
    pub fn fall_back(&self) {
        if self.end().pinned.swap(1, Ordering::SeqCst) == 0 {
            page::counters().refuse(Refusal::Memory);
        }
        self.leave_rings();
    }

    /// Ends the wait for an offer.
    pub fn close_offer_socket(&self) {
        self.offer_socket.put(None);
        self.offer_connection.put(None);
    }

    /// Returns what becomes readable when an offer comes; None if none is expected.
    pub fn offer_event(&self) -> Option<c_int> {
        self.offer_connection.number().or_else(|| self.offer_socket.number())
    }

    /// Counts one more attached session of this process; false if it has as many as it may.
    pub fn reserve() -> bool {
        let most = config::get().sessions;
        ATTACHED.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |n| (n < most).then_some(n + 1)).is_ok()
    }

    pub fn unreserve() {
        ATTACHED.fetch_sub(1, Ordering::Relaxed);
    }

    /// Returns what a thread polls beside the socket: readable when something has changed. None if there is no room.
    pub fn event(&self) -> Option<c_int> {
        if self.is_attached() {
            return self.own_event.number();
        }
        let make = || EventFd::make().map(|made| self.early_event.put_first(made));
        self.early_event.number().or_else(make)
    }

    /// Makes this end's own waiters look again.
    pub fn wake(&self) {
        self.own_event.signal();
    }

    pub fn wake_peer(&self) {
        self.peer_event.signal();
    }
}

/// Keeps a session while a call uses it.
pub struct Held(pub &'static Session);

impl Deref for Held {
    type Target = Session;
    fn deref(&self) -> &Session {
        self.0
    }
}

impl Held {
    /// Returns the session itself: sessions are never freed.
    pub fn forever(&self) -> &'static Session {
        self.0
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        self.0.release();
    }
}
