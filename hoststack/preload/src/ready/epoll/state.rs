// SPDX-License-Identifier: Apache-2.0

//! In which lists of its instance an entry is.

/// What has the next wait look at an entry. A queued one is reported if it has something; a polled one is in the
/// busy-poll list, with the number of polls that have found nothing; for an idle one the peer writes the event.
///
/// | what happens | idle | queued | polled | queued and polled | disabled |
/// |---|---|---|---|---|---|
/// | enqueue: it may have something | queued | | queued and polled | | |
/// | dequeue: a wait looks at it | | idle | | polled | |
/// | poll: it has nothing, and the next wait polls it | polled | queued and polled | (polls: 0) | (polls: 0) | |
/// | arm: it has something, or nothing for long | | | idle | queued | |
/// | disable: EPOLLONESHOT has reported | disabled | disabled | disabled | disabled | |
/// | enable: EPOLL_CTL_MOD | | | | | idle |
#[derive(Debug, PartialEq, Eq, Clone, Copy)]
pub enum State {
    Idle,
    Queued,
    Polled(u32),
    QueuedAndPolled(u32),
    Disabled,
}

use State::{Disabled, Idle, Polled, Queued, QueuedAndPolled};

impl State {
    /// Returns whether the entry has to be put into the queue.
    pub fn enqueue(&mut self) -> bool {
        let before = *self;
        *self = match before {
            Idle => Queued,
            Polled(polls) => QueuedAndPolled(polls),
            other => other,
        };
        *self != before
    }

    /// Has to be called when the entry was taken out of the queue.
    pub fn dequeue(&mut self) {
        *self = match *self {
            Queued => Idle,
            QueuedAndPolled(polls) => Polled(polls),
            other => other,
        };
    }

    /// Returns whether the entry has to be put into the busy-poll list.
    pub fn poll(&mut self) -> bool {
        let before = *self;
        *self = match before {
            Idle | Polled(_) => Polled(0),
            Queued | QueuedAndPolled(_) => QueuedAndPolled(0),
            Disabled => Disabled,
        };
        self.is_polled() && !before.is_polled()
    }

    /// Has to be called when the entry was taken out of the busy-poll list.
    pub fn arm(&mut self) {
        *self = match *self {
            Polled(_) => Idle,
            QueuedAndPolled(_) => Queued,
            other => other,
        };
    }

    /// The entry has to be in no list then.
    pub fn disable(&mut self) {
        *self = Disabled;
    }

    pub fn enable(&mut self) {
        if *self == Disabled {
            *self = Idle;
        }
    }

    /// Adds polls, and returns how many there were since the last octets.
    pub fn count(&mut self, more: u32) -> u32 {
        match self {
            Polled(polls) | QueuedAndPolled(polls) => {
                *polls += more;
                *polls
            }
            _ => 0,
        }
    }

    pub fn is_queued(self) -> bool {
        matches!(self, Queued | QueuedAndPolled(_))
    }

    pub fn is_polled(self) -> bool {
        matches!(self, Polled(_) | QueuedAndPolled(_))
    }

    pub fn is_disabled(self) -> bool {
        self == Disabled
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ALL: [State; 5] = [Idle, Queued, Polled(3), QueuedAndPolled(3), Disabled];

    #[test]
    fn transitions_are_those_of_the_table() {
        type Change = fn(&mut State);
        let enqueue: Change = |state| _ = state.enqueue();
        let poll: Change = |state| _ = state.poll();
        for (name, change, after) in [
            ("enqueue", enqueue, [Queued, Queued, QueuedAndPolled(3), QueuedAndPolled(3), Disabled]),
            ("dequeue", State::dequeue, [Idle, Idle, Polled(3), Polled(3), Disabled]),
            ("poll", poll, [Polled(0), QueuedAndPolled(0), Polled(0), QueuedAndPolled(0), Disabled]),
            ("arm", State::arm, [Idle, Queued, Idle, Queued, Disabled]),
            ("disable", State::disable, [Disabled; 5]),
            ("enable", State::enable, [Idle, Queued, Polled(3), QueuedAndPolled(3), Idle]),
        ] {
            for (before, after) in ALL.into_iter().zip(after) {
                let mut state = before;
                change(&mut state);
                assert_eq!(state, after, "{name} of {before:?}");
            }
        }
    }

    #[test]
    fn an_entry_is_put_into_each_list_once() {
        assert_eq!(ALL.map(|mut state| state.enqueue()), [true, false, true, false, false]);
        assert_eq!(ALL.map(|mut state| state.poll()), [true, true, false, false, false]);
    }

    #[test]
    fn polls_are_counted_until_there_are_octets() {
        let mut state = Polled(0);
        assert_eq!((state.count(1), state.count(8)), (1, 9));
        state.poll();
        assert_eq!(state.count(1), 1, "the count begins anew");
        assert_eq!(ALL.map(|mut state| state.count(1)), [0, 0, 4, 4, 0]);
    }
}
