// SPDX-License-Identifier: Apache-2.0

//! Handlers of signals that send and receive on the connection whose send or receive they interrupt, or that leave it.

use crate::sys::*;
use libc::{c_int, c_void, siginfo_t, MSG_DONTWAIT, MSG_NOSIGNAL};
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU64, AtomicUsize, Ordering::SeqCst};
use std::sync::Mutex;
use std::time::{Duration, Instant};

/// How long each case sends signals.
const TIME: Duration = Duration::from_millis(700);

static CONNECTION: AtomicI32 = AtomicI32::new(-1);
static INSTANCE: AtomicI32 = AtomicI32::new(-1);
static RUNS: AtomicUsize = AtomicUsize::new(0);

type Handler = extern "C" fn(c_int, *mut siginfo_t, *mut c_void);

fn handle(signal: c_int, handler: Handler, flags: c_int) {
    // SAFETY: a handler with this signature.
    unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = handler as *const () as usize;
        action.sa_flags = flags | libc::SA_SIGINFO;
        assert_eq!(libc::sigaction(signal, &action, std::ptr::null_mut()), 0);
    }
}

/// Runs `f` again and again while this thread gets SIGUSR1 as often as it can.
fn under_signals(handler: Handler, mut f: impl FnMut()) {
    handle(libc::SIGUSR1, handler, libc::SA_RESTART);
    RUNS.store(0, SeqCst);
    let begun = Instant::now();
    let done = AtomicBool::new(false);
    // SAFETY: this thread's own number, which lives until the helper has ended.
    let own = unsafe { libc::pthread_self() };
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut n = 0u64;
            while !done.load(SeqCst) {
                // SAFETY: as above.
                unsafe { libc::pthread_kill(own, libc::SIGUSR1) };
                n += 1;
                std::thread::sleep(Duration::from_micros(20 + n % 37));
            }
        });
        while begun.elapsed() < TIME {
            f();
        }
        done.store(true, SeqCst);
    });
    note("handlers ran", RUNS.load(SeqCst) > 100);
}

const BLOCK: usize = 512;
const RECORD: usize = 16;
static SENT: AtomicU64 = AtomicU64::new(0);

extern "C" fn send_record(_: c_int, _: *mut siginfo_t, _: *mut c_void) {
    let before = errno();
    // SAFETY: sixteen octets; errno is this thread's.
    unsafe {
        let n = libc::send(CONNECTION.load(SeqCst), [b'S'; RECORD].as_ptr().cast(), RECORD, MSG_DONTWAIT);
        assert_eq!(n, RECORD as isize, "{}", name(errno()));
        *libc::__errno_location() = before;
    }
    RUNS.fetch_add(1, SeqCst);
    SENT.fetch_add(RECORD as u64, SeqCst);
}

/// What a handler sends comes whole, before or after what the interrupted call sends.
pub fn sends_in_handler() {
    for warm in [true, false] {
        let p = if warm { pair() } else { fresh() };
        CONNECTION.store(p.connector, SeqCst);
        SENT.store(0, SeqCst);
        let received = AtomicU64::new(0);
        std::thread::scope(|scope| {
            let reader = scope.spawn(|| {
                let (mut all, mut buffer) = (Vec::new(), [0u8; 4096]);
                loop {
                    // SAFETY: the buffer has that many octets.
                    let n = unsafe { libc::recv(p.acceptor, buffer.as_mut_ptr().cast(), buffer.len(), 0) };
                    if n <= 0 {
                        return all;
                    }
                    received.fetch_add(n as u64, SeqCst);
                    all.extend_from_slice(&buffer[..n as usize]);
                }
            });
            under_signals(send_record, || {
                while SENT.load(SeqCst) - received.load(SeqCst) > 16384 {
                    std::thread::yield_now(); // so that no call is short
                }
                assert_eq!(send(p.connector, &[b'm'; BLOCK], MSG_DONTWAIT), BLOCK as isize);
                SENT.fetch_add(BLOCK as u64, SeqCst);
            });
            // SAFETY: shutdown of a descriptor.
            unsafe { libc::shutdown(p.connector, libc::SHUT_WR) };
            let all = reader.join().unwrap();
            note("all came", all.len() as u64 == SENT.load(SeqCst));
            let whole =
                all.chunk_by(|a, b| a == b).all(|run| run.len() % if run[0] == b'm' { BLOCK } else { RECORD } == 0);
            note("whole", whole);
        });
        p.close();
    }
}

/// What handlers have received: numbers, of four octets each.
static TAKEN: Mutex<Vec<u32>> = Mutex::new(Vec::new());

