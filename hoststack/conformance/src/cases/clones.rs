// SPDX-License-Identifier: Apache-2.0

//! Processes that are made by other calls than fork(3): copies of the memory, and such that share it.

use super::unseen::close_unseen;
use crate::sys::*;
use libc::{c_int, c_void, MSG_NOSIGNAL, SIGCHLD};
use std::io::Write;

extern "C" {
    fn _Fork() -> c_int;
}

/// A call that returns in both processes, as fork(2) does.
type Make = unsafe fn() -> c_int;

fn clone3(flags: u64) -> c_int {
    // struct clone_args: flags, four others, the signal, and more.
    let arguments = [flags, 0, 0, 0, SIGCHLD as u64, 0, 0, 0];
    // SAFETY: the structure lives as long as the call, and the child has its own copy of this memory.
    unsafe { libc::syscall(libc::SYS_clone3, arguments.as_ptr(), size_of_val(&arguments)) as c_int }
}

// SAFETY (all): the child goes on in a copy of the memory, on its own copy of the stack.
const COPIES: &[(&str, Make)] = &[
    // SAFETY: as above.
    ("fork", || unsafe { libc::fork() }),
    // SAFETY: as above.
    ("_Fork", || unsafe { _Fork() }),
    // SAFETY: as above.
    ("clone by its number", || unsafe { libc::syscall(libc::SYS_clone, SIGCHLD, 0, 0, 0, 0) as c_int }),
    ("clone3 by its number", || clone3(0)),
    // SAFETY: as above.
    ("clone unseen", || unsafe { enter(libc::SYS_clone, [SIGCHLD as usize, 0, 0]) as c_int }),
];

/// Runs `f` in a child that `make` makes.
fn child_by(make: Make, f: impl FnOnce()) -> c_int {
    std::io::stdout().flush().expect("flush");
    // SAFETY: the child runs only `f`, and ends.
    match unsafe { make() } {
        0 => {
            f();
            std::io::stdout().flush().expect("flush");
            // SAFETY: the end of the child.
            unsafe { libc::_exit(0) }
        }
        child => child,
    }
}

/// Makes both ends of a connection send and receive, from its own process for each.
fn exchange(p: Pair, what: &str) {
    for (from, to) in [(p.connector, p.acceptor), (p.acceptor, p.connector)] {
        let sent = outcome(send(from, b"a message", MSG_NOSIGNAL));
        note(what, format!("{sent}, {}", recv(to, 20, 0)));
    }
}

/// Returns a pipe whose end to read has the lowest free number.
fn pipe_at() -> [c_int; 2] {
    let mut ends = [0; 2];
    // SAFETY: room for two numbers.
    assert_eq!(unsafe { libc::pipe(ends.as_mut_ptr()) }, 0);
    ends
}

/// Writes to a pipe and reads from it, by calls that the library has for connections, too.
fn through_pipe([reads, writes]: [c_int; 2]) -> String {
    let mut buffer = [0u8; 8];
    // SAFETY: the buffers live as long as the calls.
    unsafe {
        libc::write(writes, b"a pipe".as_ptr().cast(), 6);
        text(libc::read(reads, buffer.as_mut_ptr().cast(), 8), &buffer)
    }
}

/// A child uses connections of its parent, closes some, and uses their numbers again.
pub fn copied_memory() {
    for &(name, make) in COPIES {
        let (p, q) = (pair(), pair());
        let number = p.acceptor.min(p.connector);
        let child = child_by(make, || {
            exchange(p, name);
            close(q.connector);
            close(q.acceptor);
            close(number);
            let pipe = pipe_at();
            note("pipe", format!("{} {}", pipe[0] <= number.max(q.acceptor), through_pipe(pipe)));
            note("closed", recv(q.acceptor.max(q.connector) + 50, 8, 0));
        });
        note("child", end_of(child));
        exchange(p, name);
        exchange(q, name);
        p.close();
        note("the other connection", recv(q.connector, 8, libc::MSG_DONTWAIT));
        q.close();
    }
}

/// The parent closes what its child serves, as servers do that make a child for each connection, and makes other
/// connections, which are on rings, too.
pub fn served_by_child() {
    for &(name, make) in COPIES {
        let p = pair();
        let [reads, writes] = pipe_at();
        let child = child_by(make, || {
            close(p.connector);
            close(writes);
            // The library has its first call before the parent goes on only if it has seen the child.
            let mut octet = [0u8];
            // SAFETY: one octet.
            unsafe { enter(libc::SYS_read, [reads as usize, octet.as_mut_ptr() as usize, 1]) };
            for _ in 0..20 {
                let request = recv(p.acceptor, 20, 0);
                send(p.acceptor, request.as_bytes(), MSG_NOSIGNAL);
            }
            note("end", recv(p.acceptor, 20, 0));
        });
        close(p.acceptor);
        let others: Vec<Pair> = (0..4).map(|_| pair()).collect();
        close(reads);
        close(writes);
        for _ in 0..20 {
            send(p.connector, b"served", 0);
            note(name, recv(p.connector, 20, 0));
            others.iter().for_each(|&other| exchange(other, "others"));
        }
        close(p.connector);
        note("child", end_of(child));
        others.into_iter().for_each(Pair::close);
    }
}

