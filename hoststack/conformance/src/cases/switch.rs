// SPDX-License-Identifier: Apache-2.0

//! The agent's switch: connections on rings go on by the kernel, and nothing is lost, changed or out of order.

use super::bulk::{consume, produce};
use crate::sys::*;
use libc::{c_int, EPOLLET, EPOLLIN, EPOLLOUT, MSG_DONTWAIT};

/// Of the page: docs/develop/hoststack.md.
const SWITCH: usize = 20;
const ATTACHED: usize = 64;
const RETURNED: usize = 104;

/// The page of this process; None without the library.
pub struct Page(Option<usize>);

impl Page {
    /// Finds the page, once there was a session.
    pub fn find() -> Self {
        let maps = std::fs::read_to_string("/proc/self/maps").expect("maps");
        let line = maps.lines().find(|line| line.contains("memfd:beeline-hoststack"));
        let at = line.and_then(|line| usize::from_str_radix(line.split('-').next()?, 16).ok());
        assert_eq!(at.is_some(), counters().is_some(), "the library makes a page, and only it");
        Self(at)
    }

    /// Switches as the agent does.
    pub fn switch(&self, value: u32) {
        if let Some(at) = self.0 {
            // SAFETY: the page is mapped for writing, and never unmapped.
            unsafe { ((at + SWITCH) as *mut u32).write_volatile(value) };
        }
    }

    /// Checks by how much `f` changes a counter.
    pub fn grows(&self, counter: usize, mut by: impl FnMut(u64) -> bool, f: impl FnOnce()) {
        // SAFETY: as above.
        let read = || self.0.map(|at| unsafe { ((at + counter) as *const u64).read_volatile() });
        let before = read();
        f();
        if let (Some(before), Some(after)) = (before, read()) {
            assert!(by(after - before), "the counter at {counter} changed from {before} to {after}");
        }
    }
}

pub fn switched_under_load() {
    const TOTAL: usize = 4 << 20;
    for round in 0..6 {
        let p = pair();
        let page = Page::find();
        let before = round * 100_000;
        let both = || {
            std::thread::scope(|scope| {
                for (fd, seed) in [(p.connector, 11), (p.acceptor, 22)] {
                    scope.spawn(move || {
                        produce(fd, before, seed);
                        produce(fd, TOTAL, seed + 100);
                    });
                }
                let other = scope.spawn(|| consume(p.connector, before, 22) + consume(p.connector, TOTAL, 122));
                let seen = consume(p.acceptor, before, 11);
                page.switch(1);
                note("to the acceptor", seen + consume(p.acceptor, TOTAL, 111));
                note("to the connector", other.join().unwrap());
            });
        };
        page.grows(RETURNED, |n| n > 0, both);
        page.grows(ATTACHED, |n| n == 0, || pair().close());
        page.switch(0);
        page.grows(ATTACHED, |n| n == 2, || pair().close());
        p.close();
    }
}

/// A program may take less than it asked for as a sign that there is no more before the next edge, as nginx does.
pub fn switched_at_an_edge() {
    for kernel_first in [false, true] {
        let p = pair();
        let (page, e) = (Page::find(), epoll());
        add(e, p.acceptor, EPOLLIN | EPOLLET, 1);
        note("nothing yet", wait(e, 8, 0));
        send(p.connector, &[b'r'; 100], 0);
        if !kernel_first {
            note("an edge", wait(e, 8, 1000));
        }
        page.switch(1);
        send(p.connector, &[b'k'; 50], 0);
        if kernel_first {
            std::thread::sleep(std::time::Duration::from_millis(50));
        }
        note("by edges", by_edges(e, p.acceptor, 150, !kernel_first));
        page.switch(0);
        close(e);
        p.close();
    }
}

/// Receives once for each edge.
fn by_edges(e: c_int, fd: c_int, total: usize, edge: bool) -> usize {
    let (mut seen, mut edge, mut buffer) = (0, edge, [0u8; 4096]);
    while seen < total && (edge || wait(e, 8, 2000) == "1 [1=IN]") {
        // SAFETY: the buffer has that many octets.
        let n = unsafe { libc::recv(fd, buffer.as_mut_ptr().cast(), buffer.len(), MSG_DONTWAIT) };
        seen += usize::try_from(n).unwrap_or(0);
        edge = n == buffer.len() as isize;
    }
    seen
}

/// A writer that found the ring full is woken, and goes on by the kernel.
pub fn switched_while_full() {
    let p = pair();
    let (page, e) = (Page::find(), epoll());
    set_nonblocking(p.connector, true);
    add(e, p.connector, EPOLLOUT | EPOLLET, 1);
    note("writable", wait(e, 8, 1000));
    let mut sent = 0;
    while let Ok(n) = usize::try_from(send(p.connector, &[b'x'; 10_000], 0)) {
        sent += n;
    }
    note("full", wait(e, 8, 0));
    page.switch(1);
    // One call leaves the rings. On the kernel it is room that wakes a writer.
    let least = if page.0.is_some() { 1 } else { sent };
    let mut seen = drain(p.acceptor, least);
    note("writable again", wait(e, 8, 2000));
    assert_eq!(send(p.connector, b"more", 0), 4);
    sent += 4;
    seen += drain(p.acceptor, sent - seen);
    note("all arrived", seen == sent);
    page.switch(0);
    close(e);
    p.close();
}

/// Receives until it has at least so many octets.
fn drain(fd: c_int, least: usize) -> usize {
    let (mut seen, mut buffer) = (0, [0u8; 1000]);
    while seen < least {
        // SAFETY: the buffer has that many octets.
        let n = unsafe { libc::recv(fd, buffer.as_mut_ptr().cast(), buffer.len(), 0) };
        assert!(n > 0, "{}", outcome(n));
        seen += n as usize;
    }
    seen
}

/// A connection that has no rings yet gets them when they are switched on again.
pub fn switched_before_rings() {
    pair().close();
    let page = Page::find();
    page.switch(1);
    let p = fresh();
    page.grows(ATTACHED, |n| n == 0, || warm_up(p));
    page.switch(0);
    page.grows(ATTACHED, |n| n == 2, || (0..4).for_each(|_| warm_up(p)));
    p.close();
}