/// Receives some numbers, which have to follow each other.
fn take(fd: c_int, most: usize) -> Vec<u32> {
    let mut buffer = [0u8; 256];
    // SAFETY: the buffer has more octets.
    let n = unsafe { libc::recv(fd, buffer.as_mut_ptr().cast(), most * 4, MSG_DONTWAIT) }.max(0) as usize;
    let numbers: Vec<u32> =
        buffer[..n].chunks(4).map(|c| u32::from_ne_bytes(c.try_into().expect("four octets"))).collect();
    assert!(numbers.windows(2).all(|w| w[1] == w[0] + 1), "{numbers:?}");
    numbers
}

static IN_HANDLER: Mutex<()> = Mutex::new(());

extern "C" fn take_some(_: c_int, _: *mut siginfo_t, _: *mut c_void) {
    // The main program is never interrupted while it has this lock, nor its allocator: it waits in between.
    let Ok(_free) = IN_HANDLER.try_lock() else { return };
    let before = errno();
    let numbers = take(CONNECTION.load(SeqCst), 4);
    TAKEN.lock().unwrap().extend(numbers);
    RUNS.fetch_add(1, SeqCst);
    // SAFETY: errno is this thread's.
    unsafe { *libc::__errno_location() = before };
}

/// What a handler receives, and what the interrupted call does, is the stream: nothing is missing, and nothing comes
/// twice.
pub fn receives_in_handler() {
    let p = pair();
    CONNECTION.store(p.acceptor, SeqCst);
    let (mut next, mut own) = (0u32, Vec::new());
    let mut buffer = [0u8; 256];
    let mut counts: Vec<(u32, usize)> = Vec::with_capacity(1 << 20);
    under_signals(take_some, || {
        let busy = IN_HANDLER.lock();
        let numbers: Vec<u8> = (next..next + 64).flat_map(u32::to_ne_bytes).collect();
        if send(p.connector, &numbers, MSG_DONTWAIT) == 256 {
            next += 64;
        }
        drop(busy);
        for _ in 0..8 {
            // SAFETY: the buffer has as many octets. Nothing here allocates.
            let n = unsafe { libc::recv(p.acceptor, buffer.as_mut_ptr().cast(), 64, MSG_DONTWAIT) };
            for octets in buffer[..n.max(0) as usize].chunks(4) {
                counts.push((u32::from_ne_bytes(octets.try_into().unwrap_or_default()), 0));
            }
        }
    });
    own.extend(counts.iter().map(|&(number, _)| number));
    loop {
        let rest = take(p.acceptor, 16);
        if rest.is_empty() {
            break;
        }
        own.extend(rest);
    }
    let handlers = std::mem::take(&mut *TAKEN.lock().unwrap());
    note("in order", own.is_sorted() && handlers.is_sorted());
    own.extend(handlers);
    own.sort_unstable();
    note("each once", own.iter().copied().eq(0..next));
    p.close();
}

extern "C" fn wait_and_exchange(_: c_int, _: *mut siginfo_t, _: *mut c_void) {
    let before = errno();
    let mut event = libc::epoll_event { events: 0, u64: 0 };
    // SAFETY: room for one event; one octet; errno is this thread's.
    unsafe {
        libc::epoll_wait(INSTANCE.load(SeqCst), &mut event, 1, 0);
        let mut one = libc::pollfd { fd: CONNECTION.load(SeqCst), events: libc::POLLIN, revents: 0 };
        libc::poll(&mut one, 1, 0);
        *libc::__errno_location() = before;
    }
    RUNS.fetch_add(1, SeqCst);
}

/// A handler asks the epoll instance that the interrupted call asks.
pub fn waits_in_handler() {
    let p = pair();
    let e = epoll();
    add(e, p.acceptor, libc::EPOLLIN, 1);
    INSTANCE.store(e, SeqCst);
    CONNECTION.store(p.acceptor, SeqCst);
    let mut right = true;
    under_signals(wait_and_exchange, || {
        right &= send(p.connector, b"octets", 0) == 6 && wait(e, 4, 1000) == "1 [1=IN]";
        right &= recv(p.acceptor, 20, 0) == "6 octets";
        control(e, libc::EPOLL_CTL_MOD, p.acceptor, libc::EPOLLIN | libc::EPOLLOUT, 1);
        control(e, libc::EPOLL_CTL_MOD, p.acceptor, libc::EPOLLIN, 1);
    });
    note("right", right);
    p.close();
    close(e);
}

/// Calls `f`, and returns when it returns, or when `escape` is called inside of it: siglongjmp(3), for Rust.
#[unsafe(naked)]
#[cfg(target_arch = "x86_64")]
extern "C" fn escapable(f: extern "C" fn(), stack: *mut usize) {
    core::arch::naked_asm!(
        "push rbx",
        "push rbp",
        "push r12",
        "push r13",
        "push r14",
        "push r15",
        "sub rsp, 8",
        "mov [rsi], rsp",
        "call rdi",
        "add rsp, 8",
        "pop r15",
        "pop r14",
        "pop r13",
        "pop r12",
        "pop rbp",
        "pop rbx",
        "ret",
    )
}

