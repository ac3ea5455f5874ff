// SPDX-License-Identifier: Apache-2.0

//! Calls that send and receive, and may wait.

use crate::conn::peer::{self, keep};
use crate::conn::receive::{self, OTHER_FILE, STUCK};
use crate::conn::stream::{blocks, is_kernels, queued};
use crate::conn::{earn, offer, order, send, Buffers, Session, Sink, LONG, SHORT};
use crate::ready::wait;
use crate::ring::Parts;
use crate::sys::errno::{self, EAGAIN, ECONNRESET};
use crate::sys::{real, socket, uncancelled, Errno, Outcome};
use core::sync::atomic::Ordering;
use libc::{c_int, MSG_DONTWAIT, MSG_PEEK, MSG_WAITALL};

/// A session that receives.
#[derive(Clone, Copy)]
pub struct Receiver {
    pub session: &'static Session,
    pub fd: c_int,
    /// Forgets the session if the descriptor is another file now.
    pub verify: fn(c_int),
}

impl Receiver {
    /// Does recv(2) on a session.
    pub fn receive(self, parts: Parts, flags: c_int) -> Outcome {
        let Self { session, fd, .. } = self;
        uncancelled::test();
        offer::before(session, fd);
        if flags & MSG_PEEK != 0 {
            return self.peek(Buffers { parts, flags });
        }
        self.take(parts, flags)
    }

    /// Receives octets that stay where they are. It waits for as many as a receive that takes them.
    fn peek(self, sink: Buffers) -> Outcome {
        let Self { session, fd, .. } = self;
        let (parts, flags) = (sink.parts, sink.flags);
        let least = least(session, parts.length(), flags);
        if least <= 1 || !blocks(session, fd, flags) {
            return self.take(parts, flags);
        }
        let deadline = wait::limit_of_receive(fd);
        let mut few = self.take(parts, flags)?;
        while few > 0 && few < least && wait::further(session, fd, few, deadline) == Ok(true) {
            let more = self.take(parts, flags | MSG_DONTWAIT).unwrap_or(few);
            // Octets that the kernel has behind the ring cannot be seen before the others are taken.
            if more <= few && queued(session, fd) > few {
                break;
            }
            few = more;
        }
        Ok(few)
    }

    fn take(self, parts: Parts, flags: c_int) -> Outcome {
        let Self { session, fd, .. } = self;
        let wanted = parts.length();
        let mut done = 0;
        loop {
            let sink = Buffers { parts: parts.after(done), flags };
            let pauses = if blocks(session, fd, flags) { LONG } else { SHORT };
            let mut result = receive::try_once(session, fd, &sink, pauses);
            let waits = result == Err(EAGAIN) && blocks(session, fd, flags);
            let by_kernel = waits && is_kernels(session, &session.end().receive);
            if by_kernel {
                // SAFETY: the buffers are the program's, for this call.
                result = sink.parts.message(|m| errno::outcome(unsafe { real::recvmsg(fd, m, flags) }));
                if matches!(result, Ok(0) | Err(ECONNRESET)) {
                    result = self.ended_by_kernel(&sink, result);
                }
            }
            match result {
                Ok(n) => {
                    order::answered(session);
                    done += n;
                    let is_short = done < least(session, wanted, flags) && flags & MSG_PEEK == 0;
                    let goes_on = n > 0 && is_short && blocks(session, fd, flags);
                    if !goes_on {
                        return Ok(done).inspect(|_| offer::after(session, fd));
                    }
                }
                Err(EAGAIN) if waits && !by_kernel => match wait::readable(session, fd) {
                    // The kernel waits, and then has copied all that there is room for.
                    _ if wanted == 0 => return Ok(0),
                    Ok(()) => {}
                    Err(error) => {
                        return self.last_receive(&sink, error).map_or_else(|e| some(done, e), |n| Ok(done + n))
                    }
                },
                Err(STUCK) => return some(done, EAGAIN),
                Err(OTHER_FILE) => {
                    (self.verify)(fd);
                    // SAFETY: the buffers are the program's, for this call.
                    let rest = sink.parts.message(|m| errno::outcome(unsafe { real::recvmsg(fd, m, flags) }));
                    return rest.map_or_else(|error| some(done, error), |n| Ok(done + n));
                }
                Err(error) if done > 0 => {
                    keep(session, error);
                    return Ok(done);
                }
                Err(error) => return Err(error),
            }
        }
    }

    /// Like `try_once`, for who does not wait: a descriptor that is another file now is the kernel's at the next call.
    pub fn attempt(self, sink: &impl Sink) -> Outcome {
        match receive::try_once(self.session, self.fd, sink, SHORT) {
            Err(STUCK) => Err(EAGAIN),
            Err(OTHER_FILE) => {
                (self.verify)(self.fd);
                Err(EAGAIN)
            }
            other => other,
        }
    }

    /// Returns the result of a receive after the kernel's own call has met the end.
    fn ended_by_kernel(self, sink: &Buffers, result: Outcome) -> Outcome {
        match result {
            Ok(_) => self.attempt(sink),
            Err(_) => result.inspect_err(|_| peer::is_reset(self.session)),
        }
    }

    /// Receives after a wait that ended with an error. Octets that are fewer than SO_RCVLOWAT did not end it.
    fn last_receive(self, sink: &Buffers, error: Errno) -> Outcome {
        match socket::option(self.fd, libc::SO_RCVLOWAT) {
            Some(2..) => self.attempt(sink).map_err(|_| error),
            _ => Err(error),
        }
    }
}

/// Returns how many octets a receive waits for: all, or SO_RCVLOWAT.
fn least(session: &Session, wanted: usize, flags: c_int) -> usize {
    match flags & MSG_WAITALL {
        0 => wanted.min(session.end().low_mark.load(Ordering::Relaxed) as usize),
        _ => wanted,
    }
}

pub fn some(done: usize, error: Errno) -> Outcome {
    if done > 0 {
        Ok(done)
    } else {
        Err(error)
    }
}

/// Does send(2) on a session. A blocking one returns when all octets are sent.
pub fn send(session: &'static Session, fd: c_int, parts: Parts, flags: c_int) -> Outcome {
    uncancelled::test();
    offer::before(session, fd);
    let wanted = parts.length();
    let mut done = 0;
    loop {
        let portion = earn::portion(session, fd, wanted - done);
        let source = Buffers { parts: parts.after(done).at_most(portion), flags };
        let mut result = send::attempt(session, fd, &source);
        let waits = result == Err(EAGAIN) && blocks(session, fd, flags);
        let by_kernel = waits && is_kernels(session, &session.end().send);
        if by_kernel {
            // SAFETY: the buffers are the program's, for this call.
            result = source.parts.message(|m| errno::outcome(unsafe { real::sendmsg(fd, m, flags) }));
            order::sent(session);
        }
        match result {
            Ok(n) => {
                done += n;
                if done >= wanted || n < portion && !blocks(session, fd, flags) {
                    return Ok(done).inspect(|_| offer::after(session, fd));
                }
                offer::within(session, fd, wanted - done);
            }
            Err(EAGAIN) if waits && !by_kernel => {
                if let Err(error) = wait::writable(session, fd) {
                    return if done > 0 { Ok(done) } else { Err(error) };
                }
            }
            Err(error) if done > 0 => {
                keep(session, error);
                return Ok(done);
            }
            Err(error) => return Err(error),
        }
    }
}
