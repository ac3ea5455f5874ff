// SPDX-License-Identifier: Apache-2.0

//! What becomes of an entry when its session changes.

use super::entry::{Entry, Registration};
use super::tag::Tag;
use super::{Epoll, ET};
use crate::conn::{Session, Watcher, READ_BITS, WRITE_BITS};
use crate::sys::real;
use libc::{c_int, EPOLL_CTL_DEL};

impl Watcher for Epoll {
    fn attach(&self, slot: usize, session: &Session) {
        let mut inner = self.inner.lock();
        if inner.entry_of(slot, session).is_some() {
            self.add_event(&mut inner, slot);
        }
    }

    fn moved(&self, slot: usize, session: &Session, bits: u32, is_edge: bool) {
        let mut inner = self.inner.lock();
        // While the ring carries what is sent, the end of the peer is awaited without being asked for.
        let has_other_end =
            |e: &Entry| bits & WRITE_BITS != 0 && e.events & READ_BITS == 0 && e.interest != e.kernel_events();
        let known = inner.entry_of(slot, session).filter(|e| e.events & bits != 0 || has_other_end(e));
        let Some(entry) = known.filter(|entry| !entry.is_over()) else { return };
        if !entry.state.is_disabled() {
            let _ = self.reregister(entry);
        }
        if !is_edge && entry.events & ET != 0 && entry.knows_room() {
            let state = real::poll_one(entry.registered(), entry.interest as i16 | libc::POLLRDHUP);
            // An end of the peer that was not reported is an edge, which reports room, too.
            entry.moved = state != 0 && (entry.peer_ended || state & libc::POLLRDHUP == 0);
            return;
        }
        self.refresh(&mut inner, slot);
    }

    fn orphan(&self, slot: usize, session: &Session, fd: c_int) {
        let mut inner = self.inner.lock();
        let known = inner.entry_of(slot, session).filter(|entry| entry.fd == fd && entry.has_number());
        let Some(entry) = known else { return };
        entry.registration = Registration::Lost;
        if self.is_own() {
            self.rename(entry, fd);
        }
        inner.by_fd.remove(&fd);
    }

    fn lost(&self, slot: usize, session: &Session, fd: c_int) {
        let mut inner = self.inner.lock();
        let known = inner.entry_of(slot, session).filter(|entry| entry.fd == fd && entry.has_number());
        if let Some(entry) = known {
            entry.registration = Registration::Lost;
            inner.by_fd.remove(&fd);
        }
    }

    fn closed(&self, slot: usize, session: &Session, open_elsewhere: bool) {
        let mut inner = self.inner.lock();
        let Some(entry) = inner.entry_of(slot, session) else { return };
        if open_elsewhere && self.is_own() {
            let _ = self.kernel(EPOLL_CTL_DEL, entry.registered(), 0, &Tag::Wakeup);
        }
        self.forget(&mut inner, slot, self.is_own());
    }
}
