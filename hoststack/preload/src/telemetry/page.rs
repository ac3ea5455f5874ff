// SPDX-License-Identifier: Apache-2.0

//! What the agent reads of a program, and the switch that it writes: memory that it finds by the name of the mapping in
//! `/proc/PID/maps`. docs/develop/hoststack.md has the layout.
//!
//! A program has it from its first session on, and its children share it. The library never waits for the agent, and
//! works without it.

use crate::sys::{lock, Mmap};
use crate::telemetry::Counters;
use beeline_ring::Role;
use core::mem::size_of;
use core::ptr::null_mut;
use core::sync::atomic::{AtomicPtr, AtomicU16, AtomicU32, AtomicU64, AtomicU8, Ordering};

const MAGIC: u32 = 0x6265_7067;
const VERSION: u32 = 1;

/// The place of the head; entries follow.
const HEAD_BYTES: usize = 4096;
const ENTRIES: usize = 4096;
const BYTES: usize = HEAD_BYTES + ENTRIES * size_of::<Entry>();

#[repr(C, align(64))]
struct Head {
    magic: u32,
    version: u32,
    bytes: u32,
    entry_bytes: u32,
    entries: u32,
    /// 1: no connection goes on rings, and those that are on rings leave them. The only word that the agent writes.
    switch: AtomicU32,
    counters: Counters,
}

/// A connection on rings. Addresses of IPv4 are mapped to IPv6; ports are in the host's byte order.
#[repr(C, align(64))]
struct Entry {
    /// The process that attached the rings, as it sees its own number; 0 for none. Written last: its release pairs with
    /// the agent's load, and a new owner's exchange with the release of the former one.
    process: AtomicU32,
    role: AtomicU8,
    /// Phases of both directions, as `conn/end.rs` numbers them.
    sends: AtomicU8,
    receives: AtomicU8,
    reserved: AtomicU8,
    server_port: AtomicU16,
    client_port: AtomicU16,
    reserved_too: AtomicU32,
    server: [AtomicU64; 2],
    client: [AtomicU64; 2],
}

const _: () = assert!(size_of::<Head>() <= HEAD_BYTES && size_of::<Entry>() == 64);

/// An address and a port.
pub type End = ([u8; 16], u16);

impl Head {
    const fn new() -> Self {
        Self {
            magic: MAGIC,
            version: VERSION,
            bytes: BYTES as u32,
            entry_bytes: size_of::<Entry>() as u32,
            entries: ENTRIES as u32,
            switch: AtomicU32::new(0),
            counters: Counters::new(),
        }
    }
}

/// What counts before there is a page, and where none can be had.
static OWN: Head = Head::new();
/// Loads acquire what Mmap::publish has released: the head is complete.
static PAGE: AtomicPtr<Head> = AtomicPtr::new(null_mut());

fn head() -> &'static Head {
    // SAFETY: a page is published complete and never unmapped.
    unsafe { PAGE.load(Ordering::Acquire).as_ref() }.unwrap_or(&OWN)
}

pub fn counters() -> &'static Counters {
    &head().counters
}

/// Returns whether the agent wants everything on the kernel.
pub fn is_off() -> bool {
    head().switch.load(Ordering::Relaxed) == 1
}

/// Makes the program have a page. Another thread may make one at the same time.
pub fn make() {
    if !PAGE.load(Ordering::Acquire).is_null() {
        return;
    }
    // The descriptor is closed: the agent opens the mapping.
    let Some((_, made)) = Mmap::sealed(c"beeline-hoststack", BYTES) else { return };
    // SAFETY: the mapping is large enough, aligned, and no one else has it yet.
    unsafe { made.as_ptr().cast::<Head>().write(Head::new()) };
    made.publish(&PAGE);
}

