// SPDX-License-Identifier: Apache-2.0

//! What this library knows of each descriptor: a session or an epoll instance.
//!
//! Numbers are the kernel's. Reading an entry takes no lock: sessions are never freed, only used again, and a
//! reader holds one by its counter before it checks that the entry is still the same.

use crate::conn::{Held, Session};
use crate::ready::{Epoll, Lookup};
use alloc::boxed::Box;
use core::net::SocketAddr;
use core::ptr::null_mut;
use core::sync::atomic::{AtomicPtr, Ordering};
use libc::c_int;

const CHUNK: usize = 1024;
const CHUNKS: usize = 1024;

/// What is stored here is complete: each store releases it, and each load acquires it. A reader of a session holds it
/// and loads again. It finds the same if its hold came before the entry's release of it, and otherwise sees the swap:
/// both change the count of holders by AcqRel.
struct Entry {
    session: AtomicPtr<Session>,
    epoll: AtomicPtr<Epoll>,
    /// What a socket that listens is bound to.
    listener: AtomicPtr<Listener>,
}

/// The address that all connections of a socket have; None if each has its own.
type Listener = Option<SocketAddr>;

/// A chunk is published by an exchange, which loads acquire.
static TABLE: [AtomicPtr<[Entry; CHUNK]>; CHUNKS] = [const { AtomicPtr::new(null_mut()) }; CHUNKS];

/// Returns the entry of a descriptor, if one of its neighbours was ever used.
fn known(fd: c_int) -> Option<&'static Entry> {
    super::fork::notice();
    let fd = usize::try_from(fd).ok()?;
    let chunk = TABLE.get(fd / CHUNK)?.load(Ordering::Acquire);
    // SAFETY: a chunk is published complete and never freed.
    unsafe { chunk.as_ref() }.and_then(|chunk| chunk.get(fd % CHUNK))
}

/// Makes the entry of a descriptor; None beyond the first million.
fn entry(fd: c_int) -> Option<&'static Entry> {
    if let Some(found) = known(fd) {
        return Some(found);
    }
    let place = TABLE.get(usize::try_from(fd).ok()? / CHUNK)?;
    let empty = || Entry {
        session: AtomicPtr::new(null_mut()),
        epoll: AtomicPtr::new(null_mut()),
        listener: AtomicPtr::new(null_mut()),
    };
    let chunk = Box::into_raw(Box::new(core::array::from_fn(|_| empty())));
    if place.compare_exchange(null_mut(), chunk, Ordering::AcqRel, Ordering::Acquire).is_err() {
        // SAFETY: another thread was faster, so no one else has seen this chunk.
        drop(unsafe { Box::from_raw(chunk) });
    }
    known(fd)
}

/// The only table, for floors that do not know it.
pub struct Table;

impl Lookup for Table {
    fn session(&self, fd: c_int) -> Option<Held> {
        session(fd)
    }

    fn epoll(&self, fd: c_int) -> Option<&'static Epoll> {
        epoll(fd)
    }
}

/// Returns the session of a descriptor.
pub fn session(fd: c_int) -> Option<Held> {
    let entry = known(fd)?;
    loop {
        let found = entry.session.load(Ordering::Acquire);
        // SAFETY: sessions are never freed.
        let session = unsafe { found.as_ref() }?;
        session.hold();
        if entry.session.load(Ordering::Acquire) == found {
            return Some(Held(session));
        }
        session.release();
    }
}

/// Enters a session, which the entry then holds. False if the number is too high.
pub fn set_session(fd: c_int, session: &'static Session) -> bool {
    let Some(entry) = entry(fd) else { return false };
    session.hold();
    let before = entry.session.swap(core::ptr::from_ref(session).cast_mut(), Ordering::AcqRel);
    // SAFETY: sessions are never freed.
    if let Some(before) = unsafe { before.as_ref() } {
        before.release();
    }
    true
}