/// A child's child, made by any call from a child made by any call.
pub fn grandchildren() {
    for &(first, make) in COPIES {
        for &(second, again) in COPIES {
            let p = pair();
            let child = child_by(make, || {
                let grandchild = child_by(again, || exchange(p, second));
                note("grandchild", end_of(grandchild));
                exchange(p, first);
            });
            note("child", end_of(child));
            exchange(p, "here");
            close(p.acceptor);
            note("end", recv(p.connector, 8, 0));
            close(p.connector);
        }
    }
}

/// Runs `f` in a child by clone(3), which returns at once, or when the child has ended.
fn on_stack<F: Fn()>(flags: c_int, f: &F) -> c_int {
    extern "C" fn run<F: Fn()>(f: *mut c_void) -> c_int {
        // SAFETY: on_stack has it, and waits for the end of a child that shares the memory.
        unsafe { (*f.cast::<F>())() };
        std::io::stdout().flush().expect("flush");
        7
    }
    std::io::stdout().flush().expect("flush");
    const STACK: usize = 1 << 20;
    // SAFETY: a stack of its own, which is never freed; the function lives until the child has ended.
    unsafe {
        let stack = libc::mmap(
            std::ptr::null_mut(),
            STACK,
            libc::PROT_READ | libc::PROT_WRITE,
            libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
            -1,
            0,
        );
        let place = std::ptr::from_ref(f).cast_mut().cast();
        libc::clone(run::<F>, stack.byte_add(STACK), flags | SIGCHLD, place)
    }
}

/// clone(3) without CLONE_VM.
pub fn cloned_on_a_stack() {
    let (p, q) = (pair(), pair());
    let child = on_stack(0, &|| {
        exchange(p, "child");
        close(q.connector);
        close(q.acceptor);
        note("pipe", through_pipe(pipe_at()));
    });
    note("child", end_of(child));
    exchange(p, "here");
    exchange(q, "here");
    p.close();
    q.close();
}

/// A child that shares the memory, while its parent waits: what it closes is its own.
pub fn shared_memory() {
    let (p, q) = (pair(), pair());
    let child = on_stack(libc::CLONE_VM | libc::CLONE_VFORK, &|| {
        exchange(p, "child");
        close(q.connector);
        close(q.acceptor);
        // Copies of the child's memory have the child's descriptors, not those of the table.
        let pipe = pipe_at();
        let grandchild = child_by(COPIES[0].1, || {
            note("grandchild", through_pipe(pipe));
            exchange(p, "grandchild");
        });
        note("grandchild", end_of(grandchild));
    });
    note("child", end_of(child));
    exchange(p, "here");
    exchange(q, "here");
    p.close();
    q.close();
}

extern "C" {
    fn vfork() -> i32;
}

/// Calls vfork(2), whose child closes a descriptor and ends.
///
/// # Safety
/// It has no preconditions. The child returns from vfork(2) on the stack of its parent, so that no compiler may see it.
#[unsafe(naked)]
unsafe extern "C" fn vfork_to_close(fd: i32) -> i32 {
    #[cfg(target_arch = "x86_64")]
    core::arch::naked_asm!(
        "push rbx", "mov ebx, edi", "call {vfork}", "test eax, eax", "jne 2f", "mov edi, ebx", "call {close}",
        "xor edi, edi", "call {exit}", "2: pop rbx", "ret",
        vfork = sym vfork, close = sym libc::close, exit = sym libc::_exit
    );
    #[cfg(target_arch = "aarch64")]
    core::arch::naked_asm!(
        "stp x29, x30, [sp, #-32]!", "str x19, [sp, #16]", "mov w19, w0", "bl {vfork}", "cbnz w0, 2f", "mov w0, w19",
        "bl {close}", "mov w0, #0", "bl {exit}", "2: ldr x19, [sp, #16]", "ldp x29, x30, [sp], #32", "ret",
        vfork = sym vfork, close = sym libc::close, exit = sym libc::_exit
    );
}

/// What a child of vfork(2) closes is its own, each time that there is one.
pub fn closed_by_vfork() {
    let p = pair();
    for _ in 0..3 {
        // SAFETY: no preconditions.
        note("child", end_of(unsafe { vfork_to_close(p.connector) }));
        exchange(p, "here");
    }
    p.close();
}

