// SPDX-License-Identifier: Apache-2.0

//! Clients that have not answered: an acceptor that has asked some of their connections in vain stops asking the
//! others.
//!
//! The kernel does not report which process has a socket. It reports its user and control group, which is a container's
//! or a service's. So some connections are asked all the same, and one that answers has all be asked again. The memory
//! is shared with children, because a server may have one for each connection.

use crate::conn::config;
use crate::sys::{clock, Mmap};
use core::ptr::null_mut;
use core::sync::atomic::{AtomicPtr, AtomicU32, AtomicU64, Ordering::Relaxed};

/// So many connections in a row have not answered before others are left out.
const FAILURES: u32 = 3;

/// One of so many is asked all the same.
const EACH: u32 = 8;

/// Milliseconds after which the last failure is forgotten.
const FORGOTTEN: u64 = 60_000;

const CLIENTS: usize = 64;

#[repr(C)]
struct Client {
    key: AtomicU64,
    failed_at: AtomicU64,
    failures: AtomicU32,
    left_out: AtomicU32,
}

static MEMORY: AtomicPtr<Client> = AtomicPtr::new(null_mut());

/// Makes this process, and its children, have the memory.
pub fn make() {
    if !MEMORY.load(Relaxed).is_null() {
        return;
    }
    // Zeroed memory is valid.
    if let Ok(made) = Mmap::shared(CLIENTS * size_of::<Client>()) {
        made.publish(&MEMORY);
    }
}

fn client(key: u64) -> Option<&'static Client> {
    // SAFETY: the mapping has CLIENTS places and is never unmapped.
    unsafe { MEMORY.load(Relaxed).as_ref().map(|first| &*core::ptr::from_ref(first).add(key as usize % CLIENTS)) }
}

/// Returns whether a client has not answered up to now.
pub fn is_unresponsive(key: u64) -> bool {
    let Some(client) = client(key).filter(|client| client.key.load(Relaxed) == key) else { return false };
    config::get().after.is_none()
        && client.failures.load(Relaxed) >= FAILURES
        && clock::ticks().saturating_sub(client.failed_at.load(Relaxed)) <= FORGOTTEN
}

/// Returns whether a connection of a client is asked: all of them, or some if it is unresponsive.
pub fn is_worth(key: u64) -> bool {
    let is_one_of_some = |client: &Client| client.left_out.fetch_add(1, Relaxed) % EACH == EACH - 1;
    !is_unresponsive(key) || client(key).is_none_or(is_one_of_some)
}

/// Notes a connection that has not answered.
pub fn failed(key: u64) {
    let Some(client) = client(key) else { return };
    if client.key.swap(key, Relaxed) != key {
        client.failures.store(0, Relaxed);
        client.left_out.store(0, Relaxed);
    }
    client.failures.fetch_add(1, Relaxed);
    client.failed_at.store(clock::ticks(), Relaxed);
}

/// Notes one that has.
pub fn answered(key: u64) {
    if let Some(client) = client(key).filter(|client| client.key.load(Relaxed) == key) {
        client.failures.store(0, Relaxed);
    }
}