#[unsafe(naked)]
#[cfg(target_arch = "x86_64")]
extern "C" fn escape(stack: usize) -> ! {
    core::arch::naked_asm!(
        "mov rsp, rdi",
        "add rsp, 8",
        "pop r15",
        "pop r14",
        "pop r13",
        "pop r12",
        "pop rbp",
        "pop rbx",
        "ret",
    )
}

static STACK: AtomicUsize = AtomicUsize::new(0);
static ARMED: AtomicBool = AtomicBool::new(false);

#[cfg(target_arch = "x86_64")]
extern "C" fn jump(signal: c_int, _: *mut siginfo_t, _: *mut c_void) {
    if !ARMED.swap(false, SeqCst) {
        return;
    }
    RUNS.fetch_add(1, SeqCst);
    // SAFETY: the handler does not return, so it allows its signal again.
    unsafe {
        let mut set: libc::sigset_t = std::mem::zeroed();
        libc::sigaddset(&mut set, signal);
        libc::pthread_sigmask(libc::SIG_UNBLOCK, &set, std::ptr::null_mut());
    }
    escape(STACK.load(SeqCst))
}

static PEER: AtomicI32 = AtomicI32::new(-1);

#[cfg(target_arch = "x86_64")]
extern "C" fn exchange_for_ever() {
    let (mut buffer, block) = ([0u8; 4096], [b'm'; BLOCK]);
    let (from, to) = (CONNECTION.load(SeqCst), PEER.load(SeqCst));
    ARMED.store(true, SeqCst);
    loop {
        // SAFETY: the buffers live as long as the calls.
        unsafe {
            libc::send(from, block.as_ptr().cast(), BLOCK, MSG_DONTWAIT | MSG_NOSIGNAL);
            while libc::recv(to, buffer.as_mut_ptr().cast(), buffer.len(), MSG_DONTWAIT) > 0 {}
        }
    }
}

/// A handler leaves send and receive, after which both go on.
#[cfg(target_arch = "x86_64")]
pub fn left_by_handler() {
    let p = pair();
    CONNECTION.store(p.connector, SeqCst);
    PEER.store(p.acceptor, SeqCst);
    under_signals(jump, || escapable(exchange_for_ever, STACK.as_ptr()));
    ARMED.store(false, SeqCst);
    while recv(p.acceptor, 4096, MSG_DONTWAIT) != "EAGAIN" {}
    for (from, to) in [(p.connector, p.acceptor), (p.acceptor, p.connector)] {
        send(from, b"goes on", 0);
        note("recv", recv(to, 20, 0));
    }
    p.close();
}

#[cfg(not(target_arch = "x86_64"))]
pub fn left_by_handler() {
    pair().close();
}

static VALUES: AtomicU64 = AtomicU64::new(0);

extern "C" fn count_value(_: c_int, info: *mut siginfo_t, _: *mut c_void) {
    // SAFETY: the kernel's details of a signal that sigqueue(3) has sent.
    VALUES.fetch_add(unsafe { (*info).si_value().sival_ptr as u64 }, SeqCst);
    RUNS.fetch_add(1, SeqCst);
}

extern "C" fn plain(_: c_int) {
    RUNS.fetch_add(1, SeqCst);
}

/// Handlers are what the program has set, and signals that are queued come all, with their values.
pub fn handlers_as_set() {
    let p = pair();
    let queued = libc::SIGRTMIN();
    handle(queued, count_value, 0);
    // SAFETY: actions of this function.
    unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        libc::sigaction(queued, std::ptr::null(), &mut action);
        note("handler", action.sa_sigaction == count_value as *const () as usize);
        note("flags", action.sa_flags);
        let handler = plain as *const () as usize;
        note("former", libc::signal(libc::SIGUSR2, handler) == libc::SIG_DFL);
        note("former", libc::signal(libc::SIGUSR2, libc::SIG_IGN) == handler);
        libc::signal(libc::SIGUSR2, handler);
        libc::sigaction(libc::SIGUSR2, std::ptr::null(), &mut action);
        note("flags", format!("{:x} {}", action.sa_flags & !0x0400_0000, action.sa_sigaction == handler));
        action.sa_flags = libc::SA_RESETHAND | libc::SA_NODEFER;
        libc::sigaction(libc::SIGUSR2, &action, std::ptr::null_mut());
        libc::raise(libc::SIGUSR2);
        libc::sigaction(libc::SIGUSR2, std::ptr::null(), &mut action);
        note("after one", format!("{} {}", RUNS.load(SeqCst), action.sa_sigaction == libc::SIG_DFL));
    }
    RUNS.store(0, SeqCst);
    // SAFETY: this thread's own number; the values are no addresses.
    let own = unsafe { libc::pthread_self() };
    std::thread::scope(|scope| {
        let sender = scope.spawn(move || {
            let mut sum = 0;
            for i in 1..=5000usize {
                // SAFETY: as above.
                while unsafe { libc::pthread_sigqueue(own, queued, libc::sigval { sival_ptr: i as *mut c_void }) } != 0
                {
                    std::thread::yield_now();
                }
                sum += i as u64;
            }
            sum
        });
        while !sender.is_finished() {
            send(p.connector, b"x", 0);
            recv(p.acceptor, 1, 0);
        }
        let sum = sender.join().unwrap();
        while RUNS.load(SeqCst) < 5000 {
            std::thread::sleep(Duration::from_millis(1));
        }
        note("values", VALUES.load(SeqCst) == sum);
    });
    p.close();
}