/// A child that shares the memory, beside its parent: it has other connections by the same numbers.
pub fn shared_memory_beside() {
    let (p, q) = (pair(), pair());
    let [reads, writes] = pipe_at();
    send(p.connector, b"in the ring", 0);
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let server = listener.local_addr().unwrap();
    let child = on_stack(libc::CLONE_VM, &|| {
        use std::os::fd::IntoRawFd;
        close_unseen(q.connector);
        let connector = std::net::TcpStream::connect(server).expect("connect").into_raw_fd();
        let own = Pair { connector, acceptor: listener.accept().expect("accept").0.into_raw_fd() };
        note("numbers", own.connector == q.connector);
        (0..20).for_each(|_| exchange(own, "child"));
        own.close();
        // SAFETY: one octet.
        unsafe { enter(libc::SYS_write, [writes as usize, [0u8].as_ptr() as usize, 1]) };
    });
    let mut octet = [0u8];
    // SAFETY: one octet.
    unsafe { enter(libc::SYS_read, [reads as usize, octet.as_mut_ptr() as usize, 1]) };
    note("child", end_of(child));
    note("recv", recv(p.acceptor, 20, 0));
    (0..20).for_each(|_| exchange(q, "here"));
    (0..20).for_each(|_| exchange(p, "here"));
    p.close();
    q.close();
}

/// Allows as many descriptors as `limit`; those that are open stay.
fn limit_descriptors(limit: u64) {
    let value = libc::rlimit { rlim_cur: limit, rlim_max: limit };
    // SAFETY: the structure is this function's.
    assert_eq!(unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, &value) }, 0);
}

/// A sandbox as vsftpd's and sshd's: no further descriptors, so that not even one may be polled.
pub fn without_descriptors() {
    for limit in [0, 1, 2, 3] {
        for on_rings in [true, false] {
            let p = if on_rings { pair() } else { fresh() };
            let child = child_by(COPIES[0].1, || {
                close(p.connector);
                limit_descriptors(limit);
                serve(p.acceptor);
            });
            close(p.acceptor);
            let seen = request(p.connector);
            close(p.connector);
            note("child", end_of(child));
            note("replies", seen);
        }
    }
}

/// Waits for what it receives and sends, with a time limit at last.
fn serve(fd: c_int) {
    for _ in 0..4 {
        let request = recv(fd, 20, 0);
        std::thread::sleep(std::time::Duration::from_millis(5));
        send(fd, request.as_bytes(), MSG_NOSIGNAL);
    }
    note("poll", poll(fd, libc::POLLIN, 1000));
    note("all", recv(fd, 1 << 20, libc::MSG_WAITALL).len());
    note("sent", send(fd, &vec![b'x'; 4 << 20], MSG_NOSIGNAL));
    set_option(fd, libc::SO_RCVTIMEO, libc::timeval { tv_sec: 0, tv_usec: 20_000 });
    note("time limit", recv(fd, 20, 0));
    set_option(fd, libc::SO_RCVTIMEO, libc::timeval { tv_sec: 0, tv_usec: 0 });
    note("recv", recv(fd, 20, 0));
    note("end", recv(fd, 20, 0));
}

/// Returns the other end of serve. It returns what it saw, since both write to one place.
fn request(fd: c_int) -> String {
    let mut seen = String::new();
    for _ in 0..4 {
        std::thread::sleep(std::time::Duration::from_millis(5));
        send(fd, b"a request", 0);
        seen += &recv(fd, 20, 0);
    }
    seen += &send(fd, &vec![b'y'; 1 << 20], 0).to_string();
    std::thread::sleep(std::time::Duration::from_millis(20));
    let mut left = 4 << 20;
    let mut buffer = vec![0u8; 1 << 16];
    while left > 0 {
        // SAFETY: the buffer has that many octets.
        left -= unsafe { libc::recv(fd, buffer.as_mut_ptr().cast(), buffer.len(), 0) };
    }
    // Later than the time limit of the other end, also on a busy machine.
    std::thread::sleep(std::time::Duration::from_millis(150));
    send(fd, b"the last one", 0);
    seen
}

/// Threads that have not waited before the limit, and poll(2) of as many as the limit allows.
pub fn threads_without_descriptors() {
    let p = pair();
    let q = pair();
    let child = child_by(COPIES[0].1, || {
        limit_descriptors(2);
        let reader = std::thread::spawn(move || recv(p.acceptor, 20, 0));
        std::thread::sleep(std::time::Duration::from_millis(20));
        send(p.connector, b"to a thread", 0);
        note("thread", reader.join().unwrap());
        let later = std::thread::spawn(move || {
            std::thread::sleep(std::time::Duration::from_millis(20));
            send(q.connector, b"to poll", 0);
        });
        let one = |fd| libc::pollfd { fd, events: libc::POLLIN, revents: 0 };
        let mut both = [one(p.acceptor), one(q.acceptor)];
        // SAFETY: two descriptors.
        note("poll", unsafe { libc::poll(both.as_mut_ptr(), 2, 2000) });
        note("events", both.map(|one| bits(one.revents as u32)).join(" "));
        later.join().unwrap();
        note("recv", recv(q.acceptor, 20, 0));
        exchange(p, "after that");
        exchange(q, "after that");
    });
    note("child", end_of(child));
    p.close();
    q.close();
}
