// SPDX-License-Identifier: Apache-2.0

//! Calls that wait: for how long, and what ends them.

use crate::sys::*;
use libc::{c_int, timeval};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

pub fn receive_time_limit() {
    let p = pair();
    set_option(p.acceptor, libc::SO_RCVTIMEO, timeval { tv_sec: 0, tv_usec: 50_000 });
    let begun = Instant::now();
    note("recv", recv(p.acceptor, 10, 0));
    note("not too early", begun.elapsed() >= Duration::from_millis(45));
    set_option(p.connector, libc::SO_SNDTIMEO, timeval { tv_sec: 0, tv_usec: 50_000 });
    let block = vec![0u8; 1 << 22];
    let mut last = send(p.connector, &block, 0);
    while last > 0 {
        last = send(p.connector, &block, 0);
    }
    note("send when full", outcome(last));
    p.close();
}

static SIGNALS: AtomicUsize = AtomicUsize::new(0);

extern "C" fn on_signal(_: c_int) {
    SIGNALS.fetch_add(1, Ordering::Relaxed);
}

/// Receives in a thread that gets SIGUSR1 until its handler has run three times, and only
/// then octets.
fn wait_with_signals(flags: c_int) {
    let p = pair();
    // SAFETY: a handler that only counts.
    unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = on_signal as *const () as usize;
        action.sa_flags = flags;
        libc::sigaction(libc::SIGUSR1, &action, std::ptr::null_mut());
    }
    // SAFETY: this thread's own number, which lives until the helper has ended.
    let waiting = unsafe { libc::pthread_self() };
    let helper = std::thread::spawn(move || {
        while SIGNALS.load(Ordering::Relaxed) < 3 {
            std::thread::sleep(Duration::from_millis(30));
            // SAFETY: as above.
            unsafe { libc::pthread_kill(waiting, libc::SIGUSR1) };
        }
        send(p.connector, b"after the signals", 0);
    });
    note("recv", recv(p.acceptor, 20, 0));
    helper.join().unwrap();
    p.close();
}

pub fn interrupted() {
    wait_with_signals(0);
}

pub fn restarted() {
    wait_with_signals(libc::SA_RESTART);
}

/// Equal threads serve one socket: each request gets one reply.
pub fn threads_on_one_socket() {
    let p = pair();
    const REQUESTS: usize = 20_000;
    let served = AtomicUsize::new(0);
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                let mut octet = [0u8; 1];
                // SAFETY: one octet of this thread's.
                while unsafe { libc::recv(p.acceptor, octet.as_mut_ptr().cast(), 1, 0) } == 1 {
                    served.fetch_add(1, Ordering::Relaxed);
                    send(p.acceptor, &octet, 0);
                }
            });
        }
        scope.spawn(|| {
            for _ in 0..REQUESTS / 100 {
                send(p.connector, &[b'q'; 100], 0);
            }
        });
        let mut left = REQUESTS;
        let mut buffer = [0u8; 512];
        while left > 0 {
            // SAFETY: the buffer has that many octets.
            left -= unsafe { libc::recv(p.connector, buffer.as_mut_ptr().cast(), left.min(512), 0) } as usize;
        }
        // SAFETY: shutdown of a descriptor, which ends the threads.
        unsafe { libc::shutdown(p.connector, libc::SHUT_WR) };
    });
    note("served", served.load(Ordering::Relaxed));
    p.close();
}

/// A thread that waits on a connection of the kernel sees what comes after the connection has moved to rings. Whether
/// it moves while another thread waits is a race that a third of the connections lose, so there are several.
pub fn wakes_from_other_thread() {
    let received: isize = (0..20).map(|_| received_by_other_thread()).sum();
    note("received", received);
}

fn received_by_other_thread() -> isize {
    let p = fresh();
    let reader = std::thread::spawn(move || {
        let mut seen = 0;
        let mut buffer = [0u8; 64];
        loop {
            // SAFETY: the buffer has that many octets.
            match unsafe { libc::recv(p.connector, buffer.as_mut_ptr().cast(), 64, 0) } {
                0 => return seen,
                n => seen += n,
            }
        }
    });
    for _ in 0..500 {
        send(p.connector, b"q", 0);
        recv(p.acceptor, 1, 0);
        send(p.acceptor, b"reply", 0);
    }
    close(p.acceptor);
    let received = reader.join().unwrap();
    close(p.connector);
    received
}
