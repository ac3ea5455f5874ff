// SPDX-License-Identifier: Apache-2.0

//! One session in one instance, and what it has to report.

use super::state::State;
use super::tag::{Place, Tag};
use super::{Epoll, ET, EXCLUSIVE, ONESHOT};
use crate::conn::{peer, Phase, Session, READ_BITS, WRITE_BITS};
use crate::ring::Rings;
use crate::sys::{real, Fd, NO_FD};
use beeline_ring::Recall;
use core::sync::atomic::Ordering;
use libc::{c_int, EPOLLERR, EPOLLHUP, EPOLLIN, EPOLLOUT, EPOLLRDHUP, EPOLLWRNORM};

/// One session in one instance, as the program added it.
pub struct Entry {
    pub fd: c_int,
    pub registration: Registration,
    /// Where it is in the instance, by which the kernel's events are distinguished from those of a former entry there.
    pub at: Place,
    pub session: &'static Session,
    pub events: u32,
    pub data: u64,
    /// The events that the kernel is to report for the socket.
    pub interest: u32,
    pub state: State,
    /// Something happened since the last report: an edge.
    pub edge: bool,
    /// What the kernel reported for the socket since then.
    pub kernel: u32,
    pub has_event: bool,
    /// The peer's index at the last edge.
    pub seen: u64,
    /// How often this end had waited for room when it was reported last.
    pub room_waits: u32,
    /// The socket was registered anew because a direction has moved: with EPOLLET it reports again what it has.
    pub moved: bool,
    /// What was reported last, and whether room was since the program has added or changed the entry.
    pub reported: u32,
    /// The end of what the peer sends was reported since then.
    pub peer_ended: bool,
    /// The wait that reported it last: each reports an entry once.
    pub wait: u64,
    /// Where that wait has stored its events.
    pub place: usize,
    /// A wait has left it to be reported behind what the kernel has.
    pub deferred: bool,
}

/// The descriptor by which the kernel knows an entry.
pub enum Registration {
    /// The program's number.
    Number,
    /// A copy, because the program has closed its own, but not all copies of it.
    Copy(Fd),
    /// None that this process has.
    Lost,
}

impl Entry {
    pub fn new(fd: c_int, session: &'static Session, events: u32, data: u64) -> Self {
        Self {
            fd,
            registration: Registration::Number,
            at: Place { slot: 0, generation: 0 },
            session,
            events,
            data,
            interest: 0,
            state: State::Idle,
            edge: true,
            kernel: 0,
            has_event: false,
            seen: 0,
            room_waits: session.end().room_waits.load(Ordering::Relaxed),
            moved: false,
            reported: 0,
            peer_ended: false,
            wait: 0,
            place: 0,
            deferred: false,
        }
    }

    /// Returns the number by which the kernel knows the entry.
    pub fn registered(&self) -> c_int {
        match &self.registration {
            Registration::Number => self.fd,
            Registration::Copy(copy) => copy.number(),
            Registration::Lost => NO_FD,
        }
    }

    /// Returns whether the program can name the entry by its number.
    pub fn has_number(&self) -> bool {
        matches!(self.registration, Registration::Number)
    }

    /// Returns whether a send has found no room since room was reported last.
    pub fn has_waited(&self) -> bool {
        self.room_waits != self.session.end().room_waits.load(Ordering::Relaxed)
    }

    /// Returns whether no further edge can come: the connection was reset, and the error was reported.
    pub fn is_over(&self) -> bool {
        self.events & ET != 0 && self.reported & EPOLLERR as u32 != 0 && self.is_reset()
    }

    fn is_reset(&self) -> bool {
        self.session.end().reset.load(Ordering::Relaxed) != 0
    }

    /// Returns whether room is no edge: no send has found less since it was reported, or nobody asks for it.
    pub fn knows_room(&self) -> bool {
        (self.events & WRITE_BITS == 0 || self.reported & WRITE_BITS != 0) && !self.has_waited()
    }

    /// Returns the events of the kernel without those that are no edge: known room, and ends that were reported.
    pub fn new_events(&mut self, events: u32) -> u32 {
        let moved = core::mem::take(&mut self.moved);
        if self.is_over() {
            return 0;
        }
        if !moved || !self.knows_room() {
            return events;
        }
        let has_ended = |events: u32| events & (EPOLLHUP | EPOLLERR) as u32 != 0;
        match (has_ended(self.reported), has_ended(events), self.peer_ended) {
            // The end of both directions. A reset is another edge.
            (true, ..) if self.is_reset() => events,
            (true, ..) => 0,
            (false, true, _) => events,
            (false, false, true) => events & !(WRITE_BITS | READ_BITS | EPOLLRDHUP as u32),
            (false, false, false) => events & !WRITE_BITS,
        }
    }

