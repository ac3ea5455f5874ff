// SPDX-License-Identifier: Apache-2.0

//! Other programs that inherit a connection, started by each function of the C library that starts one.

use crate::sys::*;
use libc::{c_char, c_int};
use std::ffi::{CStr, CString};
use std::os::fd::{AsRawFd, FromRawFd, IntoRawFd, OwnedFd};
use std::process::{Command, Stdio};
use std::ptr::null;

extern "C" {
    static environ: *const *const c_char;
    fn execveat(folder: c_int, path: *const c_char, list: List, environment: List, flags: c_int) -> c_int;
}

type List = *const *const c_char;

/// The program has more arguments than registers have room for. It says that it runs, and answers each line with its
/// arguments and the line.
const SCRIPT: &CStr = c"echo ready; while read -r line; do echo \"$line: $* $MARK\"; done";
const WORDS: [&CStr; 12] = [c"sh", c"-c", SCRIPT, c"sh", c"a1", c"a2", c"a3", c"a4", c"a5", c"a6", c"a7", c"end"];
const ENVIRONMENT: [&CStr; 2] = [c"MARK=of execle", c"PATH=/usr/bin:/bin"];
const SHELL: &CStr = c"/bin/sh";

/// A call that does not return if it succeeds.
type Start = unsafe fn(List) -> c_int;

/// Calls a function with the list as arguments.
macro_rules! variadic {
    ($name:ident($path:expr, $list:ident $(, $more:expr)*)) => {{
        let w = |i: usize| *$list.add(i);
        libc::$name(
            $path.as_ptr(), w(0), w(1), w(2), w(3), w(4), w(5), w(6), w(7), w(8), w(9), w(10), w(11), null::<c_char>() $(, $more)*
        )
    }};
}

// SAFETY (all): the list ends with a null pointer and its words with a zero octet.
const STARTS: &[(&str, Start)] = &[
    // SAFETY: as above.
    ("execv", |list| unsafe { libc::execv(SHELL.as_ptr(), list) }),
    // SAFETY: as above.
    ("execve", |list| unsafe { libc::execve(SHELL.as_ptr(), list, environ) }),
    // SAFETY: as above.
    ("execvp", |list| unsafe { libc::execvp(c"sh".as_ptr(), list) }),
    // SAFETY: as above.
    ("execvpe", |list| unsafe { libc::execvpe(c"sh".as_ptr(), list, environ) }),
    // SAFETY: as above.
    ("execl", |list| unsafe { variadic!(execl(SHELL, list)) }),
    // SAFETY: as above.
    ("execlp", |list| unsafe { variadic!(execlp(c"sh", list)) }),
    // SAFETY: as above; the environment ends with a null pointer, too.
    ("execle", |list| unsafe {
        let environment = [ENVIRONMENT[0].as_ptr(), ENVIRONMENT[1].as_ptr(), null()];
        variadic!(execle(SHELL, list, environment.as_ptr()))
    }),
    // SAFETY: as above.
    ("fexecve", |list| unsafe { libc::fexecve(open_shell(), list, environ) }),
    // SAFETY: as above.
    ("execveat", |list| unsafe { execveat(open_shell(), c"".as_ptr(), list, environ, libc::AT_EMPTY_PATH) }),
];

fn open_shell() -> c_int {
    // SAFETY: the path ends with a zero octet.
    unsafe { libc::open(SHELL.as_ptr(), libc::O_RDONLY | libc::O_CLOEXEC) }
}

/// A child of fork with the connection as its standard input and output runs another program.
pub fn executed_functions() {
    for (name, start) in STARTS {
        let p = pair();
        let child = in_child(|| {
            close(p.connector);
            let words: Vec<*const c_char> = WORDS.iter().map(|word| word.as_ptr()).chain([null()]).collect();
            // SAFETY: copies of a descriptor; the list as above.
            unsafe {
                libc::dup2(p.acceptor, 0);
                libc::dup2(p.acceptor, 1);
                start(words.as_ptr());
                libc::_exit(100 + errno());
            }
        });
        close(p.acceptor);
        note(name, converse(p.connector));
        note("child", end_of(child));
    }
}

/// Makes three lines answered, and ends the connection.
fn converse(fd: c_int) -> String {
    // With octets in the ring, exec would be refused.
    let mut answers = vec![recv(fd, 20, 0).trim_end().to_owned()];
    for i in 1..=3 {
        send(fd, format!("line {i}\n").as_bytes(), libc::MSG_NOSIGNAL);
        answers.push(recv(fd, 200, 0).trim_end().to_owned());
    }
    close(fd);
    answers.join(", ")
}

/// posix_spawn(3) with the connection as standard input and output, as this is what std::process does.
pub fn spawned() {
    let p = pair();
    // SAFETY: the descriptor is open, and owned by the case.
    let owned = |fd| unsafe { OwnedFd::from_raw_fd(fd) };
    let acceptor = owned(p.acceptor);
    let copy = acceptor.try_clone().expect("dup");
    let script = SCRIPT.to_str().unwrap();
    let mut command = Command::new("sh");
    command.args(["-c", script, "sh", "spawned"]).stdin(Stdio::from(acceptor)).stdout(Stdio::from(copy));
    let mut child = command.spawn().expect("spawn");
    drop(command);
    note("spawned", converse(p.connector));
    note("child", child.wait().expect("wait"));
}

