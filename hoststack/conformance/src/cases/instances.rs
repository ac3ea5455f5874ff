// SPDX-License-Identifier: Apache-2.0

//! Several epoll instances, threads and processes that wait for one connection.

use super::events::SOON;
use crate::sys::*;
use libc::{c_int, EPOLLET, EPOLLIN, EPOLL_CTL_DEL, POLLIN};
use std::sync::atomic::{AtomicI32, AtomicUsize, Ordering::SeqCst};

pub fn two_instances() {
    let p = pair();
    let (e, f) = (epoll(), epoll());
    add(e, p.acceptor, EPOLLIN, 1);
    add(f, p.acceptor, EPOLLIN | EPOLLET, 2);
    send(p.connector, b"abc", 0);
    note("level", wait(e, 8, SOON));
    note("edge", wait(f, 8, SOON));
    note("no edge", wait(f, 8, 0));
    recv(p.acceptor, 9, 0);
    note("drained", wait(e, 8, 0));
    close(e);
    send(p.connector, b"abc", 0);
    note("the other", wait(f, 8, SOON));
    p.close();
    close(f);
}

pub fn nested() {
    let p = pair();
    let (outer, inner) = (epoll(), epoll());
    add(outer, inner, EPOLLIN, 1);
    add(inner, p.acceptor, EPOLLIN, 2);
    note("nothing", wait(outer, 8, 0));
    send(p.connector, b"abc", 0);
    note("outer", wait(outer, 8, SOON));
    note("inner", wait(inner, 8, 0));
    note("outer, still readable", wait(outer, 8, 0));
    note("poll of the inner", poll(inner, POLLIN, 0));
    recv(p.acceptor, 9, 0);
    note("inner, drained", wait(inner, 8, 0));
    note("outer, drained", wait(outer, 8, 0));
    send(p.connector, b"abc", 0);
    note("poll of the inner", poll(inner, POLLIN, SOON));
    p.close();
    close(inner);
    close(outer);
}

/// A connection on rings beside one on the kernel: what a program sends by both is reported in its order, if it does
/// not wait for an answer of the first.
pub fn two_connections() {
    let (p, q, other, e) = (pair(), fresh(), fresh(), epoll());
    add(e, p.acceptor, EPOLLIN, 1);
    add(e, q.acceptor, EPOLLIN, 2);
    add(e, other.acceptor, EPOLLIN, 3);
    send(p.connector, b"abc", 0);
    note("the worker is awake", order(e, 8));
    recv(p.acceptor, 9, 0);
    note("nothing", wait(e, 8, 0));
    send(q.connector, b"first", 0);
    send(p.connector, b"second", 0);
    note("in order", order(e, 8));
    // The kernel's connections fill the room of each wait.
    send(other.connector, b"third", 0);
    let seen: String = (0..8).map(|_| order(e, 2)).collect();
    note("each has a turn", ["1", "2", "3"].iter().all(|data| seen.contains(data)));
    recv(other.acceptor, 9, 0);
    recv(p.acceptor, 9, 0);
    recv(q.acceptor, 9, 0);
    send(q.acceptor, b"answer", 0);
    recv(q.connector, 9, 0);
    send(p.connector, b"abc", 0);
    note("nothing before it", order(e, 8));
    p.close();
    q.close();
    other.close();
    close(e);
}

/// Waits for events, and returns their data in the order of the report.
fn order(e: c_int, most: c_int) -> String {
    let mut events = [libc::epoll_event { events: 0, u64: 0 }; 8];
    // SAFETY: the list has at least `most` places.
    let n = unsafe { libc::epoll_wait(e, events.as_mut_ptr(), most, SOON) };
    events[..n.max(0) as usize].iter().map(|event| format!("{} ", { event.u64 })).collect()
}

/// A session that goes from one worker's instance to another's.
pub fn moved_between_instances() {
    let p = pair();
    let (e, f) = (epoll(), epoll());
    for round in 0..50 {
        let (to, data) = if round % 2 == 0 { (e, 1) } else { (f, 2) };
        add(to, p.acceptor, EPOLLIN, data);
        send(p.connector, b"x", 0);
        note("worker", wait(to, 8, SOON));
        note("request", recv(p.acceptor, 9, 0));
        control(to, EPOLL_CTL_DEL, p.acceptor, 0, 0);
        note("moved away", wait(to, 8, 0));
    }
    p.close();
    close(e);
    close(f);
}

/// Returns a thread that waits for an instance, for some time before this returns.
fn asleep(e: c_int) -> std::thread::JoinHandle<String> {
    let thread = std::thread::spawn(move || {
        let begun = std::time::Instant::now();
        let result = wait(e, 8, SOON);
        let is_late = begun.elapsed().as_millis() >= SOON as u128;
        result + if is_late { ", when the time was over" } else { "" }
    });
    std::thread::sleep(std::time::Duration::from_millis(50));
    thread
}

/// A thread that sleeps is woken while another one, which has just looked at the same instance, does other work.
pub fn awake_beside_asleep() {
    for events in [EPOLLIN, EPOLLIN | EPOLLET] {
        let p = pair();
        let e = epoll();
        add(e, p.acceptor, events, 1);
        note("nothing", wait(e, 8, 0));
        let thread = asleep(e);
        note("nothing", wait(e, 8, 0));
        send(p.connector, b"abc", 0);
        note("woken", thread.join().unwrap());
        p.close();
        close(e);
    }
}