    /// Returns the tag of the socket.
    pub fn socket(&self) -> Tag {
        Tag::Socket(self.at)
    }

    pub fn event(&self) -> Tag {
        Tag::Event(self.at)
    }

    /// Returns the events that the kernel reports. While the ring carries what is sent, the kernel does not
    /// know whether there is room, but whether the peer is gone. A program that asks for nothing gets a reset reported.
    pub fn kernel_events(&self) -> u32 {
        let in_ring = self.session.end().send.phase() == Phase::Ring;
        let asks_nothing = self.events & READ_BITS == 0 && !self.session.suspect.load(Ordering::Relaxed);
        if !in_ring || self.events & WRITE_BITS == 0 && !asks_nothing {
            return self.events;
        }
        let others = self.events & !WRITE_BITS;
        match self.events & (EXCLUSIVE | READ_BITS) {
            // The kernel takes no EPOLLRDHUP beside EPOLLEXCLUSIVE. EPOLLIN is the end of the peer, too, once for a
            // program that does not receive.
            EXCLUSIVE => others | EPOLLIN as u32 | ET,
            both if both & EXCLUSIVE != 0 => others,
            _ => others | EPOLLRDHUP as u32,
        }
    }

    /// Returns whether the kernel has the interest already: many programs ask for EPOLLOUT before each send and
    /// not after it. The end of the peer may be reported although it is not needed, until it comes.
    pub fn has_interest(&self) -> bool {
        let needed = self.kernel_events();
        let plain = (self.interest | needed) & (ET | ONESHOT | EXCLUSIVE) == 0 && !self.state.is_disabled();
        plain && (self.interest == needed || self.interest == needed | EPOLLRDHUP as u32)
    }

    /// Returns what is to be reported now. Without any, the next is noticed: by the next wait if the instance
    /// `looks`, or because the peer wakes this end.
    pub fn take_ready(&mut self, looks: Option<&Epoll>) -> u32 {
        if self.state.is_disabled() {
            return 0;
        }
        let kernel = core::mem::take(&mut self.kernel);
        let ring = match self.events & ET != 0 {
            true => self.ring_edge(looks, kernel != 0),
            false => self.ring_level(looks),
        };
        let events = self.merge(kernel, ring);
        self.peer_ended |= kernel & EPOLLRDHUP as u32 != 0 && events != 0;
        events
    }

    /// Returns what the kernel has to report beside the rings: an entry with EPOLLONESHOT reports once, so it
    /// has to report all.
    pub fn rest_of_oneshot(&self) -> u32 {
        let Some(rings) = self.session.rings().filter(|_| self.events & ONESHOT != 0 && !self.state.is_disabled())
        else {
            return 0;
        };
        let end = self.session.end();
        let knows_all = end.receive.phase() == Phase::Ring && end.send.phase() == Phase::Ring;
        let may_end = rings.header.has_left(rings.peer()) || end.shut.load(Ordering::Relaxed) != 0;
        if knows_all && !may_end {
            return 0;
        }
        let events = real::poll_one(self.registered(), self.kernel_events() as i16) as u32;
        peer::suspect(self.session, self.registered(), events as i16);
        events
    }

    /// Returns whether the kernel has room, which an edge of the ring has to report, too.
    pub fn room_beside_edge(&self) -> u32 {
        let by_kernel = self.events & ET != 0 && self.session.end().send.phase() != Phase::Ring;
        match self.events & WRITE_BITS {
            bits if bits != 0 && by_kernel => real::poll_one(self.registered(), bits as i16) as u32 & bits,
            _ => 0,
        }
    }

    /// Returns whether the octets in the ring have to be reported behind what the kernel has. A second wait reports
    /// them in any case: the kernel may always have something.
    pub fn defer(&mut self) -> bool {
        let is_behind = |rings: Rings| rings.receive().is_behind() && self.session.is_readable(&rings);
        let defers = !self.deferred && self.kernel == 0 && self.session.rings().is_some_and(is_behind);
        self.deferred |= defers;
        defers
    }

    /// Returns whether take_ready would return something.
    pub fn has_something(&mut self) -> bool {
        let edge = self.edge;
        let (kernel, peer_ended) = (self.kernel, self.peer_ended);
        let events = self.take_ready(None);
        (self.kernel, self.edge, self.peer_ended) = (kernel, edge && events != 0, peer_ended);
        events != 0
    }

