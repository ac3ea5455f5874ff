// SPDX-License-Identifier: Apache-2.0

//! splice(2) with a session at one end and a pipe at the other.
//!
//! A connection that stays on the kernel for good is spliced by the kernel. What others have, and a ring, is copied to
//! the pipe, and what a pipe has into the ring, by calls that never wait for the pipe, whatever flags its descriptor
//! has: how much a pipe has room for cannot be computed, since a short write takes a slot of it. As on the kernel
//! SPLICE_F_NONBLOCK is for the pipe alone, and O_NONBLOCK of the socket for the socket.

use crate::conn::receive::peek;
use crate::conn::stream::blocks;
use crate::conn::{offer, send, Buffers, Session, Sink, Source};
use crate::ready::{wait, Receiver};
use crate::ring::parts::one;
use crate::ring::{Octets, Parts};
use crate::sys::errno::{self, EAGAIN, EBADF, EINTR, EINVAL, ENOSYS, EOPNOTSUPP, EPERM, EPIPE};
use crate::sys::syscall::direct;
use crate::sys::{real, uncancelled, Mmap, Outcome};
use core::cell::Cell;
use core::ptr::null_mut;
use libc::{c_int, iovec, MSG_DONTWAIT, MSG_PEEK, POLLERR, POLLIN, POLLOUT, SPLICE_F_NONBLOCK};

/// What the kernel's connection of a blocking socket gets at once: as much as one with room surely takes.
const PORTION: usize = 4096;

/// What a pipe takes at once by a copy.
const PIPE_BYTES: usize = 65536;

/// Of linux/fs.h.
const RWF_NOWAIT: usize = 8;

/// An end of a splice: a session, or a descriptor that has none.
pub enum End {
    Session(Receiver),
    Other(c_int),
}

/// Does splice(2) if one end is a session.
pub fn splice(from: End, to: End, count: usize, flags: u32) -> Outcome {
    const KNOWN: u32 = libc::SPLICE_F_MOVE | SPLICE_F_NONBLOCK | libc::SPLICE_F_MORE | libc::SPLICE_F_GIFT;
    if count == 0 {
        return Ok(0);
    }
    if flags & !KNOWN != 0 {
        return Err(EINVAL);
    }
    match (from, to) {
        (End::Session(from), End::Other(to)) => to_pipe(from, Pipe::open(to, count, flags)?),
        (End::Other(from), End::Session(to)) => from_pipe(to.session, Pipe::open(from, count, flags)?, to.fd),
        _ => Err(EINVAL),
    }
}

/// Returns whether a descriptor is one end of a pipe.
fn is_pipe(fd: c_int) -> Outcome<bool> {
    // SAFETY: zero is a valid stat.
    let mut about: libc::stat = unsafe { core::mem::zeroed() };
    // SAFETY: fstat stores a stat.
    errno::outcome(unsafe { libc::fstat(fd, &mut about) } as isize)?;
    Ok(about.st_mode & libc::S_IFMT == libc::S_IFIFO)
}

/// The other end of a splice.
struct Pipe {
    fd: c_int,
    count: usize,
    flags: u32,
    /// O_NONBLOCK and the access mode of the descriptor.
    mode: c_int,
    /// The socket may be in a sockmap: splice(2) does not find what is in its queue there.
    by_copy: bool,
    /// It was the pipe that had no room, or no octets.
    blocked: Cell<bool>,
}

impl Pipe {
    fn open(fd: c_int, count: usize, flags: u32) -> Outcome<Self> {
        if !is_pipe(fd)? {
            return Err(EINVAL);
        }
        // SAFETY: fcntl of a descriptor.
        let mode = unsafe { real::fcntl(fd, libc::F_GETFL, 0) };
        Ok(Self { fd, count, flags, mode, by_copy: true, blocked: Cell::new(false) })
    }

    fn access(&self) -> c_int {
        self.mode & libc::O_ACCMODE
    }

    fn waits(&self) -> bool {
        self.flags & SPLICE_F_NONBLOCK == 0 && self.mode & libc::O_NONBLOCK == 0
    }

    /// Notes that the pipe is what an attempt has to wait for.
    fn block(&self) -> Outcome {
        self.blocked.set(true);
        Err(EAGAIN)
    }

    /// Calls splice(2) of the kernel, which does not wait for the pipe.
    fn by_kernel(&self, from: c_int, to: c_int) -> Outcome {
        let flags = self.flags | SPLICE_F_NONBLOCK;
        // SAFETY: descriptors without offsets.
        errno::outcome(unsafe { uncancelled::splice(from, null_mut(), to, null_mut(), self.count, flags) })
    }

    /// Returns whether the pipe has one of `events`, which are POLLIN or POLLOUT, or an end.
    fn has(&self, events: i16) -> bool {
        real::poll_one(self.fd, events) != 0
    }
}

/// A pipe that a receive fills.
struct IntoPipe<'a>(&'a Pipe, usize);