/// A shell that system(3) and popen(3) start writes to a connection that it inherits, which goes on here afterwards.
pub fn shells() {
    let p = pair();
    // SAFETY: fcntl of a descriptor.
    unsafe { libc::fcntl(p.acceptor, libc::F_SETFD, 0) };
    let script = |text: &str| CString::new(format!("echo {text} >&{}", p.acceptor)).unwrap();
    let by_system = script("system");
    // SAFETY: the text ends with a zero octet.
    note("system", outcome(unsafe { libc::system(by_system.as_ptr()) } as isize));
    note("recv", recv(p.connector, 20, 0));
    let by_popen = script("popen");
    // SAFETY: as above; the stream is closed.
    note("popen", unsafe {
        let stream = libc::popen(by_popen.as_ptr(), c"r".as_ptr());
        assert!(!stream.is_null(), "{}", name(errno()));
        libc::pclose(stream)
    });
    note("recv", recv(p.connector, 20, 0));
    for (from, to) in [(p.connector, p.acceptor), (p.acceptor, p.connector)] {
        send(from, b"goes on", 0);
        note("recv", recv(to, 20, 0));
    }
    close(p.acceptor);
    note("end", recv(p.connector, 20, 0));
    close(p.connector);
}

/// Waiting ends of a connection whose rings another process of the same end leaves.
pub fn executed_beside_waits() {
    let (p, q) = (pair(), pair());
    let e = epoll();
    add(e, p.acceptor, libc::EPOLLIN, 1);
    add(e, p.connector, libc::EPOLLIN, 2);
    let full = std::thread::spawn(move || send(q.connector, &vec![b'x'; 4 << 20], 0));
    std::thread::sleep(std::time::Duration::from_millis(50));
    let child = in_child(|| {
        // SAFETY: fcntl of descriptors; the words end with a null pointer.
        unsafe {
            libc::fcntl(p.acceptor, libc::F_SETFD, 0);
            libc::fcntl(q.connector, libc::F_SETFD, 0);
            libc::execl(c"/bin/true".as_ptr(), c"true".as_ptr(), null::<c_char>());
            libc::_exit(100 + errno());
        }
    });
    note("child", end_of(child));
    send(p.connector, b"request", 0);
    note("readable", wait(e, 8, 5000));
    note("recv", recv(p.acceptor, 20, 0));
    send(p.acceptor, b"reply", 0);
    note("readable", wait(e, 8, 5000));
    note("recv", recv(p.connector, 20, 0));
    let mut received = 0;
    let mut buffer = vec![0u8; 1 << 16];
    while received < 4 << 20 {
        // SAFETY: the buffer has that many octets.
        received += unsafe { libc::recv(q.acceptor, buffer.as_mut_ptr().cast(), buffer.len(), 0) };
    }
    note("a full connection", format!("{} {received}", full.join().unwrap()));
    p.close();
    q.close();
    close(e);
}

/// The C library's streams read and write by system calls of their own.
pub fn streams_of_the_c_library() {
    let p = pair();
    // SAFETY: the stream owns the descriptor; the buffers are this function's.
    unsafe {
        let stream = libc::fdopen(p.acceptor, c"r+".as_ptr());
        assert!(!stream.is_null(), "{}", name(errno()));
        send(p.connector, b"a line\n", 0);
        let mut line = [0 as c_char; 20];
        libc::fgets(line.as_mut_ptr(), 20, stream);
        note("line", CStr::from_ptr(line.as_ptr()).to_string_lossy().trim_end());
        libc::fputs(c"answer\n".as_ptr(), stream);
        libc::fflush(stream);
        note("recv", recv(p.connector, 20, 0));
        libc::fclose(stream);
    }
    note("end", recv(p.connector, 20, 0));
    close(p.connector);
}

/// Connections on rings are passed to another process, alone and in a list of messages.
pub fn passed() {
    use super::copies::{pass_descriptor, pass_in_list, receive_descriptor};
    for pass in [pass_descriptor, pass_in_list] {
        let (here, there) = std::os::unix::net::UnixStream::pair().unwrap();
        let child = in_child(|| {
            let fd = receive_descriptor(there.as_raw_fd());
            for _ in 0..20 {
                recv(fd, 1, 0);
                send(fd, b"r", 0);
            }
        });
        drop(there);
        let p = pair();
        note("passed", pass(here.as_raw_fd(), p.acceptor));
        close(p.acceptor);
        for _ in 0..20 {
            send(p.connector, b"q", 0);
            note("reply", recv(p.connector, 1, 0));
        }
        note("child", end_of(child));
        note("end", recv(p.connector, 1, 0));
        close(p.connector);
        close(here.into_raw_fd());
    }
}

/// A descriptor of this process that it gets by pidfd_getfd(2) is a copy.
pub fn taken_by_pidfd() {
    extern "C" {
        fn pidfd_getfd(process: c_int, fd: c_int, flags: u32) -> c_int;
    }
    let p = pair();
    // SAFETY: calls with numbers.
    let copy = unsafe {
        let process = libc::syscall(libc::SYS_pidfd_open, libc::getpid(), 0) as c_int;
        let copy = pidfd_getfd(process, p.acceptor, 0);
        close(process);
        copy
    };
    close(p.acceptor);
    send(p.connector, b"to the copy", 0);
    note("recv", recv(copy, 20, 0));
    send(copy, b"from the copy", 0);
    note("recv", recv(p.connector, 20, 0));
    close(copy);
    note("end", recv(p.connector, 20, 0));
    close(p.connector);
}
