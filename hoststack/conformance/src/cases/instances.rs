// SPDX-License-Identifier: Apache-2.0

//! Several epoll instances, threads and processes that wait for one connection.

use super::events::SOON;
use crate::sys::*;
use libc::{c_int, EPOLLET, EPOLLIN, EPOLL_CTL_DEL, POLLIN};

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

/// asleep is a thread that waits for an instance, for some time before this returns.
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
