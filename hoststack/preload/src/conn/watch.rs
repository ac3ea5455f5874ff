// SPDX-License-Identifier: Apache-2.0

//! The epoll instances that a session is in, as the session knows them.

use crate::conn::Session;
use libc::{c_int, EPOLLIN, EPOLLOUT, EPOLLRDNORM, EPOLLWRBAND, EPOLLWRNORM};

pub const READ_BITS: u32 = (EPOLLIN | EPOLLRDNORM) as u32;
pub const WRITE_BITS: u32 = (EPOLLOUT | EPOLLWRNORM | EPOLLWRBAND) as u32;

/// An instance, and the place of the session's entry in it.
pub type Watch = (&'static dyn Watcher, usize);

/// An epoll instance, which is notified of what happens to a session that it has.
pub trait Watcher: Sync {
    /// Adds the event of a session that has got rings.
    fn attach(&self, slot: usize, session: &Session);

    /// Changes what the kernel is to report after a direction has moved between the ring and the kernel's connection:
    /// for programs that wait for `bits`. What it has already may be another edge. If it is none by itself, room is one
    /// only if a send has found less.
    fn moved(&self, slot: usize, session: &Session, bits: u32, is_edge: bool);

    /// Notes the end of the descriptor by which an entry was added, while the session has others. Such an entry still
    /// reports, and the program cannot change it any more. The kernel has to know it by a number that stays.
    fn orphan(&self, slot: usize, session: &Session, fd: c_int);

    /// Like `orphan`, for a number that is another file now: the kernel goes on to report the one that was added, which
    /// no call can change any more.
    fn lost(&self, slot: usize, session: &Session, fd: c_int);

    /// Forgets a session whose last descriptor of this process is closed. The kernel forgets its socket only if
    /// no other process has it.
    fn closed(&self, slot: usize, session: &Session, open_elsewhere: bool);
}

/// Like `resync`, for a session that has left its rings in both directions at once.
pub fn resync_all(session: &'static Session) {
    resync(session, READ_BITS | WRITE_BITS);
}

pub fn resync(session: &'static Session, bits: u32) {
    each_watch(session, |watcher, slot| watcher.moved(slot, session, bits, true));
}

/// Makes epoll instances look whether a session is readable: as on the kernel that is another edge.
pub fn look_again(session: &'static Session) {
    if session.is_attached() {
        each_watch(session, |watcher, slot| watcher.attach(slot, session));
    }
}

pub fn each_watch(session: &Session, f: impl Fn(&dyn Watcher, usize)) {
    let watches = session.watches.lock().clone();
    watches.into_iter().for_each(|(watcher, slot)| f(watcher, slot));
}