/// Returns the entry of a number that list returned.
fn entry(number: u32) -> Option<&'static Entry> {
    let page = PAGE.load(Ordering::Acquire);
    let index = (number as usize).checked_sub(1).filter(|&i| i < ENTRIES && !page.is_null())?;
    // SAFETY: the page has ENTRIES entries behind the head, and zeroed memory is a valid one.
    Some(unsafe { &*page.cast::<u8>().add(HEAD_BYTES).cast::<Entry>().add(index) })
}

/// Enters a connection whose rings are attached. `keep` gets its number, and notes the phases. Without room it is
/// only counted.
pub fn list(role: Role, server: End, client: End, keep: impl FnOnce(u32)) {
    let Some((number, entry)) = take() else {
        counters().unlisted.add(1);
        return;
    };
    entry.role.store(role as u8, Ordering::Relaxed);
    for (to, (address, _)) in [(&entry.server, server), (&entry.client, client)] {
        for (word, octets) in to.iter().zip(address.chunks_exact(8)) {
            word.store(u64::from_ne_bytes(octets.try_into().unwrap_or_default()), Ordering::Relaxed);
        }
    }
    entry.server_port.store(server.1, Ordering::Relaxed);
    entry.client_port.store(client.1, Ordering::Relaxed);
    keep(number);
    entry.process.store(lock::process(), Ordering::Release);
}

/// Of an entry that is being written.
const RESERVED: u32 = u32::MAX;

/// Where the next look for a free entry begins, and among how many: as many as are needed, so that few are used, and so
/// many that a look is short.
static NEXT: AtomicU32 = AtomicU32::new(0);
static AMONG: AtomicU32 = AtomicU32::new(64);

/// Entries of ended processes are looked for among so many: each is a system call.
const ENDED_LOOKS: u32 = 64;

/// Reserves an entry that is free, or else one whose process has ended.
fn take() -> Option<(u32, &'static Entry)> {
    let get = |entry: &Entry, of: u32| {
        entry.process.compare_exchange(of, RESERVED, Ordering::AcqRel, Ordering::Relaxed).is_ok()
    };
    let is_free = |entry: &Entry| entry.process.load(Ordering::Relaxed) == 0 && get(entry, 0);
    let has_ended = |entry: &Entry| {
        let process = entry.process.load(Ordering::Relaxed);
        process != RESERVED && lock::has_ended(process) && get(entry, process)
    };
    loop {
        let among = AMONG.load(Ordering::Relaxed);
        if let Some(taken) = look(among, among, is_free) {
            return Some(taken);
        }
        if among == ENTRIES as u32 {
            return look(among, ENDED_LOOKS, has_ended);
        }
        NEXT.store(among, Ordering::Relaxed);
        AMONG.store(among * 2, Ordering::Relaxed);
    }
}

/// Finds one of the next entries that `takes` does. A look that is long has the next one be among more.
fn look(among: u32, most: u32, takes: impl Fn(&Entry) -> bool) -> Option<(u32, &'static Entry)> {
    let first = NEXT.load(Ordering::Relaxed);
    let all = (0..most).map_while(|i| entry((first + i) % among + 1).map(|entry| (i, entry)));
    let found = all.into_iter().find(|(_, entry)| takes(entry)).map(|(i, entry)| (i, (first + i) % among + 1, entry));
    let looks = found.map_or(most, |(i, ..)| i + 1);
    NEXT.store((first + looks) % among, Ordering::Relaxed);
    if looks > among / 2 && among < ENTRIES as u32 {
        NEXT.store(among, Ordering::Relaxed);
        AMONG.store(among * 2, Ordering::Relaxed);
    }
    found.map(|(_, number, entry)| (number, entry))
}

/// Stores the phases of both directions of a connection.
pub fn note(number: u32, sends: u8, receives: u8) {
    if let Some(entry) = entry(number) {
        entry.sends.store(sends, Ordering::Relaxed);
        entry.receives.store(receives, Ordering::Relaxed);
    }
}

/// Frees the entry of a connection that has ended.
pub fn unlist(number: u32) {
    if let Some(entry) = entry(number) {
        entry.process.store(0, Ordering::Release);
    }
}
