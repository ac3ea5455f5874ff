// SPDX-License-Identifier: Apache-2.0

//! Signals that come together, and threads that are cancelled.

use crate::sys::*;
use libc::{c_int, c_void};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};
use std::time::{Duration, Instant};

static RUNS: [AtomicUsize; 2] = [const { AtomicUsize::new(0) }; 2];

extern "C" fn count(signal: c_int) {
    RUNS[usize::from(signal == libc::SIGUSR2)].fetch_add(1, SeqCst);
}

/// Two signals that are pending at once interrupt the same instruction. Neither stays blocked.
pub fn two_signals_at_once() {
    let p = pair();
    for signal in [libc::SIGUSR1, libc::SIGUSR2] {
        // SAFETY: a handler with this signature, and a structure for which zero is valid.
        unsafe {
            let mut action: libc::sigaction = std::mem::zeroed();
            action.sa_sigaction = count as *const () as usize;
            action.sa_flags = libc::SA_RESTART;
            assert_eq!(libc::sigaction(signal, &action, std::ptr::null_mut()), 0);
        }
    }
    let done = AtomicBool::new(false);
    // SAFETY: this thread's own number, which lives until the helper has ended.
    let own = unsafe { libc::pthread_self() };
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for n in 0..5000u64 {
                // SAFETY: as above.
                unsafe {
                    libc::pthread_kill(own, libc::SIGUSR1);
                    libc::pthread_kill(own, libc::SIGUSR2);
                }
                std::thread::sleep(Duration::from_micros(n % 61));
            }
            done.store(true, SeqCst);
        });
        while !done.load(SeqCst) {
            assert_eq!(send(p.connector, b"x", 0), 1);
            assert_eq!(recv(p.acceptor, 1, 0), "1 x");
        }
    });
    let before = RUNS.each_ref().map(|runs| runs.load(SeqCst));
    for (what, signal) in [("SIGUSR1", libc::SIGUSR1), ("SIGUSR2", libc::SIGUSR2)] {
        // SAFETY: zero is an empty set; only asks for the mask.
        let blocked = unsafe {
            let mut mask: libc::sigset_t = std::mem::zeroed();
            libc::pthread_sigmask(libc::SIG_BLOCK, std::ptr::null(), &mut mask);
            libc::raise(signal);
            libc::sigismember(&mask, signal)
        };
        note(format_args!("{what} is blocked"), blocked);
    }
    let after = RUNS.each_ref().map(|runs| runs.load(SeqCst));
    note(
        "handlers ran",
        [0, 1].map(|i| before[i] > 100 && after[i] == before[i] + 1).map(|ran| ran.to_string()).join(" "),
    );
    p.close();
}

extern "C" fn receive_one(fd: *mut c_void) -> *mut c_void {
    recv(fd as usize as c_int, 1, 0);
    std::ptr::null_mut()
}

extern "C" fn send_for_ever(fd: *mut c_void) -> *mut c_void {
    let fd = fd as usize as c_int;
    loop {
        send(fd, b"x", libc::MSG_DONTWAIT);
    }
}

extern "C" fn wait_for_ever(fd: *mut c_void) -> *mut c_void {
    let mut events = [libc::epoll_event { events: 0, u64: 0 }; 4];
    loop {
        // SAFETY: room for four events.
        unsafe { libc::epoll_wait(fd as usize as c_int, events.as_mut_ptr(), 4, 0) };
    }
}

/// Starts a thread and cancels it after some time.
fn cancel(thread: extern "C" fn(*mut c_void) -> *mut c_void, fd: c_int, after: Duration) -> &'static str {
    let (mut id, mut result): (libc::pthread_t, *mut c_void) = (0, std::ptr::null_mut());
    // SAFETY: the thread has a number, and its frames own nothing.
    unsafe {
        assert_eq!(libc::pthread_create(&mut id, std::ptr::null(), thread, fd as usize as *mut c_void), 0);
        std::thread::sleep(after);
        assert_eq!(pthread_cancel(id), 0);
        assert_eq!(libc::pthread_join(id, &mut result), 0);
    }
    if result as usize == usize::MAX {
        "cancelled"
    } else {
        "ended"
    }
}

extern "C" {
    fn pthread_cancel(thread: libc::pthread_t) -> c_int;
}

/// A thread that is cancelled in a call leaves the connection to the others.
pub fn cancelled() {
    let p = pair();
    note("in recv", cancel(receive_one, p.acceptor, Duration::from_millis(30)));
    send(p.connector, b"abc", 0);
    note("recv", recv(p.acceptor, 9, 0));
    let reader = std::thread::spawn(move || {
        let mut buffer = [0u8; 4096];
        // SAFETY: the buffer has that many octets.
        while unsafe { libc::recv(p.acceptor, buffer.as_mut_ptr().cast(), buffer.len(), 0) } > 0 {}
    });
    let mut slowest = Duration::ZERO;
    for i in 0..40 {
        assert_eq!(cancel(send_for_ever, p.connector, Duration::from_millis(3 + i % 3)), "cancelled");
        let begun = Instant::now();
        assert_eq!(send(p.connector, b"y", 0), 1);
        slowest = slowest.max(begun.elapsed());
    }
    note("a send after it is fast", slowest < Duration::from_millis(150));
    let e = epoll();
    add(e, p.connector, libc::EPOLLOUT, 1);
    for i in 0..20 {
        assert_eq!(cancel(wait_for_ever, e, Duration::from_millis(3 + i % 3)), "cancelled");
    }
    note("epoll_wait after it", wait(e, 8, 5000));
    close(p.connector);
    reader.join().unwrap();
    close(p.acceptor);
    close(e);
}