impl Sink for IntoPipe<'_> {
    fn after(&self, n: usize) -> Self {
        Self(self.0, self.1 - n)
    }

    fn at_most(&self, n: usize) -> Self {
        Self(self.0, self.1.min(n))
    }

    fn length(&self) -> usize {
        self.1
    }

    fn keeps(&self) -> bool {
        false
    }

    fn is_urgent(&self) -> bool {
        false
    }

    fn count(&self, fd: c_int) -> Outcome {
        let mut some = [0u8; 4096];
        let part = one(some.as_mut_ptr().cast(), some.len().min(self.1));
        // SAFETY: a buffer of this function.
        let parts = unsafe { Parts::new(&part, 1) };
        Buffers { parts, flags: 0 }.count(fd)
    }

    fn by_kernel(&self, fd: c_int) -> Outcome {
        if peek(fd)? == 0 {
            return Ok(0);
        }
        match self.0.by_copy {
            true => self.copy(fd),
            false => self.splice(fd),
        }
    }

    fn by_ring(&self, octets: &Octets, index: u64, available: usize) -> Outcome {
        let regions = octets.regions(index, available.min(self.1));
        match put(self.0.fd, &regions) {
            Err(EAGAIN) => self.0.block(),
            other => other,
        }
    }
}

impl IntoPipe<'_> {
    /// Has the kernel splice. A blocking socket has octets, so it does not wait.
    fn splice(&self, fd: c_int) -> Outcome {
        let pipe = Pipe { count: self.1, blocked: Cell::new(false), ..*self.0 };
        for _ in 0..2 {
            match pipe.by_kernel(fd, pipe.fd) {
                Err(EAGAIN) if !pipe.has(POLLOUT) => return self.0.block(),
                // Another thread has taken something from a full pipe.
                Err(EAGAIN) => {}
                other => return other,
            }
        }
        Err(EAGAIN)
    }

    /// Takes from the socket what the pipe has taken.
    fn copy(&self, fd: c_int) -> Outcome {
        let mut buffer = alloc::vec![0u8; PIPE_BYTES.min(self.1)];
        let receive = |from: &mut [u8], flags| {
            // SAFETY: the buffer has that many octets.
            errno::outcome(unsafe { uncancelled::recv(fd, from.as_mut_ptr().cast(), from.len(), flags | MSG_DONTWAIT) })
        };
        let n = receive(&mut buffer, MSG_PEEK)?;
        let taken = match put(self.0.fd, &[one(buffer.as_mut_ptr().cast(), n), one(null_mut(), 0)]) {
            Err(EAGAIN) => return self.0.block(),
            other => other?,
        };
        let mut done = 0;
        while done < taken {
            done += match receive(buffer.get_mut(done..taken).unwrap_or_default(), 0)? {
                0 => break,
                more => more,
            };
        }
        Ok(taken)
    }
}

/// Writes to a pipe without waiting. Not all kernels and kinds of pipes can: then it gives the pipe pages.
fn put(pipe: c_int, regions: &[iovec; 2]) -> Outcome {
    let current = usize::MAX;
    let arguments = [pipe as usize, regions.as_ptr() as usize, regions.len(), current, current, RWF_NOWAIT];
    // SAFETY: the regions are those of a ring.
    match errno::outcome(unsafe { direct(libc::SYS_pwritev2, arguments) } as isize) {
        Err(EOPNOTSUPP | ENOSYS | EPERM) => give(pipe, regions),
        other => other,
    }
}

/// Puts octets into a pipe as pages that nobody else has.
fn give(pipe: c_int, regions: &[iovec; 2]) -> Outcome {
    // SAFETY: the regions are those of a ring.
    let from = unsafe { Parts::new(regions.as_ptr(), regions.len()) };
    let length = from.length();
    let mapped = Mmap::private(length)?;
    let mut done = 0;
    for region in regions {
        // SAFETY: the mapping is as large as both regions.
        unsafe { mapped.as_ptr().add(done).copy_from_nonoverlapping(region.iov_base.cast(), region.iov_len) };
        done += region.iov_len;
    }
    let page = one(mapped.as_ptr().cast(), length);
    let arguments = [pipe as usize, core::ptr::from_ref(&page) as usize, 1, SPLICE_F_NONBLOCK as usize, 0, 0];
    // SAFETY: nobody changes the pages afterwards.
    errno::outcome(unsafe { direct(libc::SYS_vmsplice, arguments) } as isize)
}

/// Moves what the session has into a pipe. The kernel looks at the pipe first.
fn to_pipe(receiver: Receiver, mut pipe: Pipe) -> Outcome {
    let Receiver { session, fd, .. } = receiver;
    if pipe.access() == libc::O_RDONLY {
        return Err(EBADF);
    }
    offer::before(session, fd);
    pipe.by_copy = !offer::is_settled(session);
    loop {
        let state = real::poll_one(pipe.fd, POLLOUT);
        if state & POLLERR != 0 {
            // SAFETY: the signal that the kernel sends for a pipe without readers.
            unsafe { libc::raise(libc::SIGPIPE) };
            return Err(EPIPE);
        }
        if state & POLLOUT == 0 {
            if !pipe.waits() {
                return Err(EAGAIN);
            }
            wait::pipe(pipe.fd, POLLOUT)?;
            continue;
        }
        pipe.blocked.set(false);
        match receiver.attempt(&IntoPipe(&pipe, pipe.count)) {
            Err(EAGAIN) if pipe.blocked.get() => {}
            Err(EAGAIN) if blocks(session, fd, 0) => wait::readable(session, fd)?,
            other => return other.inspect(|_| offer::after(session, fd)),
        }
    }
}