    /// Returns what the rings have after an edge. The next change is another edge, whether or not the program
    /// takes what there is.
    ///
    /// Octets are an edge, which reports room, too, also if they were taken meanwhile.
    pub fn ring_edge(&mut self, looks: Option<&Epoll>, beside_kernel: bool) -> u32 {
        if !core::mem::take(&mut self.edge) {
            return 0;
        }
        let before = self.seen;
        self.expect(looks);
        let mark = self.session.rings().map_or(0, |rings| rings.receive().mark());
        let ready = self.ring_ready();
        let had_octets = self.events & READ_BITS != 0 && mark != before;
        if ready & READ_BITS != 0 || had_octets {
            self.seen = mark;
        }
        let is_room = ready & READ_BITS == 0 && !had_octets && !beside_kernel;
        match is_room && self.knows_room() {
            true => 0,
            false => ready,
        }
    }

    pub fn ring_level(&mut self, looks: Option<&Epoll>) -> u32 {
        let ready = self.ring_ready();
        if ready != 0 {
            return ready;
        }
        self.expect(looks);
        self.ring_ready()
    }

    /// Makes the next change noticed.
    pub fn expect(&mut self, looks: Option<&Epoll>) {
        let Some(rings) = self.session.rings().filter(|_| self.has_event) else { return };
        let reads = self.events & READ_BITS != 0;
        match looks.filter(|&epoll| reads && self.session.watched_only_by(epoll)) {
            Some(_) => {
                self.seen = rings.receive().mark();
                self.publish_writer_waits(&rings);
                self.state.poll();
            }
            None => self.publish_waits(),
        }
    }

    /// Returns whether an entry of the busy-poll list has something to report.
    pub fn is_ready(&self) -> bool {
        let Some(rings) = self.session.rings().filter(|_| !self.state.is_disabled()) else { return false };
        match self.events & ET != 0 {
            true => rings.receive().mark() != self.seen,
            false => self.session.reports_readable(self.registered(), &rings),
        }
    }

    /// Returns whether a wake-up by the peer may be for this entry: octets, or room if this end waits for it.
    pub fn is_of_event(&self) -> bool {
        let is_new = || self.events & ET == 0 || self.session.rings().is_none_or(|r| r.receive().mark() != self.seen);
        let reads = self.events & READ_BITS != 0 && is_new();
        reads || self.has_waited()
    }

    /// Makes the peer wake this end again after a wake-up for octets that were reported already: they came between
    /// the arming of the flag and the look at the ring. Returns whether there are others by then.
    pub fn asks_again(&self) -> bool {
        if self.state.is_polled() || self.state.is_disabled() {
            return false;
        }
        self.publish_waits();
        self.is_of_event()
    }

    pub fn merge(&self, mut kernel: u32, ring: u32) -> u32 {
        if kernel != 0 && peer::has_error(self.session) {
            kernel |= EPOLLERR as u32;
        }
        (kernel | ring) & (self.events | (EPOLLERR | EPOLLHUP) as u32)
    }

    pub fn ring_ready(&self) -> u32 {
        let Some(rings) = self.session.rings().filter(|_| self.has_event) else { return 0 };
        let mut events = 0;
        // Octets in the ring behind those that the kernel still has are an edge of these.
        let is_behind = || self.events & ET != 0 && self.session.has_behind_kernel(&rings);
        if self.events & READ_BITS != 0 && (self.session.reports_readable(self.registered(), &rings) || is_behind()) {
            events |= READ_BITS;
        }
        if self.events & WRITE_BITS != 0 && self.session.is_writable(&rings) {
            events |= (EPOLLOUT | EPOLLWRNORM) as u32;
        }
        events & self.events
    }

    /// Returns whether the peer wants octets of the ring by the kernel's connection.
    pub fn is_recalled(&self) -> bool {
        self.session.rings().and_then(|rings| rings.own_recall()).is_some_and(Recall::is_asked)
    }

    /// Makes the peer write this end's event at the next change that the program asked for.
    pub fn publish_waits(&self) {
        let Some(rings) = self.session.rings().filter(|_| self.has_event) else { return };
        if self.events & READ_BITS != 0 {
            rings.receive().consumer_waits();
        }
        self.publish_writer_waits(&rings);
    }

    /// Has the peer write this end's event when a full ring has room. As on the kernel, one that was never full reports
    /// no edge.
    pub fn publish_writer_waits(&self, rings: &Rings) {
        let in_ring = self.session.end().send.phase() == Phase::Ring;
        if self.events & WRITE_BITS != 0 && in_ring && !self.session.is_writable(rings) {
            self.session.await_room(rings);
        }
    }
}
