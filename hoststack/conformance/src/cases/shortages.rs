// SPDX-License-Identifier: Apache-2.0

//! The library cannot get a descriptor, or a watch of an epoll instance, that a connection on rings needs. The program
//! sees nothing of it.

use super::refusals::{fail, Condition};
use super::switch::Page;
use crate::sys::*;
use libc::{c_int, EPOLLET, EPOLLIN, EPOLLOUT, POLLIN};
use std::time::{Duration, Instant};

const SOON: c_int = 5000;

/// Of the page: docs/develop/hoststack.md. How many connections stayed on the kernel for want of memory and the like.
const REFUSED_MEMORY: usize = 144;

/// The library's own descriptors are in the upper half of those that a process may have.
const HIDDEN: c_int = 300;

/// Makes the kernel refuse to add descriptors of the library to an epoll instance, as it does when
/// fs.epoll.max_user_watches is reached.
fn no_watches() {
    fail(
        libc::SYS_epoll_ctl,
        &[Condition::Equals(1, libc::EPOLL_CTL_ADD), Condition::AtLeast(2, HIDDEN)],
        libc::ENOSPC,
    );
}

fn no_copies() {
    fail(libc::SYS_fcntl, &[Condition::Equals(1, libc::F_DUPFD_CLOEXEC)], libc::EMFILE);
}

/// Sends after this thread has begun to wait.
fn sent_later(p: Pair) -> std::thread::JoinHandle<()> {
    std::thread::spawn(move || {
        std::thread::sleep(Duration::from_millis(50));
        send(p.connector, b"octets", 0);
    })
}

/// Runs `f` while octets are sent, and checks that it does not wait for a time limit.
fn woken(p: Pair, f: impl FnOnce() -> String) {
    let sends = sent_later(p);
    let begun = Instant::now();
    let result = f();
    note("woken", result);
    note("in time", begun.elapsed() < Duration::from_millis(1000));
    sends.join().unwrap();
    note("recv", recv(p.acceptor, 20, libc::MSG_DONTWAIT));
}

/// Checks that the library has counted what it left to the kernel.
fn counted(page: &Page, f: impl FnOnce()) {
    page.grows(REFUSED_MEMORY, |n| n > 0, f);
}

pub fn epoll_without_watches() {
    for events in [EPOLLIN, EPOLLIN | EPOLLET, EPOLLIN | EPOLLOUT | EPOLLET] {
        let (p, e) = (pair(), epoll());
        let page = Page::find();
        // What the ring has then is not lost.
        send(p.connector, b"before", 0);
        counted(&page, || {
            no_watches();
            add(e, p.acceptor, events, 1);
        });
        note("before", wait(e, 8, SOON));
        note("recv", recv(p.acceptor, 20, 0));
        woken(p, || wait(e, 8, SOON));
        send(p.acceptor, b"the other way", 0);
        note("recv", recv(p.connector, 20, 0));
        p.close();
        close(e);
    }
}

/// A thread sleeps on the instance when another one adds a connection whose ring has octets already.
pub fn sleeper_without_watches() {
    let (p, e) = (pair(), epoll());
    let page = Page::find();
    let sleeper = std::thread::spawn(move || wait(e, 8, SOON));
    std::thread::sleep(Duration::from_millis(50));
    send(p.connector, b"before", 0);
    let begun = Instant::now();
    counted(&page, || {
        no_watches();
        add(e, p.acceptor, EPOLLIN, 1);
    });
    note("woken", sleeper.join().unwrap());
    note("in time", begun.elapsed() < Duration::from_millis(1000));
    note("recv", recv(p.acceptor, 20, 0));
    woken(p, || wait(e, 8, SOON));
    p.close();
    close(e);
}

pub fn nested_without_watches() {
    let (p, outer, inner) = (pair(), epoll(), epoll());
    let page = Page::find();
    add(inner, p.acceptor, EPOLLIN, 2);
    send(p.connector, b"before", 0);
    counted(&page, || {
        no_watches();
        add(outer, inner, EPOLLIN, 1);
    });
    note("outer", wait(outer, 8, SOON));
    note("inner", wait(inner, 8, SOON));
    note("recv", recv(p.acceptor, 20, 0));
    note("nothing", wait(inner, 8, 0));
    woken(p, || wait(outer, 8, SOON));
    let q = pair();
    add(inner, q.acceptor, EPOLLIN, 3);
    woken(q, || wait(outer, 8, SOON));
    p.close();
    q.close();
    [outer, inner].into_iter().for_each(close);
}

/// A thread that has never waited needs an epoll instance of its own.
pub fn waits_without_descriptors() {
    let calls: [fn(c_int) -> String; 2] = [|fd| recv(fd, 3, libc::MSG_PEEK), |fd| poll(fd, POLLIN, SOON)];
    for call in calls {
        for watches in [false, true] {
            let p = pair();
            let page = Page::find();
            counted(&page, || {
                let waits = std::thread::spawn(move || {
                    match watches {
                        true => no_watches(),
                        false => fail(libc::SYS_epoll_create1, &[], libc::EMFILE),
                    }
                    woken(p, || call(p.acceptor));
                });
                waits.join().unwrap();
            });
            p.close();
        }
    }
}

/// The descriptor by which a connection was added is closed, and there is none left for a copy.
pub fn closed_without_descriptors() {
    for events in [EPOLLIN, EPOLLIN | EPOLLET] {
        let (p, e) = (pair(), epoll());
        let page = Page::find();
        // SAFETY: dup of a descriptor.
        let copy = unsafe { libc::dup(p.acceptor) };
        add(e, p.acceptor, events, 1);
        counted(&page, || {
            std::thread::spawn(move || {
                no_copies();
                close(p.acceptor);
            })
            .join()
            .unwrap();
        });
        let moved = Pair { acceptor: copy, ..p };
        woken(moved, || wait(e, 8, SOON));
        moved.close();
        note("closed", wait(e, 8, 0));
        close(e);
    }
}