/// A pipe that a send empties of `count` octets at most.
struct FromPipe<'a> {
    pipe: &'a Pipe,
    count: usize,
    /// The socket has no O_NONBLOCK.
    may_wait: bool,
}

impl Source for FromPipe<'_> {
    fn length(&self) -> usize {
        self.count
    }

    fn is_urgent(&self) -> bool {
        false
    }

    fn by_kernel(&self, fd: c_int) -> Outcome {
        if !self.pipe.has(POLLIN) {
            return self.pipe.block();
        }
        if !self.may_wait {
            return Pipe { count: self.count, blocked: Cell::new(false), ..*self.pipe }.by_kernel(self.pipe.fd, fd);
        }
        // A send of nothing fails if any would, before something is taken from the pipe.
        // SAFETY: no octets.
        errno::outcome(unsafe { uncancelled::send(fd, null_mut(), 0, MSG_DONTWAIT) })?;
        match real::poll_one(fd, POLLOUT) {
            0 => Err(EAGAIN),
            _ => self.portion(fd),
        }
    }

    fn by_ring(&self, octets: &Octets, index: u64, room: usize) -> Outcome {
        take(self.pipe, &octets.regions(index, room))
    }

    fn rescue(&self, fd: c_int, octets: &Octets, index: u64, count: usize) -> Option<Outcome> {
        Some(send_all(fd, &octets.regions(index, count)))
    }
}

impl FromPipe<'_> {
    /// Copies some octets to the kernel's connection of a blocking socket that has room: its splice(2) would wait.
    fn portion(&self, fd: c_int) -> Outcome {
        let mut some = [0u8; PORTION];
        let mut regions = [one(some.as_mut_ptr().cast(), self.count.min(PORTION)), one(null_mut(), 0)];
        regions[0].iov_len = take(self.pipe, &regions)?;
        send_all(fd, &regions)
    }
}

/// Sends what was taken from a pipe by the kernel's connection. The pipe cannot take it back, so this waits in the
/// rare case that the connection has no room for so little.
fn send_all(fd: c_int, regions: &[iovec; 2]) -> Outcome {
    // SAFETY: the regions are the caller's.
    let all = unsafe { Parts::new(regions.as_ptr(), regions.len()) };
    let (mut done, count) = (0, all.length());
    while done < count {
        match Source::by_kernel(&Buffers { parts: all.after(done), flags: 0 }, fd) {
            Ok(n) => done += n,
            Err(EAGAIN | EINTR) => drop(wait::pipe(fd, POLLOUT)),
            Err(error) => return Err(error),
        }
    }
    Ok(count)
}

/// Reads from a pipe without waiting.
fn take(pipe: &Pipe, regions: &[iovec; 2]) -> Outcome {
    let flags = SPLICE_F_NONBLOCK as usize;
    let arguments = [pipe.fd as usize, regions.as_ptr() as usize, regions.len(), flags, 0, 0];
    let mut result = Err(ENOSYS);
    if pipe.access() == libc::O_RDONLY {
        // SAFETY: the regions are those of a ring. By a descriptor for reading vmsplice(2) copies to them.
        result = errno::outcome(unsafe { direct(libc::SYS_vmsplice, arguments) } as isize);
    }
    if matches!(result, Err(ENOSYS | EPERM)) {
        result = match pipe.has(POLLIN) {
            // SAFETY: as above.
            true => errno::outcome(unsafe { uncancelled::readv(pipe.fd, regions.as_ptr(), regions.len() as c_int) }),
            false => Err(EAGAIN),
        };
    }
    match result {
        Err(EAGAIN) => pipe.block(),
        other => other,
    }
}

/// Sends what a pipe has.
fn from_pipe(session: &'static Session, pipe: Pipe, fd: c_int) -> Outcome {
    if pipe.access() == libc::O_WRONLY {
        return Err(EBADF);
    }
    offer::before(session, fd);
    let mut done = 0;
    loop {
        pipe.blocked.set(false);
        let may_wait = blocks(session, fd, 0);
        let source = FromPipe { pipe: &pipe, count: pipe.count - done, may_wait };
        let result = match send::attempt(session, fd, &source) {
            Ok(n) => {
                done += n;
                match n > 0 && done < pipe.count && may_wait {
                    true => continue,
                    false => return Ok(done).inspect(|_| offer::after(session, fd)),
                }
            }
            Err(EAGAIN) if pipe.blocked.get() && pipe.waits() && done == 0 => wait::pipe(pipe.fd, POLLIN),
            Err(EAGAIN) if !pipe.blocked.get() && may_wait => wait::writable(session, fd),
            other => other.map(drop),
        };
        match result {
            Err(_) if done > 0 => return Ok(done),
            other => other?,
        }
    }
}