/// Runs `f` in a child that shares both ends, stops it at some moments, and goes on here meanwhile.
fn stopped_in(f: impl Fn(Pair), each: impl Fn(Pair) -> bool) {
    let p = pair();
    let child = in_child(|| {
        // A case that fails leaves nobody behind.
        // SAFETY: of this process.
        unsafe { libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) };
        loop {
            f(p);
        }
    });
    let (mut longest, before, mut right) = (Duration::ZERO, cpu_time(), true);
    for i in 0..20 {
        std::thread::sleep(Duration::from_micros(2000 + 137 * i));
        // SAFETY: signals to this process's child.
        unsafe { libc::kill(child, libc::SIGSTOP) };
        std::thread::sleep(Duration::from_millis(2));
        let begun = Instant::now();
        right &= each(p);
        longest = longest.max(begun.elapsed());
        // SAFETY: as above.
        unsafe { libc::kill(child, libc::SIGCONT) };
    }
    note("bounded", longest < Duration::from_millis(1500));
    note("without CPU", cpu_time() - before < Duration::from_millis(400));
    note("right", right);
    // SAFETY: as above.
    unsafe { libc::kill(child, libc::SIGKILL) };
    note("child", end_of(child));
    p.close();
}

/// A process of the same end is stopped in the middle of receive, or of send.
pub fn stopped_in_a_call() {
    stopped_in(
        |p| {
            let mut octet = 0u8;
            // SAFETY: one octet.
            unsafe { libc::recv(p.acceptor, std::ptr::from_mut(&mut octet).cast(), 1, MSG_DONTWAIT) };
        },
        |p| recv(p.acceptor, 1, MSG_DONTWAIT) == "EAGAIN",
    );
    stopped_in(
        |p| {
            send(p.connector, b"by child", MSG_DONTWAIT | MSG_NOSIGNAL);
        },
        |p| {
            // Eight octets fill a ring without a short send.
            let mut all = drained(p.acceptor);
            let sent = send(p.connector, b"by owner", MSG_DONTWAIT | MSG_NOSIGNAL);
            all += &drained(p.acceptor);
            sent == 8 && all.contains("by owner") && all.replace("by owner", "").replace("by child", "").is_empty()
        },
    );
}

/// Returns what a connection has.
fn drained(fd: c_int) -> String {
    let mut all = String::new();
    loop {
        match recv(fd, 40, MSG_DONTWAIT).split_once(' ') {
            Some((_, text)) => all += text,
            None => return all,
        }
    }
}

/// A thread of real-time priority and one without share a connection and a CPU.
pub fn real_time() {
    let p = pair();
    let done = AtomicBool::new(false);
    let longest = std::thread::scope(|scope| {
        scope.spawn(|| {
            on_first_cpu();
            let mut octet = 0u8;
            while !done.load(SeqCst) {
                // SAFETY: one octet.
                unsafe { libc::recv(p.acceptor, std::ptr::from_mut(&mut octet).cast(), 1, MSG_DONTWAIT) };
            }
        });
        let urgent = scope.spawn(|| {
            on_first_cpu();
            let parameter = libc::sched_param { sched_priority: 1 };
            // SAFETY: of this thread.
            note("real-time", unsafe { libc::sched_setscheduler(0, libc::SCHED_FIFO, &parameter) });
            let mut longest = Duration::ZERO;
            for _ in 0..300 {
                std::thread::sleep(Duration::from_micros(700));
                let begun = Instant::now();
                recv(p.acceptor, 1, MSG_DONTWAIT);
                longest = longest.max(begun.elapsed());
            }
            longest
        });
        let longest = urgent.join().unwrap();
        done.store(true, SeqCst);
        longest
    });
    note("bounded", longest < Duration::from_millis(300));
    p.close();
}

fn on_first_cpu() {
    // SAFETY: of this thread.
    unsafe {
        let mut set: libc::cpu_set_t = std::mem::zeroed();
        libc::CPU_SET(0, &mut set);
        libc::sched_setaffinity(0, size_of_val(&set), &set);
    }
}