/// Removes the session of a descriptor. The caller gets what the entry held.
pub fn take_session(fd: c_int) -> Option<Held> {
    let found = known(fd)?.session.swap(null_mut(), Ordering::AcqRel);
    // SAFETY: sessions are never freed.
    unsafe { found.as_ref() }.map(Held)
}

pub fn epoll(fd: c_int) -> Option<&'static Epoll> {
    // SAFETY: epoll instances are never freed.
    unsafe { known(fd)?.epoll.load(Ordering::Acquire).as_ref() }
}

/// Returns the record of an epoll instance, made at its first use with a session.
pub fn epoll_or_new(fd: c_int) -> Option<&'static Epoll> {
    let place = &entry(fd)?.epoll;
    // SAFETY: epoll instances are never freed.
    if let Some(found) = unsafe { place.load(Ordering::Acquire).as_ref() } {
        return Some(found);
    }
    let made = Epoll::make(fd);
    match place.compare_exchange(null_mut(), core::ptr::from_ref(made).cast_mut(), Ordering::AcqRel, Ordering::Acquire)
    {
        Ok(_) => Some(made),
        Err(other) => {
            made.drop_descriptor(fd, || None);
            // SAFETY: as above.
            unsafe { other.as_ref() }
        }
    }
}

/// Keeps an instance while a call waits for it.
pub struct HeldEpoll(&'static Epoll);

impl core::ops::Deref for HeldEpoll {
    type Target = Epoll;
    fn deref(&self) -> &Epoll {
        self.0
    }
}

impl Drop for HeldEpoll {
    fn drop(&mut self) {
        self.0.release();
    }
}

/// Like `epoll`, for a call that waits.
pub fn held_epoll(fd: c_int) -> Option<HeldEpoll> {
    loop {
        let found = epoll(fd)?;
        found.hold();
        let held = HeldEpoll(found);
        if epoll(fd).is_some_and(|now| core::ptr::eq(now, found)) {
            return Some(held);
        }
    }
}

pub fn set_epoll(fd: c_int, epoll: &'static Epoll) {
    if let Some(entry) = entry(fd) {
        entry.epoll.store(core::ptr::from_ref(epoll).cast_mut(), Ordering::Release);
    }
}

pub fn take_epoll(fd: c_int) -> Option<&'static Epoll> {
    let found = known(fd)?.epoll.swap(null_mut(), Ordering::AcqRel);
    // SAFETY: epoll instances are never freed.
    unsafe { found.as_ref() }
}

/// Returns a number of an epoll instance.
pub fn descriptor_of(epoll: &Epoll) -> Option<c_int> {
    descriptors().find(|&fd| self::epoll(fd).is_some_and(|known| core::ptr::eq(known, epoll)))
}

/// Returns what `ask` has found of a socket that listens, since forget_listener.
pub fn listener(fd: c_int, ask: impl FnOnce() -> Listener) -> Listener {
    let place = &entry(fd)?.listener;
    // SAFETY: what is stored is never freed. A process has few of them.
    if let Some(known) = unsafe { place.load(Ordering::Acquire).as_ref() } {
        return *known;
    }
    let found = ask();
    place.store(Box::leak(Box::new(found)), Ordering::Release);
    found
}

/// Forgets what is known of a number that is another file from now on.
pub fn forget_listener(fd: c_int) {
    if let Some(entry) = known(fd).filter(|entry| !entry.listener.load(Ordering::Relaxed).is_null()) {
        entry.listener.store(null_mut(), Ordering::Relaxed);
    }
}

/// Makes `descriptors` include a number.
pub fn note(fd: c_int) {
    entry(fd);
}

/// Returns the numbers whose chunk was ever used.
pub fn descriptors() -> impl Iterator<Item = c_int> {
    let used = TABLE.iter().enumerate().filter(|(_, chunk)| !chunk.load(Ordering::Acquire).is_null());
    used.flat_map(|(i, _)| (i * CHUNK) as c_int..((i + 1) * CHUNK) as c_int)
}