/// A thread that sleeps on one instance is woken while another one looks at the same connection by another instance.
pub fn awake_in_another_instance() {
    let p = pair();
    let (e, f) = (epoll(), epoll());
    add(e, p.acceptor, EPOLLIN, 1);
    note("nothing", wait(e, 8, 0));
    add(f, p.acceptor, EPOLLIN, 2);
    note("nothing", wait(f, 8, 0));
    for (sleeps, awake) in [(e, f), (f, e)] {
        let thread = asleep(sleeps);
        note("nothing", wait(awake, 8, 0));
        send(p.connector, b"abc", 0);
        note("woken", thread.join().unwrap());
        recv(p.acceptor, 9, 0);
    }
    p.close();
    close(e);
    close(f);
}

/// An instance gets into another one after it was waited for.
pub fn nested_later() {
    let p = pair();
    let (outer, inner) = (epoll(), epoll());
    add(inner, p.acceptor, EPOLLIN, 2);
    note("nothing", wait(inner, 8, 0));
    add(outer, inner, EPOLLIN, 1);
    let thread = asleep(outer);
    send(p.connector, b"abc", 0);
    note("woken", thread.join().unwrap());
    note("inner", wait(inner, 8, 0));
    p.close();
    close(inner);
    close(outer);
}

/// A child looks at an inherited connection by an instance of its own while its parent sleeps.
pub fn awake_in_child() {
    let p = pair();
    let e = epoll();
    add(e, p.acceptor, EPOLLIN, 1);
    note("nothing", wait(e, 8, 0));
    let child = in_child(|| {
        std::thread::sleep(std::time::Duration::from_millis(100));
        let own = epoll();
        add(own, p.acceptor, EPOLLIN, 2);
        note("child", format!("{} {}", wait(own, 8, 0), wait(own, 8, 0)));
    });
    let thread = asleep(e);
    note("child", end_of(child));
    send(p.connector, b"abc", 0);
    note("woken", thread.join().unwrap());
    p.close();
    close(e);
}

/// An instance is closed while another thread closes a descriptor that is in it.
pub fn closed_beside_its_connection() {
    const TIMES: usize = 20_000;
    let p = pair();
    let (shared, turn) = (AtomicI32::new(-1), AtomicUsize::new(0));
    let meet = |round: usize| {
        turn.fetch_add(1, SeqCst);
        while turn.load(SeqCst) < 2 * round {
            std::hint::spin_loop();
        }
    };
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for round in 0..TIMES {
                meet(2 * round + 1);
                close(shared.load(SeqCst));
                meet(2 * round + 2);
            }
        });
        for round in 0..TIMES {
            let e = epoll();
            // SAFETY: dup of a descriptor.
            let copy = unsafe { libc::dup(p.acceptor) };
            add(e, copy, EPOLLIN, 1);
            shared.store(copy, SeqCst);
            meet(2 * round + 1);
            close(e);
            meet(2 * round + 2);
        }
    });
    let e = epoll();
    add(e, p.acceptor, EPOLLIN, 2);
    send(p.connector, b"abc", 0);
    note("another instance", wait(e, 8, SOON));
    p.close();
    close(e);
}

/// The last descriptor of an instance is closed while a thread waits for it. The wait goes on, and has nothing to do
/// with the instance that is made next.
pub fn closed_while_waited() {
    let (p, q) = (pair(), pair());
    let e = epoll();
    add(e, p.acceptor, EPOLLIN, 1);
    note("nothing", wait(e, 8, 0));
    let (first, second) = (std::thread::spawn(move || wait(e, 8, 300)), asleep(e));
    close(e);
    let f = epoll();
    add(f, q.acceptor, EPOLLIN, 2);
    send(q.connector, b"abc", 0);
    note("the next instance", wait(f, 8, SOON));
    note("the time of the wait is over", first.join().unwrap());
    send(p.connector, b"abc", 0);
    note("the other wait", second.join().unwrap());
    note("the next instance, still", wait(f, 8, 0));
    note("recv", format!("{} {}", recv(p.acceptor, 9, 0), recv(q.acceptor, 9, 0)));
    note("the next instance, drained", wait(f, 8, 0));
    p.close();
    q.close();
    close(f);
}

/// Several threads are the first to poll an instance.
pub fn polled_at_first_by_many() {
    let p = pair();
    send(p.connector, b"abc", 0);
    let all: Vec<c_int> = (0..500).map(|_| epoll()).collect();
    all.iter().for_each(|&e| add(e, p.acceptor, EPOLLIN, 1));
    let turn = AtomicUsize::new(0);
    std::thread::scope(|scope| {
        for _ in 0..3 {
            scope.spawn(|| {
                for (round, &e) in all.iter().enumerate() {
                    turn.fetch_add(1, SeqCst);
                    while turn.load(SeqCst) < 3 * (round + 1) {
                        std::thread::yield_now();
                    }
                    assert_eq!(poll(e, POLLIN, SOON), "1 IN");
                }
            });
        }
    });
    recv(p.acceptor, 9, 0);
    let readable = all.iter().filter(|&&e| poll(e, POLLIN, 0) != "0 nothing").count();
    note("instances that are readable without octets", readable);
    all.into_iter().for_each(close);
    p.close();
}
